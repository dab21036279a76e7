"""What two factors can express when c is small: the upper right boundary of the convex hull of their rows.

Plot every feature at its entries in two factors. As ``c -> 0``, the rates that some non-negative loadings of
the two can produce, up to their scale, are mixtures of two features at most, and those two are neighbours on
the upper right boundary of the convex hull of all points (Theorem 4 of the paper, appendix). A feature inside
of it can never stand out, and two factors that peak at the same feature express no more than one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["loadings_towards", "unit_rates", "upper_right_hull"]

Array = NDArray[np.float64]


def upper_right_hull(points: ArrayLike) -> NDArray[np.intp]:
    """Find the vertices of the upper right boundary of the convex hull.

    Parameters
    ----------
    points : array of shape (m, 2)
        Rows of two factors: one point for each feature.

    Returns
    -------
    ndarray of int
        Rows of `points`, by their first coordinate: from the largest second to the largest first one. Every
        weighted sum of the coordinates with positive weights has its maximum at one of them. Of equal points
        the first is named; points inside an edge are not.

    Examples
    --------
    >>> upper_right_hull([[0, 3], [2, 2], [3, 0], [1, 1], [0, 1]]).tolist()
    [0, 1, 2]
    >>> upper_right_hull([[1, 2], [3, 4], [2, 1]]).tolist()
    [1]
    """
    table = _points(points)
    chain: list[int] = []
    for index in np.lexsort((np.arange(len(table)), -table[:, 1], -table[:, 0])).tolist():
        point = table[index]
        if chain and point[1] <= table[chain[-1], 1]:  # one to its right is as high
            continue
        while len(chain) > 1 and _turn(table[chain[-2]], table[chain[-1]], point) <= 0.0:
            chain.pop()
        chain.append(index)
    return np.array(chain[::-1], dtype=np.intp)


def unit_rates(points: ArrayLike, loadings: ArrayLike) -> tuple[Array, float]:
    """Give the rates of all features scaled to the sum 1, and the shift `c` at which they have that sum.

    Parameters
    ----------
    points : array of shape (m, K)
        Rows of the factors.
    loadings : array of shape (K,)
        Not negative and not all zero.

    Returns
    -------
    rates : ndarray of shape (m,)
        ``expm1(eta) / sum(expm1(eta))`` for ``eta = points @ loadings``; nothing overflows.
    c : float
        ``1 / sum(expm1(eta))``: the larger the loadings, the smaller.

    Examples
    --------
    >>> rates, c = unit_rates([[0, 3], [2, 2], [3, 0]], [10.0, 10.0])
    >>> rates.round(6).tolist(), c < 1e-17
    ([4.5e-05, 0.999909, 4.5e-05], True)
    """
    eta = np.asarray(points, dtype=np.float64) @ np.asarray(loadings, dtype=np.float64)
    largest = float(eta.max())
    if not largest > 0.0:
        raise ValueError("loadings must give some feature a positive rate, got none; pass larger loadings")
    relative = np.exp(eta - largest) * -np.expm1(-eta)
    total = float(relative.sum())
    return relative / total, math.exp(-largest) / total


def loadings_towards(
    points: ArrayLike, edge: tuple[int, int], *, share: float = 0.5, scale: float = 100.0
) -> Array:
    """Find loadings whose rates approach a mixture of two neighbours on the boundary.

    Parameters
    ----------
    points : array of shape (m, 2)
    edge : (int, int)
        Neighbours in `upper_right_hull`, in its order.
    share : float
        Part of the first of the two in the limit, between 0 and 1.
    scale : float
        How far along the edge's normal; the mixture is reached as it grows, and the `c` that belongs to it
        falls to zero.

    Returns
    -------
    ndarray of shape (2,)

    Examples
    --------
    >>> points = [[0, 3], [2, 2], [3, 0]]
    >>> unit_rates(points, loadings_towards(points, (1, 2), share=0.25))[0].round(6).tolist()
    [0.0, 0.25, 0.75]
    """
    table = _points(points)
    if not 0.0 < share < 1.0:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    along = table[edge[1]] - table[edge[0]]
    if not (along[0] > 0.0 and along[1] < 0.0):
        raise ValueError(f"edge must lead to the right and down, got {along.tolist()} from {edge}")
    length = float(np.hypot(*along))
    normal = np.array([-along[1], along[0]]) / length
    loadings = scale * normal + math.log((1.0 - share) / share) / length**2 * along
    if (loadings < 0.0).any():
        raise ValueError(f"scale must be larger for this edge and share, got {scale}")
    return loadings


def _points(points: ArrayLike) -> Array:
    table = np.asarray(points, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != 2 or not len(table) or not np.isfinite(table).all():
        raise ValueError(f"points must be a finite table with two columns, got shape {table.shape}")
    return table


def _turn(a: Array, b: Array, c: Array) -> float:
    """Positive where the way from a over b to c turns left."""
    return float((b[0] - a[0]) * (c[1] - b[1]) - (b[1] - a[1]) * (c[0] - b[0]))
