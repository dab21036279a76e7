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

from .link import ShiftedLog

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
    "quadratic",
    "survey_feature",
    "taylor",
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

    def of_feature(self, j: int) -> EntryZeros:
        """Give what stands in for the zeros of one feature."""
        return EntryZeros(self.a1, self.a2)

    def offset(self, exposure: Array, n_zeros: NDArray[np.int64]) -> float:
        """Sum the constant term over all zeros: `n_zeros` of every sample."""
        return self.a0m1 * float(exposure @ n_zeros)


class EntryZeros(NamedTuple):
    """Linear and quadratic coefficients at some entries, and which zeros are visited exactly instead."""

    a1: Any
    a2: Any
    stored: Any = False

    def in_place(self, y: Array) -> NDArray[np.bool_]:
        """Whether the quadratic stands in for an entry."""
        return np.logical_not((y > 0) | self.stored)


@dataclass(frozen=True, eq=False)
class AdaptiveZeros:
    """A quadratic in eta for the zeros of every feature, and the zeros that are visited one by one.

    Parameters
    ----------
    quadratics : ndarray of shape (m, 3)
        Constant, linear and quadratic coefficient of every feature: ``expm1(eta)`` is about their polynomial.
    stored : Pattern
        Zeros that are visited, features x samples.
    exposure : ndarray of shape (m,)
        Sum of the exposures of the other zeros.
    caps : ndarray of shape (m,)
        Those with eta above it were chosen to be visited.
    error : float
        Sum over the others of ``t * |expm1(eta) - quadratic|`` where the set was chosen.
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

    @cached_property
    def by_sample(self) -> Pattern:
        """Zeros that are visited, samples x features."""
        return self.stored.transpose()

    def of_samples(self, block: slice) -> EntryZeros:
        """Give what stands in for the zeros of some samples."""
        return EntryZeros(self.a1[None, :], self.a2[None, :], self.by_sample.to_dense(block))

    def of_feature(self, j: int) -> EntryZeros:
        """Give what stands in for the zeros of one feature."""
        return EntryZeros(self.a1[j], self.a2[j], self.stored.to_dense(slice(j, j + 1))[0])

    def offset(self, exposure: Array, n_zeros: NDArray[np.int64]) -> float:
        """Sum the constant terms over all zeros that are not visited."""
        return float(self.quadratics[:, 0] @ self.exposure)


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
        Sum of ``t * |expm1(eta) - quadratic|`` over the zeros below the cap.
    n_above : ndarray of shape (m, G)
        Zeros above it.
    quadratics : ndarray of shape (m, G, 3)
        Fitted by least squares, weighed by exposure.
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


def caps_for(tolerance: float) -> Array:
    """Caps to look at; a tighter tolerance needs smaller ones.

    Examples
    --------
    >>> [round(float(cap), 3) for cap in caps_for(1e-4)[[0, -1]]]
    [0.05, 1.5]
    """
    return np.geomspace(min(0.05, 2.0 * np.cbrt(max(tolerance, 1e-15))), LARGEST_CAP, N_CAPS)


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


def survey_feature(eta: Array, t: Array, cap: float) -> tuple[float, int, Array]:
    """Survey the zeros of one feature for one cap; engines are tested against it.

    Parameters
    ----------
    eta, t : ndarray of shape (zeros,)
        Linear predictor and exposure of the zeros.

    Returns
    -------
    error, n_above, quadratic
        As in `ZeroSurvey`.
    """
    below = eta <= cap
    x, w, em = eta[below], t[below], np.expm1(eta[below])
    total = float(w.sum())
    mean = float(w @ x) / total if total > 0 else 0.0
    variance = max(0.0, float(w @ (x - mean) ** 2) / total) if total > 0 else 0.0
    d, scale = x - mean, max(math.sqrt(variance), 1e-7 * (1.0 + mean))
    rest = em - (math.expm1(mean) + math.exp(mean) * d * (1.0 + 0.5 * d))  # around the mean
    powers = np.vander(d / scale, 3, increasing=True)
    normal = powers.T @ (w[:, None] * powers)
    normal += np.diag(1e-9 * np.diag(normal) + 1e-9 * total + 1e-300)
    by0, by1, by2 = np.linalg.solve(normal, powers.T @ (w * rest))
    linear = math.exp(mean) + by1 / scale
    square = max(0.0, 0.5 * math.exp(mean) + by2 / scale**2)
    quadratic = np.array(
        [math.expm1(mean) + by0 - mean * (linear - mean * square), linear - 2.0 * mean * square, square]
    )
    error = float(w @ np.abs(em - np.polynomial.polynomial.polyval(x, quadratic)))
    return error, int(np.count_nonzero(~below)), quadratic
