"""Wall time per iteration with one thread and with two; what threads cost where others use the machine."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.data import Folder
from benchmarks.measuring import Task, follow
from benchmarks.table import as_markdown

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


SMALL = """
import time, warnings
import numpy as np
from log1pnmf import fit_log1p_nmf
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
Y = rng.poisson(rng.gamma(0.5, 1.0, (120, 4)) @ rng.gamma(0.5, 1.0, (4, 300)))
fit_log1p_nmf(Y, 4, init="rank1", max_iter=2, n_jobs={n_jobs})
began, wall = time.process_time(), time.perf_counter()
fit_log1p_nmf(Y, 4, init="rank1", max_iter=200, tol=1e-12, n_jobs={n_jobs})
print(time.process_time() - began, time.perf_counter() - wall)
"""


def measure_busy(repeats: int = 5) -> Iterator[dict[str, Any]]:
    """Give CPU and wall seconds of a small fit, with one thread and with one for every core; medians."""
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
    ]
    try:
        for name, n_jobs in (("1", 1), ("all cores", None)):
            runs = []
            for _ in range(repeats):
                command = [sys.executable, "-c", SMALL.format(n_jobs=n_jobs)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                runs.append(tuple(map(float, done.stdout.split())))
            cpu, wall = (statistics.median(values) for values in zip(*runs, strict=True))
            yield {"n_jobs": name, "CPU s": cpu, "wall s": wall, "cores": os.cpu_count()}
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    print(as_markdown(measure(Folder())))
    print(as_markdown(measure_busy()))
