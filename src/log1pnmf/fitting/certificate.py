"""The exact log-likelihood of an approximate fit, computed or estimated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf.counts.counts import Counts
from log1pnmf.counts.sparse_rows import dense_blocks
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.facts import Certificate
from log1pnmf.model.zeros import Quadratic, quadratic

from .fit import Fit
from .settings import LARGEST_EXACT as LARGEST_CERTIFIED

__all__ = ["LARGEST_CERTIFIED", "certify", "exact_log_likelihood"]

Array = NDArray[np.float64]

SAMPLED_ENTRIES = 2e7
"""Entries visited in about, where there are more than `LARGEST_CERTIFIED`."""

LEAST_ROWS = 30
"""Rows that are sampled at least, so that there is a standard error."""

BLOCK_ENTRIES = 1 << 20


def certify(
    fit: Fit,
    counts: Counts,
    *,
    n_sampled: int | None = None,
    seed: int = 0,
    engine: Any = "auto",
    n_jobs: int | None = None,
) -> Certificate:
    """Compute the exact log-likelihood of a fit, or estimate it where it has too many entries.

    Parameters
    ----------
    counts : Counts
        What it was fitted to.
    n_sampled : int, optional
        Samples of an approximate fit to visit. By default all up to 2e8 entries, and above so many that have
        about 2e7. Of other fits all are visited.
    seed : int
        Which samples these are.
    engine : str
        See `log1pnmf.engines.registry.make_engine`.
    n_jobs : int, optional
        Number of threads.

    Notes
    -----
    Some samples, drawn without replacement, estimate the difference between the exact and the approximate
    log-likelihood, which is known in full: unbiased, and far more precise than scaling up their own exact
    log-likelihood.
    """
    if fit.certificate is not None:
        return fit.certificate
    fit.check_whole("a certificate")
    approximate, n = fit.approximate_log_likelihood, counts.n_samples
    if n_sampled is None:
        large = math.prod(counts.shape) > LARGEST_CERTIFIED
        n_sampled = max(LEAST_ROWS, math.ceil(SAMPLED_ENTRIES / counts.n_features)) if large else n
    if approximate is None or n_sampled >= n or fit.settings.likelihood != "approximate":
        return exact_log_likelihood(fit, counts, engine=engine, n_jobs=n_jobs)
    zeros = quadratic(fit.link, fit.settings.approximation, fit.settings.interval)
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


def exact_log_likelihood(
    fit: Fit, counts: Counts, *, engine: Any = "auto", n_jobs: int | None = None
) -> Certificate:
    """Visit all entries once, with whatever engine suits."""
    problem, n = fit.problem(counts), counts.n_samples
    exact = -make_engine(engine, problem, n_jobs).loss(fit.loadings, fit.factors / fit.link.alpha)
    return Certificate(exact, 0.0, fit.approximate_log_likelihood, n, n)


def _excess(fit: Fit, matrix: sparse.csr_array, rows: NDArray[np.intp], zeros: Quadratic) -> Array:
    """Approximate minus exact log-likelihood of the rows that the matrix holds: only zero counts differ."""
    factors = fit.factors / fit.link.alpha
    excess = np.empty(len(rows))
    for block in dense_blocks(matrix.shape, BLOCK_ENTRIES):
        eta = fit.loadings[rows[block]] @ factors.T
        error = np.expm1(eta) - zeros.value(eta)
        error[matrix[block].nonzero()] = 0.0
        excess[block] = fit.link.exposure_scale * (fit.exposure(rows[block]) * error).sum(axis=1)
    return excess
