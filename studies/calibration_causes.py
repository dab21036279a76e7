"""What moves the level of tests of markers where counts are overdispersed and loadings are estimated?

python -m studies.calibration_causes     # why these rates move

The factors are fitted to half of the samples, with negative binomial noise. The tests are of the other half,
with errors of the model and loadings of several kinds: what changes from one kind to the next is its cause.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student
from tests.analysis.simulated_markers import FACTOR, Case, shares, simulate

from log1pnmf import Fit, fit_log1p_nmf
from log1pnmf.analysis.marker_tests import EstimatedLoadings, estimate_loadings, infer, regress
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.new_samples import project
from log1pnmf.fitting.ranking import stand_ins
from log1pnmf.model.problem import Problem

from .calibration import NOISY

Array = NDArray[np.float64]

CASES = [NOISY[0], NOISY[3], NOISY[7]]


def z_of(fit: Fit, counts: Array, sizes: Array, loadings: EstimatedLoadings, own: int) -> Array:
    """Test all features on these loadings."""
    problem = Problem(Counts.from_any(counts), sizes, fit.link, noise=fit.noise)
    around = stand_ins(loadings.values, sizes, loadings.excess(sizes))
    bounded = np.ascontiguousarray(loadings.bounded)
    coefficients = regress(problem, bounded, fit.factors / fit.link.alpha, 1)
    return infer(problem, loadings, coefficients, around, errors="model").z[:, own]


def estimates(fit: Fit, counts: Array, sizes: Array) -> EstimatedLoadings:
    """Loadings of new samples, with errors."""
    problem = Problem(Counts.from_any(counts), sizes, fit.link, noise=fit.noise)
    found = np.ascontiguousarray(project(fit, counts, sizes, prior=0.0, n_jobs=1).loadings)
    return estimate_loadings(fit, problem, found, errors="model", own=True)


def measured(case: Case, seed: int) -> dict[str, list[float]]:
    """Shares of features that are called with loadings of each kind."""
    counts, loadings, factors, sizes, kind = simulate(case, seed)
    half = len(counts) // 2
    start = loadings[:half], factors
    fit = fit_log1p_nmf(
        counts[:half], 3, c=case.c, noise="nb", init=start, size_factors=sizes[:half], n_jobs=1
    )
    own = int(match_factors(loadings[:half], fit.loadings).order()[FACTOR])
    new, its_sizes, phi = counts[half:], sizes[half:], np.full(case.n_features, case.overdispersion)
    truth = replace(fit, loadings=loadings[:half], factors=factors, dispersion=phi)
    known = EstimatedLoadings.known(loadings[half:], case.n_features)
    seen, best = estimates(fit, new, its_sizes), estimates(truth, new, its_sizes)
    bounded = EstimatedLoadings.known(seen.bounded, case.n_features)
    without = replace(seen, covariance=np.zeros_like(seen.covariance))
    found = {
        "true": z_of(truth, new, its_sizes, known, FACTOR),
        "of the counts, taken as known": z_of(fit, new, its_sizes, bounded, own),
        "without the tested feature, taken as known": z_of(fit, new, its_sizes, without, own),
        "without the tested feature, with errors": z_of(fit, new, its_sizes, seen, own),
        "the same, true dispersions": z_of(replace(fit, dispersion=phi), new, its_sizes, seen, own),
        "the same, true factors and dispersions": z_of(truth, new, its_sizes, best, FACTOR),
    }
    return {name: shares(student.sf(z, half - 3), kind) for name, z in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| simulated | loadings | constant features, p <= 0.05 | of the other factor, p <= 0.05 "
        "| false among adjusted p <= 0.05 | found |\n|" + "---|" * 6
    )
    for case in CASES:
        runs = [measured(case, seed) for seed in range(options.seeds)]
        for name in runs[0]:
            row = np.mean([called[name] for called in runs], axis=0)
            told = f"{row[0]:.3f} | {row[2]:.3f} | {row[4]:.1%} | {row[3]:.0%}"
            print(f"| {case.name} | {name} | {told} |", flush=True)


if __name__ == "__main__":
    main()
