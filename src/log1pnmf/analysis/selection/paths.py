"""Fits to one fold: along K, along c and along the penalty, each from its neighbour, and their scores."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.randomness import Random
from log1pnmf.engines.base import Engine
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.continuation import continued_start
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.parameters import first_noise, first_problem, renewal_of
from log1pnmf.fitting.runs import Run, best_run
from log1pnmf.fitting.settings import Settings
from log1pnmf.fitting.start_choice import given, named
from log1pnmf.fitting.starts import Start
from log1pnmf.model.problem import Problem

from .folding import Fold, Training
from .grid import Grid, Setting

__all__ = ["Fitter", "Job", "PathFitter", "Record", "Stopped"]

Array = NDArray[np.float64]


class Stopped(Exception):  # noqa: N818, it is no error
    """The user has interrupted: fits under way are dropped."""


class Job(NamedTuple):
    """One fit: of a setting to a fold, or to all counts (the part after the last fold) with some seed."""

    part: int
    setting: Setting
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Record:
    """One setting in one fold.

    Parameters
    ----------
    by_sample : ndarray of shape (n,)
        Held-out log-likelihood of every sample of the data; 0 for those that are not in this fold.
    n_iter : int
        Iterations of the fit that was kept.
    seconds : float
        CPU seconds of the thread, all starts and the scoring included.
    fitted : ndarray of shape (n,)
        Log-likelihood of what was fitted of every sample; 0 where it does not count.
    """

    fold: int
    setting: Setting
    by_sample: Array
    n_iter: int
    converged: bool
    seconds: float
    fitted: Array


@dataclass(frozen=True, eq=False)
class Fitter:
    """Fits settings of a grid to all counts, or to the training part of a fold.

    Parameters
    ----------
    settings : Settings
        Of all fits; c, number of factors, penalty and start are replaced.
    seed : int
        Random numbers of a fit depend on this, the part and the setting, and on nothing else.
    stopped : callable
        True when the user has interrupted.
    """

    part: Training
    grid: Grid
    settings: Settings
    seed: int
    stopped: Callable[[], bool]

    def with_seed(self, setting: Setting, number: int) -> Fit:
        """Return the fit of a setting from the random start with this number."""
        settings = replace(self._settings(setting), init="random")
        run = self._run(settings, named(settings, n_jobs=1), self._random(setting, number))
        return run.as_fit(settings, self._problem(settings))

    def _settings(self, setting: Setting) -> Settings:
        """Give the settings of a fit to this part."""
        return (
            replace(
                self.settings,
                c=setting.c,
                n_components=setting.n_components,
                l1=self.part.penalty_scale * setting.l1,
            )
            .with_noise(setting.noise)
            .resolved(self.settings.engine, self.part.train)
        )

    def _random(self, setting: Setting, *number: int) -> Random:
        place = self.grid.place(setting)
        return np.random.default_rng([self.seed, 1, self.part.number, *place, *number])

    def _problem(self, settings: Settings, before: Fit | None = None) -> Problem:
        """Give the problem of a fit; fitted size factors begin with those of the fit before."""
        noise = first_noise(settings, self.part.train.n_features)
        own = self.part.size_factors, noise, self.part.batches
        problem = first_problem(settings, self.part.train, *own)
        if settings.fits_sizes and before is not None:
            return replace(problem, size_factors=before.size_factors)
        return problem

    def _run(self, settings: Settings, start: Start, rng: Random, before: Fit | None = None) -> Run:
        def remake(problem: Problem) -> Engine:
            return make_engine(settings.engine, problem, 1)

        run = best_run(
            replace(settings, n_init=1),
            remake,
            self._problem(settings, before),
            rng,
            start=start,
            renewal=renewal_of(settings, remake, self.part.train, batched=self.part.batches is not None),
            callbacks=[lambda iteration: self.stopped()],
        )
        if self.stopped():
            raise Stopped
        return run


@dataclass(frozen=True, eq=False)
class PathFitter(Fitter):
    """Fits the settings of a grid to one fold, and scores them.

    Every fit has `n_starts` starts: its neighbour's end, where there is one, and fresh ones. The one with the
    best training objective is kept.
    """

    part: Fold
    n_starts: int = field(kw_only=True)

    def fit(self, setting: Setting, before: Fit | None) -> tuple[Fit, Record]:
        """Return the fit of a setting, started also from where the fit before it ended, and its scores."""
        started = time.thread_time()
        rng = self._random(setting)
        settings = self._settings(setting)
        starts: list[Start] = [] if before is None else [self._continued(settings, before, rng)]
        more = max(0 if before is not None else 1, self.n_starts - len(starts))
        starts += [named(settings, n_jobs=1, number=number) for number in range(more)]
        runs = (
            self._run(settings, start, rng, before if number == 0 else None)
            for number, start in enumerate(starts)
        )
        best = min(runs, key=lambda run: run.objective)
        fit = best.as_fit(settings, self._problem(settings))
        by_sample, fitted = self.part.score(fit), self.part.fitted(fit)
        seconds, met = time.thread_time() - started, best.stopped == "converged"
        return fit, Record(self.part.number, setting, by_sample, best.last.index, met, seconds, fitted)

    def _continued(self, settings: Settings, before: Fit, rng: Random) -> Start:
        start = continued_start(before, self._problem(settings), settings.n_components, rng)
        return given(start, settings)
