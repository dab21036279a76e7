"""Which zeros to compute exactly, feature by feature, in plain NumPy; engines are tested against it."""

import math

import numpy as np
from numpy.typing import NDArray

from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.zeros import FLATTEST, LARGEST_BEND, MOST_BENT, MOST_OF_ALL, SHIFT, STEEPEST

Array = NDArray[np.float64]


def zero_costs(eta: Array, t: Array, link: ShiftedLog, dispersion: float | None) -> tuple[Array, Array]:
    """Return what zeros cost over t, and the measure that is held against caps.

    `dispersion`: of the feature; None is Poisson. With it the measure is the larger of eta (not with the
    identity link) and ``dispersion * mean``.
    """
    em = link.em(eta)
    if dispersion is None:
        return em, eta
    x = dispersion * t * em
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(x == 0.0, 1.0, np.log1p(x) / x)
    return em * ratio, x if link.is_identity else np.maximum(eta, x)


def polynomial(eta: Array, t: Array, quadratic: Array) -> Array:
    """Evaluate what replaces the costs, see `log1pnmf.model.zeros.AdaptiveZeros.quadratics`."""
    value: Array = quadratic[0] + eta * (quadratic[1] + eta * quadratic[2])
    if len(quadratic) == 4:
        return value + quadratic[3] * (eta + SHIFT) ** 4
    return value + t * (quadratic[3] + eta**2 * quadratic[4]) if len(quadratic) == 5 else value


def survey_feature(
    eta: Array,
    t: Array,
    cap: float,
    *,
    link: ShiftedLog,
    dispersion: float | None = None,
    largest: float = 0.0,
    straight: bool = False,
    quartic: bool = False,
) -> tuple[float, int, Array]:
    """Survey the zeros of one feature for one cap."""
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
    elif quartic:  # less its line through the centre
        at = center + SHIFT
        unit = scale**2 * (scale**2 + 4.0 * at * scale + 6.0 * at**2)
        basis, known = [*basis, ((x + SHIFT) ** 4 - at**4 - 4.0 * at**3 * d) / unit], [*known, 0.0]
        least, most = [*least, 0.0], [*most, np.inf]
    root = np.sqrt(w)[:, None]
    found = _bounded(root * np.stack(basis, axis=1), root[:, 0] * rest, np.array(known), least, most)
    quadratic = _powers(found[:3], center, scale)
    if dispersion is not None:
        by_t = found[3] / spread
        quadratic = np.array([quadratic[0] - middle * by_t, *quadratic[1:], by_t, found[4] / unit])
    elif quartic:
        a4 = found[3] / unit
        line = a4 * np.array([4.0 * at**3 * center - at**4, -4.0 * at**3, 0.0])
        quadratic = np.append(quadratic + line, a4)
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
