"""Do intervals from the standard errors of loadings hold the true loadings?

    python -m benchmarks.loading_errors      # the table of docs/usage.md; seconds

Simulated are samples under known factors: some loadings are zero. Intervals are loading plus and minus 1.96
errors, and for those at zero up to 1.96 errors.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import numpy as np

from log1pnmf import Fit, Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis.loading_errors import loading_errors
from log1pnmf.model.link import ShiftedLog

KINDS = ("sandwich", "model")


def coverage(
    c: float, *, n_features: int = 400, overdispersion: float = 0.0, noise: str = "poisson", seed: int = 0
) -> dict[str, tuple[float, float]]:
    """How often intervals hold the truth, of loadings that are not zero and of those that are.

    With negative binomial noise the dispersion is the true one.
    """
    rng, link, n, k = np.random.default_rng(seed), ShiftedLog(c), 1500, 4
    loadings = rng.uniform(0.2, 1.0, (n, k)) * (rng.random((n, k)) < 0.6)
    loadings[:k] = np.eye(k)
    rates = np.exp(rng.normal(0.0, 0.8, (n_features, k))) * (rng.random((n_features, k)) < 0.4)
    factors = link.link(rates + 0.02)
    means = link.inverse(loadings @ factors.T)
    if overdispersion:
        means = means * rng.gamma(1.0 / overdispersion, overdispersion, means.shape)
    counts = rng.poisson(means)
    known = {"noise": noise, "dispersion": np.full(n_features, overdispersion)} if noise == "nb" else {}
    start = fit_log1p_nmf(
        counts[:50], k, c=c, size_factors=np.ones(50), tol=1e-2, max_iter=20, n_jobs=1, **known
    )
    model = Log1pNMF.of(_with(start, loadings[:50], factors))
    found = model.transform(counts, size_factors="none")
    result = {}
    for errors in KINDS:
        error = loading_errors(model, counts, found, size_factors="none", errors=errors)
        held = np.abs(found - loadings) <= 1.96 * error
        result[errors] = (float(held[loadings > 0].mean()), float(held[loadings == 0].mean()))
    return result


def _with(fit: Fit, loadings: np.ndarray, factors: np.ndarray) -> Fit:
    settings = replace(fit.settings, likelihood="exact", normalize="none")
    return replace(fit, loadings=loadings, factors=factors, settings=settings)


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    print(
        "| counts | `noise` | errors | loadings above zero | loadings that are zero |\n|---|---|---|---|---|"
    )
    for c in (0.1, 1.0, math.inf):
        for overdispersion, noise in ((0.0, "poisson"), (0.5, "poisson"), (0.5, "nb")):
            for errors, (above, zero) in coverage(c, overdispersion=overdispersion, noise=noise).items():
                kind = "overdispersed" if overdispersion else "Poisson"
                print(f"| c = {c:g}, {kind} | {noise} | {errors} | {above:.1%} | {zero:.1%} |", flush=True)


if __name__ == "__main__":
    main()
