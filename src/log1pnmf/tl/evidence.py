"""Tests of whether the factors of a fit are real, in AnnData."""

from __future__ import annotations

from typing import Any

from log1pnmf.analysis.evidence import evidence as find_evidence
from log1pnmf.fitting.annotated import fit_from
from log1pnmf.fitting.keys import Keys

from .inputs import check_anndata, counts_of_fit, target
from .store import as_frame

__all__ = ["evidence"]


def evidence(
    adata: Any,
    *,
    key: str | None = None,
    layer: str | None = None,
    n_seeds: int = 5,
    n_bootstrap: int = 10,
    max_samples: int | None = None,
    random_state: Any = 0,
    copy: bool = False,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> Any:
    """Measure what a fit loses without each factor, and how often other fits find it; store the table.

    Parameters
    ----------
    adata : AnnData
        Data with a fit by `log1p_nmf`, and the same samples as in the fit, in any order.
    key : str, optional
        Name of the fit, if `key_added` was given.
    layer : str, optional
        Layer with the counts; by default that of the fit.
    n_seeds, n_bootstrap, max_samples, random_state, n_jobs, verbose
        As in `log1pnmf.analysis.evidence`.
    copy : bool
        Whether to leave `adata` as it is and return a copy with the table.

    Returns
    -------
    AnnData or None
        A copy of `adata` with the results, if ``copy=True``.

    Notes
    -----
    The result is ``uns["log1p_nmf_evidence"]`` (``uns[key + "_evidence"]``), a dictionary with `table`, a
    data frame with the columns of `log1pnmf.analysis.Evidence.table`; `judgement`, the same in words;
    `factor_names`; and the numbers of fits and samples. The summary of ``log1pnmf.Log1pNMF.of(adata)`` and
    the report show it.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> from log1pnmf.tl import log1p_nmf
    >>> adata = anndata.AnnData(np.random.default_rng(0).poisson(2.0, (60, 10)))
    >>> log1p_nmf(adata, 2)
    >>> evidence(adata, n_seeds=2, n_bootstrap=2)
    >>> adata.uns["log1p_nmf_evidence"]["judgement"][:28]
    'No more than noise: k0, k1 ('
    """
    check_anndata(adata)
    keys = Keys(key)
    fit = fit_from(adata, key)
    counts = counts_of_fit(adata, fit, layer, adata.uns[keys.uns]["layer"])
    found = find_evidence(
        fit,
        counts,
        n_seeds=n_seeds,
        n_bootstrap=n_bootstrap,
        max_samples=max_samples,
        random_state=random_state,
        n_jobs=n_jobs,
        verbose=verbose,
    )
    adata = target(adata, copy)
    adata.uns[keys.evidence] = {**found.kept(), "table": as_frame(found.table())}
    return adata if copy else None
