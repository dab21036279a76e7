"""Quadratics that stand in for ``expm1`` at zero counts, so that a fit costs only its non-zeros."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice

from .link import ShiftedLog

__all__ = ["EXACT_FOR_IDENTITY", "KINDS", "Quadratic", "chebyshev", "quadratic", "taylor"]

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

    def value(self, eta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Evaluate the quadratic at `eta`."""
        return self.a0m1 + eta * (self.a1 + self.a2 * eta)


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
