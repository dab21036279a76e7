"""Both half-steps from one pass over chunks of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.arrays import RowFile, Rows
from log1pnmf.counts.chunks import OnChunk
from log1pnmf.counts.compress import Pattern
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.passes import ChunkedCounts, Part
from log1pnmf.model.batch_effects import dispersed_sums
from log1pnmf.model.batches import Batches
from log1pnmf.model.dispersion import MeanSpectrum
from log1pnmf.model.noise import NegativeBinomial, Noise, ShiftedLog
from log1pnmf.model.problem import NON_NEGATIVE, Bounds, Problem, Side
from log1pnmf.model.zeros import AdaptiveZeros, Zeros, ZeroSurvey

from .base import SETTLING_STEPS, Engine, HalfStep, PairSide
from .native import NativeEngine, RowSums, effective_threads, solve_rows

# ---------- the work on one chunk in a pass, in this process or on a worker

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FactorSums(RowSums):
    """Sums over samples that the factors' step needs: those of every feature, and two more."""

    linear: Array  # (B, K): sum of the loadings in each batch, weighed by exposure; one row without batches
    errors: Array  # (2,): see `Engine.zero_errors`; only of a pass that asks for them


@dataclass(frozen=True, eq=False)
class ChunkModel:
    """What all chunks share."""

    link: ShiftedLog
    noise: Noise
    effects: Array | None = None  # (B, m): of batches

    @classmethod
    def of(cls, problem: Problem) -> ChunkModel:
        """Return that of a whole problem."""
        effects = None if problem.batches is None else problem.batches.effects
        return cls(problem.link, problem.noise, effects)

    def piece(self, counts: Counts, part: Part) -> _Piece:
        """Return the problem of a chunk, whose zeros are exact."""
        batches = None
        if self.effects is not None:
            assert part.labels is not None
            batches = Batches(part.labels, self.effects)
        return _Piece(counts, part.sizes, self.link, None, self.noise, batches)


@dataclass(frozen=True, eq=False)
class _Piece(Problem):
    """Some rows of a problem; the constant belongs to the whole problem."""

    @cached_property
    def plain_constant(self) -> float:
        """0: the whole problem adds it."""
        return 0.0


@dataclass(frozen=True, eq=False)
class ChunkPass:
    """One pass over the chunks: a `log1pnmf.counts.passes.ChunkTask`."""

    # keep the loadings, take one step, or take several until they have nearly converged. The factors'
    # statistics are those at the resulting loadings. "errors" keeps the loadings, and sums up the errors of
    # the zeros alone
    task: Literal["evaluate", "step", "settle", "errors"]
    factors: Array  # (m, K): on the eta scale
    model: ChunkModel
    # adaptive ones are found in every chunk anew, from its loadings at the start and the factors
    zeros: Zeros | None
    n_threads: int | None = None

    def no_sums(self) -> FactorSums:
        """Make sums over no chunks."""
        effects, (m, k) = self.model.effects, self.factors.shape
        linear = np.zeros((1 if effects is None else len(effects), k))
        return FactorSums.zeros(m, k, linear=linear, errors=np.zeros(2))

    def __call__(self, counts: Counts, part: Part, *, into: FactorSums) -> HalfStep:
        """Work on the rows of one chunk.

        The gradient is at the start, in single precision: it only measures the distance from the optimum.
        """
        start, piece = part.start, self.model.piece(counts, part)
        engine = with_zeros(piece, self.zeros, start, self.factors, self.n_threads)
        side, decrease, rejected = engine.problem.loadings_side, 0.0, 0
        if self.task == "errors":
            into.errors[:] += engine.zero_errors(start, self.factors)
            return HalfStep(start, np.nan, np.zeros(start.shape, dtype=np.float32), 0.0, 0)
        if self.task == "evaluate":
            values, gradient = start, engine.evaluate(side, start, self.factors)[1]
        else:
            values = start
            for _ in range(SETTLING_STEPS if self.task == "settle" else 1):
                step = engine.half_step(side, values, self.factors, bounds=part.bounds, with_loss=False)
                values, gradient = step.values, step.gradient
                decrease, rejected = step.predicted_decrease, step.n_rejected
        if self.task == "settle":  # far from the start
            engine = with_zeros(piece, self.zeros, values, self.factors, self.n_threads)
            gradient = engine.evaluate(engine.problem.loadings_side, values, self.factors)[1]
        gradient = np.where(np.diff(counts.by_row.indptr)[:, None] == 0, 0.0, gradient)
        if isinstance(engine.problem.zeros, AdaptiveZeros):
            into.loss[:] += engine.problem.zeros.constants
        engine.add_statistics(engine.problem.factors_side, self.factors, values, into=into)
        batches, t = engine.problem.batches, side.row_exposure
        into.linear[:] += (t if batches is None else batches.members(t)) @ values
        most = float(np.finfo(np.float32).max)
        return HalfStep(values, np.nan, gradient.clip(-most, most).astype(np.float32), decrease, rejected)


def with_zeros(
    piece: Problem, zeros: Zeros | None, loadings: Array, factors: Array, n_threads: int | None
) -> NativeEngine:
    """Make the engine of a chunk; adaptive zeros are found for its loadings."""
    if not isinstance(zeros, AdaptiveZeros):
        return NativeEngine(replace(piece, zeros=zeros), n_threads)
    stored, exposure = NativeEngine(piece, n_threads).collect_zeros(loadings, factors, zeros.caps)
    return NativeEngine(replace(piece, zeros=replace(zeros, stored=stored, exposure=exposure)), n_threads)


@dataclass(frozen=True, eq=False)
class SumPass:
    """One pass that condenses means, or sums up what effects of batches need: a `ChunkTask`.

    The latter are means (`Engine.batch_sums`), or with dispersions three sums
    (`log1pnmf.model.batch_effects.dispersed_sums`); each is batches x features.
    """

    factors: Array
    model: ChunkModel
    zeros: Zeros | None  # as in `ChunkPass`
    n_threads: int | None
    low: Array | None = None  # (m,): of a `log1pnmf.model.dispersion.MeanSpectrum`, where that is wanted

    def no_sums(self) -> Any:
        """Make sums over no chunks."""
        if self.low is not None:
            return MeanSpectrum.zeros(self.low)
        assert self.model.effects is not None
        return np.zeros((1 if self.model.noise.zero_loss_is_mean else 3, *self.model.effects.shape))

    def __call__(self, counts: Counts, part: Part, *, into: Any) -> None:
        """Add the rows of one chunk."""
        start, problem = part.start, self.model.piece(counts, part)
        if self.low is not None:
            NativeEngine(problem, self.n_threads).add_spectrum(start, self.factors, into=into)
        elif self.model.noise.zero_loss_is_mean:
            engine = with_zeros(problem, self.zeros, start, self.factors, self.n_threads)
            into[0] += engine.batch_sums(start, self.factors)
        else:
            assert self.model.effects is not None
            into += dispersed_sums(problem, self.model.effects, start, self.factors)


# ---------- the factors' Newton step from sums over all samples, without another pass over the data

LEAST_KEPT = 0.1
"""Fraction of an entry that one step keeps at least: it may be the only one that explains some count."""

VANISHED = 1e-6
"""An entry whose expected counts, summed over samples, are below this may become zero: it explains no count.
The threshold is multiplied by the feature's mean non-zero count where that is below 1."""

SMALL_CHANGE = 0.25  # root mean square of the relative changes of the means up to which a full step is taken


def damped_step(
    sums: FactorSums,
    start: Array,
    *,
    linear: Array,
    totals: Array,
    nnz: NDArray[np.int64],
    bounds: Bounds = NON_NEGATIVE,
    n_threads: int | None = None,
) -> HalfStep:
    """Take one damped Newton step of the factors; its length depends on the quadratic model alone.

    The curvature of a step, ``d'Hd``, is about the sum over a feature's counts of the squared relative change
    of their means. Divided by the feature's total count it is the mean squared change. Where that is not
    small, the quadratic model is not accurate and the step is shortened, as in the damped Newton method. The
    loss may still rise: the caller has to check.
    """
    typical = np.minimum(1.0, totals / np.maximum(nnz, 1))
    lower, upper, penalty = bounds.tables(start.shape[1])
    gone = (start * linear <= VANISHED * typical[:, None]) | (lower == upper)
    floor = np.where(gone, 0.0, LEAST_KEPT * start)
    above = Bounds(np.maximum(lower - floor, 0.0), upper - floor, penalty)
    solved = solve_rows(sums, start - floor, bounds=above, n_threads=n_threads)
    target = bounds.clip(solved.values + floor)  # rounding
    counted = totals > 0.0
    change = np.sqrt(solved.curvature / np.where(counted, totals, 1.0))
    length = 1.0 / np.maximum(1.0, 1.0 - SMALL_CHANGE + change)
    short = length < 1.0
    target[short] = start[short] + length[short, None] * (target[short] - start[short])
    target[~counted] = np.broadcast_to(lower, start.shape)[~counted]
    return HalfStep(
        values=target,
        loss=float(np.sum(sums.loss)),
        gradient=sums.gradient,
        predicted_decrease=float(np.sum(solved.decrease)),
        n_rejected=int(np.count_nonzero(short)),
        certain=False,
    )


# ---------- the streaming engine: both half-steps of an iteration from one pass over chunks of rows


@dataclass(frozen=True, eq=False)
class _LastPass:
    """Results of the last pass, and the point they belong to.

    `sums` are those at `factors` and at `loadings`, with which the pass ended. `gradient` is that of the
    loadings; None where the pass moved them after computing it.
    """

    loadings: Rows
    factors: Array
    sums: FactorSums
    gradient: Rows | None


class StreamingEngine(Engine):
    """Implementation of `log1pnmf.engines.base.Engine` for counts in chunks.

    A half-step of the loadings is a pass. The pass also sums the statistics of the factors at the new
    loadings, so that the factors' half-step needs no further pass. That step is damped, not checked
    (`log1pnmf.engines.streaming`): its `HalfStep` is not `certain`.

    Loadings are `log1pnmf._common.arrays.Rows` in files; factors are arrays.
    """

    def __init__(
        self, problem: Problem, n_threads: int | None = None, on_chunk: OnChunk | None = None
    ) -> None:
        self.problem, self.counts = problem, cast(ChunkedCounts, problem.counts)
        on_cluster = self.counts.source.client is not None
        self.n_threads = 1 if on_cluster and n_threads is None else effective_threads(n_threads)
        self._on_chunk = self.counts.source.on_chunk if on_chunk is None else on_chunk
        self._last: _LastPass | None = None
        self._adopted: tuple[Any, Rows] | None = None

    def with_problem(self, problem: Problem) -> StreamingEngine:
        """Return the same engine for another problem."""
        return type(self)(problem, self.n_threads, self._on_chunk)

    def adopt(self, array: Any, which: PairSide = "loadings") -> Any:
        """Take loadings as `Rows`; factors are left as they are."""
        if isinstance(array, Rows) or which == "factors":
            return array
        if self._adopted is None or self._adopted[0] is not array:  # the same rows for the same array
            self._adopted = array, Rows.of(array, self.counts.source.folder)
        return self._adopted[1]

    def half_step(
        self, side: Side, start: Any, design: Any, *, bounds: Bounds = NON_NEGATIVE, **others: Any
    ) -> HalfStep:
        """Improve every row of `start`; see `Engine.half_step`."""
        if side is self.problem.loadings_side:
            return self._pass("step", self.adopt(start), design, bounds)[1]
        sums, batches = self._sums(self.adopt(design), start), self.problem.batches
        step = damped_step(
            sums,
            np.asarray(start),
            linear=sums.linear[0] if batches is None else batches.effects.T @ sums.linear,
            totals=self._weights,
            nnz=np.diff(side.rows.indptr),
            bounds=bounds,
            n_threads=self.n_threads,
        )
        return replace(step, loss=step.loss + self.problem.plain_constant)

    def evaluate(self, side: Side, start: Any, design: Any) -> tuple[float, Any]:
        """Loss and gradient at `start`; see `Engine.evaluate`."""
        if side is self.problem.loadings_side:
            last, start = self._last, self.adopt(start)
            if last is None or not _same(last, start, design) or last.gradient is None:
                last = self._pass("evaluate", start, design, NON_NEGATIVE)[0]
            return self._loss(last.sums), last.gradient
        sums = self._sums(self.adopt(design), start)
        return self._loss(sums), sums.gradient

    def loss(self, loadings: Any, factors: Any) -> float:
        """Negative log-likelihood on the eta scale, constants included, penalty excluded."""
        return self._loss(self._sums(self.adopt(loadings), factors))

    def survey_zeros(
        self, loadings: Any, factors: Any, caps: Array, *, straight: bool = False, quartic: bool = False
    ) -> ZeroSurvey:
        """Survey the rows in memory, scaled up; see `Engine.survey_zeros`."""
        index = self.counts.sample_index
        own = _rows_at(self.adopt(loadings), index)
        found = self._kept().survey_zeros(own, np.asarray(factors), caps, straight=straight)
        scale = self.counts.n_samples / max(1, len(index))
        return found._replace(error=scale * found.error, n_above=scale * found.n_above)

    def collect_zeros(self, loadings: Any, factors: Any, caps: Array) -> tuple[Pattern, Array]:
        """List none: every chunk finds its own in every pass, and adds the constant terms of the others."""
        return Pattern.empty((len(factors), 0)), np.zeros((len(factors), 2))

    def _zero_errors(
        self, zeros: AdaptiveZeros, loadings: Any, factors: Any, roughly: bool
    ) -> tuple[float, float]:
        index = self.counts.sample_index
        if roughly and len(index):
            own, at = _rows_at(self.adopt(loadings), index), np.asarray(factors)
            sample = with_zeros(self._kept().problem, zeros, own, at, self.n_threads)
            scale = self.counts.n_samples / len(index)
            signed, absolute = sample.zero_errors(own, at, roughly=True)
            return scale * signed, scale * absolute
        last = self._last
        signed, absolute = self._pass("errors", self.adopt(loadings), factors, NON_NEGATIVE)[0].sums.errors
        self._last = last
        return float(signed), float(absolute)

    def mean_spectrum(self, loadings: Any, factors: Any) -> MeanSpectrum:
        """Condense the means in a pass; see `Engine.mean_spectrum`."""
        low = MeanSpectrum.low_for(self.counts.tally)
        return cast(MeanSpectrum, self._summed(self.problem, loadings, factors, low))

    def batch_sums(self, loadings: Any, factors: Any) -> Array:
        """Sum means over batches in a pass; see `Engine.batch_sums`."""
        return np.asarray(self._summed(self.problem, loadings, factors)[0])

    def dispersed_sums(self, effects: Array, loadings: Any, factors: Any) -> Array:
        """Sum up what effects need in a pass; see `log1pnmf.model.batch_effects.dispersed_sums`."""
        batches = self.problem.batches
        assert batches is not None
        other = replace(self.problem, batches=replace(batches, effects=effects))
        return np.asarray(self._summed(other, loadings, factors))

    def sample(self) -> tuple[Engine, NDArray[np.int64]]:
        """Return the engine of the rows that the survey kept in memory, and which they are."""
        return self._kept(), self.counts.sample_index

    def settle(self, row: Array, factors: Array, bounds: Bounds = NON_NEGATIVE) -> Rows:
        """Solve the loadings for given factors in one pass, from one row for all samples, or one for each."""
        every = np.broadcast_to(row, (self.counts.n_samples, np.shape(row)[-1]))
        start = Rows.of(every, self.counts.source.folder)
        return self._pass("settle", start, factors, bounds)[0].loadings

    # ---------------------------------------------------------------- inside

    def _summed(self, problem: Problem, loadings: Any, factors: Any, low: Array | None = None) -> Any:
        """Run a pass that only sums up."""
        work = SumPass(np.asarray(factors), ChunkModel.of(problem), problem.zeros, self.n_threads, low)
        return self._run(work, start=self.adopt(loadings))

    def _run(self, work: Any, **how: Any) -> Any:
        sizes, batches = self.problem.size_factors, self.problem.batches
        labels = None if batches is None else batches.labels
        how |= {"labels": labels, "on_chunk": self._on_chunk}
        return self.counts.runner.run(work, self.counts, sizes, **how)

    def _kept(self) -> NativeEngine:
        """Return the engine of the rows in memory; zeros are computed exactly, where they are adaptive."""
        problem, index = self.problem, self.counts.sample_index
        zeros = None if isinstance(problem.zeros, AdaptiveZeros) else problem.zeros
        sizes = problem.size_factors[index]
        prior = None if problem.size_prior is None else problem.size_prior.of(index)
        batches = None if problem.batches is None else problem.batches.of_samples(index)
        own = {"size_factors": sizes, "zeros": zeros, "size_prior": prior, "batches": batches}
        part = replace(problem, counts=self.counts.sample, **own)  # type: ignore[arg-type]
        return NativeEngine(part, self.n_threads)

    @cached_property
    def _weights(self) -> Array:
        """What the counts of every feature weigh in the curvature: their total with Poisson noise.

        With dispersions it is less by ``1 + phi mean``, where each count is taken for its mean.
        """
        totals, noise = self.counts.by_column.row_sums(), self.problem.noise
        if not isinstance(noise, NegativeBinomial):
            return totals
        squares = self.counts.tally.sums(self.counts.tally.values**2)
        return totals / (1.0 + noise.dispersion * squares / np.maximum(totals, 1e-300))

    def _loss(self, sums: FactorSums) -> float:
        return float(np.sum(sums.loss)) + self.problem.plain_constant

    def _sums(self, loadings: Rows, factors: Any) -> FactorSums:
        last = self._last
        if last is None or not _same(last, loadings, factors):
            last = self._pass("evaluate", loadings, factors, NON_NEGATIVE)[0]
        return last.sums

    def _pass(
        self, task: Literal["evaluate", "step", "settle", "errors"], start: Rows, factors: Any, bounds: Bounds
    ) -> tuple[_LastPass, HalfStep]:
        problem, counts = self.problem, self.counts
        self._last = None  # free its sums: the next ones need as much memory
        shape, folder = (counts.n_samples, start.shape[1]), counts.source.folder
        values = None if task in ("evaluate", "errors") else RowFile(shape, folder=folder)
        gradient = RowFile(shape, np.float32, folder=folder)
        totals = [0.0, 0]

        def take(index: int, rows: HalfStep) -> None:
            first = int(counts.bounds[index])
            if values is not None:
                values.write(first, rows.values)
            gradient.write(first, rows.gradient)
            totals[:] = totals[0] + rows.predicted_decrease, totals[1] + rows.n_rejected

        work = ChunkPass(task, np.asarray(factors), ChunkModel.of(problem), problem.zeros, self.n_threads)
        sums = self._run(work, start=start, bounds=bounds, take=take)
        ended = start if values is None else values.rows()
        at_start = gradient.rows()
        last = _LastPass(ended, factors, sums, None if task == "step" else at_start)
        self._last = last
        return last, HalfStep(ended, np.nan, at_start, *totals)  # type: ignore[arg-type]


def _rows_at(rows: Rows, index: NDArray[np.int64]) -> Array:
    """Read some rows, whose numbers are ascending."""
    found, step = [np.zeros((0, rows.shape[1]))], 1 << 16
    for first in range(0, len(rows), step):
        last = min(first + step, len(rows))
        inside = index[(index >= first) & (index < last)] - first
        if len(inside):
            found.append(rows.read(first, last)[inside])
    return np.concatenate(found)


def _same(last: _LastPass, loadings: Any, factors: Any) -> bool:
    return last.loadings is loadings and last.factors is factors
