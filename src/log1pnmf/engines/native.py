"""The half-step in C++ (``cpp/``): vectorised, threaded, the same bits for any number of threads."""

from __future__ import annotations

import math
import os
from copy import copy
from dataclasses import dataclass, fields
from numbers import Integral
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from log1pnmf import _core
from log1pnmf._common.checks import check_choice
from log1pnmf.counts.compress import Pattern
from log1pnmf.model.batch_effects import newton_effects
from log1pnmf.model.batches import Batches
from log1pnmf.model.dispersion import N_BINS, MeanSpectrum
from log1pnmf.model.noise import NegativeBinomial
from log1pnmf.model.problem import NON_NEGATIVE, Bounds, Problem, Side
from log1pnmf.model.zeros import AdaptiveZeros, ZeroSurvey, surveyed_every

from .base import Engine, HalfStep, RowSolver

if TYPE_CHECKING:
    from typing_extensions import Self

# ---------- how many threads the compiled core uses

MOST_JOBS = 4096
"""Threads that may be asked for."""

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=_core.after_fork)


def effective_threads(n_jobs: int | None) -> int:
    """Turn `n_jobs` into a number of threads.

    `n_jobs`: as in scikit-learn: None and -1 are all cores this process may use, fewer where
    ``OMP_NUM_THREADS`` or threadpoolctl allow; -2 is all but one of them, and so on. A positive number is
    taken as it is, up to four for every processor (64 at least): more only cost memory.
    """
    given: object = n_jobs
    if given is not None and (isinstance(given, bool | np.bool_) or not isinstance(given, Integral)):
        raise TypeError(f"n_jobs must be a whole number or None, got {n_jobs!r}; pass -1 for all cores")
    if n_jobs == 0:
        raise ValueError("n_jobs must not be 0; pass -1 for all cores, -2 for all but one, or None")
    if n_jobs is not None and n_jobs > MOST_JOBS:
        raise ValueError(f"n_jobs must be at most {MOST_JOBS}, got {n_jobs}; pass -1 for all cores")
    if n_jobs is None or n_jobs < 0:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, min(cores, _core.max_threads()) + 1 + (-1 if n_jobs is None else int(n_jobs)))
    return min(int(n_jobs), max(64, 4 * (os.cpu_count() or 1)))


# ---------- the half-step in C++ (cpp/)

Array = NDArray[np.float64]

MOST_QUARTIC, QUARTIC_COMPONENTS = 24, 0.4
"""Most factors for which zeros have quartics, whose sums take K^4 / 4 operations for a row; and the square of
K at most, in columns of a row."""

MOST_SIDES = 4
"""Sides that an engine keeps ready for the compiled core."""


@dataclass(frozen=True, eq=False)
class RowSums:
    """Loss, gradient and Hessian of every row of one side, summed over the columns seen so far."""

    loss: Array  # (rows,): constants excluded
    gradient: Array
    hessian: Array  # (rows, K (K + 1): lower triangles, row by row

    @classmethod
    def zeros(cls, n_rows: int, n_components: int, **more: Array) -> Self:
        """Make sums over nothing."""
        n, k = n_rows, n_components
        return cls(np.zeros(n), np.zeros((n, k)), np.zeros((n, k * (k + 1) // 2)), **more)

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


class NativeEngine(Engine):
    """Compiled implementation of `log1pnmf.engines.base.Engine`.

    Where a positive count meets a mean of zero, the mean is held just above zero: such a start has a large,
    finite loss instead of an infinite one.
    """

    def __init__(self, problem: Problem, n_threads: int | None = None, kernel: str = "auto") -> None:
        choices = _core.runnable_kernels()
        check_choice("kernel", kernel, ("auto", *choices))
        self.problem = problem
        self.n_threads = effective_threads(n_threads)
        self.kernel = choices[0] if kernel == "auto" else kernel
        self._sides: dict[Side, _core.Side] = {}

    def with_problem(self, problem: Problem) -> NativeEngine:
        """Return the same engine for another problem."""
        other = copy(self)
        other.problem, other._sides, other._errors = problem, {}, None
        return other

    def half_step(
        self,
        side: Side,
        start: Array,
        design: Array,
        *,
        bounds: Bounds = NON_NEGATIVE,
        row_solver: RowSolver | Literal["evaluate"] = "newton",
        with_loss: bool = True,
        with_batch_sums: bool = False,
    ) -> HalfStep:
        """Improve every row of `start`; see `Engine.half_step`. "evaluate" takes no step.

        Newton's steps need the logarithms of the loss only where a row has to be checked.
        """
        n_batches = self._batches.n_batches if with_batch_sums and self._sums_by_entries else 0
        start, design = (np.ascontiguousarray(x, dtype=np.float64) for x in (start, design))
        tables, n = bounds.tables(design.shape[1]), len(start)
        loss, decrease = np.zeros((2, n))  # "evaluate" takes no step, and writes no decrease
        rejected, sums = np.zeros(n, dtype=np.uint8), np.empty((n_batches, n))
        values, gradient = np.empty_like(start), np.empty_like(start)
        problem, how = (self._taken(side), start, design, tables), (with_loss, self.n_threads)
        _core.run(self.kernel, row_solver, *problem, values, gradient, loss, decrease, rejected, sums, *how)
        counted = np.empty(0, dtype=np.uint8) if side.empty is None else (~side.empty).view(np.uint8)
        return HalfStep(
            values=values,
            loss=float(np.sum(loss)) + self.problem.plain_constant if with_loss else math.nan,
            gradient=gradient,
            predicted_decrease=float(np.sum(decrease)),
            n_rejected=int(np.count_nonzero(rejected)),
            batch_sums=self._whole_sums(sums) if n_batches else None,
            residual=_core.side_residual(start, gradient, counted, tables),
        )

    def evaluate(self, side: Side, start: Array, design: Array) -> tuple[float, Array]:
        """Loss and gradient at `start`; see `Engine.evaluate`."""
        found = self.half_step(side, start, design, row_solver="evaluate")
        return found.loss, found.gradient

    def add_statistics(self, side: Side, start: Array, design: Array, *, into: RowSums) -> None:
        """Add loss, gradient and Hessian at `start` to sums over other columns of the same rows."""
        start, design = (np.ascontiguousarray(x, dtype=np.float64) for x in (start, design))
        sums = (into.loss, into.gradient, into.hessian)
        _core.add_statistics(self.kernel, self._taken(side), start, design, *sums, self.n_threads)

    def takes_quartics(self, n_components: int) -> bool:
        """Whether quartics are worth their price; see `Engine.takes_quartics`."""
        problem, few = self.problem, QUARTIC_COMPONENTS * min(self.problem.counts.shape)
        in_scope = problem.noise.zero_loss_is_mean and problem.batches is None and problem.link.c < 1.0
        return in_scope and n_components <= MOST_QUARTIC and n_components**2 <= few

    def survey_zeros(
        self, loadings: Array, factors: Array, caps: Array, *, straight: bool = False, quartic: bool = False
    ) -> ZeroSurvey:
        """Fit quadratics to the zeros; see `Engine.survey_zeros`."""
        shape, width = (len(factors), len(caps)), 4 if quartic else 3
        width = width if self.problem.noise.zero_loss_is_mean else 5
        out = ZeroSurvey(caps, *(np.empty(size) for size in (shape, shape, (*shape, width))))
        every = surveyed_every(len(loadings))
        _core.survey_zeros(*self._zeros(loadings, factors), every, straight, *out, self.n_threads)
        return out

    def collect_zeros(self, loadings: Array, factors: Array, caps: Array) -> tuple[Pattern, Array]:
        """List zeros above their cap; see `Engine.collect_zeros`."""
        where, exposure = self._zeros(loadings, factors), np.empty((len(factors), 2))
        found = _core.collect_zeros(*where, np.ascontiguousarray(caps), exposure, self.n_threads)
        return Pattern((len(factors), len(loadings)), *found), exposure

    def _zero_errors(
        self, zeros: AdaptiveZeros, loadings: Array, factors: Array, roughly: bool
    ) -> tuple[float, float]:
        signed, absolute = np.empty((2, len(factors)))
        where, every = self._zeros(loadings, factors), surveyed_every(len(loadings)) if roughly else 1
        _core.zero_errors(*where, every, zeros.quadratics, signed, absolute, self.n_threads)
        return float(signed.sum()), float(absolute.sum())

    def mean_spectrum(self, loadings: Array, factors: Array) -> MeanSpectrum:
        """Condense the means; see `Engine.mean_spectrum`."""
        spectrum = MeanSpectrum.zeros(MeanSpectrum.low_for(self.problem.counts.tally))
        self.add_spectrum(loadings, factors, into=spectrum)
        return spectrum

    def add_spectrum(self, loadings: Array, factors: Array, *, into: MeanSpectrum) -> None:
        """Add these samples to the condensed means of others, in place."""
        into.n_free[0] += np.count_nonzero(loadings)
        where, sums = self._zeros(loadings, factors), (into.entries, into.counted)
        _core.add_spectrum(*where, into.low, N_BINS, *sums, self.n_threads)

    def batch_sums(self, loadings: Array, factors: Array) -> Array:
        """Sum means over batches; see `Engine.batch_sums`."""
        if not self._sums_by_entries:
            return super().batch_sums(loadings, factors)
        side = self.problem.factors_side
        step = self.half_step(side, factors, loadings, row_solver="evaluate", with_batch_sums=True)
        assert step.batch_sums is not None
        return step.batch_sums

    def next_effects(self, sums: Array) -> Array | None:
        """See `Engine.next_effects`."""
        return newton_effects(self._batches, self.problem.counts, sums)

    @property
    def _batches(self) -> Batches:
        assert self.problem.batches is not None
        return self.problem.batches

    @property
    def _sums_by_entries(self) -> bool:
        """Whether the compiled core sums up means over batches."""
        link, noise = self.problem.link, self.problem.noise
        return self.problem.batches is not None and noise.zero_loss_is_mean and not link.is_identity

    def _whole_sums(self, means: Array) -> Array:
        """Add the constants of the approximated zeros, in place."""
        zeros, problem = self.problem.zeros, self.problem
        if zeros is None:
            return means
        stored = zeros.stored.transposed if isinstance(zeros, AdaptiveZeros) else None
        means += zeros.constant * self._batches.rest(problem.counts, problem.exposure, stored)[0]
        return np.maximum(means, 0.0, out=means)

    def _zeros(self, loadings: Array, factors: Array) -> tuple[str, _core.Side, Array, Array]:
        start, design = (np.ascontiguousarray(x, dtype=np.float64) for x in (factors, loadings))
        return self.kernel, self._taken(self.problem.factors_side), start, design

    def _taken(self, side: Side) -> _core.Side:
        """Return counts, exposure, model and zeros as the compiled core takes them."""
        if side not in self._sides:
            if len(self._sides) >= MOST_SIDES:
                self._sides.clear()
            rows, zeros, column = side.rows, side.zeros, side.column_exposure
            dispersion = None
            if isinstance(side.noise, NegativeBinomial):
                n = rows.shape[0 if side.rows_are_features else 1]
                dispersion = np.ascontiguousarray(np.broadcast_to(side.noise.dispersion, n))
            core = _core.Side(
                rows.indptr,
                rows.indices,
                rows.values,
                side.row_exposure,
                rows.shape[1],
                None if (column == 1.0).all() else column,
                self.problem.link.name,
                side.noise.name,
                dispersion if side.rows_are_features else None,
                None if side.rows_are_features else dispersion,
            )
            if side.batches is not None:
                labels, of_features = side.batches.labels, side.rows_are_features
                of_rows, of_columns = (None, labels) if of_features else (labels, None)
                effects = side.batches.effects.T if of_features else side.batches.effects
                core.set_batches(of_rows, of_columns, np.ascontiguousarray(effects))
            if zeros is not None:
                stored = zeros.stored
                core.set_zeros(
                    None if stored is None else stored.indptr,
                    None if stored is None else stored.indices,
                    zeros.row_quadratic,
                    zeros.column_quadratic,
                    zeros.row_linear,
                    zeros.row_square,
                    zeros.column_linear,
                    zeros.column_square,
                )
            self._sides[side] = core
        return self._sides[side]


class Solutions(NamedTuple):
    """Solutions of one quadratic program per row."""

    values: Array
    # (rows,): of the quadratic, and of the step, ``d'Hd``
    decrease: Array
    curvature: Array


def solve_rows(
    sums: RowSums, start: Array, *, bounds: Bounds = NON_NEGATIVE, n_threads: int | None = None
) -> Solutions:
    """Minimise the quadratic model of every row at `start` within bounds."""
    start = np.ascontiguousarray(start, dtype=np.float64)
    out = Solutions(np.empty_like(start), np.empty(len(start)), np.empty(len(start)))
    kernel = _core.runnable_kernels()[0]
    model = (sums.hessian, sums.gradient, start, bounds.tables(start.shape[1]))
    _core.solve_programs(kernel, *model, *out, effective_threads(n_threads))
    return out
