"""Tools for AnnData, with the habits of scanpy: in place, `layer=`, `key_added=`, `copy=`.

Results are plain numbers, strings and arrays, so that files open wherever anndata is installed. Where they
lie is in `log1pnmf.fitting.keys`. What a user should know without asking (another layer was used, a view became an
object of its own) is said through the logger "log1pnmf" at level WARNING, which Python shows by default.
"""

from .fit import log1p_nmf, sweep
from .markers import markers
from .project import model, transform

__all__ = ["log1p_nmf", "markers", "model", "sweep", "transform"]
