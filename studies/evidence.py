"""Does `evidence` tell true factors from superfluous ones?

    python -m studies.evidence --jobs 16     # the tables of docs/how-to/evidence.md

Simulated are 160 x 120 counts of four factors, which are fitted with six and matched by their loadings. A
fitted factor is a true one if it correlates by more than 0.8 with its match; the two that are left over are
superfluous. Compared is the loss without the factor, over that of a factor fitted to noise.
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from benchmarks.measuring import Clock

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.evidence import CLEARLY, evidence
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.datasets import pancreas
from log1pnmf.model.noise import ShiftedLog

KINDS = (("Poisson", 0.0, "poisson"), ("dispersion 0.5", 0.5, "nb"), ("dispersion 0.5", 0.5, "poisson"))
N_TRUE, N_MORE = 4, 2


def simulate(c: float, phi: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw counts and their loadings: a factor that all samples have, and three that some have."""
    rng, link, n, m = np.random.default_rng([seed, 39]), ShiftedLog(c), 160, 120
    loadings = np.maximum(rng.normal(0.1, 0.5, (n, N_TRUE)), 0.0)
    loadings[:, 0] = rng.uniform(0.2, 1.0, n)
    loadings /= loadings.max(axis=0)
    rates = rng.exponential(6.0, (m, N_TRUE)) * (rng.random((m, N_TRUE)) < 0.3)
    rates[:, 0] = rng.uniform(0.5, 3.0, m)
    means = link.inverse(loadings @ link.link(rates).T) * np.exp(0.3 * rng.standard_normal(n))[:, None]
    if phi:
        means = means * rng.gamma(1.0 / phi, phi, means.shape)
    return rng.poisson(means), loadings


def measure(c: float, phi: float, noise: str, seed: int) -> tuple[list[float], list[float]]:
    """Times noise of true and of superfluous factors."""
    counts, loadings = simulate(c, phi, seed)
    fit = fit_log1p_nmf(counts, N_TRUE + N_MORE, c=c, noise=noise, n_jobs=1)
    found = evidence(fit, counts, n_seeds=0, n_bootstrap=0, n_jobs=1)
    times = found.loss / found.from_noise
    match = match_factors(loadings, fit.loadings)
    true = match.pairs[match.similarity > 0.8, 1]
    return times[true].tolist(), np.delete(times, match.pairs[:, 1]).tolist()


def row(true: list[float], more: list[float]) -> str:
    """Shares that are clearly above noise, and how often a true factor has more than another."""
    ahead = np.mean(np.array(true)[:, None] > np.array(more))
    above = (f"{np.mean(np.array(values) > CLEARLY):.0%}" for values in (true, more))
    return f"{' | '.join(above)} | {ahead:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--simulations", type=int, default=30, help="of each kind [30]")
    parser.add_argument("--jobs", type=int, default=1, help="processes [1]")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| counts | `noise` | c | true factors above 1.5 | superfluous factors above 1.5 | AUC |")
    print("|" + "---|" * 6)
    with ProcessPoolExecutor(given.jobs) as pool:
        rows = {
            (name, noise, c): [pool.submit(measure, c, phi, noise, seed) for seed in range(given.simulations)]
            for (name, phi, noise), c in itertools.product(KINDS, (0.1, 1.0, math.inf))
        }
        for (name, noise, c), runs in rows.items():
            found = [run.result() for run in runs]
            true, more = (list(itertools.chain.from_iterable(one[i] for one in found)) for i in (0, 1))
            print(f"| {name} | {noise} | {c:g} | {row(true, more)} |", flush=True)
    cost()


def cost() -> None:
    """Print what evidence of cells costs, and what it finds with fewer of them."""
    print("\n| cells | CPU s of the fit | CPU s of evidence | fits | times noise |\n|" + "---|" * 5)
    for n_cells in (400, None):
        cells, clock = pancreas().counts[:n_cells], Clock()
        fit = fit_log1p_nmf(cells, 9, n_jobs=1)
        fitting = clock.read()[0]
        for most in (100, None):
            clock = Clock()
            found = evidence(fit, cells, max_samples=most, n_jobs=1)
            seconds, which = clock.read()[0], f"{cells.shape[0]:,}"
            times = ", ".join(f"{value:.1f}" for value in found.times_noise)
            which = which if most is None else f"{most} of {which}"
            ratio = f"{seconds:.0f} | {seconds / fitting:.1f}"
            print(f"| {which} | {fitting:.0f} | {ratio} | {times} |", flush=True)


if __name__ == "__main__":
    main()
