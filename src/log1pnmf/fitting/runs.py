"""Run every start through its phases and keep the best; `Progress` is what resuming needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from log1pnmf._common.randomness import Random, random_parts
from log1pnmf.engines.base import Engine
from log1pnmf.fitting.facts import Certificate, DataFacts
from log1pnmf.fitting.solver.alternate import alternate, residual_at
from log1pnmf.fitting.solver.callbacks import Callback, History, ProgressBar
from log1pnmf.fitting.solver.extrapolate import Extrapolation
from log1pnmf.fitting.solver.iteration import Iteration, Pair
from log1pnmf.fitting.solver.stopping import STATIONARY, Stopping
from log1pnmf.model.negative_binomial import NegativeBinomial
from log1pnmf.model.problem import Problem

from .arrangement import arranged
from .fit import Fit, Stopped
from .settings import Settings
from .starts import Start

__all__ = ["Keep", "Progress", "Run", "best_run"]


@dataclass(frozen=True, eq=False)
class Run:
    """One start followed through all phases.

    Parameters
    ----------
    last : Iteration
        Where it ended.
    stopped : {"converged", "max_iter", "stalled", "callback", "interrupted"}
        Why it ended; "max_iter" also where an earlier phase did.
    phase : int
        Number of the phase it ended in.
    """

    last: Iteration
    history: History
    stopped: Stopped
    phase: int

    def as_fit(self, settings: Settings, problem: Problem, *, kkt_residual: float | None = None) -> Fit:
        """Make the `Fit` of this run; no other code makes one.

        Parameters
        ----------
        settings : Settings
            Resolved.
        problem : Problem
            Of the last phase.
        kkt_residual : float, optional
            Where it is known better than the last iteration knows it.
        """
        last, counts = self.last, problem.counts
        exact, n = last.likelihood == "exact", counts.n_samples
        loadings, factors = arranged(last.loadings, last.factors * settings.link.alpha, settings)
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
            kkt_residual=last.kkt_residual if kkt_residual is None else kkt_residual,
            n_iter=last.index,
            seconds=last.seconds,
            history=self.history.table(),
            certificate=Certificate(-last.loss, 0.0, None, n, n) if exact else None,
            sample_names=counts.sample_names,
            feature_names=counts.feature_names,
            dispersion=problem.noise.dispersion if isinstance(problem.noise, NegativeBinomial) else None,
        )


@dataclass(frozen=True, eq=False)
class Progress:
    """A fit right after an iteration: all that is needed to go on with the same bits.

    The end of a phase or a start needs no record of its own: a resumed fit reaches it again at once.

    Parameters
    ----------
    restart, phase : int
        Numbers of the start and of its phase.
    last : Iteration
        With the solver's `state`; its index and seconds count from the start on, over all phases.
    stopping : tuple
        `log1pnmf.fitting.solver.stopping.Stopping.state`.
    history : History
        Of this start, `last` included.
    all_met : bool
        Whether the tolerance was met in every phase before this one.
    random : dict
        `log1pnmf._common.randomness.random_parts` of the generator, from which later starts are drawn.
    best : Run or None
        The best of the earlier starts.
    """

    restart: int
    phase: int
    last: Iteration
    stopping: tuple[int, bool]
    history: History
    all_met: bool
    random: Mapping[str, Any]
    best: Run | None


Keep: TypeAlias = Callable[[Progress], None]
"""Called after every iteration."""


def best_run(
    settings: Settings,
    engines: Sequence[Engine],
    rng: Random,
    *,
    start: Start,
    callbacks: Sequence[Callback] = (),
    verbose: int = 0,
    resumed: Progress | None = None,
    keep: Keep | None = None,
) -> Run:
    """Run every start to its end.

    Parameters
    ----------
    engines : sequence of Engine
        One for each of ``settings.phases``.
    verbose : int
        1 shows a progress bar.
    resumed : Progress, optional
        Go on from here; `rng` is then in the state it had there.
    keep : callable, optional
        Called with the `Progress` after every iteration.

    Returns
    -------
    Run
        The one with the lowest objective.
    """
    begin, best = (0, None) if resumed is None else (resumed.restart, resumed.best)
    for restart in range(begin, settings.n_init):
        one = _OneStart(settings, restart, best, keep=keep, callbacks=callbacks, verbose=verbose)
        try:
            run = one(engines, rng, start, resumed)
        except KeyboardInterrupt:  # interrupted before this start had a result
            if best is None:
                raise
            return replace(best, stopped="interrupted")
        if best is None or _better(run, best):
            best = run
        if run.stopped in ("interrupted", "callback"):
            return replace(best, stopped=run.stopped)
        resumed = None
    if best is None:
        raise ValueError("the checkpoint is beyond the last start; start anew without resume")
    return best


def _better(run: Run, best: Run) -> bool:
    """Whether `run` is better; exact and approximate objectives cannot be compared, and exact wins."""
    if run.last.likelihood != best.last.likelihood:
        return run.last.likelihood == "exact"
    return run.last.objective < best.last.objective


class _OneStart:
    """Runs one start through all phases."""

    def __init__(
        self,
        settings: Settings,
        restart: int,
        best: Run | None,
        *,
        keep: Keep | None,
        callbacks: Sequence[Callback],
        verbose: int,
    ) -> None:
        self.settings, self.restart, self.best, self.keep = settings, restart, best, keep
        self.callbacks, self.verbose = callbacks, verbose
        self.last: Iteration | None = None
        self.history, self.all_met = History(), True
        self.random: Mapping[str, Any] = {}

    def __call__(self, engines: Sequence[Engine], rng: Random, start: Start, resumed: Progress | None) -> Run:
        """Run all phases."""
        if resumed is None:
            begin, point = 0, start(engines[0], rng)
        else:
            begin, point = resumed.phase, Pair(resumed.last.loadings, resumed.last.factors)
            self.last, self.history, self.all_met = resumed.last, resumed.history, resumed.all_met
        self.random = random_parts(rng)  # no random numbers are drawn until the next start
        for number in range(begin, len(engines)):
            reason = self._phase(engines[number], number, point, resumed)
            assert self.last is not None
            last_phase = number == len(engines) - 1
            self.all_met = self.all_met and (
                reason == "converged" or (reason == "stalled" and not last_phase)
            )
            if reason in ("callback", "interrupted"):
                break
            point, resumed = Pair(self.last.loadings, self.last.factors), None
        assert self.last is not None
        if reason == "converged" and not self.all_met:
            reason = "max_iter"
        return Run(self.last.on_host(), self.history, reason, number)

    def _phase(self, engine: Engine, number: int, point: Pair, resumed: Progress | None) -> Stopped:
        """Run one phase to its end; indices and seconds continue from the phase before."""
        settings, phase = self.settings, self.settings.phases[number]
        stopping, state = Stopping(phase.tol), None
        first = 0 if self.last is None else self.last.index
        if resumed is not None:
            stopping.restore(resumed.stopping)
            state = resumed.last.state
            first -= 0 if state is None else state.index
            if stopping.met:
                return "converged"
        iterations = alternate(
            engine,
            point.loadings,
            point.factors,
            constraint=settings.constraint,
            row_solver=settings.row_solver,
            extrapolation=Extrapolation() if settings.extrapolate else None,
            max_iter=settings.max_iter,
            state=state,
        )
        with ExitStack() as stack:
            watchers: list[Callback] = [*self.callbacks]
            if self.verbose:
                label = phase.likelihood + (f", start {self.restart + 1}" if settings.n_init > 1 else "")
                watchers.append(stack.enter_context(ProgressBar(first + settings.max_iter, label)))
            try:
                asked = self._watch(self._seen(iterations, number, first, stopping), stopping, watchers)
                return asked or self._ended(engine, first)
            except KeyboardInterrupt:
                if self.last is None:
                    raise
                return "interrupted"

    def _seen(
        self, iterations: Iterator[Iteration], number: int, first: int, stopping: Stopping
    ) -> Iterator[Iteration]:
        """Record every iteration before the callbacks see it, so that a checkpoint is always consistent."""
        seconds = 0.0 if self.last is None else self.last.seconds
        for iteration in iterations:
            stopping(iteration)
            last = replace(iteration, index=first + iteration.index, seconds=seconds + iteration.seconds)
            self.history(last)
            self.last = last
            if self.keep is not None:
                history, state = self.history.copy(), stopping.state
                self.keep(
                    Progress(self.restart, number, last, state, history, self.all_met, self.random, self.best)
                )
            yield last.on_host() if self.callbacks else replace(last, state=None)

    def _watch(
        self, iterations: Iterator[Iteration], stopping: Stopping, watchers: Sequence[Callback]
    ) -> Stopped | None:
        """Pass iterations to the callbacks; None where none of them asked to stop."""
        for iteration in iterations:
            asked = [bool(watch(iteration)) for watch in watchers]
            if stopping.met:
                return "converged"
            if any(asked):
                return "callback"
        return None

    def _ended(self, engine: Engine, first: int) -> Stopped:
        """Say why the solver ended: `max_iter` was reached, or no step lowers the objective."""
        last, settings = self.last, self.settings
        assert last is not None
        # the last iteration may have been lost to an extrapolation that was dropped
        if last.index - first >= settings.max_iter - 1:
            return "max_iter"
        residual = residual_at(engine, last.loadings, last.factors, constraint=settings.constraint)
        return "converged" if residual <= STATIONARY else "stalled"
