"""Which c is selected with totals, with fitted and with the true size factors?

python -m benchmarks.sizes --seeds 10             # a table of docs/results/noise.md, row by row
python -m benchmarks.sizes --c 0.1 --spread 0.2   # another truth
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.analysis.selection import select
from log1pnmf.model.link import ShiftedLog

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--c", type=float, default=1.0)
    parser.add_argument("--spread", type=float, default=0.5)
    parser.add_argument("--noise", nargs="+", default=list(NOISES), choices=list(NOISES))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(options.first, options.first + options.seeds):
        for noise in options.noise:
            counts, true = drawn(NOISES[noise], seed, c=options.c, spread=options.spread)
            for kind in options.kinds:
                sizes, started = true if kind == "true" else kind, time.process_time()
                done = select(counts, GRID, [N_COMPONENTS], noise=noise, size_factors=sizes, **OPTIONS)
                scores = done.summary["difference"]
                off = {s.c: float(x) for s, x in zip(done.settings, scores, strict=True)}
                found.setdefault((noise, kind), []).append(done.best.c)
                told = ", ".join(f"{c:g}: {off[c]:.0f}" for c in GRID)
                cpu = time.process_time() - started
                print(f"{noise}, seed {seed}, {kind}: c = {done.best.c:g} ({told}); {cpu:.0f} s", flush=True)
    print("\n| noise | size factors | chosen c (times) | within a decade |\n|---|---|---|---|")
    for (noise, kind), chosen in found.items():
        times = ", ".join(f"{c:g} ({chosen.count(c)})" for c in GRID if c in chosen)
        near = sum(abs(math.log10(c / options.c)) <= 1.001 for c in chosen)
        print(f"| {noise} | {kind} | {times} | {near} of {len(chosen)} |")


if __name__ == "__main__":
    main()
