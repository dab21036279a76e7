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
from log1pnmf.model.noise import NegativeBinomial
from log1pnmf.model.problem import Constraint, Problem, Structure

from .callbacks import Callback, History, ProgressBar
from .fit import Certificate, Changed, DataFacts, Fit, Stopped, arranged
from .fixed_factors import parts_of_known
from .settings import Settings
from .solver import (
    STATIONARY,
    Extrapolation,
    Iteration,
    Point,
    Stopping,
    alternate,
    engine_at,
    finds_effects,
    residual_at,
)
from .updates import ProblemUpdate, Update, is_due


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
    start: str  # which start it was, see `log1pnmf.fitting.starts.find_start`

    @property
    def objective(self) -> float:
        """Objective at the end, with the errors of adaptive zeros put right.

        What the noise's own parameters cost is left out: every start has found a prior of its own for them.
        """
        signed = 0.0 if self.errors is None else self.errors[0]
        noise = self.changed.noise
        return self.last.objective - (0.0 if noise is None else noise.cost) + signed

    def as_fit(self, settings: Settings, problem: Problem, *, known: Structure | None = None) -> Fit:
        """Return the `Fit` of this run, given the problem it ended with; no other code makes one."""
        last, counts, exact = self.last, problem.counts, self.last.likelihood == "exact"
        certificate, noise = None, problem.noise
        if last.likelihood != "approximate" and self.errors is not None:
            signed, absolute = self.errors
            certificate = Certificate(-last.loss - signed, None if exact else -last.loss, absolute)
        own, l1 = last.factors * settings.link.alpha, settings.l1
        loadings, factors = arranged(last.loadings, own, l1=l1, normalize="max", known=known)
        return Fit(
            loadings=loadings,
            factors=factors,
            size_factors=problem.size_factors,
            settings=settings,
            asked=settings,
            data=DataFacts.of(counts),
            stopped=self.stopped,
            objective=last.objective,
            approximate_log_likelihood=None if exact else -last.loss,
            kkt_residual=last.kkt_residual,
            n_iter=last.index,
            seconds=last.seconds,
            history=self.history,
            certificate=certificate,
            sample_names=counts.sample_names,
            feature_names=counts.feature_names,
            dispersion=noise.dispersion if isinstance(noise, NegativeBinomial) else None,
            batches=problem.batches,
            **({} if known is None else parts_of_known(known, settings.n_components)),
        )


@dataclass(frozen=True, eq=False)
class Progress:
    """A fit right after an iteration: all that is needed to go on with the same bits.

    An update or the end of a start needs no record of its own: a resumed fit reaches it again at once.
    """

    restart: int  # number of the start
    last: Iteration  # its seconds count from the start on
    stopping: Stopping
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Runs:
    """The runs of one fit."""

    settings: Settings
    engine: Engine  # of the problem with which every run begins
    rng: Random
    start: Start
    constraint: Constraint
    update: ProblemUpdate | None = None
    callbacks: Sequence[Callback] = ()
    after: float | None = None  # seconds until progress is shown; None: never
    keep: Keep | None = None

    def best(self, resumed: Progress | None = None) -> Run:
        """Run every start to its end, and return the one with the lowest objective."""
        first, best = (0, None) if resumed is None else (resumed.restart, resumed.best)
        for number in range(first, self.settings.n_init):
            try:
                run = self._one(number, best, self._begun(number) if resumed is None else resumed)
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

    def _one(self, number: int, best: Run | None, begun: Progress | tuple[Engine, Point, str]) -> Run:
        """Follow one start, or what is resumed, to its end; `best` is the best run of those before."""
        settings, last, history, stopping = self.settings, None, History(), Stopping(self.settings.tol)
        if isinstance(begun, tuple):
            engine, point, name = begun
        else:
            last, name, history = begun.last, begun.start, History(begun.history)
            stopping, point = replace(begun.stopping), Point(last.loadings, last.factors)
            engine = self.engine.with_problem(begun.changed.put_into(self.engine.problem))
        steps = self._steps(engine, point, stopping, history, last)
        random = random_parts(self.rng)  # no random numbers are drawn until the next start
        stopped: Stopped = "interrupted"
        label = "fitting" + (f", start {number + 1} of {settings.n_init}" if settings.n_init > 1 else "")
        display = nullcontext() if self.after is None else ProgressBar(settings.max_iter, label, self.after)
        with display as bar:
            watchers: list[Callback] = [*self.callbacks, *([] if bar is None else [bar])]
            asked = None
            try:
                while True:
                    try:
                        last, engine = steps.send(asked)
                    except StopIteration as end:
                        stopped = end.value
                        break
                    if self.keep is not None:  # complete before the callbacks see it
                        now = Changed.of(engine_at(engine, last.effects).problem)
                        state = (last, replace(stopping), history.table(), now, random)
                        self.keep(Progress(number, *state, best, name))
                    shown = last.on_host() if self.callbacks else last
                    asked = sum(bool(watch(shown)) for watch in watchers) > 0  # all of them see it
            except KeyboardInterrupt:
                if last is None:
                    raise
        assert last is not None
        errors, engine = None, engine_at(engine, last.effects)
        if stopped != "interrupted":
            errors = engine.zero_errors(last.loadings, last.factors)
            if engine.rounds_loss:
                loss = engine.loss(last.loadings, last.factors)
                last = replace(last, loss=loss, objective=last.objective - last.loss + loss)
        return Run(last.on_host(), history.table(), stopped, Changed.of(engine.problem), errors, name)

    def _begun(self, number: int) -> tuple[Engine, Point, str]:
        """Return the engine of the first problem, a start, and its name."""
        engine, update = self.engine, self.update
        if update is None:
            return engine, *self.start(engine, self.rng, number)
        engine = engine.with_problem(update.begin(engine))
        point, name = self.start(engine, self.rng, number)
        loss, _ = engine.evaluate(engine.problem.loadings_side, point.loadings, point.factors)
        first = update(engine, point, loss, index=0, final=False)
        if first is not None:
            engine, point = engine.with_problem(first.problem), first.point or point
        return engine, point, name

    def _steps(
        self, engine: Engine, point: Point, stopping: Stopping, history: History, last: Iteration | None
    ) -> Generator[tuple[Iteration, Engine], bool | None, Stopped]:
        """Yield iterations and the engines of their problems, updated on the way; return why they end.

        A callback's wish to stop is sent in. `last`: the iteration to resume from; what follows it is done
        first.
        """
        settings, renewed = self.settings, False
        while True:
            fresh, asked = None, None
            before, seconds = last, 0.0 if last is None else last.seconds
            if last is not None and not renewed:
                fresh = self._updated(engine, last, stopping, history)
                if fresh is None and stopping.met:
                    return "converged"
            if fresh is None:
                for iteration in alternate(
                    engine,
                    point.loadings,
                    point.factors,
                    constraint=self.constraint,
                    row_solver=settings.row_solver,
                    extrapolation=Extrapolation() if settings.row_solver == "newton" else None,
                    max_iter=settings.max_iter,
                    after=before,
                    renewed=renewed,
                    effects=finds_effects(engine),
                ):
                    last = replace(iteration, seconds=seconds + iteration.seconds)
                    stopping(last)
                    history(last)
                    asked = yield last, engine
                    fresh = self._updated(engine, last, stopping, history)
                    if fresh is not None or stopping.met or asked:
                        break
                else:
                    assert last is not None
                    fresh, why = self._ended(engine_at(engine, last.effects), last)
                    if fresh is None:
                        return why
            if fresh is None:
                return "converged" if stopping.met else "callback"
            assert last is not None
            engine, renewed = engine.with_problem(fresh.problem), True
            point = fresh.point or Point(last.loadings, last.factors)

    def _updated(
        self, engine: Engine, last: Iteration, stopping: Stopping, history: History
    ) -> Update | None:
        """Update the problem where that is due; not where it was just updated."""
        if self.update is None or math.isnan(last.relative_change):
            return None
        if not (stopping.met or _is_due(engine, last, history)):
            return None
        point, now = Point(last.loadings, last.factors), engine_at(engine, last.effects)
        return self.update(now, point, last.loss, index=last.index, final=stopping.met)

    def _ended(self, engine: Engine, last: Iteration) -> tuple[Update | None, Stopped]:
        """Return a last update, and why the solver ended: `max_iter`, or no step lowers the objective."""
        problem, point, settings = engine.problem, Point(last.loadings, last.factors), self.settings
        # the last iteration may have been lost to an extrapolation that was dropped
        if last.index >= settings.max_iter - 1:
            if settings.likelihood != "exact" or problem.likelihood != "adaptive":
                return None, "max_iter"
            return Update(replace(problem, zeros=None)), "max_iter"  # converged or not, the end is exact
        if self.update is not None and not math.isnan(last.relative_change):
            fresh = self.update(engine, point, last.loss, index=last.index, final=True)
            if fresh is not None:
                return fresh, "stalled"
        residual = residual_at(engine, last.loadings, last.factors, constraint=self.constraint)
        return None, "converged" if residual <= STATIONARY else "stalled"


def _is_due(engine: Engine, last: Iteration, history: History) -> bool:
    """Return whether to update parameters: often at first, and where that gains more than to iterate."""
    problem = engine.problem
    effects = problem.batches is not None and not finds_effects(engine)
    if is_due(last.index, often=effects):
        return True
    if not problem.noise.zero_loss_is_mean:  # dispersions are found as well
        return False
    worth = SIZES_WORTH if problem.size_prior is not None else WORTH if effects else 0.0
    return last.relative_change * abs(last.objective) < worth * history.last_update()
