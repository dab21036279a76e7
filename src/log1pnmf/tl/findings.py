"""Findings about a fit in AnnData: markers, usage, evidence; and the selection of settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from log1pnmf.analysis.evidence import evidence as find_evidence
from log1pnmf.analysis.groups import labels_of
from log1pnmf.analysis.markers import markers as find_markers
from log1pnmf.analysis.select import select as compare_settings
from log1pnmf.analysis.usage import usage as compare_groups
from log1pnmf.fitting.anndata import fit_from
from log1pnmf.fitting.fit import Keys

from .inputs import (
    as_frame,
    batch_of,
    check_anndata,
    chosen_features,
    counts_of_fit,
    raw_layer,
    read_counts,
    target,
)


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
    verbose: int | None = None,
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
    errors, split, n_jobs, verbose
        As in `log1pnmf.analysis.markers`.
    n_top : int or None
        Number of features in the table for each factor: the first of those that rise significantly. None
        takes all features, significant or not, which takes much room.
    max_samples : int, optional
        Number of random samples to test; see `log1pnmf.analysis.markers`.
    copy : bool
        Whether to leave `adata` as it is and return a copy with the table.

    Returns
    -------
    AnnData or None
        A copy of `adata` with the results, if ``copy=True``.

    Notes
    -----
    The result is ``uns["log1p_nmf_markers"]`` (``uns[key + "_markers"]``), a dictionary with `table`, a data
    frame with the columns of `log1pnmf.analysis.Markers.table`; `tested`, effects and p-values of all
    features, which `log1pnmf.pl.volcano` draws; and `c`, `errors`, `split`, `reliability`, `determined`,
    `unmoved`, `n_samples`, `n_rising` and `factor_names`. The report uses it.

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
    fit = fit_from(adata, key)
    counts = counts_of_fit(adata, fit, key, layer)
    found = find_markers(
        fit, counts, errors=errors, split=split, max_samples=max_samples, n_jobs=n_jobs, verbose=verbose
    )
    adata = target(adata, copy)
    adata.uns[Keys(key).markers] = {"table": as_frame(found.table(n_top)), **found.kept()}
    return adata if copy else None


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
    covariates : str or sequence of str
        Columns of `obs` with covariates to adjust for: numbers or labels.
    reference, numeric
        As in `log1pnmf.analysis.usage`.
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
    adata.uns[Keys(key).usage] = {"table": as_frame(found.table()), "groupby": groupby, **found.kept()}
    return adata if copy else None


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
    verbose: int | None = None,
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
    fit = fit_from(adata, key)
    counts = counts_of_fit(adata, fit, key, layer)
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
    adata.uns[Keys(key).evidence] = {**found.kept(), "table": as_frame(found.table())}
    return adata if copy else None


def select(
    adata: Any,
    n_components: Any,
    c: Any = 1.0,
    *,
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
    keys, layer = Keys(key_added), raw_layer(layer, use_raw)
    adata = target(adata, copy)
    counts = read_counts(adata, layer, chosen_features(adata, mask_var)).counts
    batch = batch_of(adata, batch_key)
    found = compare_settings(counts, n_components, c, random_state=random_state, batch=batch, **options)
    judgement = found.judgement
    adata.uns[keys.select] = {
        "table": as_frame(found.summary),
        "suggested": {} if judgement.setting is None else judgement.setting.parameters,
        "judgement": str(judgement),
        "holdout": found.about["holdout"],
    }
    return adata if copy else None
