"""Which start leads where: likelihood reached, CPU seconds and iterations, by data set, c and seed.

``python -m benchmarks.starts`` does what is not yet in its result file and stops after `--minutes`, so it can
be called again to go on; at the end it prints the table of `docs/starts.md`.
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

from log1pnmf import fit_log1p_nmf
from log1pnmf.counts.counts import Counts

from .data import DATA, ROOT, Folder, MissingError
from .measuring import Clock

N_COMPONENTS = {"pbmc": 6, "bbc": 10, "ap": 10, "mcf7": 3, "pcawg": 10, "baron": 10}
STARTS = ("rank1", "random", "nndsvd")
SHIFTS = (1e-3, 1.0, math.inf)
SMALL_ENOUGH = 1e6  # entries up to which exact fits take all of a data set
SAMPLE = (800, 2500)  # otherwise: random rows, most frequent columns
ALWAYS_SAMPLED = ("baron",)
TOL, MAX_ITER = 1e-7, 1000
CPU_LIMIT = 20.0


@dataclass(frozen=True)
class Run:
    data: str
    c: float
    start: str
    seed: int


def _runs(seeds: int) -> Iterator[Run]:
    for seed in range(seeds):
        for data in N_COMPONENTS:
            for c in SHIFTS:
                for start in STARTS:
                    yield Run(data, c, start, seed)


def _sampled(run: Run, counts: Counts) -> bool:
    return run.data in ALWAYS_SAMPLED or (run.c < 1.0 and math.prod(counts.shape) > SMALL_ENOUGH)


def _sample(counts: Counts) -> Counts:
    matrix = counts.to_scipy()
    rows = np.sort(np.random.default_rng(0).permutation(matrix.shape[0])[: SAMPLE[0]])
    frequent = np.argsort(-np.asarray(matrix.sum(axis=0)).ravel(), kind="stable")[: SAMPLE[1]]
    return Counts.from_any(matrix[rows][:, np.sort(frequent)])


def _measure(run: Run, counts: Counts) -> dict[str, Any]:
    """Fit with the library's defaults; the clock starts with the making of the start."""
    clock = Clock()

    def too_long(iteration: object) -> bool:
        return clock.read()[0] > CPU_LIMIT

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fit_log1p_nmf(
            counts,
            N_COMPONENTS[run.data],
            c=run.c,
            init=run.start,
            tol=TOL,
            max_iter=MAX_ITER,
            random_state=run.seed,
            callbacks=[too_long],
        )
    cpu, wall = clock.read()
    return {
        "shape": list(counts.shape),
        "likelihood": fit.settings.likelihood,
        "objective": -fit.objective,
        "log_likelihood": fit.log_likelihood,
        "iterations": fit.n_iter,
        "converged": fit.converged,
        "cpu": cpu,
        "wall": wall,
    }


# ---------------------------------------------------------------- the table


def as_markdown(records: list[dict[str, Any]]) -> str:
    """One line per data set and c; per start: best and worst log-likelihood, mean CPU and iterations."""
    lines = [
        "| data | c | fit | best log-likelihood | " + " | ".join(STARTS) + " |",
        "|---|---|---|---|" + "---|" * len(STARTS),
    ]
    groups: dict[tuple[str, float], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["data"], record["c"]].append(record)
    order = list(N_COMPONENTS)
    for (data, c), group in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        best = max(record["log_likelihood"] for record in group)
        n, m = group[0]["shape"]
        about = f"{data} {n:,} x {m:,}, K={N_COMPONENTS[data]}"
        cells = [_cell([record for record in group if record["start"] == start], best) for start in STARTS]
        likelihood = "identity" if c == math.inf else group[0]["likelihood"]
        lines.append(f"| {about} | {c:g} | {likelihood} | {best:,.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(records: list[dict[str, Any]], best: float) -> str:
    if not records:
        return "-"
    behind = ", ".join(f"{best - record['log_likelihood']:,.0f}" for record in records)
    cpu = np.mean([record["cpu"] for record in records])
    iterations = np.mean([record["iterations"] for record in records])
    cut = sum(not record["converged"] for record in records)
    return f"{behind}; {cpu:.1f} s, {iterations:.0f} it" + (f", {cut} cut" if cut else "")


# ---------------------------------------------------------------- the command


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starts", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out" / "starts.jsonl")
    parser.add_argument("--only", nargs="+", choices=N_COMPONENTS, default=list(N_COMPONENTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=15.0, help="begin no run after this time")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.touch()
    records = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    done = {Run(*(record[name] for name in ("data", "c", "start", "seed"))) for record in records}
    folder, end = Folder(arguments.data), time.perf_counter() + 60 * arguments.minutes
    samples: dict[str, Counts] = {}
    for run in _runs(arguments.seeds):
        if run in done or run.data not in arguments.only or time.perf_counter() > end:
            continue
        try:
            counts = folder.counts(run.data)
        except MissingError as missing:
            print(f"skipped: {missing}")
            continue
        if _sampled(run, counts):
            counts = samples.setdefault(run.data, _sample(counts))
        records.append(asdict(run) | _measure(run, counts))
        with arguments.out.open("a") as out:
            out.write(json.dumps(records[-1]) + "\n")
        print({k: v for k, v in records[-1].items() if k != "wall"}, flush=True)
    done = {Run(*(record[name] for name in ("data", "c", "start", "seed"))) for record in records}
    left = sum(run not in done for run in _runs(arguments.seeds))
    print(as_markdown(records))
    print(f"\n{left} runs are not done; call again to go on" if left else "")


if __name__ == "__main__":
    main()
