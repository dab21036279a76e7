"""The alternating solver: a generator of iterations, each two half-steps over the data."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.arrays import column_max, column_means, extrapolated, like
from log1pnmf.engines.base import Engine, HalfStep, PairSide, RowSolver
from log1pnmf.model.constraint import FREE, Bounds, Constraint
from log1pnmf.model.optimality import larger_residual, side_residual
from log1pnmf.model.problem import Side

from .effects import Effects, further
from .extrapolate import Extrapolation
from .iteration import Iteration, Pair, State

__all__ = ["alternate", "residual_at"]

Array = NDArray[np.float64]

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
MOST_SHORTENED = 6
"""Number of such fractions in a row after which the fit ends."""
RESCALED_EVERY = 8
"""Iterations after which columns are balanced, where their scale is free: a device has to be waited for."""
ROUNDING = 1e-12
"""A rise of the objective by a smaller fraction of it is rounding error."""


def alternate(
    engine: Engine,
    loadings: Array,
    factors: Array,
    *,
    constraint: Constraint = FREE,
    row_solver: RowSolver = "newton",
    extrapolation: Extrapolation | None = None,
    max_iter: int = 1000,
    state: State | None = None,
    renewed: bool = False,
    effects: Effects | None = None,
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

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        Start, on the eta scale and within the bounds.
    constraint : Constraint
        A penalty on the factors needs an upper bound of the loadings, or the scale would run away.
    extrapolation : Extrapolation, optional
        None: plain alternation.
    max_iter : int
        Iterations after which to end, lost ones included.
    state : State, optional
        Go on after the iteration that carried it, with the same bits as without the pause; the start is then
        looked at again, but has to be the one that iteration yielded; all other parameters are the same.
    renewed : bool
        The engine's problem is not the one that `state` comes from: its iteration is looked at again, under
        the same index, and the extrapolation goes on.
    effects : Effects, optional
        Finds the effects of batches after the two half-steps, starting from those of the engine's problem;
        they are extrapolated as well. None: they stay as they are.
    residuals : bool
        Whether to compute the KKT residual of every iteration; NaN otherwise. Nothing else depends on it.

    Yields
    ------
    Iteration
        Index 0 is the start (rescaled); lost iterations are left out. Ends before `max_iter` only if an
        update no longer lowers the objective in floating point.
    """
    moves = _Moves(engine, constraint, row_solver, effects)
    leader, follower = ROLES[row_solver]
    started = time.perf_counter()
    good = moves.adopt(Pair(loadings, factors, moves.first_effects))
    look, begin, accepted, beta = state is None or renewed, 0, math.inf, 0.0
    if state is None:
        point = plain = previous = moves.rescale(good)[0]
    else:
        if extrapolation is not None and state.schedule is not None:
            extrapolation.restore(state.schedule)
        state = replace(state, updated=moves.adopt(state.updated), previous=moves.adopt(state.previous))
        if renewed:
            begin, point, plain, previous = state.index, good, good, state.previous
        else:
            begin, accepted = state.index + 1, state.objective
            point, plain, previous, beta = moves.onward(state, extrapolation)
    restarted, n_shortened = False, 0
    for index in range(begin, max_iter + 1):
        last = index == max_iter
        follow = moves.improve(follower, point, look_only=look, with_loss=False)
        tried = replace(point, **{follower: follow.values})
        lead = moves.improve(leader, tried, look_only=last, for_effects=True)
        objective = moves.objective(lead.loss, tried)
        if state is None and math.isnan(objective):
            raise ValueError(
                "the log-likelihood of the start is not a number: double precision cannot represent "
                "these counts, size factors and c together; rescale the counts, or use a c closer to "
                "them"
            )
        if not objective <= accepted:
            restarted = True
            if extrapolation is not None and beta != 0.0:
                extrapolation.rejected()
                point, previous, beta = plain, plain, 0.0
                continue
            by_rounding = lead.certain or objective - accepted <= ROUNDING * abs(accepted)
            if state is None or by_rounding or n_shortened == MOST_SHORTENED:  # nothing is left to gain
                return
            state, n_shortened = replace(state, updated=moves.between(good, state.updated)), n_shortened + 1
            point = plain = previous = moves.rescale(state.updated)[0]
            continue
        if extrapolation is not None and not look:
            extrapolation.accepted()
        schedule = None if extrapolation is None else extrapolation.state
        updated = replace(tried, **{leader: lead.values})
        if not last:
            updated = moves.with_effects(updated, lead)
        state = State(index, objective, updated, previous, schedule)
        steps = {follower: follow, leader: lead}
        yield Iteration(
            index=index,
            loadings=tried.loadings,
            factors=tried.factors,
            loss=lead.loss,
            objective=objective,
            relative_change=math.nan if look else _relative_change(accepted, objective),
            kkt_residual=moves.residual(point, **steps) if residuals else math.nan,
            beta=beta,
            seconds=time.perf_counter() - started,
            restarted=restarted,
            n_rejected=follow.n_rejected + lead.n_rejected,
            likelihood=engine.problem.likelihood,
            state=state,
            effects=tried.effects,
        )
        look, accepted, restarted, good, n_shortened = False, objective, False, tried, 0
        point, plain, previous, beta = moves.onward(state, extrapolation)


def residual_at(engine: Engine, loadings: Array, factors: Array, *, constraint: Constraint = FREE) -> float:
    """KKT residual of a point (`log1pnmf.model.optimality.kkt_residual`); both sides are evaluated."""
    point, moves = Pair(loadings, factors), _Moves(engine, constraint, "newton")
    looks = {which: moves.improve(which, point, look_only=True) for which in ROLES["newton"]}
    return moves.residual(point, **looks)


def _relative_change(accepted: float, objective: float) -> float:
    fall = accepted - objective
    return fall / abs(objective) if objective != 0.0 else fall


@dataclass(eq=False)
class _Moves:
    """The half-steps of one problem, its objective and its free scale."""

    engine: Engine
    constraint: Constraint
    row_solver: RowSolver
    effects: Effects | None = None
    _scales: tuple[NDArray[np.bool_], Array] | None = None

    @property
    def first_effects(self) -> Array | None:
        batches = self.engine.problem.batches
        return None if self.effects is None or batches is None else batches.effects

    def engine_at(self, at: Pair) -> Engine:
        """Give the engine with the effects of a point, and keep it: it is asked for more than once."""
        if self.effects is not None:
            self.engine = self.effects.at(self.engine, at.effects)
        return self.engine

    def with_effects(self, at: Pair, lead: HalfStep) -> Pair:
        """Find the effects for loadings and factors, which the half-step led to."""
        if self.effects is None:
            return at
        engine = self.engine_at(at)
        return replace(at, effects=self.effects.found(engine, at.loadings, at.factors, lead.batch_sums))

    def objective(self, loss: float, at: Pair) -> float:
        return loss + self.constraint.cost(at.loadings, at.factors) + self.engine_at(at).problem.cost

    def adopt(self, pair: Pair) -> Pair:
        adopt = self.engine.adopt
        return replace(pair, loadings=adopt(pair.loadings), factors=adopt(pair.factors, "factors"))

    def improve(
        self, which: PairSide, at: Pair, *, look_only: bool, with_loss: bool = True, for_effects: bool = False
    ) -> HalfStep:
        engine = self.engine_at(at)
        problem = engine.problem
        if which == "loadings":
            side, start, design = problem.loadings_side, at.loadings, at.factors
            bounds = self.constraint.loadings
        else:
            side, start, design = problem.factors_side, at.factors, at.loadings
            bounds = self.constraint.factors
        if look_only:
            return HalfStep(start, *engine.evaluate(side, start, design), 0.0, 0)
        how = {} if with_loss or not getattr(engine, "leaves_out_loss", False) else {"with_loss": False}
        if for_effects and self.effects is not None and getattr(engine, "adds_batch_sums", False):
            how["with_batch_sums"] = True
        return engine.half_step(side, start, design, bounds=bounds, row_solver=self.row_solver, **how)

    def residual(self, at: Pair, *, loadings: HalfStep, factors: HalfStep) -> float:
        """KKT residual from the half-steps of either side."""
        problem, bounds = self.engine.problem, self.constraint
        by_loadings = _residual(problem.loadings_side, at.loadings, loadings, bounds.loadings)
        by_factors = _residual(problem.factors_side, at.factors, factors, bounds.factors)
        return larger_residual(by_loadings, by_factors, problem.counts.total)

    def onward(self, state: State, extrapolation: Extrapolation | None) -> tuple[Pair, Pair, Pair, float]:
        """Next point to try, the update it is extrapolated from, where its direction will begin, and beta."""
        beta = 0.0 if extrapolation is None else extrapolation.beta
        plain, previous = state.updated, state.previous
        by_two = self.scales_by_two(plain)
        if not by_two or state.index % RESCALED_EVERY == 0:
            plain, previous = self.rescale(plain, previous)
        if beta == 0.0:
            return plain, plain, plain, beta
        point = self.beyond(plain, previous, beta)
        if by_two:
            return point, plain, plain, beta
        point, scaled = self.rescale(point, plain)
        return point, plain, scaled, beta

    def beyond(self, new: Pair, old: Pair, beta: float) -> Pair:
        """Extrapolate from `old` through `new`, within the bounds."""
        loadings = extrapolated(new.loadings, old.loadings, beta, LEAST_KEPT)
        factors = extrapolated(new.factors, old.factors, beta, LEAST_KEPT)
        return Pair(
            self.constraint.loadings.clip(loadings),
            self.constraint.factors.clip(factors),
            further(new.effects, old.effects, beta, self.engine),
        )

    def between(self, old: Pair, new: Pair) -> Pair:
        """Go only a part of the way from `old` to `new`, and with the effects of `old`."""
        factors = old.factors + SHORTER * (new.factors - old.factors)
        return replace(new, factors=factors, effects=old.effects)

    def scales(self, pair: Pair) -> tuple[NDArray[np.bool_], Array]:
        """See `log1pnmf.model.constraint.Constraint.scales`; the same for every pair."""
        if self._scales is None:
            self._scales = self.constraint.scales(pair.factors.shape[1])
        return self._scales

    def scales_by_two(self, pair: Pair) -> bool:
        """Whether `rescale` only multiplies by powers of two."""
        return not np.isfinite(self.scales(pair)[1]).any()

    def rescale(self, pair: Pair, *others: Pair) -> tuple[Pair, ...]:
        """Fix the free scale of every column, of `pair` and in the same way of `others`.

        Bounded loadings are raised until their largest touches the bound, which lowers the penalty. Otherwise
        the columns' means are balanced to within a factor of two by powers of two, which changes no bit of
        any product. Columns with known entries keep theirs.
        """
        free, target = self.scales(pair)
        target, bounded, size = target.copy(), np.isfinite(target), np.zeros(len(free))
        if bounded.any():
            size[bounded] = column_max(pair.loadings)[bounded]
        if free.any():
            means = column_means(pair.loadings, pair.factors)
            size[free], target[free] = (mean[free] for mean in means)
        by, used = np.ones(len(size)), (size > 0.0) & (target > 0.0)
        by[used] = size[used] / target[used]
        by[free] = np.exp2(np.rint(0.5 * np.log2(by[free])))
        scaled = pair.scaled(by)
        if bounded.any():  # rounding
            scaled = replace(scaled, loadings=self.constraint.loadings.clip(scaled.loadings))
        return (scaled, *(other.scaled(by) for other in others))


def _residual(side: Side, values: Array, step: HalfStep, bounds: Bounds) -> Any:
    """Residual of a side; rows that have no counts, and are zero by decision, are left out."""
    if step.residual is not None:
        return step.residual
    gradient = step.gradient
    if side.empty is not None:
        penalty = like(gradient, bounds.penalty)
        gradient = (gradient + penalty) * like(gradient, ~side.empty[:, None]) - penalty
    return side_residual(values, gradient, bounds)
