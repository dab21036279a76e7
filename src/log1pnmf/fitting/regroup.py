"""Moves of the search for a start that merge two factors and split a third one, the most promising first.

A factor's own part of a count is the count times its share of eta; with the identity link, its expected part.
A single factor says that its own counts are a table of rank one, row sums times column sums over the total.

Split: the first axis of a correspondence analysis of a factor's own counts, scores u of samples and v of
features, makes two factors of it, ``l (1 + u), f (1 + v)`` and ``l (1 - u), f (1 - v)``, halved. Merge: two
factors become the table of rank one of what both have. With the identity link the log-likelihood gains at
least what the own counts z gain, ``sum z log(new / old)`` less the change of the total, before a single
iteration; with others this ranks the moves. Some rows are enough for that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.checks import Random

Array = NDArray[np.float64]

MOST_ROWS, MOST_ENTRIES, FEWEST_ROWS = 1000, 400_000, 50  # by which moves are ranked
N_POWER = 6  # steps of the power method
STEEPEST = 0.9  # largest score: no entry of a split factor becomes zero
SMALLEST = np.finfo(np.float64).tiny


class Move(NamedTuple):
    """Merge two factors and split a third one by scores of features; `gain` is a guess."""

    merged: tuple[int, int]
    split: int
    scores: Array
    gain: float


def ranked_moves(matrix: sparse.csr_array, loadings: Array, factors: Array, rng: Random) -> list[Move]:
    """Return a move for each factor and each pair of factors that are alike, the most promising first.

    `matrix` are counts on the scale of ``loadings @ factors.T``.
    """
    n, K = loadings.shape
    most = min(MOST_ROWS, max(FEWEST_ROWS, MOST_ENTRIES * n // max(matrix.nnz, 1)))
    rows = np.sort(rng.permutation(n)[:most])
    matrix, loadings = matrix[rows], loadings[rows]
    i, j = _places(matrix)
    parts = loadings[i] * factors[j]
    ratio = matrix.data / np.maximum(parts.sum(axis=1), SMALLEST)
    of_rows, of_features = np.zeros((len(rows), K)), np.zeros((len(factors), K))
    gains, scores = np.zeros(K), np.zeros((len(factors), K))
    for k in range(K):
        own = sparse.csr_array((ratio * parts[:, k], j, matrix.indptr), shape=matrix.shape)
        of_rows[:, k], of_features[:, k] = own.sum(axis=1), own.sum(axis=0)
        u, scores[:, k] = _first_axis(own, rng)
        u, v = _clipped(u), _clipped(scores[:, k])
        excess = (of_rows[:, k] @ u) * (of_features[:, k] @ v) / max(of_rows[:, k].sum(), SMALLEST)
        gains[k] = own.data @ np.log1p(u[i] * v[j]) - excess
    unit = of_features / np.maximum(np.linalg.norm(of_features, axis=0), SMALLEST)
    alike = unit.T @ unit
    pairs = sorted(((a, b) for b in range(K) for a in range(b)), key=lambda pair: -alike[pair])
    moves = []
    for a, b in pairs[: 2 * K]:
        both, sums = (
            parts[:, a] + parts[:, b],
            (of_rows[:, a] + of_rows[:, b], of_features[:, a] + of_features[:, b]),
        )
        now = (ratio * both) @ np.log(np.maximum(both, SMALLEST))
        lost = now - _entropy(sums[0]) - _entropy(sums[1]) + _entropy(sums[0].sum())
        moves += [Move((a, b), k, scores[:, k], gains[k] - lost) for k in range(K) if k not in (a, b)]
    return sorted(moves, key=lambda move: -move.gain)


def regrouped(matrix: sparse.csr_array, loadings: Array, factors: Array, move: Move) -> tuple[Array, Array]:
    """Make a move; the scores of all samples follow from those of features."""
    (a, b), k = move.merged, move.split
    i, j = _places(matrix)
    eta = np.einsum("ek,ek->e", loadings[i], factors[j])
    values = matrix.data * loadings[i, k] * factors[j, k] / np.maximum(eta, SMALLEST)
    own = sparse.csr_array((values, j, matrix.indptr), shape=matrix.shape)
    sums = own.sum(axis=1)
    scores = own @ move.scores / np.maximum(sums, SMALLEST)
    scores /= max(math.sqrt(sums @ scores**2 / max(sums.sum(), SMALLEST)), SMALLEST)
    u, v, both = _clipped(scores), _clipped(move.scores), [a, b]
    new_loadings, new_factors = loadings.copy(), factors.copy()
    of_rows = (loadings[:, both] * factors[:, both].sum(axis=0)).sum(axis=1)
    of_features = (factors[:, both] * loadings[:, both].sum(axis=0)).sum(axis=1)
    root = max(math.sqrt(of_rows.sum()), SMALLEST)
    new_loadings[:, a], new_factors[:, a] = of_rows / root, of_features / root
    for column, sign in ((k, 1.0), (b, -1.0)):
        new_loadings[:, column] = loadings[:, k] * (1.0 + sign * u)
        new_factors[:, column] = 0.5 * factors[:, k] * (1.0 + sign * v)
    return new_loadings, new_factors


def _places(matrix: sparse.csr_array) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return row and column of each entry."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), matrix.indices


def _first_axis(own: sparse.csr_array, rng: Random) -> tuple[Array, Array]:
    """Return scores of rows and columns, whose mean is 0 and variance 1, weighted by their sums."""
    rows, columns = own.sum(axis=1), own.sum(axis=0)
    total = max(rows.sum(), SMALLEST)
    a, b = np.sqrt(rows / total), np.sqrt(columns / total)
    inverse_a, inverse_b = (np.where(x > 0.0, 1.0 / np.maximum(x, 1e-150), 0.0) for x in (a, b))
    v = rng.normal(size=len(b))
    for _ in range(N_POWER):
        v -= b * (b @ v)
        u = inverse_a * (own @ (inverse_b * v)) / total
        u -= a * (a @ u)
        u /= max(float(np.linalg.norm(u)), SMALLEST)
        v = inverse_b * (own.T @ (inverse_a * u)) / total
        v -= b * (b @ v)
        v /= max(float(np.linalg.norm(v)), SMALLEST)
    return u * inverse_a, v * inverse_b


def _clipped(scores: Array) -> Array:
    return np.clip(scores, -STEEPEST, STEEPEST)


def _entropy(values: Array) -> float:
    return float(np.sum(values * np.log(np.maximum(values, SMALLEST))))
