"""Why are tests of markers too timid or too bold where counts are overdispersed and samples are new?

python -m benchmarks.calibration_causes     # a table of docs/markers.md

The factors are fitted to half of the samples, with negative binomial noise. The tests are of the other half,
with errors of the model and loadings of four kinds: what changes from one kind to the next is its cause.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from log1pnmf import Fit, fit_log1p_nmf
from log1pnmf.analysis.markers.inference import infer, inverse_information
from log1pnmf.analysis.markers.regression import FeatureRegressions
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.new_samples import project
from log1pnmf.fitting.ranking import stand_ins
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.objective import entry_curvature
from log1pnmf.model.problem import Problem

from .calibration import FACTOR, NOISY, Case, _shares, simulate

Array = NDArray[np.float64]

CASES = [NOISY[0], NOISY[3], NOISY[7]]
N_GROUPS = 10
"""Groups of features: loadings of a group come from the other groups."""


def expected(case: Case, loadings: Array, factors: Array, sizes: Array, kind: Array) -> Array:
    """Means of the counts that `simulate` draws."""
    link = ShiftedLog(case.c)
    means = link.inverse(loadings @ factors.T)
    means[:, kind == 0] = link.inverse(factors[kind == 0, 0])
    return sizes[:, None] * means


def z_of(fit: Fit, counts: Array, loadings: Array, sizes: Array, own: int) -> Array:
    """Test all features on these loadings."""
    loadings = np.ascontiguousarray(loadings)
    problem = Problem(Counts.from_any(counts), sizes, fit.link, noise=fit.noise)
    regressions = FeatureRegressions(problem, loadings, 1)
    coefficients = regressions.solve(fit.factors / fit.link.alpha)
    return infer(regressions, coefficients, stand_ins(loadings, sizes), errors="model").z[:, own]


def of_features(fit: Fit, which: Any) -> Fit:
    """Keep some features of a fit."""
    assert fit.dispersion is not None
    return replace(
        fit,
        factors=np.ascontiguousarray(fit.factors[which]),
        dispersion=fit.dispersion[which],
        feature_names=None,
    )


def z_of_groups(fit: Fit, counts: Array, sizes: Array, own: int) -> Array:
    """Test every feature on loadings that were found without it."""
    z, group = np.empty(counts.shape[1]), np.arange(counts.shape[1]) % N_GROUPS
    for number in range(N_GROUPS):
        tested = group == number
        others = of_features(fit, ~tested)
        loadings = project(others, counts[:, ~tested], sizes, n_jobs=1)
        z[tested] = z_of(of_features(fit, tested), counts[:, tested], loadings, sizes, own)
    return z


def error_share(fit: Fit, loadings: Array, sizes: Array, own: int) -> float:
    """Share of error in what a loading has beyond the other loadings: variance over variance."""
    factors, t = fit.factors / fit.link.alpha, (fit.link.exposure_scale * sizes)[:, None]
    eta = np.maximum(loadings @ factors.T, 1e-12)
    curvature = entry_curvature(t * fit.link.em(eta), eta, t, fit.link, noise=fit.noise)
    information = np.einsum("ij,jk,jl->ikl", curvature, factors, factors, optimize=True)
    errors = inverse_information(information, loadings > 1e-9 * loadings.max(axis=0))
    inverse = np.linalg.inv((loadings * sizes[:, None]).T @ loadings)
    error = inverse @ np.einsum("i,ikl->kl", sizes, errors) @ inverse
    return float(error[own, own] / inverse[own, own])


def measured(case: Case, seed: int) -> tuple[dict[str, list[float]], float]:
    """Shares of features that are called with loadings of each kind, and the share of error."""
    counts, loadings, factors, sizes, kind = simulate(case, seed)
    half = len(counts) // 2
    start = loadings[:half], factors
    fit = fit_log1p_nmf(
        counts[:half], 3, c=case.c, noise="nb", init=start, size_factors=sizes[:half], n_jobs=1
    )
    own = int(match_factors(loadings[:half], fit.loadings).order()[FACTOR])
    new, its_sizes = counts[half:], sizes[half:]
    means = expected(case, loadings[half:], factors, its_sizes, kind)
    truth = replace(fit, factors=factors, dispersion=np.full(case.n_features, case.overdispersion))
    seen = project(fit, new, its_sizes, n_jobs=1)
    found = {
        "true": z_of(truth, new, loadings[half:], its_sizes, FACTOR),
        "of expected counts": z_of(fit, new, project(fit, means, its_sizes, n_jobs=1), its_sizes, own),
        "of the counts": z_of(fit, new, seen, its_sizes, own),
        "of the counts of other features": z_of_groups(fit, new, its_sizes, own),
    }
    called = {name: _shares(student.sf(z, half - 3), kind) for name, z in found.items()}
    return called, error_share(fit, seen, its_sizes, own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| simulated | error of a loading | loadings | constant features, p <= 0.05 "
        "| of the other factor, p <= 0.05 | false among adjusted p <= 0.05 | found |\n|" + "---|" * 7
    )
    for case in CASES:
        runs = [measured(case, seed) for seed in range(options.seeds)]
        share = np.mean([one for _, one in runs])
        for name in runs[0][0]:
            row = np.mean([called[name] for called, _ in runs], axis=0)
            told = f"{row[0]:.3f} | {row[2]:.3f} | {row[4]:.1%} | {row[3]:.0%}"
            print(f"| {case.name} | {share:.0%} | {name} | {told} |", flush=True)


if __name__ == "__main__":
    main()
