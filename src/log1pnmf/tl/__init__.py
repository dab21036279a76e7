"""Tools for AnnData, with the habits of scanpy: in place, `layer=`, `key_added=`, `copy=`.

Results are plain numbers, strings and arrays, so that files open wherever anndata is installed;
`log1pnmf.fitting.fit` has their names. `log1pnmf.as_fit` and `log1pnmf.Log1pNMF.of` give a fit back. A log
message states if another layer was used, or if a view became a copy (logger "log1pnmf", level WARNING, which
Python shows by default).
"""

from .tools import consensus as consensus
from .tools import evidence as evidence
from .tools import extend_features as extend_features
from .tools import log1p_nmf as log1p_nmf
from .tools import markers as markers
from .tools import programs as programs
from .tools import rename_factors as rename_factors
from .tools import select as select
from .tools import sweep as sweep
from .tools import transform as transform
from .tools import usage as usage
