"""The streaming engine: both half-steps of an iteration from one pass over chunks of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from log1pnmf.engines.base import HalfStep, RowSolver
from log1pnmf.engines.native import effective_threads
from log1pnmf.problem import Side
from log1pnmf.rows import RowFile, Rows

from .opening import OnChunk
from .problem import ChunkedProblem
from .runners import runner_of
from .step import damped_step
from .work import ChunkRows, FactorSums, Order

__all__ = ["StreamingEngine"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Looked:
    """What the last pass found, and where.

    The pass looked at `loadings` (those it ended with) and `factors`; `gradient` is that of the loadings,
    None where the pass moved them afterwards.
    """

    loadings: Rows
    factors: Array
    sums: FactorSums
    gradient: Rows | None


class StreamingEngine:
    """Implementation of `log1pnmf.engines.base.Engine` for counts in chunks.

    A half-step of the loadings is a pass; it also adds up the statistics of the factors at the loadings it
    leads to, so that the factors' half-step that follows costs no further pass. That one is damped instead of
    checked (`log1pnmf.streaming.step`): its `HalfStep` is not `certain`.

    Loadings are `log1pnmf.rows.Rows` in files; factors are arrays.

    Parameters
    ----------
    problem : ChunkedProblem
    n_threads : int, optional
        In this process, or of every task on a cluster, where it is 1 by default.
    on_chunk : callable, optional
        Called with the number of chunks done in this pass, and of all, after each; the source's by default.
    """

    def __init__(
        self, problem: ChunkedProblem, n_threads: int | None = None, on_chunk: OnChunk | None = None
    ) -> None:
        self.problem = problem
        on_cluster = problem.chunked.source.client is not None
        self.n_threads = 1 if on_cluster and n_threads is None else effective_threads(n_threads)
        self._runner = runner_of(problem.chunked.source)
        self._on_chunk = problem.chunked.source.on_chunk if on_chunk is None else on_chunk
        self._looked: _Looked | None = None
        self._adopted: tuple[Any, Rows] | None = None

    def adopt(self, array: Any) -> Any:
        """Take loadings as `Rows`; factors are left as they are."""
        if isinstance(array, Rows) or len(array) != self.problem.counts.n_samples:
            return array
        if self._adopted is None or self._adopted[0] is not array:  # the same rows for the same array
            self._adopted = array, Rows.of(array, self.problem.chunked.source.folder)
        return self._adopted[1]

    def half_step(
        self,
        side: Side,
        start: Any,
        design: Any,
        *,
        penalty: Array,
        upper: float = np.inf,
        row_solver: RowSolver = "newton",
    ) -> HalfStep:
        """Improve every row of `start`; see `log1pnmf.engines.base.Engine.half_step`."""
        if row_solver != "newton":
            raise ValueError(
                f"row_solver must be 'newton' with engine='streaming', got {row_solver!r}: coordinate "
                "descent looks at every count many times"
            )
        if side is self.problem.loadings_side:
            return self._pass("step", self.adopt(start), design, upper)[1]
        sums = self._sums(self.adopt(design), start)
        step = damped_step(
            sums,
            np.asarray(start),
            totals=self.problem.chunked.column_sums,
            nnz=np.diff(side.rows.indptr),
            penalty=penalty,
            n_threads=self.n_threads,
        )
        return HalfStep(
            step.values,
            step.loss + self.problem.native_constant,
            step.gradient,
            step.predicted_decrease,
            step.n_rejected,
            certain=False,
        )

    def evaluate(self, side: Side, start: Any, design: Any) -> tuple[float, Any]:
        """Loss and gradient at `start`; see `log1pnmf.engines.base.Engine.evaluate`."""
        if side is self.problem.loadings_side:
            looked, start = self._looked, self.adopt(start)
            if looked is None or not _same(looked, start, design) or looked.gradient is None:
                looked = self._pass("evaluate", start, design, np.inf)[0]
            return self._loss(looked.sums), looked.gradient
        sums = self._sums(self.adopt(design), start)
        return self._loss(sums), sums.rows.gradient

    def loss(self, loadings: Any, factors: Any) -> float:
        """Negative log-likelihood on the eta scale, constants included, penalty excluded."""
        return self._loss(self._sums(self.adopt(loadings), factors))

    def settle(self, start: Any, factors: Array, *, upper: float = np.inf) -> Rows:
        """Solve the loadings for given factors, in one pass.

        Parameters
        ----------
        start : Rows or ndarray of shape (n, K)
        factors : ndarray of shape (m, K)
        upper : float

        Returns
        -------
        Rows
        """
        return self._pass("settle", self.adopt(start), factors, upper)[0].loadings

    # ---------------------------------------------------------------- inside

    def _loss(self, sums: FactorSums) -> float:
        return float(np.sum(sums.rows.loss)) + self.problem.native_constant

    def _sums(self, loadings: Rows, factors: Any) -> FactorSums:
        looked = self._looked
        if looked is None or not _same(looked, loadings, factors):
            looked = self._pass("evaluate", loadings, factors, np.inf)[0]
        return looked.sums

    def _pass(
        self, task: Literal["evaluate", "step", "settle"], start: Rows, factors: Any, upper: float
    ) -> tuple[_Looked, HalfStep]:
        problem, counts = self.problem, self.problem.chunked
        self._looked = None  # its sums take as much memory as those to come
        shape, folder = (counts.n_samples, start.shape[1]), counts.source.folder
        values = None if task == "evaluate" else RowFile(shape, folder=folder)
        gradient = RowFile(shape, np.float32, folder=folder)
        seen: list[ChunkRows] = []

        def receive(index: int, rows: ChunkRows) -> None:
            first = int(counts.bounds[index])
            if values is not None:
                values.write(first, rows.values)
            gradient.write(first, rows.gradient)
            seen.append(
                ChunkRows(rows.values[:0], rows.gradient[:0], rows.predicted_decrease, rows.n_rejected)
            )
            if self._on_chunk is not None:
                self._on_chunk(len(seen), len(counts.bounds) - 1)

        order = Order(
            task, np.asarray(factors), problem.link, problem.zeros, upper, self.n_threads, problem.is_large
        )
        sums = self._runner.run(order, counts, problem.size_factors, start=start, receive=receive)
        ended = start if values is None else values.rows()
        at_start = gradient.rows()
        looked = _Looked(ended, factors, sums, None if task == "step" else at_start)
        self._looked = looked
        decrease, rejected = sum(one.predicted_decrease for one in seen), sum(one.n_rejected for one in seen)
        return looked, HalfStep(ended, np.nan, at_start, decrease, rejected)  # type: ignore[arg-type]


def _same(looked: _Looked, loadings: Any, factors: Any) -> bool:
    return looked.loadings is loadings and looked.factors is factors
