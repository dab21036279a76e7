"""Loadings for given factors: every row is its own convex problem."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from log1pnmf.engines.base import Engine, RowSolver
from log1pnmf.model.constraint import NON_NEGATIVE, Bounds

__all__ = ["solve_loadings"]

Array = NDArray[np.float64]


def solve_loadings(
    engine: Engine,
    start: Array,
    factors: Array,
    *,
    bounds: Bounds = NON_NEGATIVE,
    row_solver: RowSolver = "newton",
    tol: float = 1e-10,
    max_iter: int = 500,
) -> tuple[Array, bool]:
    """Repeat the loadings' half-step until nothing is gained.

    Parameters
    ----------
    start : ndarray of shape (n, K)
        Within the bounds, on the eta scale.
    factors : ndarray of shape (m, K)
        Held fixed, on the eta scale.
    bounds : Bounds
        Of the loadings.
    tol : float
        Predicted gain per count at which to stop.
    max_iter : int
        Half-steps at most.
    """
    side, loadings = engine.problem.loadings_side, start
    for _ in range(max_iter):
        step = engine.half_step(side, loadings, factors, bounds=bounds, row_solver=row_solver)
        loadings = step.values
        if step.predicted_decrease <= tol * max(1.0, engine.problem.counts.total):
            return loadings, True
    return loadings, False
