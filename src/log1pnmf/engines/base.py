"""What an engine is: a half-step over independent rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf.model.problem import Problem, Side

__all__ = ["ROW_SOLVERS", "Engine", "HalfStep", "InMemory", "RowSolver", "Sample", "check_row_solver"]

RowSolver = Literal["newton", "coordinate"]
ROW_SOLVERS: tuple[RowSolver, ...] = ("newton", "coordinate")


def check_row_solver(name: str) -> None:
    """Refuse a name that is not one of `ROW_SOLVERS`."""
    check_choice("row_solver", name, ROW_SOLVERS)


@dataclass(frozen=True, eq=False)
class HalfStep:
    """Improved rows, and what was known at their start.

    Parameters
    ----------
    values : ndarray of shape (rows, K)
        The improved rows.
    loss : float
        At the start, summed over rows; constants included, penalty excluded.
    gradient : ndarray of shape (rows, K)
        At the start; penalty excluded.
    predicted_decrease : float
        Of the penalised loss, by the quadratic models that were solved.
    n_rejected : int
        Rows whose full step was refused and backtracked.
    certain : bool
        Whether the penalised loss at `values` is known not to be above that at the start.
    """

    values: NDArray[np.float64]
    loss: float
    gradient: NDArray[np.float64]
    predicted_decrease: float
    n_rejected: int
    certain: bool = True


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows of a problem whose counts are not in memory.

    Parameters
    ----------
    engine : Engine
        Of these rows.
    settle : callable
        Called with one row of loadings, where all rows start, with factors and the upper bound of the
        loadings; gives the loadings of all rows of the problem for these factors.
    """

    engine: Engine
    settle: Callable[[NDArray[np.float64], NDArray[np.float64], float], Any]


class InMemory:
    """Base of engines whose counts are all at hand."""

    def sample(self) -> Sample | None:
        """No sample is needed."""
        return None


class Engine(Protocol):
    """Computes half-steps of one problem. All factors are on the eta scale."""

    @property
    def problem(self) -> Problem:
        """The problem it was made for."""
        ...

    def adopt(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bring an array to where the engine computes (`log1pnmf._common.arrays`); nothing is done where it is there.

        The other methods take either kind of array, and answer in the kind of `start`.
        """
        ...

    def sample(self) -> Sample | None:
        """Give some rows on which a start can be found, where the counts are not in memory; None otherwise."""
        ...

    def half_step(
        self,
        side: Side,
        start: NDArray[np.float64],
        design: NDArray[np.float64],
        *,
        penalty: NDArray[np.float64],
        upper: float,
        row_solver: RowSolver,
    ) -> HalfStep:
        """Improve every row ``b`` of `start`: ``min loss(b) + penalty'b, 0 <= b <= upper``.

        Parameters
        ----------
        side : Side
            ``problem.loadings_side`` or ``problem.factors_side``.
        start : ndarray of shape (rows, K)
            Within the bounds.
        design : ndarray of shape (columns, K)
            The other factor, held fixed.
        penalty : ndarray of shape (K,)
            Linear penalty, >= 0.
        upper : float
            Upper bound, may be inf.
        row_solver : {"newton", "coordinate"}
            One Newton step in all K coordinates, or the paper's cyclic coordinate descent.

        Returns
        -------
        HalfStep
        """
        ...

    def loss(self, loadings: NDArray[np.float64], factors: NDArray[np.float64]) -> float:
        """Negative log-likelihood, constants included, penalty excluded."""
        ...

    def evaluate(
        self, side: Side, start: NDArray[np.float64], design: NDArray[np.float64]
    ) -> tuple[float, NDArray[np.float64]]:
        """Loss (as in `loss`) and its gradient in `start`, without a step."""
        ...
