"""Loadings of new samples for the factors of a fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from log1pnmf.analysis.loading_errors import loading_errors
from log1pnmf.counts.features import find_features
from log1pnmf.fitting.annotated import fit_from, is_annotated
from log1pnmf.fitting.as_fit import as_fit
from log1pnmf.fitting.keys import Keys
from log1pnmf.fitting.new_samples import counts_of, new_batches, new_samples

from .inputs import check_anndata, obs_column, read_counts, target
from .store import write_fit

__all__ = ["transform"]


def transform(
    adata: Any,
    ref: Any,
    *,
    key: str | None = None,
    layer: str | None = None,
    size_factors: Any = None,
    batch_key: str | None = None,
    std: bool = False,
    copy: bool = False,
    n_jobs: int | None = None,
) -> Any:
    """Estimate the loadings of new samples for the factors of a fit, and store them with the factors.

    Parameters
    ----------
    adata : AnnData
        The new samples.
    ref : AnnData, Fit, Log1pNMF, str or PathLike
        The fit, see `log1pnmf.as_fit`. AnnData may have lost samples since the fit. If the fit has feature
        names, features are matched by name: those that the fit does not know are ignored, and none of its own
        may be missing.
    key : str, optional
        Name of the fit in `ref`, if `key_added` was given, and of the loadings in `adata`.
    layer : str, optional
        Layer with the counts, as in `log1p_nmf`.
    size_factors : {"total", "fit", "none"} or array, optional
        As in `Log1pNMF.transform`.
    batch_key : str, optional
        Column of `obs` with the batch of every sample; batches that the fit does not know have no effects.
    std : bool
        Whether to write standard errors of the loadings given the factors, to ``obsm["X_log1p_nmf_std"]``;
        what is uncertain about the factors is not in them, see `log1pnmf.analysis.loading_errors`.
    copy : bool
        Whether to leave `adata` as it is and return a copy with the loadings.
    n_jobs : int, optional
        Number of threads.

    Returns
    -------
    AnnData or None
        A copy of `adata` with the results, if ``copy=True``.

    Notes
    -----
    The results are in the places that `log1p_nmf` writes to, so that `markers`, `usage`, plots and
    `log1pnmf.as_fit` take the new samples, too. What `uns` holds of the log-likelihood is left out.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> from log1pnmf.tl import log1p_nmf
    >>> cells = anndata.AnnData(pancreas().counts[:150])
    >>> old, new = cells[:100].copy(), cells[100:].copy()
    >>> log1p_nmf(old, 3)
    >>> transform(new, old)
    >>> new.obsm["X_log1p_nmf"].shape
    (50, 3)
    """
    check_anndata(adata)
    keys = Keys(key)
    fit = fit_from(ref, key, any_samples=True) if is_annotated(ref) else as_fit(ref)
    positions = np.arange(adata.n_vars)
    if fit.feature_names is not None:
        positions = find_features(adata.var_names, fit.feature_names.tolist())
    adata = target(adata, copy)
    selection = read_counts(adata, layer, positions)
    batch = None if batch_key is None else obs_column(adata, batch_key, "batch_key")
    counts, batches = (
        counts_of(fit, selection.counts, same_samples=False),
        new_batches(fit, batch, adata.n_obs),
    )
    samples = new_samples(fit, counts, size_factors, batches=batches, n_jobs=n_jobs)
    if fit.batches is not None:
        batches = fit.batches.for_samples(batch, adata.n_obs)
    why = f"these are {adata.n_obs:,} samples whose loadings were estimated for the factors of a fit"
    projected = fit.of_samples(samples.solved(), samples.size_factors, batches, why)
    write_fit(adata, keys, projected, selection)
    if std:
        adata.obsm[keys.std] = loading_errors(projected, counts)
    return adata if copy else None
