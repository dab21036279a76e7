"""Where a fit starts of whose factors something is known: free factors as usual, known ones beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.randomness import Random
from log1pnmf.engines.base import Engine
from log1pnmf.fitting.solver.alternate import alternate
from log1pnmf.fitting.solver.iteration import Pair
from log1pnmf.model.constraint import Constraint
from log1pnmf.model.noise import POISSON
from log1pnmf.model.problem import Problem
from log1pnmf.model.structure import Structure
from log1pnmf.model.zeros import quadratic

__all__ = ["beside_known", "settled", "within"]

Array = NDArray[np.float64]

BESIDE = 0.1
"""Part of the mean signal that a known factor has at first, beside free ones."""
SETTLING = 5
"""Iterations with Poisson noise before others."""
FARTHEST = 5.0
"""Times that the loading of a set may be above or below that of a mean sample at first."""
OUTSIDE = 1e-3
"""Part of that which features outside of a mask have at first, where they may have any."""


def beside_known(
    problem: Problem, known: Structure, free: Pair | None, constraint: Constraint, rng: Random
) -> Pair:
    """Put known factors before the start of the free ones.

    What is not known of a factor begins with the mean profile of the features, or with the same loadings for
    all samples, at a small part of the signal. Samples begin with more of a set of which they have more
    counts: with the same for all, a set beside a baseline could fall to zero, and would stay there.

    Parameters
    ----------
    free : Pair or None
        Start of the free factors; None where there are none.
    constraint : Constraint
        Of all factors.
    """
    n, alpha = problem.counts.n_samples, problem.link.alpha
    rates = problem.counts.by_column.row_sums() / problem.size_factors.sum()
    profile = (problem.link.link(rates) / alpha)[:, None]
    part = BESIDE if free is not None else 1.0 / known.n_known
    given = np.where(np.isnan(known.loadings), 1.0, known.loadings)
    size = np.maximum(given.mean(axis=0), np.finfo(np.float64).tiny)
    level = part * profile.mean() * alpha / known.factors.mean(axis=0)
    spread = rng.uniform(0.8, 1.2, size=(n, known.mask.shape[1]))
    loadings = [given, np.tile(level, (n, 1)), np.sqrt(part) * spread * _shares(problem, known.mask, rates)]
    factors = [
        part * profile / size,
        known.factors / alpha,
        np.sqrt(part) * profile * np.where(known.mask, 1.0, OUTSIDE),
    ]
    if free is not None:
        loadings.append(free.loadings)
        factors.append(free.factors)
    return within(constraint, Pair(np.hstack(loadings), np.hstack(factors)))


def _shares(problem: Problem, mask: NDArray[np.bool_], rates: Array) -> Array:
    """Divide the counts of each set in every sample by those of a mean sample of its size; samples x sets."""
    expected = np.outer(problem.size_factors, rates @ mask)
    seen = np.asarray(problem.counts.on_host().by_row.to_scipy() @ mask.astype(np.float64))
    ratio = np.divide(seen, expected, out=np.ones_like(expected), where=expected > 0.0)
    return ratio.clip(1.0 / FARTHEST, FARTHEST)


def settled(make: Callable[[Problem], Engine], problem: Problem, pair: Pair, constraint: Constraint) -> Pair:
    """Go some iterations with Poisson noise: with another, steps from a crude start may go too far.

    Parameters
    ----------
    make : callable
        Makes an engine for counts in memory.
    """
    zeros = None if problem.link.is_identity else quadratic(problem.link, "chebyshev", None)
    engine, reached = make(replace(problem, noise=POISSON, zeros=zeros)), pair
    for iteration in alternate(engine, pair.loadings, pair.factors, constraint=constraint, max_iter=SETTLING):
        here = iteration.on_host()
        reached = Pair(here.loadings, here.factors)
    return reached


def within(constraint: Constraint, pair: Pair) -> Pair:
    """Move a start to the bounds; what is known is then as it is known."""
    return Pair(constraint.loadings.clip(pair.loadings), constraint.factors.clip(pair.factors))
