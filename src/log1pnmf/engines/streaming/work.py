"""The work on one chunk in a pass, in this process or on a worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.chunked.tasks import Labels
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine, RowSums
from log1pnmf.model.batch_effects import dispersed_sums
from log1pnmf.model.batches import Batches
from log1pnmf.model.constraint import NON_NEGATIVE, Bounds
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.noise import Noise
from log1pnmf.model.problem import Problem
from log1pnmf.model.spectrum import MeanSpectrum
from log1pnmf.model.zeros import AdaptiveZeros, Zeros

__all__ = [
    "BatchPass",
    "BatchSums",
    "ChunkModel",
    "ChunkPass",
    "ChunkRows",
    "FactorSums",
    "SpectrumPass",
    "with_zeros",
]

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
    linear : ndarray of shape (B, K)
        Sum of the loadings in each batch, weighed by exposure; one row without batches.
    errors : ndarray of shape (2,)
        See `log1pnmf.engines.base.Engine.zero_errors`; only of a pass that asks for them.
    """

    rows: RowSums
    linear: Array
    errors: Array

    @classmethod
    def zeros(cls, n_features: int, n_components: int, n_batches: int = 1) -> FactorSums:
        """Make sums over no samples."""
        linear = np.zeros((n_batches, n_components))
        return cls(RowSums.zeros(n_features, n_components), linear, np.zeros(2))

    def plus(self, other: FactorSums) -> FactorSums:
        """Give new sums over the samples of both."""
        sums = FactorSums.zeros(len(self.rows.loss), *self.linear.T.shape)
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
class ChunkModel:
    """What all chunks share.

    Parameters
    ----------
    effects : ndarray of shape (B, m), optional
        Of batches.
    large : bool
        `log1pnmf.model.problem.Problem.is_large` of the whole.
    """

    link: ShiftedLog
    noise: Noise
    effects: Array | None = None
    large: bool = False

    @classmethod
    def of(cls, problem: Problem) -> ChunkModel:
        """Give that of a whole problem."""
        effects = None if problem.batches is None else problem.batches.effects
        return cls(problem.link, problem.noise, effects, problem.is_large)


@dataclass(frozen=True, eq=False)
class _Piece(Problem):
    """Some rows of a problem; the constants belong to the whole problem, which also decides `large`."""

    large: bool = False

    @classmethod
    def of(
        cls, counts: Counts, sizes: Array, labels: Labels, model: ChunkModel, zeros: Zeros | None
    ) -> _Piece:
        """Give the problem of a chunk."""
        batches = None
        if model.effects is not None:
            assert labels is not None
            batches = Batches(labels, model.effects)
        return cls(counts, sizes, model.link, zeros, model.noise, batches, large=model.large)

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
        Adaptive ones are found in every chunk anew, from its loadings at the start and the factors.
    factors : ndarray of shape (m, K)
        On the eta scale.
    bounds : Bounds
        Of the loadings: the same for all samples, or of each kind of samples. Then the label of a sample is
        the number of its kind times that of the batches, plus the number of its batch.
    held : tuple of int
        Columns that stay as they are.
    """

    task: Literal["evaluate", "step", "settle", "errors"]
    factors: Array
    model: ChunkModel
    zeros: Zeros | None
    bounds: Bounds = NON_NEGATIVE
    n_threads: int | None = None
    held: tuple[int, ...] = ()

    def no_sums(self) -> FactorSums:
        """Make sums over no chunks."""
        effects = self.model.effects
        m, k = self.factors.shape
        return FactorSums.zeros(m, k, 1 if effects is None else len(effects))

    def __call__(
        self, counts: Counts, sizes: Array, labels: Labels, *, start: Array, into: FactorSums
    ) -> ChunkRows:
        """Work on the rows of one chunk; loadings are on the eta scale."""
        bounds, effects = self.bounds, self.model.effects
        if bounds.differs:
            assert labels is not None
            kind, batch = np.divmod(labels, 1 if effects is None else len(effects))
            bounds, labels = bounds.of_rows(kind), None if effects is None else batch
        piece = _Piece.of(counts, sizes, labels, self.model, None)
        engine = with_zeros(piece, self.zeros, start, self.factors, self.n_threads)
        side, decrease, rejected = engine.problem.loadings_side, 0.0, 0
        if self.task == "errors":
            into.errors[:] += engine.zero_errors(start, self.factors)
            return ChunkRows(start, np.zeros(start.shape, dtype=np.float32), 0.0, 0)
        if self.task == "evaluate":
            values, gradient = start, engine.evaluate(side, start, self.factors)[1]
        else:
            values, bounds = start, bounds.holding(start, self.held)
            for _ in range(SETTLING_STEPS if self.task == "settle" else 1):
                step = engine.half_step(side, values, self.factors, bounds=bounds, with_loss=False)
                values, gradient = step.values, step.gradient
                decrease, rejected = step.predicted_decrease, step.n_rejected
        if self.task == "settle":  # far from the start
            engine = with_zeros(piece, self.zeros, values, self.factors, self.n_threads)
            gradient = engine.evaluate(engine.problem.loadings_side, values, self.factors)[1]
        gradient = np.where(np.diff(counts.by_row.indptr)[:, None] == 0, 0.0, gradient)
        if isinstance(engine.problem.zeros, AdaptiveZeros):
            into.rows.loss[:] += engine.problem.zeros.constants
        engine.add_statistics(engine.problem.factors_side, self.factors, values, into=into.rows)
        batches = engine.problem.batches
        if batches is None:
            into.linear[0] += side.row_exposure @ values
        else:
            into.linear[:] += batches.members(side.row_exposure) @ values
        most = float(np.finfo(np.float32).max)
        return ChunkRows(values, gradient.clip(-most, most).astype(np.float32), decrease, rejected)


def with_zeros(
    piece: Problem, zeros: Zeros | None, loadings: Array, factors: Array, n_threads: int | None
) -> NativeEngine:
    """Make the engine of a chunk; adaptive zeros are found for its loadings."""
    if not isinstance(zeros, AdaptiveZeros):
        return NativeEngine(replace(piece, zeros=zeros), n_threads)
    stored, exposure = NativeEngine(piece, n_threads).collect_zeros(loadings, factors, zeros.caps)
    return NativeEngine(replace(piece, zeros=replace(zeros, stored=stored, exposure=exposure)), n_threads)


@dataclass(frozen=True, eq=False)
class SpectrumPass:
    """One pass that condenses the means of all chunks: a `log1pnmf.counts.chunked.tasks.ChunkTask`.

    Parameters
    ----------
    low : ndarray of shape (m,)
        See `log1pnmf.model.spectrum.MeanSpectrum`.
    """

    factors: Array
    model: ChunkModel
    low: Array
    n_threads: int | None = None

    def no_sums(self) -> MeanSpectrum:
        """Make sums over no chunks."""
        return MeanSpectrum.zeros(self.low)

    def __call__(
        self, counts: Counts, sizes: Array, labels: Labels, *, start: Array, into: MeanSpectrum
    ) -> None:
        """Add the rows of one chunk; loadings are on the eta scale."""
        problem = _Piece.of(counts, sizes, labels, self.model, None)
        NativeEngine(problem, self.n_threads).add_spectrum(start, self.factors, into=into)


@dataclass(frozen=True, eq=False)
class BatchSums:
    """Sums over the samples of each batch, one matrix after the other, each batches x features."""

    values: Array

    def plus(self, other: BatchSums) -> BatchSums:
        """Give new sums over the samples of both."""
        return BatchSums(self.values + other.values)


@dataclass(frozen=True, eq=False)
class BatchPass:
    """One pass that sums up what effects of batches need: a `log1pnmf.counts.chunked.tasks.ChunkTask`.

    Those are means (`log1pnmf.engines.base.Engine.batch_sums`), or with dispersions three sums
    (`log1pnmf.model.batch_effects.dispersed_sums`).

    Parameters
    ----------
    zeros : Zeros or None
        As in `ChunkPass`.
    """

    factors: Array
    model: ChunkModel
    zeros: Zeros | None
    n_threads: int | None = None

    def no_sums(self) -> BatchSums:
        """Make sums over no chunks."""
        assert self.model.effects is not None
        return BatchSums(np.zeros((1 if self._is_poisson else 3, *self.model.effects.shape)))

    def __call__(
        self, counts: Counts, sizes: Array, labels: Labels, *, start: Array, into: BatchSums
    ) -> None:
        """Add the rows of one chunk; loadings are on the eta scale."""
        problem = _Piece.of(counts, sizes, labels, self.model, None)
        if self._is_poisson:
            engine = with_zeros(problem, self.zeros, start, self.factors, self.n_threads)
            into.values[0] += engine.batch_sums(start, self.factors)
        else:
            into.values[:] += dispersed_sums(problem, start, self.factors)

    @property
    def _is_poisson(self) -> bool:
        return self.model.noise.zero_loss_is_mean
