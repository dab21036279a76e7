"""Fewer factors, where some say nearly the same, and more of them, to leave a poor optimum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from log1pnmf._common.randomness import Random
from log1pnmf.model.problem import Problem

__all__ = ["merged", "widened"]

Array = NDArray[np.float64]

POWER_STEPS = 100


def widened(loadings: Array, factors: Array, n_added: int, rng: Random) -> tuple[Array, Array]:
    """Add columns that are the mean of all samples with noise, and make room for them.

    The sum of all columns stays about the same: in the mean, all columns say less.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the eta scale, not negative.
    """
    n_samples, n_components = loadings.shape
    n_all = n_components + n_added
    mean = (factors @ loadings.mean(axis=0))[:, None] / n_all
    added = rng.uniform(0.1, 1.9, size=(n_samples, n_added))
    noise = rng.uniform(0.1, 1.9, size=(len(factors), n_added))
    return np.c_[loadings, added], np.c_[factors * (n_components / n_all), mean * noise]


def merged(problem: Problem, loadings: Array, factors: Array, n_components: int) -> tuple[Array, Array]:
    """Merge the two columns that lose least by it, again and again, until `n_components` are left.

    Two columns are replaced by the product of two vectors that is closest to their sum. Distances are
    squares, weighted by what they cost in log-likelihood at the mean rates of the features.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the eta scale, not negative.
    """
    row_weights, column_weights = _weights(problem, loadings, factors)
    while loadings.shape[1] > n_components:
        with threadpool_limits(1, user_api="blas"):  # the same bits everywhere
            of_loadings = (loadings * row_weights[:, None]).T @ loadings
            of_factors = (factors * column_weights[:, None]).T @ factors
        pair = _cheapest(of_loadings, of_factors)
        left, right = _closest(of_loadings[np.ix_(pair, pair)], of_factors[np.ix_(pair, pair)])
        loadings, factors = (
            np.c_[np.delete(values, pair, axis=1), values[:, pair] @ mixed]
            for values, mixed in ((loadings, left), (factors, right))
        )
    return loadings, factors


def _weights(problem: Problem, loadings: Array, factors: Array) -> tuple[Array, Array]:
    """Curvature of the loss in eta at the mean of every feature: exposure times a function of that mean."""
    mean = factors @ loadings.mean(axis=0)
    known = mean > 0.0
    at = problem.link.derivatives(np.where(known, mean, 1.0))
    rows, columns = problem.loadings_side.row_exposure, np.where(known, at.slope / at.share, 0.0)
    return rows / rows.max(), columns / max(float(columns.max()), np.finfo(np.float64).tiny)


def _cheapest(of_loadings: Array, of_factors: Array) -> list[int]:
    """Find the pair whose sum is closest to a product of two vectors, from the columns' inner products."""
    a, b = np.diag(of_loadings), np.diag(of_factors)
    trace = a * b + (a * b)[:, None] + 2.0 * of_loadings * of_factors
    determinant = (a * a[:, None] - of_loadings**2) * (b * b[:, None] - of_factors**2)
    lost = 0.5 * trace - np.sqrt(np.maximum(0.25 * trace**2 - np.maximum(determinant, 0.0), 0.0))
    lost[np.tril_indices(len(a))] = np.inf
    return [int(k) for k in np.unravel_index(np.argmin(lost), lost.shape)]


def _closest(of_loadings: Array, of_factors: Array) -> tuple[Array, Array]:
    """Weights of two columns, on either side, that make the product closest to their sum."""
    left = np.ones(2)
    for _ in range(POWER_STEPS):
        right = of_loadings @ left
        right /= max(float(np.linalg.norm(right)), np.finfo(np.float64).tiny)
        left = of_factors @ right
        left /= max(float(np.linalg.norm(left)), np.finfo(np.float64).tiny)
    right = of_loadings @ left
    size = float(left @ right)
    return left, right / size if size > 0.0 else np.ones(2)
