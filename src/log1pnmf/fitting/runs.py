"""Run every start to its end and keep the best; `Progress` is what resuming needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

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
    Effects,
    Extrapolation,
    Iteration,
    Pair,
    Stopping,
    alternate,
    effects_of,
    residual_at,
)
from .updates import Remake, Renewal, Renewed, is_due


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
        n, certificate, ended = counts.n_samples, None, self.changed.put_into(problem)
        if last.likelihood != "approximate" and self.errors is not None:
            signed, absolute = self.errors
            approximate = None if exact else -last.loss
            certificate = Certificate(-last.loss - signed, 0.0, approximate, n, n, absolute)
        own, l1 = last.factors * settings.link.alpha, settings.l1
        loadings, factors = arranged(last.loadings, own, l1=l1, normalize=settings.normalize, known=known)
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

    A renewal or the end of a start needs no record of its own: a resumed fit reaches it again at once.
    """

    restart: int  # number of the start
    last: Iteration  # with the solver's `state`; its seconds count from the start on
    stopping: tuple[int, bool]  # `log1pnmf.fitting.solver.Stopping.state`
    history: Mapping[str, np.ndarray]  # of this start, `last` included
    changed: Changed  # of the problem that is being solved
    # `log1pnmf._common.checks.random_parts` of the generator, from which later starts are drawn
    random: Mapping[str, Any]
    best: Run | None  # the best of the earlier starts
    start: str  # which start it was


WORTH, SIZES_WORTH = 2.0, 0.05
"""Effects of batches, and size factors, are found anew when an iteration lowers the objective by less than so
many times what the last renewal did. They and factors depend on each other: with few renewals all creep.
Finding sizes takes as long as tens of iterations."""

Keep: TypeAlias = Callable[[Progress], None]
"""Called after every iteration."""

Start: TypeAlias = Callable[[Engine, Random, int], tuple[Pair, str]]
"""Finds a start and its name, for an engine, random numbers, and how many starts there were before."""


def best_run(
    settings: Settings,
    remake: Remake,
    problem: Problem,
    rng: Random,
    *,
    start: Start,
    renewal: Renewal | None = None,
    known: Structure | None = None,
    callbacks: Sequence[Callback] = (),
    verbose: int = 0,
    resumed: Progress | None = None,
    keep: Keep | None = None,
) -> Run:
    """Run every start to its end."""
    begin, best = (0, None) if resumed is None else (resumed.restart, resumed.best)
    for restart in range(begin, settings.n_init):
        one = _OneStart(
            settings,
            restart,
            best,
            remake=remake,
            constraint=constraint_of(settings, known),
            renewal=renewal,
            keep=keep,
            callbacks=callbacks,
            verbose=verbose,
        )
        try:
            run = one(problem, rng, start, resumed)
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


class _OneStart:
    """Runs one start to its end, renewing the problem on the way."""

    def __init__(
        self,
        settings: Settings,
        restart: int,
        best: Run | None,
        *,
        remake: Remake,
        constraint: Constraint,
        renewal: Renewal | None,
        keep: Keep | None,
        callbacks: Sequence[Callback],
        verbose: int,
    ) -> None:
        self.settings, self.restart, self.best, self.keep = settings, restart, best, keep
        self.renewal, self.callbacks, self.verbose = renewal, callbacks, verbose
        self.remake, self.constraint = remake, constraint
        self.last: Iteration | None = None
        self.history, self.stopping = History(), Stopping(settings.tol)
        self.random: Mapping[str, Any] = {}
        self.fresh: Renewed | None = None
        self.start = ""
        self.effects: Effects | None = None

    def __call__(self, problem: Problem, rng: Random, start: Start, resumed: Progress | None) -> Run:
        """Run to the end."""
        remake, renewed = self.remake, False
        if resumed is None:
            engine = remake(problem)
            if self.renewal is not None:
                engine = self.renewal.begin(engine)
            point, self.start = start(engine, rng, self.restart)
            if self.renewal is not None:
                loss, _ = engine.evaluate(engine.problem.loadings_side, point.loadings, point.factors)
                engine, point = self.renewal(engine, point, loss, index=0, final=False) or (engine, point)
        else:
            engine = remake(resumed.changed.put_into(problem))
            point = Pair(resumed.last.loadings, resumed.last.factors)
            self.last, self.history, self.start = resumed.last, History(resumed.history), resumed.start
            self.stopping.restore(resumed.stopping)
        self.effects = effects_of(engine, remake)
        self.random = random_parts(rng)  # no random numbers are drawn until the next start
        with ExitStack() as stack:
            watchers: list[Callback] = [*self.callbacks]
            if self.verbose:
                label = "fit" + (f", start {self.restart + 1}" if self.settings.n_init > 1 else "")
                watchers.append(stack.enter_context(ProgressBar(self.settings.max_iter, label)))
            while True:
                reason = self._solve(engine, point, watchers, renewed=renewed)
                if reason != "renewed":
                    break
                assert self.fresh is not None
                (engine, point), renewed = self.fresh, True
                self.effects = effects_of(engine, remake)  # other zeros may be visited by now
        assert self.last is not None
        errors, engine, last = None, self._now(engine), self.last
        if reason != "interrupted":
            errors = engine.zero_errors(last.loadings, last.factors)
            if engine.rounds_loss:
                loss = engine.loss(last.loadings, last.factors)
                last = replace(last, loss=loss, objective=last.objective - last.loss + loss)
        changed = Changed.of(engine.problem)
        return Run(last.on_host(), self.history.table(), reason, changed, errors, self.start)

    def _now(self, engine: Engine) -> Engine:
        """Return the engine with the effects of batches that the last iteration found."""
        if self.effects is None or self.last is None:
            return engine
        return self.effects.at(engine, self.last.effects)

    def _solve(
        self, engine: Engine, point: Pair, watchers: Sequence[Callback], *, renewed: bool
    ) -> Stopped | Literal["renewed"]:
        """Solve one problem; seconds continue from the problem before."""
        settings, state = self.settings, None if self.last is None else self.last.state
        try:
            if self.last is not None and not renewed:  # resumed: what follows an iteration has not been done
                reason = self._after(engine, self.last)
                if reason is not None:
                    return reason
            iterations = alternate(
                engine,
                point.loadings,
                point.factors,
                constraint=self.constraint,
                row_solver=settings.row_solver,
                extrapolation=Extrapolation() if settings.extrapolates else None,
                max_iter=settings.max_iter,
                state=state,
                renewed=renewed,
                effects=self.effects,
            )
            for iteration in self._seen(iterations, engine):
                asked = [bool(watch(iteration)) for watch in watchers]
                assert self.last is not None
                reason = self._after(engine, self.last)
                if reason is not None:
                    return reason
                if any(asked):
                    return "callback"
            return self._ended(engine)
        except KeyboardInterrupt:
            if self.last is None:
                raise
            return "interrupted"

    def _after(self, engine: Engine, last: Iteration) -> Stopped | Literal["renewed"] | None:
        """Renew the problem where that is due, or say that the fit has converged."""
        met = self.stopping.met
        due = met or self._is_due(engine.problem, last)
        looked = math.isnan(last.relative_change)  # at a problem that was just renewed
        if due and not looked and self._renews(engine, last, final=met):
            return "renewed"
        return "converged" if met else None

    def _is_due(self, problem: Problem, last: Iteration) -> bool:
        """Whether to update parameters: often at first, and where that gains more than to iterate."""
        effects = problem.batches is not None and self.effects is None
        if is_due(last.index, often=effects):
            return True
        if not problem.noise.zero_loss_is_mean:  # dispersions are found as well
            return False
        worth = SIZES_WORTH if problem.size_prior is not None else WORTH if effects else 0.0
        return last.relative_change * abs(last.objective) < worth * self.history.last_renewal()

    def _renews(self, engine: Engine, last: Iteration, *, final: bool) -> bool:
        if self.renewal is None:
            return False
        at = Pair(last.loadings, last.factors)
        self.fresh = self.renewal(self._now(engine), at, last.loss, index=last.index, final=final)
        return self.fresh is not None

    def _seen(self, iterations: Iterator[Iteration], engine: Engine) -> Iterator[Iteration]:
        """Record every iteration before the callbacks see it, so that a checkpoint is always consistent."""
        seconds = 0.0 if self.last is None else self.last.seconds
        for iteration in iterations:
            self.stopping(iteration)
            last = replace(iteration, seconds=seconds + iteration.seconds)
            self.history(last)
            self.last = last
            if self.keep is not None:
                now = (self.stopping.state, self.history.table(), Changed.of(self._now(engine).problem))
                self.keep(Progress(self.restart, last, *now, self.random, self.best, self.start))
            yield last.on_host() if self.callbacks else replace(last, state=None)

    def _ended(self, engine: Engine) -> Stopped | Literal["renewed"]:
        """Describe why the solver ended: `max_iter` was reached, or no step lowers the objective."""
        last, settings = self.last, self.settings
        assert last is not None
        # the last iteration may have been lost to an extrapolation that was dropped
        if last.index >= settings.max_iter - 1:
            problem = self._now(engine).problem
            if settings.likelihood != "exact" or problem.likelihood != "adaptive":
                return "max_iter"
            exact = self.remake(replace(problem, zeros=None))  # converged or not, the end is exact
            self.fresh = Renewed(exact, Pair(last.loadings, last.factors))
            return "renewed"
        if not math.isnan(last.relative_change) and self._renews(engine, last, final=True):
            return "renewed"
        residual = residual_at(self._now(engine), last.loadings, last.factors, constraint=self.constraint)
        return "converged" if residual <= STATIONARY else "stalled"
