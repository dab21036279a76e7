"""Dispersions of negative binomial counts: the most likely ones given the means, pulled towards their trend.

A feature with few counts has little information on its own dispersion. So ``theta = log(phi)`` has a prior, a
normal law around a smooth function of the feature's mean count (`log1pnmf.model.noise`). With the prior held
fixed, `update_dispersions` never raises

    ``negative log-likelihood + sum over features of ((theta - centre) / spread)**2 / 2 - correction``,

of which the sum is the noise's `cost`. All entries count, zeros included: their means are given in a
condensed form (`MeanSpectrum`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import scipy
from numpy.polynomial.chebyshev import chebpts1
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf.counts.counts import LARGE, Counts, Tally

from .noise import (
    VAGUE_CENTRE,
    VAGUE_SPREAD,
    Expansion,
    NegativeBinomial,
    Prior,
    excess_constant,
    log1p_ratio,
    prior_of,
)

Array = NDArray[np.float64]
Which = NDArray[np.intp]
Triple: TypeAlias = tuple[Array, Array, Array]
DispersionKind: TypeAlias = Literal["feature", "shared"]

# Dispersions stay between them. The lowest one is Poisson for any counts that have been seen.
LOWEST, HIGHEST = 1e-8, 1e3
FEWEST_COUNTS = 10.0  # features with fewer counts get the dispersion of the trend
FIRST_DISPERSION = math.exp(VAGUE_CENTRE)  # what fits begin with
FIRST_ROUNDS = 2  # how often prior and dispersions are found from each other, if nothing is known
LATER_ROUNDS = 10  # the same later on, at most
# Difference of log-likelihoods per non-zero count that is not worth another prior. Where counts are Poisson,
# trend and dispersions would follow each other towards zero for ever.
SLIGHT = 1e-6
# Part of their freedom that bounds leave to loadings and factors that are not zero. It was measured: with
# it the dispersions of 12 kinds of simulated counts were right to 4 to 14%, in the median over the
# features; without it to 7 to 34%, with all the freedom to 4 to 22%.
HELD = 0.5
LONGEST_STEP, PRECISION, MOST_STEPS = 4.0, 1e-4, 50


def update_dispersions(
    counts: Counts,
    factors: Array,
    means: MeanSpectrum,
    *,
    kind: DispersionKind = "feature",
    before: NegativeBinomial | None = None,
    keep_prior: bool = False,
    slight: float = SLIGHT,
) -> tuple[NegativeBinomial, float]:
    """Find the dispersions for these means."""
    find, known = _Search(Likelihood(counts, factors, means), kind, slight), None
    theta = np.full(counts.n_features, VAGUE_CENTRE)
    if before is not None:
        theta, known = np.log(np.clip(before.dispersion, LOWEST, HIGHEST)), before.prior
    prior = find.first_prior(theta) if known is None else known
    theta, at, gain = find(theta, prior)
    later = 0 if keep_prior else LATER_ROUNDS
    for _ in range(FIRST_ROUNDS if known is None else later):
        new = find.next_prior(theta, at, prior)
        if known is not None and new.is_near(prior):
            break
        moved, there, _ = find(theta, new)
        if known is not None and find.differ_slightly((theta, at, prior), (moved, there, new)):
            break
        theta, at, prior, gain = moved, there, new, math.inf
    return NegativeBinomial(np.exp(theta), prior), gain


class _Search:
    """Finds dispersions for a prior, and the next prior for dispersions."""

    def __init__(self, likelihood: Likelihood, kind: DispersionKind, slight: float) -> None:
        self.likelihood, self.shared, self.slight = likelihood, kind == "shared", max(slight, SLIGHT)
        counts = likelihood.counts
        totals = counts.by_column.row_sums()
        self.log_means = np.log(np.maximum(totals, 1.0) / counts.n_samples)
        self.some = np.flatnonzero(totals >= min(FEWEST_COUNTS, float(totals.max())))

    def __call__(self, theta: Array, prior: Prior) -> tuple[Array, Expansion, float]:
        """Return theta of all features, the objective there of those searched for, and how much it fell."""

        def of_all(theta: Array, which: Which) -> Expansion:
            every = np.arange(len(prior.centre))
            at = self._objective(theta.repeat(len(every)), every, prior)
            return Expansion(*(one.sum(keepdims=True) for one in (at.value, at.slope, at.bend)))

        def of_some(theta: Array, which: Which) -> Expansion:
            return self._objective(theta, self.some[which], prior)

        if self.shared:
            found, at, gain = _minimised(of_all, theta[:1])
            return found.repeat(len(theta)), at, gain
        found, at, gain = _minimised(of_some, theta[self.some])
        theta = np.clip(prior.centre, np.log(LOWEST), np.log(HIGHEST))
        theta[self.some] = found
        return theta, at, gain

    def _objective(self, theta: Array, which: Which, prior: Prior) -> Expansion:
        return self.likelihood(theta, which).plus(prior.of(which).at(theta))

    def differ_slightly(self, *found: tuple[Array, Expansion, Prior]) -> bool:
        """Return whether the likelihoods of two results are nearly the same."""
        some = slice(None) if self.shared else self.some
        one, other = (at.value - prior.of(some).at(theta[some]).value for theta, at, prior in found)
        return bool(np.abs(one - other).sum() <= self.slight * self.likelihood.counts.nnz)

    def first_prior(self, theta: Array) -> Prior:
        """Return the prior with which the search begins."""
        spread = math.inf if self.shared else VAGUE_SPREAD
        return Prior(np.full(len(theta), VAGUE_CENTRE), spread, *self.likelihood.freedom(theta))

    def next_prior(self, theta: Array, at: Expansion, prior: Prior) -> Prior:
        """Return the prior that the features found with another one suggest."""
        freedom, level = self.likelihood.freedom(theta)
        new = replace(prior, freedom=freedom, level=level)
        if self.shared:
            return new
        own = theta[self.some]
        likelihood = at.plus(prior.of(self.some).at(own), -1.0).plus(new.of(self.some).correction(own))
        return prior_of(own, likelihood, self.log_means, self.some, new, adopt=self.likelihood.means.adopt)


def _minimised(function: Callable[[Array, Which], Expansion], start: Array) -> tuple[Array, Expansion, float]:
    """Minimise a function of each element by Newton steps in a bracket; never above the start."""
    floor, ceiling = float(np.log(LOWEST)), float(np.log(HIGHEST))
    active = np.arange(len(start))
    first, theta = function(start, active), start.copy()
    value, slope, bend = first.value.copy(), first.slope.copy(), first.bend.copy()
    low, high = np.full(len(start), floor), np.full(len(start), ceiling)
    for _ in range(MOST_STEPS):
        rising = slope > 0.0
        high[rising], low[~rising] = theta[rising], theta[~rising]
        x, a, b = theta[active], low[active], high[active]
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = np.where(bend[active] > 0.0, -slope[active] / bend[active], np.inf)
        step = np.where(np.isfinite(newton), newton, -LONGEST_STEP * np.sign(slope[active]))
        new = np.clip(x + np.clip(step, -LONGEST_STEP, LONGEST_STEP), floor, ceiling)
        known = ((new <= a) & (a > floor)) | ((new >= b) & (b < ceiling))  # the slope there has been seen
        new = np.where(known, 0.5 * (a + b), new)
        moving = np.abs(new - x) > PRECISION
        active = active[moving]
        if not active.size:
            break
        theta[active] = new[moving]
        at = function(theta[active], active)
        value[active], slope[active], bend[active] = at.value, at.slope, at.bend
    back = value > first.value
    theta[back] = start[back]
    value[back], slope[back], bend[back] = first.value[back], first.slope[back], first.bend[back]
    return theta, Expansion(value, slope, bend), float(np.sum(first.value - value))


@dataclass(frozen=True, eq=False)
class Likelihood:
    """Likelihood of dispersions; freedom of the fit."""

    counts: Counts
    factors: Array
    means: MeanSpectrum

    def __call__(self, theta: Array, which: Which) -> Expansion:
        """Return ``sum of (y + r) log(1 + phi mean) - A(y)`` of some features, and derivatives in theta.

        Features that have moved are evaluated: a search begins where the one with the last prior ended.
        """
        last, found = self._last
        moved = last[which] != theta
        if moved.any():
            some, last[which] = which[moved], theta
            found[:, some] = self._evaluated(np.exp(theta[moved]), some)
        return Expansion(*found[:, which])

    @cached_property
    def _last(self) -> tuple[Array, Array]:
        """Theta of every feature at the last evaluation, and what was found there."""
        m = len(self.factors)
        return np.full(m, np.nan), np.empty((3, m))

    def _evaluated(self, phi: Array, which: Which) -> list[Array]:
        (logs, parts, squares), of_counts = self.means.sums(phi, which)
        of_all = logs / phi, (parts - logs) / phi, (logs - parts - squares) / phi
        some, m = self._times[which], len(which)
        feature = np.repeat(np.arange(m), np.diff(some.indptr))
        gammas = _gammas(self.counts.tally.values[some.indices], phi, feature)
        terms = zip(of_all, of_counts, gammas, strict=True)
        return [one + own - np.bincount(feature, some.data * a, m) for one, own, a in terms]

    def freedom(self, theta: Array) -> tuple[Array, Array]:
        """Return how many parameters fitted the means of every feature, and the level of these means.

        Every factor of the feature counts, and the loadings of all samples, shared out by the features'
        information about them, ``mean / (1 + phi mean)``. The level is such that `Prior.correction` has the
        slope of half the logarithm of the information, if that is a product of such terms.
        """
        phi = np.exp(theta)
        _, parts, squares = self.means.sums(phi, np.arange(len(phi)))[0]
        information = parts / phi
        free = np.count_nonzero(self.factors, axis=1).astype(np.float64)
        if parts.any():
            free += float(self.means.n_free[0]) * information / information.sum()
        share = np.minimum(squares / np.where(parts > 0.0, parts, 1.0), 1.0 - 1e-12)
        return HELD * np.minimum(free, self.counts.n_samples), share / (1.0 - share) / phi

    @cached_property
    def _times(self) -> sparse.csr_array:
        """The tally, features x entries of the tally."""
        tally = self.counts.tally
        entries = np.arange(len(tally.values))
        return sparse.csr_array((tally.times, entries, tally.indptr), shape=(len(self.factors), len(entries)))


def _gammas(y: Array, phi: Array, feature: Which) -> tuple[Array, Array, Array]:
    """Return ``A = log(gamma(y + r) / gamma(r)) + y log(phi)``, 0 at ``phi = 0``, and derivatives in theta.

    ``A' = y - r (psi(y + r) - psi(r))`` and ``A'' = r (psi(y + r) - psi(r)) + r^2 (psi'(y + r) - psi'(r))``,
    by their asymptotic series where r is large. `phi`: of every feature; `feature`: of every count.
    """
    at_zero, phi = scipy.special.zeta(2.0, 1.0 / phi)[feature], phi[feature]  # zeta(2, x) is psi'(x)
    u = phi * y
    q, ratio = 1.0 / (1.0 + u), log1p_ratio(u)
    first = y * ratio - (q - 1.0) / 2 - phi * (q**2 - 1.0) / 12 + phi**3 * (q**4 - 1.0) / 120
    second = -y * q + (q**2 - 1.0) / 2 + phi * (q**3 - 1.0) / 6 - phi**3 * (q**5 - 1.0) / 30
    wide = phi * LARGE > 1.0
    r, high = 1.0 / phi[wide], y[wide]
    first[wide] = r * (scipy.special.digamma(high + r) - scipy.special.digamma(r))
    second[wide] = r**2 * (scipy.special.zeta(2.0, high + r) - at_zero[wide])
    value = y * (np.log1p(u) + ratio - 1.0) - excess_constant(y, phi)
    return value, y - first, first + second


# ---------- condensed means

POWERS, N_BINS = 8, 22
# The last bin ends so far above the logarithm of the largest count: means are hardly ever larger. Those
# that are less than the largest count by more than ``exp(17)`` are too small to matter for a
# dispersion.
ABOVE = 5.0


@dataclass(frozen=True, eq=False)
class MeanSpectrum:
    """Means of every feature, condensed: sums over the samples seen so far.

    Logarithms of means lie in bins of width 1. With ``d`` from -1 to 1 inside of a bin, all that is kept of
    its means are the sums of ``d**0`` to ``d**7``, once over all samples and once weighed by the counts.
    Chunks can be added up. Eight Chebyshev nodes with weights that have the same sums take the place of the
    means: ``log(1 + phi * mean)`` and its derivatives are then right to about 1e-9.
    """

    low: Array  # (m,): where the first bin of every feature begins
    # (m, N_BINS, POWERS): sums of the powers: of all entries, and weighed by the counts
    entries: Array
    counted: Array
    n_free: Array  # (1,): loadings that are not zero

    @classmethod
    def zeros(cls, low: Array) -> MeanSpectrum:
        """Make the sums over no samples."""
        shape = (len(low), N_BINS, POWERS)
        return cls(low, np.zeros(shape), np.zeros(shape), np.zeros(1))

    @staticmethod
    def low_for(tally: Tally) -> Array:
        """Describe where the bins of features with these counts begin."""
        largest = np.zeros(len(tally.indptr) - 1)
        np.maximum.at(largest, tally.feature, tally.values)
        return np.log(np.maximum(largest, 1.0)) + (ABOVE - N_BINS)

    def __add__(self, other: MeanSpectrum) -> MeanSpectrum:
        return MeanSpectrum(
            self.low, self.entries + other.entries, self.counted + other.counted, self.n_free + other.n_free
        )

    def adopt(self, array: Array) -> Any:
        """Bring an array to where the sums are."""
        return array

    def sums(self, phi: Array, which: Which) -> tuple[Triple, Triple]:
        """Sum over the samples of some features, with ``x = phi mean`` and ``part = x / (1 + x)``.

        Over all: ``log(1 + x)``, ``part`` and its square. Weighed by the counts: ``log(1 + x)``, ``part`` and
        ``part (1 - part)``.
        """
        first, *every = self._nodes
        lengths = np.diff(first)[which]
        own = np.concatenate(([0], np.cumsum(lengths)))
        at = np.repeat(first[which] - own[:-1], lengths) + np.arange(own[-1])
        means, entries, counted = (one[at] for one in every)
        x = np.repeat(phi, lengths)[:, None] * means
        log, part = np.log1p(x), x / (1.0 + x)

        def summed(weights: Array, *terms: Array) -> Triple:
            products = (np.einsum("ij,ij->i", one, weights) for one in terms)
            return cast(Triple, tuple(np.add.reduceat(one, own[:-1]) for one in products))

        return summed(entries, log, part, part**2), summed(counted, log, part, part * (1.0 - part))

    @staticmethod
    def quadrature() -> tuple[Array, Array]:
        """Return the nodes of a bin, from 0 to 1, and what gives their weights from its sums of powers."""
        x = chebpts1(POWERS)
        return 0.5 * (1.0 + x), np.linalg.inv(np.vander(x, POWERS, increasing=True)).astype(np.float64)

    @cached_property
    def _nodes(self) -> tuple[NDArray[np.int64], Array, Array, Array]:
        """Where the nodes of every feature begin, in bins that are not empty; means there, and weights."""
        x, weights = self.quadrature()
        feature, number = np.nonzero(self.entries[:, :, 0])
        means = np.exp((self.low[feature] + number)[:, None] + x)
        entries, counted = (one[feature, number] @ weights for one in (self.entries, self.counted))
        lengths = np.bincount(feature, minlength=len(self.low))
        return np.concatenate(([0], np.cumsum(lengths))), means, entries, counted
