"""When to stop: how far short of 1,000 more iterations a fit ends, for several rules.

``python -m studies.convergence`` follows the solver far beyond any end, on parts of all data sets. Then it
asks of each rule at which iteration it would have stopped. Trajectories are kept in a file, so that it can be
called again to go on, and to judge other rules at no cost.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.data import DATA, ROOT, Folder, MissingError, smaller

from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.settings import Settings
from log1pnmf.fitting.solver import PATIENCE, Extrapolation, Stopping, alternate, largest_residual
from log1pnmf.fitting.starts import initialize
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem

from .zeros_tables import N_COMPONENTS

SHIFTS = (0.01, 1.0, math.inf)
STARTS = ("rank1", "random")
SAMPLES, ENTRIES = 300, 240_000  # of every data set: random samples, most frequent features
MORE = 1000
REFERENCE = (1e-8, 2)
"""Every run goes on for 1,000 iterations from where this rule would stop."""
TOLERANCES = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
PATIENCES = (2, 5, 10, 20)
WINDOW = 8


class Seen(NamedTuple):
    """What a stopping rule looks at."""

    index: int
    objective: float
    relative_change: float
    kkt_residual: float
    restarted: bool


Runs = dict[tuple[str, float, str], list[Seen]]


def follow(folder: Folder, name: str, c: float, start: str) -> list[Seen]:
    """Run the solver on a part of a data set, until 1,000 iterations after `REFERENCE` is met."""
    counts = smaller(folder.counts(name), SAMPLES, ENTRIES)
    problem = Problem(counts, counts.size_factors("total"), ShiftedLog(c))
    engine = make_engine("native", problem, 1)
    pair = initialize(engine, N_COMPONENTS[name], start, np.random.default_rng(0))
    stopping, seen, end = Stopping(*REFERENCE), [], math.inf
    for iteration in alternate(engine, *pair, extrapolation=Extrapolation(), max_iter=10 * MORE):
        seen.append(Seen(*(getattr(iteration, field) for field in Seen._fields)))
        if end == math.inf and stopping(iteration):
            end = iteration.index + MORE
        if iteration.index >= end:
            break
    return seen


def stopped_at(seen: list[Seen], tol: float, patience: int, rule: type[Stopping] = Stopping) -> Seen:
    """Find the iteration at which a rule stops; the last one where it does not."""
    stopping: Any = rule(tol, patience)
    return next((one for one in seen if stopping(one)), seen[-1])


class Predicting(Stopping):
    """Stops, as well, where all further gains together would be below 100 times the tolerance.

    They are taken as a geometric series, whose ratio is that of the gains of the last eight iterations and of
    the eight before.
    """

    def __init__(self, tol: float, patience: int) -> None:
        super().__init__(tol, patience)
        self.recent: list[float] = []

    def __call__(self, iteration: Any) -> bool:
        self.recent = [*self.recent[-2 * WINDOW :], iteration.objective]
        now, met = iteration.objective, super().__call__(iteration)
        if met or len(self.recent) <= 2 * WINDOW or iteration.relative_change > 10.0 * self.tol:
            return met
        before, middle = self.recent[0], self.recent[WINDOW]
        ratio = (middle - now) / max(before - middle, 1e-300)
        remaining = (middle - now) * ratio / max(1.0 - ratio, 1e-3)
        return remaining <= 100.0 * self.tol * abs(now) and iteration.kkt_residual <= largest_residual(
            self.tol
        )


RULES: dict[str, tuple[type[Stopping], tuple[float, ...], tuple[int, ...]]] = {
    "": (Stopping, TOLERANCES, PATIENCES),
    ", predicted": (Predicting, (1e-9,), (PATIENCE,)),
}


def as_markdown(runs: Runs) -> str:
    """One line per rule: how many runs end 1e-5 and more short, the worst, the iterations."""
    lines = [
        "| tol | in a row | runs short by more than 1e-5 | worst | median | iterations (mean) |",
        "|---|---|---|---|---|---|",
    ]
    for name, (rule, tolerances, patiences) in RULES.items():
        for tol, patience in itertools.product(tolerances, patiences):
            ends = {key: stopped_at(seen, tol, patience, rule) for key, seen in runs.items()}
            short = {
                key: (ends[key].objective - seen[-1].objective) / abs(seen[-1].objective)
                for key, seen in runs.items()
            }
            worst = max(short, key=lambda key: short[key])
            values = np.array(list(short.values()))
            mean = np.mean([end.index for end in ends.values()])
            lines.append(
                f"| {tol:.0e}{name} | {patience} | {(values > 1e-5).sum()} of {len(values)} | "
                f"{values.max():.1e} ({worst[0]}, c={worst[1]:g}, {worst[2]}) | {np.median(values):.1e} | "
                f"{mean:.0f} |"
            )
    return "\n".join(lines)


def residuals(runs: Runs) -> str:
    """KKT residuals at the ends of the default rule, and where a loose one without them would have ended."""
    at_end = [stopped_at(seen, Settings.tol, PATIENCE).kkt_residual for seen in runs.values()]
    loose = []
    for seen in runs.values():
        in_a_row = 0
        for one in seen:
            in_a_row = in_a_row + 1 if one.relative_change <= 1e-5 else 0
            if in_a_row == PATIENCE:
                loose.append(one.kkt_residual)
                break
    return (
        f"KKT residuals where the default rule ends: {min(at_end):.0e} to {max(at_end):.0e}; "
        f"where tol=1e-5 without them would have ended: up to {max(loose):.0e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.convergence", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out" / "convergence.jsonl")
    parser.add_argument("--only", nargs="+", choices=N_COMPONENTS, default=list(N_COMPONENTS))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.touch()
    runs: Runs = {}
    for line in arguments.out.read_text().splitlines():
        key, seen = json.loads(line)
        runs[key[0], key[1], key[2]] = [Seen(*one) for one in seen]
    folder, started = Folder(arguments.data), time.process_time()
    for name in arguments.only:
        for c in SHIFTS:
            for start in STARTS:
                if (name, c, start) in runs:
                    continue
                try:
                    runs[name, c, start] = follow(folder, name, c, start)
                except MissingError as missing:
                    print(f"skipped: {missing}")
                    continue
                with arguments.out.open("a") as out:
                    out.write(json.dumps([(name, c, start), runs[name, c, start]]) + "\n")
                print(name, c, start, f"{runs[name, c, start][-1].index} iterations", flush=True)
        folder = Folder(arguments.data)  # one data set in memory at a time
    print(f"\n{time.process_time() - started:.0f} CPU s\n\n{as_markdown(runs)}\n\n{residuals(runs)}")


if __name__ == "__main__":
    main()
