"""Where a streamed fit starts: some rows are fitted in memory, then one pass finds the loadings of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.randomness import Random
from log1pnmf.engines.base import Engine, Sample
from log1pnmf.fitting.solver.iteration import Pair
from log1pnmf.model.constraint import Bounds, Constraint
from log1pnmf.model.structure import Structure

from .known import constraint_of
from .parameters import renewal_of
from .runs import best_run
from .settings import Settings
from .starts import Start, Taken

__all__ = ["given_start", "sampled_start", "spread"]

Array = NDArray[np.float64]

SAMPLE_TOL = 1e-6
SAMPLE_ITERATIONS = 100
LIFTED = 1e-3
"""Of a feature's mean: what its entries are given at least, where the sample has no count for them."""


def sampled_start(
    engine: Engine,
    sample: Sample,
    settings: Settings,
    rng: Random,
    *,
    start: Start,
    known: Structure | None = None,
) -> Taken:
    """Fit the rows that were kept in memory, and find the loadings of all rows for their factors.

    Parameters
    ----------
    engine : Engine
        Of all rows.
    sample : Sample
        Rows that are in memory, ``engine.sample()``.
    start : Start
        Of these rows.
    known : Structure, optional
        What is known of some factors, for all rows.
    """
    part = replace(
        settings,
        likelihood=engine.problem.likelihood,
        n_init=1,
        tol=SAMPLE_TOL,
        max_iter=SAMPLE_ITERATIONS,
        extrapolate=True,
    )

    renewal = renewal_of(
        part, sample.remake, sample.problem.counts, batched=sample.problem.batches is not None
    )
    here = None if known is None else known.of_samples(sample.rows)
    run = best_run(part, sample.remake, sample.problem, rng, start=start, renewal=renewal, known=here)
    pair = Pair(run.last.loadings, run.last.factors)
    return Taken(spread(engine, sample.settle, pair, constraint_of(settings, known)), run.start)


def spread(
    engine: Engine, settle: Callable[[Array, Array, Bounds], Any], pair: Pair, constraint: Constraint
) -> Pair:
    """Find the loadings of all rows for the factors of some; features not seen in these get their mean.

    Parameters
    ----------
    engine : Engine
        Of all rows.
    settle : callable
        See `log1pnmf.engines.base.Sample`.
    pair : Pair
        Of some rows.
    """
    loadings, factors = pair.loadings, pair.factors
    if constraint.scale_is_free:
        loadings, factors = _balanced(loadings, factors)
    factors = constraint.factors.clip(_lifted(engine, loadings.mean(axis=0), factors))
    typical = np.maximum(loadings.mean(axis=0), 1e-3 * loadings.mean())
    return Pair(settle(constraint.loadings.clip(typical), factors, constraint.loadings), factors)


def given_start(engine: Engine, loadings: Array, factors: Array) -> Pair:
    """Make a checked start usable: samples and features with counts have something to begin with.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the eta scale.
    """
    counts = engine.problem.counts
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


def _lifted(engine: Engine, typical: Array, factors: Array) -> Array:
    """Replace zeros where other samples may have counts: features not seen in the sample get its mean."""
    problem, counts = engine.problem, engine.problem.counts
    rates = counts.by_column.row_sums() / problem.size_factors.sum()
    level = (
        problem.link.link(rates) / problem.link.alpha / max(float(typical.sum()), np.finfo(np.float64).tiny)
    )
    seen = factors.any(axis=1)
    least = np.where(seen, LIFTED, 1.0) * level
    return np.maximum(factors, least[:, None])
