"""What an engine is: a half-step over independent rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf.counts.compress import Pattern
from log1pnmf.counts.counts import Counts
from log1pnmf.model.batch_effects import mean_sums
from log1pnmf.model.constraint import NON_NEGATIVE, Bounds, Constraint
from log1pnmf.model.noise import Noise
from log1pnmf.model.problem import Problem, Side
from log1pnmf.model.spectrum import MeanSpectrum
from log1pnmf.model.zeros import ZeroSurvey

PairSide = Literal["loadings", "factors"]
RowSolver = Literal["newton", "coordinate"]
ROW_SOLVERS: tuple[RowSolver, ...] = ("newton", "coordinate")


def check_row_solver(name: str) -> None:
    """Refuse a name that is not one of `ROW_SOLVERS`."""
    check_choice("row_solver", name, ROW_SOLVERS)


@dataclass(frozen=True, eq=False)
class HalfStep:
    """Improved rows, and what was known at their start."""

    values: NDArray[np.float64]  # (rows, K): the improved rows
    loss: float  # at the start, summed over rows; constants included, penalty excluded
    gradient: NDArray[np.float64]  # (rows, K): at the start; penalty excluded
    predicted_decrease: float  # of the penalised loss, by the quadratic models that were solved
    n_rejected: int  # rows whose full step was refused and backtracked
    certain: bool = True  # whether the penalised loss at `values` is known not to be above that at the start
    # (B, m): `Engine.batch_sums` at `values`, where they were asked for and came with the step
    batch_sums: NDArray[np.float64] | None = None
    # `log1pnmf.model.objective.side_residual` at the start, rows without counts left out, where it came with
    # the step
    residual: float | None = None


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows of a problem whose counts are not in memory."""

    problem: Problem  # of these rows; zeros are visited, where those of the whole are adaptive
    remake: Callable[[Problem], Engine]  # makes an engine for it
    # called with one row of loadings, where all rows start, or one for each, with factors and the bounds of
    # the loadings; gives the loadings of all rows of the problem for these factors
    settle: Callable[[NDArray[np.float64], NDArray[np.float64], Bounds], Any]
    rows: NDArray[np.int64]  # which rows they are


class InMemory:
    """Base of engines whose counts are all at hand."""

    problem: Problem
    sums_batches_quickly: bool = False
    """Whether effects of batches may be found in every iteration: `batch_sums`, and an engine with others."""
    leaves_out_loss: bool = False
    """Whether ``half_step`` takes ``with_loss=False``, which is quicker where nobody asks for the loss."""
    rounds_loss: bool = False
    """Whether losses that come with steps are in single precision; that of ``loss`` never is."""
    adds_batch_sums: bool = False
    """Whether ``half_step`` takes ``with_batch_sums=True``: `HalfStep.batch_sums`."""

    def sample(self) -> Sample | None:
        """No sample is needed."""
        return None

    def mean_spectrum(self, loadings: Any, factors: Any) -> MeanSpectrum | None:
        """Dispersions may look at all means."""
        return None

    def batch_sums(self, loadings: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum means over batches; see `Engine.batch_sums`."""
        return mean_sums(self.problem, loadings, factors)


class Engine(Protocol):
    """Computes half-steps of one problem. All factors are on the eta scale."""

    @property
    def problem(self) -> Problem:
        """The problem it was made for."""
        ...

    def adopt(self, array: NDArray[np.float64], which: PairSide = "loadings") -> NDArray[np.float64]:
        """Bring loadings or factors to where the engine computes (`log1pnmf._common.arrays`).

        The other methods take either kind of array, and answer in the kind of `start`.
        """
        ...

    def sample(self) -> Sample | None:
        """Return some rows to find a start on, where the counts are not in memory; None otherwise."""
        ...

    def half_step(
        self,
        side: Side,
        start: NDArray[np.float64],
        design: NDArray[np.float64],
        *,
        bounds: Bounds = NON_NEGATIVE,
        row_solver: RowSolver = "newton",
    ) -> HalfStep:
        """Improve every row ``b`` of `start`: ``min loss(b) + penalty'b, lower <= b <= upper``."""
        ...

    def loss(self, loadings: NDArray[np.float64], factors: NDArray[np.float64]) -> float:
        """Negative log-likelihood, constants included, penalty excluded."""
        ...

    def evaluate(
        self, side: Side, start: NDArray[np.float64], design: NDArray[np.float64]
    ) -> tuple[float, NDArray[np.float64]]:
        """Loss (as in `loss`) and its gradient in `start`, without a step."""
        ...

    def survey_zeros(
        self,
        loadings: NDArray[np.float64],
        factors: NDArray[np.float64],
        caps: NDArray[np.float64],
        *,
        straight: bool = False,
    ) -> ZeroSurvey:
        """Fit a quadratic to the zeros of every feature, for every cap above which they are visited.

        Where there are many samples, some of them may be enough; sums are then scaled up. `straight` is to do
        without a concave part, which negative binomial noise has.
        """
        ...

    def collect_zeros(
        self,
        loadings: NDArray[np.float64],
        factors: NDArray[np.float64],
        caps: NDArray[np.float64],
    ) -> tuple[Pattern, NDArray[np.float64]]:
        """List the zeros whose eta is above the cap of their feature, features x samples.

        Also gives the sums of t and t^2 over the other zeros of every feature, features x 2.
        """
        ...

    def zero_errors(
        self, loadings: NDArray[np.float64], factors: NDArray[np.float64], *, roughly: bool = False
    ) -> tuple[float, float]:
        """Sum ``t * (expm1(eta) - quadratic)`` over the zeros that are not visited, and its absolute value.

        The first added to `loss` gives the exact one. Both are 0 unless the zeros are adaptive. `roughly`
        allows to look at some of the samples, as in `survey_zeros`.
        """
        ...

    def mean_spectrum(
        self, loadings: NDArray[np.float64], factors: NDArray[np.float64]
    ) -> MeanSpectrum | None:
        """Condense the means, for dispersions; None where all of them may as well be looked at."""
        ...

    def batch_sums(self, loadings: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of the means of every feature in each batch, were its effects 1; batches x features.

        With Poisson noise. Where a quadratic stands in for a zero, it is its mean.
        """
        ...


class EngineFactory(Protocol):
    """Makes engines of one kind; ``engine=`` takes a name or a factory. `Factory` is a base for one's own."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def supports(self, problem: Problem, row_solver: RowSolver, constraint: Constraint) -> str | None:
        """Describe why the engine cannot fit this; None where it can."""
        ...

    def __call__(self, problem: Problem, n_threads: int | None = None, *, verbose: int = 0) -> Engine:
        """Make an engine for a problem."""
        ...


class Factory:
    """Base of factories: counts in memory, Poisson noise, any bounds and penalties.

    A subclass has a `name` and ``__call__``, and changes below what differs.
    """

    name: str
    row_solvers: tuple[RowSolver, ...] = ROW_SOLVERS
    takes_chunks: bool = False
    """Whether the counts have to be in chunks, and not in memory."""
    takes_batches: bool = False
    """Whether there may be batches of samples."""

    def supports(self, problem: Problem, row_solver: RowSolver, constraint: Constraint) -> str | None:
        """Describe why the engine cannot fit this; see `EngineFactory.supports`."""
        return (
            self.lacks(row_solver)
            or self.lacks_noise(problem.noise, row_solver)
            or (None if problem.batches is None else self.lacks_batches(row_solver))
            or self.refuses(problem.counts)
            or self.lacks_bounds(constraint)
        )

    def lacks(self, row_solver: str) -> str | None:
        """Describe that there is no such row solver."""
        if row_solver in self.row_solvers:
            return None
        known = ", ".join(map(repr, self.row_solvers))
        return (
            f"it has row_solver={known} only, got {row_solver!r}; use engine='native' for the paper's solver"
        )

    def lacks_noise(self, noise: Noise, row_solver: RowSolver) -> str | None:
        """Describe that the noise is not known; Poisson is."""
        return None if noise.name == "poisson" else f"it has no {noise.name} noise; use engine='reference'"

    def lacks_batches(self, row_solver: RowSolver) -> str | None:
        """Describe that it knows no batches; the paper's solver has none anywhere."""
        if row_solver != "newton":
            return f"row_solver={row_solver!r} has no batches; use 'newton'"
        return None if self.takes_batches else "it has no batches; use engine='native'"

    def lacks_bounds(self, constraint: Constraint) -> str | None:
        """Describe that the engine cannot hold bounds; most can hold any."""
        return None

    def refuses(self, counts: Counts) -> str | None:
        """Describe that the counts are not where the engine needs them."""
        if counts.in_memory != self.takes_chunks:
            return None
        if counts.in_memory:
            return "it needs counts in chunks, but these are in memory; open them with log1pnmf.open_counts"
        return "it needs counts in memory, but these are in chunks; use engine='streaming'"

    def __call__(self, problem: Problem, n_threads: int | None = None, *, verbose: int = 0) -> Engine:
        """Make an engine for a problem."""
        raise NotImplementedError

    def begin_loading(self, counts: Any, *, asked: bool) -> Callable[[], object] | None:
        """Begin to load what the engine needs, in threads; give what waits for it, or None."""
        return None

    def suits(self, counts: Counts, n_components: int, row_solver: str) -> bool:
        """Whether "auto" may take this engine, unless one that comes before it suits as well."""
        return False

    def extra_memory(self, n_features: int, n_components: int) -> float:
        """Bytes that the engine needs beside the matrices of every solver."""
        return 0.0
