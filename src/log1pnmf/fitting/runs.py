"""Run every start to its end and keep the best; `Progress` is what resuming needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from log1pnmf._common.checks import Random, random_parts
from log1pnmf.engines.base import Engine
from log1pnmf.model.constraint import Constraint, Structure
from log1pnmf.model.noise import NegativeBinomial
from log1pnmf.model.problem import Problem

from .callbacks import Callback, History, ProgressBar
from .fit import Certificate, Changed, DataFacts, Fit, Stopped, arranged
from .fixed_factors import constraint_of, parts_of_known
from .settings import Settings
from .solver import (
    STATIONARY,
    Extrapolation,
    Iteration,
    Point,
    Stopping,
    alternate,
    effects_of,
    engine_at,
    residual_at,
)
from .updates import ProblemUpdate, Remake, Update, is_due


@dataclass(frozen=True, eq=False)
class Run:
    """One start followed to its end."""

    last: Iteration  # where it ended
    history: Mapping[str, np.ndarray]  # `History.table`
    stopped: Stopped  # why it ended
    changed: Changed  # of the problem it ended with
    # errors of adaptive zeros at the end, see `log1pnmf.engines.base.Engine.zero_errors`; None where they are
    # not known, because the fit was interrupted
    errors: tuple[float, float] | None
    start: str  # which start it was, see `log1pnmf.fitting.race.find_start`

    @property
    def objective(self) -> float:
        """Objective at the end, with the errors of adaptive zeros put right.

        What the noise's own parameters cost is left out: every start has found a prior of its own for them.
        """
        signed = 0.0 if self.errors is None else self.errors[0]
        return self.last.objective - self.changed.noise.cost + signed

    def as_fit(
        self,
        settings: Settings,
        problem: Problem,
        *,
        known: Structure | None = None,
        kkt_residual: float | None = None,
    ) -> Fit:
        """Make the `Fit` of this run; no other code makes one."""
        last, counts, exact = self.last, problem.counts, self.last.likelihood == "exact"
        certificate, ended = None, self.changed.put_into(problem)
        if last.likelihood != "approximate" and self.errors is not None:
            signed, absolute = self.errors
            certificate = Certificate(-last.loss - signed, None if exact else -last.loss, absolute)
        own, l1 = last.factors * settings.link.alpha, settings.l1
        loadings, factors = arranged(last.loadings, own, l1=l1, normalize="max", known=known)
        return Fit(
            loadings=loadings,
            factors=factors,
            size_factors=ended.size_factors,
            settings=settings,
            asked=settings,
            data=DataFacts.of(counts),
            stopped=self.stopped,
            objective=last.objective,
            approximate_log_likelihood=None if exact else -last.loss,
            kkt_residual=last.kkt_residual if kkt_residual is None else kkt_residual,
            n_iter=last.index,
            seconds=last.seconds,
            history=self.history,
            certificate=certificate,
            sample_names=counts.sample_names,
            feature_names=counts.feature_names,
            dispersion=ended.noise.dispersion if isinstance(ended.noise, NegativeBinomial) else None,
            batches=ended.batches,
            **({} if known is None else parts_of_known(known, settings.n_components)),
        )


@dataclass(frozen=True, eq=False)
class Progress:
    """A fit right after an iteration: all that is needed to go on with the same bits.

    An update or the end of a start needs no record of its own: a resumed fit reaches it again at once.
    """

    restart: int  # number of the start
    last: Iteration  # its seconds count from the start on
    stopping: tuple[int, bool]  # `log1pnmf.fitting.solver.Stopping.state`
    history: Mapping[str, np.ndarray]  # of this start, `last` included
    changed: Changed  # of the problem that is being solved
    # `log1pnmf._common.checks.random_parts` of the generator, from which later starts are drawn
    random: Mapping[str, Any]
    best: Run | None  # the best of the earlier starts
    start: str  # which start it was


WORTH, SIZES_WORTH = 2.0, 0.05
"""Effects of batches, and size factors, are found anew when an iteration lowers the objective by less than so
many times what the last update did. They and factors depend on each other: with few updates all creep.
Finding sizes takes as long as tens of iterations."""

Keep: TypeAlias = Callable[[Progress], None]
"""Called after every iteration."""

Start: TypeAlias = Callable[[Engine, Random, int], tuple[Point, str]]
"""Finds a start and its name, for an engine, random numbers, and how many starts there were before."""


def best_run(
    settings: Settings,
    remake: Remake,
    problem: Problem,
    rng: Random,
    *,
    start: Start,
    update: ProblemUpdate | None = None,
    known: Structure | None = None,
    callbacks: Sequence[Callback] = (),
    verbose: int = 0,
    resumed: Progress | None = None,
    keep: Keep | None = None,
) -> Run:
    """Run every start to its end."""
    begin, best = (0, None) if resumed is None else (resumed.restart, resumed.best)
    constraint = constraint_of(settings, known)
    for restart in range(begin, settings.n_init):
        label = "fit" + (f", start {restart + 1}" if settings.n_init > 1 else "")
        try:
            run = _one_run(
                settings,
                remake,
                problem,
                rng,
                start=start,
                update=update,
                constraint=constraint,
                callbacks=callbacks,
                label=label if verbose else None,
                resumed=resumed,
                keep=keep,
                before=(restart, best),
            )
        except KeyboardInterrupt:  # interrupted before this start had a result
            if best is None:
                raise
            return replace(best, stopped="interrupted")
        if best is None or run.objective < best.objective:
            best = run
        if run.stopped in ("interrupted", "callback"):
            return replace(best, stopped=run.stopped)
        resumed = None
    if best is None:
        raise ValueError("the checkpoint is beyond the last start; start again without resume")
    return best


def _one_run(
    settings: Settings,
    remake: Remake,
    problem: Problem,
    rng: Random,
    *,
    start: Start,
    update: ProblemUpdate | None,
    constraint: Constraint,
    callbacks: Sequence[Callback],
    label: str | None,
    resumed: Progress | None,
    keep: Keep | None,
    before: tuple[int, Run | None],
) -> Run:
    """Follow one start to its end; `before`: how many starts there were, and the best run of them."""
    history, stopping, last = History(), Stopping(settings.tol), None
    if resumed is None:
        engine = remake(problem)
        if update is not None:
            engine = remake(update.begin(engine))
        point, name = start(engine, rng, before[0])
        if update is not None:
            loss, _ = engine.evaluate(engine.problem.loadings_side, point.loadings, point.factors)
            first = update(engine, point, loss, index=0, final=False)
            if first is not None:
                engine, point = remake(first.problem), first.point or point
    else:
        last, name, history = resumed.last, resumed.start, History(resumed.history)
        engine, point = remake(resumed.changed.put_into(problem)), Point(last.loadings, last.factors)
        stopping.restore(resumed.stopping)
    steps = solve(
        engine,
        point,
        settings=settings,
        remake=remake,
        update=update,
        constraint=constraint,
        watched=(stopping, history),
        last=last,
    )
    random = random_parts(rng)  # no random numbers are drawn until the next start
    stopped: Stopped = "interrupted"
    with nullcontext() if label is None else ProgressBar(settings.max_iter, label) as bar:
        watchers: list[Callback] = [*callbacks, *([] if bar is None else [bar])]
        asked = None
        try:
            while True:
                try:
                    last, engine = steps.send(asked)
                except StopIteration as end:
                    stopped = end.value
                    break
                if keep is not None:  # complete before the callbacks see it
                    now = Changed.of(engine_at(engine, last, remake).problem)
                    state = (last, stopping.state, history.table(), now, random)
                    keep(Progress(before[0], *state, before[1], name))
                shown = last.on_host() if callbacks else last
                asked = sum(bool(watch(shown)) for watch in watchers) > 0  # all of them see it
        except KeyboardInterrupt:
            if last is None:
                raise
    assert last is not None
    errors, engine = None, engine_at(engine, last, remake)
    if stopped != "interrupted":
        errors = engine.zero_errors(last.loadings, last.factors)
        if engine.rounds_loss:
            loss = engine.loss(last.loadings, last.factors)
            last = replace(last, loss=loss, objective=last.objective - last.loss + loss)
    return Run(last.on_host(), history.table(), stopped, Changed.of(engine.problem), errors, name)


def solve(
    engine: Engine,
    point: Point,
    *,
    settings: Settings,
    remake: Remake,
    update: ProblemUpdate | None,
    constraint: Constraint,
    watched: tuple[Stopping, History],
    last: Iteration | None = None,
) -> Generator[tuple[Iteration, Engine], bool | None, Stopped]:
    """Yield iterations and the engines of their problems, which are updated on the way; return why they end.

    A callback's wish to stop is sent in. `last`: the iteration to resume from; what follows it is done first.
    """
    (stopping, history), renewed = watched, False
    while True:
        effects, fresh, asked = effects_of(engine, remake), None, None
        before, seconds = last, 0.0 if last is None else last.seconds
        if last is not None and not renewed:
            fresh = _updated(engine, last, update, remake, watched)
            if fresh is None and stopping.met:
                return "converged"
        if fresh is None:
            for iteration in alternate(
                engine,
                point.loadings,
                point.factors,
                constraint=constraint,
                row_solver=settings.row_solver,
                extrapolation=Extrapolation() if settings.extrapolates else None,
                max_iter=settings.max_iter,
                after=before,
                renewed=renewed,
                effects=effects,
            ):
                last = replace(iteration, seconds=seconds + iteration.seconds)
                stopping(last)
                history(last)
                asked = yield last, engine
                fresh = _updated(engine, last, update, remake, watched)
                if fresh is not None or stopping.met or asked:
                    break
            else:
                assert last is not None
                now = engine_at(engine, last, remake)
                fresh, why = _ended(now, last, settings, update, constraint)
                if fresh is None:
                    return why
        if fresh is None:
            return "converged" if stopping.met else "callback"
        assert last is not None
        engine, renewed = remake(fresh.problem), True
        point = fresh.point or Point(last.loadings, last.factors)


def _updated(
    engine: Engine,
    last: Iteration,
    update: ProblemUpdate | None,
    remake: Remake,
    watched: tuple[Stopping, History],
) -> Update | None:
    """Update the problem where that is due; not where it was just updated."""
    stopping, history = watched
    if update is None or math.isnan(last.relative_change):
        return None
    if not (stopping.met or _is_due(engine, last, remake, history)):
        return None
    point, now = Point(last.loadings, last.factors), engine_at(engine, last, remake)
    return update(now, point, last.loss, index=last.index, final=stopping.met)


def _is_due(engine: Engine, last: Iteration, remake: Remake, history: History) -> bool:
    """Whether to update parameters: often at first, and where that gains more than to iterate."""
    problem = engine.problem
    effects = problem.batches is not None and effects_of(engine, remake) is None
    if is_due(last.index, often=effects):
        return True
    if not problem.noise.zero_loss_is_mean:  # dispersions are found as well
        return False
    worth = SIZES_WORTH if problem.size_prior is not None else WORTH if effects else 0.0
    return last.relative_change * abs(last.objective) < worth * history.last_update()


def _ended(
    engine: Engine,
    last: Iteration,
    settings: Settings,
    update: ProblemUpdate | None,
    constraint: Constraint,
) -> tuple[Update | None, Stopped]:
    """Describe why the solver ended, and a last update: `max_iter`, or no step lowers the objective."""
    problem, point = engine.problem, Point(last.loadings, last.factors)
    # the last iteration may have been lost to an extrapolation that was dropped
    if last.index >= settings.max_iter - 1:
        if settings.likelihood != "exact" or problem.likelihood != "adaptive":
            return None, "max_iter"
        return Update(replace(problem, zeros=None)), "max_iter"  # converged or not, the end is exact
    if update is not None and not math.isnan(last.relative_change):
        fresh = update(engine, point, last.loss, index=last.index, final=True)
        if fresh is not None:
            return fresh, "stalled"
    residual = residual_at(engine, last.loadings, last.factors, constraint=constraint)
    return None, "converged" if residual <= STATIONARY else "stalled"
