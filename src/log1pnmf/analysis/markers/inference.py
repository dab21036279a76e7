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
  are removed (`log1pnmf.analysis.markers.loadings`). Errors in ``L_i`` make estimates too small, and part of
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
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.ranking import StandIns, stand_ins
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.noise import Noise
from log1pnmf.model.problem import Problem

from .loadings import (
    LEAST_ETA,
    LEAST_SPARE,
    EstimatedLoadings,
    estimate_loadings,
    expected_curvature,
    forms,
    inverse_information,
)
from .regression import FeatureRegressions

__all__ = ["ERRORS", "Z95", "Inference", "infer", "infer_from_fit"]

Array = NDArray[np.float64]

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

    Parameters
    ----------
    z : ndarray
        Standard normal without an effect.
    comparable : ndarray of bool, shape (K,)
        Which factors are tested.
    """

    effect: Array
    error: Array
    z: Array
    comparable: NDArray[np.bool_]


def infer_from_fit(
    fit: Fit,
    problem: Problem,
    loadings: Array,
    *,
    errors: str,
    source: Problem | None = None,
    n_jobs: int | None = None,
) -> tuple[Inference, Array]:
    """Test all features on loadings that were estimated with the factors of a fit.

    Parameters
    ----------
    problem : Problem
        With the counts that are tested, and exact zeros.
    source : Problem, optional
        With the counts from which the loadings were estimated; by default the same.

    Returns
    -------
    inference : Inference
    reliability : ndarray of shape (K,)
        See `EstimatedLoadings.reliability`.
    """
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
    """Find effects, standard errors and tests, beginning at coefficients that maximise the likelihood.

    Parameters
    ----------
    loadings : EstimatedLoadings, optional
        By default those of the regressions, taken as known.
    """
    if loadings is None:
        loadings = EstimatedLoadings.known(regressions.loadings, len(coefficients))
    samples = _Samples.of(loadings, regressions.problem.size_factors)
    effect, error, divisor = np.full((3, *coefficients.shape), np.nan)
    for block, y, t, noise in regressions.blocks():
        link, part = regressions.problem.link, loadings.factors[block]
        own = loadings.own_part(y, t, link, noise, block)
        some = _Block(y, t, link, noise, samples, start=coefficients[block], factors=part, own=own)
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
class _Block:
    """The equations of some features; arrays are samples x features.

    Parameters
    ----------
    start : ndarray of shape (features, K)
        Coefficients that maximise the likelihood.
    factors, own
        What the features contributed to the loadings, see `EstimatedLoadings.own_part`.
    """

    y: Array
    t: Array
    link: ShiftedLog
    noise: Noise
    samples: _Samples
    start: Array
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
        """Give the effect of every feature, its standard error, and the error that divides it in the test.

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
        """Say by how much the part of the sandwich that the noise explains is larger in the test."""
        added, which = np.zeros(len(way)), np.flatnonzero(looked_at)
        there, at_estimate = (self._error(around, part, which) for part in (way[which], 0.0 * way[which]))
        explained = np.minimum(error[which] / np.maximum(at_estimate, TINY), 1.0) ** 2
        added[which] = explained * np.maximum(there**2 - at_estimate**2, 0.0)
        return added

    def _error(self, around: _Around, way: Array, which: Any = slice(None)) -> Array:
        """Give errors of the contrast of some features with the variance of the noise, some way back."""
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
