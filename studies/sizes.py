"""Which c is selected with totals, with fitted and with the true size factors?

python -m studies.sizes --seeds 20             # a table of docs/results/noise.md; goes on where it stopped
python -m studies.sizes --c 0.1 --spread 0.2   # another truth
python -m studies.sizes --seeds 0              # the table of the rows there are
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
from benchmarks.data import ROOT
from numpy.typing import NDArray

from log1pnmf.analysis import select
from log1pnmf.model.noise import ShiftedLog

SHAPE, N_COMPONENTS = (200, 300), 3
GRID = [0.01, 0.1, 1.0, 10.0, math.inf]
KINDS = ("total", "fit", "true")
NOISES = {"poisson": 0.0, "nb": 0.3}
OPTIONS: dict[str, Any] = {
    "n_folds": 2,
    "n_starts": 1,
    "n_seeds": 0,
    "init": "nndsvd",
    "tol": 1e-6,
    "random_state": 0,
    "n_jobs": 1,
}
Array = NDArray[np.float64]


def drawn(
    dispersion: float, seed: int, *, c: float = 1.0, spread: float = 0.5
) -> tuple[NDArray[np.int64], Array]:
    """Counts of programmes that change totals, and the true size factors, which differ by `spread`."""
    rng, link, (n, m) = np.random.default_rng(seed), ShiftedLog(c), SHAPE
    base = np.exp(rng.normal(1.0, 1.0, m))
    up = np.exp(rng.normal(0.0, 1.2, (m, N_COMPONENTS)) * (rng.random((m, N_COMPONENTS)) < 0.4))
    up *= np.exp(rng.normal(0.0, 1.0, N_COMPONENTS))
    loadings = rng.dirichlet(np.full(N_COMPONENTS, 0.1), n)
    means = link.inverse(loadings @ link.link(base[:, None] * up).T)
    sizes = np.exp(rng.normal(0.0, spread, n))
    sizes /= sizes.mean()
    means *= sizes[:, None]
    if dispersion:
        means *= rng.gamma(1.0 / dispersion, dispersion, means.shape)
    return rng.poisson(means), sizes


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Select c for one draw: the best, how far each c is behind, and CPU seconds."""
    counts, true = drawn(NOISES[case["noise"]], case["seed"], c=case["c"], spread=case["spread"])
    sizes, started = true if case["sizes"] == "true" else case["sizes"], time.process_time()
    done = select(counts, [N_COMPONENTS], GRID, noise=case["noise"], size_factors=sizes, **OPTIONS)
    behind = {
        f"{s.c:g}": round(float(x), 1) for s, x in zip(done.settings, done.summary["difference"], strict=True)
    }
    cpu = round(time.process_time() - started, 1)
    return {**case, "taken": f"{done.best.c:g}", "behind": behind, "cpu": cpu}


def table(rows: list[dict[str, Any]]) -> str:
    """How often each c was selected."""
    lines = [
        "| counts, noise | size factors | true c | spread | runs | c selected (times) | within a decade "
        "| CPU s of a run |",
        "|" + "---|" * 8,
    ]
    kinds = sorted({(r["noise"], r["c"], r["spread"], KINDS.index(r["sizes"])) for r in rows})
    for noise, c, spread, kind in kinds:
        same = {"noise": noise, "c": c, "spread": spread, "sizes": KINDS[kind]}
        own = [row for row in rows if same.items() <= row.items()]
        taken = [float(row["taken"]) for row in own]
        times = ", ".join(f"{one:g} ({taken.count(one)})" for one in GRID if one in taken)
        near = sum(abs(math.log10(one / c)) <= 1.001 for one in taken)
        cpu = np.median([row["cpu"] for row in own])
        lines.append(
            f"| {noise} | {KINDS[kind]} | {c:g} | {spread:g} | {len(own)} | {times} | {near} | {cpu:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--c", type=float, default=1.0)
    parser.add_argument("--spread", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    path = options.out / "sizes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    warnings.simplefilter("ignore")
    for seed, noise, kind in product(range(options.seeds), NOISES, KINDS):
        case = {"noise": noise, "sizes": kind, "c": options.c, "spread": options.spread, "seed": seed}
        if any(case.items() <= row.items() for row in rows):
            continue
        rows.append(measured(case))
        with path.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
