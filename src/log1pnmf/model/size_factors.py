"""Size factors that are fitted with the model: the most likely ones, with a weak prior around their mean.

A total is a poor size factor where a factor raises it: the sample then seems deeper than it is. With a finite
c samples that mix factors determine their depth. Samples of one factor alone do not: their size factors may
all be twice as large if the factor's rates are half as large. There the prior decides, a gamma distribution
around the same mean for all samples: **depth does not depend on the factor**. Totals as size factors assume
that all factors have the same total, which is why they can be wrong.

Loadings move along with the sizes: in turns with them sizes would hardly move. For the same reason the sizes
of all samples of a factor move along with its rates, see `levelled`.

Sizes scaled by a number are a c divided by it. So their sum stays what it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.compress import dense_blocks

from .noise import NegativeBinomial
from .objective import BLOCK_BYTES, entry_curvature, entry_gradient, exposure_of
from .problem import FREE, NON_NEGATIVE, Bounds, Constraint, Problem
from .zeros import AdaptiveZeros, Zeros

Array = NDArray[np.float64]

WEIGHT = 4.0
"""Of the prior: sizes within about 1.6 times each other, unless the counts disagree."""
LONGEST = 0.5  # how far the logarithm of a size may go in one step
LEAST_KEPT = 0.1  # part of a loading that a step leaves of it at least: exact zeros come from the half-steps
NEARLY = 0.02
"""Part of the largest loading of a sample: smaller ones that would fall are as good as zero, and stay. They
would end a step after a fraction of it, and the others would move as if it had been whole."""
LEAST_BEND = 0.01  # part of the curvature in a size that is believed to remain when loadings make up for it
SHORTER, WHOLE = (1.0, 0.3, 0.05), (1.0, 0.3, 0.1, 0.03, 0.01)
"""Parts of a step that are tried for each sample, and then for all of them together."""
LEVELS = (0.5, 0.1)  # parts of the way on which totals of factors are made alike
LEVEL, FARTHEST = 0.01, 5.0  # logarithms of levels that are as good as 0, and how far they are believed
LARGE = 30.0  # from here on ``expm1(x)`` is ``exp(x)``
LEVEL_STEPS = 30


@dataclass(frozen=True, eq=False)
class SizeUpdate:
    """Size factors, loadings and factors that go with them, and how much lower the objective is."""

    size_factors: Array
    loadings: Array
    factors: Array
    gain: float


class _Step(NamedTuple):
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
) -> SizeUpdate:
    """Improve size factors and loadings together, by a step that does not raise the objective."""
    prior, before = problem.size_prior, problem.size_factors
    assert prior is not None
    counted = problem.counts.row_sums > 0
    step = _newton(problem, loadings, factors, bounds)
    bend = np.where(counted, step.bend, np.inf)
    slope = np.where(counted, step.slope, 0.0)
    price = 0.0 if free else -float(np.sum(before * slope / bend) / np.sum(before**2 / bend))
    by = np.clip(-(slope + price * before) / bend, -LONGEST, LONGEST)

    def moved(part: Array, by: Array) -> Array:
        further = loadings + part[:, None] * step.still + step.along * by[:, None]
        return bounds.clip(np.maximum(further, LEAST_KEPT * loadings))

    def values(sizes: Array, at: Array) -> Array:
        return _values(replace(problem, size_factors=sizes), at, factors, bounds)

    parts = np.zeros(len(before))
    for part in SHORTER:  # backtrack sample by sample
        longer, tried = before * np.exp(part * by), np.where(parts > 0.0, parts, part)
        value = values(longer, moved(tried, part * by))
        good = counted & (parts == 0.0) & (value + price * longer <= step.value + price * before)
        parts[good] = part
        if parts[counted].all():
            break
    for whole in WHOLE:  # loadings follow where sizes are scaled back to their sum
        sizes = _scaled(before * np.exp(whole * parts * by), before, counted, free)
        at = moved(whole * parts, np.log(sizes / before))
        gain = float(np.sum(step.value - values(sizes, at)))
        if gain > 0.0:
            return SizeUpdate(sizes, at, factors, gain)
    return SizeUpdate(before, loadings, factors, 0.0)


def update_size_factors(
    problem: Problem, loadings: Array, factors: Array, constraint: Constraint = FREE
) -> SizeUpdate:
    """Move the sizes of all samples of a factor along with its rates, and then as `resized` does.

    Samples that have one factor alone fit as well with half the sizes and twice the rates. So the prior
    alone decides how far to go. Mixed samples do not fit as well, so the step is a part of that.
    """
    bounds, before = constraint.loadings, problem.size_factors
    found = resized(problem, loadings, factors, bounds=bounds)
    shares = loadings * factors.mean(axis=0)
    total = shares.sum(axis=1, keepdims=True)
    shares = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0.0)
    levels = _levels(problem, shares)
    if np.abs(levels).max() < LEVEL:
        return found
    pure = shares**4
    typical = (pure * loadings).sum(axis=0) / np.maximum(pure.sum(axis=0), np.finfo(np.float64).tiny)
    here = _values(problem, loadings, factors, bounds).sum() + constraint.factors.cost(factors)
    counted = problem.counts.row_sums > 0
    for part in LEVELS:
        sizes = _scaled(before * np.exp(-part * (shares @ levels)), before, counted, False)
        raised = constraint.factors.clip(_raised(factors, typical, part * levels, problem))
        there = replace(problem, size_factors=sizes)
        lost = _values(there, loadings, raised, bounds).sum() + constraint.factors.cost(raised) - here
        new = resized(there, loadings, raised, bounds=bounds)
        if new.gain - lost > found.gain:
            return replace(new, gain=float(new.gain - lost))
    return found


def _levels(problem: Problem, shares: Array) -> Array:
    """Return by how much log sizes of each factor have to fall for the least cost of the prior."""
    prior, by = problem.size_prior, np.zeros(shares.shape[1])
    assert prior is not None
    ratio = problem.size_factors / prior.centre
    tiny = 1e-6 * len(ratio) * np.eye(len(by))
    for _ in range(LEVEL_STEPS):
        now = ratio * np.exp(-np.clip(shares @ by, -FARTHEST, FARTHEST))
        slope, bend = shares.T @ (1.0 - now), (shares * now[:, None]).T @ shares + tiny
        by = np.clip(by - np.clip(np.linalg.solve(bend, slope), -1.0, 1.0), -FARTHEST, FARTHEST)
    return by


def _raised(factors: Array, typical: Array, by: Array, problem: Problem) -> Array:
    """Multiply the rates of samples that have one factor alone, with a typical loading."""
    if problem.link.is_identity:
        return factors * np.exp(by)
    eta = typical * factors
    raised = np.log1p(np.expm1(np.minimum(eta, LARGE)) * np.exp(by))
    raised = np.where(eta > LARGE, np.maximum(eta + by, 0.0), raised)
    return np.where(typical > 0.0, raised / np.where(typical > 0.0, typical, 1.0), factors)


def _scaled(sizes: Array, before: Array, counted: Any, free: bool) -> Array:
    """Bring the sum back to what it was; samples without counts keep theirs."""
    if free or not counted.any():
        return sizes
    by = before[counted].sum() / sizes[counted].sum()
    return np.where(counted, by * sizes, before)


def _values(problem: Problem, loadings: Array, factors: Array, bounds: Bounds) -> Array:
    """Objective of every sample but for a constant."""
    assert problem.size_prior is not None
    penalties = bounds.tables(loadings.shape[1])[2] * loadings
    values = problem.size_prior.costs(problem.size_factors) + penalties.sum(axis=1)
    for rows in dense_blocks(problem.counts.shape, BLOCK_BYTES / 80):
        y, t = problem.counts.by_row.to_dense(rows), exposure_of(problem, rows)
        eta = loadings[rows] @ factors.T
        losses = problem.noise.loss(y, t * problem.link.em(eta))
        if problem.zeros is not None:
            losses = _with_zeros(problem.zeros, rows, y, eta, t, losses)[0]
        values[rows] += losses.sum(axis=1)
    return values


def _with_zeros(zeros: Zeros, rows: slice, y: Array, eta: Array, t: Array, *exact: Array) -> list[Array]:
    """Put in what replaces zeros: loss, its two derivatives in log(t), and that of its slope in eta."""
    stand_in, constant = zeros.of_samples(rows), zeros.constant
    by_t = zeros.by_exposure[:, 0] if isinstance(zeros, AdaptiveZeros) else 0.0
    squares = t**2 * (by_t + stand_in.b2 * eta**2)
    loss = stand_in.loss(eta, t) + t * (constant + t * by_t)
    across = stand_in.gradient(eta, t) + 2.0 * t**2 * stand_in.b2 * eta
    own = (loss, loss + squares, np.maximum(loss + 3.0 * squares, 0.0), across)
    return [np.where(stand_in.in_place(y), one, other) for one, other in zip(own, exact, strict=False)]


def _newton(problem: Problem, loadings: Array, factors: Array, bounds: Bounds) -> _Step:
    """Find Newton's step, in blocks of samples."""
    blocks = dense_blocks(problem.counts.shape, BLOCK_BYTES / 80)
    parts = [_newton_of(problem, rows, loadings[rows], factors, bounds) for rows in blocks]
    return _Step(*map(np.concatenate, zip(*parts, strict=True)))


def _newton_of(problem: Problem, rows: slice, loadings: Array, factors: Array, bounds: Bounds) -> _Step:
    prior, sizes, K = problem.size_prior, problem.size_factors[rows], loadings.shape[1]
    assert prior is not None
    y, eta, t = problem.counts.by_row.to_dense(rows), loadings @ factors.T, exposure_of(problem, rows)
    at, mean = problem.link.derivatives(eta), t * problem.link.em(eta)
    phi = problem.noise.dispersion if isinstance(problem.noise, NegativeBinomial) else 0.0
    ratio = 1.0 + phi * mean
    share = (1.0 + phi * y) / ratio**2
    lower, upper, penalty = bounds.of_rows(rows).tables(K)
    zeros = None if problem.zeros is None else problem.zeros.of_samples(rows)
    form: Any = (problem.link, zeros)
    gradient = entry_gradient(y, eta, t, *form, noise=problem.noise) @ factors + penalty
    products = (factors[:, :, None] * factors[:, None, :]).reshape(len(factors), K * K)
    bends = (entry_curvature(y, eta, t, *form, noise=problem.noise) @ products).reshape(-1, K, K)
    of_size = [problem.noise.loss(y, mean), (mean - y) / ratio, mean * share, t * at.slope * share]
    if problem.zeros is not None:
        of_size = _with_zeros(problem.zeros, rows, y, eta, t, *of_size)
    losses, slopes, whole = (one.sum(axis=1) for one in of_size[:3])
    across = of_size[3] @ factors
    small = lower + NEARLY * loadings.max(axis=1, keepdims=True)
    held = ((loadings <= small) & (gradient >= 0.0)) | ((loadings >= upper) & (gradient <= 0.0))
    bends[held[:, :, None] | held[:, None, :]] = 0.0
    scale = np.einsum("ikk->ik", bends).max(axis=1, initial=0.0)
    ridge = np.where(held, 1.0, 1e-8 * np.where(scale > 0.0, scale, 1.0)[:, None])
    bends[:, np.arange(K), np.arange(K)] += ridge
    sides = np.stack([np.where(held, 0.0, gradient), np.where(held, 0.0, across)], axis=2)
    solved = np.linalg.solve(bends, sides)
    still, along = -solved[:, :, 0], -solved[:, :, 1]
    r = sizes / prior.centre[rows]
    informed = np.maximum(whole + np.einsum("ik,ik->i", across, along), LEAST_BEND * whole)
    slope = slopes + prior.weight * (r - 1.0) + np.einsum("ik,ik->i", across, still)
    value = losses + prior.of(rows).costs(sizes) + (penalty * loadings).sum(axis=1)
    return _Step(value, slope, informed + prior.weight * r, still, along)
