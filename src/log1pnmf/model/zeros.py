"""Quadratics that replace ``expm1`` at zero counts, so that a fit costs only its non-zeros.

`Quadratic` is the paper's: one for all zeros. `AdaptiveZeros` has one for every feature, or below c = 1 a
quartic, and computes those zeros exactly for which it is not good enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from numpy.typing import NDArray

from log1pnmf.counts.compress import Pattern

from .noise import ShiftedLog

# ---------- quadratics that replace expm1 at zero counts, so that a fit costs only its non-zeros

Array = NDArray[np.float64]

QuadraticKind: TypeAlias = Literal["chebyshev", "taylor"]
QUADRATICS: tuple[str, ...] = get_args(QuadraticKind)

SHIFT = 0.25
"""A quartic has the term ``(eta + SHIFT)**4``. Its second derivative grows at most by the factor 4 where eta
rises by SHIFT, which keeps Newton's steps safe; 0 would approximate better."""

MOST_BEND = 0.7  # part of the slope of means that the concave part may take from the zeros of a row


@dataclass(frozen=True)
class Quadratic:
    """``expm1(eta) ~ a0m1 + a1 * eta + a2 * eta**2``."""

    a0m1: float  # constant coefficient of the approximation to ``exp``, minus one
    # linear and quadratic coefficients
    a1: float
    a2: float

    @property
    def constant(self) -> float:
        """Constant coefficient."""
        return self.a0m1

    def of_samples(self, block: slice) -> EntryZeros:
        """Return what replaces the zeros of some samples."""
        return EntryZeros(self.a1, self.a2)


class EntryZeros(NamedTuple):
    """What replaces the zero loss: ``t (a1 eta + (a2 + t b2) eta**2 + a4 (eta + SHIFT)**4)``.

    `stored` marks the zeros that are computed exactly. `a2` and `a4` are not negative. `b2` is not positive:
    its term is the concave part.
    """

    a1: Any
    a2: Any
    stored: Any = False
    b2: Any = 0.0
    a4: Any = 0.0

    def in_place(self, y: Array) -> NDArray[np.bool_]:
        """Whether the quadratic replaces an entry."""
        return np.logical_not((y > 0) | self.stored)

    def loss(self, eta: Array, t: Array) -> Array:
        """Evaluate the polynomial."""
        return t * (eta * (self.a1 + (self.a2 + t * self.b2) * eta) + self.a4 * (eta + SHIFT) ** 4)

    def gradient(self, eta: Array, t: Array) -> Array:
        """Differentiate it in eta."""
        return t * (self.a1 + 2.0 * (self.a2 + t * self.b2) * eta + 4.0 * self.a4 * (eta + SHIFT) ** 3)

    def curvature(self, eta: Array, t: Array) -> Array:
        """Differentiate its convex part twice; the other lies below its tangents."""
        return t * (2.0 * self.a2 + 12.0 * self.a4 * (eta + SHIFT) ** 2)


@dataclass(frozen=True, eq=False)
class AdaptiveZeros:
    """A quadratic in eta for the zeros of every feature, and the zeros that are computed exactly."""

    # (m, 3): constant, linear and quadratic coefficient of every feature: the loss over t (``expm1(eta)``
    # with Poisson noise) is about their polynomial in eta. The quadratic one is not negative, and zero with
    # the identity link and dispersions. A quartic has a fourth, of ``(eta + SHIFT)**4``, not negative. With
    # dispersions the last two of five are a constant and a quadratic one that are multiplied by t; the
    # quadratic one is not positive (`EntryZeros`)
    quadratics: Array
    stored: Pattern  # zeros that are computed exactly, features x samples
    exposure: Array  # (m, 2): sums of t and t^2 over the other zeros
    # (m,): those whose measure (`tests/reference_zeros.py`) is above it are exact
    caps: Array
    error: float  # sum over the others of ``t * |loss / t - quadratic|`` where the set was chosen
    constants: Array = field(init=False, repr=False)  # (m,): sums of the constant terms
    of_eta: Array = field(init=False, repr=False)  # (m, 2 or 3): coefficients of eta

    def __post_init__(self) -> None:
        # numbers of single precision, two of which have room in one double of an engine; not the constants
        own, largest = self.quadratics.copy(), np.finfo(np.float32).max
        of_eta = {3: [1, 2], 4: [1, 2, 3], 5: [1, 2, 4]}[own.shape[1]]
        own[:, of_eta] = own[:, of_eta].clip(-largest, largest).astype(np.float32)
        constants = own[:, 0] * self.exposure[:, 0]
        if own.shape[1] == 5:
            constants = constants + own[:, 3] * self.exposure[:, 1]
        self.__dict__.update(quadratics=own, constants=constants, of_eta=np.ascontiguousarray(own[:, of_eta]))

    @property
    def constant(self) -> Array:
        """Constant coefficient of every feature."""
        return self.quadratics[:, 0]

    @property
    def a1(self) -> Array:
        """Linear coefficient of every feature."""
        return self.quadratics[:, 1]

    @property
    def a2(self) -> Array:
        """Quadratic coefficient of every feature."""
        return self.quadratics[:, 2]

    @property
    def a4(self) -> Array | None:
        """Coefficient of ``(eta + SHIFT)**4`` of every feature; None unless they have quartics."""
        return self.quadratics[:, 3] if self.quadratics.shape[1] == 4 else None

    @property
    def is_bent(self) -> bool:
        """Whether there is a concave part."""
        return bool(np.any(self.by_exposure[:, 1]))

    @property
    def by_exposure(self) -> Array:
        """Coefficients that are multiplied by t, features x 2; zeros with Poisson noise."""
        own = self.quadratics
        return own[:, 3:] if own.shape[1] == 5 else np.zeros((len(own), 2))

    def of_samples(self, block: slice) -> EntryZeros:
        """Return what replaces the zeros of some samples."""
        stored, a4 = self.stored.transposed.to_dense(block), 0.0 if self.a4 is None else self.a4
        return EntryZeros(self.a1, self.a2, stored, self.by_exposure[:, 1], a4)


Zeros = Quadratic | AdaptiveZeros
"""What replaces ``expm1`` at zero counts."""

EXACT_FOR_IDENTITY = Quadratic(0.0, 1.0, 0.0)
"""For the identity link the mean is linear in eta: nothing is approximated."""


def quadratic(link: ShiftedLog, kind: str = "chebyshev") -> Quadratic:
    """Return the second-order expansion of ``expm1`` around 0 ("taylor"), or an interpolation of ``exp``.

    That is in the three Chebyshev nodes of the rates from 0 to 1, where eta lies in ``[0, log(1 + 1/c)]``. In
    Newton's form the interpolant is made of divided differences of ``exp``. For close nodes (large ``c``)
    their defining quotients lose all digits; their power series has only positive terms and loses none.
    The constant follows from the interpolation error at 0: ``p(0) - 1 = x0 x1 x2 exp[0, x0, x1, x2]``.
    """
    if link.is_identity:
        return EXACT_FOR_IDENTITY
    if kind == "taylor":
        return Quadratic(0.0, 1.0, 0.5)
    x0, x1, x2 = (float(x) for x in 0.5 * math.log1p(1.0 / link.c) * (1.0 + chebpts1(3)))
    a2 = _divided_difference_of_exp(x0, x1, x2)
    a1 = _divided_difference_of_exp(x0, x1) - a2 * (x0 + x1)
    a0m1 = x0 * x1 * x2 * _divided_difference_of_exp(0.0, x0, x1, x2)
    return Quadratic(a0m1, a1, a2)


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


# ---------- which zeros to compute exactly

LARGEST_CAP, LARGEST_OF_QUARTICS = 1.5, 5.0  # beyond that none comes near an exponential
N_CAPS, N_SMALLER_CAPS = 10, 4
LOWEST_PRICE, HIGHEST_PRICE = 1e-12, 1e2
"""Of a zero that is computed exactly, in units of the errors that are allowed in all."""
MOST_BENT, MOST_OF_ALL, LARGEST_BEND = 0.35, 0.2, 1e3
"""Part of the slope of a mean that the concave part may take from any zero, and from all approximated
zeros; and how large it may be for any entry, because exact entries are subtracted from sums of all."""
FLATTEST, STEEPEST = 0.9, 4.0
"""With dispersions, how many times that of the expansion a slope is at least, and a coefficient at most. The
concave part (`MOST_BEND`) never takes the whole of such a slope. Where zeros have nearly the same eta, least
squares alone would give any number."""
SURVEYED = 1024  # samples that are enough to choose which zeros to compute exactly


def surveyed_every(n_samples: int) -> int:
    """Describe which samples a survey evaluates: 1 is every one, 2 every second."""
    return max(1, n_samples // SURVEYED)


class ZeroSurvey(NamedTuple):
    """How well quadratics do at the zeros of every feature, if those with eta above a cap are exact."""

    caps: Array  # (G,): ascending
    error: Array  # (m, G): sum of ``t * |loss / t - quadratic|`` over the zeros below the cap
    n_above: Array  # (m, G): zeros above it
    # (m, G, 3 to 5): fitted by least squares, weighed by exposure; see `log1pnmf.model.zeros.AdaptiveZeros`
    quadratics: Array


class Chosen(NamedTuple):
    """Cap and quadratic of every feature, how many zeros are above the caps, and the errors of the others."""

    caps: Array
    quadratics: Array
    n_above: float
    error: float


def caps_for(tolerance: float, *, dispersed: bool = False, quartic: bool = False) -> Array:
    """Caps to try; a tighter tolerance and dispersions need smaller ones, quartics larger ones.

    >>> [round(float(cap), 3) for cap in caps_for(1e-4)[[0, -1]]]
    [0.05, 1.5]
    """
    smallest = min(0.05, 2.0 * np.cbrt(max(tolerance, 1e-15)))
    if dispersed:
        return np.geomspace(0.2 * smallest, LARGEST_CAP, N_CAPS + N_SMALLER_CAPS)
    if quartic:
        return np.geomspace(4.0 * smallest, LARGEST_OF_QUARTICS, N_CAPS)
    return np.geomspace(smallest, LARGEST_CAP, N_CAPS)


def choose(survey: ZeroSurvey, limit: float) -> Chosen:
    """Choose a cap for every feature, so that few zeros are exact and the errors sum up to at most `limit`.

    An exact zero has a price in units of error, the same for all features; every feature takes the cap with
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
