"""Several fits of one data set: other seeds, c, K or donors, and which factors come back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from log1pnmf._common.checks import check_absent, check_one_each, check_whole, convergence_warning, warn
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.anndata import as_fit
from log1pnmf.fitting.fit import Fit, or_one
from log1pnmf.fitting.fit_counts import KNOWN, FitParameters, SampleParameters, checked, completed, fit_counts
from log1pnmf.fitting.settings import GIVEN, Settings
from log1pnmf.model.problem import Array

from .grid import ascending_shifts
from .groups import MISSING, Groups, Indices
from .metrics import deviance_explained, log_likelihood, match_factors, measures

if TYPE_CHECKING:
    from typing_extensions import Unpack


def agreement(fits: Sequence[Fit]) -> Array:
    """Return the mean correlation of the loadings of matched factors, for any two fits of one setting."""
    between = np.eye(len(fits))
    for a, b in combinations(range(len(fits)), 2):
        between[a, b] = between[b, a] = match_factors(fits[b].loadings, fits[a].loadings).similarity.mean()
    return between


def score_with_error(between: Array) -> tuple[float, float]:
    """Mean similarity over all pairs of fits, and its standard error by leaving out one fit after the other.

    >>> value, error = score_with_error(np.array([[1.0, 0.9, 0.5], [0.9, 1.0, 0.4], [0.5, 0.4, 1.0]]))
    >>> round(value, 3), round(error, 3)
    (0.6, 0.306)
    """
    n = len(between)
    if n < 2:
        return np.nan, np.nan
    mean = float(between[np.triu_indices(n, k=1)].mean())
    if n < 3:
        return mean, np.nan
    pairs = between - np.diag(np.diag(between))
    without = (pairs.sum() - 2.0 * pairs.sum(axis=0)) / ((n - 1) * (n - 2))
    return mean, float(np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2)))


def tree_of(similarity: Array) -> Array:
    """Return average linkage of factors by ``1 - similarity``, as `scipy.cluster.hierarchy` takes it."""
    distance = np.clip(1.0 - similarity, 0.0, 2.0)
    np.fill_diagonal(distance, 0.0)
    pairs = scipy.spatial.distance.squareform(distance, checks=False)
    return np.asarray(scipy.cluster.hierarchy.linkage(pairs, method="average", optimal_ordering=True))


# ---------- fits at several c: up and down, each started where its neighbour ended


@dataclass(frozen=True, eq=False)
class Sweep:
    """Fits of one data set at several c, ordered by c; make one with `sweep` (example there).

    Parameters
    ----------
    fits : tuple of Fit
        Smallest c first.
    table : dict of str to ndarray
        One row per fit; ``pandas.DataFrame(table)`` shows it. Columns: `c`; `log_likelihood`, always that
        without approximation; `deviance_explained`; `factor_correlation`, mean absolute Spearman correlation
        between factors; `sparsity_loadings` and `sparsity_factors`, mean Hoyer sparsity; `n_iter`;
        `converged`; `seconds`.
    """

    fits: tuple[Fit, ...]
    table: dict[str, np.ndarray]

    @classmethod
    def of(cls, fits: Sequence[Any], counts: Any) -> Sweep:
        """Order `fits` to the same `counts` by c and compare them; the best of each c is kept."""
        counts = Counts.from_any(counts)
        best: dict[float, Fit] = {}
        for fit in map(as_fit, fits):
            best[fit.c] = min(best.get(fit.c, fit), fit, key=lambda one: one.objective)
        ordered = tuple(best[value] for value in sorted(best))
        rows = []
        for fit in ordered:
            exact = fit.log_likelihood
            exact = log_likelihood(fit, counts) if exact is None else exact
            rows.append(measures(fit, exact, deviance_explained(fit, counts)))
        return cls(ordered, {name: np.array([row[name] for row in rows]) for name in rows[0]})


@completed(SampleParameters)
def sweep(
    counts: Any, n_components: int, c: Sequence[float], **parameters: Unpack[SampleParameters]
) -> Sweep:
    """Fit the model at several c and compare the fits.

    Each fit starts from its neighbour, first with rising, then with falling c: independent fits may end in
    poorer optima and take longer.

    Parameters
    ----------
    counts : array, sparse matrix or data frame of shape (n_samples, n_features)
        Raw counts.
    c : sequence of float
        Values of c in any order; may contain inf.
    **parameters : optional
        Other parameters as in `log1pnmf.Log1pNMF`, with the same defaults.

    See Also
    --------
    log1pnmf.pl.sweep : Draw the result.
    log1pnmf.select : Choose c by held-out counts.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> counts = pancreas().counts[:150, :400]
    >>> result = sweep(counts, 3, [0.1, 1, float("inf")])
    >>> result.table["c"]
    array([0.1, 1. , inf])
    >>> [fit.factors.shape for fit in result.fits]
    [(400, 3), (400, 3), (400, 3)]
    """
    counts = Counts.from_any(counts)
    return Sweep.of(list(fits_along(counts, n_components, c, **parameters)), counts)


def fits_along(counts: Any, n_components: int, c: Sequence[float], **parameters: Any) -> Iterator[Fit]:
    """Yield fits up along c, each from the one before, then down, each from the better one at the next c."""
    values = ascending_shifts(c)
    check_absent(parameters, ("checkpoint",), "the fits of a sweep")
    settings, given = checked(n_components=n_components, **parameters)
    counts = Counts.from_any(counts)
    done: dict[float, Fit] = {}
    for value in along_path(values):
        fit = fit_counts(counts, replace(settings, c=value), **given)
        yield fit
        if fit.stopped == "interrupted":
            return
        done[value] = min(done.get(value, fit), fit, key=lambda one: one.objective)
        given["init"] = done[value]


def along_path(c: Sequence[float]) -> list[float]:
    """Order the values of c as a sweep fits them: up, and back down."""
    values = sorted(c)
    return [*values, *values[-2::-1]]


# ---------- factors that come back in fits with other numbers of factors and to other donors

Fits = dict[tuple[str, int], Fit]
ALONE = 0.95  # similarity of factors of a single group, whose fits share the noise of its samples
FLOOR = 1e-3  # smallest entry of a consensus factor, relative to the mean: no count becomes impossible
LOADINGS: Any = {"tol": 1e-5, "max_iter": 50, "n_init": 1, "l1": 0.0}  # of the fit with fixed factors


@dataclass(frozen=True, eq=False)
class Consensus:
    """Factors that come back in several fits, and a fit with them; make one with `consensus` (example there).

    Parameters
    ----------
    final : Fit
        The fit to all samples that starts from the consensus factors.
    factors : ndarray of shape (n_features, n_consensus)
        Consensus factors, in the order of `final`: the median of each cluster.
    fits : dict of (str, int) to Fit
        The fit of each group and number of factors.
    members : dict of str to ndarray
        One row for each factor of all fits: `group`, `n_components`, `factor` (its number in that fit) and
        `consensus`, the name of the factor of `final`, empty for an outlier.
    similarity : ndarray of shape (factors of all fits, factors of all fits)
        Pearson's correlation of factors, after the mean of all factors was subtracted.
    similarity_final : ndarray of shape (n_consensus,)
        The same between each consensus factor and the factor of `final` that it became.
    """

    final: Fit
    factors: Array
    fits: Fits
    members: dict[str, np.ndarray]
    similarity: Array
    similarity_final: Array

    def table(self) -> dict[str, np.ndarray]:
        """Return one row per factor of `final`: in which fits it came back, and how similar it was there."""
        group, K = self.members["group"], self.members["n_components"]
        where = [np.flatnonzero(self.members["consensus"] == name) for name in self.final.factor_names]
        pairs = [self.similarity[np.ix_(rows, rows)][np.triu_indices(len(rows), 1)] for rows in where]
        return {
            "factor": np.array(self.final.factor_names),
            "n_fits": np.array([len(set(zip(group[rows], K[rows], strict=True))) for rows in where]),
            "n_groups": np.array([len(set(group[rows])) for rows in where]),
            "groups": np.array([", ".join(dict.fromkeys(group[rows])) for rows in where]),
            "n_components": np.array([", ".join(map(str, np.unique(K[rows]))) for rows in where]),
            "similarity": np.array([pair.mean() if pair.size else np.nan for pair in pairs]),
            "similarity_final": self.similarity_final,
        }


class ConsensusOptions(FitParameters, total=False):
    """Options of `consensus` beside those that belong to samples, for type checkers."""

    c: float
    least: float
    min_fits: int


@completed(SampleParameters)
def consensus(
    counts: Any,
    n_components: int | Sequence[int],
    *,
    c: float = 1.0,
    groupby: Any = None,
    least: float = 0.5,
    min_fits: int = 2,
    **parameters: Unpack[SampleParameters],
) -> Consensus:
    """Find the factors that come back over numbers of factors and donors, and fit a model that has them.

    Every number of factors is fitted to every group. Average linkage clusters the factors of all fits; those
    that do not come back are outliers. The final fit to all samples starts from the median of each cluster,
    first with fixed factors to find loadings, then free.

    Parameters
    ----------
    counts : array, sparse matrix or data frame of shape (n_samples, n_features)
        Counts, samples x features.
    n_components : int or sequence of int
        Numbers of factors to fit.
    groupby : array-like of shape (n_samples,), optional
        Donor of each sample; each is fitted on its own if it has as many samples as factors.
    least : float
        Smallest mean similarity of the factors of a cluster. With `groupby`, a cluster of a single group
        needs 0.95, because fits to the same samples also share what is noise in these.
    min_fits : int
        Number of fits in which a factor comes back, at least.
    **parameters : optional
        Other parameters as in `log1pnmf.Log1pNMF`, and `batch`. Size factors are relative to all samples.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> found = consensus(pancreas().counts[:120, :200], [2, 3], tol=1e-5)
    >>> found.table()["n_fits"]
    array([2, 2])
    """
    check_absent(parameters, ("checkpoint", *KNOWN), "a consensus")
    check_whole("min_fits", min_fits, least=1)
    if not isinstance(parameters.get("init", ""), str):
        raise ValueError("init must be a name: the fits of a consensus have different numbers of factors")
    numbers = sorted(set(np.atleast_1d(n_components).tolist()))
    settings, given = checked(n_components=numbers[-1], c=c, **parameters)
    data = Counts.from_any(counts)
    fits = _fits(data, groupby, numbers, settings, given)
    together = np.hstack([fit.normalized("max").factors for fit in fits.values()])
    profiles = _profiles(together)
    similarity = match_factors(profiles, profiles).matrix
    groups, sizes = np.array([name for name, _ in fits], dtype=object), np.array([K for _, K in fits])
    owner = np.repeat(np.arange(len(fits)), sizes)
    clusters = _clusters(similarity, owner, groups, least, min_fits)
    medians = np.column_stack([np.median(together[:, rows], axis=1) for rows in clusters])
    final = _final(data, medians, settings, given)
    match = match_factors(*np.split(_profiles(np.hstack([final.factors, medians])), 2, axis=1))
    names = np.full(len(owner), "", dtype=object)
    for name, place in zip(final.factor_names, match.pairs[:, 1], strict=True):
        names[clusters[place]] = name
    numbered = np.concatenate([np.arange(K) for K in sizes])
    members = {"group": groups[owner], "n_components": sizes[owner], "factor": numbered, "consensus": names}
    return Consensus(final, medians[:, match.pairs[:, 1]], fits, members, similarity, match.similarity)


def _fits(data: Counts, groupby: Any, numbers: list[int], settings: Settings, given: dict[str, Any]) -> Fits:
    """Return the fit of each group and number of factors."""
    labels = np.full(data.n_samples, "all") if groupby is None else groupby
    check_one_each("groupby", labels, data.n_samples)
    groups = Groups.of(labels)
    named = dict(zip(groups.names, groups.sizes.tolist(), strict=True))
    fitted = [name for name, size in named.items() if name != MISSING and size >= numbers[-1]]
    if others := ", ".join(f"{name} ({size:,})" for name, size in named.items() if name not in fitted):
        what = f"samples without a group ({MISSING}) and groups of fewer than {numbers[-1]} samples"
        warn(f"only in the final fit are {what}: {others}", UserWarning)
    if len(fitted) * len(numbers) < 2:
        raise ValueError(
            f"a consensus needs several fits, got {len(fitted)}; give several n_components, or groupby with "
            f"several groups of at least {numbers[-1]} samples"
        )
    fits: Fits = {}
    sizes = data.size_factors(given.get("size_factors", settings.size_factors))
    how: Any = {} if settings.fits_sizes else {"size_factors": GIVEN}
    for name in fitted:
        rows = np.flatnonzero(groups.labels == name)
        part = replace(Counts.from_any(data.to_scipy()[rows]), feature_names=data.feature_names)
        own = {**given, "size_factors": sizes[rows] if how else None}
        if given.get("batch") is not None:
            own["batch"] = np.asarray(given["batch"], dtype=object)[rows]
        for K in numbers:
            fits[name, K] = fit_counts(part, replace(settings, n_components=K, **how), **own)
            if fits[name, K].stopped == "interrupted":
                raise KeyboardInterrupt
    return fits


def _profiles(factors: Array) -> Array:
    """Return factors of length 1 without their mean, which all factors resemble."""
    unit = factors / or_one(np.linalg.norm(factors, axis=0))
    return np.asarray(unit - unit.mean(axis=1, keepdims=True))


def _clusters(similarity: Array, owner: Indices, groups: Any, least: float, min_fits: int) -> list[Indices]:
    """Return which factors make up each cluster."""
    cuts = (1.0 - least, 1.0 - max(least, ALONE))
    coarse, fine = (scipy.cluster.hierarchy.fcluster(tree_of(similarity), cut, "distance") for cut in cuts)
    alone = np.array([len(set(groups[owner[coarse == one]])) == 1 for one in coarse])
    joined = np.where(alone & (len(set(groups)) > 1), -fine, coarse)
    clusters = [np.flatnonzero(joined == one) for one in np.unique(joined)]
    found = [rows for rows in clusters if len(set(owner[rows])) >= min_fits]
    if not found:
        raise ValueError(f"no factor comes back in {min_fits} fits; lower least or min_fits")
    return found


def _final(data: Counts, factors: Array, settings: Settings, given: dict[str, Any]) -> Fit:
    """Return the fit to all samples that starts from factors: first these are fixed, then free."""
    asked = replace(settings, n_components=factors.shape[1])
    counted = data.by_column.row_sums() > 0.0
    fixed = np.where(counted[:, None], np.maximum(factors, FLOOR * factors.mean()), 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", convergence_warning())
        own = {**given, "verbose": 0, "l1": None, "fixed_factors": fixed}
        start = fit_counts(data, replace(asked, **LOADINGS), **own)
    return fit_counts(data, asked.with_noise(start.settings.noise), **given, init=start)
