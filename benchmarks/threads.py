"""Wall time per iteration with one thread and with two."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .data import Folder
from .measuring import Task, follow

REPEATS = 3


def measure(folder: Folder, quick: bool = False) -> Iterator[dict[str, Any]]:
    """The least wall time of some repeats counts: others may be using the machine."""
    most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for n_components in (6,) if quick else (6, 13):
        for c in (1.0, math.inf):
            task = Task(folder.counts("pbmc"), c)
            start = task.make_start(n_components)
            walls = {}
            for n_jobs in (1, 2):
                runs = [follow(replace(task, n_jobs=n_jobs), start, max_iter=6) for _ in range(REPEATS)]
                walls[n_jobs] = min(run.per_iteration()[1] for run in runs)
            yield {
                "data": "pbmc",
                "c": f"{c:g}",
                "K": n_components,
                "1 thread, wall s/it": walls[1],
                "2 threads": walls[2],
                "speed-up": walls[1] / walls[2],
                "cores": most,
            }
