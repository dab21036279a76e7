"""Which c is selected with totals, with fitted and with the true size factors?

python -m benchmarks.sizes        # the table of docs/explanation/sizes.md; a few CPU minutes
"""

from __future__ import annotations

import argparse
import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.analysis.selection import select
from log1pnmf.model.link import ShiftedLog

SHAPE, N_COMPONENTS, TRUE_C = (200, 150), 3, 1.0
GRID = [0.01, 0.1, 1.0, 10.0, math.inf]
Array = NDArray[np.float64]


def drawn(dispersion: float, seed: int) -> tuple[NDArray[np.int64], Array]:
    """Counts of programmes that change totals, c = 1, and the true size factors."""
    rng, link, (n, m) = np.random.default_rng(seed), ShiftedLog(TRUE_C), SHAPE
    base = np.exp(rng.normal(1.0, 1.0, m))
    up = np.exp(rng.normal(0.0, 1.2, (m, N_COMPONENTS)) * (rng.random((m, N_COMPONENTS)) < 0.4))
    up *= np.exp(rng.normal(0.0, 1.0, N_COMPONENTS))
    loadings = rng.dirichlet(np.full(N_COMPONENTS, 0.1), n)
    means = link.inverse(loadings @ link.link(base[:, None] * up).T)
    sizes = np.exp(rng.normal(0.0, 0.5, n))
    sizes /= sizes.mean()
    means *= sizes[:, None]
    if dispersion:
        means *= rng.gamma(1.0 / dispersion, dispersion, means.shape)
    return rng.poisson(means), sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    options: dict[str, Any] = {"n_folds": 2, "n_starts": 1, "tol": 1e-5, "random_state": 0, "n_jobs": 1}
    for seed in range(seeds):
        for noise, dispersion in (("poisson", 0.0), ("nb", 0.3)):
            counts, true = drawn(dispersion, seed)
            for name, sizes in (("total", "total"), ("fit", "fit"), ("true", true)):
                found = select(counts, GRID, [N_COMPONENTS], noise=noise, size_factors=sizes, **options)
                scores = found.scores.sum(axis=(1, 2))
                off = {s.c: float(x) for s, x in zip(found.settings, scores - scores.max(), strict=True)}
                best = max(off, key=lambda c: off[c])
                told = ", ".join(f"{c:g}: {off[c]:.0f}" for c in GRID)
                print(f"{noise}, seed {seed}, size factors {name}: c = {best:g} ({told})", flush=True)


if __name__ == "__main__":
    main()
