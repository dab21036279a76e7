"""Logarithms of factorials of large counts."""

from __future__ import annotations

import math

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import ArrayLike, NDArray

__all__ = ["LARGE", "series", "stirling"]

LARGE = 20.0
"""From here on Stirling's series has all digits."""


def stirling(y: ArrayLike) -> NDArray[np.float64]:
    """``log(y!) - y log(y) + y``, without cancellation: about ``log(2 pi y) / 2`` for large y.

    Parameters
    ----------
    y : array_like
        Not negative.

    Examples
    --------
    >>> float(stirling(0.0)), round(float(stirling(1e15)), 4)
    (0.0, 18.1883)
    """
    y = np.asarray(y, dtype=np.float64)
    small = np.minimum(y, LARGE)
    large = 0.5 * np.log(2.0 * math.pi * np.maximum(y, LARGE)) + series(1.0 / np.maximum(y, LARGE))
    exact = scipy.special.gammaln(small + 1.0) - scipy.special.xlogy(small, small) + small
    return np.where(y < LARGE, exact, large)


def series(inverse: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stirling's series: ``log(y!) - y log(y) + y - log(2 pi y) / 2`` as a function of ``1 / y``."""
    square = inverse**2
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
