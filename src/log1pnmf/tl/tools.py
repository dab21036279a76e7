"""Tools for AnnData: fit, transform and rename; markers, usage, evidence, consensus and selection."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.arrays import Numbers
from log1pnmf._common.checks import Seed, extend, quiet, require
from log1pnmf.analysis.diagnostics import loading_errors
from log1pnmf.analysis.evidence import EvidenceOptions
from log1pnmf.analysis.evidence import evidence as find_evidence
from log1pnmf.analysis.groups import labels_of
from log1pnmf.analysis.markers import MarkerOptions
from log1pnmf.analysis.markers import markers as find_markers
from log1pnmf.analysis.select import SelectOptions
from log1pnmf.analysis.select import select as compare_settings
from log1pnmf.analysis.stability import ConsensusOptions
from log1pnmf.analysis.stability import consensus as find_consensus
from log1pnmf.analysis.stability import sweep as sweep_counts
from log1pnmf.analysis.usage import UsageOptions
from log1pnmf.analysis.usage import usage as compare_groups
from log1pnmf.counts.compress import dense_blocks
from log1pnmf.counts.counts import Counts, SizesKind, holds_counts
from log1pnmf.counts.features import find_features, n_variable, shared_features, variable_features
from log1pnmf.counts.write import annotated, numbered
from log1pnmf.fitting.anndata import advice_for, as_fit, column_of, fit_from, is_annotated, symbols_of, uns_of
from log1pnmf.fitting.fit import SWEEP, Fit, Keys, sample_shares, sweep_key
from log1pnmf.fitting.fit_counts import FitParameters, checked, completed, fit_counts
from log1pnmf.fitting.new_features import extend_features as extend_fit
from log1pnmf.fitting.new_samples import of_features, project

if TYPE_CHECKING:
    from anndata import AnnData
    from typing_extensions import Unpack

P = ParamSpec("P")
logger = logging.getLogger("log1pnmf")

# ---------- what all tools share: an AnnData object, or a copy of it, that takes the results

SHARED = """
adata : AnnData
    As in `log1p_nmf`.
n_components : int
    Number of factors.
layer : str, optional
    Layer with the counts. By default X, or the layer "counts" if X does not hold counts (with a log
    message). "raw" takes the features of `adata` from ``adata.raw``; "X" takes X even if it holds
    fractions, such as expected counts.
mask_var : str or array of bool, optional
    Features to use: a column of `var`, such as "highly_variable", or one value for each feature;
    "variable:2000" takes the 2,000 with the largest deviance from one factor. By default all features,
    even if `var` has a column "highly_variable"; `extend_features` adds the others afterwards.
batch_key : str, optional
    Column of `obs` with the batch of every sample (donor, chip, section); see `batch` of
    `log1pnmf.Log1pNMF.fit`.
key : str, optional
    Name of the fit, if `key_added` was given.
key_added : str, optional
    Name under which `obsm`, `varm` and `uns` keep the results; Notes of `log1p_nmf` lists the defaults.
std : bool
    Whether to write standard errors of the loadings given the factors, to ``obsm["X_log1p_nmf_std"]``;
    what is uncertain about the factors is not in them, see `log1pnmf.analysis.diagnostics`.
random_state : int, RandomState, Generator or None
    Seed or generator of the random numbers.
n_jobs : int, optional
    Number of threads.
copy : bool
    Whether to leave `adata` as it is and return a copy with the results.
"""
OF_A_FIT = """adata : AnnData
    Data with a fit by `log1p_nmf`: all of its samples or some, or new ones after `transform`.
layer : str, optional
    Layer with the counts; by default that of the fit.
"""  # of tools that take the key of a fit
RETURNS = """Returns
-------
AnnData or None
    A copy of `adata` with the results, if ``copy=True``.

"""


def tool(function: Callable[P, None]) -> Callable[P, AnnData | None]:
    """Return a tool that heeds scanpy's parameter `copy`, and with all that tools share described."""

    @wraps(function)
    def run(adata: Any, *arguments: Any, copy: bool = False, **options: Any) -> Any:
        adata = target(adata, copy)
        function(adata, *arguments, **options)
        return adata if copy else None

    extend(run, {}, SHARED + (OF_A_FIT if "key" in signature(function).parameters else ""), RETURNS)
    return run  # type: ignore[return-value]


@completed(FitParameters)
@tool
def log1p_nmf(
    adata: AnnData,
    n_components: int,
    *,
    c: float = 1.0,
    layer: str | None = None,
    mask_var: str | Numbers | None = None,
    batch_key: str | None = None,
    key_added: str | None = None,
    std: bool = False,
    obs_keys: bool = False,
    fixed_loadings: Any = None,
    copy: bool = False,
    **parameters: Unpack[FitParameters],
) -> None:
    """Fit the model to the counts of an AnnData object and write the result into it.

    Parameters
    ----------
    adata : AnnData
        Samples are `obs`. A view becomes a copy. Of an object backed by a file only the counts are read, and
        the results stay in memory until you write it.
    c : float
        Shift of the link; inf is standard Poisson NMF.
    obs_keys : bool
        Whether to write loadings also to columns of `obs`: "k0", "k1" and so on, with `key_added` as a
        prefix. ``scanpy.pl.umap(adata, color=["k0", "k1"])`` draws them.
    fixed_loadings : list of str, mapping or array, optional
        Known loadings: columns of `obs` (a column of labels becomes a column of 0 and 1 for each label), or
        as in `log1pnmf.Log1pNMF.fit`.
    **parameters : optional
        Other parameters as in `log1pnmf.Log1pNMF`. ``mask=`` takes gene sets: a dict of names to lists of
        features.

    Notes
    -----
    The results are in ``obsm["X_log1p_nmf"]`` (loadings, samples x factors), ``obsm["X_log1p_nmf_shares"]``
    (the share of each sample's signal that each factor carries, see `log1pnmf.shares`), ``varm["log1p_nmf"]``
    (factors, features x factors; zeros for features that were not used) and ``uns["log1p_nmf"]``
    (log-likelihood, convergence, history, settings, versions). ``noise="nb"`` adds
    ``var["log1p_nmf_dispersion"]``.
    `log1pnmf.as_fit` returns the `Fit`, and `log1pnmf.Log1pNMF.of` a fitted estimator, also after the file
    was written and read.

    See Also
    --------
    log1pnmf.Log1pNMF : All parameters.
    log1pnmf.tl.select : Choose c and the number of factors.
    log1pnmf.tl.transform : Estimate the loadings of new samples.
    log1pnmf.pl.structure : Draw the loadings.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> adata = anndata.AnnData(pancreas().counts[:100, :300])
    >>> log1p_nmf(adata, 3, c=1.0)
    >>> adata.obsm["X_log1p_nmf"].shape, adata.varm["log1p_nmf"].shape
    ((100, 3), (300, 3))
    """
    keys = Keys(key_added)
    settings, given = checked(
        n_components=n_components,
        c=c,
        batch=batch_of(adata, batch_key),
        fixed_loadings=known_loadings(adata, fixed_loadings),
        **parameters,
    )
    chosen = read_counts(adata, layer, chosen_features(adata, mask_var, layer))
    fit = fit_counts(chosen.counts, settings, **given)
    write_fit(adata, keys, fit, chosen)
    if std:
        adata.obsm[keys.std] = loading_errors(fit, chosen.counts)
    if obs_keys:
        columns = [keys.obs_column(name) for name in fit.factor_names]
        for column, values in zip(columns, fit.loadings.T, strict=True):
            adata.obs[column] = values.copy()
        adata.uns[keys.uns][OBS_COLUMNS] = np.array(columns, dtype=object)


@completed(FitParameters)
@tool
def sweep(
    adata: AnnData,
    n_components: int,
    c: Sequence[float],
    *,
    layer: str | None = None,
    mask_var: str | Numbers | None = None,
    copy: bool = False,
    **parameters: Unpack[FitParameters],
) -> None:
    """Fit the model at several c; store every fit and a table that compares them.

    Parameters
    ----------
    c : sequence of float
        Values of c; may contain inf.
    **parameters : optional
        Other parameters as in `log1pnmf.Log1pNMF`.

    Notes
    -----
    Each fit is stored as by `log1p_nmf`, with a key such as "log1p_nmf_c=0.1" or "log1p_nmf_c=inf".
    ``uns["log1p_nmf_sweep"]`` is a data frame with one row for each fit; its columns are those of
    `log1pnmf.analysis.Sweep`, and `key`, the key of the fit.
    """
    chosen = read_counts(adata, layer, chosen_features(adata, mask_var, layer))
    result = sweep_counts(chosen.counts, n_components, c, **parameters)
    for fit in result.fits:
        write_fit(adata, Keys(sweep_key(fit.c)), fit, chosen)
    adata.uns[SWEEP] = as_frame({**result.table, "key": [sweep_key(fit.c) for fit in result.fits]})


@completed(ConsensusOptions, find_consensus)
@tool
def consensus(
    adata: AnnData,
    n_components: int | Sequence[int],
    *,
    groupby: str | None = None,
    layer: str | None = None,
    mask_var: str | Numbers | None = None,
    batch_key: str | None = None,
    key_added: str | None = None,
    copy: bool = False,
    **options: Unpack[ConsensusOptions],
) -> None:
    """Find the factors that come back over numbers of factors and donors; write a fit that has them.

    ``uns["log1p_nmf_consensus"]`` has the data frames `table` and `members`, and `similarity`, of
    `log1pnmf.analysis.Consensus`; `log1pnmf.pl.consensus` draws it.

    Parameters
    ----------
    n_components : int or sequence of int
        Numbers of factors to fit.
    groupby : str, optional
        Column of `obs` with the donor of each sample; each donor is fitted on its own.
    **options : optional
        Other parameters as in `log1pnmf.analysis.consensus`.
    """
    keys, chosen = Keys(key_added), read_counts(adata, layer, chosen_features(adata, mask_var, layer))
    groups, batch = labels_of(adata, groupby), batch_of(adata, batch_key)
    found = find_consensus(chosen.counts, n_components, groupby=groups, batch=batch, **options)
    write_fit(adata, keys, found.final, chosen)
    about = {"table": as_frame(found.table()), "members": as_frame(found.members)}
    names = np.array(found.final.factor_names, dtype=object)
    adata.uns[keys.consensus] = {**about, "similarity": found.similarity, "factor_names": names}


@tool
def transform(
    adata: AnnData,
    ref: Any,
    *,
    key: str | None = None,
    layer: str | None = None,
    size_factors: SizesKind | Numbers | None = None,
    batch_key: str | None = None,
    gene_symbols: str | None = None,
    prior: Literal["auto"] | float = "auto",
    std: bool = False,
    n_jobs: int | None = None,
    copy: bool = False,
) -> None:
    """Estimate the loadings of new samples for the factors of a fit, and store them with the factors.

    Parameters
    ----------
    adata : AnnData
        The new samples.
    ref : AnnData, Fit, Log1pNMF, str or PathLike
        The fit, see `log1pnmf.as_fit`. AnnData may have lost samples since the fit. If the fit has feature
        names, features are matched by name, and those that both have are used: others of the fit were not
        observed. A message states how much of each factor's signal the shared ones carry; below 80% there is
        a warning, and below 20% of all signal the samples are refused.
    key : str, optional
        Name of the fit in `ref`, if `key_added` was given, and of the loadings in `adata`.
    layer : str, optional
        Layer with the counts, as in `log1p_nmf`.
    size_factors : {"total", "fit", "none"} or array, optional
        As in `Log1pNMF.transform`.
    batch_key : str, optional
        Column of `obs` with the batch of every sample. Effects of batches that are not in the fit are
        estimated from at least 20 samples. By default, new samples of a fit with batches are one new batch.
    gene_symbols : str, optional
        Column of `var`, of `adata`, of `ref` or of both, by which features are matched instead of
        ``var_names``, such as Ensembl identifiers.
    prior : "auto" or float
        As in `Log1pNMF.transform`.

    Notes
    -----
    The results are in the places that `log1p_nmf` writes to, so that `markers`, `usage`, plots and
    `log1pnmf.as_fit` take the new samples, too. What `uns` holds of the log-likelihood is left out.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> from log1pnmf.tl import log1p_nmf
    >>> cells = anndata.AnnData(pancreas().counts[:150, :300])
    >>> old, new = cells[:100].copy(), cells[100:].copy()
    >>> log1p_nmf(old, 3)
    >>> transform(new, old)
    >>> new.obsm["X_log1p_nmf"].shape
    (50, 3)
    """
    keys = Keys(key)
    fit = fit_from(ref, key, any_samples=True) if is_annotated(ref) else as_fit(ref)
    if fit.fitted_features is not None:
        fit = of_features(fit, np.flatnonzero(fit.fitted_features))
    positions = np.arange(adata.n_vars)
    if fit.feature_names is not None:
        names, fitted = adata.var_names.tolist(), fit.feature_names.tolist()
        in_ref = is_annotated(ref) and gene_symbols in ref.var
        if in_ref:
            symbols = dict(zip(ref.var_names, symbols_of(ref, gene_symbols), strict=True))
            fitted = [symbols[name] for name in fitted]
        if gene_symbols is not None and (gene_symbols in adata.var or not in_ref):
            names = symbols_of(adata, gene_symbols)
        positions, shared = shared_features(names, fitted)
        if not len(shared):
            raise ValueError(
                "adata has none of the features of the fit by a name that occurs once in both (the first are "
                f"{names[0]!r} and {fitted[0]!r}); gene_symbols= matches them by a column of var"
            )
    chosen = read_counts(adata, layer, positions)
    counts = chosen.counts
    if fit.feature_names is not None:
        counts = replace(counts, feature_names=fit.feature_names[shared])
    how: Any = {"batch": batch_of(adata, batch_key), "prior": prior, "n_jobs": n_jobs}
    found = project(fit, counts, size_factors, shared=True, **how)
    why = f"these are {adata.n_obs:,} samples whose loadings were estimated for the factors of a fit"
    for note in found.notes:
        logger.info(note)
    part = of_features(fit, found.features)
    projected = part.of_samples(found.loadings, found.size_factors, found.batches, why)
    projected = replace(projected, messages=(*projected.messages, *found.notes))
    write_fit(adata, keys, projected, chosen)
    if std:
        adata.obsm[keys.std] = loading_errors(projected, found.counts)


@tool
def extend_features(
    adata: AnnData,
    *,
    key: str | None = None,
    key_added: str | None = None,
    layer: str | None = None,
    n_jobs: int | None = None,
    copy: bool = False,
) -> None:
    """Add the factors of all features to a fit of some, such as ``mask_var="highly_variable"``.

    The loadings stay as they are, and so do the factors of fitted features; those of each other feature are
    the most likely ones given the loadings, with dispersions and effects of batches where the fit has them.

    Parameters
    ----------
    key_added : str, optional
        Name of the fit of all features; by default that of the fit with "_all". The fit itself stays;
        `transform` with either uses the fitted features: ``uns[...]["fitted_features"]``, True or False.
    """
    fit, keys = fit_from(adata, key), Keys(key_added or f"{Keys(key).uns}_all")
    chosen = read_counts(adata, layer_of_fit(adata, key, layer), np.arange(adata.n_vars))
    extended = extend_fit(fit, chosen.counts, n_jobs=n_jobs)
    if extended is fit:
        logger.warning("nothing to add: the fit has all %d features (adata.raw may have more)", adata.n_vars)
    else:
        logger.info(extended.messages[0])
    write_fit(adata, keys, extended, chosen)


def programs(source: Any, *, key: str | None = None) -> AnnData:
    """Return the factors of a fit as gene programmes, in the layout that evaluation pipelines read.

    Parameters
    ----------
    source : AnnData, Fit, Log1pNMF, str or PathLike
        The fit, see `log1pnmf.as_fit`; `obs` of AnnData is copied.
    key : str, optional
        Name of the fit in AnnData, if `key_added` was given.

    Returns
    -------
    AnnData
        Samples x factors: loadings in X, names of factors in `var_names`, factors (factors x features)
        in ``varm["loadings"]``, names of features in ``uns["var_names"]``. Pipelines that read MuData take
        ``mudata.MuData({"rna": adata, "prog": programs(adata)})``.
    """
    fit = as_fit(source, key=key)
    found = annotated(numbered(fit.sample_names, len(fit.loadings)), fit.factor_names, {})
    found.X, found.varm["loadings"] = fit.loadings.copy(), fit.factors.T.copy()
    found.uns["var_names"] = fit.feature_labels.copy()
    if is_annotated(source):
        found.obs = source.obs.copy()
    return found


@tool
def rename_factors(
    adata: AnnData, names: Mapping[Any, str] | Iterable[str], *, key: str | None = None, copy: bool = False
) -> None:
    """Rename factors; every table, plot and report of `adata` then uses these names.

    Parameters
    ----------
    adata : AnnData
        Data with a fit by `log1p_nmf`. Tables of `markers`, `usage`, `evidence` and `consensus`, and loadings
        in `obs`, are renamed as well.
    names : sequence of str, or mapping of name or number to str
        Names of all factors, or of some: ``{"k1": "interferon"}``. `log1pnmf.analysis.suggest_names` suggests
        some.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> from log1pnmf.tl import log1p_nmf
    >>> adata = anndata.AnnData(pancreas().counts[:100, :300])
    >>> log1p_nmf(adata, 3)
    >>> rename_factors(adata, {"k1": "acinar"})
    >>> adata.uns["log1p_nmf"]["factor_names"].tolist()
    ['k0', 'acinar', 'k2']
    """
    keys = Keys(key)
    fit = fit_from(adata, key, any_samples=True)
    new = fit.renamed(names).factor_names
    changed = dict(zip(fit.factor_names, new, strict=True))
    for place in (keys.uns, keys.markers, keys.usage, keys.evidence, keys.consensus):
        if place in adata.uns:  # objects that were concatenated share what is in it: a new one
            about = dict(adata.uns[place])
            about["factor_names"] = np.array([changed[str(k)] for k in about["factor_names"]], dtype=object)
            for name, column in (("table", "factor"), ("members", "consensus")):
                if name in about:  # "" is an outlier of a consensus
                    after = [changed.get(str(k), "") for k in about[name][column]]
                    about[name] = about[name].assign(**{column: after})
            adata.uns[place] = about
    columns = adata.uns[keys.uns].get(OBS_COLUMNS)
    if columns is not None:
        after = [keys.obs_column(name) for name in new]
        adata.obs = adata.obs.rename(columns=dict(zip(map(str, columns), after, strict=True)))
        adata.uns[keys.uns][OBS_COLUMNS] = np.array(after, dtype=object)


@completed(MarkerOptions, find_markers)
@tool
def markers(
    adata: AnnData,
    *,
    key: str | None = None,
    layer: str | None = None,
    n_top: int | None = 100,
    gene_symbols: str | None = None,
    copy: bool = False,
    **options: Unpack[MarkerOptions],
) -> None:
    """Test which features rise with each factor; store the table.

    Parameters
    ----------
    n_top : int or None
        Number of features in the table for each factor: the first of those that rise significantly. None
        takes all features, significant or not, which takes much room.
    gene_symbols : str, optional
        Column of `var` that the table has as a column `symbol`, beside `feature` from ``var_names``.
    **options : optional
        Other parameters as in `log1pnmf.analysis.markers`.

    Notes
    -----
    The result is ``uns["log1p_nmf_markers"]`` (``uns[key + "_markers"]``), a dictionary with `table`, a data
    frame with the columns of `log1pnmf.analysis.Markers.table`; `tested`, effects and p-values of all
    features, which `log1pnmf.pl.volcano` draws; and `c`, `errors`, `split`, `reliability`, `determined`,
    `unmoved`, `n_samples`, `n_rising` and `factor_names`. The report uses it.
    """
    fit = fit_from(adata, key)
    found = find_markers(fit, counts_of_fit(adata, fit, key, layer), **options)
    table = as_frame(found.table(n_top))
    if gene_symbols is not None:
        symbols = dict(zip(adata.var_names, symbols_of(adata, gene_symbols), strict=True))
        table.insert(3, "symbol", table["feature"].map(symbols))
    adata.uns[Keys(key).markers] = {"table": table, **found.kept()}


@completed(UsageOptions, compare_groups)
@tool
def usage(
    adata: AnnData,
    groupby: str,
    *,
    replicate: str | bool | None = None,
    within: str | None = None,
    covariates: str | Sequence[str] = (),
    key: str | None = None,
    copy: bool = False,
    **options: Unpack[UsageOptions],
) -> None:
    """Compare the mean loadings of groups, with donors as replicates; store the table.

    Parameters
    ----------
    groupby : str
        Column of `obs` with the condition of every sample, or with a number such as an age.
    replicate : str or True, optional
        Column of `obs` with the donor (animal, patient) of every sample; True if every sample is a replicate.
    within : str, optional
        Column of `obs`, such as the cell type: groups are compared within each of its labels.
    covariates : str or sequence of str
        Columns of `obs` with covariates to adjust for: numbers or labels.
    **options : optional
        Other parameters as in `log1pnmf.analysis.usage`.

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
    (2, 15)
    """
    chosen = [covariates] if isinstance(covariates, str) else list(covariates)
    found = compare_groups(
        fit_from(adata, key),
        labels_of(adata, groupby),
        replicate=labels_of(adata, replicate),
        within=labels_of(adata, within),
        covariates={name: labels_of(adata, name) for name in chosen} or None,
        **options,
    )
    adata.uns[Keys(key).usage] = {"table": as_frame(found.table()), "groupby": groupby, **found.kept()}


@completed(EvidenceOptions, find_evidence)
@tool
def evidence(
    adata: AnnData,
    *,
    key: str | None = None,
    layer: str | None = None,
    copy: bool = False,
    **options: Unpack[EvidenceOptions],
) -> None:
    """Measure what a fit loses without each factor, and how often other fits find it; store the table.

    Parameters
    ----------
    adata : AnnData
        Data with a fit by `log1p_nmf`, and the same samples as in the fit, in any order.
    **options : optional
        Other parameters as in `log1pnmf.analysis.evidence`.

    Notes
    -----
    The result is ``uns["log1p_nmf_evidence"]`` (``uns[key + "_evidence"]``), a dictionary with `table`, a
    data frame with the columns of `log1pnmf.analysis.Evidence.table`; `judgement`, the same in words;
    `factor_names`; and the numbers of fits and samples. The summary of ``log1pnmf.Log1pNMF.of(adata)`` and
    the report show it.
    """
    fit = fit_from(adata, key)
    found = find_evidence(fit, counts_of_fit(adata, fit, key, layer), **options)
    adata.uns[Keys(key).evidence] = {**found.kept(), "table": as_frame(found.table())}


@completed(SelectOptions, compare_settings)
@tool
def select(
    adata: AnnData,
    n_components: int | Iterable[int],
    c: float | Iterable[float] = 1.0,
    *,
    layer: str | None = None,
    mask_var: str | Numbers | None = None,
    batch_key: str | None = None,
    key_added: str | None = None,
    random_state: Seed = 0,
    copy: bool = False,
    **options: Unpack[SelectOptions],
) -> None:
    """Compare numbers of factors (and c) by held-out likelihood and by stability over seeds.

    Parameters
    ----------
    n_components : int or sequence of int
        Numbers of factors to compare, such as ``range(2, 13)``.
    c : float or sequence of float
        Shifts of the link to compare, each with every number of factors.
    key_added : str, optional
        Name of the result, which is then ``uns[key_added + "_select"]``.
    **options : optional
        Other parameters as in `log1pnmf.select`.

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
    >>> select(adata, [1, 2, 3], noise="poisson", n_folds=2, n_seeds=2, tol=1e-4)
    >>> adata.uns["log1p_nmf_select"]["table"]["n_components"].tolist()
    [1, 2, 3]
    >>> print(adata.uns["log1p_nmf_select"]["judgement"].splitlines()[0])
    The data do not decide K: the best is at the end of the values tried.
    """
    keys, counts = Keys(key_added), read_counts(adata, layer, chosen_features(adata, mask_var, layer)).counts
    batch = batch_of(adata, batch_key)
    found = compare_settings(counts, n_components, c, random_state=random_state, batch=batch, **options)
    judgement = found.judgement
    adata.uns[keys.select] = {
        "table": as_frame(found.summary),
        "suggested": {} if judgement.setting is None else judgement.setting.parameters,
        "judgement": str(judgement),
        "holdout": found.about["holdout"],
    }


# ---------- known loadings in columns of `obs`


def known_loadings(adata: Any, given: Any) -> Any:
    """Return columns of `obs` as loadings, each label as 0 and 1 ("column=label"); the rest as it is."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return given
    columns: dict[str, Any] = {}
    for name in names:
        column = column_of(adata, "obs", name, "fixed_loadings")
        if column.dtype.kind in "biuf":
            columns[name] = column.to_numpy(dtype=np.float64)
            continue
        if column.isna().any():
            raise ValueError(f"fixed_loadings: column {name!r} of obs has missing labels; fill them in")
        labels = column.astype(str).to_numpy()
        columns |= {f"{name}={label}": (labels == label).astype(np.float64) for label in np.unique(labels)}
    return columns


# ---------- counts out of an AnnData object

RAW, X = "raw", "X"  # names of ``adata.raw`` and ``adata.X`` as layers
COUNTS_LAYER = "counts"  # where scanpy users keep the raw counts when X is something else
BLOCK_ENTRIES = 1 << 24  # of a matrix in a file, read at a time


@dataclass(frozen=True, eq=False)
class ChosenCounts:
    """Counts, and where they are in the AnnData object."""

    counts: Counts  # the counts, with the names of the features
    positions: NDArray[np.intp]  # positions of these features among all features of the object
    layer: str | None  # where they were found; None is X
    fractions: bool = False  # whether they are not whole numbers


def target(adata: Any, copy: bool) -> Any:
    """Choose the object that results are written to; refuse what is not an AnnData object."""
    anndata = require("anndata", purpose="log1pnmf.tl")
    if not isinstance(adata, anndata.AnnData):
        if isinstance(adata, str | os.PathLike):
            advice = "read the file first, with anndata.read_h5ad(path)"
        else:
            advice = advice_for(adata) or "for matrices use log1pnmf.Log1pNMF"
        raise TypeError(f"adata must be an AnnData object, got {type(adata).__name__}; {advice}")
    if copy:
        return adata.to_memory() if adata.isbacked else adata.copy()
    if adata.is_view:
        if adata.isbacked:
            raise ValueError(
                "adata is a view of data in a file, which cannot store results; pass "
                "adata.to_memory(), or copy=True"
            )
        logger.warning("adata is a view: it is copied, and the copy gets the results")
        with quiet(anndata.ImplicitModificationWarning):
            adata.obs = adata.obs
    return adata


def chosen_features(adata: Any, mask_var: Any, layer: str | None = None) -> NDArray[np.intp]:
    """Find the features that are wanted."""
    if mask_var is None:
        return np.arange(adata.n_vars)
    what = "mask_var"
    if isinstance(mask_var, str):
        if mask_var not in adata.var and (n := n_variable(mask_var, "mask_var")) is not None:
            return variable_features(read_counts(adata, layer, np.arange(adata.n_vars)).counts, n)
        what = f"adata.var[{mask_var!r}]"
        mask_var = column_of(adata, "var", mask_var, "mask_var")
    mask = np.asarray(mask_var)
    others = [value for value in mask.ravel().tolist() if not isinstance(value, bool)]
    if others or mask.shape != (adata.n_vars,):
        raise ValueError(
            f"{what} must be True or False for each of the {adata.n_vars} features, "
            f"got {repr(others[0]) if others else f'an array of shape {mask.shape}'}"
        )
    if not mask.any():
        raise ValueError(f"{what} leaves no feature; choose at least one")
    return np.flatnonzero(mask)


def read_counts(adata: Any, layer: str | None, positions: NDArray[np.intp]) -> ChosenCounts:
    """Read the counts of some features.

    `layer`: none takes X, or ``layers["counts"]`` if X does not hold counts (with a log message), and
    refuses fractions. "X" takes X as it is, "raw" takes ``adata.raw``.
    """
    matrix = _matrix(adata, layer, positions)
    if layer is None and COUNTS_LAYER in adata.layers and not holds_counts(matrix):
        logger.warning("adata.X does not hold counts: layers[%r] is used", COUNTS_LAYER)
        layer = COUNTS_LAYER
        matrix = _matrix(adata, layer, positions)
    fractions = layer is None and not holds_counts(matrix)
    with quiet(UserWarning) if fractions else nullcontext():
        counts = Counts.from_any(matrix)
    if fractions:
        places = [*map(repr, adata.layers), *(["'raw' (adata.raw)"] if adata.raw is not None else [])]
        raise ValueError(
            "adata.X holds values that are not whole numbers: it seems normalised or log-transformed, not "
            f"counted; pass layer= with the counts (adata has: {', '.join(places) or 'no layer, no raw'}), "
            "or layer='X' where they are expected counts"
        )
    counts = replace(counts, feature_names=np.asarray(adata.var_names, dtype=object)[positions])
    return ChosenCounts(counts, positions, None if layer == X else layer, not holds_counts(matrix))


def layer_of_fit(adata: Any, key: str | None, layer: str | None) -> str | None:
    """Return the layer of a fit unless another is given; None for X, unless the fit was of fractions."""
    about = adata.uns[Keys(key).uns]
    if layer is not None or (about["layer"] == X and FRACTIONS not in about):
        return layer
    return str(about["layer"])


def counts_of_fit(adata: Any, fit: Fit, key: str | None, layer: str | None) -> Counts:
    """Return the counts of the features of a fit, from its own layer unless another is given."""
    layer = layer_of_fit(adata, key, layer)
    return read_counts(adata, layer, find_features(adata.var_names, fit.feature_labels.tolist())).counts


def _matrix(adata: Any, layer: str | None, positions: NDArray[np.intp]) -> Any:
    layer = None if layer == X and X not in adata.layers else layer
    if layer == RAW and RAW not in adata.layers:
        if adata.raw is None:
            raise KeyError("adata.raw is empty; pass layer=, the name of the layer with the counts")
        wanted = [str(name) for name in np.asarray(adata.var_names)[positions]]  # raw may have more features
        return sparse.csr_array(adata.raw.X[:, find_features(adata.raw.var_names, wanted)])
    if layer is not None and layer not in adata.layers:
        known = ", ".join(map(repr, adata.layers)) or "none"
        raise KeyError(f"adata has no layer {layer!r}; it has: {known}")
    stored = adata.X if layer is None else adata.layers[layer]
    if stored is None:
        raise ValueError("adata.X is empty; pass layer=, the name of the layer with the counts")
    everything = len(positions) == adata.n_vars and np.array_equal(positions, np.arange(adata.n_vars))
    if isinstance(stored, np.ndarray) or sparse.issparse(stored):
        return stored if everything else stored[:, positions]
    return _read_blocks(stored, None if everything else positions)


def _read_blocks(stored: Any, positions: NDArray[np.intp] | None) -> Any:
    """Read a matrix from a file into memory, as a sparse one, with the wanted features only."""
    if getattr(stored, "format", "csr") == "csc":  # its rows are spread over the whole file
        matrix = stored[:]
        return matrix if positions is None else matrix[:, positions]
    wanted = slice(None) if positions is None else positions
    blocks = dense_blocks(stored.shape, BLOCK_ENTRIES)
    return sparse.vstack([sparse.csr_array(stored[rows][:, wanted]) for rows in blocks], format="csr")


def batch_of(adata: Any, key: str | None) -> Any:
    """Return the column of `obs` with the batch of every sample, if one is named."""
    return None if key is None else column_of(adata, "obs", key, "batch_key").to_numpy(dtype=object)


# ---------- results written into an AnnData object; log1pnmf.fitting.anndata reads them

# in `uns` of a fit: the columns of `obs` with its loadings, and whether its counts are not whole numbers
OBS_COLUMNS, FRACTIONS = "obs_columns", "fractions"


def write_fit(adata: Any, keys: Keys, fit: Fit, chosen: ChosenCounts) -> None:
    """Write a fit; features that were left out have zero factors, and no dispersion."""
    adata.obsm[keys.obsm] = fit.loadings.copy()
    adata.obsm[keys.shares] = sample_shares(fit.loadings, fit.factors)
    of_features = (
        (adata.varm, keys.varm, fit.factors, 0.0),
        (adata.var, keys.dispersion, fit.dispersion, np.nan),
        (adata.varm, keys.mask, fit.mask, False),
    )
    for slot, name, values, others in of_features:
        if values is not None:
            whole = np.full((adata.n_vars, *values.shape[1:]), others)
            whole[chosen.positions] = values
            slot[name] = whole
        elif name in slot:  # of an earlier fit
            del slot[name]
    for finding in (keys.markers, keys.usage, keys.evidence, keys.consensus):  # of an earlier fit
        adata.uns.pop(finding, None)
    named = fit.named(sample_names=adata.obs_names, feature_names=adata.var_names[chosen.positions])
    adata.uns[keys.uns] = uns_of(named, chosen.layer) | ({FRACTIONS: True} if chosen.fractions else {})


def as_frame(columns: Any) -> Any:
    """Make a data frame that anndata can write."""
    table = require("pandas", purpose="log1pnmf.tl").DataFrame(columns)
    table.index = table.index.astype(str)
    return table
