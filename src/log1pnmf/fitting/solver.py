"""The outer loop: `alternate` yields iterations; stopping rules and callbacks watch them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.arrays import column_max, column_sums, extrapolated, like, on_host
from log1pnmf.engines.base import Engine, HalfStep, PairSide, RowSolver
from log1pnmf.model.batch_effects import update_effects
from log1pnmf.model.batches import LARGEST_EFFECT, Batches
from log1pnmf.model.noise import POISSON, NegativeBinomial
from log1pnmf.model.problem import FREE, NON_NEGATIVE, Array, Bounds, Constraint, Likelihood, Problem
from log1pnmf.model.zeros import AdaptiveZeros

# ---------- a point, and how far to go beyond each update


@dataclass(frozen=True, eq=False)
class Point:
    """Loadings and factors, on the eta scale, in the arrays of the engine."""

    loadings: Array
    factors: Array
    effects: Array | None = None  # (B, m): of batches, where the solver finds them in every iteration

    def scaled(self, by: Array) -> Point:
        """Move a factor per column from the loadings to the factors."""
        if (by == 1.0).all():
            return self
        loadings, factors = self.loadings / like(self.loadings, by), self.factors * like(self.factors, by)
        return replace(self, loadings=loadings, factors=factors)

    def adopted(self, engine: Engine) -> Point:
        """Return the same pair in the arrays of an engine."""
        loadings, factors = engine.adopt(self.loadings), engine.adopt(self.factors, "factors")
        return replace(self, loadings=loadings, factors=factors)

    def on_host(self) -> Point:
        """Return the same pair as NumPy arrays."""
        return replace(self, loadings=on_host(self.loadings), factors=on_host(self.factors))


FIRST_BETA, GROW, GROW_CEILING, SHRINK = 0.5, 1.1, 1.02, 1.5
"""Beta after some plain updates, and factors of it and of its ceiling."""


@dataclass(frozen=True)
class Extrapolation:
    """Schedule of the extrapolation parameter beta, after Ang and Gillis (2019).

    Beta grows while extrapolated points lower the objective; when one does not, it shrinks and its ceiling
    becomes the last value that worked. The ceiling itself grows slowly, up to 1.
    """

    beta: float = 0.0  # to apply to the next update; 0 is none
    worked: float = FIRST_BETA
    ceiling: float = 1.0
    warm_up: int = 2  # plain updates that are still to come

    def accepted(self) -> Extrapolation:
        """Return the schedule after a point that lowered the objective."""
        if self.warm_up > 0:
            return replace(self, beta=FIRST_BETA if self.warm_up == 1 else 0.0, warm_up=self.warm_up - 1)
        ceiling = min(1.0, self.ceiling * GROW_CEILING)
        return Extrapolation(min(ceiling, self.beta * GROW), self.beta, ceiling, 0)

    def rejected(self) -> Extrapolation:
        """Return the schedule after an extrapolated point that raised the objective and was dropped."""
        return replace(self, beta=self.beta / SHRINK, ceiling=self.worked)


# ---------- iteration, what the solver yields, with the state that it needs to resume


@dataclass(frozen=True, eq=False)
class Iteration:
    """A point the solver has been at, with what is known there."""

    index: int  # number of iterations that led here, lost ones included; 0 is the start
    # (n, K) and (m, K): on the eta scale, in the arrays of the engine. Never changed afterwards, so they may
    # be kept without a copy
    loadings: Array
    factors: Array
    loss: float  # negative log-likelihood, penalty excluded
    objective: float  # loss + penalty: what is minimised, and never rises from one iteration to the next
    # how much the objective fell, relative to its size; NaN at the start, and where the problem was updated
    # and the same point is evaluated again
    relative_change: float
    # see `log1pnmf.model.objective.kkt_residual`. The part of the side that follows (see `alternate`) is
    # taken before its last update
    kkt_residual: float
    beta: float  # extrapolation that led here; 0 for a plain update
    seconds: float  # since the solver started
    restarted: bool  # whether an extrapolated point had to be dropped first
    n_rejected: int  # rows whose full step was backtracked, in the two half-steps of this iteration
    likelihood: Likelihood  # which one `loss` is
    # what updates have changed in the problem so far, see `problem_at`
    size_factors: Array
    zeros: AdaptiveZeros | None = None
    noise: NegativeBinomial | None = None
    effects: Array | None = None  # (B, m): of batches
    # all that the solver needs to go on from here as if it had not stopped; callbacks are not given it
    updated: Point | None = None  # what the two half-steps led to
    previous: Point | None = None  # where the direction of the next extrapolation begins
    schedule: Extrapolation | None = None

    def on_host(self) -> Iteration:
        """Return the same iteration with NumPy arrays, and without what resuming needs."""
        loadings, factors = on_host(self.loadings), on_host(self.factors)
        return replace(self, loadings=loadings, factors=factors, updated=None, previous=None, schedule=None)


NUMBERS = ("loss", "objective", "log_likelihood", "relative_change", "kkt_residual", "beta", "seconds")
COLUMNS = {"iteration": "i", "likelihood": "U", **dict.fromkeys(NUMBERS, "f")}
"""Of a history, and their kinds."""


class History:
    """Record all iterations in a table.

    Parameters
    ----------
    table : dict of str to ndarray, optional
        Rows to begin with, as `table` returned them.
    """

    def __init__(self, table: Mapping[str, np.ndarray] | None = None) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for name, column in ({} if table is None else table).items():
            self._columns[name] = column.tolist()

    def __call__(self, iteration: Iteration) -> None:
        """Add a row."""
        own = {"iteration": iteration.index, "log_likelihood": -iteration.loss}
        for name, column in self._columns.items():
            column.append(own[name] if name in own else getattr(iteration, name))

    def last_update(self) -> float:
        """How much the last update of the problem has lowered the objective; 0 where there was none."""
        change, objective = self._columns["relative_change"], self._columns["objective"]
        updates = (at for at in range(len(change) - 1, 0, -1) if math.isnan(change[at]))
        at = next(updates, 0)
        return float(objective[at - 1] - objective[at]) if at else 0.0

    @classmethod
    def check(cls, table: Mapping[str, np.ndarray]) -> None:
        """Refuse what `table` did not give."""
        if set(table) != set(COLUMNS):
            raise ValueError(f"history must have the columns {', '.join(COLUMNS)}")
        length = table["iteration"].size
        for name, kind in COLUMNS.items():
            if table[name].dtype.kind != kind or table[name].shape != (length,) or not length:
                raise ValueError(f"history.{name} has {table[name].dtype} of shape {table[name].shape}")

    def table(self) -> dict[str, np.ndarray]:
        """One array per column; ``pandas.DataFrame(table)`` shows them side by side.

        Returns
        -------
        dict of str to ndarray
            iteration, likelihood ("exact", "approximate" or "adaptive": which one the row is about), loss,
            objective, log_likelihood, relative_change, kkt_residual, beta, seconds.
        """
        types = {"i": np.int64, "U": np.str_, "f": np.float64}
        return {name: np.array(own, dtype=types[COLUMNS[name]]) for name, own in self._columns.items()}


# ---------- effects of batches as a third block of the solver, beside loadings and factors


def finds_effects(engine: Engine) -> bool:
    """Return whether effects of batches are found in every iteration: where that costs less than one."""
    # otherwise effects and loadings follow each other in thousands of small steps: most of what an effect
    # does to many features of a factor, the loadings of all samples of the batch can do, too
    problem = engine.problem
    if problem.batches is None or not engine.sums_batches_quickly:
        return False
    return problem.noise.zero_loss_is_mean or problem.zeros is None


def engine_at(engine: Engine, effects: Array | None) -> Engine:
    """Return the engine of the same problem with other effects of batches; None changes nothing."""
    batches = engine.problem.batches
    if effects is None or batches is None or effects is batches.effects:
        return engine
    return engine.with_problem(with_exposure(engine.problem, batches=replace(batches, effects=effects)))


def next_effects(engine: Engine, point: Point, sums: Array | None) -> Array:
    """Return effects that lower the objective of an engine's problem; their sums may be known."""
    problem, at = engine.problem, (point.loadings, point.factors)
    if not problem.noise.zero_loss_is_mean:  # every step evaluates all entries
        return update_effects(problem, *at, dispersed=engine.dispersed_sums, n_steps=1)[0].effects
    means = engine.batch_sums(*at) if sums is None else sums
    near = engine.next_effects(means)
    return update_effects(problem, *at, sums=lambda *_: means)[0].effects if near is None else near


def problem_at(problem: Problem, last: Iteration) -> Problem:
    """Return the problem of a fit as it was at an iteration, given the one with which the fit began."""
    batches, zeros = problem.batches, problem.zeros if last.zeros is None else last.zeros
    if batches is not None and last.effects is not None:
        batches = replace(batches, effects=last.effects)
    changed: dict[str, Any] = {"size_factors": last.size_factors, "noise": last.noise or POISSON}
    return replace(problem, zeros=zeros, batches=batches, **changed)


def with_exposure(problem: Problem, **changed: Any) -> Problem:
    """Return the problem with other size factors or batches; the zeros to evaluate stay the same."""
    problem = replace(problem, **changed)
    zeros, batches = problem.zeros, problem.batches
    if not isinstance(zeros, AdaptiveZeros) or not problem.counts.in_memory:
        return problem
    if batches is None:
        n, m = problem.counts.shape
        batches = Batches(np.zeros(n, dtype=np.int32), np.ones((1, m)))
    rest = batches.exposure_of_rest(problem.counts, problem.exposure, zeros.stored.transposed)
    return replace(problem, zeros=replace(zeros, exposure=rest))


# ---------- one side for a given other one: every row is its own convex problem

MOST_STEPS = 500


def solve_side(
    engine: Engine,
    which: PairSide,
    start: Array,
    design: Array,
    *,
    bounds: Bounds = NON_NEGATIVE,
    row_solver: RowSolver = "newton",
    tol: float = 1e-10,
) -> tuple[Array, bool]:
    """Repeat the half-step of one side until nothing is gained; return it, and whether that was reached."""
    side, values = getattr(engine.problem, f"{which}_side"), start
    for _ in range(MOST_STEPS):
        step = engine.half_step(side, values, design, bounds=bounds, row_solver=row_solver)
        values = step.values
        if step.predicted_decrease <= tol * max(1.0, engine.problem.counts.total):
            return values, True
    return values, False


# ---------- the stopping rule: when a fit has converged

PATIENCE = 2
"""Iterations in a row that have to gain less than the tolerance.

With this and the default tolerance of 1e-9 all of 54 fits (parts of nine data sets, three c, two starts) end
within 3e-6 of what 1,000 more iterations reach, relative to the log-likelihood. With 1e-8 two end 4e-5 short,
with 1e-5 nearly all, one by 3e-3. More patience does not help: 1e-8 twenty times in a row still leaves one
4e-5 short (`studies.convergence`).
"""


STATIONARY = 1e-3
"""KKT residual up to which a point is an optimum, whatever the tolerance.

The residual is free of scale (`log1pnmf.model.objective.kkt_residual`). The possible gain is about its
square: at 1e-3 about a millionth of the total count. Rounding errors hide no more than that, also in single
precision, where losses are known to about 1e-7. Where steps fail for another reason, the residual is larger.
"""


def largest_residual(tol: float) -> float:
    """KKT residual up to which a small gain means that an optimum is near, not that the fit is on a plateau.

    The possible gain goes with the square of the residual, so a looser tolerance allows a larger one. Where
    the default rule ends, the residual is between 2e-9 and 5e-5 on all data sets of `studies.convergence`;
    where small gains alone would have ended fits with ``tol=1e-5``, it is up to 2e-2.

    >>> largest_residual(1e-8), round(largest_residual(1e-4), 3)
    (0.001, 0.1)
    """
    return max(STATIONARY, 10.0 * math.sqrt(tol))


@dataclass
class Stopping:
    """Stop when the objective falls by less than `tol`, relative to its size, `patience` times in a row.

    The KKT residual has to be small as well: on a plateau the objective hardly falls, but there is much to
    gain. Around a dropped extrapolation the steps are small for another reason, so the count starts again
    there; unless the one before was dropped as well, which happens where nothing is left to gain. One object
    serves one run of the solver.
    """

    tol: float
    patience: int = PATIENCE
    in_a_row: int = 0
    restarted: bool = False  # whether the last iteration seen was
    met: bool = False  # whether the last iteration seen was one to stop at

    def __call__(self, iteration: Iteration) -> bool:
        """Take note of an iteration; return whether to stop."""
        counts = not iteration.restarted or self.restarted
        self.restarted = iteration.restarted
        small = iteration.relative_change <= self.tol  # False for NaN, at the start
        small = small and iteration.kkt_residual <= largest_residual(self.tol)
        self.in_a_row = self.in_a_row + 1 if small and counts else 0
        self.met = self.in_a_row >= self.patience
        return self.met


# ---------- the alternating solver: a generator of iterations, each two half-steps over the data

ROLES: dict[RowSolver, tuple[PairSide, PairSide]] = {
    "newton": ("factors", "loadings"),
    "coordinate": ("loadings", "factors"),
}
"""Which side leads, i.e. is updated last in an iteration, and which follows."""

LEAST_KEPT = 0.1
"""Extrapolation keeps at least this fraction of every entry. At zero, a positive count could get a mean of
zero, which is impossible. Exact zeros come from the half-steps."""

SHORTER = 0.25
"""Fraction of an unchecked update that is tried next, when the whole update raised the objective."""
MOST_SHORTENED = 6  # number of such fractions in a row after which the fit ends
RESCALED_EVERY = 8
"""Iterations after which columns are balanced, where their scale is free: a device has to be waited for."""
ROUNDING = 1e-12  # a rise of the objective by a smaller fraction of it is rounding error


def alternate(
    engine: Engine,
    loadings: Array,
    factors: Array,
    *,
    constraint: Constraint = FREE,
    row_solver: RowSolver = "newton",
    extrapolation: Extrapolation | None = None,
    max_iter: int = 1000,
    after: Iteration | None = None,
    new_problem: bool = False,
    effects: bool = False,
    residuals: bool = True,
) -> Iterator[Iteration]:
    """Minimise the loss and the penalties of loadings and factors within their bounds.

    An iteration extrapolates the factors, updates the loadings for them, and then updates the factors. The
    last half-step also computes the objective of the pair it starts from. If the objective has not risen, the
    pair is accepted. If it has, the iteration is lost, and the next one starts from the last update without
    extrapolation. Where that raises the objective too (an engine may not check its steps), a fraction of the
    update is tried. Factors are judged after the loadings have adapted to them, so that long extrapolations
    are accepted. Iteration 0 evaluates the start and updates the factors only. With the coordinate solver
    loadings and factors change roles, as in the paper: first the loadings, then the factors.

    `after`: the iteration to go on from, with the same bits as without the pause, from its own point.
    `new_problem`: the engine's problem is not that of `after`, which is evaluated again, under the same
    index. `effects`: whether effects of batches are updated after the two half-steps, and extrapolated.
    """
    batches, started = engine.problem.batches, time.perf_counter()
    own = batches.effects if effects and batches is not None else None
    updated = good = Point(loadings, factors, own).adopted(engine)
    trail = _Trail(constraint, extrapolation, good, good, good, *constraint.scales(factors.shape[1]))
    leader, follower = ROLES[row_solver]
    at_start, begin, accepted = after is None or new_problem, 0, math.inf
    if after is None:
        trail.begin(good)
    else:
        updated = trail.resume(after, engine, new_problem=new_problem)
        begin, accepted = (after.index, math.inf) if new_problem else (after.index + 1, after.objective)
    first, restarted, n_shortened = after is None, False, 0
    for index in range(begin, max_iter + 1):
        last, tried, moved = index == max_iter, trail.point, trail.point
        engine = engine_at(engine, tried.effects)
        here, steps = engine.problem, dict[PairSide, HalfStep]()
        for which, evaluate in ((follower, at_start), (leader, last)):
            side, leads = getattr(here, f"{which}_side"), which == leader
            ends = (moved.loadings, moved.factors) if which == "loadings" else (moved.factors, moved.loadings)
            if evaluate:
                steps[which] = HalfStep(ends[0], *engine.evaluate(side, *ends), 0.0, 0)
            else:
                how: Any = {
                    "bounds": getattr(constraint, which),
                    "row_solver": row_solver,
                    "with_loss": leads,
                }
                steps[which] = engine.half_step(side, *ends, with_batch_sums=leads and effects, **how)
            tried, moved = moved, replace(moved, **{which: steps[which].values})
        lead = steps[leader]
        penalty = constraint.loadings.cost(tried.loadings) + constraint.factors.cost(tried.factors)
        objective = lead.loss + penalty + here.cost
        if first and math.isnan(objective):
            raise ValueError(
                "the log-likelihood of the start is not a number: double precision cannot represent "
                "these counts, size factors and c together; rescale the counts, or use a c closer to "
                "them"
            )
        if not objective <= accepted:
            restarted = True
            if trail.go_back():
                continue
            by_rounding = lead.certain or objective - accepted <= ROUNDING * abs(accepted)
            if first or by_rounding or n_shortened == MOST_SHORTENED:  # nothing is left to gain
                return
            factors = good.factors + SHORTER * (updated.factors - good.factors)
            updated, n_shortened = replace(updated, factors=factors, effects=good.effects), n_shortened + 1
            trail.begin(updated)
            continue
        if trail.schedule is not None and not at_start:
            trail.schedule = trail.schedule.accepted()
        updated = moved
        if effects and not last:
            updated = replace(moved, effects=next_effects(engine, moved, lead.batch_sums))
        yield Iteration(
            index=index,
            loadings=tried.loadings,
            factors=tried.factors,
            loss=lead.loss,
            objective=objective,
            relative_change=math.nan if at_start else (accepted - objective) / (abs(objective) or 1.0),
            kkt_residual=_residual(here, constraint, trail.point, steps) if residuals else math.nan,
            beta=trail.beta,
            seconds=time.perf_counter() - started,
            restarted=restarted,
            n_rejected=steps[follower].n_rejected + lead.n_rejected,
            likelihood=here.likelihood,
            size_factors=here.size_factors,
            zeros=here.zeros if isinstance(here.zeros, AdaptiveZeros) else None,
            noise=here.noise if isinstance(here.noise, NegativeBinomial) else None,
            effects=None if here.batches is None else here.batches.effects,
            updated=updated,
            previous=trail.previous,
            schedule=trail.schedule,
        )
        first = at_start = restarted = False
        accepted, good, n_shortened = objective, tried, 0
        trail.go_on(index, updated)


def residual_at(engine: Engine, loadings: Array, factors: Array, *, constraint: Constraint = FREE) -> float:
    """KKT residual of a point (`log1pnmf.model.objective.kkt_residual`); both sides are evaluated."""
    problem = engine.problem
    of_factors = HalfStep(factors, *engine.evaluate(problem.factors_side, factors, loadings), 0.0, 0)
    of_loadings = HalfStep(loadings, *engine.evaluate(problem.loadings_side, loadings, factors), 0.0, 0)
    steps: dict[PairSide, HalfStep] = {"loadings": of_loadings, "factors": of_factors}
    return _residual(problem, constraint, Point(loadings, factors), steps)


def _residual(
    problem: Problem, constraint: Constraint, at: Point, steps: Mapping[PairSide, HalfStep]
) -> float:
    """Return the KKT residual from the half-steps of either side; rows without counts are left out."""
    residuals = []
    for side, values, step, bounds in (
        (problem.loadings_side, at.loadings, steps["loadings"], constraint.loadings),
        (problem.factors_side, at.factors, steps["factors"], constraint.factors),
    ):
        own, gradient = step.residual, step.gradient
        if own is None and side.empty is not None:
            penalty = like(gradient, bounds.penalty)
            gradient = (gradient + penalty) * like(gradient, ~side.empty[:, None]) - penalty
        residuals.append(float(bounds.residual(values, gradient) if own is None else own))
    return max(residuals) / (problem.counts.total or 1.0)


@dataclass(eq=False)
class _Trail:
    """Where the solver goes next: beyond its last update, in the direction since the one before."""

    constraint: Constraint
    schedule: Extrapolation | None
    point: Point  # to try next
    plain: Point  # the update it is extrapolated from
    previous: Point  # where the direction of the next extrapolation begins
    # see `log1pnmf.model.problem.Constraint.scales`
    free: NDArray[np.bool_]
    target: Array
    beta: float = 0.0  # of the point

    def begin(self, at: Point) -> None:
        """Go on from here, in no direction."""
        self.point = self.plain = self.previous = self._scaled(at)[0]

    def resume(self, after: Iteration, engine: Engine, *, new_problem: bool) -> Point:
        """Go on after an iteration, from the start where the problem is new; return its update."""
        assert after.updated is not None
        assert after.previous is not None
        updated, self.schedule = after.updated.adopted(engine), after.schedule
        self.previous = after.previous.adopted(engine)
        if not new_problem:
            self.go_on(after.index, updated)
        return updated

    def go_back(self) -> bool:
        """Return to the update that the point was extrapolated from; False where it was not extrapolated."""
        if self.schedule is None or self.beta == 0.0:
            return False
        self.schedule = self.schedule.rejected()
        self.point, self.previous, self.beta = self.plain, self.plain, 0.0
        return True

    def go_on(self, index: int, updated: Point) -> None:
        """Extrapolate the update that an iteration has led to."""
        plain, previous, bounds = updated, self.previous, self.constraint
        self.beta = beta = 0.0 if self.schedule is None else self.schedule.beta
        by_two = not np.isfinite(self.target).any()  # columns are multiplied by powers of two
        if not by_two or index % RESCALED_EVERY == 0:
            plain, previous = self._scaled(plain, previous)
        self.point = self.plain = self.previous = plain
        if beta == 0.0:
            return
        loadings = extrapolated(plain.loadings, previous.loadings, beta, LEAST_KEPT)
        factors = extrapolated(plain.factors, previous.factors, beta, LEAST_KEPT)
        effects = plain.effects
        if effects is not None and previous.effects is not None:  # logarithms: there their levels are sums
            beyond = effects * (effects / previous.effects) ** beta
            effects = np.clip(beyond, 1.0 / LARGEST_EFFECT, LARGEST_EFFECT)
        self.point = Point(bounds.loadings.clip(loadings), bounds.factors.clip(factors), effects)
        if not by_two:
            self.point, self.previous = self._scaled(self.point, plain)

    def _scaled(self, pair: Point, *others: Point) -> tuple[Point, ...]:
        """Fix the free scale of every column, of `pair` and in the same way of `others`.

        Bounded loadings are raised until their largest touches the bound, which lowers the penalty. Otherwise
        the columns' means are balanced to within a factor of two by powers of two, which changes no bit of
        any product. Columns with known entries keep theirs.
        """
        free, target = self.free, self.target.copy()
        bounded, size = np.isfinite(target), np.zeros(len(free))
        if bounded.any():
            size[bounded] = column_max(pair.loadings)[bounded]
        if free.any():
            means = (on_host(column_sums(side)) / side.shape[0] for side in (pair.loadings, pair.factors))
            size[free], target[free] = (mean[free] for mean in means)
        by, used = np.ones(len(size)), (size > 0.0) & (target > 0.0)
        by[used] = size[used] / target[used]
        by[free] = np.exp2(np.rint(0.5 * np.log2(by[free])))
        scaled = pair.scaled(by)
        if bounded.any():  # rounding
            scaled = replace(scaled, loadings=self.constraint.loadings.clip(scaled.loadings))
        return (scaled, *(other.scaled(by) for other in others))
