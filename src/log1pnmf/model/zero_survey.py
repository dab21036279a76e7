"""Which zeros to visit: how well quadratics do at the zeros of every feature, and what follows from that."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .link import Link

__all__ = [
    "Chosen",
    "ZeroSurvey",
    "caps_for",
    "choose",
    "polynomial",
    "survey_feature",
    "surveyed_every",
    "zero_costs",
]

Array = NDArray[np.float64]

LARGEST_CAP = 1.5
"""Beyond that no quadratic comes near an exponential."""
N_CAPS, N_SMALLER_CAPS = 10, 4
LOWEST_PRICE, HIGHEST_PRICE = 1e-12, 1e2
"""Of a visited zero, in units of the errors that are allowed in all."""
MOST_BENT, MOST_OF_ALL, LARGEST_BEND = 0.35, 0.2, 1e3
"""Part of the slope of a mean that the concave part may take from any zero, and from all zeros that are not
visited; and how large it may be for any entry, because visited entries are subtracted from sums of all."""
FLATTEST, STEEPEST = 0.9, 4.0
"""With dispersions, how many times that of the expansion a slope is at least, and a coefficient at most. The
concave part (`MOST_BEND`) never takes the whole of such a slope. Where zeros have nearly the same eta, least
squares alone would give any number."""
SURVEYED = 1024
"""Samples that are enough to choose which zeros to visit."""


def surveyed_every(n_samples: int) -> int:
    """Say which samples a survey looks at: 1 is every one, 2 every second."""
    return max(1, n_samples // SURVEYED)


class ZeroSurvey(NamedTuple):
    """How well quadratics do at the zeros of every feature, if those with eta above a cap are visited.

    Parameters
    ----------
    caps : ndarray of shape (G,)
        Ascending.
    error : ndarray of shape (m, G)
        Sum of ``t * |loss / t - quadratic|`` over the zeros below the cap.
    n_above : ndarray of shape (m, G)
        Zeros above it.
    quadratics : ndarray of shape (m, G, 3) or (m, G, 5)
        Fitted by least squares, weighed by exposure; see `log1pnmf.model.zeros.AdaptiveZeros`.
    """

    caps: Array
    error: Array
    n_above: Array
    quadratics: Array


class Chosen(NamedTuple):
    """Cap and quadratic of every feature, how many zeros are above the caps, and the errors of the others."""

    caps: Array
    quadratics: Array
    n_above: float
    error: float


def caps_for(tolerance: float, *, dispersed: bool = False) -> Array:
    """Caps to look at; a tighter tolerance and dispersions need smaller ones.

    Examples
    --------
    >>> [round(float(cap), 3) for cap in caps_for(1e-4)[[0, -1]]]
    [0.05, 1.5]
    """
    smallest = min(0.05, 2.0 * np.cbrt(max(tolerance, 1e-15)))
    if dispersed:
        return np.geomspace(0.2 * smallest, LARGEST_CAP, N_CAPS + N_SMALLER_CAPS)
    return np.geomspace(smallest, LARGEST_CAP, N_CAPS)


def choose(survey: ZeroSurvey, limit: float) -> Chosen:
    """Choose a cap for every feature, so that few zeros are visited and the errors sum up to at most `limit`.

    A visited zero has a price in units of error, the same for all features; every feature takes the cap with
    the least error and price. The highest price that meets the limit is taken, or the lowest there is. The
    errors grow with the price, so it is found by bisection.
    """
    features, limit = np.arange(len(survey.error)), max(limit, 1e-300)
    low, high = math.log(limit) + math.log(LOWEST_PRICE), math.log(limit) + math.log(HIGHEST_PRICE)

    def at(price: float) -> tuple[NDArray[np.intp], float]:
        best = np.argmin(survey.error + math.exp(price) * survey.n_above, axis=1)
        return best, float(survey.error[features, best].sum())

    while high - low > 1e-3:
        price = 0.5 * (low + high)
        low, high = (price, high) if at(price)[1] <= limit else (low, price)
    best, error = at(low)
    return Chosen(
        survey.caps[best],
        np.ascontiguousarray(survey.quadratics[features, best]),
        float(survey.n_above[features, best].sum()),
        error,
    )


def zero_costs(eta: Array, t: Array, link: Link, dispersion: float | None) -> tuple[Array, Array]:
    """Give what zeros cost over t, and the measure that is held against caps.

    Parameters
    ----------
    eta, t : ndarray of shape (zeros,)
        Linear predictor and exposure of the zeros of one feature.
    dispersion : float or None
        Of the feature; None is Poisson. With it the measure is the larger of eta (not with the identity link)
        and ``dispersion * mean``.
    """
    em = link.em(eta)
    if dispersion is None:
        return em, eta
    x = dispersion * t * em
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(x == 0.0, 1.0, np.log1p(x) / x)
    return em * ratio, x if link.is_identity else np.maximum(eta, x)


def polynomial(eta: Array, t: Array, quadratic: Array) -> Array:
    """Evaluate what stands in for the costs, see `log1pnmf.model.zeros.AdaptiveZeros.quadratics`."""
    value: Array = quadratic[0] + eta * (quadratic[1] + eta * quadratic[2])
    return value + t * (quadratic[3] + eta**2 * quadratic[4]) if len(quadratic) == 5 else value


def survey_feature(
    eta: Array,
    t: Array,
    cap: float,
    *,
    link: Link,
    dispersion: float | None = None,
    largest: float = 0.0,
    straight: bool = False,
) -> tuple[float, int, Array]:
    """Survey the zeros of one feature for one cap; engines are tested against it.

    Parameters
    ----------
    eta, t, dispersion
        As in `zero_costs`.
    largest : float
        With a dispersion, ``t * eta`` of the entry where it is largest, be that a zero or not.
    straight : bool
        Whether to do without a concave part.

    Returns
    -------
    error, n_above, quadratic
        As in `ZeroSurvey`.
    """
    cost, measure = zero_costs(eta, t, link, dispersion)
    below = measure <= cap
    x, w, cost = eta[below], t[below], cost[below]
    center, scale = _standard(x, w)
    # least squares correct an expansion, so that nothing is lost where all eta are nearly equal
    level, slope = (center, 1.0) if link.is_identity else (math.expm1(center), math.exp(center))
    curve = 0.0 if link.is_identity else 0.5 * slope
    d = x - center
    basis, rest = [np.ones_like(x), d / scale, (d / scale) ** 2], cost - (level + d * (slope + curve * d))
    known, least, most = [level, slope * scale, curve * scale**2], [-np.inf, -np.inf, 0.0], [np.inf] * 3
    if dispersion is not None:
        middle, spread = _standard(w, w)
        square = w * x**2
        unit = max(math.sqrt(np.average(square**2, weights=w)), 1e-100) if len(x) else 1.0
        basis, rest = [*basis, (w - middle) / spread, square / unit], rest + 0.5 * dispersion * square
        known = [*known, 0.0, -0.5 * dispersion * unit]
        bent, widest = 0.0, float(np.max(w * x, initial=0.0))
        if widest > 0.0:
            of_all = MOST_OF_ALL * float(w @ x) / float(w @ square)
            bent = min(0.5 * MOST_BENT / widest, 0.5 * of_all, LARGEST_BEND / max(largest, widest) ** 2)
            bent = min(bent, 0.5 * STEEPEST * slope**2 * dispersion)
        flattest = 0.0 if straight else FLATTEST * slope * scale
        least = [-np.inf, flattest, 0.0, -np.inf, 0.0 if straight else -bent * unit]
        square_most = 0.0 if link.is_identity else STEEPEST * slope * scale**2
        most = [np.inf, STEEPEST * slope * scale, square_most, np.inf, 0.0]
    root = np.sqrt(w)[:, None]
    found = _bounded(root * np.stack(basis, axis=1), root[:, 0] * rest, np.array(known), least, most)
    quadratic = _powers(found[:3], center, scale)
    if dispersion is not None:
        by_t = found[3] / spread
        quadratic = np.array([quadratic[0] - middle * by_t, *quadratic[1:], by_t, found[4] / unit])
    error = float(w @ np.abs(cost - polynomial(x, w, quadratic)))
    return error, int(np.count_nonzero(~below)), quadratic


def _bounded(basis: Array, rest: Array, known: Array, least: list[float], most: list[float]) -> Array:
    """Add least squares to what is known; where a sum is out of its bounds it is set to the next one."""
    fixed, found = np.equal(least, most), np.clip(known, least, most)
    while True:
        free = np.flatnonzero(~fixed)
        left = rest - basis[:, fixed] @ (found - known)[fixed]
        if len(rest):
            found[free] = known[free] + np.linalg.lstsq(basis[:, free], left, rcond=1e-9)[0]
        out = ~fixed & ((found < least) | (found > most))
        if not out.any():
            return found
        fixed |= out
        found = np.clip(found, least, most)


def _standard(x: Array, w: Array) -> tuple[float, float]:
    """Weighed mean and standard deviation; the latter is never zero."""
    total = float(w.sum())
    mean = float(w @ x) / total if total > 0.0 else 0.0
    variance = float(w @ (x - mean) ** 2) / total if total > 0.0 else 0.0
    return mean, max(math.sqrt(variance), 1e-7 * (1.0 + mean))


def _powers(standardised: Array, center: float, scale: float) -> Array:
    """Coefficients of ``(x - center) / scale`` to those of x."""
    constant, linear, square = standardised / np.array([1.0, scale, scale**2])
    return np.array([constant - center * (linear - center * square), linear - 2.0 * center * square, square])
