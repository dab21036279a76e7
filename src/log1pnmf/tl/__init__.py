"""Tools for AnnData, with the habits of scanpy: in place, `layer=`, `key_added=`, `copy=`.

Results are plain numbers, strings and arrays, so that files open wherever anndata is installed;
`log1pnmf.fitting.fit` has their names. `log1pnmf.as_fit` and `log1pnmf.Log1pNMF.of` give a fit back. A log
message says if another layer was used, or if a view became a copy (logger "log1pnmf", level WARNING, which
Python shows by default).
"""

from .tools import (
    consensus,
    evidence,
    extend_features,
    log1p_nmf,
    markers,
    programs,
    rename_factors,
    select,
    sweep,
    transform,
    usage,
)

__all__ = [
    "consensus",
    "evidence",
    "extend_features",
    "log1p_nmf",
    "markers",
    "programs",
    "rename_factors",
    "select",
    "sweep",
    "transform",
    "usage",
]
