"""From regressions to one effect per factor and feature, its standard error and its test.

**The effect.** Does a feature rise with a factor, beyond what the other factors do? Compared are a typical
sample with the factor and the same sample in which the rest of its own mixture stands in for it
(`log1pnmf.fitting.ranking`). The effect is the difference of ``alpha_c log(1 + rate / c)`` between the two: a
contrast ``f_k - sum_l g_l f_l`` of the feature's coefficients, times the loading k of that sample, with ``g_l
>= 0``. It is zero for a feature that is the same in all samples, whose coefficients are not: where samples
with the factor have less of the baseline, such a feature needs a positive ``f_k`` to make up for it. A
feature that rises only because another factor comes along has ``f_k = 0``, and so no positive effect.

**The estimate** solves ``sum_i a_i (mean_i - y_i) L_i = 0``, where ``mean_i`` depends on ``L_i' f``. The
weights ``a_i`` are those of the likelihood, at a mean halfway between the sample's and that of all samples,
so that no sample without counts decides alone. The solution has the right mean whatever the weights are.

- *Without bounds.* A coefficient may be negative here. With bounds on the coefficients of the other factors,
  tests of features at these bounds would be too cautious if loadings correlate; the only test whose level
  does not depend on the other coefficients is the one without bounds.
- *Loadings with errors.* ``L_i`` is an estimate with covariance ``V_i``, from which the feature's own counts
  are removed (`log1pnmf.analysis.marker_tests`). Errors in ``L_i`` make estimates too small, and part of
  the effect of one factor goes to another. So the equation is corrected to have the expectation that it has
  with the true loadings: ``L_i L_i'`` becomes ``L_i L_i' - V_i`` with the identity link; with the others
  ``exp(L_i' f)`` becomes ``x = exp(L_i' f - f' V_i f / 2)`` and ``x L_i`` becomes ``x (L_i - V_i f)``
  (known as corrected scores).

**The error.** ``A^-1 J A^-1`` with A the derivative of the equation and J the sum over the samples of the
variances of their terms, in which the errors of the loadings count. With ``errors="model"`` the variance of a
count is that of the noise. With ``errors="sandwich"`` the terms themselves are squared, each divided by one
minus its leverage (HC3); that is right for any variance.

**The test.** The statistic is the effect over an error. With ``errors="model"`` this error is taken a third
of the way from "no effect" to the estimate: then the statistic is about the signed root of the likelihood
ratio, which is closer to normal than Wald's or the score. Where few samples are without the factor and none
of them has a count by chance, errors at the estimate are tiny, but this one is not. So the part of the
sandwich that the noise explains grows as the variance of the noise does. The rest does not grow: it comes
from samples whose counts vary more than the noise says.

p-values are from Student's distribution with as many degrees of freedom as there are samples beyond factors.

Loadings as what they are in a test: estimates, with errors, to which the tested feature has contributed.

**Without bounds.** Loadings are bounded, so those at zero are too large on average. One Newton step from the
bounded estimate gives the estimate without bounds. Its mean is the truth, and its covariance is the inverse
of the sample's information.

**Without the tested feature.** A sample with many counts of a feature by chance gets more of the factors
that have the feature. That is not evidence, so every feature is tested on loadings without its own
contribution. With the gradient ``g_ij F_j`` of one entry and the sample's information ``H_i``, the step is
``H_i^-1 F_j g_ij / (1 - h_ij)``, where ``h_ij`` is the leverage of the entry.

Every feature's own regression: its row of the factors given the loadings, and what its likelihood says.

With the loadings held fixed, the counts of feature j are a regression on them with non-negative coefficients,
with Poisson or negative binomial noise. It has nothing to do with any other feature. Here it is fitted again,
without penalty and with zero counts taken exactly: a penalised or approximate fit has other estimates, around
which no standard error would be valid. Dispersions are taken as known.

Adaptive shrinkage of effects: how large they are, and whether they are there at all.

Within a factor, effects are taken as drawn from a mixture that is fitted to all of them: some are zero, the
others positive or negative halves of normals with one of several widths (unimodal at zero). An estimate ``x``
with standard error ``s`` then has a posterior in closed form (the idea is Stephens' adaptive shrinkage,
2017).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from log1pnmf.counts.compress import SparseRows, dense_blocks
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.ranking import StandIns, stand_ins
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.noise import Noise
from log1pnmf.model.objective import BLOCK_BYTES, entry_curvature, entry_gradient, exposure_of
from log1pnmf.model.problem import Problem, Side

# ---------- loadings as what they are in a test

Array = NDArray[np.float64]

RIDGE = 1e-10
"""Added to the information, scaled to a unit diagonal: what is not identified gets a huge error, not none."""

LEAST_ETA = 1e-12
"""Where a mean is zero, so is its count, and nothing depends on it."""

LEAST_SPARE = 0.05
"""One minus a leverage is taken as at least this."""

MOST_ERRORS = 3.0
"""A loading is moved below its bound by at most this many standard errors: more is misfit, not chance."""


@dataclass(frozen=True, eq=False)
class EstimatedLoadings:
    """Loadings of samples, with errors."""

    bounded: Array  # (n, K): loadings of the fit
    shift: Array  # (n, K): what leads from there to the estimates without bounds
    covariance: Array  # (n, K, K): of the errors of the estimates
    # (n, K, K): inverse information; None if the tested counts are not those from which the loadings were
    # estimated
    inverse: Array | None
    factors: Array  # (m, K): with which they were estimated, on the eta scale

    @classmethod
    def known(cls, loadings: Array, n_features: int) -> EstimatedLoadings:
        """Take loadings as known: without errors."""
        n, k = loadings.shape
        return cls(loadings, np.zeros((n, k)), np.zeros((n, k, k)), None, np.zeros((n_features, k)))

    @property
    def values(self) -> Array:
        """Estimates without bounds."""
        return self.bounded + self.shift

    @property
    def squares(self) -> Array:
        """Products of every two loadings of a sample, without what errors add: n x K x K."""
        values = self.values
        return values[:, :, None] * values[:, None, :] - self.covariance

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

    def own_part(self, y: Array, t: Array, link: ShiftedLog, noise: Noise, block: slice) -> Array | None:
        """Describe by how many ``H_i^-1 F_j`` the loadings change without the feature: samples x features."""
        if self.inverse is None:
            return None
        factors = self.factors[block]
        eta = self.bounded @ factors.T
        curvature = expected_curvature(eta, t, link, noise)
        gradient = entry_gradient(y, eta, t, link, noise=noise) + curvature * (self.shift @ factors.T)
        leverage = curvature * forms(self.inverse, factors, factors)
        return gradient / np.maximum(1.0 - leverage, LEAST_SPARE)


def estimate_loadings(
    fit: Fit, problem: Problem, loadings: Array, *, errors: str, own: bool
) -> EstimatedLoadings:
    """Find estimates without bounds and their errors, from the counts of each sample."""
    factors, rows = np.ascontiguousarray(fit.factors / fit.link.alpha), problem.counts.by_row
    (n, k), kinds = loadings.shape, np.array(fit.kinds)
    counted = np.broadcast_to(kinds != "loadings", (n, k)) & ((loadings > 0.0) | (kinds != "pattern"))
    shift, inverse = np.empty((n, k)), np.empty((n, k, k))
    covariance = np.empty((n, k, k)) if errors == "sandwich" else inverse
    products = (factors[:, :, None] * factors[:, None, :]).reshape(len(factors), -1)
    for block in dense_blocks(rows.shape, BLOCK_BYTES / (8 * 8)):
        y, t, eta = rows.to_dense(block), exposure_of(problem, block), loadings[block] @ factors.T
        curvature = expected_curvature(eta, t, fit.link, problem.noise)
        slope = entry_gradient(y, eta, t, fit.link, noise=problem.noise)
        information = (curvature @ products).reshape(-1, k, k)
        inverse[block] = inverse_information(information, counted[block])
        error = np.sqrt(np.einsum("ikk->ik", inverse[block]))
        step = -np.einsum("ikl,il->ik", inverse[block], slope @ factors)
        shift[block] = np.clip(step, -MOST_ERRORS * error, MOST_ERRORS * error)
        if errors == "sandwich":
            leverage = curvature * forms(inverse[block], factors, factors)
            slope = slope + curvature * (shift[block] @ factors.T)
            scores = (slope**2 / np.maximum(1.0 - leverage, LEAST_SPARE) @ products).reshape(-1, k, k)
            scores += RIDGE * information * np.eye(k)  # gradients say nothing of what is not identified
            covariance[block] = inverse[block] @ scores @ inverse[block]
    return EstimatedLoadings(loadings, shift, covariance, inverse if own else None, factors)


def expected_curvature(eta: Array, t: Array, link: ShiftedLog, noise: Noise) -> Array:
    """Second derivative of the loss on average; the observed one gives large counts a high leverage."""
    at = np.maximum(eta, LEAST_ETA)
    return entry_curvature(t * link.em(at), at, t, link, noise=noise)


def forms(matrices: Array, left: Array, right: Array) -> Array:
    """``left_j' M_i right_j`` for all i and j, with symmetric matrices."""
    first, second = np.triu_indices(left.shape[1])
    products = left[:, first] * right[:, second] + np.where(
        first == second, 0.0, left[:, second] * right[:, first]
    )
    found: Array = matrices[:, first, second] @ products.T
    return found


def inverse_information(information: Array, counted: NDArray[np.bool_]) -> Array:
    """Invert the information of the coordinates that count; zeros elsewhere."""
    scale = np.sqrt(np.maximum(np.einsum("jkk->jk", information), 0.0))
    scale = np.where(scale > 0.0, scale, 1.0)
    both = counted[:, :, None] & counted[:, None, :]
    unit = np.where(both, information / (scale[:, :, None] * scale[:, None, :]), 0.0)
    diagonal = np.einsum("jkk->jk", unit)
    diagonal += np.where(counted, RIDGE, 1.0)
    inverse = np.where(both, np.linalg.inv(unit), 0.0)
    return inverse / (scale[:, :, None] * scale[:, None, :])


def _inverse(products: Array) -> Array:
    return inverse_information(products[None], np.ones((1, len(products)), dtype=bool))[0]


# ---------- every feature's own regression

LEAST_REGRESSION_MOVE = 1e-5
"""Of a feature's largest coefficient: a Newton step that moves none by more is its last."""

MOST_REGRESSION_STEPS = 200
LEAST_START = 1e-2
"""Of a feature's mean level: where coefficients start at least, so that no count has mean zero."""

ARRAYS_PER_BLOCK = 24


@dataclass(frozen=True, eq=False)
class FeatureRegressions:
    """The regressions of all features on the same loadings."""

    problem: Problem  # with exact zeros
    loadings: Array
    n_jobs: int | None = None  # number of threads

    def solve(self, start: Array) -> Array:
        """Find the maximum-likelihood coefficients, features x K, on the eta scale."""
        return self._solve(self.problem.factors_side, start, self.loadings)

    def blocks(self) -> Iterator[tuple[slice, Array, Array, Noise]]:
        """Return some features at a time: which, their counts (samples x features), exposure and noise."""
        for block in dense_blocks(self._rows.shape, BLOCK_BYTES / (8 * ARRAYS_PER_BLOCK)):
            noise = self.problem.noise.of_features(block)
            yield block, self._rows.to_dense(block).T, self._exposure(block), noise

    @cached_property
    def _engine(self) -> NativeEngine:
        return NativeEngine(self.problem, self.n_jobs)

    def _exposure(self, features: slice) -> Array:
        """Exposure of some features: samples x 1, or x features with batches."""
        t, batches = self.problem.factors_side.column_exposure[:, None], self.problem.batches
        return t if batches is None else t * batches.effects[:, features][batches.labels]

    @property
    def _rows(self) -> SparseRows:
        return self.problem.counts.by_column

    def _solve(self, side: Side, start: Array, design: Array) -> Array:
        """Take Newton steps; features that have arrived are left behind."""
        factors = self._inside(side, start, design)
        moving = np.arange(len(factors))
        for _ in range(MOST_REGRESSION_STEPS):
            before = factors[moving]
            after = self._engine.half_step(side, before, design).values
            factors[moving] = after
            still = np.abs(after - before).max(axis=1) > LEAST_REGRESSION_MOVE * after.max(axis=1)
            if not still.any():
                break
            if not still.all():
                moving = moving[still]
                side = side.at(np.flatnonzero(still))
        return factors

    def _inside(self, side: Side, start: Array, design: Array) -> Array:
        """Move coefficients away from zero, as far as the feature has counts."""
        link = self.problem.link
        rates = side.rows.row_sums() / (side.column_exposure.sum() / link.exposure_scale)
        level = link.link(rates) / link.alpha
        largest = max(float(design.max(initial=0.0)), 1e-300)
        return np.maximum(start, LEAST_START * level[:, None] / largest)


# ---------- from regressions to one effect per factor and feature, its standard error and its test

ERRORS = ("sandwich", "model")
Z95 = NormalDist().inv_cdf(0.975)

LEAST_WEIGHED, LEAST_VARIANCE = 0.1, 1e-6
"""Of a feature's mean eta: the least at which weights and variances are taken."""

TO_ESTIMATE = 1.0 / 3.0
"""How far from "no effect" to the estimate variances of the model are taken."""

MOST_STEPS, LEAST_MOVE = 12, 1e-4
"""Newton steps at most, and the move, relative to a feature's largest coefficient, that ends them."""

TINY, LARGEST_ETA = 1e-300, 300.0

LONGEST_STEP = 1.0
"""In eta, for all links but the identity."""


@dataclass(frozen=True, eq=False)
class Inference:
    """Effects with errors and tests, on the eta scale; arrays of shape (m, K).

    Columns of factors to which nothing can be compared (`StandIns.comparable`) are NaN.
    """

    effect: Array
    error: Array
    z: Array  # standard normal without an effect
    comparable: NDArray[np.bool_]  # (K,): which factors are tested


def infer_from_fit(
    fit: Fit,
    problem: Problem,
    loadings: Array,
    *,
    errors: str,
    source: Problem | None = None,
    n_jobs: int | None = None,
) -> tuple[Inference, Array]:
    """Test all features on loadings that were estimated with the factors of a fit."""
    sizes, own = problem.size_factors, source is None
    estimated = estimate_loadings(fit, source or problem, loadings, errors=errors, own=own)
    regressions = FeatureRegressions(problem, loadings, n_jobs)
    coefficients = regressions.solve(fit.factors / fit.link.alpha)
    around = stand_ins(estimated.values, sizes, estimated.excess(sizes))
    found = infer(regressions, coefficients, around, errors=errors, loadings=estimated)
    reliability = estimated.reliability(sizes)
    nothing = reliability == 0.0  # is known of such a factor
    found.error[:, nothing], found.z[:, nothing & found.comparable] = np.inf, 0.0
    return found, reliability


def infer(
    regressions: FeatureRegressions,
    coefficients: Array,
    around: StandIns,
    *,
    errors: str,
    loadings: EstimatedLoadings | None = None,
) -> Inference:
    """Find effects, standard errors and tests, beginning at coefficients that maximise the likelihood."""
    if loadings is None:
        loadings = EstimatedLoadings.known(regressions.loadings, len(coefficients))
    samples = _Samples.of(loadings, regressions.problem.size_factors)
    effect, error, divisor = np.full((3, *coefficients.shape), np.nan)
    for block, y, t, noise in regressions.blocks():
        link, part = regressions.problem.link, loadings.factors[block]
        own = loadings.own_part(y, t, link, noise, block)
        some = _Equations(y, t, link, noise, samples, start=coefficients[block], factors=part, own=own)
        solution = some.solve()
        for k in np.flatnonzero(around.comparable).tolist():
            tested = some.test(solution, around.own[k] - around.rest[k], errors)
            effect[block, k], error[block, k], divisor[block, k] = tested
    z = np.divide(effect, divisor, out=np.zeros_like(effect), where=divisor > 0.0)
    z[:, ~around.comparable] = np.nan
    return Inference(effect, error, z, around.comparable)


@dataclass(frozen=True, eq=False)
class _Samples:
    """What all features share; arrays of n samples."""

    values: Array
    squares: Array
    covariance: Array | None
    inverse: Array | None
    weights: Array

    @classmethod
    def of(cls, loadings: EstimatedLoadings, size_factors: Array) -> _Samples:
        errors = loadings.covariance if loadings.covariance.any() else None
        weights = loadings.weights(size_factors)[:, None]
        return cls(loadings.values, loadings.squares, errors, loadings.inverse, weights)


@dataclass(frozen=True, eq=False)
class _Terms:
    """The equation at some coefficients: samples x features, but for the sums `total` and `derivative`.

    slope: derivative of the mean. spread: ``f' V_i f``, the variance of eta.
    """

    eta: Array
    residual: Array
    slope: Array
    spread: Array
    total: Array
    derivative: Array


@dataclass(frozen=True, eq=False)
class _Solution:
    coefficients: Array
    inverse: Array
    terms: _Terms


@dataclass(frozen=True, eq=False)
class _Around:
    """The way from the estimate f to "no effect", along u: ``L_i' u``, ``f' V_i u`` and ``u' V_i u``."""

    terms: _Terms
    along: Array
    cross: Any
    square: Any


@dataclass(frozen=True, eq=False)
class _Equations:
    """The equations of some features; arrays are samples x features."""

    y: Array
    t: Array
    link: ShiftedLog
    noise: Noise
    samples: _Samples
    start: Array  # (features, K): coefficients that maximise the likelihood
    # what the features contributed to the loadings, see `EstimatedLoadings.own_part`
    factors: Array
    own: Array | None

    @cached_property
    def level(self) -> Array:
        """Mean eta of every feature."""
        return np.maximum((self.samples.values @ self.start.T).mean(axis=0), LEAST_ETA)

    @cached_property
    def a(self) -> Array:
        """Weights of the samples in the equations."""
        at = np.maximum(0.5 * (self.eta(self.start) + self.level), LEAST_WEIGHED * self.level)
        _, slope = self.mean(at)
        weights: Array = expected_curvature(at, self.t, self.link, self.noise) / slope
        return self.samples.weights * weights

    def eta(self, f: Array) -> Array:
        """``L_i' f`` with loadings without the feature's own part."""
        eta: Array = self.samples.values @ f.T
        if self.own is not None and self.samples.inverse is not None:
            eta += self.own * forms(self.samples.inverse, self.factors, f)
        return eta

    def mean(self, eta: Array, spread: Array | float = 0.0) -> tuple[Array, Array]:
        """Mean of a count and its derivative in eta, corrected for the variance of eta."""
        if self.link.is_identity:
            return self.t * eta, np.broadcast_to(self.t, eta.shape)
        slope = self.t * np.exp(np.minimum(eta - 0.5 * spread, LARGEST_ETA))
        return slope - self.t, slope

    def spread(self, f: Array, g: Array) -> Array | float:
        """``f' V_i g``."""
        errors = self.samples.covariance
        return 0.0 if errors is None else forms(errors, f, g)

    def summed(self, of_samples: Array, matrices: Array, f: Array) -> Array:
        """``sum_i b_ij M_i f_j``."""
        (_, m), k = of_samples.shape, f.shape[1]
        sums = of_samples.T @ matrices.reshape(len(matrices), -1)
        return np.einsum("jkl,jl->jk", sums.reshape(m, k, k), f)

    def terms(self, f: Array) -> _Terms:
        eta, spread, samples = self.eta(f), self.spread(f, f), self.samples
        mean, slope = self.mean(eta, spread)
        residual = self.a * (mean - self.y)
        information = self.a * slope
        total = residual.T @ samples.values
        if self.own is not None and samples.inverse is not None:
            total += self.summed(residual * self.own, samples.inverse, self.factors)
        if samples.covariance is not None:
            total -= self.summed(information, samples.covariance, f)
        k = f.shape[1]
        derivative = (information.T @ samples.squares.reshape(len(eta), -1)).reshape(-1, k, k)
        return _Terms(eta, residual, slope, np.broadcast_to(spread, eta.shape), total, derivative)

    def solve(self) -> _Solution:
        """Take Newton steps from the start."""
        f, counted = self.start.copy(), np.ones(self.start.shape, dtype=bool)
        for _ in range(MOST_STEPS):
            terms = self.terms(f)
            inverse = inverse_information(terms.derivative, counted)
            step = -np.einsum("jkl,jl->jk", inverse, terms.total)
            if not self.link.is_identity:
                longest = np.abs(self.samples.values @ step.T).max(axis=0, initial=LONGEST_STEP)
                step *= (LONGEST_STEP / longest)[:, None]
            f += step
            if (np.abs(step).max(axis=1) <= LEAST_MOVE * np.abs(f).max(axis=1)).all():
                break
        return _Solution(f, inverse, terms)

    def test(self, found: _Solution, contrast: Array, errors: str) -> tuple[Array, Array, Array]:
        """Return the effect of every feature, its standard error, and the error that divides it in the test.

        Errors are inf where nothing is known: the loadings have no more variance than their errors.
        """
        effect, u = found.coefficients @ contrast, found.inverse @ contrast
        unknown = u @ contrast <= 0.0
        way = (1.0 - TO_ESTIMATE) * effect / np.where(unknown, np.inf, u @ contrast)  # back, in units of u
        along, cross = self.eta(u), self.spread(found.coefficients, u)
        around = _Around(found.terms, along, cross, self.spread(u, u))
        if errors == "model":
            error, divisor = self._error(around, 0.0 * way), self._error(around, way)
        else:
            information = self.a * found.terms.slope
            own = found.terms.residual * along - information * cross
            leverage = information * self._reach(found.inverse)
            error = np.sqrt(((own / np.maximum(1.0 - leverage, LEAST_SPARE)) ** 2).sum(axis=0))
            divisor = np.sqrt(error**2 + self._added(around, way, error, effect > error))
        return effect, np.where(unknown, np.inf, error), np.where(unknown, np.inf, divisor)

    def _added(self, around: _Around, way: Array, error: Array, looked_at: NDArray[np.bool_]) -> Array:
        """Describe by how much the part of the sandwich that the noise explains is larger in the test."""
        added, which = np.zeros(len(way)), np.flatnonzero(looked_at)
        there, at_estimate = (self._error(around, part, which) for part in (way[which], 0.0 * way[which]))
        explained = np.minimum(error[which] / np.maximum(at_estimate, TINY), 1.0) ** 2
        added[which] = explained * np.maximum(there**2 - at_estimate**2, 0.0)
        return added

    def _error(self, around: _Around, way: Array, which: Any = slice(None)) -> Array:
        """Return errors of the contrast of some features with the variance of the noise, some way back."""
        terms, along = around.terms, around.along[:, which]
        at = np.maximum(terms.eta[:, which] - way * along, LEAST_VARIANCE * self.level[which])
        t = self.t if self.t.shape[1] == 1 else self.t[:, which]
        slope = t if self.link.is_identity else t * np.exp(np.minimum(at, LARGEST_ETA))
        noise = self.noise.of_features(which)
        variance = slope**2 / expected_curvature(at, t, self.link, noise) * along**2
        if self.samples.covariance is not None:
            cross, square = around.cross[:, which], around.square[:, which]
            spread = np.maximum(terms.spread[:, which] - 2.0 * way * cross + way**2 * square, 0.0)
            variance += slope**2 * (spread * along**2 + (cross - way * square) ** 2)
        error: Array = np.sqrt((self.a[:, which] ** 2 * variance).sum(axis=0))
        return error

    def _reach(self, inverse: Array) -> Array:
        """``L_i' A_j^-1 L_i``."""
        values = self.samples.values
        products = (values[:, :, None] * values[:, None, :]).reshape(len(values), -1)
        found: Array = products @ inverse.reshape(len(inverse), -1).T
        return found


# ---------- adaptive shrinkage of effects: how large they are, and whether they are there at all

WIDTHS_PER_DOUBLING = 1
MOST_WIDTHS = 24
FAR_BELOW = -1e4  # standard deviations: there both forms of the mean are right to eight digits
NULL_WEIGHT = 10.0
"""Observations of "no effect" that are added, so that the share of zeros is rather too high than too low."""

LEAST_CHANGE = 1e-5
MOST_ROUNDS = 1000


@dataclass(frozen=True, eq=False)
class Shrunken:
    """What is left of effects after shrinkage."""

    effect: Array  # (m,): posterior mean
    false_sign_rate: Array  # (m,): local: the probability that the effect is not positive
    null_share: float  # of the features, estimated not to have an effect


def shrink(estimates: Array, errors: Array) -> Shrunken:
    """Shrink estimates of effects that may be zero, positive or negative.

    Errors are inf where nothing is known.

    >>> rng = np.random.default_rng(0)
    >>> effects = np.where(rng.random(2000) < 0.8, 0.0, 3.0 * rng.standard_normal(2000))
    >>> found = shrink(effects + rng.standard_normal(2000), np.ones(2000))
    >>> sure = found.false_sign_rate < 0.05
    >>> bool(found.null_share > 0.6), bool((effects[sure] <= 0.0).mean() < 0.05)
    (True, True)
    """
    known = np.isfinite(errors) & np.isfinite(estimates) & (errors > 0.0)
    if not known.any():
        return Shrunken(np.zeros(len(estimates)), np.ones(len(estimates)), 1.0)
    x, s = estimates[known], errors[known]
    widths = _widths(x, s)
    up, down = _log_marginals(x, s, widths), _log_marginals(-x, s, widths)
    logs = np.concatenate((up, down[:, 1:]), axis=1)
    shares = _fit_shares(logs)
    with np.errstate(divide="ignore"):
        joint = logs + np.log(shares)
    posterior = np.exp(joint - scipy.special.logsumexp(joint, axis=1, keepdims=True))
    means = np.concatenate((_means(x, s, widths), -_means(-x, s, widths)), axis=1)
    rises = slice(1, 1 + len(widths))
    effect, rate = np.zeros(len(estimates)), np.full(len(estimates), 1.0 - shares[rises].sum())
    effect[known] = (posterior[:, 1:] * means).sum(axis=1)
    rate[known] = 1.0 - posterior[:, rises].sum(axis=1)
    return Shrunken(effect, np.clip(rate, 0.0, 1.0), float(shares[0]))


def _widths(x: Array, s: Array) -> Array:
    """Widths of the half-normal parts: from a tenth of a standard error to beyond the largest effect."""
    low = float(s.min()) / 10.0
    high = max(2.0 * float(np.sqrt(np.maximum(x**2 - s**2, 0.0).max())), 8.0 * low)
    n = min(MOST_WIDTHS, int(WIDTHS_PER_DOUBLING * np.log2(high / low)) + 2)
    return np.geomspace(low, high, n)


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
