"""Do intervals from the standard errors of loadings hold the true loadings?

    python -m studies.loading_errors      # the table of docs/results/tests.md; seconds

Simulated are samples of known factors: some loadings are zero. Intervals are loading plus and minus 1.96
errors, and for those at zero up to 1.96 errors. The last column is for factors that were fitted to the same
samples, which the errors do not allow for.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import numpy as np

from log1pnmf import Fit, Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis.diagnostics import loading_errors
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.model.noise import ShiftedLog

KINDS = ("sandwich", "model")


def simulate(
    c: float, *, n_features: int = 400, overdispersion: float = 0.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw counts, and their loadings (the largest are 1) and factors."""
    rng, link, n, k = np.random.default_rng(seed), ShiftedLog(c), 1500, 4
    loadings = rng.uniform(0.2, 1.0, (n, k)) * (rng.random((n, k)) < 0.6)
    loadings[:k] = np.eye(k)
    rates = np.exp(rng.normal(0.0, 0.8, (n_features, k))) * (rng.random((n_features, k)) < 0.4)
    factors = link.link(rates + 0.02)
    means = link.inverse(loadings @ factors.T)
    if overdispersion:
        means = means * rng.gamma(1.0 / overdispersion, overdispersion, means.shape)
    return rng.poisson(means), loadings, factors


def coverage(
    c: float, *, n_features: int = 400, overdispersion: float = 0.0, noise: str = "poisson", seed: int = 0
) -> dict[str, tuple[float, float]]:
    """How often intervals hold the truth, of loadings that are not zero and of those that are.

    With negative binomial noise the dispersion is the true one.
    """
    drawn = {"n_features": n_features, "overdispersion": overdispersion, "seed": seed}
    counts, loadings, factors = simulate(c, **drawn)
    known = {"noise": noise, "dispersion": np.full(n_features, overdispersion)} if noise == "nb" else {}
    start = fit_log1p_nmf(
        counts[:50], 4, c=c, size_factors=np.ones(50), tol=1e-2, max_iter=20, n_jobs=1, **known
    )
    model = Log1pNMF.of(_with(start, loadings[:50], factors))
    found = model.transform(counts, size_factors="none")
    result = {}
    for errors in KINDS:
        error = loading_errors(model, counts, found, size_factors="none", errors=errors)
        held = np.abs(found - loadings) <= 1.96 * error
        result[errors] = (float(held[loadings > 0].mean()), float(held[loadings == 0].mean()))
    return result


def coverage_of_fits(c: float, *, overdispersion: float = 0.0, noise: str = "poisson") -> dict[str, float]:
    """The same of loadings above zero where the factors are fitted, too, and matched with the true ones."""
    counts, loadings, _ = simulate(c, overdispersion=overdispersion)
    fit = fit_log1p_nmf(counts, 4, c=c, noise=noise, size_factors="none", n_jobs=1)
    own = match_factors(loadings, fit.loadings).pairs[:, 1]
    held = {
        errors: np.abs(fit.loadings - loadings[:, np.argsort(own)])
        <= 1.96 * loading_errors(fit, counts, errors=errors)
        for errors in KINDS
    }
    return {errors: float(one[:, own][loadings > 0].mean()) for errors, one in held.items()}


def _with(fit: Fit, loadings: np.ndarray, factors: np.ndarray) -> Fit:
    settings = replace(fit.settings, likelihood="exact")
    return replace(fit, loadings=loadings, factors=factors, settings=settings, scale="none")


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    print(
        "| counts | `noise` | errors | given the factors: loadings above zero | loadings that are zero "
        "| factors fitted: loadings above zero |\n" + "|---" * 6 + "|"
    )
    for c in (0.1, 1.0, math.inf):
        for overdispersion, noise in ((0.0, "poisson"), (0.5, "poisson"), (0.5, "nb")):
            fitted = coverage_of_fits(c, overdispersion=overdispersion, noise=noise)
            for errors, (above, zero) in coverage(c, overdispersion=overdispersion, noise=noise).items():
                kind = "overdispersed" if overdispersion else "Poisson"
                shares = f"{above:.1%} | {zero:.1%} | {fitted[errors]:.1%}"
                print(f"| c = {c:g}, {kind} | {noise} | {errors} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
