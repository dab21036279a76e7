"""What an approximate fit is worth: its exact log-likelihood, computed or estimated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf.counts.counts import Counts
from log1pnmf.engines.registry import make_engine
from log1pnmf.model.chunked import problem_of
from log1pnmf.model.zeros import Quadratic, quadratic

from .fit import Fit
from .fitting import LARGEST_CERTIFIED

__all__ = ["Certificate", "certify"]

Array = NDArray[np.float64]

SAMPLED_ENTRIES = 2e7
"""Entries visited in about, where there are more than `LARGEST_CERTIFIED`."""

LEAST_ROWS = 30
"""Rows that are sampled at least, so that there is a standard error."""

BLOCK_ENTRIES = 1 << 20


@dataclass(frozen=True)
class Certificate:
    """Exact log-likelihood of a fit, and what the approximation cost.

    Parameters
    ----------
    log_likelihood : float
        Full Poisson log-likelihood without approximation: exact, or an unbiased estimate.
    standard_error : float
        Of `log_likelihood`; 0 where it is exact.
    approximate_log_likelihood : float or None
        What the fit has maximised; None for a fit that was exact throughout.
    n_sampled : int
        Rows that were visited.
    n_samples : int
        Rows of the data.
    """

    log_likelihood: float
    standard_error: float
    approximate_log_likelihood: float | None
    n_sampled: int
    n_samples: int

    @property
    def is_exact(self) -> bool:
        """Whether every row was visited."""
        return self.n_sampled == self.n_samples

    @property
    def gap(self) -> float:
        """Approximate minus exact log-likelihood; 0 for an exact fit."""
        approximate = self.approximate_log_likelihood
        return 0.0 if approximate is None else approximate - self.log_likelihood

    def __str__(self) -> str:
        value = f"{self.log_likelihood:,.1f}"
        if self.is_exact:
            text = f"exact log-likelihood {value}"
        else:
            text = (
                f"log-likelihood {value} +- {self.standard_error:,.1f} (estimated from "
                f"{self.n_sampled:,} of {self.n_samples:,} samples)"
            )
        if self.approximate_log_likelihood is None:
            return f"{text}; the fit was exact, there is no gap"
        share = abs(self.gap / self.log_likelihood) if self.log_likelihood else 0.0
        return f"{text}; the approximation is off by {self.gap:,.1f} ({share:.2g} of it)"


def certify(
    fit: Fit, counts: Counts, *, engine: str = "auto", n_jobs: int | None = None, seed: int = 0
) -> Certificate:
    """Compute the exact log-likelihood of a fit, or estimate it where it has too many entries.

    Parameters
    ----------
    fit : Fit
    counts : Counts
        What it was fitted to.
    engine : str
        See `log1pnmf.engines.registry.make_engine`.
    n_jobs : int, optional
        Threads.
    seed : int
        Which rows are sampled.

    Returns
    -------
    Certificate

    Notes
    -----
    Above 2e8 entries only some rows, drawn without replacement, are visited. They estimate the difference
    between the exact and the approximate log-likelihood, which is known in full: unbiased, and far more
    precise than scaling up the exact log-likelihood of the sample.
    """
    approximate = fit.approximate_log_likelihood
    if fit.log_likelihood is not None:
        return Certificate(fit.log_likelihood, 0.0, approximate, counts.n_samples, counts.n_samples)
    assert approximate is not None  # an exact fit knows its log-likelihood
    if math.prod(counts.shape) <= LARGEST_CERTIFIED:
        problem = problem_of(counts, fit.size_factors, fit.link)
        exact = -make_engine(engine, problem, n_jobs).loss(fit.loadings, fit.factors / fit.link.alpha)
        return Certificate(exact, 0.0, approximate, counts.n_samples, counts.n_samples)
    zeros = quadratic(fit.link, fit.settings["approximation"], fit.settings["interval"])
    n = counts.n_samples
    n_sampled = min(n, max(LEAST_ROWS, math.ceil(SAMPLED_ENTRIES / counts.n_features)))
    in_memory, pool = counts.part_in_memory()
    n_sampled = min(n_sampled, len(pool))
    place = np.sort(np.random.default_rng(seed).choice(len(pool), size=n_sampled, replace=False))
    excess = _excess(fit, in_memory.to_scipy()[place], pool[place], zeros)
    spread = float(excess.std(ddof=1)) * math.sqrt((1.0 - n_sampled / n) / n_sampled)
    return Certificate(
        log_likelihood=approximate - n * float(excess.mean()),
        standard_error=n * spread,
        approximate_log_likelihood=approximate,
        n_sampled=n_sampled,
        n_samples=n,
    )


def _excess(fit: Fit, matrix: sparse.csr_array, rows: NDArray[np.intp], zeros: Quadratic) -> Array:
    """Approximate minus exact log-likelihood of the rows that the matrix holds: only zero counts differ."""
    factors = fit.factors / fit.link.alpha
    exposure = fit.link.exposure_scale * fit.size_factors
    size = max(1, BLOCK_ENTRIES // matrix.shape[1])
    parts = []
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        eta = fit.loadings[block] @ factors.T
        error = np.expm1(eta) - (zeros.a0m1 + eta * (zeros.a1 + zeros.a2 * eta))
        error[matrix[start : start + size].nonzero()] = 0.0
        parts.append(exposure[block] * error.sum(axis=1))
    return np.concatenate(parts)
