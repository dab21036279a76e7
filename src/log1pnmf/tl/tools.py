"""Tools for AnnData: fit, transform and rename; markers, usage, evidence and selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from log1pnmf.analysis.diagnostics import loading_errors
from log1pnmf.analysis.evidence import evidence as find_evidence
from log1pnmf.analysis.groups import labels_of
from log1pnmf.analysis.markers import markers as find_markers
from log1pnmf.analysis.select import select as compare_settings
from log1pnmf.analysis.stability import sweep as sweep_counts
from log1pnmf.analysis.usage import usage as compare_groups
from log1pnmf.counts.counts import holds_counts
from log1pnmf.counts.features import shared_features
from log1pnmf.fitting.anndata import as_fit, fit_from, is_annotated, symbols_of
from log1pnmf.fitting.fit import SWEEP, Keys, sweep_key
from log1pnmf.fitting.fit_counts import checked, fit_counts
from log1pnmf.fitting.new_features import extend_features as extend_fit
from log1pnmf.fitting.new_samples import of_features, project

from . import inputs
from .inputs import as_frame, batch_of, check_anndata, chosen_features, read_counts, target, write_fit


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
        Features to use: a column of `var`, such as "highly_variable", or one value for each feature;
        "variable:2000" takes the 2,000 with the largest deviance from one factor. By default all features,
        even if `var` has a column "highly_variable"; `extend_features` adds the others afterwards.
    batch_key : str, optional
        Column of `obs` with the batch of every sample (donor, chip, section); see `batch` of
        `log1pnmf.Log1pNMF.fit`.
    key_added : str, optional
        Name under which `obsm`, `varm` and `uns` keep the results; Notes lists the defaults.
    std : bool
        Whether to write standard errors of the loadings given the factors, to ``obsm["X_log1p_nmf_std"]``;
        what is uncertain about the factors is not in them, see `log1pnmf.analysis.diagnostics`.
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
        Others of `log1pnmf.Log1pNMF`, with the same defaults. ``mask=`` takes gene sets:
        a dict of names to lists of features.

    Returns
    -------
    AnnData or None
        A copy of `adata` with the results, if ``copy=True``.

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

    References
    ----------
    .. [1] E. Weine, P. Carbonetto, R. A. Irizarry and M. Stephens (2026). A New Family of Poisson
       Non-negative Matrix Factorization Methods Using the Shifted Log Link. arXiv:2601.05845.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> adata = anndata.AnnData(pancreas().counts[:100, :300])
    >>> log1p_nmf(adata, 3, c=1.0)
    >>> adata.obsm["X_log1p_nmf"].shape, adata.varm["log1p_nmf"].shape
    ((100, 3), (300, 3))
    """
    check_anndata(adata)
    keys = Keys(key_added)
    settings, given = checked(
        n_components=n_components,
        c=c,
        random_state=random_state,
        batch=batch_of(adata, batch_key),
        fixed_loadings=inputs.known_loadings(adata, fixed_loadings),
        **parameters,
    )
    layer = inputs.raw_layer(layer, use_raw)
    adata = target(adata, copy)
    chosen = read_counts(adata, layer, chosen_features(adata, mask_var, layer))
    fit = fit_counts(chosen.counts, settings, **given)
    write_fit(adata, keys, fit, chosen)
    if std:
        adata.obsm[keys.std] = loading_errors(fit, chosen.counts)
    if obs_keys:
        inputs.write_obs(adata, keys, fit)
    return adata if copy else None


def sweep(
    adata: Any,
    n_components: int,
    c: Sequence[float],
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
    n_components : int
        Number of factors.
    c : sequence of float
        Values of c, all different; may contain inf.
    layer, mask_var, copy, random_state
        As in `log1p_nmf`.
    **parameters : optional
        Others of `log1pnmf.Log1pNMF`.

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
    >>> sweep(adata, 2, [1, float("inf")])
    >>> adata.uns["log1p_nmf_sweep"]["key"].tolist()
    ['log1p_nmf_c=1', 'log1p_nmf_c=inf']
    """
    check_anndata(adata)
    adata = target(adata, copy)
    chosen = read_counts(adata, layer, chosen_features(adata, mask_var, layer))
    result = sweep_counts(chosen.counts, n_components, c, random_state=random_state, **parameters)
    for fit in result.fits:
        write_fit(adata, Keys(sweep_key(fit.c)), fit, chosen)
    table = as_frame(result.table)
    table["key"] = [sweep_key(value) for value in table["c"]]
    adata.uns[SWEEP] = table
    return adata if copy else None


def transform(
    adata: Any,
    ref: Any,
    *,
    key: str | None = None,
    layer: str | None = None,
    size_factors: Any = None,
    batch_key: str | None = None,
    gene_symbols: str | None = None,
    prior: Any = "auto",
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
        Column of `var` with the names that features have in the fit, where ``var_names`` are others, such as
        Ensembl identifiers.
    prior : "auto" or float
        As in `Log1pNMF.transform`.
    std : bool
        Whether to write standard errors of the loadings given the factors, to ``obsm["X_log1p_nmf_std"]``;
        what is uncertain about the factors is not in them, see `log1pnmf.analysis.diagnostics`.
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
    >>> cells = anndata.AnnData(pancreas().counts[:150, :300])
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
        names = symbols_of(adata, gene_symbols, None) or adata.var_names.tolist()
        positions, shared = shared_features(names, fit.feature_names.tolist())
        if not len(shared):
            raise ValueError(
                "adata has none of the features of the fit by a name that occurs once in both (the first are "
                f"{names[0]!r} and {fit.feature_names[0]!r}); gene_symbols= takes names from a column of var"
            )
    adata = target(adata, copy)
    chosen = read_counts(adata, layer, positions)
    counts = chosen.counts
    if fit.feature_names is not None:
        counts = replace(counts, feature_names=fit.feature_names[shared])
    batch = batch_of(adata, batch_key)
    how: Any = {"batch": batch, "prior": prior, "n_jobs": n_jobs}
    found = project(fit, counts, size_factors, shared=True, **how)
    why = f"these are {adata.n_obs:,} samples whose loadings were estimated for the factors of a fit"
    for note in found.notes:
        inputs.logger.info(note)
    part = of_features(fit, found.features)
    projected = part.of_samples(found.loadings, found.size_factors, found.batches, why)
    projected = replace(projected, messages=(*projected.messages, *found.notes))
    write_fit(adata, keys, projected, chosen)
    if std:
        adata.obsm[keys.std] = loading_errors(projected, found.counts)
    return adata if copy else None


def extend_features(
    adata: Any,
    *,
    key: str | None = None,
    key_added: str | None = None,
    layer: str | None = None,
    n_jobs: int | None = None,
) -> None:
    """Add the factors of all features to a fit of some, such as ``mask_var="highly_variable"``.

    The loadings stay as they are, and so do the factors of fitted features; those of each other feature are
    the most likely ones given the loadings, with dispersions and effects of batches where the fit has them.

    Parameters
    ----------
    adata : AnnData
        Data with a fit by `log1p_nmf`.
    key : str, optional
        Name of the fit, if it was given one.
    key_added : str, optional
        Name of the fit of all features; by default that of the fit with "_all". The fit itself stays, and
        `transform` with its name uses the features that were fitted.
    layer : str, optional
        Layer with the counts; by default that of the fit.
    n_jobs : int, optional
        Number of threads.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> from log1pnmf.tl import log1p_nmf
    >>> adata = anndata.AnnData(pancreas().counts[:100, :300])
    >>> log1p_nmf(adata, 2, mask_var=np.arange(300) < 200)
    >>> extend_features(adata)
    >>> bool(adata.varm["log1p_nmf_all"][200:].any())
    True
    """
    check_anndata(adata)
    fit, keys = fit_from(adata, key), Keys(key_added or f"{Keys(key).uns}_all")
    if layer is None:
        stored = str(adata.uns[Keys(key).uns]["layer"])
        layer = None if stored == "X" and holds_counts(adata.X) else stored
    chosen = read_counts(adata, layer, np.arange(adata.n_vars))
    extended = extend_fit(fit, chosen.counts, n_jobs)
    inputs.logger.info(extended.messages[0])
    write_fit(adata, keys, extended, chosen)


def rename_factors(adata: Any, names: Any, *, key: str | None = None) -> None:
    """Rename factors; every table, plot and report of `adata` then uses these names.

    Parameters
    ----------
    adata : AnnData
        Data with a fit by `log1p_nmf`. Tables of `markers`, `usage` and `evidence`, and loadings in `obs`,
        are renamed as well.
    names : sequence of str, or mapping of name or number to str
        Names of all factors, or of some: ``{"k1": "interferon"}``. `log1pnmf.analysis.suggest_names` suggests
        some.
    key : str, optional
        Name of the fit, if `key_added` was given.

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
    check_anndata(adata)
    keys = Keys(key)
    fit = fit_from(adata, key, any_samples=True)
    new = fit.renamed(names).factor_names
    changed = dict(zip(fit.factor_names, new, strict=True))
    adata.uns[keys.uns]["factor_names"] = np.array(new, dtype=object)
    for place in (keys.markers, keys.usage, keys.evidence):
        if place in adata.uns:
            about = adata.uns[place]
            about["factor_names"] = np.array([changed[str(k)] for k in about["factor_names"]], dtype=object)
            about["table"]["factor"] = [changed[str(k)] for k in about["table"]["factor"]]
    columns = adata.uns[keys.uns].get(inputs.OBS_COLUMNS)
    if columns is not None:
        after = [keys.obs_column(name) for name in new]
        adata.obs = adata.obs.rename(columns=dict(zip(map(str, columns), after, strict=True)))
        adata.uns[keys.uns][inputs.OBS_COLUMNS] = np.array(after, dtype=object)


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
    errors, split, verbose
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
    features, which `log1pnmf.pl.volcano` draws; and `c`, `errors`, `split`, `reliability`, `determined`,
    `unmoved`, `n_samples`, `n_rising` and `factor_names`. The report uses it.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> from log1pnmf.tl import log1p_nmf
    >>> adata = anndata.AnnData(pancreas().counts[:100, :300])
    >>> log1p_nmf(adata, 3)
    >>> markers(adata, n_top=5)
    >>> adata.uns["log1p_nmf_markers"]["table"].shape
    (15, 13)
    """
    check_anndata(adata)
    fit = fit_from(adata, key)
    counts = inputs.counts_of_fit(adata, fit, key, layer)
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
    within: str | None = None,
    interaction: bool = False,
    relative_to: Any = "auto",
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
    within : str, optional
        Column of `obs`, such as the cell type: groups are compared within each of its labels.
    covariates : str or sequence of str
        Columns of `obs` with covariates to adjust for: numbers or labels.
    reference, interaction, relative_to, numeric
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
    (2, 12)
    """
    check_anndata(adata)
    chosen = [covariates] if isinstance(covariates, str) else list(covariates)
    found = compare_groups(
        fit_from(adata, key),
        labels_of(adata, groupby),
        replicate=labels_of(adata, replicate),
        reference=reference,
        within=labels_of(adata, within),
        interaction=interaction,
        relative_to=relative_to,
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
    counts = inputs.counts_of_fit(adata, fit, key, layer)
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
    keys, layer = Keys(key_added), inputs.raw_layer(layer, use_raw)
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
