"""Follow the solver with two clocks: CPU seconds of all threads, and wall time."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine, RowSolver
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.settings import Settings
from log1pnmf.fitting.solver import Extrapolation, alternate
from log1pnmf.fitting.starts import adapt_start, initialize
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

Start = tuple[np.ndarray, np.ndarray]
SEED = 0


class Clock:
    """CPU seconds (all threads) and wall seconds since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        return time.process_time() - self._cpu, time.perf_counter() - self._wall


def all_zeros_visited() -> AbstractContextManager[object]:
    """Let exact fits visit all zeros from the beginning, so that every iteration is exact."""
    return patch.object(Settings, "begins_adaptive", lambda settings, counts: False, create=True)


class Point(NamedTuple):
    iteration: int
    cpu: float
    wall: float
    log_likelihood: float


@dataclass
class Trace:
    """What a run had reached when."""

    points: list[Point] = field(default_factory=list)

    @property
    def last(self) -> Point:
        return self.points[-1]

    def reached(self, log_likelihood: float) -> Point | None:
        """The first point that is at least as good; None where there is none."""
        return next((point for point in self.points if point.log_likelihood >= log_likelihood), None)

    def per_iteration(self) -> tuple[float, float]:
        """CPU and wall seconds per iteration, the look at the start left out."""
        first, last = self.points[0], self.points[-1]
        n = max(1, last.iteration - first.iteration)
        return (last.cpu - first.cpu) / n, (last.wall - first.wall) / n


@dataclass(frozen=True)
class Task:
    """What is fitted and with which row solver; only "newton" extrapolates, as in the library."""

    counts: Counts
    c: float
    exact: bool = False
    size_factors: str = "total"
    row_solver: RowSolver = "newton"
    n_jobs: int | None = None

    def engine(self) -> Engine:
        link = ShiftedLog(self.c)
        zeros = None if self.exact else quadratic(link)
        problem = Problem(self.counts, self.counts.size_factors(self.size_factors), link, zeros)
        _ = problem.plain_constant  # computed here, so that no clock sees it
        return make_engine("auto", problem, self.n_jobs)

    def make_start(self, n_components: int, init: str = "rank1", seed: int = SEED) -> Start:
        return initialize(self.engine(), n_components, init, np.random.default_rng(seed))


def follow(
    task: Task, start: Start, *, until: float = math.inf, max_iter: int = 1000, cpu_limit: float = math.inf
) -> Trace:
    """Run the solver from a start on the eta scale; the clocks count all it does after that start.

    Ends when the log-likelihood (of the approximate form where the task is not exact) is `until`, after
    `max_iter` iterations, or with the first iteration that ends beyond `cpu_limit`.
    """
    engine = task.engine()
    loadings, factors = adapt_start(engine.problem, *start, np.random.default_rng(SEED))
    trace, clock = Trace(), Clock()
    for iteration in alternate(
        engine,
        loadings,
        factors,
        row_solver=task.row_solver,
        extrapolation=Extrapolation() if task.row_solver == "newton" else None,
        max_iter=max_iter + 1,  # the solver's last iteration only looks; here it is to be like all others
    ):
        point = Point(iteration.index, *clock.read(), -iteration.loss)
        trace.points.append(point)
        if point.log_likelihood >= until or point.cpu >= cpu_limit or point.iteration >= max_iter:
            break
    return trace
