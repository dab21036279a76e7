"""Which features define a factor, how strongly, and how certain that is."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

import numpy as np
import scipy
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from log1pnmf._common.checks import (
    check_choice,
    check_whole,
    convergence_warning,
    plural,
    require,
    shown,
    warn,
)
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import split_counts
from log1pnmf.fitting.anndata import as_fit, fit_and_counts, is_annotated
from log1pnmf.fitting.fit import Fit, Keys, c_label, factor_number, sample_shares
from log1pnmf.fitting.fit_counts import fit_again
from log1pnmf.fitting.new_samples import of_new_samples, project
from log1pnmf.fitting.ranking import ORDERS, Order, ranking_of, stand_ins
from log1pnmf.fitting.settings import GIVEN
from log1pnmf.model.problem import Array

from .marker_tests import ERRORS, Z95, ErrorKind, infer_from_fit, resizing, shrink
from .metrics import match_factors

if TYPE_CHECKING:
    from pandas import DataFrame

By: TypeAlias = Literal["score", "log2_fold_change", "effect", "shrunken_effect", "z"]  # that rank features
TESTS = ("effect", "error", "z", "p", "adjusted_p", "shrunken_effect", "false_sign_rate")
COLUMNS = ("log2_fold_change", "score", *TESTS, "weight")  # of the table, after factor, rank and feature
# what stands for features that a table does not list; 0 in other columns
REST = {"log2_fold_change": -np.inf, "score": -np.inf, "p": 1.0, "adjusted_p": 1.0}

# effects and tests of factors that are fitted to noise
UNKNOWN = {"effect": 0.0, "error": np.inf, "z": 0.0, "freedom": 1.0, "comparable": True}
OF_FACTORS = ("reliability", "determined", "unmoved")  # one number per factor

OTHER_COUNTS = 4.0  # of other factors, added to each sample where typical ones are listed
LEVEL = 0.05  # largest adjusted p-value of features that rise significantly
LEAST_RELIABLE = 0.5  # no markers are named of factors of less reliability
RELIABLE = 0.75  # of factors below, z is smaller by this proportion before p-values are adjusted
FEW_ITERATIONS = 20  # of fits to half of the samples, or at other size factors: enough to forget the others
LEAST_PER_FACTOR = 10  # samples of a half; with fewer the factors are taken as known


@dataclass(frozen=True, eq=False, repr=False)
class Markers:
    """Features that rise with each factor, and tests; `markers` makes it, see the example there.

    All arrays are of shape (n_features, n_components). Tests are NaN for a factor that all samples have and
    to which others are added: nothing can be compared with it.

    Parameters
    ----------
    log2_fold_change, score : ndarray
        How much more of the feature a typical sample with the factor has than with more of its other
        factors instead, and the lower end of its interval, by which features are ranked; see
        `log1pnmf.analysis.top_features`.
    effect, error : ndarray
        The same change on the link scale, of ``alpha_c log(1 + rate / c)``, by maximum likelihood given the
        loadings, and its standard error. May be negative.
    z, p : ndarray
        One-sided test of a rise; of a feature that another factor surely raises, of a rise by more than a
        tenth of that. See `log1pnmf.analysis.marker_tests`.
    adjusted_p : ndarray
        After Benjamini and Hochberg, over the features of a factor that have counts. Of a factor with a
        reliability below 0.75, z is first reduced in that proportion; below 0.5 all are 1.
    shrunken_effect, false_sign_rate : ndarray
        After adaptive shrinkage within the factor: posterior mean, and probability that there is no rise.
    weight : ndarray
        What the fit itself has, where the largest loading of every factor is 1.
    reliability : ndarray of shape (n_components,)
        Share of a factor's variation, after removing what the other factors explain, that is signal rather
        than estimation error, also of the factors (see `determined`). Factors below 0.5 have no markers.
    determined : ndarray of shape (n_components,)
        Squared correlation of the loadings with those that factors fitted to the other half of the samples
        give. NaN where the factors were taken as known: too few samples, samples or counts that were not
        fitted, known structure.
    unmoved : ndarray of shape (n_components,)
        log2 fold change with the factor of features that do not move, at the size factors of the fit. Fold
        changes, effects and tests are relative to it. 0 with size factors of the user's, and where few
        features agree.
    c : float
        Shift of the link.
    errors : str
        Which kind of standard errors these are.
    split : bool
        Whether loadings and tests are from different halves of the counts.
    n_samples : int
        Samples that were tested.
    n_rising : ndarray of int, shape (n_components,)
        Features of each factor that rise significantly, with an adjusted p-value of at most 0.05.
    feature_names : ndarray of str
        Names of the features.
    factor_names : tuple of str
        Names of the factors.

    Examples
    --------
    >>> from log1pnmf import datasets, fit_log1p_nmf
    >>> cells = datasets.pancreas()
    >>> counts, names = cells.counts[:100, :200], cells.feature_names[:200]
    >>> found = markers(fit_log1p_nmf(counts, 2), counts, feature_names=names)
    >>> found.top("k1", 3), found.table(3)["rank"].tolist()
    (['ALDOB', 'ANPEP', 'AKR1C1'], [1, 2, 3])
    """

    log2_fold_change: Array
    score: Array
    effect: Array
    error: Array
    z: Array
    p: Array
    adjusted_p: Array
    shrunken_effect: Array
    false_sign_rate: Array
    weight: Array
    reliability: Array
    determined: Array
    unmoved: Array
    c: float
    errors: str
    split: bool
    n_samples: int
    n_rising: NDArray[np.int64]
    feature_names: NDArray[np.object_]
    factor_names: tuple[str, ...]

    def __repr__(self) -> str:
        m, n_components = self.effect.shape
        known = "given the factors" + (" (not checked)" if np.isnan(self.determined).all() else "")
        known += "" if self.split else "; same counts for loadings and tests"
        return (
            f"<Markers of {plural(n_components, 'factor')} among {plural(m, 'feature')}, {c_label(self.c)}, "
            f"{self.errors} errors, {known}; table() lists them>"
        )

    @property
    def n_components(self) -> int:
        """Number of factors."""
        return self.effect.shape[1]

    @property
    def lower(self) -> Array:
        """Lower end of the 95% interval of the effect."""
        return self.effect - Z95 * self.error

    @property
    def upper(self) -> Array:
        """Upper end of the 95% interval of the effect."""
        return self.effect + Z95 * self.error

    def table(self, n_top: int | None = None, *, by: By = "score", level: float = LEVEL) -> dict[str, Any]:
        """One row per factor and feature, the first features first; ``pandas.DataFrame(table)`` shows it.

        By default all features; with `n_top`, those that `top` gives with the same `by` and `level`. Columns:
        `factor`, `rank`, `feature`, `log2_fold_change`, `score`, `effect`, `error`, `z`, `p`, `adjusted_p`,
        `shrunken_effect`, `false_sign_rate` and `weight`.
        """
        chosen = [
            self._order(k, by) if n_top is None else self.top_index(k, n_top, by=by, level=level)
            for k in range(len(self.factor_names))
        ]
        columns, at = _listed(chosen, self.factor_names, feature=self.feature_names)
        return columns | {name: getattr(self, name)[at] for name in COLUMNS}

    def top(self, k: int | str, n_top: int = 10, *, by: By = "score", level: float = LEVEL) -> list[str]:
        """Name the first features of a factor.

        Parameters
        ----------
        k : int or str
            Factor: its number, from 0, or its name.
        n_top : int
            How many at most.
        by : {"score", "log2_fold_change", "effect", "shrunken_effect", "z"}
            What they are ranked by: "score" is the order of every list of this package. "z" finds the most
            certain effects, however small.
        level : float
            Largest adjusted p-value of features to name. A factor that cannot be tested names all features
            that it raises. A feature without any weight in the factor, because of a mask or a penalty, is
            never named.
        """
        return [str(name) for name in self.feature_names[self.top_index(k, n_top, by=by, level=level)]]

    def top_index(
        self, k: int | str, n_top: int | None = 10, *, by: By = "score", level: float = LEVEL
    ) -> NDArray[np.intp]:
        """Find the first features of a factor; parameters as in `top`."""
        k = factor_number(k, self.factor_names)
        order = self._order(k, by)
        named = self.adjusted_p[order, k] <= level
        if np.isnan(self.p[:, k]).all():
            named = self.log2_fold_change[order, k] > 0.0
        return order[named & (self.weight[order, k] > 0.0)][:n_top]

    @property
    def tested(self) -> dict[str, np.ndarray]:
        """What `log1pnmf.pl.volcano` draws: arrays of features x factors, and names of the features."""
        names = ("score", "log2_fold_change", "p", "adjusted_p")
        return {"feature_names": self.feature_names, **{name: getattr(self, name) for name in names}}

    def kept(self) -> dict[str, Any]:
        """Return what is kept beside the table, as AnnData can hold it; `markers_in` reads it back."""
        names = ("tested", "c", "errors", "split", "n_samples", "n_rising", *OF_FACTORS)
        about = {name: getattr(self, name) for name in names}
        return about | {"factor_names": np.array(self.factor_names, dtype=object)}

    def _order(self, k: int, by: By) -> NDArray[np.intp]:
        check_choice("by", by, get_args(By))
        return np.argsort(-getattr(self, by)[:, k], kind="stable")


def _listed(
    chosen: Sequence[NDArray[np.intp]], factor_names: Sequence[str], **named: NDArray[np.object_]
) -> tuple[dict[str, Any], tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Return the first columns of a table of what was chosen for every factor, and the place of each row."""
    factor, place = np.repeat(np.arange(len(chosen)), list(map(len, chosen))), np.concatenate(chosen)
    columns = {
        "factor": np.array(factor_names, dtype=object)[factor],
        "rank": np.concatenate([np.arange(1, len(part) + 1) for part in chosen]),
    }
    return columns | {what: names[place] for what, names in named.items()}, (place, factor)


def top_features(
    source: Any,
    n_top: int = 10,
    *,
    by: Order = "score",
    key: str | None = None,
    feature_names: Any = None,
    gene_symbols: str | None = None,
) -> DataFrame:
    """List the features that each factor raises most.

    The comparison is between a typical sample with the factor and the same sample with more of its other
    factors instead. Only the fit is needed; `log1pnmf.analysis.markers` adds tests, from the counts.

    Parameters
    ----------
    n_top : int
        Maximum number of features of each factor; only features that the factor raises are listed.
    by : {"score", "log2_fold_change", "weight"}
        Column that they are ranked by: "score" prefers what is much and certain, "log2_fold_change" what is
        the factor's own, "weight" what is frequent.
    gene_symbols : str, optional
        Column of ``adata.var`` with names to list, for AnnData.

    Returns
    -------
    pandas.DataFrame
        One row per factor and feature: `factor`, `rank` (from 1), `feature`, `log2_fold_change`, `score` (the
        lower end of its interval) and `weight` in the factor.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF, datasets
    >>> data = datasets.pancreas()
    >>> model = Log1pNMF(3, random_state=0).fit(data.counts[:100, :300])
    >>> table = top_features(model, 2, feature_names=data.feature_names[:300])
    >>> table.columns.tolist(), len(table)
    (['factor', 'rank', 'feature', 'log2_fold_change', 'score', 'weight'], 6)
    """
    check_whole("n_top", n_top, least=1)
    check_choice("by", by, ORDERS)
    pandas = require("pandas", purpose="a table of features")
    fit = as_fit(source, key=key, gene_symbols=gene_symbols).named(feature_names=feature_names)
    ranking = ranking_of(fit)
    chosen = [ranking.top(k, n_top, by) for k in range(fit.n_components)]
    columns, at = _listed(chosen, fit.factor_names, feature=fit.feature_labels)
    values = {name: getattr(ranking, name)[at] for name in ("log2_fold_change", "score", "weight")}
    return pandas.DataFrame(columns | values)


def top_samples(
    source: Any, n_top: int = 5, *, key: str | None = None, sample_names: Any = None
) -> DataFrame:
    """List the samples that are typical of each factor, such as the documents of a topic.

    They are ranked by the share of their signal that the factor carries (`log1pnmf.shares`), after four
    counts of other factors were added to each, so that samples with few counts do not come first.

    Parameters
    ----------
    n_top : int
        Maximum number of samples of each factor; only samples that have the factor are listed.
    sample_names : sequence of str, optional
        Names of the samples; by default those of the fit, or their numbers.

    Returns
    -------
    pandas.DataFrame
        One row per factor and sample: `factor`, `rank` (from 1), `sample`, `share` and `loading`.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> model = Log1pNMF(2).fit([[1, 0], [9, 0], [0, 4], [5, 2]])
    >>> top_samples(model, 2, sample_names=["short", "long", "other", "both"])["sample"].tolist()
    ['long', 'both', 'other', 'both']
    """
    check_whole("n_top", n_top, least=1)
    pandas = require("pandas", purpose="a table of samples")
    fit = as_fit(source, key=key).named(sample_names=sample_names)
    names = np.arange(len(fit.loadings)).astype(str) if fit.sample_names is None else fit.sample_names
    share = sample_shares(fit.loadings, fit.factors)
    totals = fit.data.mean_total * fit.size_factors / fit.size_factors.mean()
    order = np.argsort(-share * (totals / (totals + OTHER_COUNTS))[:, None], axis=0, kind="stable")[:n_top]
    chosen = [first[share[first, k] > 0.0] for k, first in enumerate(order.T)]
    columns, at = _listed(chosen, fit.factor_names, sample=names)
    return pandas.DataFrame(columns | {"share": share[at], "loading": fit.loadings[at]})


def markers_in(source: Any, fit: Fit, n_top: int) -> Markers | None:
    """Read what `log1pnmf.tl.markers` has kept; None if it is not enough for so many features."""
    about = source.uns.get(Keys(None).markers, {}) if is_annotated(source) else {}
    places = {str(name): j for j, name in enumerate(fit.feature_labels)}
    n_rising = np.asarray(about.get("n_rising", ()), dtype=np.int64)
    if len(n_rising) != fit.n_components or len(places) != len(fit.factors) or "determined" not in about:
        return None
    table, names = about["table"], [str(name) for name in about["factor_names"]]
    k = np.array([names.index(str(name)) for name in table["factor"]], dtype=np.intp)
    if (np.bincount(k, minlength=len(names)) < np.minimum(n_rising, n_top)).any():
        return None
    j = np.array([places[str(name)] for name in table["feature"]], dtype=np.intp)
    values = {}
    for name in COLUMNS:
        kept = np.asarray(table[name], dtype=np.float64)
        other = np.full(len(names), REST.get(name, 0.0))
        other[k[np.isnan(kept)]] = np.nan  # factors that cannot be tested
        values[name] = np.tile(other, (len(places), 1))
        values[name][j, k] = kept
    return Markers(
        **values,
        **{name: np.asarray(about[name], dtype=np.float64) for name in OF_FACTORS},
        c=float(about["c"]),
        errors=str(about["errors"]),
        split=bool(about["split"]),
        n_samples=int(about["n_samples"]),
        n_rising=n_rising,
        feature_names=fit.feature_labels,
        factor_names=tuple(names),
    )


class MarkerOptions(TypedDict, total=False):
    """Options of `markers`, for type checkers."""

    loadings: Any
    errors: ErrorKind
    split: bool
    size_factors: Any
    feature_names: Any
    max_samples: int | None
    n_jobs: int | None
    verbose: int | None


def markers(
    fit: Any,
    counts: Any,
    *,
    loadings: Any = None,
    errors: ErrorKind = "sandwich",
    split: bool = False,
    size_factors: Any = None,
    feature_names: Any = None,
    max_samples: int | None = None,
    n_jobs: int | None = None,
    verbose: int | None = None,
) -> Markers:
    """Test which features rise with each factor, beyond what the other factors do.

    Features have the same order as in `log1pnmf.analysis.top_features` and in every list of this package. For
    the tests every feature is regressed on the loadings, without penalty and with all zero counts.
    The page "Markers" explains the effect and when the tests hold.

    Parameters
    ----------
    counts : array, sparse matrix or data frame of shape (n_samples, n_features)
        The counts that were fitted, or others of the same samples. Of counts in chunks, only the samples kept
        in memory are tested, up to 8,192 at random.
    loadings : array-like of shape (n_samples, n_components), optional
        Loadings of other samples, as `Log1pNMF.transform` returns them; `counts` are theirs, and the features
        are those that both have. The tests are of these samples.
    errors : {"sandwich", "model"}
        "sandwich" is valid for counts of any variance. "model" trusts the noise of the fit; do not use it for
        overdispersed counts with Poisson noise.
    split : bool
        Whether to estimate the loadings from a random half of the counts and test on the other half.
        Otherwise the same counts are used twice. Splitting takes another fit and leaves half of the counts
        for the tests; it is valid if the counts have the noise of the fit.
    size_factors : array of shape (n_samples,), optional
        Size factors of `counts`, if they differ from those of the fit.
    max_samples : int, optional
        Number of random samples to test, the same ones every time. The tests use all zero counts, so many
        samples take long; a few thousand give small errors.

    See Also
    --------
    log1pnmf.analysis.top_features : The same order without tests.
    log1pnmf.pl.volcano : Draw effects and p-values.
    log1pnmf.tl.markers : The same for AnnData.

    Notes
    -----
    Every feature is tested on loadings without its own counts, and with their errors. Factors are taken as
    known, but fitted again to each half of the samples: no markers are named of a factor whose loadings do
    not come back in the other half, or are mostly error (see `Markers.reliability`). Factors that do not come
    back are fitted to noise, which would be in the tests of the others, too: tests are of the fit that a few
    iterations lead to without them.

    With totals or fitted size factors, a factor that raises many features makes all others seem to fall. So
    size factors are found again from features that do not change (see `Markers.unmoved`), a few iterations
    adapt the fit to them, and the tests are of that fit. Size factors that you pass are taken as right.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> rng = np.random.default_rng(0)
    >>> own = (np.arange(60)[:, None] < 30) == (np.arange(20) < 10)  # half of the features for each half
    >>> counts = rng.poisson(np.where(own, 6.0, 0.5))
    >>> model = Log1pNMF(2, random_state=0).fit(counts)
    >>> sorted(sorted(map(int, markers(model, counts).top(k))) for k in range(2))
    [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]]
    """
    check_choice("errors", errors, ERRORS)
    if max_samples is not None:
        check_whole("max_samples", max_samples, least=1)
    if loadings is None:
        fit, counts = fit_and_counts(fit, counts)
    else:
        fit, counts = of_new_samples(as_fit(fit), counts, loadings, size_factors, n_jobs=n_jobs)
    fit = fit.normalized("max").named(feature_names=feature_names)
    sizes = fit.size_factors if size_factors is None else counts.size_factors(size_factors)
    counts, rows = counts.part_in_memory(max_samples)
    whole, names, seen = fit, tuple(fit.factor_names), None
    fit = replace(fit.of_rows(rows), size_factors=sizes[rows])
    how: dict[str, Any] = {"errors": errors, "n_jobs": n_jobs}
    centred = size_factors is None and fit.settings.size_factors in ("total", "fit")
    phi = 0.0 if fit.dispersion is None else fit.dispersion
    halves = split_counts(counts, 0.5, dispersion=phi, random_state=0) if split else ()
    with (
        shown(verbose, "markers: short fits", "iteration") as show,
        threadpool_limits(1, user_api="blas"),  # thin products: more threads only spin and change bits
    ):
        done, of_all = count(1), (2 + centred) * FEW_ITERATIONS
        callbacks = [lambda _: show(min(next(done), of_all), of_all)]
        determined = _determined(fit, counts, n_jobs, callbacks)
        fit, used = _of_signal(fit, determined, counts, n_jobs, callbacks)
        fit, unmoved = _resized(fit, counts, callbacks, **how) if centred else (fit, np.ones(used.sum()))
    with shown(verbose, "markers: tests", "feature") as show, threadpool_limits(1, user_api="blas"):
        if halves:
            (source, counts), fit = halves, _of_half(fit, halves[0], n_jobs)
            seen = fit.problem(source)
        problem = fit.problem(counts)
        loadings, alpha = np.ascontiguousarray(fit.loadings), fit.link.alpha
        how |= {"source": seen, "centred": centred, "shown": show}
        found, reliability = infer_from_fit(fit, problem, loadings, **how)
        if not used.all():
            columns = {name: _widened(getattr(found, name), used, fill) for name, fill in UNKNOWN.items()}
            found, reliability = replace(found, **columns), _widened(reliability, used, 0.0)
            unmoved = _widened(unmoved, used, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):  # with the z of the test
            spread = np.where(found.z > 0.0, found.effect / found.z, found.error)
        shrunken = [shrink(found.effect[:, k], spread[:, k]) for k in range(len(names))]
    reliability = reliability * np.where(np.isnan(determined), 1.0, determined)
    _warn_of_errors(reliability, found.comparable, names)
    p = scipy.stats.t.sf(found.z, found.freedom)
    adjusted = np.where(np.isnan(p), np.nan, 1.0)  # features without any count have 1 and do not count
    tested = np.diff(problem.counts.by_column.indptr) > 0
    for k in np.flatnonzero(~np.isnan(p).all(axis=0) & tested.any()):
        if reliability[k] >= LEAST_RELIABLE:
            z, freedom = found.z[tested, k] * min(1.0, reliability[k] / RELIABLE), found.freedom[tested, k]
            adjusted[tested, k] = scipy.stats.false_discovery_control(scipy.stats.t.sf(z, freedom))
    unknown = np.where(found.comparable, 0.0, np.nan)
    return Markers(
        log2_fold_change=ranking_of(whole, unmoved).log2_fold_change,
        score=ranking_of(whole).score,
        effect=alpha * found.effect,
        error=alpha * found.error,
        z=found.z,
        p=p,
        adjusted_p=adjusted,
        shrunken_effect=alpha * np.stack([one.effect for one in shrunken], axis=1) + unknown,
        false_sign_rate=np.stack([one.false_sign_rate for one in shrunken], axis=1) + unknown,
        weight=whole.factors,
        reliability=reliability,
        determined=determined,
        unmoved=np.log2(unmoved),
        c=fit.c,
        errors=errors,
        split=split,
        n_samples=len(rows),
        n_rising=((adjusted <= LEVEL) & (whole.factors > 0.0)).sum(axis=0),
        feature_names=whole.feature_labels,
        factor_names=names,
    )


def _of_signal(
    fit: Fit, determined: Array, counts: Counts, n_jobs: int | None, callbacks: Any
) -> tuple[Fit, NDArray[np.bool_]]:
    """Return the fit without factors that are fitted to noise, refitted, and which factors stay."""
    used = ~(stand_ins(fit.loadings, fit.size_factors).comparable & (determined < LEAST_RELIABLE))
    used[np.argmax(fit.loadings.sum(axis=0) * fit.factors.sum(axis=0))] = True  # never without a baseline
    if used.all() or used.sum() < 2:
        return fit, np.ones_like(used)
    part = replace(fit, loadings=fit.loadings[:, used], factors=fit.factors[:, used], given_factor_names=None)
    short = {"max_iter": FEW_ITERATIONS}
    again = _fit_again(part, counts, fit.size_factors, n_jobs, short, callbacks=callbacks)
    return replace(again, whole=fit.whole).normalized("max"), used


def _widened(values: NDArray[Any], used: NDArray[np.bool_], fill: float) -> NDArray[Any]:
    """Return an array with columns of all factors, filled where they are not used."""
    whole = np.full((*values.shape[:-1], len(used)), fill, dtype=values.dtype)
    whole[..., used] = values
    return whole


def _resized(
    fit: Fit, counts: Counts, callbacks: Any, *, errors: str, n_jobs: int | None
) -> tuple[Fit, Array]:
    """Return a fit at size factors by features that do not move, and how these moved before."""
    still, sizes = resizing(fit, fit.problem(counts), errors=errors, n_jobs=n_jobs)
    if fit.link.is_identity or (sizes == fit.size_factors).all():  # loadings make up for them
        return fit, still
    again = _fit_again(fit, counts, sizes, n_jobs, {"max_iter": FEW_ITERATIONS}, callbacks=callbacks)
    return replace(again, whole=fit.whole).normalized("max"), still


def _fit_again(
    fit: Fit, counts: Counts, sizes: Array, n_jobs: int | None, changes: dict[str, Any], **given: Any
) -> Fit:
    """Return what a fit becomes with other counts or size factors; its factors keep their order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", convergence_warning())
        again = fit_again(fit, counts, sizes, changes=changes, n_jobs=n_jobs, **given)
    order = match_factors(fit.loadings, again.loadings).pairs[:, 1]  # the order is by share, which may change
    return replace(again, loadings=again.loadings[:, order], factors=again.factors[:, order])


def _determined(fit: Fit, counts: Counts, n_jobs: int | None, callbacks: Any) -> Array:
    """Return the squared correlation of loadings with those from factors fitted to other samples."""
    n, k = len(fit.loadings), fit.n_components
    if not fit.whole or fit.factor_kinds is not None or k == 1 or n < 2 * LEAST_PER_FACTOR * k:
        return np.full(k, np.nan)
    table, sizes = counts.to_scipy(), fit.size_factors
    batch = None if fit.batches is None else np.asarray(fit.batches.sample_names)
    strata: Any = np.zeros(n) if fit.batches is None else fit.batches.labels
    order = np.lexsort((np.random.default_rng(0).random(n), fit.loadings.argmax(axis=1), strata))
    short, shares = {"max_iter": FEW_ITERATIONS, "l1": 0.5 * fit.settings.l1}, []
    for chosen, others in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        here, there = (Counts.from_any(table[which]) for which in (chosen, others))
        labels = None if batch is None else batch[others]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they need not converge
            how: Any = {"changes": short, "n_jobs": n_jobs, "callbacks": callbacks}
            half = fit_again(fit.of_rows(chosen), here, sizes[chosen], **how)
            other = replace(fit, factors=half.factors)
            found = project(other, there, sizes[others], batch=labels, prior=0.0, n_jobs=n_jobs).loadings
        shares.append(np.maximum(match_factors(fit.loadings[others], found).similarity, 0.0) ** 2)
    return np.asarray(np.mean(shares, axis=0))


def _warn_of_errors(reliability: Array, tested: NDArray[np.bool_], names: tuple[str, ...]) -> None:
    """Warn of factors whose loadings are mostly error beyond the other loadings."""
    low = np.flatnonzero(tested & (reliability < LEAST_RELIABLE)).tolist()
    if not low:
        return
    which = ", ".join(f"{names[k]} ({reliability[k]:.0%})" for k in low)
    warn(
        f"no markers are named of factors whose loadings are mostly error: {which}. The number in brackets "
        "is the share of a factor's variation, after removing what the other factors explain, that is signal "
        "rather than estimation error and that factors fitted to other samples reproduce. More samples, more "
        "features, deeper samples or fewer factors help",
        UserWarning,
    )


def _of_half(fit: Fit, half: Counts, n_jobs: int | None) -> Fit:
    """Return the fit to half of every count; halves of negative binomial counts have twice the dispersion."""
    twice = None if fit.dispersion is None else 2.0 * fit.dispersion
    given = {} if fit.asked.dispersion != GIVEN else {"dispersion": twice}
    changes = {"l1": 0.5 * fit.settings.l1}
    return replace(_fit_again(fit, half, 0.5 * fit.size_factors, n_jobs, changes, **given), dispersion=twice)
