"""Where a streamed fit starts: some rows are fitted in memory, then one pass finds the loadings of all."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.rows import Rows
from log1pnmf.engines.native import NativeEngine
from log1pnmf.engines.streaming.engine import StreamingEngine
from log1pnmf.fitting.solver.alternate import alternate
from log1pnmf.fitting.solver.extrapolate import Extrapolation
from log1pnmf.fitting.solver.iteration import Pair
from log1pnmf.fitting.solver.stopping import Stopping
from log1pnmf.model.problem import Problem

from .starts import Random, initialize

__all__ = ["given_start", "sampled_start"]

Array = NDArray[np.float64]

SAMPLE_TOL = 1e-6
SAMPLE_ITERATIONS = 100
LIFTED = 1e-3
"""Of a feature's mean: what its entries are given at least, where the sample has no count for them."""


def sampled_start(
    engine: StreamingEngine,
    n_components: int,
    init: str,
    rng: Random,
    *,
    penalty: Array,
    upper: float = math.inf,
) -> Pair:
    """Fit the rows that were kept in memory, and find the loadings of all rows for their factors.

    Parameters
    ----------
    engine : StreamingEngine
    n_components : int
    init : {"rank1", "random", "nndsvd"}
        Start of the fit to the sample; see `log1pnmf.fitting.starts.initialize`.
    rng : Generator or RandomState
    penalty : ndarray of shape (K,)
    upper : float
        Penalty on the factors and bound of the loadings, as in `log1pnmf.fitting.solver.alternate.alternate`.

    Returns
    -------
    Pair
        On the eta scale.
    """
    problem, counts = engine.problem, engine.problem.chunked
    sample = Problem(counts.sample, problem.size_factors[counts.sample_index], problem.link, problem.zeros)
    native = NativeEngine(sample, engine.n_threads)
    loadings, factors = initialize(native, n_components, init, rng)
    stopping = Stopping(SAMPLE_TOL)
    iterations = alternate(
        native,
        loadings,
        factors,
        penalty=penalty,
        upper=upper,
        extrapolation=Extrapolation(),
        max_iter=SAMPLE_ITERATIONS,
    )
    for iteration in iterations:
        loadings, factors = iteration.loadings, iteration.factors
        if stopping(iteration):
            break
    if not math.isfinite(upper):
        loadings, factors = _balanced(loadings, factors)
    factors = _lifted(engine, loadings.mean(axis=0), factors)
    typical = np.maximum(loadings.mean(axis=0), 1e-3 * loadings.mean())
    everywhere = _constant_rows(engine, np.minimum(typical, upper))
    return Pair(engine.settle(everywhere, factors, upper=upper), factors)  # type: ignore[arg-type]


def given_start(engine: StreamingEngine, loadings: Array, factors: Array) -> Pair:
    """Make a checked start usable: samples and features with counts have something to begin with.

    Parameters
    ----------
    engine : StreamingEngine
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the eta scale.
    """
    counts = engine.problem.chunked
    values = []
    for side, rows in ((loadings, counts.by_row), (factors, counts.by_column)):
        counted = np.diff(rows.indptr) > 0
        mean = float(side.mean()) if side.any() else 1.0
        lifted = np.where(~side.any(axis=1, keepdims=True), LIFTED * mean, side)
        values.append(np.where(counted[:, None], lifted, 0.0))
    return Pair(values[0], values[1])


def _balanced(loadings: Array, factors: Array) -> tuple[Array, Array]:
    """Give both sides of every column the same mean, so that the solver has nothing to rescale."""
    of_loadings, of_factors = loadings.mean(axis=0), factors.mean(axis=0)
    used = (of_loadings > 0.0) & (of_factors > 0.0)
    by = np.where(used, np.sqrt(np.where(used, of_loadings, 1.0) / np.where(used, of_factors, 1.0)), 1.0)
    return loadings / by, factors * by


def _lifted(engine: StreamingEngine, typical: Array, factors: Array) -> Array:
    """Leave no zeros where other samples may have counts; what the sample has not seen gets its mean."""
    problem, counts = engine.problem, engine.problem.chunked
    rates = counts.column_sums / problem.size_factors.sum()
    level = (
        problem.link.link(rates) / problem.link.alpha / max(float(typical.sum()), np.finfo(np.float64).tiny)
    )
    seen = factors.any(axis=1)
    least = np.where(seen, LIFTED, 1.0) * level
    return np.maximum(factors, least[:, None])


def _constant_rows(engine: StreamingEngine, row: Array) -> Rows:
    counts = engine.problem.chunked
    return Rows(
        (counts.n_samples, len(row)),
        lambda start, stop: np.tile(row, (stop - start, 1)),
        counts.source.folder,
    )
