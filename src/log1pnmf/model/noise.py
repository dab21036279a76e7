"""The model of one count: its mean (the link), and how it scatters around it (the noise).

The link is ``b = alpha_c log(1 + lam / c)``, and its limit, the identity (``c = inf``). The noise is the
negative log-likelihood of an entry, with its derivatives.

The mean of an entry is ``t * em``, with the exposure ``t`` and ``em`` a function of eta. All
that a noise model needs of the link are its `Derivatives`.

Negative binomial counts: variance ``mean + dispersion * mean**2``, with a dispersion for every feature.

With the dispersion ``phi`` and ``r = 1 / phi`` the negative log-likelihood of a count is

    ``-y log(mean) + (y + r) log(1 + phi mean) + constant(y, phi)``.

Everything is written so that ``phi = 0`` is Poisson, and no digit is lost on the way there: ``log1p(x) / x``
in place of ``r log1p(phi mean)``, Stirling's series in place of differences of log-gammas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from log1pnmf._common.arrays import on_host
from log1pnmf.counts.counts import LARGE, Counts, series, stirling

# ---------- the link

Array = NDArray[np.float64]

SMALLEST_ETA, LARGEST_ETA = 1e-100, 500.0
"""Derivatives are taken at eta held inside this range: finite for any start, also at eta = 0 with a count."""


class Derivatives(NamedTuple):
    """Derivatives of ``em`` in eta; the mean of an entry is ``t * em``.

    slope, bend: the first and the second. share: ``em / slope``, so that ``1 / share`` is the derivative of
    ``log(em)``. share_slope: the derivative of share.
    """

    slope: Array
    bend: Array
    share: Array
    share_slope: Array


@dataclass(frozen=True)
class ShiftedLog:
    """Shifted-log link with shift ``c``; ``c = inf`` is the identity link.

    Parameters
    ----------
    c : float
        Positive, or inf. Small values make factors multiply, large values make them add up.

    Attributes
    ----------
    is_identity : bool
        Whether the link is the identity.
    alpha : float
        The link scale over the eta scale, on which fits are computed: ``max(1, c)``, 1 for the identity.
    exposure_scale : float
        What multiplies the size factors in the exposure ``t``: ``c``, 1 for the identity.
    name : str
        What engines call it: "identity" or "shifted_log".
    """

    c: float
    is_identity: bool = field(init=False, repr=False, compare=False)
    alpha: float = field(init=False, repr=False, compare=False)
    exposure_scale: float = field(init=False, repr=False, compare=False)
    name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given: object = self.c
        if isinstance(given, bool | np.bool_) or not isinstance(given, Real):
            raise TypeError(f"c must be a number (positive or inf), got {given!r}")
        c = float(given)
        if not c > 0:
            raise ValueError(f"c must be positive or inf, got {c}")
        identity = math.isinf(c)
        alpha, scale = (1.0, 1.0) if identity else (max(1.0, c), c)
        name = "identity" if identity else "shifted_log"
        self.__dict__.update(c=c, is_identity=identity, alpha=alpha, exposure_scale=scale, name=name)

    def link(self, lam: ArrayLike) -> NDArray[np.float64]:
        """Rate to link scale, ``alpha * log1p(lam / c)``."""
        lam = np.asarray(lam, dtype=np.float64)
        return lam if self.is_identity else self.alpha * np.log1p(lam / self.c)

    def inverse(self, b: ArrayLike) -> NDArray[np.float64]:
        """Link scale to rate, ``c * expm1(b / alpha)``."""
        return self.mean(np.asarray(b, dtype=np.float64) / self.alpha)

    def mean(self, eta: ArrayLike) -> NDArray[np.float64]:
        """Eta scale to rate, ``c * expm1(eta)``; ``eta`` itself for the identity."""
        return self.em(eta) if self.is_identity else self.exposure_scale * self.em(eta)

    def em(self, eta: ArrayLike) -> NDArray[np.float64]:
        """Mean of an entry over its exposure, ``expm1(eta)``; ``eta`` itself for the identity."""
        eta = np.asarray(eta, dtype=np.float64)
        return eta if self.is_identity else np.expm1(eta)

    def derivatives(self, eta: ArrayLike) -> Derivatives:
        """Differentiate `em` at eta within ``[SMALLEST_ETA, LARGEST_ETA]``; the identity has no upper end."""
        eta = np.asarray(eta, dtype=np.float64)
        if self.is_identity:
            one = np.ones_like(eta)
            return Derivatives(one, np.zeros_like(eta), np.maximum(eta, SMALLEST_ETA), one)
        inside = np.clip(eta, SMALLEST_ETA, LARGEST_ETA)
        exp = np.exp(inside)
        return Derivatives(exp, exp, -np.expm1(-inside), np.exp(-inside))


# ---------- prior of the dispersions

VAGUE_CENTRE, VAGUE_SPREAD = float(np.log(0.3)), 2.0  # the prior when nothing is known
USUAL_SPREAD, ITS_WEIGHT = 0.5, 4.0  # the spread is estimated with so many more features, which have this one
NARROWEST, WIDEST = 0.1, 3.0
MOST_KNOTS, PER_KNOT = 10, 25.0
BENDING, SLOPE = 5.0, 1.0
"""Penalties of the trend on differences of its slope and of its height, in units of a feature."""
FARTHEST = 3.0  # how far from its centre a quadratic is believed
NEAR = 0.02  # priors whose logarithms differ by less are taken for the same
ROUNDS, TREND_PRECISION = 300, 1e-6


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


@dataclass(frozen=True, eq=False)
class Prior:
    """Normal law of ``theta``, and what makes up for the freedom of the fitted means.

    The counts have pulled the means towards themselves, and so seem less dispersed than they are. In return
    every feature is given ``freedom / 2 * log(1 + phi * level)`` of log-likelihood, as Cox and Reid do.
    """

    centre: Array  # (m,): the trend at every feature
    spread: float  # standard deviation around it; inf: nothing is known
    freedom: Array  # (m,): number of parameters that were free to fit the means of the feature
    level: Array  # (m,): mean counts to which they were fitted

    def of(self, which: Any) -> Prior:
        """Return the prior of some features."""
        return Prior(self.centre[which], self.spread, self.freedom[which], self.level[which])

    def at(self, theta: Array) -> Expansion:
        """Return what it adds to the negative log-likelihood, up to a constant."""
        away, weight = theta - self.centre, self.spread**-2
        pull = Expansion(0.5 * weight * away**2, weight * away, np.full(len(theta), weight))
        return pull.plus(self.correction(theta))

    def correction(self, theta: Array) -> Expansion:
        """Return the part that makes up for the fitted means."""
        x, half = np.exp(theta) * self.level, -0.5 * self.freedom
        part = x / (1.0 + x)
        return Expansion(half * np.log1p(x), half * part, half * part * (1.0 - part))

    def is_near(self, other: Prior) -> bool:
        """Whether it makes no difference which of the two is taken."""
        spreads = 0.0 if self.spread == other.spread else float(np.log(self.spread / other.spread))
        corrections = self.correction(other.centre).slope - other.correction(other.centre).slope
        moved = [np.abs(self.centre - other.centre), np.abs(corrections) / (1.0 + other.freedom)]
        return max(abs(spreads), *(float(one.max()) for one in moved)) <= NEAR


def prior_of(
    theta: Array,
    likelihood: Expansion,
    log_means: Array,
    which: Any,
    start: Prior,
    *,
    adopt: Callable[[Array], Any] = np.asarray,
) -> Prior:
    """Find trend and spread under which the features' likelihoods are largest, by expectation-maximisation.

    Every likelihood is taken as a quadratic around `theta`. A flat one leaves its feature at the trend, with
    the whole spread as uncertainty, and so has no information on either.

    `theta`, `likelihood`: of the features that have enough counts: where they are, and the negative log-
    likelihood there, the correction for fitted means included. `adopt`: brings arrays to where rounds are
    computed, which may be a card.
    """
    knots, *smoother = _smoother(log_means[which])
    bend, variance = np.maximum(likelihood.bend, 0.0), start.spread**2
    arrays = bend, bend * theta - likelihood.slope, theta - FARTHEST, theta + FARTHEST, start.centre[which]
    information, own, low, high, centre, basis, solve = map(adopt, (*arrays, *smoother))
    for _ in range(ROUNDS):
        precision = information + 1.0 / variance
        mode = ((own + centre / variance) / precision).clip(low, high)
        height = solve @ mode
        centre, before = basis @ height, variance
        total = float((1.0 / precision + (mode - centre) ** 2).sum()) + ITS_WEIGHT * USUAL_SPREAD**2
        variance = float(np.clip(total / (len(theta) + ITS_WEIGHT), NARROWEST**2, WIDEST**2))
        if abs(variance - before) <= TREND_PRECISION * variance:
            break
    centre = np.interp(log_means, knots, on_host(height))
    return replace(start, centre=centre, spread=float(np.sqrt(variance)))


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


# ---------- how counts scatter around their means


@dataclass(frozen=True)
class Poisson:
    """Poisson counts. The loss is half the deviance: nothing cancels in it, however large the counts."""

    name = "poisson"
    zero_loss_is_mean = True  # only then can a quadratic replace the zeros
    cost = 0.0  # of its own parameters in the objective

    def of_features(self, which: Any) -> Poisson:
        """Return itself: all features have the same noise."""
        return self

    def loss(self, y: Array, mean: Array) -> Array:
        """``mean - y - y * log(mean / y)``, and ``mean`` where ``y = 0``."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            own = np.where(y > 0, y, 1.0)
            excess = (mean - y) / own
            log_ratio = np.where(excess > -0.5, np.log1p(excess), np.log(mean / own))
            loss = np.where(y > 0, y * (excess - log_ratio), mean)
            return np.where(np.isinf(mean), np.inf, loss)

    def gradient(self, y: Array, t: Array, at: Derivatives) -> Array:
        """``t * em' - y * (log em)'``."""
        return t * at.slope - y / at.share

    def curvature(self, y: Array, t: Array, at: Derivatives) -> Array:
        """``t * em'' - y * (log em)''``."""
        return t * at.bend + y * at.share_slope / at.share**2

    def constant(self, counts: Counts) -> float:
        """Sum of ``log(y!) - y * log(y) + y``."""
        return counts.stirling

    def plain_constant(self, counts: Counts) -> float:
        """Sum of ``log(y!)``, for the loss ``mean - y log(mean)``."""
        return counts.log_factorial


POISSON = Poisson()


# ---------- negative binomial counts


@dataclass(frozen=True, eq=False)
class NegativeBinomial:
    """Negative binomial counts.

    The loss is half the deviance, 0 at ``mean = y``. In eta its gradient is Poisson's over ``1 + phi mean``.
    The curvature that is given for steps is Poisson's over ``1 + phi mean``, too. It is not that of the loss,
    which may be negative. It is never negative; at the true mean its expectation is the Fisher information,
    ``(dmean/deta)**2 / (mean (1 + phi mean))``; and where a count is zero it stays bounded as the mean goes
    to zero, which the Fisher information does not: a loading at zero could never leave it.
    """

    # (m,): not negative; 0 is Poisson. Features are the last axis of the entries that the methods get
    dispersion: Array
    prior: Prior | None = None  # with which the dispersions were found, see `log1pnmf.model.dispersion`
    name = "negative binomial"
    zero_loss_is_mean = False

    def __post_init__(self) -> None:
        dispersion = np.array(self.dispersion, dtype=np.float64)
        dispersion.flags.writeable = False
        object.__setattr__(self, "dispersion", dispersion)

    @cached_property
    def cost(self) -> float:
        """What the prior adds to the objective."""
        return 0.0 if self.prior is None else float(self.prior.at(np.log(self.dispersion)).value.sum())

    def of_features(self, which: Any) -> NegativeBinomial:
        """Noise of some features, or of one entry of each."""
        return NegativeBinomial(self.dispersion[which]) if self.dispersion.ndim else self

    def loss(self, y: Array, mean: Array) -> Array:
        """``r log((mean + r) / (y + r)) + y log(1 + (y - mean) / (mean (1 + phi y)))``; inf if impossible."""
        phi = self.dispersion
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            beyond = (mean - y) / (1.0 + phi * y)
            ratio = (1.0 + phi * mean) / (1.0 + phi * y)
            shared = beyond * np.where(ratio < 0.5, np.log(ratio) / (ratio - 1.0), log1p_ratio(phi * beyond))
            part = beyond / mean
            own = y * np.where(part > 0.5, np.log(y / mean * ratio), np.log1p(-part))
            loss = np.where(y > 0, shared + own, shared)
            return np.where(np.isinf(mean) | ((y > 0) & (mean == 0)), np.inf, loss)

    def gradient(self, y: Array, t: Array, at: Derivatives) -> Array:
        """Poisson's over ``1 + phi mean``."""
        return POISSON.gradient(y, t, at) / self._variance_ratio(t, at)

    def curvature(self, y: Array, t: Array, at: Derivatives) -> Array:
        """Poisson's over ``1 + phi mean``: what replaces the second derivative in steps."""
        return POISSON.curvature(y, t, at) / self._variance_ratio(t, at)

    def constant(self, counts: Counts) -> float:
        """Sum over the counts of what each costs at a mean of its own size."""
        y, phi = counts.tally.values, self._of_tally(counts)
        return float(np.sum(counts.tally.times * (stirling(y) + excess_constant(y, phi))))

    def plain_constant(self, counts: Counts) -> float:
        """Return the same for the loss ``-y log(mean) + (y + r) log(1 + phi mean)``."""
        y, phi = counts.tally.values, self._of_tally(counts)
        losses = y * (np.log1p(phi * y) + log1p_ratio(phi * y) - np.log(y))
        return self.constant(counts) - float(np.sum(counts.tally.times * losses))

    def _of_tally(self, counts: Counts) -> Array:
        """Dispersion of every entry of the tally."""
        return self.of_features(counts.tally.feature).dispersion

    def _variance_ratio(self, t: Array, at: Derivatives) -> Array:
        return 1.0 + self.dispersion * (t * at.share * at.slope)


def log1p_ratio(x: Array) -> Array:
    """``log(1 + x) / x``, 1 at 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x == 0.0, 1.0, np.log1p(x) / x)


def excess_constant(y: ArrayLike, phi: ArrayLike) -> Array:
    """Describe what a count costs at a mean of its own size, beyond Poisson: about ``log(1 + phi y) / 2``.

    With ``S(y) = log(y!) - y log(y) + y`` it is ``log(1 + phi y) + S(r) - S(y + r)``.
    """
    y, phi = np.broadcast_arrays(np.asarray(y, dtype=np.float64), np.asarray(phi, dtype=np.float64))
    log_ratio = np.asarray(np.log1p(phi * y))
    excess = np.asarray(0.5 * log_ratio + series(phi) - series(phi / (1.0 + phi * y)))
    wide = phi * LARGE > 1.0  # r is small
    r = 1.0 / phi[wide]
    excess[wide] = log_ratio[wide] + stirling(r) - stirling(y[wide] + r)
    return excess


Noise: TypeAlias = Poisson | NegativeBinomial
"""How counts scatter around their means; arrays broadcast against each other, features last."""
