"""Which c do held-out counts of real data prefer, with each noise and each kind of size factors?

python -m benchmarks.preferred pcawg bbc     # rows of a table of docs/results/noise.md; all data by default
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from typing import Any

from log1pnmf.analysis.selection import Selection, select

from .data import FILES, Folder, smaller

GRID = [0.01, 0.1, 1.0, 10.0, math.inf]
N_COMPONENTS = 5
SAMPLES, ENTRIES = 250, 5e4
"""Random samples, and most frequent features, such that there are so many entries."""
OPTIONS: dict[str, Any] = {
    "n_folds": 1,
    "n_starts": 1,
    "n_seeds": 0,
    "init": "nndsvd",
    "tol": 1e-5,
    "max_iter": 200,
    "random_state": 0,
    "n_jobs": 1,
}


def cells(found: Selection) -> list[str]:
    """Best c with each noise, and how far the next c is behind, in standard errors; then nb over Poisson."""
    told, best = [], {}
    for noise in ("poisson", "nb"):
        rows = [row for row, setting in enumerate(found.settings) if setting.noise == noise]
        scores = found.scores[rows].mean(axis=1)
        first = int(scores.sum(axis=1).argmax())
        near = []
        for row, by_sample in zip(rows, scores, strict=True):
            gap = scores[first] - by_sample
            if gap.sum() <= gap.std(ddof=1) * math.sqrt(len(gap)):
                near.append(f"{found.settings[row].c:g}")
        best[noise] = scores[first]
        others = [c for c in near if c != f"{found.settings[rows[first]].c:g}"]
        told.append(f"{found.settings[rows[first]].c:g}" + (f" (or {', '.join(others)})" if others else ""))
    gain = best["nb"] - best["poisson"]
    told.append(f"{gain.sum():,.0f} ({gain.std(ddof=1) * math.sqrt(len(gain)):,.0f})")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(FILES))
    names, folder = parser.parse_args().names or list(FILES), Folder()
    warnings.simplefilter("ignore")
    print(
        "| data | sizes | size factors | c, Poisson | c, nb | nb better by (error) | CPU s |\n|" + "---|" * 7
    )
    for name in names:
        counts = smaller(folder.counts(name), SAMPLES, ENTRIES)
        for sizes in ("total", "fit"):
            started = time.process_time()
            found = select(
                counts, GRID, [N_COMPONENTS], noise=["poisson", "nb"], size_factors=sizes, **OPTIONS
            )
            shape, cpu = "{} x {}".format(*counts.shape), time.process_time() - started
            print(f"| {name} | {shape} | {sizes} | {' | '.join(cells(found))} | {cpu:.0f} |", flush=True)


if __name__ == "__main__":
    main()
