"""Newton against the paper's coordinate ascent: seconds per iteration, and CPU to a common likelihood."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.data import Folder
from benchmarks.measuring import Task, follow
from benchmarks.table import as_markdown


@dataclass(frozen=True)
class Case:
    data: str
    n_components: int
    c: float
    exact: bool
    coordinate_iterations: int


def _cases(quick: bool, full: bool) -> Iterator[Case]:
    for c in (1.0, math.inf):
        for n_components in (6, 13):
            yield Case("pbmc", n_components, c, False, 3 if quick else 15)
    if quick:
        return
    for c in (1.0, math.inf):
        for n_components in (6, 13):
            yield Case("kang", n_components, c, False, 2)
    for c, n_components in ((1.0, 6), (1e-3, 6), (1.0, 13), *([(1e-3, 13)] if full else [])):
        yield Case("pbmc", n_components, c, True, 2)


def measure(folder: Folder, quick: bool = False, full: bool = False) -> Iterator[dict[str, Any]]:
    """Both start from the same rank-one start, made with the approximate likelihood."""
    for case in _cases(quick, full):
        newton = Task(folder.counts(case.data), case.c, case.exact)
        start = replace(newton, exact=False).make_start(case.n_components)
        slow = follow(replace(newton, row_solver="coordinate"), start, max_iter=case.coordinate_iterations)
        common = slow.last.log_likelihood
        fast = follow(newton, start, until=common, max_iter=200, cpu_limit=3 * slow.last.cpu)
        at = fast.reached(common)
        per_fast, per_slow = fast.per_iteration(), slow.per_iteration()
        yield {
            "data": case.data,
            "likelihood": "exact" if case.exact else "approximate" if case.c < math.inf else "identity",
            "c": f"{case.c:g}",
            "K": case.n_components,
            "newton CPU s/it": per_fast[0],
            "wall s/it": per_fast[1],
            "coordinate CPU s/it": per_slow[0],
            "its wall s/it": per_slow[1],
            "log-likelihood": common,
            "coordinate it": slow.last.iteration,
            "its CPU s": slow.last.cpu,
            "newton it": at.iteration if at else None,
            "newton CPU s": at.cpu if at else None,
            "coordinate / newton CPU": slow.last.cpu / at.cpu if at else None,
        }


if __name__ == "__main__":
    rows = measure(Folder(), "--quick" in sys.argv, "--full" in sys.argv)
    print(as_markdown(rows))
