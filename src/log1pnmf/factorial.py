"""Logarithms of factorials of large counts."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlogy

__all__ = ["stirling"]

LARGE = 20.0


def stirling(y: ArrayLike) -> NDArray[np.float64]:
    """``log(y!) - y log(y) + y``, without cancellation: about ``log(2 pi y) / 2`` for large y.

    Parameters
    ----------
    y : array_like
        Not negative.

    Returns
    -------
    ndarray

    Examples
    --------
    >>> float(stirling(0.0)), round(float(stirling(1e15)), 6)
    (0.0, 18.188326)
    """
    y = np.asarray(y, dtype=np.float64)
    small = np.minimum(y, LARGE)
    inverse = 1.0 / np.maximum(y, LARGE)
    series = inverse * (1 / 12 - inverse**2 * (1 / 360 - inverse**2 * (1 / 1260 - inverse**2 / 1680)))
    large = 0.5 * np.log(2.0 * math.pi * np.maximum(y, LARGE)) + series
    return np.where(y < LARGE, gammaln(small + 1.0) - xlogy(small, small) + small, large)
