"""The law of loadings and factors in the paper's simulations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["MIXTURES", "Entries", "Mixture", "mixture_for"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Mixture:
    """Law of the entries of loadings and factors, as in the paper's simulations.

    An entry is uniform with probability `p_uniform`, and otherwise exponential with a rate that is drawn,
    uniformly, for every factor.

    Parameters
    ----------
    uniform : (float, float)
        Bounds of the uniform part.
    rates : (float, float)
        Bounds of the rates of the exponential part.
    p_uniform : float
    """

    uniform: tuple[float, float]
    rates: tuple[float, float]
    p_uniform: float = 0.9

    def draw_rates(self, rng: np.random.Generator, n_components: int) -> Array:
        """Draw a rate for each of `n_components` factors from `rng`."""
        return rng.uniform(*self.rates, size=n_components)

    def draw(self, rng: np.random.Generator, n: int, rates: Array) -> Entries:
        """Draw n rows of entries with these `rates` from `rng`."""
        shape = (n, len(rates))
        return Entries(self, rng.random(shape) < self.p_uniform, rng.random(shape), rates)


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of loadings or factors, to be had at any scale.

    Parameters
    ----------
    from_uniform : ndarray of bool, shape (n, K)
        Which part each is from.
    quantiles : ndarray of shape (n, K)
        Where in that part.
    """

    mixture: Mixture
    from_uniform: NDArray[np.bool_]
    quantiles: Array
    rates: Array

    def at(self, scale: float, largest: float) -> Array:
        """Give entries `scale` times as large, but none above `largest`: the exponential part ends there."""
        low, high = self.mixture.uniform
        even = np.minimum(scale * (low + (high - low) * self.quantiles), largest)
        rates = self.rates / scale
        heavy = -np.log1p(self.quantiles * np.expm1(-rates * largest)) / rates
        return np.where(self.from_uniform, even, heavy)


MIXTURES = {
    1e-3: Mixture((0.35, 1.43), (1.2, 5.0)),
    1.0: Mixture((0.0, 0.16), (1.25, 10.0)),
    math.inf: Mixture((0.0, 0.1), (0.15, 5.0)),
}
"""The paper's constants, which give about 95% zeros with five factors."""


def mixture_for(c: float) -> Mixture:
    """Choose the paper's constants for the nearest c it has: 1e-3 up to 0.03, 1 up to 30, inf above.

    Examples
    --------
    >>> mixture_for(10.0) is MIXTURES[1.0], mixture_for(1e4) is MIXTURES[math.inf]
    (True, True)
    """
    if c <= 10**-1.5:
        return MIXTURES[1e-3]
    return MIXTURES[1.0] if c <= 10**1.5 else MIXTURES[math.inf]
