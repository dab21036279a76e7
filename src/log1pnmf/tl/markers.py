"""Features that rise with a factor, in AnnData."""

from __future__ import annotations

from typing import Any

import numpy as np

from log1pnmf.analysis.markers.find import markers as find_markers
from log1pnmf.fitting.annotated import fit_from
from log1pnmf.fitting.keys import Keys

from .inputs import check_anndata, counts_of_fit, target
from .store import as_frame

__all__ = ["markers"]


def markers(
    adata: Any,
    *,
    key: str | None = None,
    layer: str | None = None,
    errors: str = "sandwich",
    split: bool = False,
    n_top: int | None = 100,
    max_samples: int | None = None,
    copy: bool = False,
    n_jobs: int | None = None,
) -> Any:
    """Test which features rise with each factor; store the table.

    Parameters
    ----------
    adata : AnnData
        Data with a fit by `log1p_nmf`: all of its samples or some, or new ones after `transform`.
    key : str, optional
        Name of the fit, if `key_added` was given.
    layer : str, optional
        Layer with the counts; by default that of the fit.
    errors, split
        As in `log1pnmf.analysis.markers`.
    n_top : int or None
        Number of features in the table for each factor: the first of those that rise significantly. None
        takes all features, significant or not, which takes much room.
    max_samples : int, optional
        Number of random samples to test; see `log1pnmf.analysis.markers`.
    copy : bool
        Whether to leave `adata` as it is and return a copy with the table.
    n_jobs : int, optional
        Number of threads.

    Returns
    -------
    AnnData or None
        A copy of `adata` with the results, if ``copy=True``.

    Notes
    -----
    The result is ``uns["log1p_nmf_markers"]`` (``uns[key + "_markers"]``), a dictionary with `table`, a data
    frame with the columns of `log1pnmf.analysis.Markers.table`; `tested`, effects and p-values of all
    features, which `log1pnmf.pl.volcano` draws; and `c`, `errors`, `split`, `reliability`, `n_samples`,
    `n_rising` and `factor_names`. The report uses it.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> from log1pnmf.tl import log1p_nmf
    >>> adata = anndata.AnnData(pancreas().counts[:100])
    >>> log1p_nmf(adata, 3)
    >>> markers(adata, n_top=5)
    >>> adata.uns["log1p_nmf_markers"]["table"].shape
    (15, 13)
    """
    check_anndata(adata)
    keys = Keys(key)
    fit = fit_from(adata, key)
    counts = counts_of_fit(adata, fit, layer, adata.uns[keys.uns]["layer"])
    found = find_markers(fit, counts, errors=errors, split=split, max_samples=max_samples, n_jobs=n_jobs)
    table = as_frame(found.table(n_top))
    adata = target(adata, copy)
    adata.uns[keys.markers] = {
        "table": table,
        "tested": found.tested,
        "c": found.c,
        "errors": errors,
        "split": split,
        "reliability": found.reliability,
        "n_samples": found.n_samples,
        "n_rising": found.n_rising,
        "factor_names": np.array(found.factor_names, dtype=object),
    }
    return adata if copy else None
