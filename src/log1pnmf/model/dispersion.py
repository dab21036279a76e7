"""Dispersions of negative binomial counts: the most likely ones given the means, pulled towards their trend.

A feature says little about its own dispersion when its counts are few. So ``theta = log(phi)`` has a prior, a
normal law around a smooth function of the feature's mean count (`log1pnmf.model.trend`). With the prior held
fixed, `renewed` never raises

    ``negative log-likelihood + sum over features of ((theta - centre) / spread)**2 / 2``,

of which the second term is `Dispersions.cost`. All entries are visited, zeros included, in blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma

from log1pnmf.counts.factorial import LARGE
from log1pnmf.counts.sparse_rows import dense_blocks

from .negative_binomial import NegativeBinomial, excess_constant, log1p_ratio
from .objective import BLOCK_BYTES, Model
from .trend import VAGUE_CENTRE, Expansion, Prior, prior_of

__all__ = ["HIGHEST", "LOWEST", "DispersionKind", "Dispersions", "renewed"]

Array = NDArray[np.float64]
Which = NDArray[np.intp]
DispersionKind: TypeAlias = Literal["feature", "shared"]

LOWEST, HIGHEST = 1e-8, 1e3
"""Dispersions stay between them. The lowest one is Poisson for any counts that have been seen."""
FEWEST_COUNTS = 10.0
"""Features with fewer counts get the dispersion of the trend."""
FIRST_ROUNDS = 3
"""How often prior and dispersions are found from each other, if nothing is known."""
LONGEST_STEP, PRECISION, MOST_STEPS = 4.0, 1e-6, 50


@dataclass(frozen=True, eq=False)
class Dispersions:
    """A dispersion for every feature, and the prior it was found with.

    Parameters
    ----------
    values : ndarray of shape (m,)
    prior : Prior or None
        None where the dispersions are given, or one is shared by all features.
    """

    values: Array
    prior: Prior | None = None

    @property
    def noise(self) -> NegativeBinomial:
        """The noise with these dispersions; its cost is that of the prior."""
        cost = 0.0 if self.prior is None else float(self.prior.at(np.log(self.values)).value.sum())
        return NegativeBinomial(self.values, cost)


def renewed(
    model: Model,
    loadings: Array,
    factors: Array,
    *,
    kind: DispersionKind = "feature",
    before: Dispersions | None = None,
    keep_prior: bool = False,
) -> Dispersions:
    """Find the dispersions for the means that loadings and factors give.

    Parameters
    ----------
    model : Problem
        Counts, size factors and link; its noise and its zeros do not matter.
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the eta scale.
    kind : {"feature", "shared"}
        One for each feature, or the same for all.
    before : Dispersions, optional
        Where to begin.
    keep_prior : bool
        Leave the prior of `before` as it is: the joint objective does not rise.
    """
    likelihood, m = _Likelihood(model, loadings, factors), model.counts.n_features
    theta = np.full(m, VAGUE_CENTRE)
    if before is not None:
        theta = np.log(np.clip(before.values, LOWEST, HIGHEST))
    if kind == "shared":
        theta, _ = _minimised(likelihood.shared, theta[:1])
        return Dispersions(np.exp(theta).repeat(m))
    totals = model.counts.by_column.row_sums()
    log_means = np.log(np.maximum(totals, 1.0) / model.counts.n_samples)
    some = np.flatnonzero(totals >= min(FEWEST_COUNTS, float(totals.max())))
    prior = Prior.vague(m) if before is None or before.prior is None else before.prior
    rounds = FIRST_ROUNDS if before is None or before.prior is None else 0 if keep_prior else 1
    for _ in range(rounds):
        theta[some], at = _minimised(_Posterior(likelihood, prior, some), theta[some])
        own = at.plus(prior.of(some).at(theta[some]), -1.0)
        prior = prior_of(theta[some], own, log_means, some, prior)
    found, _ = _minimised(_Posterior(likelihood, prior, some), theta[some])
    theta = np.clip(prior.centre, np.log(LOWEST), np.log(HIGHEST))
    theta[some] = found
    return Dispersions(np.exp(theta), prior)


def _minimised(function: Callable[[Array, Which], Expansion], start: Array) -> tuple[Array, Expansion]:
    """Minimise a function of every element on its own by Newton's steps in a bracket; never above the start.

    Returns
    -------
    theta : ndarray
    at : Expansion
        There.
    """
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
    return theta, Expansion(value, slope, bend)


@dataclass(frozen=True, eq=False)
class _Posterior:
    """Negative log-likelihood and prior of some features."""

    likelihood: _Likelihood
    prior: Prior
    some: Which

    def __call__(self, theta: Array, which: Which) -> Expansion:
        features = self.some[which]
        return self.likelihood(theta, features).plus(self.prior.of(features).at(theta))


@dataclass(frozen=True, eq=False)
class _Likelihood:
    """Negative log-likelihood of features as a function of ``theta = log(phi)``, up to a constant."""

    model: Model
    loadings: Array
    factors: Array

    def shared(self, theta: Array, which: Which) -> Expansion:
        """Sum over all features with the same dispersion."""
        m = len(self.factors)
        at = self(np.repeat(theta, m), np.arange(m))
        return Expansion(*(one.sum(keepdims=True) for one in (at.value, at.slope, at.bend)))

    def __call__(self, theta: Array, which: Which) -> Expansion:
        n = len(self.loadings)
        parts = [
            self._block(theta[block], which[block])
            for block in dense_blocks((len(which), n), BLOCK_BYTES / (8 * 6))
        ]
        return Expansion(*(np.concatenate(side) for side in zip(*parts, strict=True)))

    def _block(self, theta: Array, which: Which) -> tuple[Array, Array, Array]:
        """``sum of (y + r) log(1 + phi mean) - A(y)`` of some features, and its derivatives in theta."""
        link, phi = self.model.link, np.exp(theta)
        exposure = link.exposure_scale * self.model.size_factors
        x = phi[:, None] * exposure * link.em(self.factors[which] @ self.loadings.T)
        log, part = np.log1p(x), x / (1.0 + x)
        logs, parts, squares = log.sum(axis=1), part.sum(axis=1), np.einsum("ij,ij->i", part, part)
        value, slope, bend = logs / phi, (parts - logs) / phi, (logs - parts - squares) / phi
        rows = self.model.counts.by_column.to_scipy()[which]
        feature, y = np.repeat(np.arange(len(which)), np.diff(rows.indptr)), rows.data.astype(np.float64)
        own = part[feature, rows.indices]
        distinct, of, times = _distinct(feature, y)
        gammas = _gammas(distinct, phi[of])
        m = len(which)
        value += np.bincount(feature, y * log[feature, rows.indices], m)
        slope += np.bincount(feature, y * own, m)
        bend += np.bincount(feature, y * own * (1.0 - own), m)
        value, slope, bend = (
            one - np.bincount(of, times * gamma, m)
            for one, gamma in zip((value, slope, bend), gammas, strict=True)
        )
        return value, slope, bend


def _distinct(feature: Which, y: Array) -> tuple[Array, Which, Array]:
    """Different counts of every feature, the feature of each, and how often it has it."""
    values, code = np.unique(y, return_inverse=True)
    n = max(len(values), 1)
    keys, times = np.unique(feature * n + code, return_counts=True)
    return values[keys % n], keys // n, times.astype(np.float64)


def _gammas(y: Array, phi: Array) -> tuple[Array, Array, Array]:
    """Give ``A = log(gamma(y + r) / gamma(r)) + y log(phi)``, 0 at ``phi = 0``, and derivatives in theta.

    ``A' = y - r (psi(y + r) - psi(r))`` and ``A'' = r (psi(y + r) - psi(r)) + r^2 (psi'(y + r) - psi'(r))``,
    by their asymptotic series where r is large.
    """
    u = phi * y
    q, ratio = 1.0 / (1.0 + u), log1p_ratio(u)
    first = y * ratio - (q - 1.0) / 2 - phi * (q**2 - 1.0) / 12 + phi**3 * (q**4 - 1.0) / 120
    second = -y * q + (q**2 - 1.0) / 2 + phi * (q**3 - 1.0) / 6 - phi**3 * (q**5 - 1.0) / 30
    wide = phi * LARGE > 1.0
    r, high = 1.0 / phi[wide], y[wide]
    first[wide] = r * (digamma(high + r) - digamma(r))
    second[wide] = r**2 * (polygamma(1, high + r) - polygamma(1, r))
    value = y * (np.log1p(u) + ratio - 1.0) - excess_constant(y, phi)
    return value, y - first, first + second
