"""Deviance that a count has on average under its own law: what deviances of a fit are compared with."""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy
from numpy.typing import NDArray

__all__ = ["expected_deviance"]

Array = NDArray[np.float64]

LEAST_TABLED, LARGEST_TABLED = 1e-9, 200.0
"""Means between which the expected deviance is tabled; above it is ``1 + 1 / (6 mean)``."""

DISPERSIONS = np.geomspace(1e-3, 1e3, 43)
"""Of the table for negative binomial counts; below the first one it is that of Poisson counts."""

MEANS = np.geomspace(LEAST_TABLED, 1e6, 240)
WHOLE, GROWTH, LARGEST_COUNT = 400, 1.03, 1e9
"""Counts that are summed over: one by one, and then in ranges that grow by a factor."""


def expected_deviance(mean: Array, dispersion: Array | None = None) -> Array:
    """Deviance that a count with this mean has on average.

    Parameters
    ----------
    dispersion : ndarray, optional
        Of negative binomial counts, for every feature, the last axis of `mean`; None: Poisson.

    Examples
    --------
    >>> expected_deviance(np.array([0.0, 0.01, 1.0, 1000.0])).round(3).tolist()
    [0.0, 0.092, 1.147, 1.0]
    >>> expected_deviance(np.array([0.01, 1.0, 1000.0]), np.array(2.0)).round(3).tolist()
    [0.08, 0.873, 1.257]
    """
    grid, values = _poisson_table()
    inside = np.interp(np.log(np.clip(mean, LEAST_TABLED, LARGEST_TABLED)), grid, values)
    inside *= np.minimum(mean / LEAST_TABLED, 1.0)
    of_poisson = np.where(mean > LARGEST_TABLED, 1.0 + 1.0 / (6.0 * np.maximum(mean, 1e-300)), inside)
    if dispersion is None:
        return of_poisson
    phi = np.broadcast_to(dispersion, mean.shape)
    places = [_place(phi, DISPERSIONS), _place(mean, MEANS)]
    ratio = scipy.ndimage.map_coordinates(_ratio_table(), places, order=1)
    near = np.minimum(phi / DISPERSIONS[0], 1.0)  # from Poisson's to the first of the table
    return of_poisson * (1.0 + near * (ratio - 1.0))


def _place(values: Array, grid: Array) -> Array:
    """Give the place of values in a geometric grid; that of the end where they are beyond it."""
    logs = np.log(np.clip(values, grid[0], grid[-1]) / grid[0])
    place: Array = np.minimum(logs / np.log(grid[1] / grid[0]), len(grid) - 1.0)
    return place


@cache
def _poisson_table() -> tuple[Array, Array]:
    grid = np.linspace(np.log(LEAST_TABLED), np.log(LARGEST_TABLED), 600)
    mean = np.exp(grid)[:, None]
    y = np.arange(400.0)[None, :]
    deviance = 2.0 * (scipy.special.xlogy(y, np.where(y > 0.0, y, 1.0) / mean) - (y - mean))
    return grid, (scipy.stats.poisson.pmf(y, mean) * deviance).sum(axis=1)


@cache
def _ratio_table() -> Array:
    """Table the expected deviance of negative binomial counts over that of Poisson ones."""
    n_ranges = int(np.log(LARGEST_COUNT / WHOLE) / np.log(GROWTH))
    beyond = np.unique(np.floor(np.geomspace(WHOLE, LARGEST_COUNT, n_ranges)))
    y = np.concatenate((np.arange(WHOLE), 0.5 * (beyond[:-1] + beyond[1:] - 1.0)))
    width = np.concatenate((np.ones(WHOLE), np.diff(beyond)))
    return np.stack([_of_dispersion(phi, y, width) for phi in DISPERSIONS.tolist()]) / expected_deviance(
        MEANS
    )


def _of_dispersion(phi: float, y: Array, width: Array) -> Array:
    """Give the expected deviance at all means of the table."""
    r, mean = 1.0 / phi, MEANS[:, None]
    gammaln = scipy.special.gammaln
    logs = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0) + y * np.log(phi * mean)
    share = width * np.exp(logs - (y + r) * np.log1p(phi * mean))
    own = np.where(y > 0.0, y, 1.0)
    terms = scipy.special.xlogy(y, own / mean)
    deviance = 2.0 * (terms - (y + r) * np.log((1.0 + phi * y) / (1.0 + phi * mean)))
    found: Array = (share * deviance).sum(axis=1) / share.sum(axis=1)
    narrow = (MEANS > LARGEST_TABLED) & (phi < 0.01)  # ranges of counts would be too wide for the law
    return np.where(narrow, 1.0 + 1.0 / (6.0 * MEANS) + phi / 6.0, found)
