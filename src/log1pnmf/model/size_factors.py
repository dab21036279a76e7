"""Size factors that are fitted with the model: the most likely ones, pulled towards the samples' totals.

A total is a poor size where a programme raises it: the sample then looks deeper than it is. With a finite c
the counts say how deep it is, though not very loudly: loadings can make up for most of a wrong size. So the
size factors have a prior around the totals, a gamma law with a fixed shape, `WEIGHT`. Loadings move along
with the sizes: in turns with them sizes would hardly move.

Sizes scaled by a number are a c divided by it. So their sum stays what it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.sparse_rows import dense_blocks

from .constraint import NON_NEGATIVE, Bounds
from .negative_binomial import NegativeBinomial
from .objective import BLOCK_BYTES
from .problem import Problem

__all__ = ["WEIGHT", "Resized", "resized"]

Array = NDArray[np.float64]

WEIGHT = 20.0
"""Of the prior: sizes within a factor of about 1.25 of the totals, unless the counts say otherwise. Without
any, size factors follow the noise of their sample. A weight that is found from the sizes themselves runs
away: they move slowly, so the totals seem right, the weight grows, and holds them there."""
LONGEST = 0.5
"""How far the logarithm of a size may go in one step."""
LEAST_KEPT = 0.1
"""Part of a loading that a step leaves of it at least: exact zeros come from the half-steps."""
LEAST_BEND = 0.01
"""Part of the curvature in a size that is believed to remain when loadings make up for it."""
SHORTER, MOST_STEPS = (1.0, 0.3), 100


@dataclass(frozen=True, eq=False)
class Resized:
    """Size factors, the loadings that go with them, and how much lower the objective is."""

    size_factors: Array
    loadings: Array
    gain: float


@dataclass(frozen=True, eq=False)
class _Step:
    """Newton's step of every sample in its size's logarithm and its loadings, and the objective there.

    ``-(slope + price * size) / bend`` is the step of the logarithm at a price of size; that of the loadings
    is ``still + along * that``.
    """

    value: Array
    slope: Array
    bend: Array
    still: Array
    along: Array


def resized(
    problem: Problem, loadings: Array, factors: Array, *, bounds: Bounds = NON_NEGATIVE, free: bool = False
) -> Resized:
    """Improve size factors and loadings together, by a step that does not raise the objective.

    Parameters
    ----------
    problem : Problem
        With a `size_prior`. Its zeros do not matter: all are visited.
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the eta scale.
    bounds : Bounds
        Of the loadings.
    free : bool
        Whether the sum of the sizes may change, as for new samples, which do not decide about the scale.
    """
    prior, before = problem.size_prior, problem.size_factors
    assert prior is not None
    counted = problem.counts.row_sums > 0
    step = _newton(problem, loadings, factors, bounds)
    bend = np.where(counted, step.bend, np.inf)
    slope = np.where(counted, step.slope, 0.0)
    price = 0.0 if free else -float(np.sum(before * slope / bend) / np.sum(before**2 / bend))
    by = np.clip(-(slope + price * before) / bend, -LONGEST, LONGEST)
    for part in SHORTER:
        sizes = _scaled(before * np.exp(part * by), before, counted, free)
        moved = loadings + part * (step.still + step.along * by[:, None])
        moved = bounds.clip(np.maximum(moved, LEAST_KEPT * loadings))
        value = _values(replace(problem, size_factors=sizes, zeros=None), moved, factors, bounds)
        worse = ~(value + price * sizes <= step.value + price * before)
        moved[worse] = loadings[worse]
        sizes = _scaled(np.where(worse, before, sizes), before, counted, free)
        after = _values(replace(problem, size_factors=sizes, zeros=None), moved, factors, bounds)
        gain = float(np.sum(step.value - after))
        if gain > 0.0:
            return Resized(sizes, moved, gain)
    return Resized(before, loadings, 0.0)


def _scaled(sizes: Array, before: Array, counted: Any, free: bool) -> Array:
    """Bring the sum back to what it was; samples without counts keep theirs."""
    if free or not counted.any():
        return sizes
    by = before[counted].sum() / sizes[counted].sum()
    return np.where(counted, by * sizes, before)


def _dispersion(problem: Problem) -> Array | float:
    return problem.noise.dispersion if isinstance(problem.noise, NegativeBinomial) else 0.0


def _blocks(problem: Problem) -> Any:
    return dense_blocks(problem.counts.shape, BLOCK_BYTES / (8 * 10))


def _exposure(problem: Problem, rows: slice) -> Array:
    exposure = problem.link.exposure_scale * problem.size_factors[rows, None]
    return exposure if problem.batches is None else exposure * problem.batches.rows(rows)


def _values(problem: Problem, loadings: Array, factors: Array, bounds: Bounds) -> Array:
    """Objective of every sample but for a constant."""
    assert problem.size_prior is not None
    penalties = bounds.table("penalty", loadings.shape[1]) * loadings
    values = problem.size_prior.costs(problem.size_factors) + penalties.sum(axis=1)
    for rows in _blocks(problem):
        y, em = problem.counts.by_row.to_dense(rows), problem.link.em(loadings[rows] @ factors.T)
        values[rows] += problem.noise.loss(y, _exposure(problem, rows) * em).sum(axis=1)
    return values


def _newton(problem: Problem, loadings: Array, factors: Array, bounds: Bounds) -> _Step:
    """Find Newton's step, in blocks of samples."""
    parts = [_newton_of(problem, rows, loadings[rows], factors, bounds) for rows in _blocks(problem)]
    names = ("value", "slope", "bend", "still", "along")
    return _Step(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _newton_of(problem: Problem, rows: slice, loadings: Array, factors: Array, bounds: Bounds) -> _Step:
    prior, sizes, K = problem.size_prior, problem.size_factors[rows], loadings.shape[1]
    assert prior is not None
    y, eta, t = problem.counts.by_row.to_dense(rows), loadings @ factors.T, _exposure(problem, rows)
    at, mean, phi = problem.link.derivatives(eta), t * problem.link.em(eta), _dispersion(problem)
    ratio = 1.0 + phi * mean
    share = (1.0 + phi * y) / ratio**2
    lower, upper, penalty = bounds.of_rows(rows).tables(K)
    gradient = problem.noise.gradient(y, t, at) @ factors + penalty
    products = (factors[:, :, None] * factors[:, None, :]).reshape(len(factors), K * K)
    bends = (problem.noise.curvature(y, t, at) @ products).reshape(-1, K, K)
    across = (t * at.slope * share) @ factors
    held = ((loadings <= lower) & (gradient >= 0.0)) | ((loadings >= upper) & (gradient <= 0.0))
    bends[held[:, :, None] | held[:, None, :]] = 0.0
    scale = np.einsum("ikk->ik", bends).max(axis=1, initial=0.0)
    ridge = np.where(held, 1.0, 1e-8 * np.where(scale > 0.0, scale, 1.0)[:, None])
    bends[:, np.arange(K), np.arange(K)] += ridge
    sides = np.stack([np.where(held, 0.0, gradient), np.where(held, 0.0, across)], axis=2)
    solved = np.linalg.solve(bends, sides)
    still, along = -solved[:, :, 0], -solved[:, :, 1]
    r = sizes / prior.centre[rows]
    whole = np.sum(mean * share, axis=1)
    informed = np.maximum(whole + np.einsum("ik,ik->i", across, along), LEAST_BEND * whole)
    slope = np.sum((mean - y) / ratio, axis=1) + prior.weight * (r - 1.0)
    value = problem.noise.loss(y, mean).sum(axis=1) + prior.of(rows).costs(sizes)
    value += (penalty * loadings).sum(axis=1)
    return _Step(
        value=value,
        slope=slope + np.einsum("ik,ik->i", across, still),
        bend=informed + prior.weight * r,
        still=still,
        along=along,
    )
