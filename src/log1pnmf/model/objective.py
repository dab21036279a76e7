"""The objective in plain NumPy; every engine is tested against it.

Everything named *entry* works on the eta scale. The link gives ``em``, and the mean of a count is ``t * em``;
the noise gives the loss of a count with that mean. The loss leaves out what no factor changes; the constant
puts it back, so that the sum of losses + constant is the full negative log-likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from log1pnmf.counts.compress import SparseRows, dense_blocks
from log1pnmf.counts.counts import Counts

from .noise import POISSON, Noise, ShiftedLog
from .problem import FREE, Constraint, Problem
from .zeros import AdaptiveZeros, EntryZeros, Quadratic

# ---------- the objective in plain NumPy; every engine is tested against it

Array = NDArray[np.float64]

Form: TypeAlias = Quadratic | EntryZeros | None
"""What replaces the loss of zeros; None computes it exactly."""

LARGE_TOTAL = 1e10
"""Sum of all counts from which the rounding errors of a sum of means would show beside the loss."""

BLOCK_BYTES = 64e6
"""Dense intermediate arrays of one block of rows stay below this, unless a single row is larger."""


# ---------------------------------------------------------------- one entry


def entry_loss(
    y: ArrayLike,
    eta: ArrayLike,
    t: ArrayLike,
    link: ShiftedLog,
    zeros: Form = None,
    *,
    noise: Noise = POISSON,
) -> Array:
    """Loss of every entry at ``t * em``; with `zeros`, ``t * (a1*eta + a2*eta**2)`` where ``y = 0``."""
    y, eta, t = _float(y), _float(eta), _float(t)
    with np.errstate(over="ignore"):
        loss = noise.loss(y, t * link.em(eta))
    if zeros is None:
        return loss
    own = zeros if isinstance(zeros, EntryZeros) else EntryZeros(zeros.a1, zeros.a2)
    return np.where(own.in_place(y), own.loss(eta, t), loss)


def entry_gradient(
    y: ArrayLike,
    eta: ArrayLike,
    t: ArrayLike,
    link: ShiftedLog,
    zeros: Form = None,
    *,
    noise: Noise = POISSON,
) -> Array:
    """Differentiate `entry_loss` in eta; parameters as there. Always finite, see `ShiftedLog.derivatives`."""
    y, eta, t = _float(y), _float(eta), _float(t)
    gradient = noise.gradient(y, t, link.derivatives(eta))
    if zeros is None:
        return gradient
    own = zeros if isinstance(zeros, EntryZeros) else EntryZeros(zeros.a1, zeros.a2)
    return np.where(own.in_place(y), own.gradient(eta, t), gradient)


def entry_curvature(
    y: ArrayLike,
    eta: ArrayLike,
    t: ArrayLike,
    link: ShiftedLog,
    zeros: Form = None,
    *,
    noise: Noise = POISSON,
) -> Array:
    """Curvature of `entry_loss` for steps, see `Noise.curvature`; parameters as there. Always finite."""
    y, eta, t = _float(y), _float(eta), _float(t)
    curvature = noise.curvature(y, t, link.derivatives(eta))
    if zeros is None:
        return curvature
    own = zeros if isinstance(zeros, EntryZeros) else EntryZeros(zeros.a1, zeros.a2)
    return np.where(own.in_place(y), own.curvature(t), curvature)


def _float(x: ArrayLike) -> Array:
    return np.asarray(x, dtype=np.float64)


# ---------------------------------------------------------------- the whole matrix


def log_likelihood(
    counts: Counts,
    loadings: Array,
    factors: Array,
    link: ShiftedLog,
    size_factors: Array,
    *,
    zeros: Quadratic | None = None,
) -> float:
    """Full Poisson log-likelihood; exact, or with `zeros` in place of ``expm1(eta)`` at zero counts."""
    problem = Problem(counts, size_factors, link, zeros)
    return -negative_log_likelihood(problem, loadings, factors / link.alpha)


def negative_log_likelihood(problem: Problem, loadings: Array, factors: Array) -> float:
    """Objective of `problem` on the eta scale, constants included, penalty excluded.

    Sums over all entries, by rank-K algebra where zeros are approximate, corrected at the non-zeros.
    """
    link, zeros = problem.link, problem.zeros
    if link.is_identity and problem.counts.total > LARGE_TOTAL:
        zeros = None
    if isinstance(zeros, AdaptiveZeros):
        return _dense_loss(problem, loadings, factors) + problem.constant
    if zeros is None:
        loss = _loss_of_zeros(problem, loadings, factors)
    else:
        loss = _quadratic_loss(problem, zeros, loadings, factors)
    for j, y, eta, t in _nonzeros(problem, loadings, factors):
        own = entry_loss(y, eta, t, link, noise=problem.noise.of_features(j))
        loss += float(np.sum(own if zeros is None else own - t * eta * (zeros.a1 + zeros.a2 * eta)))
    return loss + problem.constant


def _quadratic_loss(problem: Problem, zeros: Quadratic, loadings: Array, factors: Array) -> float:
    """Sum ``t (a1 eta + a2 eta^2)`` over all entries, by rank-K algebra."""
    exposure, batches, loss = problem.exposure, problem.batches, 0.0
    if batches is None:
        linear = (exposure @ loadings) @ factors.sum(axis=0)
        square = np.sum((loadings.T @ (exposure[:, None] * loadings)) * (factors.T @ factors))
        return float(zeros.a1 * linear + zeros.a2 * square)
    for b, weights in enumerate(batches.effects):
        own = np.where(batches.labels == b, exposure, 0.0)
        linear = (own @ loadings) @ (weights @ factors)
        square = np.sum((loadings.T @ (own[:, None] * loadings)) * ((weights * factors.T) @ factors))
        loss += float(zeros.a1 * linear + zeros.a2 * square)
    return loss


def exposure_of(problem: Problem, samples: slice) -> Array:
    """Exposure of the entries of some samples: samples x 1, or x features with batches."""
    own = problem.exposure[samples, None]
    return own if problem.batches is None else own * problem.batches.rows(samples)


def gradients(problem: Problem, loadings: Array, factors: Array) -> tuple[Array, Array]:
    """Gradient of `negative_log_likelihood` in the loadings and in the factors, on the eta scale."""
    rows, how = problem.counts.by_row, {"noise": problem.noise}
    gradient_loadings, gradient_factors = np.zeros_like(loadings), np.zeros_like(factors)
    for block in _row_blocks(rows, arrays=8):
        y, t = rows.to_dense(block), exposure_of(problem, block)
        zeros = None if problem.zeros is None else problem.zeros.of_samples(block)
        slope = entry_gradient(y, loadings[block] @ factors.T, t, problem.link, zeros, **how)
        gradient_loadings[block] = slope @ factors
        gradient_factors += slope.T @ loadings[block]
    return gradient_loadings, gradient_factors


def _dense_loss(problem: Problem, loadings: Array, factors: Array) -> float:
    """Sum of the losses of all entries, one by one."""
    total, rows = 0.0, problem.counts.by_row
    for block in _row_blocks(rows, arrays=8):
        zeros = None if problem.zeros is None else problem.zeros.of_samples(block)
        eta, t = loadings[block] @ factors.T, exposure_of(problem, block)
        own = entry_loss(rows.to_dense(block), eta, t, problem.link, zeros, noise=problem.noise)
        total += float(own.sum())
    return total


def _loss_of_zeros(problem: Problem, loadings: Array, factors: Array) -> float:
    """Sum of the losses of all entries that are zero."""
    total, rows, none = 0.0, problem.counts.by_row, np.zeros(())
    with np.errstate(over="ignore"):
        for block in _row_blocks(rows, arrays=8):
            means = problem.size_factors[block, None] * problem.link.mean(loadings[block] @ factors.T)
            if problem.batches is not None:
                means = means * problem.batches.rows(block)
            losses = problem.noise.loss(none, means)
            losses[rows.to_scipy(block.start, block.stop).nonzero()] = 0.0
            total += float(losses.sum())
    return total


def _row_blocks(rows: SparseRows, arrays: int) -> Iterator[slice]:
    """Slices of rows for which `arrays` dense arrays fit in `BLOCK_BYTES`."""
    return dense_blocks(rows.shape, BLOCK_BYTES / (8 * arrays))


def _nonzeros(
    problem: Problem, loadings: Array, factors: Array
) -> Iterator[tuple[NDArray[np.int32], Array, Array, Array]]:
    """Feature, count, eta and exposure of the non-zero entries, in blocks."""
    rows, batches, exposure = problem.counts.by_row, problem.batches, problem.exposure
    size = max(1, int(BLOCK_BYTES / (8 * (3 * loadings.shape[1] + 8))))
    for i, entries in rows.entry_blocks(size):
        j = rows.indices[entries]
        eta = np.einsum("ek,ek->e", loadings[i], factors[j])
        t = exposure[i] if batches is None else exposure[i] * batches.effects[batches.labels[i], j]
        yield j, rows.values[entries].astype(np.float64), eta, t


# ---------- how far a point is from an optimum


def kkt_residual(
    loadings: Array,
    factors: Array,
    gradient_loadings: Array,
    gradient_factors: Array,
    total: float,
    *,
    constraint: Constraint = FREE,
) -> float:
    """Distance from a stationary point, invariant to scale: 0 at an optimum.

    Minimised are the loss and the penalties within the bounds of `constraint`. The projected gradient ``pg``
    of an entry ``b`` with derivative ``g`` (penalty included) is ``min(g, 0)`` at its lower bound,
    ``max(g, 0)`` at its upper bound and ``g`` between. Each side has the residual

        ``sum_ik |pg_ik| * mean_i(b_ik) / total``

    and the larger one is returned. Weighing a column's gradient by the column's mean makes this invariant to
    ``(L_k * a, F_k / a)`` as long as neither penalty nor bound fixes the scale, and dividing by the total
    makes it independent of the amount of data. A column that is zero throughout does not count.
    """
    by_loadings = constraint.loadings.residual(loadings, gradient_loadings)
    by_factors = constraint.factors.residual(factors, gradient_factors)
    return max(float(by_loadings), float(by_factors)) / (total if total > 0 else 1.0)
