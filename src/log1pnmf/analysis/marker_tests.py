"""Effects of factors on features: regressions on loadings with errors, standard errors, tests, shrinkage.

**The effect.** Does a feature rise with a factor, beyond what the other factors do? Compared are a typical
sample with the factor and the same sample with more of its other factors instead
(`log1pnmf.fitting.ranking`). The effect is the difference of ``alpha_c log(1 + rate / c)`` between the two: a
contrast ``f_k - sum_l g_l f_l`` of the feature's coefficients, times the loading k of that sample, with ``g_l
>= 0``. It is zero for a feature that is the same in all samples, whose coefficients are not: where samples
with the factor have less of the baseline, such a feature needs a positive ``f_k`` to make up for it. A
feature that rises only because another factor comes along has ``f_k = 0``, and so no positive effect.

**The estimate** solves ``sum_i a_i (mean_i - y_i) L_i = 0``, where ``mean_i`` depends on ``L_i' f``. The
weights ``a_i`` are those of the likelihood, at a mean halfway between the sample's and that of all samples,
so that no sample without counts decides alone. The solution has the right mean whatever the weights are.

- *Without bounds.* A coefficient may be negative here. With bounds on the coefficients of the other factors,
  tests of features at these bounds would be too cautious if loadings correlate; the only test whose
  type I error rate does not depend on the other coefficients is the one without bounds.
- *Loadings with errors.* ``L_i`` is an estimate with covariance ``V_i``, from which the feature's own counts
  are removed. Errors in ``L_i`` make estimates too small, and part of the effect of one factor goes to
  another. So the equation is corrected to have the expectation that it has with the true loadings: ``L_i
  L_i'`` becomes ``L_i L_i' - V_i`` with the identity link; with the others ``exp(L_i' f)`` becomes ``x =
  exp(L_i' f - f' V_i f / 2)`` and ``x L_i`` becomes ``x (L_i - V_i f)`` (known as corrected scores).

**The error.** ``A^-1 J A^-1`` with A the derivative of the equation and J the sum over the samples of the
variances of their terms, in which the errors of the loadings count. With ``errors="model"`` the variance of a
count is that of the noise. With ``errors="sandwich"`` the terms themselves are squared, each divided by one
minus its leverage (HC3); that is right for any variance.

**The test.** The statistic is the effect over an error. With ``errors="model"`` this error is taken a third
of the way from "no effect" to the estimate: then the statistic is about the signed root of the likelihood
ratio, which is closer to normal than Wald's or the score. Where few samples are without the factor and none
of them has a count by chance, errors at the estimate are tiny, but this one is not. So the part of the
sandwich that the noise explains grows as the variance of the noise does. The rest does not grow: it comes
from samples whose counts vary more than under the noise.

Fitted factors contain a little of each other: where loadings and factors are not negative, more than one
pair may fit. A feature that another factor surely raises therefore has to rise by more than a tenth of that.

p-values are from Student's distribution with as many degrees of freedom as there are samples beyond factors,
or fewer for the sandwich, where few samples decide (of a rare factor).

**Loadings** are estimates with errors, to which the tested feature has contributed.

- *Without bounds.* Loadings are bounded, so those at zero are too large on average. One Newton step from the
  bounded estimate gives the estimate without bounds. Its mean is the truth, and its covariance is the inverse
  of the sample's information.
- *Without the tested feature.* A sample with many counts of a feature by chance gets more of the factors that
  have the feature. That is not evidence, so every feature is tested on loadings without its own contribution.
  With the gradient ``g_ij F_j`` of one entry and the sample's information ``H_i``, the step is
  ``H_i^-1 F_j g_ij / (1 - h_ij)``, where ``h_ij`` is the leverage of the entry.

**Regressions.** With the loadings held fixed, the counts of feature j are a regression on them with
non-negative coefficients, with Poisson or negative binomial noise. It has nothing to do with any other
feature. Here it is fitted again, without penalty and with zero counts taken exactly: a penalised or
approximate fit has other estimates, around which no standard error would be valid. Dispersions are taken as
known.

**Shrinkage.** Within a factor, effects are taken as drawn from a mixture that is fitted to all of them: some
are zero, the others positive or negative halves of normals with one of several widths (unimodal at zero). An
estimate ``x`` with standard error ``s`` then has a posterior in closed form (the idea is Stephens' adaptive
shrinkage, 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

from log1pnmf._common.checks import OnStep, unseen
from log1pnmf.counts.compress import dense_blocks
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.fit import Fit, or_one
from log1pnmf.fitting.ranking import StandIns, stand_ins
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.objective import BLOCK_BYTES, exposure_of
from log1pnmf.model.problem import Array, Problem

ErrorKind: TypeAlias = Literal["sandwich", "model"]
ERRORS: tuple[str, ...] = get_args(ErrorKind)
Z95 = NormalDist().inv_cdf(0.975)
TINY, LARGEST_ETA = 1e-300, 300.0

# ---------- loadings with errors

RIDGE = 1e-10  # added to the information of unit diagonal: what is not identified has a huge error, not none
LEAST_ETA = 1e-12  # where a mean is zero, so is its count, and nothing depends on it
LEAST_SPARE = 0.05  # one minus a leverage is taken as at least this
MOST_ERRORS = 3.0  # standard errors by which a loading goes below its bound: more is misfit, not chance


@dataclass(frozen=True, eq=False)
class EstimatedLoadings:
    """Loadings of samples, with errors."""

    bounded: Array  # (n, K): loadings of the fit
    shift: Array  # (n, K): what leads from there to the estimates without bounds
    covariance: Array  # (n, K, K): of the errors of the estimates
    inverse: Array | None  # (n, K, K): inverse information; None if the tested counts are others
    factors: Array  # (m, K): with which they were estimated, on the eta scale

    @classmethod
    def known(cls, loadings: Array, n_features: int) -> EstimatedLoadings:
        """Take loadings as known: without errors."""
        n, k = loadings.shape
        return cls(loadings, np.zeros((n, k)), np.zeros((n, k, k)), None, np.zeros((n_features, k)))

    @cached_property
    def values(self) -> Array:
        """Estimates without bounds."""
        return self.bounded + self.shift

    @cached_property
    def packed_products(self) -> Array:
        """Products of every two loadings of a sample, as `forms` takes them."""
        return packed(self.values[:, :, None] * self.values[:, None, :])

    @cached_property
    def packed_inverse(self) -> Array:
        """Inverse information, as `forms` takes it."""
        return packed(np.zeros_like(self.covariance) if self.inverse is None else self.inverse)

    @cached_property
    def packed_covariance(self) -> Array:
        """Covariances, as `forms` takes them."""
        return packed(self.covariance)

    def reliability(self, size_factors: Array) -> Array:
        """Share of a loading's variance beyond the other loadings that is not error: K numbers up to 1."""
        error = np.einsum("i,ikl->kl", size_factors, self.covariance)
        inverse = _inverse(self.values.T @ (size_factors[:, None] * self.values))
        share = np.einsum("kl,lm,mk->k", inverse, error, inverse) / inverse.diagonal()
        return np.clip(1.0 - share, 0.0, 1.0)

    def excess(self, size_factors: Array) -> Array:
        """Sum up what errors add to products of loadings: K x K; 0 for factors of which nothing is known."""
        known = self.reliability(size_factors) > 0.0
        error = np.einsum("i,ikl->kl", size_factors, self.covariance)
        return np.where(known[:, None] & known, error, 0.0)

    def weights(self, size_factors: Array) -> Array:
        """Return samples whose loadings are badly known a small weight in the tests: n numbers up to 1."""
        seen = self.bounded.T @ (size_factors[:, None] * self.bounded) / size_factors.sum()
        weights: Array = 1.0 / (1.0 + np.einsum("ikl,kl->i", self.covariance, _inverse(seen)))
        return weights

    def own_part(
        self, y: Array, t: Array, link: ShiftedLog, dispersion: Array | None, factors: Array
    ) -> Array | None:
        """Describe by how many ``H_i^-1 F_j`` the loadings change without the feature: features x samples."""
        if self.inverse is None:
            return None
        mean, slope, variance = moments(factors @ self.bounded.T, t, link, dispersion)
        weight = slope / variance
        gradient = weight * (mean - y + slope * (factors @ self.shift.T))
        leverage = weight * slope * forms(factors, factors, self.packed_inverse)
        return np.asarray(gradient / np.maximum(1.0 - leverage, LEAST_SPARE))


def estimate_loadings(
    fit: Fit, problem: Problem, loadings: Array, *, errors: str, own: bool
) -> EstimatedLoadings:
    """Find estimates without bounds and their errors, from the counts of each sample."""
    factors, rows = np.ascontiguousarray(fit.factors / fit.link.alpha), problem.counts.by_row
    (n, k), kinds = loadings.shape, np.array(fit.kinds)
    counted = np.broadcast_to(kinds != "loadings", (n, k)) & ((loadings > 0.0) | (kinds != "pattern"))
    shift, inverse = np.empty((n, k)), np.empty((n, k, k))
    covariance = np.empty((n, k, k)) if errors == "sandwich" else inverse
    for block in dense_blocks(rows.shape, BLOCK_BYTES / (8 * 8)):
        y, t, eta = rows.to_dense(block), exposure_of(problem, block), loadings[block] @ factors.T
        mean, slope, variance = moments(eta, t, fit.link, getattr(problem.noise, "dispersion", None))
        curvature, gradient = slope / variance * slope, slope / variance * (mean - y)
        information = weighted_products(curvature, factors)
        inverse[block] = inverse_information(information, counted[block])
        error = np.sqrt(np.einsum("ikk->ik", inverse[block]))
        step = -np.einsum("ikl,il->ik", inverse[block], gradient @ factors)
        shift[block] = np.clip(step, -MOST_ERRORS * error, MOST_ERRORS * error)
        if errors == "sandwich":
            leverage = curvature * forms(factors, factors, packed(inverse[block])).T
            gradient += curvature * (shift[block] @ factors.T)
            scores = weighted_products(gradient**2 / np.maximum(1.0 - leverage, LEAST_SPARE), factors)
            scores += RIDGE * information * np.eye(k)  # without it what is not identified has no variance
            covariance[block] = inverse[block] @ scores @ inverse[block]
    return EstimatedLoadings(loadings, shift, covariance, inverse if own else None, factors)


def moments(eta: Array, t: Array, link: ShiftedLog, dispersion: Array | None) -> tuple[Array, Array, Array]:
    """Mean of a count, its derivative in eta, and the variance of the count.

    The gradient of the loss is ``slope (mean - y) / variance``, its mean curvature ``slope**2 / variance``;
    the observed curvature would give large counts a high leverage.
    """
    at = np.maximum(eta, LEAST_ETA)
    mean = t * (at if link.is_identity else np.expm1(np.minimum(at, LARGEST_ETA)))
    slope = np.broadcast_to(t, mean.shape) if link.is_identity else mean + t
    return mean, slope, mean if dispersion is None else mean * (1.0 + dispersion * mean)


@cache
def _triangle(k: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(k)


def weighted_products(weights: Array, factors: Array) -> Array:
    """``sum_j w_ij F_j F_j'`` for all i: n x K x K."""
    first, second = _triangle(factors.shape[1])
    return unpacked(weights @ (factors[:, first] * factors[:, second]), factors.shape[1])


def packed(matrices: Array) -> Array:
    """Return the upper triangles of symmetric matrices, n x K (K + 1) / 2."""
    first, second = _triangle(matrices.shape[1])
    return np.ascontiguousarray(matrices[:, first, second])


def unpacked(triangles: Array, k: int) -> Array:
    """Return the symmetric matrices of which `packed` gives the triangles."""
    first, second = _triangle(k)
    matrices = np.empty((len(triangles), k, k))
    matrices[:, first, second] = matrices[:, second, first] = triangles
    return matrices


def forms(left: Array, right: Array, triangles: Array) -> Array:
    """``left_j' M_i right_j`` for all j and i, with symmetric matrices from `packed`."""
    first, second = _triangle(left.shape[1])
    mirrored = np.where(first == second, 0.0, left[:, second] * right[:, first])
    return np.asarray((left[:, first] * right[:, second] + mirrored) @ triangles.T)


def inverse_information(information: Array, counted: NDArray[np.bool_]) -> Array:
    """Invert the information of the coordinates that count; zeros elsewhere."""
    scale = or_one(np.sqrt(np.maximum(np.einsum("jkk->jk", information), 0.0)))
    both = counted[:, :, None] & counted[:, None, :]
    unit = np.where(both, information / (scale[:, :, None] * scale[:, None, :]), 0.0)
    diagonal = np.einsum("jkk->jk", unit)
    diagonal += np.where(counted, RIDGE, 1.0)
    inverse = np.where(both, np.linalg.inv(unit), 0.0)
    return inverse / (scale[:, :, None] * scale[:, None, :])


def _inverse(products: Array) -> Array:
    return inverse_information(products[None], np.ones((1, len(products)), dtype=bool))[0]


# ---------- every feature's own regression

LEAST_REGRESSION_MOVE = 1e-5  # of a feature's largest coefficient: a step that moves none by more is its last
MOST_REGRESSION_STEPS = 200
LEAST_START = 1e-2  # of a feature's mean level: the least start, so that no count has mean zero


def regress(problem: Problem, loadings: Array, start: Array, n_jobs: int | None = None) -> Array:
    """Return the coefficients of maximum likelihood, features x K, on the eta scale, by Newton steps."""
    link, side, engine = problem.link, problem.factors_side, NativeEngine(problem, n_jobs)
    rates = side.rows.row_sums() / (side.column_exposure.sum() / link.exposure_scale)
    level, largest = link.link(rates) / link.alpha, max(float(loadings.max(initial=0.0)), TINY)
    factors = np.maximum(start, LEAST_START * level[:, None] / largest)
    moving = np.arange(len(factors))
    for _ in range(MOST_REGRESSION_STEPS):
        before = factors[moving]
        after = engine.half_step(side, before, loadings).values
        factors[moving] = after
        still = np.abs(after - before).max(axis=1) > LEAST_REGRESSION_MOVE * after.max(axis=1)
        if not still.any():
            break
        if not still.all():  # features that have arrived are left behind
            moving, side = moving[still], side.at(np.flatnonzero(still))
    return factors


# ---------- from regressions to one effect per factor and feature, its standard error and its test

ALL = slice(None)  # features of a block
LEAST_WEIGHED, LEAST_VARIANCE = 0.1, 1e-6  # of a feature's mean eta: the least for weights and variances
NORMAL_FOURTH = 3.0  # fourth moment of the standard normal distribution
TO_ESTIMATE = 1.0 / 3.0  # how far from "no effect" to the estimate variances of the model are taken
MOST_STEPS, LEAST_MOVE = 12, 1e-5  # Newton steps at most, and the relative move that ends them
LONGEST_STEP = 1.0  # in eta, for all links but the identity
ARRAYS_PER_BLOCK = 60  # so that those in use stay in the cache
ENOUGH_FEATURES = 2000  # to find the change of features that do not move
WITHIN = 2.0  # standard errors, half of the intervals that are to agree on it
MIXED = 0.1  # of the effect of another factor, that is no evidence: fitted factors contain a little of others
MOST_UNMOVED, LEAST_UNMOVED = float(np.log(10.0)), 0.67  # its largest logarithm; least part that agrees
LEAST_WITH_ALL = 0.6  # part of the features that agree for a factor that must agree for all


@dataclass(frozen=True, eq=False)
class Inference:
    """Effects with errors and tests, on the eta scale, (m, K); NaN for factors that are not comparable."""

    effect: Array
    error: Array
    z: Array  # Student's t without an effect
    freedom: Array  # degrees of freedom of z
    comparable: NDArray[np.bool_]  # (K,): which factors are tested
    coefficients: Array  # without bounds
    unmoved: Array  # (K,): change of the rate of features that do not move; 1 with the right size factors


def infer_from_fit(
    fit: Fit,
    problem: Problem,
    loadings: Array,
    *,
    errors: str,
    source: Problem | None = None,
    centred: bool = False,
    n_jobs: int | None = None,
    shown: OnStep = unseen,
) -> tuple[Inference, Array]:
    """Test all features on loadings that were estimated with the factors of a fit; also their reliability.

    `centred`: relative to features that do not move, because size factors are estimates.
    """
    regressed = _regressed(fit, problem, loadings, errors=errors, source=source, n_jobs=n_jobs)
    still = unmoved(problem, *regressed, errors=errors)[0] if centred else None
    found = infer(problem, *regressed, errors=errors, still=still, mixed=MIXED, shown=shown)
    reliability = regressed[0].reliability(problem.size_factors)
    nothing = reliability == 0.0  # is known of such a factor
    found.error[:, nothing], found.z[:, nothing & found.comparable] = np.inf, 0.0
    return found, reliability


def _regressed(
    fit: Fit, problem: Problem, loadings: Array, *, errors: str, source: Problem | None, n_jobs: int | None
) -> tuple[EstimatedLoadings, Array, StandIns]:
    """Return loadings with errors, the coefficients of all features on them, and what replaces factors."""
    sizes = problem.size_factors
    estimated = estimate_loadings(fit, source or problem, loadings, errors=errors, own=source is None)
    coefficients = regress(problem, loadings, fit.factors / fit.link.alpha, n_jobs)
    return estimated, coefficients, stand_ins(estimated.values, sizes, estimated.excess(sizes))


def infer(
    problem: Problem,
    loadings: EstimatedLoadings,
    coefficients: Array,
    around: StandIns,
    *,
    errors: str,
    still: Array | None = None,
    mixed: float = 0.0,
    every: int = 0,
    shown: OnStep = unseen,
) -> Inference:
    """Find effects, standard errors and tests, beginning at coefficients that maximise the likelihood.

    `still`: see `unmoved`; `mixed`: see `MIXED`. `every`: only every so many blocks, without tests.
    """
    rows, batches, link = problem.counts.by_column, problem.batches, problem.link
    weights = loadings.weights(problem.size_factors)
    still = np.ones(coefficients.shape[1]) if still is None else still
    effect, error, divisor, freedom, free = np.full((5, *coefficients.shape), np.nan)
    for block in list(dense_blocks(rows.shape, BLOCK_BYTES / (8 * ARRAYS_PER_BLOCK)))[:: every or 1]:
        t = problem.factors_side.column_exposure[None]
        if batches is not None:
            t = t * batches.effects[:, block].T[:, batches.labels]
        phi = getattr(problem.noise.of_features(block), "dispersion", None)
        given = rows.to_dense(block), t, link, None if phi is None else np.reshape(phi, (-1, 1))
        own = loadings.own_part(*given, loadings.factors[block])
        some = _Equations(*given, loadings, weights, coefficients[block], loadings.factors[block], own)
        solution = some.solve()
        free[block] = solution.coefficients
        for k in np.flatnonzero(around.comparable).tolist():
            ends = around.own[k], around.rest[k], still[k]
            found = some.test(solution, *ends, errors=errors, whole=not every)
            effect[block, k], error[block, k], divisor[block, k], freedom[block, k] = found
        shown(block.stop, len(coefficients))
    sure, beyond = np.nan_to_num(np.maximum(effect - WITHIN * error, 0.0)), effect.copy()
    for k in range(effect.shape[1]):
        beyond[:, k] -= mixed * np.delete(sure, k, axis=1).max(axis=1, initial=0.0)
    z = np.divide(beyond, divisor, out=np.zeros_like(effect), where=divisor > 0.0)
    z[:, ~around.comparable] = np.nan
    return Inference(effect, error, z, freedom, around.comparable, free, still)


def resizing(fit: Fit, problem: Problem, *, errors: str, n_jobs: int | None = None) -> tuple[Array, Array]:
    """Return `unmoved` of a fit, and size factors (n,) at which features that do not move are constant."""
    regressed = _regressed(fit, problem, fit.loadings, errors=errors, source=None, n_jobs=n_jobs)
    still, features = unmoved(problem, *regressed, errors=errors)
    rates = fit.link.inverse(fit.loadings @ fit.factors[features].T).sum(axis=1)
    sizes = problem.size_factors * rates
    return still, sizes * (problem.size_factors.sum() / sizes.sum()) if rates.all() else problem.size_factors


def unmoved(
    problem: Problem, estimated: EstimatedLoadings, coefficients: Array, around: StandIns, *, errors: str
) -> tuple[Array, NDArray[np.bool_]]:
    """Return the rate with each factor over that with what replaces it, of features that do not change.

    Also these features. Most features have intervals that contain the ratio. Its estimate is the median over
    the features that agree for all factors. 1 where few features agree.
    """
    every, tested = max(len(coefficients) // ENOUGH_FEATURES, 1), np.flatnonzero(around.comparable)
    found = infer(problem, estimated, coefficients, around, errors=errors, every=every)
    with_it, without = (found.coefficients @ side[tested].T for side in (around.own, around.rest))
    error = np.where(np.isfinite(found.error[:, tested]), found.error[:, tested], np.nan)
    steps = WITHIN * np.array([-1.0, 0.0, 1.0])[:, None, None]
    ends = with_it + steps * error
    if not problem.link.is_identity:
        ends, without = (np.expm1(np.minimum(values, LARGEST_ETA)) for values in (ends, without))
    known = np.isfinite(error) & np.isfinite(with_it) & (error > 0.0) & (without > 0.0)
    ratios = np.where(known, ends / np.where(known, without, 1.0), np.nan)
    low, middle, high = np.log(np.maximum(ratios, TINY))
    precision = np.divide(1.0, high - low, out=np.zeros_like(low), where=known & (high > low))
    centre = np.array([_most_agree(low[:, k], high[:, k]) for k in range(len(tested))])
    moved = centre != 0.0
    for _ in range(3):
        agree = (low <= centre) & (centre <= high)
        with_all = (
            agree[:, moved].all(axis=1)[:, None] & agree
        )  # features of other factors are not quite still
        agree = np.where(with_all.sum(axis=0) >= LEAST_WITH_ALL * agree.sum(axis=0), with_all, agree)
        for k in np.flatnonzero(moved & agree.any(axis=0)):
            centre[k] = _weighted_median(middle[agree[:, k], k], precision[agree[:, k], k])
    still = np.ones(len(around.own))
    still[tested] = np.exp(np.where(np.abs(centre) <= MOST_UNMOVED, centre, 0.0))
    return still, agree[:, moved].all(axis=1) & moved.any()


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(below, 0.5 * below[-1])]])


def _most_agree(low: Array, high: Array) -> float:
    """Return a number that lies in most of the intervals; 0 where few agree."""
    seen = (low > -MOST_UNMOVED) | (high < MOST_UNMOVED)  # others contain every number that may be
    low, high = low[seen], high[seen]
    places = np.concatenate((low, high))
    order = np.argsort(places, kind="stable")
    inside = np.cumsum(np.where(order < len(low), 1, -1))
    inside[np.abs(places[order]) > MOST_UNMOVED] = 0
    if inside.max(initial=0) < max(LEAST_UNMOVED * len(low), 2.0):
        return 0.0
    first = int(np.argmax(inside))
    return float(places[order[first : first + 2]].mean())


@dataclass(frozen=True, eq=False)
class _Solution:
    """The solution of the equations, and their terms, features x samples, before the last step."""

    coefficients: Array
    inverse: Array  # of the derivative of the equations, features x K x K
    eta: Array
    spread: Array  # ``f' V_i f``, the variance of eta
    scatter: tuple[Array, Array]  # see `_Equations.scatter`
    residual: Array  # this and the next over one minus the leverage of every sample
    information: Array


@dataclass(frozen=True, eq=False)
class _Equations:
    """The equations of some features; arrays are features x samples, some with one row for all features."""

    y: Array
    t: Array
    link: ShiftedLog
    dispersion: Array | None  # one column
    loadings: EstimatedLoadings
    weights: Array  # of the samples
    start: Array  # (features, K): coefficients that maximise the likelihood
    # what the features contributed to the loadings, see `EstimatedLoadings.own_part`
    factors: Array
    own: Array | None

    @cached_property
    def level(self) -> Array:
        """Mean eta of every feature, one column."""
        return np.maximum(self.start @ self.loadings.values.mean(axis=0), LEAST_ETA)[:, None]

    @cached_property
    def a(self) -> Array:
        """Weights of the samples in the equations."""
        at = np.maximum(0.5 * (self.eta(self.start) + self.level), LEAST_WEIGHED * self.level)
        _, slope, variance = moments(at, self.t, self.link, self.dispersion)
        return np.asarray(self.weights * slope / variance)

    def eta(self, f: Array, which: Any = ALL) -> Array:
        """``L_i' f`` with loadings without the feature's own part."""
        eta: Array = f @ self.loadings.values.T
        if self.own is not None:
            eta += self.own[which] * forms(self.factors[which], f, self.loadings.packed_inverse)
        return eta

    def spread(self, f: Array, g: Array) -> Array:
        """``f' V_i g``."""
        return forms(f, g, self.loadings.packed_covariance)

    def mean(self, eta: Array, spread: Array, t: Array) -> tuple[Array, Array]:
        """Mean of a count and its derivative in eta, corrected for the variance of eta."""
        if self.link.is_identity:
            return t * eta, np.broadcast_to(t, eta.shape)
        slope = t * np.exp(np.minimum(eta - 0.5 * spread, LARGEST_ETA))
        return slope - t, slope

    def step(self, f: Array, which: Any) -> tuple[Array, tuple[Array, ...]]:
        """Return the Newton step of some features, and the terms of a `_Solution`."""
        loadings, k, a = self.loadings, f.shape[1], self.a[which]
        eta, spread = self.eta(f, which), self.spread(f, f)
        mean, slope = self.mean(eta, spread, _rows(self.t, which))
        residual, information = a * (mean - self.y[which]), a * slope
        total = residual @ loadings.values
        if self.own is not None:
            sums = unpacked((residual * self.own[which]) @ loadings.packed_inverse, k)
            total += np.einsum("jkl,jl->jk", sums, self.factors[which])
        errors = unpacked(information @ loadings.packed_covariance, k)
        total -= np.einsum("jkl,jl->jk", errors, f)
        products = unpacked(information @ loadings.packed_products, k)
        # without what errors add
        inverse = inverse_information(products - errors, np.ones(f.shape, dtype=bool))
        step = -np.einsum("jkl,jl->jk", inverse, total)
        if not self.link.is_identity:
            longest = np.abs(step @ loadings.values.T).max(axis=1, initial=LONGEST_STEP)
            step *= (LONGEST_STEP / longest)[:, None]
        return step, (inverse, eta, spread, residual, information)

    def solve(self) -> _Solution:
        """Take Newton steps from the start, each feature as many as it needs."""
        f, moving = self.start.copy(), np.arange(len(self.start))
        step, terms = self.step(f, ALL)
        for _ in range(MOST_STEPS - 1):
            f[moving] += step
            moving = moving[np.abs(step).max(axis=1) > LEAST_MOVE * np.abs(f[moving]).max(axis=1)]
            if not len(moving):
                break
            step, own = self.step(f[moving], moving)
            for whole, part in zip(terms, own, strict=True):
                whole[moving] = part
        else:
            f[moving] += step
        inverse, eta, spread, residual, information = terms
        twice = 2.0 - np.eye(f.shape[1])
        reach = packed(inverse * twice) @ self.loadings.packed_products.T  # ``L_i' A_j^-1 L_i``
        spare = np.maximum(1.0 - information * reach, LEAST_SPARE)
        scatter = self.scatter(eta, spread)
        return _Solution(f, inverse, eta, spread, scatter, residual / spare, information / spare)

    def test(
        self, found: _Solution, own: Array, rest: Array, still: float, *, errors: str, whole: bool
    ) -> tuple[Array, Array, Array, Array]:
        """Return effects, errors (inf: nothing is known), those of the tests if `whole`, their freedom."""
        with_it, without = found.coefficients @ own, np.minimum(found.coefficients @ rest, LARGEST_ETA)
        if self.link.is_identity:
            effect, share = with_it - still * without, np.array([still])
        else:
            moved = np.maximum(1.0 + still * np.expm1(without), LEAST_ETA)
            effect, share = with_it - np.log(moved), still * np.exp(without) / moved
        contrast = own - share[:, None] * rest  # derivative of the effect
        u = np.einsum("jkl,jl->jk", found.inverse, contrast)
        length = (u * contrast).sum(axis=1)
        unknown = length <= 0.0
        way = (1.0 - TO_ESTIMATE) * effect / np.where(unknown, np.inf, length)  # back, in units of u
        along, cross = self.eta(u), self.spread(found.coefficients, u)
        freedom = np.full(len(way), max(along.shape[1] - len(own), 1.0))
        if errors == "model":
            error, tested = _noise_error(found.scatter, along, cross), np.arange(len(way))
        else:
            squares = (found.residual * along - found.information * cross) ** 2
            error = np.sqrt(squares.sum(axis=1))
            # few samples decide: after Satterthwaite, with the fourth moment of normal terms
            fourth = np.maximum(np.einsum("ji,ji->j", squares, squares), TINY)
            freedom = np.clip(NORMAL_FOURTH * error**4 / fourth, 1.0, freedom)
            tested = np.flatnonzero((effect > error) & whole)
        u, along, cross, back = u[tested], along[tested], cross[tested], way[tested, None]
        if not self.link.is_identity:  # far from the estimate its direction leads to means that are too large
            room = np.maximum(self.level[tested] - found.eta[tested], 0.0) + LONGEST_STEP
            most = np.divide(room, -along, out=np.full(along.shape, np.inf), where=along < 0.0)
            back = np.minimum(back, most.min(axis=1, keepdims=True, initial=np.inf))
        here = _noise_error([part[tested] for part in found.scatter], along, cross)
        square = self.spread(u, u)
        spread = np.maximum(found.spread[tested] - 2.0 * back * cross + back**2 * square, 0.0)
        scatter = self.scatter(found.eta[tested] - back * along, spread, tested)
        there = _noise_error(scatter, along, cross - back * square)
        divisor = error.copy()
        if errors == "model":
            divisor[tested] = there
        else:  # the part of the sandwich that the noise explains is larger in the test
            explained = np.minimum(error[tested] / np.maximum(here, TINY), 1.0) ** 2
            divisor[tested] = np.sqrt(error[tested] ** 2 + explained * np.maximum(there**2 - here**2, 0.0))
        return effect, *np.where(unknown, np.inf, (error, divisor)), freedom

    def scatter(self, eta: Array, spread: Array, which: Any = ALL) -> tuple[Array, Array]:
        """Return the noise's part in the variance of ``u' f``, per ``(L_i' u)**2`` and ``(f' V_i u)**2``."""
        at, a = np.maximum(eta, LEAST_VARIANCE * self.level[which]), self.a[which]
        phi = None if self.dispersion is None else _rows(self.dispersion, which)
        _, slope, variance = moments(at, _rows(self.t, which), self.link, phi)
        of_errors = (a * slope) ** 2
        return a**2 * variance + of_errors * spread, of_errors


def _noise_error(scatter: Sequence[Array], along: Array, cross: Array) -> Array:
    """Return errors with the variance of the noise; u is in ``L_i' u`` and ``f' V_i u``."""
    return np.asarray(np.sqrt((scatter[0] * along**2 + scatter[1] * cross**2).sum(axis=1)))


def _rows(values: Array, which: Any) -> Array:
    """Return some rows of an array, of which one may stand for all."""
    return values if len(values) == 1 else values[which]


# ---------- adaptive shrinkage of effects: how large they are, and whether they are there at all

MOST_WIDTHS = 24
FAR_BELOW = -1e4  # standard deviations: there both forms of the mean are right to eight digits
NULL_WEIGHT = 10.0  # added observations of "no effect": the share of zeros is rather too high than too low
LEAST_CHANGE, MOST_ROUNDS = 1e-5, 1000  # of expectation-maximisation


@dataclass(frozen=True, eq=False)
class Shrunken:
    """What is left of effects after shrinkage."""

    effect: Array  # (m,): posterior mean
    false_sign_rate: Array  # (m,): local: the probability that the effect is not positive
    null_share: float  # of the features, estimated not to have an effect


def shrink(estimates: Array, errors: Array) -> Shrunken:
    """Shrink estimates of effects of either sign; errors are inf where nothing is known."""
    known = np.isfinite(errors) & np.isfinite(estimates) & (errors > 0.0)
    if not known.any():
        return Shrunken(np.zeros(len(estimates)), np.ones(len(estimates)), 1.0)
    x, s = estimates[known], errors[known]
    # of the half-normal parts: from a tenth of a standard error to beyond the largest effect, doubling
    low = float(s.min()) / 10.0
    high = max(2.0 * float(np.sqrt(np.maximum(x**2 - s**2, 0.0).max())), 8.0 * low)
    widths = np.geomspace(low, high, min(MOST_WIDTHS, int(np.log2(high / low)) + 2))
    up, down = _log_marginals(x, s, widths), _log_marginals(-x, s, widths)
    logs = np.concatenate((up, down[:, 1:]), axis=1)
    shares = _fit_shares(logs[:: max(len(logs) // ENOUGH_FEATURES, 1)])
    with np.errstate(divide="ignore"):
        joint = logs + np.log(shares)
    posterior = np.exp(joint - scipy.special.logsumexp(joint, axis=1, keepdims=True))
    means = np.concatenate((_means(x, s, widths), -_means(-x, s, widths)), axis=1)
    rises = slice(1, 1 + len(widths))
    effect, rate = np.zeros(len(estimates)), np.full(len(estimates), 1.0 - shares[rises].sum())
    effect[known] = (posterior[:, 1:] * means).sum(axis=1)
    rate[known] = 1.0 - posterior[:, rises].sum(axis=1)
    return Shrunken(effect, np.clip(rate, 0.0, 1.0), float(shares[0]))


def _log_marginals(x: Array, s: Array, widths: Array) -> Array:
    """Log density of every estimate under no effect (first column) and under every width."""
    x, s = x[:, None], s[:, None]
    total = np.hypot(s, np.concatenate(([0.0], widths)))
    normal = -0.5 * (x / total) ** 2 - np.log(total) - 0.5 * np.log(2.0 * np.pi)
    normal[:, 1:] += np.log(2.0) + scipy.special.log_ndtr(x * widths / (s * total[:, 1:]))
    return normal


def _means(x: Array, s: Array, widths: Array) -> Array:
    """Posterior mean under every width: of a normal that ends at zero."""
    x, s = x[:, None], s[:, None]
    total = np.hypot(s, widths)
    centre, spread = x * (widths / total) ** 2, s * widths / total
    a = centre / spread
    # Far below zero density and distribution function both vanish, and what is left is about -1 / a.
    with np.errstate(over="ignore"):
        hazard = np.sqrt(2.0 / np.pi) / scipy.special.erfcx(-a / np.sqrt(2.0))
    far = a < FAR_BELOW
    above = np.where(far, -1.0 / np.where(far, a, -1.0), a + hazard)
    return np.maximum(spread * above, 0.0)


def _fit_shares(logs: Array) -> Array:
    """Shares of the parts by expectation-maximisation."""
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    m, parts = weights.shape
    shares = np.full(parts, 0.5 / max(parts - 1, 1))
    shares[0] = 0.5
    for _ in range(MOST_ROUNDS):
        updated = shares * ((1.0 / (weights @ shares)) @ weights)
        updated[0] += NULL_WEIGHT
        updated /= m + NULL_WEIGHT
        change = float(np.abs(updated - shares).max())
        shares = updated
        if change < LEAST_CHANGE:
            break
    return shares
