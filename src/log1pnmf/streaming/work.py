"""What is done with one chunk in a pass, here or on a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from log1pnmf.approximation import Quadratic
from log1pnmf.counts import Counts
from log1pnmf.engines.native import NativeEngine, RowSums
from log1pnmf.link import ShiftedLog

from .problem import PieceOfProblem

__all__ = ["ChunkRows", "FactorSums", "Order", "work_on"]

Array = NDArray[np.float64]

SETTLING_STEPS = 5
"""Newton steps of the loadings in a pass that is to settle them; the same for chunks of any size."""


@dataclass(frozen=True, eq=False)
class Order:
    """What to do with every chunk.

    Parameters
    ----------
    task : {"evaluate", "step", "settle"}
        Leave the loadings as they are, take one step, or a few until they have about settled. The factors'
        statistics are always those at the loadings this leads to.
    factors : ndarray of shape (m, K)
        On the eta scale.
    link : ShiftedLog
    zeros : Quadratic or None
    upper : float
        Bound of the loadings.
    n_threads : int, optional
    large : bool
        `log1pnmf.problem.Problem.is_large` of the whole.
    """

    task: Literal["evaluate", "step", "settle"]
    factors: Array
    link: ShiftedLog
    zeros: Quadratic | None
    upper: float = np.inf
    n_threads: int | None = None
    large: bool = False


@dataclass(frozen=True, eq=False)
class FactorSums:
    """What the factors' step needs to know of the samples, added up.

    Parameters
    ----------
    rows : RowSums
        Loss, gradient and Hessian of every feature.
    linear : ndarray of shape (K,)
        Sum of the loadings, weighed by exposure.
    """

    rows: RowSums
    linear: Array

    @classmethod
    def zeros(cls, n_features: int, n_components: int) -> FactorSums:
        """Make sums over no samples."""
        return cls(RowSums.zeros(n_features, n_components), np.zeros(n_components))

    def add(self, other: FactorSums) -> None:
        """Add the sums over other samples, in place."""
        self.rows.add(other.rows)
        self.linear[:] += other.linear


@dataclass(frozen=True, eq=False)
class ChunkRows:
    """What a pass finds out about the rows of one chunk.

    Parameters
    ----------
    values : ndarray of shape (rows, K)
        Loadings.
    gradient : ndarray of float32, shape (rows, K)
        Where the rows started ("evaluate" and "step"); single precision, as it only measures how far the
        optimum is.
    predicted_decrease : float
    n_rejected : int
    """

    values: Array
    gradient: NDArray[np.float32]
    predicted_decrease: float
    n_rejected: int


def work_on(order: Order, counts: Counts, sizes: Array, *, start: Array, into: FactorSums) -> ChunkRows:
    """Do what is ordered with one chunk.

    Parameters
    ----------
    order : Order
    counts : Counts
        The chunk.
    sizes : ndarray of shape (rows,)
        Size factors.
    start : ndarray of shape (rows, K)
        Loadings, on the eta scale.
    into : FactorSums
        The chunk's part is added, in place.

    Returns
    -------
    ChunkRows
    """
    problem = PieceOfProblem(counts, sizes, order.link, order.zeros, order.large)
    engine, side, no_penalty = (
        NativeEngine(problem, order.n_threads),
        problem.loadings_side,
        np.zeros(start.shape[1]),
    )
    decrease, rejected = 0.0, 0
    if order.task == "evaluate":
        values, gradient = start, engine.evaluate(side, start, order.factors)[1]
    else:
        values = start
        for _ in range(SETTLING_STEPS if order.task == "settle" else 1):
            step = engine.half_step(side, values, order.factors, penalty=no_penalty, upper=order.upper)
            values, gradient = step.values, step.gradient
            decrease, rejected = step.predicted_decrease, step.n_rejected
    if order.task == "settle":
        gradient = engine.evaluate(side, values, order.factors)[1]
    gradient = np.where(np.diff(counts.by_row.indptr)[:, None] == 0, 0.0, gradient)
    engine.add_statistics(problem.factors_side, order.factors, values, into=into.rows)
    into.linear[:] += side.row_exposure @ values
    most = float(np.finfo(np.float32).max)
    return ChunkRows(values, gradient.clip(-most, most).astype(np.float32), decrease, rejected)
