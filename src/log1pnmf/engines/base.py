"""The base of engines: a half-step over independent rows."""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.arrays import on_host
from log1pnmf.counts.compress import Pattern
from log1pnmf.model.batch_effects import dispersed_sums, mean_sums
from log1pnmf.model.dispersion import MeanSpectrum
from log1pnmf.model.problem import NON_NEGATIVE, Bounds, Problem, Side
from log1pnmf.model.zeros import AdaptiveZeros, ZeroSurvey

Array = NDArray[np.float64]
PairSide = Literal["loadings", "factors"]
RowSolver = Literal["newton", "coordinate"]
ROW_SOLVERS: tuple[str, ...] = get_args(RowSolver)

SETTLING_STEPS = 5  # Newton steps in which all loadings adapt to given factors


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
    # `log1pnmf.model.problem.Bounds.residual` at the start, rows without counts left out, where it came with
    # the step
    residual: float | None = None


class Engine:
    """Computes half-steps of one problem. All factors are on the eta scale.

    A subclass defines at least `with_problem`, `half_step`, `evaluate` and the three methods about zeros.
    """

    problem: Problem
    sums_batches_quickly: bool = True
    """Whether effects of batches may be found in every iteration: `batch_sums`, and an engine with others."""
    rounds_loss: bool = False
    """Whether losses that come with steps are in single precision; that of ``loss`` never is."""
    note: str | None = None
    """Where the counts are, for the messages of a fit."""
    _errors: tuple[tuple[Any, Any, bool], tuple[float, float]] | None = None

    def with_problem(self, problem: Problem) -> Engine:
        """Return an engine of the same kind for another problem of the same counts."""
        raise NotImplementedError

    def adopt(self, array: Any, which: PairSide = "loadings") -> Any:
        """Bring loadings or factors to where the engine computes (`log1pnmf._common.arrays`).

        The other methods take either kind of array, and answer in the kind of `start`.
        """
        return on_host(array)

    def sample(self) -> tuple[Engine, NDArray[np.int64]] | None:
        """Return the engine of some rows, and which, where the counts are not in memory; None otherwise.

        It computes all zeros exactly, where those of the whole are adaptive.
        """
        return None

    def settle(self, row: Array, factors: Array, bounds: Bounds = NON_NEGATIVE) -> Any:
        """Return the loadings of all samples for these factors, after a few Newton steps from one row."""
        loadings = self.adopt(np.tile(row, (self.problem.counts.n_samples, 1)))
        design = self.adopt(factors, "factors")
        for _ in range(SETTLING_STEPS):
            loadings = self.half_step(self.problem.loadings_side, loadings, design, bounds=bounds).values
        return loadings

    def half_step(
        self,
        side: Side,
        start: Any,
        design: Any,
        *,
        bounds: Bounds = NON_NEGATIVE,
        row_solver: RowSolver = "newton",
        with_loss: bool = True,
        with_batch_sums: bool = False,
    ) -> HalfStep:
        """Improve every row ``b`` of `start`: ``min loss(b) + penalty'b, lower <= b <= upper``.

        Without `with_loss` the loss at the start may be NaN, which can be quicker. `with_batch_sums` asks for
        `batch_sums` at the improved factors, where they cost less together with the step than alone.
        """
        raise NotImplementedError

    def loss(self, loadings: Any, factors: Any) -> float:
        """Return the negative log-likelihood, constants included, penalty excluded."""
        return self.evaluate(self.problem.loadings_side, loadings, factors)[0]

    def evaluate(self, side: Side, start: Any, design: Any) -> tuple[float, Any]:
        """Return the loss (as in `loss`) and its gradient in `start`, without a step."""
        raise NotImplementedError

    def takes_quartics(self, n_components: int) -> bool:
        """Whether zeros may have quartics in the place of quadratics."""
        return False

    def survey_zeros(
        self, loadings: Any, factors: Any, caps: Array, *, straight: bool = False, quartic: bool = False
    ) -> ZeroSurvey:
        """Fit a quadratic to the zeros of every feature, for every cap above which they are computed exactly.

        Where there are many samples, some of them may be enough; sums are then scaled up. `straight` is to do
        without a concave part, which negative binomial noise has. `quartic`: see `takes_quartics`.
        """
        raise NotImplementedError

    def collect_zeros(self, loadings: Any, factors: Any, caps: Array) -> tuple[Pattern, Array]:
        """List the zeros whose eta is above the cap of their feature, features x samples.

        Also gives the sums of t and t^2 over the other zeros of every feature, features x 2.
        """
        raise NotImplementedError

    def zero_errors(self, loadings: Any, factors: Any, *, roughly: bool = False) -> tuple[float, float]:
        """Sum ``t * (expm1(eta) - quadratic)`` over the approximated zeros, and its absolute value.

        The first added to `loss` gives the exact one. Both are 0 unless the zeros are adaptive. `roughly`
        allows a subsample, as in `survey_zeros`. They are kept for the same arrays: the last update of a fit
        needs them, and so does its certificate.
        """
        if not isinstance(self.problem.zeros, AdaptiveZeros):
            return 0.0, 0.0
        at = loadings, factors, roughly
        if self._errors is None or not all(map(is_, self._errors[0], at)):
            self._errors = at, self._zero_errors(self.problem.zeros, *at)
        return self._errors[1]

    def _zero_errors(
        self, zeros: AdaptiveZeros, loadings: Any, factors: Any, roughly: bool
    ) -> tuple[float, float]:
        raise NotImplementedError

    def mean_spectrum(self, loadings: Any, factors: Any) -> MeanSpectrum:
        """Condense the means, for dispersions."""
        raise NotImplementedError

    def batch_sums(self, loadings: Any, factors: Any) -> Array:
        """Return the sum of the means of every feature in each batch, were its effects 1; batches x features.

        With Poisson noise. Where a quadratic replaces a zero, it is its mean.
        """
        return mean_sums(self.problem, loadings, factors)

    def dispersed_sums(self, effects: Array, loadings: Any, factors: Any) -> Array:
        """Return what negative binomial noise needs to find effects, at `effects`; 3 x batches x features."""
        return dispersed_sums(self.problem, effects, loadings, factors)

    def next_effects(self, sums: Array) -> Array | None:
        """Take a Newton step of the effects of batches, from `batch_sums`; None where one is not enough."""
        return None
