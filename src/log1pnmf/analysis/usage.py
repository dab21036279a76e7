"""Whether a factor is used more in one group of samples than in another.

**The unit is the replicate.** Cells of one donor are more alike than cells of different donors, so a test
that takes every cell as a replicate finds differences between any two donors. With `replicate`, the mean
loading of every replicate (in every group, where a replicate has samples in several) is one observation.

**Relative to what?** Size factors are totals, or estimated from the same counts: a factor that rises takes
its share from all others, which seem to fall. Counts determine proportions only. A common change of all
size factors by a factor of e changes the mean loading of factor k by a known amount, its response D_k (at
c = inf the mean loading itself). So we find the change h of size factors that leaves most of the counts
alone: the mode of ``-difference / D`` over factors, each weighted by the share of the counts that it carries.
Factors that agree with it are the reference, and every factor is tested relative to their mean change
(methods for compositions do the same with log ratios: ANCOM-BC, LinDA). Where half of the factors rise, the
others may as well have fallen. So every group of factors that agree on a change, are at least half as many
and carry at least half as many counts is a possible reference; a factor is significant only if it changed
relative to each of them, and how much these groups changed relative to each other is tested apart.

**The test** is that of a linear model of the means on groups (or a number) and covariates, one for each
factor. Where replicates have samples in several groups, every replicate has its own level: it is compared
with itself. A mean of few samples is known less well: its variance is that between replicates plus that of
its samples over their number. Replicates are weighted by what this is on average over the factors, errors
follow what it is for the factor, and degrees of freedom Satterthwaite. With few replicates a variance is
hardly known, and those of all factors are shrunk towards their common value, the more so the more alike they
are (Smyth's moderated t, 2004).

**A number** (age, dose) has a slope in place of differences. Where it is the same in all samples of a
replicate, replicates are the observations; where it varies within every replicate, their slopes are.

**Without replicates** the samples are the observations, errors allow for unequal variances (HC3), and a
warning explains what that means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, TypedDict

import numpy as np
import scipy
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice, check_one_each, plural, warn
from log1pnmf.fitting.anndata import as_fit
from log1pnmf.fitting.fit import Fit, factor_number, or_one
from log1pnmf.fitting.new_samples import as_loadings
from log1pnmf.model.problem import Array

from .batches import confounded_groups
from .groups import MISSING, Groups, Indices, numbers_of

INDEPENDENT = 1e-8  # share of a column that the other columns must leave, or it cannot be separated from them
RIVAL = 0.5  # least size of another possible reference, in factors and in counts, relative to the likeliest
LEAST_FACTORS = 5  # from so many factors on, their variances are drawn together
POOLED = 10.0  # degrees of freedom with which the variance of all samples counts beside that of a unit's own
LEAST_BETWEEN = 0.2  # least variance between units, as a share of that of their samples
LEAST_COMMON = 2.0  # the same for all factors together, by which units are weighted
LEAST_EXPECTED = 0.5  # share of the variance due to samples that the one of a difference has at least
WIDTH, AGREES = 2.0, 1.5  # standard errors: of the kernel that finds the mode, and up to which factors agree

NOT_REPLICATES = (
    "this test treats samples as replicates. Cells of one donor are alike, so a small p-value does not mean "
    "that other donors would show the difference. Pass replicate=, the donor (or animal) of every sample, "
    "or replicate=True if every sample is a replicate, as in bulk data"
)


@dataclass(frozen=True, eq=False)
class Units:
    """Observations of a test."""

    means: Array  # (n_units, K): mean loadings; slopes, where the number varies within replicates
    noise: Array | None  # (n_units, K, K): their covariance over draws of samples; None: one sample each
    scatter: Array  # (n_units,): the part of it that is due to the number of samples: 1 over that number
    keys: Indices  # (n_units, 2): group and replicate of every unit
    groups: NDArray[Any]  # (n_units,): name of the group, or the number
    covariates: Array
    order: tuple[str, ...] | None = None  # groups in their order; None for a number
    paired: bool = False  # whether replicates have samples in several groups
    within: bool = False  # whether `means` are slopes within replicates

    def at(self, which: NDArray[np.bool_]) -> Units:
        """Return some of the units."""
        names = ("means", "noise", "scatter", "keys", "groups", "covariates")
        some = {name: getattr(self, name)[which] for name in names if getattr(self, name) is not None}
        order = self.order and tuple(name for name in self.order if name in some["groups"])
        return replace(self, order=order, **some)


def gather(
    loadings: Array, groups: Groups | Array, replicate: Any, covariates: Array, kept: NDArray[np.bool_]
) -> Units:
    """Bring samples together to the units that are compared; those that are not kept are left out."""
    if not kept.any():
        raise ValueError("no sample has a group, a replicate and all covariates; check the labels")
    keys = np.stack([np.zeros(len(loadings), dtype=np.intp), np.arange(len(loadings))])
    if replicate is not None and replicate is not True:
        keys[1] = Groups.of(replicate).codes
    if isinstance(groups, Groups):
        keys[0] = groups.codes
    keys, unit = np.unique(keys[:, kept], axis=1, return_inverse=True)
    unit, loadings, n_samples = unit.ravel(), loadings[kept], np.bincount(unit.ravel())
    means = _means(loadings, unit)
    rest, extra = loadings - means[unit], _means(covariates[kept], unit)
    noise = _noise(rest, unit, n_samples)
    if isinstance(groups, Groups):
        names = np.array(groups.names, dtype=object)
        order, paired = tuple(names[np.unique(keys[0])].tolist()), len(np.unique(keys[1])) < keys.shape[1]
        return Units(means, noise, 1.0 / n_samples, keys.T, names[keys[0]], extra, order, paired)
    values = groups[kept]
    centres = _means(values[:, None], unit)[:, 0]
    spread = values - centres[unit]
    varies, several = np.bincount(unit, np.abs(spread) > 1e-9 * np.abs(values).max()) > 0, n_samples > 1
    if not varies.any():
        return Units(means, noise, 1.0 / n_samples, keys.T, centres, extra)
    if not varies[several].all():
        first = np.unique(values[unit == np.argmax(varies)])[:2]
        raise ValueError(
            f"the number has several values in {varies.sum()} of {several.sum()} replicates (in one, "
            f"{first[0]:g} and {first[1]:g}), and one value in the others; use one value for each replicate, "
            "or only replicates in which it varies"
        )
    # the slope within every replicate is one observation, to be compared with zero
    squares = or_one(np.bincount(unit, spread**2))
    slopes = _means(spread[:, None] * loadings, unit) * (n_samples / squares)[:, None]
    noise = _noise(rest - spread[:, None] * slopes[unit], unit, squares)
    return Units(slopes, noise, 1.0 / squares, keys.T, np.zeros(len(keys.T)), extra, within=True).at(varies)


def _means(values: Array, unit: Indices) -> Array:
    sizes = np.bincount(unit)
    sums = [np.bincount(unit, column) for column in values.T]
    return np.stack(sums, axis=1) / sizes[:, None] if sums else np.zeros((len(sizes), 0))


def _noise(rest: Array, unit: Indices, precision: NDArray[Any]) -> Array | None:
    """Return the covariance of what is estimated from the samples of each unit, given their residuals."""
    freedom = np.bincount(unit) - 1.0
    if not freedom.any():
        return None
    parts = np.split(rest[np.argsort(unit, kind="stable")], np.cumsum(np.bincount(unit))[:-1])
    squares = np.stack([part.T @ part for part in parts])
    pooled = squares.sum(axis=0) / freedom.sum()
    return (squares + POOLED * pooled) / ((freedom + POOLED) * precision)[:, None, None]


def contrast(units: Sequence[Units], place: int) -> Units:
    """Return the units of one part of the samples, less the mean of their other parts."""
    own = units[place]
    row = {key: i for i, key in enumerate(map(tuple, own.keys))}
    sums, found, scatter = np.zeros_like(own.means), np.zeros(len(row)), np.zeros(len(row))
    noise = np.zeros((*sums.shape, sums.shape[1]))
    for other in (one for i, one in enumerate(units) if i != place):
        there = [i for i, key in enumerate(map(tuple, other.keys)) if key in row]
        here = [row[tuple(other.keys[i])] for i in there]
        sums[here] += other.means[there]
        noise[here] += 0.0 if other.noise is None else other.noise[there]
        scatter[here] += other.scatter[there]
        found[here] += 1.0
    if not found.any():
        raise ValueError("no replicate has samples of another part")
    n_others = or_one(found)
    noise = (0.0 if own.noise is None else own.noise) + noise / n_others[:, None, None] ** 2
    means, scatter = own.means - sums / n_others[:, None], own.scatter + scatter / n_others**2
    return replace(own, means=means, noise=noise, scatter=scatter).at(found > 0.0)


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A linear model of the units; its first coefficients are tested."""

    units: Units
    matrix: Array  # (n_units, n_coefficients)
    inverse: Array  # its pseudo-inverse
    weights: Array  # (n_units,): mean 1; rows of `matrix` are multiplied by their roots
    others: tuple[str, ...]  # groups whose coefficients are tested; none for a number
    reference: str | None
    replicated: bool

    @classmethod
    def of(cls, units: Units, reference: str | None, *, replicated: bool) -> LinearModel:
        """Make the model; what cannot be separated is refused."""
        others: tuple[str, ...] = ()
        base = np.ones((len(units.means), 1))
        if units.order is None:
            if reference is not None:
                raise ValueError(f"reference={reference!r} is for groups, not for numbers; leave it out")
            tested = base if units.within else (units.groups - units.groups.mean())[:, None]
            base = base[:, :0] if units.within else base
        else:
            if len(units.order) < 2:
                raise ValueError(
                    f"all samples are in the group {units.order[0]!r}: there is nothing to compare"
                )
            reference = units.order[0] if reference is None else reference
            check_choice("reference", reference, units.order)
            others = tuple(name for name in units.order if name != reference)
            tested = np.stack([units.groups == name for name in others], axis=1).astype(np.float64)
            if units.paired:  # every replicate has its own level
                base = (units.keys[:, 1:] == np.unique(units.keys[:, 1])).astype(np.float64)
        matrix = np.concatenate([tested, base, units.covariates - units.covariates.mean(axis=0)], axis=1)
        lengths = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
        inverse = np.linalg.pinv(matrix / lengths, rcond=INDEPENDENT) / lengths[:, None]
        n_tested = tested.shape[1]
        apart = np.abs((inverse[:n_tested] @ matrix) - np.eye(n_tested, matrix.shape[1])).max(axis=1) < 1e-5
        if not apart.all():
            what = f"the group {others[int(np.argmin(apart))]!r}" if others else "the number"
            raise ValueError(
                f"{what} cannot be separated from the replicates and covariates, because they change "
                "together; leave covariates out, or check the labels"
            )
        model = cls(units, matrix, inverse, np.ones(len(matrix)), others, reference, replicated)
        if model.freedom < 1:
            unit = "replicate" if replicated else "sample"
            raise ValueError(
                f"the variance cannot be estimated from {plural(len(matrix), unit)} with "
                f"{plural(round(len(matrix) - model.freedom), 'coefficient')}; use more {unit}s, or fewer "
                "groups and covariates"
            )
        return model if units.noise is None or not replicated else model._weighted(units.noise)

    def _weighted(self, noise: Array) -> LinearModel:
        """Return the model in which means of few samples count less, for all factors alike."""
        expected = or_one(np.einsum("u,ukk->k", self.spare, noise) / self.freedom)
        residuals = self.units.means - self.matrix @ (self.inverse @ self.units.means)
        between = float(((residuals**2).sum(axis=0) / (self.freedom * expected)).mean()) - 1.0
        scatter = self.units.scatter / (self.spare @ self.units.scatter / self.freedom)
        weights = 1.0 / (max(between, LEAST_COMMON) + scatter)
        weights /= weights.mean()
        matrix = np.sqrt(weights)[:, None] * self.matrix
        lengths = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
        inverse = np.linalg.pinv(matrix / lengths, rcond=INDEPENDENT) / lengths[:, None]
        return replace(self, weights=weights, matrix=matrix, inverse=inverse)

    @cached_property
    def spare(self) -> Array:
        """1 less the leverage of every unit."""
        return 1.0 - np.einsum("up,pu->u", self.matrix, self.inverse)

    @cached_property
    def freedom(self) -> float:
        """Degrees of freedom of the residuals."""
        return float(np.rint(self.spare.sum()))

    @cached_property
    def to_residuals(self) -> Array:
        """Squares of the matrix that turns observations into residuals."""
        return np.asarray((np.eye(len(self.matrix)) - self.matrix @ self.inverse) ** 2)

    def tested(self, combined: Array, rows: Indices) -> tuple[Array, Array, Array]:
        """Return coefficients, errors and degrees of freedom (rows x columns) of combinations of factors."""
        y = np.sqrt(self.weights)[:, None] * (self.units.means @ combined)
        coefficients = self.inverse @ y
        residuals, coefficients = y - self.matrix @ coefficients, coefficients[rows]
        squares = self.inverse[rows] ** 2
        if not self.replicated:
            squares /= np.maximum(self.spare, 1e-3) ** 2
            error = np.sqrt(squares @ residuals**2)
            # a group of one sample: its scatter is not known
            error[(squares[:, self.spare < 1e-9] > 1e-12).any(axis=1)] = np.inf
            return coefficients, error, np.full(error.shape, self.freedom)
        variance, more = moderate((residuals**2).sum(axis=0) / self.freedom, self.freedom)
        of_samples, weights = np.zeros_like(y), self.weights[:, None]
        if self.units.noise is not None:
            noise = np.einsum("ukl,kj,lj->uj", self.units.noise, combined, combined, optimize=True)
            of_samples = weights * noise
        expected = self.spare @ of_samples / self.freedom
        between = np.maximum(variance - expected, LEAST_BETWEEN * expected)
        # how the variances of the units compare; residuals determine their scale
        variances = weights * between / (self.spare @ weights / self.freedom) + of_samples
        sums = or_one(self.spare @ variances)
        whole = (squares @ variances) * (variance * self.freedom / sums)
        freedom = sums**2 / or_one((variances * (self.to_residuals @ variances)).sum(axis=0))
        freedom = np.where(variances.any(axis=0), freedom * (1.0 + more / self.freedom), self.freedom)
        error = np.sqrt(np.maximum(whole, LEAST_EXPECTED * (squares @ of_samples)))
        return coefficients, error, np.tile(freedom, (len(rows), 1))


def covariate_columns(covariates: Any, n: int) -> Array:
    """Make columns of numbers: labels become one column for each but the first."""
    columns: list[Array] = [np.zeros((0, n))]
    if covariates is None:
        covariates = {}
    elif not isinstance(covariates, Mapping) and not hasattr(covariates, "columns"):  # that is a data frame
        covariates = dict(enumerate(np.atleast_2d(np.asarray(covariates).T)))
    for name, values in covariates.items():
        check_one_each(f"covariate {str(name)!r}", values, n, "value")
        numbers = numbers_of(values)
        if numbers is None:
            labels = Groups.of(values)
            own = labels.codes == np.arange(1, len(labels.names))[:, None]
            numbers = np.where(labels.labels == MISSING, np.nan, own)
        columns.append(numbers)
    return np.vstack(columns).T


@dataclass(frozen=True, eq=False)
class Sizes:
    """How a change of size factors changes loadings, and the share of the counts that each factor carries."""

    response: Array  # (K,): change of mean loadings with the logarithm of the rates
    share: Array  # (K,): 0 for factors that cannot be a reference

    @classmethod
    def of(cls, fit: Fit, loadings: Array) -> Sizes:
        """Work them out at the mean loadings."""
        mean = loadings.mean(axis=0)
        if np.isinf(fit.c):
            response, slope = mean, fit.factors
        else:
            factors = fit.factors / fit.link.alpha
            rates = np.expm1(np.maximum(factors @ mean, 1e-12))[:, None]
            slope = factors * (rates + 1.0)
            curvature = slope.T @ (slope / rates)  # of the Poisson likelihood, as expected
            response = np.linalg.lstsq(curvature, slope.sum(axis=0), rcond=1e-10)[0]
        share = np.where(response > 0.01 * mean, mean * slope.sum(axis=0), 0.0)
        return cls(response, share / max(float(share.sum()), 1e-300))

    def references(self, difference: Array, error: Array) -> list[tuple[int, ...]]:
        """Find the groups of factors of which each may have kept its proportions, the likeliest first."""
        fine = (self.share > 0.0) & (error > 0.0) & np.isfinite(error)
        if not fine.any():
            return [(int(np.argmax(self.share)),)]
        d, e, response, share = difference[fine], error[fine], self.response[fine], self.share[fine]
        offset = -d / response

        def kernel(h: Any) -> Array:
            return share * np.exp(-(((d + np.multiply.outer(h, response)) / (WIDTH * e)) ** 2) / 2.0)

        def group(h: float) -> tuple[int, ...]:
            away = np.abs(d + h * response) / e
            return tuple(np.flatnonzero(fine)[away <= max(AGREES, float(away.min()))].tolist())

        mode = offset[int(np.argmax(kernel(offset).sum(axis=1)))]
        for _ in range(30):  # mean shift: uphill to the mode
            weights = kernel(mode) * (response / e) ** 2
            mode = weights @ offset / or_one(weights.sum())
        counts = kernel(offset).sum(axis=1)  # of the factors that change as each of them does
        groups = dict.fromkeys(map(group, (mode, *offset[counts >= RIVAL * counts.max()])))
        return [one for one in groups if len(one) >= RIVAL * len(next(iter(groups)))]

    def mean_change(self, group: tuple[int, ...]) -> Array:
        """Return the combination of factors that is the mean logarithm of how a group changed."""
        weights, own = np.zeros(len(self.share)), np.array(group)
        weights[own] = self.share[own] / or_one(self.response)[own]
        return weights / self.share[own].sum()

    def relative(self, group: tuple[int, ...]) -> Array:
        """Return combinations of factors (columns): each less its part of the mean change of a reference."""
        if not group:
            return np.eye(len(self.share))
        combined = np.eye(len(self.share)) - np.outer(self.mean_change(group), self.response)
        return np.where(np.abs(combined) < 1e-9, 0.0, combined)  # a reference of one factor stays


@dataclass(frozen=True, eq=False, repr=False)
class Usage:
    """Differences of mean loadings; `usage` makes it, see the example there.

    Arrays are of shape (n_comparisons, n_components).

    Parameters
    ----------
    comparisons : tuple of str
        Group that is compared with `reference`, for every row; for a number, its name.
    reference : str or None
        Group that they are compared with; None for a number, where `difference` is a slope.
    within : tuple of str or None
        Part of the samples that every row is about, if `usage` was called with `within`.
    relative_to : tuple of tuple of str
        For every row, the factors that keep their proportions: changes are relative to the mean change of
        these. Where it is a single factor, that has the difference 0. Empty for loadings as they are.
    rivals : tuple of tuple of str
        Other factors that may have kept their proportions instead: at least half as many factors that changed
        alike, with at least half as many counts. Empty where it is clear. `p` and the interval hold whichever
        did, so that a factor is significant only if it changed relative to each of these groups.
    rivals_change, rivals_p : ndarray of shape (n_comparisons,)
        log2 of how many times the rivals rose relative to `relative_to`, and its p-value (Scheffe's: the
        groups were chosen by the same loadings); NaN without rivals.
    difference, error, lower, upper : ndarray
        Difference of mean loadings (the largest loading of every factor is 1) at size factors that leave
        the mean of the factors of `relative_to` as it is, its standard error and 95% interval. It is the one
        of the linear model: within replicates that have samples in several groups, and at the same
        covariates, and may differ from that of the means.
    p, adjusted_p : ndarray
        Two-sided, the largest over the references that are possible; after Benjamini and Hochberg over all
        comparisons and factors.
    degrees_of_freedom : ndarray
        Degrees of freedom of the tests, including those from other factors.
    means : ndarray of shape (n_units, n_components)
        Mean loadings of the units, replicates or samples, as they are.
    unit_groups : ndarray of str, shape (n_units,)
        Group of every unit, or its number.
    unit_within : ndarray of str, shape (n_units,)
        Part of the samples that every unit is of; empty text without `within`.
    replicated : bool
        Whether units are replicates.
    factor_names : tuple of str
        Names of the factors.

    Examples
    --------
    >>> from log1pnmf import datasets, fit_log1p_nmf
    >>> fit = fit_log1p_nmf(datasets.pancreas().counts[:100, :200], 2)
    >>> found = usage(fit, np.repeat(["a", "b"], 50), replicate=np.arange(100) // 10)
    >>> found.comparisons, found.reference, found.difference.shape, found.means.shape
    (('b',), 'a', (1, 2), (10, 2))
    """

    comparisons: tuple[str, ...]
    reference: str | None
    within: tuple[str, ...] | None
    relative_to: tuple[tuple[str, ...], ...]
    rivals: tuple[tuple[str, ...], ...]
    rivals_change: Array
    rivals_p: Array
    difference: Array
    error: Array
    lower: Array
    upper: Array
    p: Array
    adjusted_p: Array
    degrees_of_freedom: Array
    means: Array
    unit_groups: NDArray[Any]
    unit_within: NDArray[Any]
    replicated: bool
    factor_names: tuple[str, ...]

    def __repr__(self) -> str:
        against = "" if self.reference is None else f" against {self.reference}"
        units = plural(len(self.means), "replicate" if self.replicated else "sample")
        names = dict.fromkeys(self.comparisons)
        by = ", ".join(names) if len(names) <= 5 else f"{len(names)} groups"
        parts = "" if self.within is None else f" within {plural(len(set(self.within)), 'part')}"
        return (
            f"<Usage of {plural(len(self.factor_names), 'factor')} by {by}{against}{parts}, {units}; "
            f"given the factors, {self.against}; table() lists it>"
        )

    @property
    def against(self) -> str:
        """What differences are relative to, in words."""
        both = (dict.fromkeys(map(", ".join, filter(None, some))) for some in (self.relative_to, self.rivals))
        stable, others = (" or ".join(some) if len(some) < 4 else "some factors" for some in both)
        unclear = np.flatnonzero(list(map(bool, self.rivals)))
        if not len(unclear):
            return f"relative to {stable}" if stable else "loadings as they are"
        where = f"in {len(unclear)} of {plural(len(self.rivals), 'comparison')}"
        change, how = self.rivals_change[unclear[0]], ""
        if len(unclear) == 1 and self.rivals_p[unclear[0]] <= 0.05:
            how = f", which {'rose' if change > 0.0 else 'fell'} {2.0 ** abs(change):.1f} times beside them"
        return (
            f"relative to {stable} ({where} the counts leave open whether {others} kept their proportions "
            f"instead{how}; significant is what changed relative to each)"
        )

    def table(self) -> dict[str, Any]:
        """One row per comparison and factor; ``pandas.DataFrame(table)`` shows it.

        Columns: `factor`, `group`, `within` (if it was given), `reference`, `mean`, `reference_mean`,
        `difference`, `error`, `lower`, `upper`, `p`, `adjusted_p`, `relative_to`, `rivals`, `rivals_change`
        and `rivals_p`.
        `mean` and `reference_mean` are plain means over the units of a group; `difference` is that of the
        test (see `Usage`). For a number there is `slope` in place of `difference`, the change of the mean
        loading per unit of the number, and no `reference` and means.
        """
        n, k = self.difference.shape
        rows = {"group": self.comparisons, "within": self.within, "reference": (self.reference,) * n}
        columns: dict[str, Any] = {"factor": np.tile(np.array(self.factor_names, dtype=object), n)}
        for name, values in rows.items():
            if values is not None and values != (None,) * n:
                columns[name] = np.repeat(np.array(values, dtype=object), k)
        if self.reference is not None:
            parts = self.within or ("",) * n
            for name, groups in (("mean", self.comparisons), ("reference_mean", rows["reference"])):
                own = [
                    (self.unit_groups == group) & (self.unit_within == part)
                    for group, part in zip(groups, parts, strict=True)
                ]
                columns[name] = np.concatenate([self.means[one].mean(axis=0) for one in own])
        columns["slope" if self.reference is None else "difference"] = self.difference.ravel()
        names = ("error", "lower", "upper", "p", "adjusted_p")
        columns |= {name: getattr(self, name).ravel() for name in names}
        for name in ("relative_to", "rivals"):
            listed = np.array([", ".join(factors) for factors in getattr(self, name)], dtype=object)
            columns[name] = np.repeat(listed, k)
        return columns | {name: np.repeat(getattr(self, name), k) for name in ("rivals_change", "rivals_p")}

    def kept(self) -> dict[str, Any]:
        """Return what plots need beside the table, as AnnData can hold it; means of replicates only."""
        about: dict[str, Any] = {"factor_names": np.array(self.factor_names, dtype=object)}
        return about | ({"means": self.means, "unit_groups": self.unit_groups} if self.replicated else {})


class UsageOptions(TypedDict, total=False):
    """Options of `usage` beside those that belong to samples, for type checkers."""

    reference: str | None
    interaction: bool
    relative_to: int | str | Sequence[int | str] | None
    numeric: bool | None


class SampleOptions(UsageOptions, total=False):
    """With those that belong to samples, but for `replicate`."""

    within: Any
    covariates: Any
    loadings: Any


def usage(
    fit: Any,
    groups: Any,
    *,
    replicate: Any = None,
    reference: str | None = None,
    within: Any = None,
    interaction: bool = False,
    relative_to: int | str | Sequence[int | str] | None = "auto",
    covariates: Any = None,
    numeric: bool | None = None,
    loadings: Any = None,
    key: str | None = None,
) -> Usage:
    """Compare the mean loadings of groups of samples, or find their slope on a number.

    Parameters
    ----------
    fit : Fit, or anything that `log1pnmf.as_fit` takes
        The fit. Its samples may be some of those that were fitted, or new ones after `log1pnmf.tl.transform`.
    groups : array-like of shape (n_samples,)
        Condition of every sample, or a number such as an age or a dose; samples without one, a replicate or a
        covariate are left out. Of numbers with more than two different values the result is a slope: over
        replicates, if each has one value, or within them, if the number varies within all. Text, booleans,
        categories and two numbers are groups.
    replicate : array-like of shape (n_samples,) or True, optional
        Donor, animal, patient or batch of every sample; these are compared, not samples. True if every sample
        is a replicate, as in bulk data.
    reference : str, optional
        Group that the others are compared with; by default the first.
    within : array-like of shape (n_samples,), optional
        Part of every sample, such as its cell type: groups are compared within each part.
    interaction : bool
        Whether to test, for every part, by how much its difference exceeds the mean of the differences of the
        other parts (in the same replicates), in place of the difference itself.
    relative_to : "auto", None, or a factor or a list of them
        Counts determine only proportions: if one factor rises, all others fall. "auto" finds the factors that
        keep their proportions and tests relative to them; names or numbers of factors choose them; None
        compares loadings as they are, which is right where the size factors are known (spike-ins).
    covariates : array, data frame or mapping of name to values, optional
        Covariates to adjust for: numbers or labels, one for each sample.
    numeric : bool, optional
        Whether numbers have a slope (True) or are groups (False); by default it depends, see `groups`.
    loadings : array-like of shape (n_samples, n_components), optional
        Loadings of other samples for the factors of the fit, from ``model.transform(counts)``.

    See Also
    --------
    log1pnmf.pl.usage : Draw the result.
    log1pnmf.tl.usage : The same for AnnData.

    References
    ----------
    .. [1] G. K. Smyth (2004). Linear models and empirical Bayes methods for assessing differential expression
       in microarray experiments. Statistical Applications in Genetics and Molecular Biology 3(1).
    .. [2] H. Zhou, K. He, J. Chen, X. Zhang (2022). LinDA: linear models for differential abundance analysis
       of microbiome compositional data. Genome Biology 23, 95.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> rng = np.random.default_rng(0)
    >>> donors, treated = np.repeat(np.arange(8), 20), np.repeat([False, True], 80)
    >>> amounts = rng.gamma(1.0, size=(160, 4)) * np.where(np.outer(treated, [1, 0, 0, 0]), 4.0, 1.0)
    >>> model = Log1pNMF(4, c=np.inf).fit(rng.poisson(amounts @ np.kron(np.eye(4), np.ones(8))))
    >>> found = usage(model, np.where(treated, "treated", "control"), replicate=donors)
    >>> found.comparisons, found.reference, int(np.sum(found.adjusted_p < 0.05))
    (('treated',), 'control', 1)
    """
    fit = as_fit(fit, key=key)
    if loadings is not None:
        fit = replace(fit, loadings=as_loadings(fit, loadings), batches=None)
    fit = fit.normalized("max")
    n, which = len(fit.loadings), _groups_or_numbers(groups, numeric)
    extra = covariate_columns(covariates, n)
    check_one_each("groupby", which.codes if isinstance(which, Groups) else which, n)
    known = which.labels != MISSING if isinstance(which, Groups) else ~np.isnan(which)
    without = known & np.isnan(extra).any(axis=1)
    if replicate is not None and replicate is not True:
        check_one_each("replicate", replicate, n)
        without |= known & (Groups.of(replicate).labels == MISSING)
    if without.any():
        warn(f"left out without a replicate or covariate: {without.sum():,} of {n:,} samples", UserWarning)
    known &= ~without
    if replicate is None:
        warn(NOT_REPLICATES, UserWarning)
    _warn_confounded(fit, which)
    if isinstance(which, Groups) and reference is None and known.any():
        reference = which.names[which.codes[known].min()]
    parts = {"": known}
    if within is not None:
        labels = Groups.of(within)
        check_one_each("within", labels.codes, n)
        parts = {name: known & (labels.labels == name) for name in labels.names if name != MISSING}
    elif interaction:
        raise ValueError("interaction=True needs within=, the part (such as the cell type) of every sample")
    gathered = {
        name: gather(fit.loadings, which, replicate, extra, kept)
        for name, kept in parts.items()
        if kept.any() or not known.any()
    }
    models = _models(gathered, reference, interaction=interaction, replicated=replicate is not None)
    names = tuple(fit.factor_names)
    tests = [
        _relative(model, Sizes.of(fit, fit.loadings[parts[part]]), relative_to, names)
        for part, model in models.items()
    ]
    difference, error, freedom, lower, upper, p = np.concatenate([test[0] for test in tests], axis=1)
    apart = np.concatenate([test[3] for test in tests], axis=1)
    slope = str(getattr(groups, "name", None) or "slope")
    rows = [(part, name) for part, model in models.items() for name in model.others or (slope,)]
    return Usage(
        comparisons=tuple(name for _, name in rows),
        reference=reference,
        within=None if within is None else tuple(part for part, _ in rows),
        relative_to=tuple(stable for test in tests for stable in test[1]),
        rivals=tuple(others for test in tests for others in test[2]),
        rivals_change=apart[0] / np.log(2.0),
        rivals_p=apart[1],
        difference=difference,
        error=error,
        lower=lower,
        upper=upper,
        p=p,
        adjusted_p=scipy.stats.false_discovery_control(p.ravel()).reshape(p.shape),
        degrees_of_freedom=freedom,
        means=np.concatenate([model.units.means for model in models.values()]),
        unit_groups=np.concatenate([model.units.groups for model in models.values()]),
        unit_within=np.concatenate([np.full(len(m.matrix), part, object) for part, m in models.items()]),
        replicated=replicate is not None,
        factor_names=names,
    )


def _groups_or_numbers(groups: Any, numeric: bool | None) -> Groups | Array:
    """Return groups, or numbers whose slope is asked for."""
    numbers = None if numeric is False else numbers_of(groups)
    if numbers is None:
        if numeric:
            raise ValueError(
                "numeric=True needs numbers, got text, booleans or categories; convert them first"
            )
        return Groups.of(groups)
    return numbers if numeric or len(np.unique(numbers[~np.isnan(numbers)])) > 2 else Groups.of(groups)


def _warn_confounded(fit: Fit, which: Groups | Array) -> None:
    """Warn where groups, or a number, coincide with the batches of the fit."""
    if isinstance(which, Groups):
        found = "; ".join(confounded_groups(fit, which.labels))
        if found:
            warn(found, UserWarning)
    elif fit.batches is not None:
        pairs = np.unique(np.stack([fit.batches.labels, which])[:, ~np.isnan(which)], axis=1)
        if 1 < pairs.shape[1] == len(np.unique(pairs[0])):
            warn(
                "the number is the same in all samples of each batch: the model cannot separate the two, and "
                "an apparent batch effect may belong to the number",
                UserWarning,
            )


def _models(
    units: Mapping[str, Units], reference: str | None, *, interaction: bool, replicated: bool
) -> dict[str, LinearModel]:
    """Return the linear model of every part of the samples; of several parts, those that can be tested."""
    models, failed = {}, {}
    parts = list(units.values())
    for place, name in enumerate(units):
        try:
            own = contrast(parts, place) if interaction else parts[place]
            models[name] = LinearModel.of(own, reference, replicated=replicated)
        except ValueError as error:
            if len(parts) == 1:
                raise
            failed[name] = str(error)
    if failed:
        listed = "; ".join(f"{name!r} ({why})" for name, why in failed.items())
        if not models:
            raise ValueError(f"the groups cannot be compared within any part: {listed}")
        warn(f"these parts are left out: {listed}", UserWarning)
    return models


def _relative(
    model: LinearModel, sizes: Sizes, relative_to: Any, names: tuple[str, ...]
) -> tuple[Array, list[tuple[str, ...]], list[tuple[str, ...]], Array]:
    """Test relative to some factors, see `intervals`; their names, those of their rivals, and their test."""
    n = max(len(model.others), 1)
    groups: list[list[tuple[int, ...]]] = [[()]] * n
    if isinstance(relative_to, str) and relative_to == "auto" and "auto" not in names:
        if len(names) > 1:
            tests = model.tested(np.eye(len(names)), np.arange(n))
            groups = [sizes.references(*row) for row in zip(*tests[:2], strict=True)]
    elif relative_to is not None:
        given = [relative_to] if isinstance(relative_to, str | int) else list(relative_to)
        groups = [[tuple(sorted({factor_number(one, names) for one in given}))]] * n
        if not sizes.share[list(groups[0][0])].sum() > 0.0:
            raise ValueError("no sample uses the factors of relative_to; choose others")
    found = {
        one: intervals(*model.tested(sizes.relative(one), np.arange(n)))
        for one in dict.fromkeys(chain(*groups))
    }
    rows = [np.stack([found[one][:, place] for one in own]) for place, own in enumerate(groups)]
    rivals = [tuple(sorted(set(chain(*own)) - set(own[0]))) for own in groups]
    apart = np.full((2, n), np.nan)
    for place, (own, beside) in enumerate(zip(groups, rivals, strict=True)):
        if beside:
            combined = sizes.relative(own[0]) @ sizes.mean_change(beside)[:, None]
            change, error, freedom = np.ravel(model.tested(combined, np.array([place])))
            n_free = len(names) - 1  # Scheffe: the groups were found in the same loadings
            apart[:, place] = change, scipy.stats.f.sf((change / error) ** 2 / n_free, n_free, freedom)
    chosen = [own[0] for own in groups]
    stable, others = ([tuple(names[k] for k in one) for one in some] for some in (chosen, rivals))
    return np.stack([widest(row) for row in rows], axis=1), stable, others, apart


def intervals(difference: Array, error: Array, freedom: Array) -> Array:
    """Return difference, error, degrees of freedom, both ends of the interval and p, stacked."""
    half = error * scipy.stats.t.ppf(0.975, freedom)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2.0 * scipy.stats.t.sf(np.abs(difference / error), freedom)
    p = np.where(error > 0.0, p, 1.0)  # a factor that no unit has, or all alike; the reference itself
    return np.stack([difference, error, freedom, difference - half, difference + half, p])


def widest(tests: Array) -> Array:
    """Return the test relative to the first of several references that holds for each of them."""
    difference, p = tests[:, 0], tests[:, 5].max(axis=0)
    opposite = difference.min(axis=0) * difference.max(axis=0) < 0.0
    ends = tests[:, 3].min(axis=0), tests[:, 4].max(axis=0)
    return np.stack([*tests[0, :3], *ends, np.where(opposite, 1.0, p)])


def moderate(variances: Array, freedom: float) -> tuple[Array, float]:
    """Draw variances of several factors towards their common value; also the degrees of freedom that adds.

    They are at most as many as a variance has itself: with the few factors there are, what they have in
    common is not known well enough for more.
    """
    known = variances > 0.0
    if known.sum() < LEAST_FACTORS:
        return variances, 0.0
    logs = np.log(variances[known]) - scipy.special.digamma(freedom / 2.0) + np.log(freedom / 2.0)
    excess = float(logs.var(ddof=1) - scipy.special.polygamma(1, freedom / 2.0))
    prior = freedom
    if excess > scipy.special.polygamma(1, freedom / 2.0):  # trigamma falls, and is above 1 / x
        prior = 2.0 * scipy.optimize.brentq(
            lambda x: scipy.special.polygamma(1, x) - excess, 1.0 / excess, freedom / 2.0
        )
    common = np.exp(logs.mean() + scipy.special.digamma(prior / 2.0) - np.log(prior / 2.0))
    drawn = (prior * common + freedom * variances) / (prior + freedom)
    return np.where(known, drawn, 0.0), prior
