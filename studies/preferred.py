"""Which c do held-out counts of real data prefer, with each noise and each kind of size factors?

python -m studies.preferred              # a table of docs/results/noise.md; goes on where it stopped
python -m studies.preferred pcawg bbc    # of some data
python -m studies.preferred --table      # the table of the rows there are
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.data import FILES, ROOT, Folder, smaller

from log1pnmf.analysis import Selection, select

from .zeros_tables import N_COMPONENTS

GRID = [0.001, 0.01, 0.1, 1.0, 10.0, math.inf]
NOISES, SIZES = ("poisson", "nb"), ("total", "fit")
SAMPLES, ENTRIES, SPLITS = 500, 1e5, 2
"""Random samples, and most frequent features, such that there are so many entries."""
OPTIONS: dict[str, Any] = {
    "n_folds": 1,
    "n_starts": 1,
    "n_seeds": 0,
    "init": "nndsvd",
    "tol": 1e-5,
    "max_iter": 100,
    "n_jobs": 1,
}


def measured(folder: Folder, case: dict[str, Any]) -> dict[str, Any]:
    """Score every c with both noises on one split: sums over the samples, and errors of differences."""
    counts = smaller(folder.counts(case["data"]), SAMPLES, ENTRIES)
    K, started = N_COMPONENTS[case["data"]], time.process_time()
    found = select(
        counts,
        [K],
        GRID,
        noise=list(NOISES),
        size_factors=case["sizes"],
        random_state=case["split"],
        **OPTIONS,
    )
    rows = {noise: _row(found, noise) for noise in NOISES}
    gain = np.array(rows["nb"].pop("best")) - np.array(rows["poisson"].pop("best"))
    return {
        **case,
        **rows,
        "shape": list(counts.shape),
        "gain": [float(gain.sum()), _error(gain)],
        "cpu": round(time.process_time() - started, 1),
    }


def _row(found: Selection, noise: str) -> dict[str, Any]:
    """Say which c is best, and which are within a standard error of it."""
    rows = [row for row, setting in enumerate(found.settings) if setting.noise == noise]
    scores = found.scores[rows].mean(axis=1)
    names = [f"{found.settings[row].c:g}" for row in rows]
    first = int(scores.sum(axis=1).argmax())
    gaps = scores[first] - scores
    near = [c for c, gap in zip(names, gaps, strict=True) if gap.sum() <= _error(gap)]
    behind = {c: round(float(gap.sum()), 1) for c, gap in zip(names, gaps, strict=True)}
    return {"taken": names[first], "near": near, "behind": behind, "best": scores[first].tolist()}


def _error(by_sample: np.ndarray) -> float:
    return float(by_sample.std(ddof=1) * math.sqrt(len(by_sample)))


def table(rows: list[dict[str, Any]]) -> str:
    """One line for data and size factors; what the splits say one after the other."""
    lines = ["| data | counts | K | size factors | c, Poisson | c, nb | nb better by (error) |"]
    lines.append("|" + "---|" * 7)
    for name, sizes in product(N_COMPONENTS, SIZES):
        own = [row for row in rows if (row["data"], row["sizes"]) == (name, sizes)]
        if own:
            chosen = [" and ".join(dict.fromkeys(_told(row[noise]) for row in own)) for noise in NOISES]
            gain, error = np.mean([row["gain"] for row in own], axis=0)
            shape = "{:,} x {:,}".format(*own[0]["shape"])
            lines.append(
                f"| {name} | {shape} | {N_COMPONENTS[name]} | {sizes} | {' | '.join(chosen)} "
                f"| {gain:,.0f} ({error:,.0f}) |"
            )
    return "\n".join(lines)


def _told(row: dict[str, Any]) -> str:
    others = [c for c in row["near"] if c != row["taken"]]
    return row["taken"] + (f" (or {', '.join(others)})" if others else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(N_COMPONENTS))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    names, folder = options.names or list(N_COMPONENTS), Folder()
    if unknown := set(names) - set(FILES):
        parser.error(f"no data named {', '.join(sorted(unknown))}; there are {', '.join(N_COMPONENTS)}")
    path = options.out / "preferred.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    warnings.simplefilter("ignore")
    for split, name, sizes in product(range(0 if options.table else SPLITS), names, SIZES):
        case = {"data": name, "sizes": sizes, "split": split}
        if any(case.items() <= row.items() for row in rows):
            continue
        rows.append(measured(folder, case))
        with path.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
