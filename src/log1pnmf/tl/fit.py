"""Fits to AnnData."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from log1pnmf.analysis.loading_errors import loading_errors
from log1pnmf.analysis.sweep import sweep as sweep_counts
from log1pnmf.fitting.driver import run_request
from log1pnmf.fitting.keys import SWEEP, Keys, sweep_key
from log1pnmf.fitting.request import Request

from .inputs import check_anndata, chosen_features, obs_column, raw_layer, read_counts, target
from .known import known_loadings
from .store import as_frame, write_fit, write_obs

__all__ = ["log1p_nmf", "sweep"]


def log1p_nmf(
    adata: Any,
    n_components: int,
    *,
    c: float = 1.0,
    layer: str | None = None,
    use_raw: bool = False,
    mask_var: Any = None,
    batch_key: str | None = None,
    key_added: str | None = None,
    std: bool = False,
    obs_keys: bool = False,
    fixed_loadings: Any = None,
    copy: bool = False,
    random_state: Any = 0,
    **parameters: Any,
) -> Any:
    """Fit the model to the counts of an AnnData object and write the result into it.

    Parameters
    ----------
    adata : AnnData
        Samples are `obs`. A view becomes a copy. Of an object backed by a file only the counts are read, and
        the results stay in memory until you write it.
    n_components : int
        Number of factors.
    c : float
        Shift of the link; inf is standard Poisson NMF.
    layer : str, optional
        Layer with the counts. By default X, or the layer "counts" if X does not hold counts (a log message
        says so). "raw" takes the features of `adata` from ``adata.raw``; "X" takes X even if it holds
        fractions, such as expected counts.
    use_raw : bool
        The same as ``layer="raw"``.
    mask_var : str or array of bool, optional
        Features to use: a column of `var`, such as "highly_variable", or one value for each feature. By
        default all features, even if `var` has a column "highly_variable".
    batch_key : str, optional
        Column of `obs` with the batch of every sample (donor, chip, section); see `batch` of
        `log1pnmf.Log1pNMF.fit`.
    key_added : str, optional
        Name under which `obsm`, `varm` and `uns` keep the results; Notes lists the defaults.
    std : bool
        Whether to write standard errors of the loadings given the factors, to ``obsm["X_log1p_nmf_std"]``;
        what is uncertain about the factors is not in them, see `log1pnmf.analysis.loading_errors`.
    obs_keys : bool
        Whether to write loadings also to columns of `obs`: "k0", "k1" and so on, with `key_added` as a
        prefix. ``scanpy.pl.umap(adata, color=["k0", "k1"])`` draws them.
    fixed_loadings : list of str, mapping or array, optional
        Known loadings: columns of `obs` (a column of labels becomes a column of 0 and 1 for each label), or
        as in `log1pnmf.Log1pNMF.fit`.
    copy : bool
        Whether to leave `adata` as it is and return a copy with the results.
    random_state : int, RandomState, Generator or None
        Seed or generator of the random numbers.
    **parameters : optional
        Others of `log1pnmf.Log1pNMF`, with the same defaults, except `warm_start`. ``mask=`` takes gene sets:
        a dict of names to lists of features.

    Returns
    -------
    AnnData or None
        A copy of `adata` with the results, if ``copy=True``.

    Notes
    -----
    The results are in ``obsm["X_log1p_nmf"]`` (loadings, samples x factors), ``varm["log1p_nmf"]`` (factors,
    features x factors; zeros for features that were not used) and ``uns["log1p_nmf"]`` (log-likelihood,
    convergence, history, settings, versions). ``noise="nb"`` adds ``var["log1p_nmf_dispersion"]``.
    `log1pnmf.as_fit` returns the `Fit`, and `log1pnmf.Log1pNMF.of` a fitted estimator, also after the file
    was written and read.

    See Also
    --------
    log1pnmf.Log1pNMF : All parameters.
    log1pnmf.tl.select : Choose c and the number of factors.
    log1pnmf.tl.transform : Estimate the loadings of new samples.
    log1pnmf.pl.structure : Draw the loadings.

    References
    ----------
    .. [1] E. Weine, P. Carbonetto, R. A. Irizarry and M. Stephens (2026). A New Family of Poisson
       Non-negative Matrix Factorization Methods Using the Shifted Log Link. arXiv:2601.05845.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> adata = anndata.AnnData(pancreas().counts[:100])
    >>> log1p_nmf(adata, 3, c=1.0)
    >>> adata.obsm["X_log1p_nmf"].shape, adata.varm["log1p_nmf"].shape
    ((100, 3), (2425, 3))
    """
    check_anndata(adata)
    keys = Keys(key_added)
    batch = None if batch_key is None else obs_column(adata, batch_key, "batch_key")
    settings = {"n_components": n_components, "c": c, "random_state": random_state}
    loadings = known_loadings(adata, fixed_loadings)
    request = Request.of(batch=batch, fixed_loadings=loadings, **settings, **parameters)
    layer = raw_layer(layer, use_raw)
    adata = target(adata, copy)
    selection = read_counts(adata, layer, chosen_features(adata, mask_var))
    fit = run_request(request, selection.counts)
    write_fit(adata, keys, fit, selection)
    if std:
        adata.obsm[keys.std] = loading_errors(fit, selection.counts)
    if obs_keys:
        write_obs(adata, keys, fit)
    return adata if copy else None


def sweep(
    adata: Any,
    c: Sequence[float],
    n_components: int,
    *,
    layer: str | None = None,
    mask_var: Any = None,
    copy: bool = False,
    random_state: Any = 0,
    **parameters: Any,
) -> Any:
    """Fit the model at several c; store every fit and a table that compares them.

    Parameters
    ----------
    adata : AnnData
        As in `log1p_nmf`.
    c : sequence of float
        Values of c, all different; may contain inf.
    n_components : int
        Number of factors.
    layer, mask_var, copy, random_state
        As in `log1p_nmf`.
    **parameters : optional
        `warm_start` as in `log1pnmf.sweep`, and others of `log1pnmf.Log1pNMF`.

    Returns
    -------
    AnnData or None
        A copy of `adata` with the results, if ``copy=True``.

    Notes
    -----
    Each fit is stored as by `log1p_nmf`, with a key such as "log1p_nmf_c=0.1" or "log1p_nmf_c=inf".
    ``uns["log1p_nmf_sweep"]`` is a data frame with one row for each fit; its columns are those of
    `log1pnmf.analysis.Sweep`, and `key`, the key of the fit.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> adata = anndata.AnnData(pancreas().counts[:100, :300])
    >>> sweep(adata, [1, float("inf")], 2)
    >>> adata.uns["log1p_nmf_sweep"]["key"].tolist()
    ['log1p_nmf_c=1', 'log1p_nmf_c=inf']
    """
    check_anndata(adata)
    adata = target(adata, copy)
    selection = read_counts(adata, layer, chosen_features(adata, mask_var))
    result = sweep_counts(selection.counts, c, n_components, random_state=random_state, **parameters)
    for fit in result.fits:
        write_fit(adata, Keys(sweep_key(fit.c)), fit, selection)
    table = as_frame(result.table)
    table["key"] = [sweep_key(value) for value in table["c"]]
    adata.uns[SWEEP] = table
    return adata if copy else None
