"""The work on one chunk in a pass, in this process or on a worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine, RowSums
from log1pnmf.model.constraint import NON_NEGATIVE, Bounds
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.noise import Noise
from log1pnmf.model.problem import Problem
from log1pnmf.model.spectrum import MeanSpectrum
from log1pnmf.model.zeros import AdaptiveZeros, Zeros

__all__ = ["ChunkPass", "ChunkRows", "FactorSums", "SpectrumPass"]

Array = NDArray[np.float64]

SETTLING_STEPS = 5
"""Newton steps of the loadings in a "settle" pass; the same for chunks of any size."""


@dataclass(frozen=True, eq=False)
class FactorSums:
    """Sums over samples that the factors' step needs.

    Parameters
    ----------
    rows : RowSums
        Loss, gradient and Hessian of every feature.
    linear : ndarray of shape (K,)
        Sum of the loadings, weighed by exposure.
    errors : ndarray of shape (2,)
        See `log1pnmf.engines.base.Engine.zero_errors`; only of a pass that asks for them.
    """

    rows: RowSums
    linear: Array
    errors: Array

    @classmethod
    def zeros(cls, n_features: int, n_components: int) -> FactorSums:
        """Make sums over no samples."""
        return cls(RowSums.zeros(n_features, n_components), np.zeros(n_components), np.zeros(2))

    def plus(self, other: FactorSums) -> FactorSums:
        """Give new sums over the samples of both."""
        sums = FactorSums.zeros(*self.rows.gradient.shape)
        for one in (self, other):
            sums.rows.add(one.rows)
            sums.linear[:] += one.linear
            sums.errors[:] += one.errors
        return sums


@dataclass(frozen=True, eq=False)
class ChunkRows:
    """Results of a pass for the rows of one chunk.

    Parameters
    ----------
    values : ndarray of shape (rows, K)
        Loadings.
    gradient : ndarray of float32, shape (rows, K)
        At the start of the rows ("evaluate" and "step"). Single precision is enough: it only measures the
        distance from the optimum.
    """

    values: Array
    gradient: NDArray[np.float32]
    predicted_decrease: float
    n_rejected: int


@dataclass(frozen=True, eq=False)
class _Piece(Problem):
    """Some rows of a problem; the constants belong to the whole problem, which also decides `large`."""

    large: bool = False

    @cached_property
    def is_large(self) -> bool:
        """Whether the counts of the whole problem are large."""
        return self.large

    @cached_property
    def constant(self) -> float:
        """0: the whole problem adds it."""
        return 0.0

    @cached_property
    def plain_constant(self) -> float:
        """0: the whole problem adds it."""
        return 0.0


@dataclass(frozen=True, eq=False)
class ChunkPass:
    """One pass over the chunks: a `log1pnmf.counts.chunked.tasks.ChunkTask`.

    Parameters
    ----------
    task : {"evaluate", "step", "settle", "errors"}
        Keep the loadings, take one step, or take several until they have nearly converged. The factors'
        statistics are those at the resulting loadings. "errors" keeps the loadings, and sums up the errors of
        the zeros alone.
    zeros : Zeros or None
        Adaptive ones are found in every chunk anew, from its loadings and the factors.
    factors : ndarray of shape (m, K)
        On the eta scale.
    bounds : Bounds
        Of the loadings, the same for all samples.
    held : tuple of int
        Columns that stay as they are.
    large : bool
        `log1pnmf.model.problem.Problem.is_large` of the whole.
    """

    task: Literal["evaluate", "step", "settle", "errors"]
    factors: Array
    link: ShiftedLog
    zeros: Zeros | None
    noise: Noise
    bounds: Bounds = NON_NEGATIVE
    n_threads: int | None = None
    large: bool = False
    held: tuple[int, ...] = ()

    def no_sums(self) -> FactorSums:
        """Make sums over no chunks."""
        return FactorSums.zeros(*self.factors.shape)

    def __call__(self, counts: Counts, sizes: Array, *, start: Array, into: FactorSums) -> ChunkRows:
        """Work on the rows of one chunk; loadings are on the eta scale."""
        engine = self._engine(counts, sizes, start)
        side, decrease, rejected = engine.problem.loadings_side, 0.0, 0
        if self.task == "errors":
            into.errors[:] += engine.zero_errors(start, self.factors)
            return ChunkRows(start, np.zeros(start.shape, dtype=np.float32), 0.0, 0)
        if self.task == "evaluate":
            values, gradient = start, engine.evaluate(side, start, self.factors)[1]
        else:
            values, bounds = start, self.bounds.holding(start, self.held)
            for _ in range(SETTLING_STEPS if self.task == "settle" else 1):
                step = engine.half_step(side, values, self.factors, bounds=bounds)
                values, gradient = step.values, step.gradient
                decrease, rejected = step.predicted_decrease, step.n_rejected
        if self.task == "settle":
            gradient = engine.evaluate(side, values, self.factors)[1]
        gradient = np.where(np.diff(counts.by_row.indptr)[:, None] == 0, 0.0, gradient)
        if isinstance(self.zeros, AdaptiveZeros) and values is not start:
            engine = self._engine(counts, sizes, values)
        if isinstance(engine.problem.zeros, AdaptiveZeros):
            into.rows.loss[:] += engine.problem.zeros.constants
        engine.add_statistics(engine.problem.factors_side, self.factors, values, into=into.rows)
        into.linear[:] += side.row_exposure @ values
        most = float(np.finfo(np.float32).max)
        return ChunkRows(values, gradient.clip(-most, most).astype(np.float32), decrease, rejected)

    def _engine(self, counts: Counts, sizes: Array, loadings: Array) -> NativeEngine:
        """Make the engine of a chunk; its zeros are found at these loadings."""
        zeros = None if isinstance(self.zeros, AdaptiveZeros) else self.zeros
        problem = _Piece(counts, sizes, self.link, zeros, self.noise, large=self.large)
        engine = NativeEngine(problem, self.n_threads)
        if not isinstance(self.zeros, AdaptiveZeros):
            return engine
        stored, exposure = engine.collect_zeros(loadings, self.factors, self.zeros.caps)
        found = replace(self.zeros, stored=stored, exposure=exposure)
        return NativeEngine(replace(problem, zeros=found), self.n_threads)


@dataclass(frozen=True, eq=False)
class SpectrumPass:
    """One pass that condenses the means of all chunks: a `log1pnmf.counts.chunked.tasks.ChunkTask`.

    Parameters
    ----------
    low : ndarray of shape (m,)
        See `log1pnmf.model.spectrum.MeanSpectrum`.
    """

    factors: Array
    link: ShiftedLog
    noise: Noise
    low: Array
    n_threads: int | None = None

    def no_sums(self) -> MeanSpectrum:
        """Make sums over no chunks."""
        return MeanSpectrum.zeros(self.low)

    def __call__(self, counts: Counts, sizes: Array, *, start: Array, into: MeanSpectrum) -> None:
        """Add the rows of one chunk; loadings are on the eta scale."""
        problem = _Piece(counts, sizes, self.link, None, self.noise)
        NativeEngine(problem, self.n_threads).add_spectrum(start, self.factors, into=into)
