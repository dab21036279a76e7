"""Comparison of numbers of factors and c, in AnnData."""

from __future__ import annotations

from typing import Any

from log1pnmf.analysis.selection.run import select as compare_settings
from log1pnmf.fitting.keys import Keys

from .inputs import check_anndata, chosen_features, obs_column, raw_layer, read_counts, target
from .store import as_frame

__all__ = ["select"]


def select(
    adata: Any,
    n_components: Any,
    *,
    c: Any = 1.0,
    layer: str | None = None,
    use_raw: bool = False,
    mask_var: Any = None,
    batch_key: str | None = None,
    key_added: str | None = None,
    copy: bool = False,
    random_state: Any = 0,
    **options: Any,
) -> Any:
    """Compare numbers of factors (and c) by held-out likelihood and by stability over seeds.

    Parameters
    ----------
    adata : AnnData
        As in `log1p_nmf`.
    n_components : int or sequence of int
        Numbers of factors to compare, such as ``range(2, 13)``.
    c : float or sequence of float
        Shifts of the link to compare, each with every number of factors.
    layer, use_raw, mask_var, batch_key, copy, random_state
        As in `log1p_nmf`.
    key_added : str, optional
        Name of the result, which is then ``uns[key_added + "_select"]``.
    **options : optional
        `holdout`, `n_seeds`, `n_jobs`, `verbose`, `resume` and others of `log1pnmf.select`.

    Returns
    -------
    AnnData or None
        A copy of `adata` with the results, if ``copy=True``.

    Notes
    -----
    The result is ``uns["log1p_nmf_select"]``, a dictionary with `table`, a data frame with the columns of
    `log1pnmf.analysis.Selection.summary`; `suggested`, a dictionary with the suggested parameters, empty if
    the data do not decide; `judgement`, the same in words, with the reasons; and `holdout`.
    `log1pnmf.pl.select` draws it.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> adata = anndata.AnnData(pancreas().counts[:120, :300])
    >>> select(adata, [1, 2, 3], n_folds=2, n_seeds=2, tol=1e-4)
    >>> adata.uns["log1p_nmf_select"]["table"]["n_components"].tolist()
    [1, 2, 3]
    >>> print(adata.uns["log1p_nmf_select"]["judgement"].splitlines()[0])
    The data do not decide K: the best is at the end of the values tried.
    """
    check_anndata(adata)
    keys = Keys(key_added)
    layer = raw_layer(layer, use_raw)
    adata = target(adata, copy)
    counts = read_counts(adata, layer, chosen_features(adata, mask_var)).counts
    batch = None if batch_key is None else obs_column(adata, batch_key, "batch_key")
    found = compare_settings(counts, c, n_components, random_state=random_state, batch=batch, **options)
    judgement = found.judgement
    adata.uns[keys.select] = {
        "table": as_frame(found.summary),
        "suggested": {} if judgement.setting is None else judgement.setting.parameters,
        "judgement": str(judgement),
        "holdout": found.about["holdout"],
    }
    return adata if copy else None
