"""Quadratics that stand in for ``expm1`` at zero counts, so that a fit costs only its non-zeros.

`Quadratic` is the paper's: one for all zeros. `AdaptiveZeros` has one for every feature, and visits the zeros
for which it is not good enough one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf.counts.sparse_rows import Pattern

from .link import Link, ShiftedLog

__all__ = [
    "EXACT_FOR_IDENTITY",
    "KINDS",
    "AdaptiveZeros",
    "EntryZeros",
    "Quadratic",
    "ZeroSurvey",
    "Zeros",
    "caps_for",
    "chebyshev",
    "choose",
    "polynomial",
    "quadratic",
    "survey_feature",
    "taylor",
    "zero_costs",
]

Array = NDArray[np.float64]

KINDS = ("chebyshev", "taylor")


@dataclass(frozen=True)
class Quadratic:
    """``expm1(eta) ~ a0m1 + a1 * eta + a2 * eta**2``.

    Parameters
    ----------
    a0m1 : float
        Constant coefficient of the approximation to ``exp``, minus one.
    a1, a2 : float
        Linear and quadratic coefficients.
    """

    a0m1: float
    a1: float
    a2: float

    def value(self, eta: Array) -> Array:
        """Evaluate the quadratic at `eta`."""
        return self.a0m1 + eta * (self.a1 + self.a2 * eta)

    def of_samples(self, block: slice) -> EntryZeros:
        """Give what stands in for the zeros of some samples."""
        return EntryZeros(self.a1, self.a2)

    def offset(self, exposure: Array, n_zeros: NDArray[np.int64]) -> float:
        """Sum the constant term over all zeros: `n_zeros` of every sample."""
        return self.a0m1 * float(exposure @ n_zeros)


class EntryZeros(NamedTuple):
    """What stands in for the zero loss of some entries: ``t ((a1 + t b1) eta + a2 eta**2)``.

    `stored` says which zeros are visited exactly instead.
    """

    a1: Any
    a2: Any
    stored: Any = False
    b1: Any = 0.0

    def in_place(self, y: Array) -> NDArray[np.bool_]:
        """Whether the quadratic stands in for an entry."""
        return np.logical_not((y > 0) | self.stored)

    def loss(self, eta: Array, t: Array) -> Array:
        """Evaluate the quadratic."""
        return t * eta * (self.a1 + t * self.b1 + self.a2 * eta)

    def gradient(self, eta: Array, t: Array) -> Array:
        """Differentiate it in eta."""
        return t * (self.a1 + t * self.b1 + 2.0 * self.a2 * eta)

    def curvature(self, t: Array) -> Array:
        """Differentiate it twice."""
        return 2.0 * t * self.a2


@dataclass(frozen=True, eq=False)
class AdaptiveZeros:
    """A quadratic in eta for the zeros of every feature, and the zeros that are visited one by one.

    Parameters
    ----------
    quadratics : ndarray of shape (m, 3) or (m, 5)
        Constant, linear and quadratic coefficient of every feature: the loss over t (``expm1(eta)`` with
        Poisson noise) is about their polynomial in eta. The quadratic one is not negative: a concave form has
        no minimum. With dispersions the last two are a constant and a linear one that are multiplied by t.
    stored : Pattern
        Zeros that are visited, features x samples.
    exposure : ndarray of shape (m, 2)
        Sums of t and t^2 over the other zeros.
    caps : ndarray of shape (m,)
        Those whose measure (see `zero_costs`) is above it were chosen to be visited.
    error : float
        Sum over the others of ``t * |loss / t - quadratic|`` where the set was chosen.
    """

    quadratics: Array
    stored: Pattern
    exposure: Array
    caps: Array
    error: float

    @property
    def a1(self) -> Array:
        """Linear coefficient of every feature."""
        return self.quadratics[:, 1]

    @property
    def a2(self) -> Array:
        """Quadratic coefficient of every feature."""
        return self.quadratics[:, 2]

    @property
    def by_exposure(self) -> Array:
        """Coefficients that are multiplied by t, features x 2; zeros with Poisson noise."""
        own = self.quadratics
        return own[:, 3:] if own.shape[1] == 5 else np.zeros((len(own), 2))

    @cached_property
    def by_sample(self) -> Pattern:
        """Zeros that are visited, samples x features."""
        return self.stored.transpose()

    def of_samples(self, block: slice) -> EntryZeros:
        """Give what stands in for the zeros of some samples."""
        return EntryZeros(self.a1, self.a2, self.by_sample.to_dense(block), self.by_exposure[:, 1])

    def offset(self, exposure: Array, n_zeros: NDArray[np.int64]) -> float:
        """Sum the constant terms over all zeros that are not visited."""
        return float(np.sum(self.constants))

    @property
    def constants(self) -> Array:
        """Sum the constant terms of every feature."""
        return self.quadratics[:, 0] * self.exposure[:, 0] + self.by_exposure[:, 0] * self.exposure[:, 1]


Zeros = Quadratic | AdaptiveZeros
"""What stands in for ``expm1`` at zero counts."""

EXACT_FOR_IDENTITY = Quadratic(0.0, 1.0, 0.0)
"""For the identity link the mean is linear in eta: nothing is approximated."""


def quadratic(
    link: ShiftedLog, kind: str = "chebyshev", interval: tuple[float, float] | None = None
) -> Quadratic:
    """Quadratic of the chosen kind.

    Parameters
    ----------
    link : ShiftedLog
        The identity link always gets its exact form.
    kind : {"chebyshev", "taylor"}
        Interpolation over an interval, or expansion around zero.
    interval : (low, high), optional
        Only for "chebyshev"; see `chebyshev`.
    """
    check_choice("approximation", kind, KINDS)
    if kind == "chebyshev":
        return chebyshev(link, interval)
    if interval is not None:
        raise ValueError("interval is used by approximation 'chebyshev' only; leave it out for 'taylor'")
    return taylor(link)


def taylor(link: ShiftedLog) -> Quadratic:
    """Second-order expansion of ``expm1`` around 0 (exact for the identity link)."""
    return EXACT_FOR_IDENTITY if link.is_identity else Quadratic(0.0, 1.0, 0.5)


def chebyshev(link: ShiftedLog, interval: tuple[float, float] | None = None) -> Quadratic:
    """Interpolation of ``exp`` in the three Chebyshev nodes of an interval.

    Parameters
    ----------
    link : ShiftedLog
        The identity link gets its exact form.
    interval : (low, high), optional
        Where zero entries are expected to lie, on the link scale ``b``; both ends are divided by alpha.
        By default rates between 0 and 1, i.e. eta in ``[0, log(1 + 1/c)]``.

    Notes
    -----
    In Newton's form the interpolant is made of divided differences of ``exp``. For close nodes (large ``c``)
    their defining quotients lose all digits; their power series has only positive terms and loses none.
    The constant follows from the interpolation error at 0: ``p(0) - 1 = x0 x1 x2 exp[0, x0, x1, x2]``.
    """
    low, high = (0.0, math.log1p(1.0 / link.c)) if interval is None else _on_eta_scale(interval, link)
    if link.is_identity:
        return EXACT_FOR_IDENTITY
    if high > 600.0:
        raise ValueError(f"interval is too wide: exp overflows at its upper end, eta = {high}")
    x0, x1, x2 = (float(x) for x in low + 0.5 * (high - low) * (1.0 + chebpts1(3)))
    a2 = _divided_difference_of_exp(x0, x1, x2)
    a1 = _divided_difference_of_exp(x0, x1) - a2 * (x0 + x1)
    a0m1 = x0 * x1 * x2 * _divided_difference_of_exp(0.0, x0, x1, x2)
    return Quadratic(a0m1, a1, a2)


def _on_eta_scale(interval: tuple[float, float], link: ShiftedLog) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in interval)
    except (TypeError, ValueError):
        raise ValueError(f"interval must be two numbers (low, high), got {interval!r}") from None
    if not (0.0 <= low < high < math.inf):
        raise ValueError(f"interval must be finite with 0 <= low < high, got ({low}, {high})")
    return low / link.alpha, high / link.alpha


def _divided_difference_of_exp(*nodes: float) -> float:
    """``exp[x_0, .., x_k]`` for nodes >= 0: the sum over n of ``h_n(x_0, .., x_k) / (n + k)!``.

    ``h_n`` is the complete homogeneous symmetric polynomial, built up by
    ``h_n(x_0..x_j) = h_n(x_0..x_{j-1}) + x_j h_{n-1}(x_0..x_j)``; `terms[j]` holds ``h_n(x_0..x_j) / n!``.
    """
    order = len(nodes) - 1
    terms = [1.0] * len(nodes)
    total, n = 0.0, 0
    weight = 1.0 / math.factorial(order)  # n! / (n + order)!
    while True:
        total += terms[-1] * weight
        n += 1
        weight *= n / (n + order)
        shorter = 0.0
        for j, node in enumerate(nodes):
            terms[j] = shorter = shorter + node * terms[j] / n
        if n > 2.0 * nodes[-1] and terms[-1] * weight <= 1e-18 * total:
            return total


# ---------------------------------------------------------------- which zeros to visit

LARGEST_CAP = 1.5
"""Beyond that no quadratic comes near an exponential."""
N_CAPS = 10


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
        Fitted by least squares, weighed by exposure; see `AdaptiveZeros`.
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
    """Evaluate what stands in for the costs, see `AdaptiveZeros.quadratics`."""
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
