"""Do tests of markers hold with totals, fitted and known size factors, and for rare factors?

python -m studies.marker_levels --simulations 20 --jobs 16

Counts of a constant baseline and three factors, each of a tenth (or 3%) of the features; the default call
fits and tests them.
"""

from __future__ import annotations

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.markers import markers
from log1pnmf.analysis.metrics import match_factors

CASES: dict[str, dict[str, Any]] = {
    "Poisson": {},
    "few markers": {"share": 0.03},
    "overdispersed, nb": {"phi": 0.5, "noise": "nb"},
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


def measure(case: dict[str, Any], sizes: str, seed: int) -> list[list[float]]:
    """Type I error rate, found, false discoveries, correlation with the truth, reliability of each factor."""
    n, m, phi, up = case.get("n", 400), 300, case.get("phi", 0.0), case.get("up", 1.0)
    rng, warned = np.random.default_rng([seed, 42]), warnings.catch_warnings()
    present = np.array([0.3, 0.3, case.get("rare", 0.3)])
    loadings = np.where(rng.random((n, 3)) < present, rng.gamma(3.0, 1.0 / 3.0, (n, 3)), 0.0)
    own = np.zeros((m, 3), dtype=bool)
    for k, part in enumerate(np.split(rng.permutation(m)[: 3 * int(case.get("share", 0.1) * m)], 3)):
        own[part, k] = True
    factors = np.where(own, up * rng.uniform(0.5, 1.5, (m, 3)), 0.0)
    base = np.log1p(2.0 * np.exp(0.7 * rng.standard_normal(m)))
    depth = np.exp(0.4 * rng.standard_normal(n))
    means = depth[:, None] * np.expm1(base + loadings @ factors.T)
    counts = rng.poisson(means * rng.gamma(1.0 / phi, phi, means.shape) if phi else means)
    given = depth / depth.mean() if sizes == "true" else sizes
    with warned:
        warnings.simplefilter("ignore")
        fit = fit_log1p_nmf(counts, 4, noise=case.get("noise", "poisson"), size_factors=given, n_jobs=1)
        found = markers(fit, counts, n_jobs=1)
    rows = []
    for k, j in match_factors(loadings, fit.loadings).pairs[2 if "rare" in case else 0 :]:
        reported, null = found.adjusted_p[:, j] <= 0.05, ~own.any(axis=1)
        false = reported[~own[:, k]].sum() / max(reported.sum(), 1)
        alike = np.corrcoef(loadings[:, k], fit.loadings[:, j])[0, 1]
        rate = np.mean(found.p[null, j] <= 0.05)
        rows.append([rate, reported[own[:, k]].mean(), false, alike, found.reliability[j]])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--simulations", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    print(
        "| simulated | size factors | type I error rate | found | false | r | reliability |\n|" + "---|" * 7
    )
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, case in CASES.items():
            for sizes in ("true", "total", "fit"):
                runs = pool.map(partial(measure, case, sizes), range(options.simulations))
                row = np.mean([one for run in runs for one in run], axis=0)
                print(f"| {name} | {sizes} | {' | '.join(f'{value:.3f}' for value in row)} |", flush=True)


if __name__ == "__main__":
    main()
