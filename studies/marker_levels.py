"""Do tests of markers hold with totals, fitted and known size factors, and for rare factors?

python -m studies.marker_levels --jobs 16

Counts of a constant baseline and three factors, each of a tenth (or 3%) of the features; the default call
fits and tests them. Type I error rate: p <= 0.05 of features that no factor raises. False: share of the
markers of a factor that it does not raise. r: correlation of fitted with true loadings. Named: share of the
factors of which markers are named.
"""

from __future__ import annotations

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

import numpy as np

from log1pnmf import ShiftedLog, fit_log1p_nmf
from log1pnmf.analysis.markers import LEAST_RELIABLE, markers
from log1pnmf.analysis.metrics import match_factors

CASES: dict[str, dict[str, Any]] = {
    "Poisson": {},
    "few markers": {"share": 0.03},
    "c = 0.1": {"c": 0.1},
    "c = inf": {"c": np.inf},
    "overdispersed, nb": {"phi": 0.5, "noise": "nb"},
    "three factors too many, nb": {"phi": 0.5, "noise": "nb", "more": 3},
    "three factors too many, c = 0.1, nb": {"c": 0.1, "phi": 0.5, "noise": "nb", "more": 3},
    "three factors too many, c = inf, nb": {"c": np.inf, "phi": 0.5, "noise": "nb", "more": 3},
    **{
        f"7 factors for 4 kinds of cells, c = {c:g}": {"c": c, "kinds": True, "more": 3}
        for c in (0.1, 1.0, np.inf)
    },
    "a strong factor of 2% of the samples, nb": {
        "phi": 0.5,
        "noise": "nb",
        "n": 600,
        "rare": 0.02,
        "up": 2.0,
    },
    "a factor of 2% of the samples, nb": {"phi": 0.5, "noise": "nb", "n": 600, "rare": 0.02, "up": 0.6},
    "a factor of 2% of the samples, Poisson noise": {"phi": 0.5, "n": 600, "rare": 0.02, "up": 0.6},
}
SIZES = ("true", "total", "fit")
COLUMNS = ("type I error rate", "found", "false", "r", "reliability", "named")


def measure(case: dict[str, Any], sizes: str, seed: int) -> list[list[float]]:
    """Return the `COLUMNS` of each factor; of the rare one alone, if there is one."""
    n, m, c, phi, up = case.get("n", 400), 300, case.get("c", 1.0), case.get("phi", 0.0), case.get("up", 1.0)
    rng, link = np.random.default_rng([seed, 42]), ShiftedLog(c)
    present = np.array([0.3, 0.3, case.get("rare", 0.3)])
    used = rng.random((n, 3)) < present
    if "kinds" in case:  # each sample has one factor, or none
        used = rng.integers(0, 4, n)[:, None] == np.arange(3)
    loadings = np.where(used, rng.gamma(3.0, 1.0 / 3.0, (n, 3)), 0.0)
    own = np.zeros((m, 3), dtype=bool)
    for k, part in enumerate(np.split(rng.permutation(m)[: 3 * int(case.get("share", 0.1) * m)], 3)):
        own[part, k] = True
    factors = np.where(own, up * rng.uniform(0.5, 1.5, (m, 3)), 0.0)
    base = 2.0 * np.exp(0.7 * rng.standard_normal(m))
    depth = np.exp(0.4 * rng.standard_normal(n))
    eta = link.link(base) / link.alpha + loadings @ factors.T
    means = depth[:, None] * link.inverse(link.alpha * eta)
    counts = rng.poisson(means * rng.gamma(1.0 / phi, phi, means.shape) if phi else means)
    given = depth / depth.mean() if sizes == "true" else sizes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        k_fitted = 4 + case.get("more", 0)
        noise = case.get("noise", "poisson")
        fit = fit_log1p_nmf(counts, k_fitted, c=c, noise=noise, size_factors=given, n_jobs=1)
        found = markers(fit, counts, n_jobs=1)
    rows = []
    for k, j in match_factors(loadings, fit.loadings).pairs[2 if "rare" in case else 0 :]:
        reported, null = found.adjusted_p[:, j] <= 0.05, ~own.any(axis=1)
        false = reported[~own[:, k]].sum() / max(reported.sum(), 1)
        alike = np.corrcoef(loadings[:, k], fit.loadings[:, j])[0, 1]
        rate, named = np.mean(found.p[null, j] <= 0.05), found.reliability[j] >= LEAST_RELIABLE
        rows.append([rate, reported[own[:, k]].mean(), false, alike, found.reliability[j], named])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--simulations", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="seed of the first simulation")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES, help="size factors")
    parser.add_argument("--only", default="", help="part of the name of the cases that are simulated")
    options = parser.parse_args()
    print(f"| simulated | size factors | {' | '.join(COLUMNS)} |\n|" + "---|" * (2 + len(COLUMNS)))
    seeds = range(options.first, options.first + options.simulations)
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = {
            row: [pool.submit(measure, CASES[row[0]], row[1], seed) for seed in seeds]
            for row in product((name for name in CASES if options.only in name), options.sizes)
        }
        for (name, sizes), own in runs.items():
            row = np.mean([one for run in own for one in run.result()], axis=0)
            print(f"| {name} | {sizes} | {' | '.join(f'{value:.3f}' for value in row)} |", flush=True)


if __name__ == "__main__":
    main()
