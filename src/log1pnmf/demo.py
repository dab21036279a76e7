"""Fit the bundled data at c = 1 and c = inf and print what was found: ``python -m log1pnmf.demo``."""

from __future__ import annotations

import math
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from . import datasets
from .datasets import Dataset
from .fitting import fit_log1p_nmf
from .result import Fit
from .summary import top_features

N_COMPONENTS = 9
N_TOP = 6
MAX_ITER = 150


def main() -> None:
    """Run the demo."""
    data = datasets.pancreas()
    n, m = data.counts.shape
    types = np.unique(data.sample_labels)
    print(f"Pancreas: {n:,} cells of {len(types)} types, {m:,} genes, {data.counts.nnz:,} non-zeros")
    for c, likelihood in ((1.0, "refined"), (math.inf, "exact")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the summary says it
            fit = fit_log1p_nmf(
                data.counts,
                N_COMPONENTS,
                c=c,
                likelihood=likelihood,
                init="nndsvd",
                tol=1e-6,
                max_iter=MAX_ITER,
                random_state=0,
            )
        print(f"\n{summary(fit)}\n")
        print(table(fit, data))
    print("\nserves: cell types whose mean loading is at least half of the factor's highest")
    print("top genes: those whose share of the factor is largest compared with their share of all factors")


def summary(fit: Fit) -> str:
    """One line on how the fit went, one on what came out."""
    link = "parts add up" if fit.link.is_identity else "shifted log"
    state = "converged" if fit.converged else "not converged"
    return (
        f"c = {fit.c:g} ({link}), K = {fit.n_components}: "
        f"{fit.seconds:.1f} s, {fit.n_iter} iterations, {state}, KKT residual {fit.kkt_residual:.0e}\n"
        f"log-likelihood {fit.log_likelihood:,.0f}; exact zeros: {zeros(fit.factors)} of the factors, "
        f"{zeros(fit.loadings)} of the loadings"
    )


def zeros(values: np.ndarray) -> str:
    """Share of zeros as a percentage."""
    return f"{np.mean(values == 0.0):.0%}"


def table(fit: Fit, data: Dataset) -> str:
    """One line per factor: how many and which cell types it serves, and its top genes."""
    lines = [f"{'factor':>6}  {'serves':>6}  {'most in':<20}top genes"]
    for k in range(fit.n_components):
        served = served_types(fit.loadings[:, k], data.sample_labels)
        genes = ", ".join(data.feature_names[top_features(fit.factors.T, k, N_TOP)])
        lines.append(f"{k + 1:>6}  {len(served):>6}  {served[0]:<20}{genes}")
    return "\n".join(lines)


def served_types(loading: np.ndarray, labels: np.ndarray) -> list[str]:
    """Labels whose mean loading is at least half the highest, highest first."""
    types = np.unique(labels)
    means = np.array([loading[labels == one].mean() for one in types])
    order = np.argsort(-means)
    return [str(types[i]) for i in order if means[i] >= 0.5 * means[order[0]]]


if __name__ == "__main__":
    main()
