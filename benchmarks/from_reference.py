"""PBMC, K = 6, from the reference programs' starts: iterations and CPU seconds to what they reached."""

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
"""The reference's own approximate objective at its start: it differs from our likelihood by a constant."""


@dataclass(frozen=True)
class Goal:
    """Something the reference reached; targets are those the project has set itself."""

    case: str
    start: str
    c: float
    log_likelihood: float
    reference_cpu: float
    target_cpu: float | None
    target_iterations: int
    exact: bool = False
    size_factors: str = "total"
    own_scale: bool = False  # the likelihood is in the reference's approximate convention


GOALS = (
    Goal("approximate c=1", "pbmc_start_c1.npz", 1.0, -4403432.29, 166.0, 2.0, 30, own_scale=True),
    Goal("approximate c=1", "pbmc_start_c1.npz", 1.0, -4401230.66, 845.0, 3.0, 45, own_scale=True),
    Goal("exact c=1", "pbmc_start_c1.npz", 1.0, -8779810.47, 179.0, 8.0, 20, exact=True),
    Goal("exact c=1e-3", "pbmc_start_c1e-3.npz", 1e-3, -8949329.27, 95.0, None, 20, exact=True),
    Goal("c=inf", "pbmc_start_identity.npz", math.inf, -8694953.0, 62.0, 4.0, 60, size_factors="none"),
)
ADAPTIVE = replace(GOALS[2], case="adaptive c=1", target_cpu=3.0)
COORDINATE_CPU = {"approximate c=1": 25.0, "exact c=1": 40.0, "exact c=1e-3": 30.0, "c=inf": 15.0}
COORDINATE_CPU_QUICK = {"approximate c=1": 5.0, "c=inf": 5.0}


def measure(folder: Folder, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Newton to each goal; then coordinate for a while, and Newton's CPU to the same likelihood."""
    limits = COORDINATE_CPU_QUICK if quick else COORDINATE_CPU
    for case in dict.fromkeys(goal.case for goal in GOALS):
        goals = [goal for goal in GOALS if goal.case == case]
        if quick and case == "exact c=1e-3":
            continue
        task = Task(folder.counts("pbmc"), goals[0].c, goals[0].exact, goals[0].size_factors)
        start = folder.start(goals[0].start)
        shift = start_shift(task, start) if goals[0].own_scale else 0.0
        until = max(goal.log_likelihood for goal in goals) - shift
        newton = follow(task, start, until=until, max_iter=200)
        for goal in goals:
            yield _row(goal, newton.reached(goal.log_likelihood - shift), newton, shift)
        if case in limits:
            slow = replace(task, row_solver="coordinate")
            coordinate = follow(slow, start, until=until, max_iter=500, cpu_limit=limits[case])
            yield from _coordinate_rows(case, coordinate, newton, shift)
    yield _adaptive(folder)


def start_shift(task: Task, start: tuple) -> float:
    """What the reference's approximate objective is above our log-likelihood."""
    return APPROXIMATE_AT_START - follow(task, start, max_iter=1, cpu_limit=0.0).points[0].log_likelihood


def _row(goal: Goal, point: Point | None, trace: Trace, shift: float) -> dict[str, Any]:
    last = trace.last
    got = point or last
    return {
        "case": goal.case,
        "solver": "newton",
        "log-likelihood": goal.log_likelihood,
        "reached": point is not None,
        "iterations": got.iteration,
        "target it": goal.target_iterations,
        "CPU s": got.cpu,
        "target CPU s": goal.target_cpu,
        "wall s": got.wall,
        "reference CPU s": goal.reference_cpu,
        "met": point is not None
        and got.iteration <= goal.target_iterations
        and (goal.target_cpu is None or got.cpu <= goal.target_cpu),
    } | ({} if point else {"got": last.log_likelihood + shift})


def _coordinate_rows(case: str, slow: Trace, newton: Trace, shift: float) -> Iterator[dict[str, Any]]:
    """Compare at the likelihood that coordinate had reached when its time was up."""
    common = min(slow.last.log_likelihood, newton.last.log_likelihood)
    at_slow, at_newton = slow.reached(common), newton.reached(common)
    assert at_slow is not None
    assert at_newton is not None
    for name, point in (("coordinate", at_slow), ("newton", at_newton)):
        yield {
            "case": case,
            "solver": name,
            "log-likelihood": common + shift,
            "reached": True,
            "iterations": point.iteration,
            "CPU s": point.cpu,
            "wall s": point.wall,
            "coordinate / newton CPU": at_slow.cpu / at_newton.cpu if name == "newton" else None,
        }


def _adaptive(folder: Folder) -> dict[str, Any]:
    """Time the library's own adaptive zeros from the call on."""
    counts, start, goal = folder.counts("pbmc"), folder.start(ADAPTIVE.start), ADAPTIVE
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
    return _row(goal, point, trace, 0.0) | {"got": trace.last.log_likelihood}
