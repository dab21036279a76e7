"""Is a difference of loadings between groups of donors found as often by chance as it should be?

    python -m studies.usage         # the table of docs/usage.md; a CPU minute

Donors differ in their mean loadings (each factor with a variance of its own), cells scatter around the mean
of their donor, and the groups do not differ. Counted is how often p <= 0.05, over all factors.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from log1pnmf import Fit, fit_log1p_nmf
from log1pnmf.analysis.usage import usage

CELLS = 50


@dataclass(frozen=True)
class Design:
    """Donors in each of two groups; paired donors are in both, and have a level of their own.

    With `ages` there are no groups: every donor has an age from 20 to 80, and `effect` is that of 60 years.
    """

    name: str
    n_donors: int
    paired: bool = False
    n_factors: int = 8
    effect: float = 0.0
    ages: bool = False


DESIGNS = [
    *(Design(f"{n} donors against {n}", n) for n in (3, 6, 12)),
    *(Design(f"{n} donors, each in both groups", n, paired=True) for n in (3, 6)),
    Design("3 donors against 3, 3 factors", 3, n_factors=3),
    Design("3 donors against 3, 20 factors", 3, n_factors=20),
    *(Design(f"slope on the age of {2 * n} donors", n, ages=True) for n in (3, 6)),
    Design("3 donors against 3, difference of 0.2", 3, effect=0.2),
    Design("6 donors against 6, difference of 0.2", 6, effect=0.2),
    Design("slope on the age of 12 donors, 0.2 in 60 years", 6, effect=0.2, ages=True),
]


@cache
def empty_fit(n: int, k: int) -> Fit:
    """Make a fit of so many samples, to be given loadings."""
    return fit_log1p_nmf(np.ones((max(n, k), k)), k, random_state=0, tol=1e-2, max_iter=50, n_jobs=1)


def simulate(design: Design, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw loadings, groups (or ages) and donors of cells."""
    n, k = design.n_donors, design.n_factors
    group = rng.integers(0, 61, 2 * n) / 60.0 if design.ages else np.repeat([0, 1], n)
    donor = np.tile(np.arange(n), 2) if design.paired else np.arange(2 * n)
    scatter = 0.08 * rng.gamma(4.0, 0.25, k)
    level = rng.uniform(0.2, 0.6, k) + design.effect * group[:, None]
    if design.paired:
        level = level + 0.1 * rng.standard_normal((n, k))[donor]
    means = level + scatter * rng.standard_normal((2 * n, k))
    cells = rng.poisson(CELLS, 2 * n) + 5
    loadings = np.repeat(means, cells, axis=0)
    loadings = np.maximum(loadings + 0.15 * rng.standard_normal(loadings.shape), 0.0)
    labels = (20 + 60 * group).round().astype(int) if design.ages else np.where(group == 0, "a", "b")
    return loadings, np.repeat(labels, cells), np.repeat(donor, cells)


def measure(design: Design, n_simulations: int, *, replicates: bool = True) -> dict[str, float]:
    """How often differences are called, and how often intervals hold the true one."""
    called, covered = [], []
    for seed in range(n_simulations):
        loadings, groups, donors = simulate(design, np.random.default_rng([seed, design.n_donors]))
        fit = replace(empty_fit(design.n_factors, design.n_factors), loadings=loadings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = usage(fit, groups, replicate=donors if replicates else None)
        truth = design.effect / loadings.max(axis=0) / (60.0 if design.ages else 1.0)
        called.append(found.p <= 0.05)
        covered.append((found.lower <= truth) & (truth <= found.upper))
    return {"called": float(np.mean(called)), "covered": float(np.mean(covered))}


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    print("| donors | p <= 0.05 | coverage of 95% intervals | cells as replicates: p <= 0.05 |")
    print("|---|---|---|---|")
    for design in DESIGNS:
        with_donors, without = measure(design, 1500), measure(design, 30, replicates=False)
        called, covered = with_donors["called"], with_donors["covered"]
        print(f"| {design.name} | {called:.3f} | {covered:.1%} | {without['called']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
