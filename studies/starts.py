"""Which start leads where: log-likelihood reached and CPU seconds, by data set, c and seed.

``python -m studies.starts`` does what is not yet in its result file and stops after `--minutes`, so it can
be called again to go on; at the end it prints a table. All fits are exact, so that they
can be compared, and converge by the default rule. Data are cut down: c = inf costs the non-zeros and takes so
many random samples that about 150,000 are left; other c visit every entry, and take 200 samples and their
most frequent features, 160,000 entries. Below c = 1, "auto" is "nndsvd" and is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.data import DATA, ROOT, Folder, MissingError, smaller
from benchmarks.measuring import Clock

from log1pnmf import fit_log1p_nmf
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.solver import Extrapolation, alternate
from log1pnmf.fitting.starts import initialize
from log1pnmf.model.problem import Problem

from .zeros_tables import N_COMPONENTS

SHIFTS = (0.01, 1.0, math.inf)
STARTS = {"rank1": 5, "random": 5, "nndsvd": 2, "auto": 5, "six": 2}
"""Starts and their seeds; the SVD hardly differs from seed to seed."""
INITS = ("rank1", "random", "nndsvd")
SIX = ("rank1", "rank1", "rank1", "nndsvd", "random", "random")
NONZEROS, SAMPLES, ENTRIES = 150_000, 200, 160_000
FEWEST = 250


@dataclass(frozen=True)
class Run:
    data: str
    c: float
    start: str
    seed: int


def _runs() -> Iterator[Run]:
    for seed in range(max(STARTS.values())):
        for data in N_COMPONENTS:
            for c in SHIFTS:
                starts = [start for start, n in STARTS.items() if seed < n and (c >= 1.0 or start in INITS)]
                yield from (Run(data, c, start, seed) for start in starts)


def _cut(counts: Counts, c: float) -> Counts:
    if c < math.inf:
        return smaller(counts, SAMPLES, ENTRIES)
    n = int(NONZEROS / (counts.nnz / counts.n_samples))
    return smaller(counts, n, math.inf) if n >= FEWEST else smaller(counts, FEWEST, 2500 * FEWEST)


def six(problem: Problem, n_components: int, rng: Any) -> tuple[np.ndarray, np.ndarray]:
    """Take the best of six starts after 30 iterations."""
    engine, best = make_engine("native", problem, 1), None
    for init in SIX:
        start = initialize(engine, n_components, init, rng)
        *_, last = alternate(engine, *start, extrapolation=Extrapolation(), max_iter=30)
        best = last if best is None or last.objective < best.objective else best
    assert best is not None
    return best.loadings, best.factors * problem.link.alpha


def _measure(run: Run, counts: Counts) -> dict[str, Any]:
    clock = Clock()
    fit = fit_log1p_nmf(
        counts,
        N_COMPONENTS[run.data],
        c=run.c,
        likelihood="exact",
        init=six if run.start == "six" else run.start,
        random_state=run.seed,
        n_jobs=1,
    )
    return {
        "shape": list(counts.shape),
        "log_likelihood": fit.log_likelihood,
        "iterations": fit.n_iter,
        "converged": fit.converged,
        "cpu": clock.read()[0],
        "messages": fit.messages,
    }


# ---------------------------------------------------------------- the table


def as_markdown(records: list[dict[str, Any]]) -> str:
    """One line per data set and c: ten-thousandths below the best (mean, worst over seeds), CPU seconds."""
    groups: dict[tuple[str, float], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["data"], record["c"]].append(record)
    lines = [
        "| data | c | best log-likelihood | " + " | ".join(STARTS) + " |",
        "|---|---|---|" + "---|" * len(STARTS),
    ]
    means: dict[tuple[float, str], list[tuple[float, float, float]]] = defaultdict(list)
    order = list(N_COMPONENTS)
    for (data, c), group in sorted(groups.items(), key=lambda item: (item[0][1], order.index(item[0][0]))):
        best = max(record["log_likelihood"] for record in group)
        n, m = group[0]["shape"]
        cells = []
        for start in STARTS:
            mine = [record for record in group if record["start"] == start]
            if not mine:
                cells.append("-")
                continue
            below = [1e4 * (record["log_likelihood"] - best) / best for record in mine]
            cpu = float(np.mean([record["cpu"] for record in mine]))
            means[c, start].append((float(np.mean(below)), max(below), cpu))
            cells.append(_cell(*means[c, start][-1]))
        lines.append(f"| {data} {n:,} x {m:,}, K={N_COMPONENTS[data]} | {c:g} | {best:,.0f} | {_row(cells)}")
    for c in SHIFTS:
        cells = [_cell(*np.mean(means[c, start], axis=0)) if means[c, start] else "-" for start in STARTS]
        lines.append(f"| **mean** | {c:g} | | {_row(cells)}")
    return "\n".join(lines)


def _cell(mean: float, worst: float, cpu: float) -> str:
    return f"{abs(mean):.1f}, {abs(worst):.1f}; {cpu:.1f} s"


def _row(cells: list[str]) -> str:
    return " | ".join(cells) + " |"


# ---------------------------------------------------------------- the command


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.starts", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out" / "starts.jsonl")
    parser.add_argument("--only", nargs="+", choices=N_COMPONENTS, default=list(N_COMPONENTS))
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--minutes", type=float, default=15.0, help="begin no run after this time")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.touch()
    records = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    done = {Run(*(record[name] for name in ("data", "c", "start", "seed"))) for record in records}
    end = time.perf_counter() + 60 * arguments.minutes
    parts: dict[tuple[str, bool], Counts] = {}
    for run in _runs():
        wanted = run.data in arguments.only and run.start in arguments.starts
        if run in done or not wanted or time.perf_counter() > end:
            continue
        key = run.data, run.c == math.inf
        if key not in parts:
            try:
                parts[key] = _cut(Folder(arguments.data).counts(run.data), run.c)
            except MissingError as missing:
                print(f"skipped: {missing}")
                continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            records.append(asdict(run) | _measure(run, parts[key]))
        done.add(run)
        with arguments.out.open("a") as out:
            out.write(json.dumps(records[-1]) + "\n")
    left = sum(run not in done for run in _runs())
    print(as_markdown(records))
    print(f"\n{left} runs are not done; call again to go on" if left else "")


if __name__ == "__main__":
    main()
