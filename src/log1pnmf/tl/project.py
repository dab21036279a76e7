"""Fitted models out of AnnData, and their loadings for other samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from log1pnmf.counts.features import find_features
from log1pnmf.estimator import Log1pNMF
from log1pnmf.fitting.keys import Keys

from .inputs import check_anndata, read_counts, target
from .store import read_model, write_loadings

__all__ = ["model", "transform"]


def model(adata: Any, key: str | None = None) -> Log1pNMF:
    """Give back the fitted estimator from what `log1p_nmf` or `sweep` wrote.

    Parameters
    ----------
    adata : AnnData
        Also one that was written to a file and read again. Its samples and their order have to be those of
        the fit; features may have been reordered or added.
    key : str, optional
        Where the result is, if `key_added` was given.

    Returns
    -------
    Log1pNMF
        With the same bits in `loadings_` and `components_`.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> from log1pnmf.tl import log1p_nmf
    >>> adata = anndata.AnnData(pancreas().counts[:100])
    >>> log1p_nmf(adata, 3, tol=1e-3)
    >>> bool((model(adata).loadings_ == adata.obsm["X_log1p_nmf"]).all())
    True
    """
    check_anndata(adata)
    return read_model(adata, Keys(key), whole=True)


def transform(
    adata: Any,
    ref: Any,
    *,
    key: str | None = None,
    layer: str | None = None,
    size_factors: Any = None,
    copy: bool = False,
) -> Any:
    """Find the loadings of other samples in factors that were fitted before, and write them to `obsm`.

    Parameters
    ----------
    adata : AnnData
        The other samples.
    ref : AnnData or Log1pNMF
        With the fit. Features are matched by name, where the fit knows names: those that it does not have
        are left out, and none may be missing.
    key : str, optional
        Name of the fit in `ref`, if `key_added` was given, and of the loadings in `adata`.
    layer : str, optional
        Where the counts are, as in `log1p_nmf`.
    size_factors : {"total", "none"} or array, optional
        As in `Log1pNMF.transform`.
    copy : bool
        Whether to leave `adata` as it is and return a copy with the loadings.

    Returns
    -------
    AnnData or None
        The copy, if asked for.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> from log1pnmf.tl import log1p_nmf
    >>> cells = anndata.AnnData(pancreas().counts[:150])
    >>> old, new = cells[:100].copy(), cells[100:].copy()
    >>> log1p_nmf(old, 3, tol=1e-3)
    >>> transform(new, old)
    >>> new.obsm["X_log1p_nmf"].shape
    (50, 3)
    """
    check_anndata(adata)
    keys = Keys(key)
    if isinstance(ref, Log1pNMF):
        check_is_fitted(ref)
        fitted = ref
    else:
        check_anndata(ref, "ref")
        fitted = read_model(ref, keys, whole=False)
    adata = target(adata, copy)
    counts = read_counts(adata, layer, _positions(adata, fitted)).counts
    write_loadings(adata, keys, fitted.transform(counts, size_factors=size_factors))
    return adata if copy else None


def _positions(adata: Any, fitted: Log1pNMF) -> np.ndarray:
    """Features of the fit among those of other samples."""
    names = getattr(fitted, "feature_names_in_", None)
    if names is None:
        if adata.n_vars != fitted.n_features_in_:
            raise ValueError(
                f"the model was fitted to {fitted.n_features_in_} features without names, "
                f"got {adata.n_vars}; pass the same features in the same order"
            )
        return np.arange(adata.n_vars)
    return find_features(adata, names)
