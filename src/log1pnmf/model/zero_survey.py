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
N_CAPS = 10
SURVEYED = 8192
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
    return np.geomspace(0.2 * smallest if dispersed else smallest, LARGEST_CAP, N_CAPS)


def choose(survey: ZeroSurvey, limit: float) -> Chosen:
    """Choose a cap for every feature, so that few zeros are visited and the errors sum up to at most `limit`.

    A visited zero has a price in units of error, the same for all features; every feature takes the cap with
    the least error and price. The highest price that meets the limit is taken, or the lowest there is.
    """
    features = np.arange(len(survey.error))
    for price in np.geomspace(1e2, 1e-12, 85) * max(limit, 1e-300):
        best = np.argmin(survey.error + price * survey.n_above, axis=1)
        error = float(survey.error[features, best].sum())
        if error <= limit:
            break
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
    return value + t * (quadratic[3] + eta * quadratic[4]) if len(quadratic) == 5 else value


def survey_feature(
    eta: Array, t: Array, cap: float, *, link: Link, dispersion: float | None = None
) -> tuple[float, int, Array]:
    """Survey the zeros of one feature for one cap; engines are tested against it.

    Parameters
    ----------
    eta, t, dispersion
        As in `zero_costs`.

    Returns
    -------
    error, n_above, quadratic
        As in `ZeroSurvey`.
    """
    cost, measure = zero_costs(eta, t, link, dispersion)
    below = measure <= cap
    x, w, cost = eta[below], t[below], cost[below]
    center, scale = _standard(x, w)
    basis = np.vander((x - center) / scale, 3, increasing=True)
    if dispersion is not None:
        middle, spread = _standard(w, w)
        basis = np.hstack([basis, basis[:, :2] * ((w - middle) / spread)[:, None]])
    around = np.zeros(
        3
    )  # Poisson: expansion around the mean, so that nothing is lost where all eta are close
    if dispersion is None:
        around = np.array([math.expm1(center), math.exp(center) * scale, 0.5 * math.exp(center) * scale**2])
    root, rest = np.sqrt(w), cost - basis[:, :3] @ around
    found = np.zeros(5)
    for kept in (basis, np.where(np.arange(basis.shape[1]) == 2, 0.0, basis)):
        if len(x):
            found = np.linalg.lstsq(root[:, None] * kept, root * rest, rcond=1e-9)[0].astype(np.float64)
        if dispersion is None or found[2] >= 0.0:
            break
    quadratic = _powers(found[:3] + around, center, scale)
    if dispersion is None:
        quadratic[2] = max(0.0, quadratic[2])
    else:
        by_t = _powers(np.append(found[3:], 0.0), center, scale) / spread
        quadratic = np.concatenate([quadratic - middle * by_t, by_t[:2]])
    error = float(w @ np.abs(cost - polynomial(x, w, quadratic)))
    return error, int(np.count_nonzero(~below)), quadratic


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
