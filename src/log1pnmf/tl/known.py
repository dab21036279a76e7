"""Loadings that are known, from columns of an AnnData object."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["known_loadings"]


def known_loadings(adata: Any, given: Any) -> Any:
    """Turn names of columns of `obs` into loadings; anything else is left as it is.

    Numbers and True or False are taken as they are. Labels become one column of 0 and 1 for each label, named
    "column=label".

    Parameters
    ----------
    given : str, sequence of str, or other
    """
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return given
    columns: dict[str, Any] = {}
    for name in names:
        if name not in adata.obs:
            known = ", ".join(map(repr, list(adata.obs.columns)[:10])) or "none"
            raise ValueError(f"fixed_loadings: obs has no column {name!r}; it has {known}")
        column = adata.obs[name]
        if column.dtype.kind in "biuf":
            columns[name] = column.to_numpy(dtype=np.float64)
            continue
        if column.isna().any():
            raise ValueError(f"fixed_loadings: column {name!r} of obs has missing labels; fill them in")
        labels = column.astype(str).to_numpy()
        columns |= {f"{name}={label}": (labels == label).astype(np.float64) for label in np.unique(labels)}
    return columns
