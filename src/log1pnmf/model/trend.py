"""Prior of the dispersions: normal on the log scale, around a smooth trend over the features' mean counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Expansion", "Prior", "prior_of"]

Array = NDArray[np.float64]

VAGUE_CENTRE, VAGUE_SPREAD = float(np.log(0.3)), 2.0
"""The prior when nothing is known."""
USUAL_SPREAD, ITS_WEIGHT = 0.5, 4.0
"""The spread is estimated with so many more features, which have this one."""
NARROWEST, WIDEST = 0.1, 3.0
MOST_KNOTS, PER_KNOT = 10, 25.0
BENDING, SLOPE = 5.0, 1.0
"""Penalties of the trend on differences of its slope and of its height, in units of a feature."""
FARTHEST = 3.0
"""How far from its centre a quadratic is believed."""
NEAR = 0.02
"""Priors whose logarithms differ by less are taken for the same."""
ROUNDS, PRECISION = 300, 1e-6


@dataclass(frozen=True, eq=False)
class Expansion:
    """A function of ``theta = log(phi)`` of every feature, with its first and second derivative."""

    value: Array
    slope: Array
    bend: Array

    def plus(self, other: Expansion, times: float = 1.0) -> Expansion:
        """Add the same of another function."""
        return Expansion(
            self.value + times * other.value, self.slope + times * other.slope, self.bend + times * other.bend
        )

    def summed(self) -> Expansion:
        """Sum over all features."""
        return Expansion(*(one.sum(keepdims=True) for one in (self.value, self.slope, self.bend)))


@dataclass(frozen=True, eq=False)
class Prior:
    """Normal law of ``theta``, and what makes up for the freedom of the fitted means.

    The counts have drawn the means towards themselves, and so look less dispersed than they are. In return
    every feature is given ``freedom / 2 * log(1 + phi * level)`` of log-likelihood, as Cox and Reid do.

    Parameters
    ----------
    centre : ndarray of shape (m,)
        The trend at every feature.
    spread : float
        Standard deviation around it; inf: nothing is known.
    freedom : ndarray of shape (m,)
        Number of parameters that were free to fit the means of the feature.
    level : ndarray of shape (m,)
        Mean counts to which they were fitted.
    """

    centre: Array
    spread: float
    freedom: Array
    level: Array

    @classmethod
    def vague(cls, freedom: Array, level: Array) -> Prior:
        """Give the prior with which the search begins."""
        return cls(np.full(len(level), VAGUE_CENTRE), VAGUE_SPREAD, freedom, level)

    def of(self, which: Any) -> Prior:
        """Give the prior of some features."""
        return Prior(self.centre[which], self.spread, self.freedom[which], self.level[which])

    def at(self, theta: Array) -> Expansion:
        """Give what it adds to the negative log-likelihood, up to a constant."""
        return self.pull(theta).plus(self.correction(theta))

    def pull(self, theta: Array) -> Expansion:
        """Give the part of the normal law."""
        away, weight = theta - self.centre, self.spread**-2
        return Expansion(0.5 * weight * away**2, weight * away, np.full(len(theta), weight))

    def correction(self, theta: Array) -> Expansion:
        """Give the part that makes up for the fitted means."""
        x, half = np.exp(theta) * self.level, -0.5 * self.freedom
        part = x / (1.0 + x)
        return Expansion(half * np.log1p(x), half * part, half * part * (1.0 - part))

    def is_near(self, other: Prior) -> bool:
        """Whether it makes no difference which of the two is taken."""
        spreads = 0.0 if self.spread == other.spread else float(np.log(self.spread / other.spread))
        corrections = self.correction(other.centre).slope - other.correction(other.centre).slope
        moved = [np.abs(self.centre - other.centre), np.abs(corrections) / (1.0 + other.freedom)]
        return max(abs(spreads), *(float(one.max()) for one in moved)) <= NEAR


def prior_of(theta: Array, likelihood: Expansion, log_means: Array, which: Any, start: Prior) -> Prior:
    """Find trend and spread under which the features' likelihoods are largest, by expectation-maximisation.

    Every likelihood is taken as a quadratic around `theta`. A flat one leaves its feature at the trend, with
    the whole spread as uncertainty, and so says nothing about either.

    Parameters
    ----------
    theta, likelihood : ndarray of shape (k,), Expansion
        Of the features that have enough counts: where they are, and the negative log-likelihood there, the
        correction for fitted means included.
    log_means : ndarray of shape (m,)
        Logarithm of the mean count of all features.
    which : ndarray of int, shape (k,)
        Numbers of the features that have enough counts.
    start : Prior
        Of all features.
    """
    knots, basis, solve = _smoother(log_means[which])
    information = np.maximum(likelihood.bend, 0.0)
    centre, variance = start.centre[which], start.spread**2
    for _ in range(ROUNDS):
        precision = information + 1.0 / variance
        mode = (information * theta - likelihood.slope + centre / variance) / precision
        mode = np.clip(mode, theta - FARTHEST, theta + FARTHEST)
        height = solve @ mode
        centre, before = basis @ height, variance
        total = np.sum(1.0 / precision + (mode - centre) ** 2) + ITS_WEIGHT * USUAL_SPREAD**2
        variance = float(np.clip(total / (len(theta) + ITS_WEIGHT), NARROWEST**2, WIDEST**2))
        if abs(variance - before) <= PRECISION * variance:
            break
    return replace(start, centre=np.interp(log_means, knots, height), spread=float(np.sqrt(variance)))


def _smoother(x: Array) -> tuple[Array, Array, Array]:
    """Broken line with penalties: knots, its basis at x, and what gives its heights from values at x."""
    low, high = float(x.min()), float(x.max())
    n_knots = int(np.clip(1.0 + len(x) / PER_KNOT, 2.0, MOST_KNOTS)) if high > low else 1
    knots = np.linspace(low, high, n_knots)
    basis = np.column_stack([np.interp(x, knots, row) for row in np.eye(n_knots)])
    penalty = np.zeros((n_knots, n_knots))
    for order, weight in ((1, SLOPE), (2, BENDING)):
        if n_knots > order:
            differences = np.diff(np.eye(n_knots), order, axis=0)
            penalty += weight * differences.T @ differences
    solve = np.linalg.solve(basis.T @ basis + penalty, basis.T).astype(np.float64)
    return knots, basis, solve
