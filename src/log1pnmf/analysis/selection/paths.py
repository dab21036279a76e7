"""Fits to one fold: along K, along c and along the penalty, each from its neighbour, and their scores."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.continuation import continued_start
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.runs import Run, best_run
from log1pnmf.fitting.settings import Phase, Settings
from log1pnmf.fitting.starts import Random
from log1pnmf.model.problem import Problem

from .folding import Fold
from .grid import Grid, Setting

__all__ = ["PathFitter", "Record", "Stopped"]

Array = NDArray[np.float64]


class Stopped(Exception):  # noqa: N818, it is no error
    """The user has interrupted: fits under way are dropped."""


@dataclass(frozen=True, eq=False)
class Record:
    """One setting in one fold.

    Parameters
    ----------
    fold : int
    setting : Setting
    by_sample : ndarray of shape (n,)
        Held-out log-likelihood of every sample of the data; 0 for those that are not in this fold.
    n_iter : int
        Iterations of the fit that was kept.
    converged : bool
    seconds : float
        CPU seconds of the thread, all starts and the scoring included.
    """

    fold: int
    setting: Setting
    by_sample: Array
    n_iter: int
    converged: bool
    seconds: float


@dataclass(frozen=True, eq=False)
class PathFitter:
    """Fits the settings of a grid to one fold.

    Every fit has `n_init` starts: its neighbour's end, where there is one, and fresh ones. All of them go
    through the first phase (the approximate one, which is cheap, where the likelihood is "refined"), and the
    one with the best training objective goes on alone.

    Parameters
    ----------
    fold : Fold
    grid : Grid
    settings : Settings
        Of all fits; c, number of factors, penalty and start are replaced.
    n_init : int
    seed : int
        Random numbers of a fit depend on this, the fold and the setting, and on nothing else.
    stopped : callable
        True when the user has interrupted.
    """

    fold: Fold
    grid: Grid
    settings: Settings
    n_init: int
    seed: int
    stopped: Callable[[], bool]

    def begin(self, n_components: int, fewer: Fit | None) -> tuple[Fit, Record]:
        """Fit the first setting of a path, starting also from a fit with fewer factors.

        Parameters
        ----------
        n_components : int
        fewer : Fit or None

        Returns
        -------
        fit : Fit
        record : Record
        """
        setting, _ = next(self.grid.path(n_components))
        return self._fit(setting, fewer)

    def follow(self, n_components: int, first: Fit) -> list[Record]:
        """Fit all other settings of a path.

        Parameters
        ----------
        n_components : int
        first : Fit
            Of the first setting.

        Returns
        -------
        list of Record
        """
        fits: dict[Setting, Fit] = {}
        records = []
        for setting, before in self.grid.path(n_components):
            if before is None:
                fits[setting] = first
                continue
            fits[setting], record = self._fit(setting, fits[before])
            records.append(record)
        return records

    def _fit(self, setting: Setting, before: Fit | None) -> tuple[Fit, Record]:
        started = time.thread_time()
        rng = self._random(setting)
        settings = replace(
            self.settings,
            c=setting.c,
            n_components=setting.n_components,
            l1=self.fold.penalty_scale * setting.l1,
            callbacks=(lambda iteration: self.stopped(),),
        )
        starts: list[Any] = [] if before is None else [self._continued(settings, before, rng)]
        starts += [settings.init] * max(0 if before is not None else 1, self.n_init - len(starts))
        first, *others = settings.phases
        runs = [self._run(settings, first, start, rng) for start in starts]
        best = min(runs, key=lambda run: run.last.objective)
        met, n_iter = best.all_met, best.last.index
        for phase in others:
            best = self._run(
                settings, phase, (best.last.loadings, best.last.factors * settings.link.alpha), rng
            )
            met, n_iter = met and best.all_met, n_iter + best.last.index
        fit = self._as_fit(settings, best, n_iter, met)
        by_sample = self.fold.score(fit)
        seconds = time.thread_time() - started
        return fit, Record(self.fold.number, setting, by_sample, n_iter, met, seconds)

    def _random(self, setting: Setting) -> Random:
        place = (self.grid.n_components, self.grid.c, self.grid.l1)
        value = (setting.n_components, setting.c, setting.l1)
        indices = [where.index(one) for where, one in zip(place, value, strict=True)]
        return np.random.default_rng([self.seed, 1, self.fold.number, *indices])

    def _continued(self, settings: Settings, before: Fit, rng: Random) -> tuple[Array, Array]:
        problem = Problem(self.fold.train, self.fold.size_factors, settings.link)
        return continued_start(before, problem, settings.n_components, rng)

    def _run(self, settings: Settings, phase: Phase, start: Any, rng: Random) -> Run:
        alone = replace(settings, likelihood=phase.likelihood, tol=phase.tol, init=start, n_init=1)
        problem = Problem(self.fold.train, self.fold.size_factors, settings.link, phase.zeros)
        engine = make_engine(settings.engine, problem, settings.n_jobs)
        run = best_run(alone, [engine], rng)
        if self.stopped():
            raise Stopped
        return run

    def _as_fit(self, settings: Settings, run: Run, n_iter: int, converged: bool) -> Fit:
        last = run.last
        exact = last.likelihood == "exact"
        return Fit(
            loadings=last.loadings,
            factors=last.factors * settings.link.alpha,
            c=settings.link.c,
            size_factors=self.fold.size_factors,
            log_likelihood=-last.loss if exact else None,
            approximate_log_likelihood=None if exact else -last.loss,
            objective=last.objective,
            kkt_residual=last.kkt_residual,
            converged=converged,
            n_iter=n_iter,
            seconds=last.seconds,
            history=run.history.table(),
            settings=settings.as_dict(),
            stopped=run.reason,
        )
