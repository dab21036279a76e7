"""Which number of factors is selected under overdispersion, with Poisson and with negative binomial noise?

python -m studies.noise --seeds 4     # a table of docs/results/noise.md; goes on where it stopped
python -m studies.noise --seeds 0     # the table of the rows there are
python -m studies.noise --truth 13    # would six factors predict better? One seed, dispersion 0.5
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.data import ROOT
from numpy.typing import NDArray

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis import select
from log1pnmf.analysis.heldout import heldout_log_likelihood
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import folds, training_size_factors
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.predict import Rates, score_parts

Array = NDArray[np.float64]

SHAPE, LINK = (250, 150), ShiftedLog(1.0)
GRIDS = {3: [1, 2, 3, 4, 5, 6], 6: [3, 4, 5, 6, 7, 8, 9]}
"""True number of factors, and those to choose from."""
DISPERSIONS = (0.1, 0.5)
FIRST_SEED = 10
OPTIONS: dict[str, Any] = {
    "n_folds": 2,
    "n_starts": 2,
    "n_seeds": 0,
    "tol": 1e-5,
    "random_state": 0,
    "size_factors": "none",
    "n_jobs": 1,
}


def model(n_components: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Loadings and factors of samples that mix a few programmes, c = 1."""
    n, m = SHAPE
    base = np.exp(rng.normal(0.5, 1.0, m))
    up = np.exp(rng.normal(0.0, 1.2, (m, n_components)) * (rng.random((m, n_components)) < 0.4))
    return rng.dirichlet(np.full(n_components, 0.2), n), LINK.link(base[:, None] * up)


def drawn(n_components: int, dispersion: float, seed: int) -> NDArray[np.int64]:
    """Counts of such samples."""
    rng = np.random.default_rng(seed)
    loadings, factors = model(n_components, rng)
    means = LINK.inverse(loadings @ factors.T)
    return rng.poisson(means * rng.gamma(1.0 / dispersion, dispersion, means.shape))


def against_truth(seed: int, n_components: int = 6, dispersion: float = 0.5) -> dict[str, float]:
    """Score fits on held-out counts, less the score of the true means."""
    counts = Counts.from_any(drawn(n_components, dispersion, seed))
    truth = model(n_components, np.random.default_rng(seed))
    starts: dict[str, tuple[int, Any]] = {f"{n_components} factors from the truth": (n_components, truth)}
    starts |= {f"{K} factors": (K, "nndsvd") for K in (n_components, n_components - 1, n_components - 2)}
    scores: dict[str, list[float]] = {name: [] for name in starts}
    for train, test in folds(counts, 2, test_fraction=0.2, random_state=np.random.default_rng([0, 0])):
        sizes = training_size_factors(train, 0.2, "none")
        rates = Rates(*truth, LINK, sizes, np.full(SHAPE[1], dispersion))
        best = score_parts(rates, train, test, test_fraction=0.2).sum()
        for name, (K, init) in starts.items():
            how: dict[str, Any] = {"size_factors": sizes, "init": init, "tol": 1e-5, "n_jobs": 1}
            fit = fit_log1p_nmf(train, K, c=1.0, noise="nb", **how)
            scores[name].append(heldout_log_likelihood(fit, train, test, test_fraction=0.2).sum() - best)
    return {name: round(float(np.mean(values)), 1) for name, values in scores.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """How often each number of factors was selected."""
    lines = [
        "| true K | dispersion | noise | runs | K selected (times) | within 1 |",
        "|---|---|---|---|---|---|",
    ]
    for K, grid in GRIDS.items():
        for dispersion in DISPERSIONS:
            for noise, shown in (("poisson", "Poisson"), ("nb", "negative binomial")):
                same = (K, dispersion, noise)
                taken = [r["taken"] for r in rows if (r["K"], r["dispersion"], r["noise"]) == same]
                times = ", ".join(f"{k} ({taken.count(k)})" for k in grid if k in taken)
                near = sum(abs(k - K) <= 1 for k in taken)
                lines.append(f"| {K} | {dispersion} | {shown} | {len(taken)} | {times} | {near} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out")
    parser.add_argument("--truth", type=int, metavar="SEED")
    options = parser.parse_args()
    if options.truth is not None:
        print(against_truth(options.truth))
        return
    options.out.mkdir(exist_ok=True)
    path = options.out / "noise.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(r["K"], r["dispersion"], r["noise"], r["seed"]) for r in rows}
    warnings.simplefilter("ignore")
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
        for K, grid in GRIDS.items():
            for dispersion in DISPERSIONS:
                for noise in ("poisson", "nb"):
                    if (K, dispersion, noise, seed) in done:
                        continue
                    started, counts = time.process_time(), drawn(K, dispersion, seed)
                    found = select(counts, grid, [1.0], noise=noise, **OPTIONS)
                    row = {"K": K, "dispersion": dispersion, "noise": noise, "seed": seed}
                    row |= {"taken": found.best.n_components, "cpu": round(time.process_time() - started, 1)}
                    rows.append(row)
                    with path.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
