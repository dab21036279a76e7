"""PBMC, K = 6, from the R packages' starts: iterations and CPU seconds to what they reached."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from log1pnmf import fit_log1p_nmf

from .data import Folder
from .measuring import Clock, Point, Task, Trace, follow

APPROXIMATE_AT_START = -5280219.159084886
"""The R package's own approximate objective at its start: the log-likelihood plus a constant."""


@dataclass(frozen=True)
class Goal:
    """Something that an R package reached after some iterations."""

    case: str
    start: str
    c: float
    log_likelihood: float
    after: str
    reference_cpu: float
    exact: bool = False
    size_factors: str = "total"
    own_scale: bool = False  # the likelihood is in the R package's approximate convention


GOALS = (
    Goal("approximate, c = 1", "pbmc_start_c1.npz", 1.0, -4403432.29, "R after 100", 166.0, own_scale=True),
    Goal("approximate, c = 1", "pbmc_start_c1.npz", 1.0, -4401230.66, "R after 500", 845.0, own_scale=True),
    Goal("exact, c = 1", "pbmc_start_c1.npz", 1.0, -8779810.47, "R after 10", 179.0, exact=True),
    Goal("exact, c = 0.001", "pbmc_start_c1e-3.npz", 1e-3, -8949329.27, "R after 5", 95.0, exact=True),
    Goal(
        "c = inf", "pbmc_start_identity.npz", math.inf, -8694953.0, "fastTopics after 45", 62.0,
        size_factors="none",
    ),
)  # fmt: skip
COORDINATE_CPU = {"approximate, c = 1": 25.0, "exact, c = 1": 40.0, "exact, c = 0.001": 30.0, "c = inf": 15.0}
COORDINATE_CPU_QUICK = {"approximate, c = 1": 5.0, "c = inf": 5.0}


def measure(folder: Folder) -> Iterator[dict[str, Any]]:
    """Newton to each goal, and the adaptive fit from the call on."""
    for case in dict.fromkeys(goal.case for goal in GOALS):
        _, newton, shift = newton_to_goal(folder, case)
        for goal in (goal for goal in GOALS if goal.case == case):
            yield _row(goal, newton.reached(goal.log_likelihood - shift))
    yield _adaptive(folder)


def measure_coordinate(folder: Folder, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Coordinate ascent for a while, and Newton's CPU to the same likelihood."""
    for case, limit in (COORDINATE_CPU_QUICK if quick else COORDINATE_CPU).items():
        (task, start, until), newton, shift = newton_to_goal(folder, case)
        slow = replace(task, row_solver="coordinate")
        coordinate = follow(slow, start, until=until, max_iter=500, cpu_limit=limit)
        common = min(coordinate.last.log_likelihood, newton.last.log_likelihood)
        at_slow, at_newton = coordinate.reached(common), newton.reached(common)
        assert at_slow is not None
        assert at_newton is not None
        yield {
            "fit": case,
            "log-likelihood": common + shift,
            "coordinate: iterations": at_slow.iteration,
            "coordinate: CPU s": at_slow.cpu,
            "Newton: iterations": at_newton.iteration,
            "Newton: CPU s": at_newton.cpu,
            "ratio of CPU": at_slow.cpu / at_newton.cpu,
        }


def newton_to_goal(folder: Folder, case: str) -> tuple[tuple[Task, Any, float], Trace, float]:
    """Run Newton to the last goal of a case; with what the R package's objective is above the likelihood."""
    goals = [goal for goal in GOALS if goal.case == case]
    task = Task(folder.counts("pbmc"), goals[0].c, goals[0].exact, goals[0].size_factors)
    start, shift = folder.start(goals[0].start), 0.0
    if goals[0].own_scale:
        at_start = follow(task, start, max_iter=1, cpu_limit=0.0).points[0]
        shift = APPROXIMATE_AT_START - at_start.log_likelihood
    until = max(goal.log_likelihood for goal in goals) - shift
    return (task, start, until), follow(task, start, until=until, max_iter=200), shift


def _row(goal: Goal, point: Point | None) -> dict[str, Any]:
    return {
        "fit": goal.case,
        "to log-likelihood": f"{goal.log_likelihood:,.0f} ({goal.after})",
        "iterations": point.iteration if point else "not reached",
        "CPU s": point.cpu if point else None,
        "R package CPU s": f"{goal.reference_cpu:.0f}",
    }


def _adaptive(folder: Folder) -> dict[str, Any]:
    """Time the library's own adaptive zeros from the call on."""
    goal = replace(GOALS[2], case="adaptive, c = 1")
    counts, start = folder.counts("pbmc"), folder.start(goal.start)
    trace, clock = Trace(), Clock()

    def watch(iteration: Any) -> bool:
        trace.points.append(Point(iteration.index, *clock.read(), -iteration.loss))
        return -iteration.loss >= goal.log_likelihood

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit_log1p_nmf(
            counts,
            6,
            c=goal.c,
            likelihood="adaptive",
            init=start,
            max_iter=100,
            random_state=0,
            callbacks=[watch],
        )
    point = trace.last if trace.last.log_likelihood >= goal.log_likelihood else None
    return _row(goal, point)
