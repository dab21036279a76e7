"""Is a converged fit converged? Random settings on ugly small tables, each fit continued with ``tol=1e-12``.

``python -m studies.ugly --seeds 0 120`` lists the fits that did not converge, and those whose objective
fell by more than a millionth when they were continued. Noise is Poisson: a continued fit with dispersions
finds another prior for them, so that its objective cannot be compared.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from log1pnmf import Fit, fit_log1p_nmf
from log1pnmf.counts import Counts
from log1pnmf.fitting.settings import constraint_of
from log1pnmf.model.objective import negative_log_likelihood
from log1pnmf.model.problem import SizePrior
from log1pnmf.model.size_factors import WEIGHT

KINDS = ("rows", "columns", "constant", "huge", "plain", "both")
LISTED, SHORT = 1e-6, 1e-5


def case(seed: int, engine: str) -> tuple[str, np.ndarray, int, dict[str, Any]]:
    """Return the kind of a table, the table, the number of factors and the settings."""
    rng = np.random.default_rng(seed)
    n, m = rng.integers(5, 40, 2)
    kind, rank = str(rng.choice(KINDS)), rng.integers(1, 4)
    rates = rng.gamma(0.5, 1.0, (n, rank)) @ rng.gamma(0.5, 2.0, (rank, m))
    if kind in ("rows", "both"):
        rates = rates * 10.0 ** rng.uniform(-2.0, 3.0, (n, 1))
    if kind in ("columns", "both"):
        rates = rates * 10.0 ** rng.uniform(-2.0, 3.0, (1, m))
    counts = rng.poisson(rates).astype(float)
    if kind == "constant":
        counts[:] = rng.integers(1, 9)
    if kind == "huge":
        counts[rng.integers(n), rng.integers(m)] = 10.0 ** rng.integers(3, 6)
    counts[0, 0] += not counts.any()
    sizes = ["total", "none"] if engine == "streaming" else ["total", "none", "fit"]
    settings: dict[str, Any] = {
        "c": float(rng.choice([0.01, 0.1, 1.0, 10.0, np.inf])),
        "l1": float(rng.choice([0.0, 0.0, 1.0, 10.0])),
        "size_factors": str(rng.choice(sizes)),
        "likelihood": str(rng.choice(["auto", "exact", "chebyshev", "adaptive"])),
        "engine": engine,
    }
    if rng.random() < 0.35:
        settings["batch"] = rng.integers(0, 3, n).astype(str)
    return kind, counts, int(min(rng.integers(1, 5), n, m)), settings


def objective(fit: Fit, counts: np.ndarray) -> float:
    """Return the objective by the NumPy model; exact unless the fit is approximate."""
    table, settings = Counts.from_any(counts), fit.settings
    problem = fit.problem(table, settings.zeros if settings.likelihood == "chebyshev" else None)
    if settings.fits_sizes:
        centre = np.full(len(counts), table.size_factors("total").mean())
        problem = replace(problem, size_prior=SizePrior(centre, WEIGHT))
    factors = fit.factors / fit.link.alpha
    loss = negative_log_likelihood(problem, fit.loadings, factors)
    bounds = constraint_of(settings)
    return loss + problem.cost + bounds.loadings.cost(fit.loadings) + bounds.factors.cost(factors)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.ugly", description=__doc__)
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 120))
    parser.add_argument("--engine", default="native")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    n_short, n_open = 0, 0
    for seed in range(*arguments.seeds):
        kind, counts, k, settings = case(seed, arguments.engine)
        about = f"{seed} {kind} {counts.shape} K={k} " + " ".join(
            f"{name}={value}" for name, value in settings.items() if name not in ("batch", "engine")
        )
        about += " batches" if "batch" in settings else ""
        fit = fit_log1p_nmf(counts, k, **settings)
        if not fit.converged:
            n_open += 1
            print(f"{about}: {fit.stopped}, KKT residual {fit.kkt_residual:.0e}", flush=True)
            continue
        more = fit_log1p_nmf(counts, k, **{**settings, "init": fit, "tol": 1e-12, "max_iter": 3000})
        before, after = objective(fit, counts), objective(more, counts)
        gain = (before - after) / abs(before)
        n_short += gain > SHORT
        if gain > LISTED:
            print(f"{about}: {fit.n_iter} iterations, {more.n_iter} more gain {gain:.1e}", flush=True)
    n = arguments.seeds[1] - arguments.seeds[0]
    print(f"of {n} fits {n_short} converged more than {SHORT:g} short, {n_open} did not converge")


if __name__ == "__main__":
    main()
