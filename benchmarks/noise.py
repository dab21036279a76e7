"""Which number of factors is selected under overdispersion, with Poisson and with negative binomial noise?

python -m benchmarks.noise        # the table of docs/explanation/noise.md; about five CPU minutes
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from log1pnmf.analysis.selection import select
from log1pnmf.model.link import ShiftedLog

SHAPE = (250, 150)
GRIDS = {3: [1, 2, 3, 4, 5, 6], 6: [3, 4, 5, 6, 7, 8, 9]}
"""True number of factors, and those to choose from."""
SEEDS = range(10, 14)


def drawn(n_components: int, dispersion: float, seed: int) -> NDArray[np.int64]:
    """Counts of samples that mix a few programmes, c = 1."""
    rng, link, (n, m) = np.random.default_rng(seed), ShiftedLog(1.0), SHAPE
    base = np.exp(rng.normal(0.5, 1.0, m))
    up = np.exp(rng.normal(0.0, 1.2, (m, n_components)) * (rng.random((m, n_components)) < 0.4))
    loadings = rng.dirichlet(np.full(n_components, 0.2), n)
    means = link.inverse(loadings @ link.link(base[:, None] * up).T)
    return rng.poisson(means * rng.gamma(1.0 / dispersion, dispersion, means.shape))


def main() -> None:
    warnings.simplefilter("ignore")
    options = {
        "n_folds": 2,
        "n_starts": 2,
        "tol": 1e-5,
        "random_state": 0,
        "size_factors": "none",
        "n_jobs": 1,
    }
    for n_components, grid in GRIDS.items():
        for dispersion in (0.1, 0.5):
            for noise in ("poisson", "nb"):
                found = []
                for seed in SEEDS:
                    counts = drawn(n_components, dispersion, seed)
                    scores = select(counts, [1.0], grid, noise=noise, n_seeds=0, **options).scores
                    found.append(grid[int(np.argmax(scores.sum(axis=(1, 2))))])
                print(f"K = {n_components}, dispersion {dispersion}, noise {noise}: {found}", flush=True)


if __name__ == "__main__":
    main()
