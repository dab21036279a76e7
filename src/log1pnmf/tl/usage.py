"""Comparison of groups of samples, in AnnData."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from log1pnmf.analysis.groups import labels_of
from log1pnmf.analysis.usage import usage as compare_groups
from log1pnmf.fitting.annotated import fit_from
from log1pnmf.fitting.keys import Keys

from .inputs import check_anndata, target
from .store import as_frame

__all__ = ["usage"]


def usage(
    adata: Any,
    groupby: str,
    *,
    replicate: str | bool | None = None,
    reference: str | None = None,
    covariates: str | Sequence[str] = (),
    numeric: bool | None = None,
    key: str | None = None,
    copy: bool = False,
) -> Any:
    """Compare the mean loadings of groups, with donors as replicates; store the table.

    Parameters
    ----------
    adata : AnnData
        Data with a fit by `log1p_nmf`: all of its samples or some, or new ones after `transform`.
    groupby : str
        Column of `obs` with the condition of every sample, or with a number such as an age.
    replicate : str or True, optional
        Column of `obs` with the donor (animal, patient) of every sample; True if every sample is a replicate.
    reference : str, optional
        Group that the others are compared with; by default the first.
    covariates : str or sequence of str
        Columns of `obs` with covariates to adjust for: numbers or labels.
    numeric : bool, optional
        Whether numbers have a slope or are groups; by default more than two different numbers have a slope.
    key : str, optional
        Name of the fit, if `key_added` was given.
    copy : bool
        Whether to leave `adata` as it is and return a copy with the table.

    Returns
    -------
    AnnData or None
        A copy of `adata` with the results, if ``copy=True``.

    Notes
    -----
    The result is ``uns["log1p_nmf_usage"]`` (``uns[key + "_usage"]``), a dictionary with `table`, a
    data frame with the columns of `log1pnmf.analysis.Usage.table`, `factor_names`, and, with replicates,
    their mean loadings `means` and their groups `unit_groups`.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> from log1pnmf.tl import log1p_nmf
    >>> adata = anndata.AnnData(np.random.default_rng(0).poisson(2.0, (60, 10)))
    >>> adata.obs["donor"] = np.repeat([f"d{i}" for i in range(6)], 10)
    >>> adata.obs["condition"] = np.repeat(["a", "b"], 30)
    >>> log1p_nmf(adata, 2)
    >>> usage(adata, "condition", replicate="donor")
    >>> adata.uns["log1p_nmf_usage"]["table"].shape
    (2, 11)
    """
    check_anndata(adata)
    keys = Keys(key)
    chosen = [covariates] if isinstance(covariates, str) else list(covariates)
    found = compare_groups(
        fit_from(adata, key),
        labels_of(adata, groupby),
        replicate=labels_of(adata, replicate),
        reference=reference,
        covariates={name: labels_of(adata, name) for name in chosen} or None,
        numeric=numeric,
    )
    adata = target(adata, copy)
    adata.uns[keys.usage] = {"table": as_frame(found.table()), "groupby": groupby, **found.kept()}
    return adata if copy else None
