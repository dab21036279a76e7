"""The objective in plain NumPy; every engine is tested against it.

Everything named *entry* works on the eta scale. The link gives ``em``, and the mean of a count is ``t * em``;
the noise gives the loss of a count with that mean. The loss leaves out what no factor changes; the constant
puts it back, so that the sum of losses + constant is the full negative log-likelihood.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.compress import dense_blocks

from .noise import POISSON, Noise, ShiftedLog
from .problem import FREE, Constraint, Problem
from .zeros import EntryZeros, Quadratic

Array = NDArray[np.float64]

Form: TypeAlias = Quadratic | EntryZeros | None  # what replaces the loss of zeros; None computes it exactly

BLOCK_BYTES = 64e6
"""Dense intermediate arrays of one block of rows stay below this, unless a single row is larger."""


# ---------------------------------------------------------------- one entry


def entry_loss(
    y: Array, eta: Array, t: Array, link: ShiftedLog, zeros: Form = None, *, noise: Noise = POISSON
) -> Array:
    """Loss of every entry at ``t * em``; with `zeros`, ``t * (a1*eta + a2*eta**2)`` where ``y = 0``."""
    y, eta, t, own = _entries(y, eta, t, zeros)
    with np.errstate(over="ignore"):
        loss = noise.loss(y, t * link.em(eta))
    return loss if own is None else np.where(own.in_place(y), own.loss(eta, t), loss)


def entry_gradient(
    y: Array, eta: Array, t: Array, link: ShiftedLog, zeros: Form = None, *, noise: Noise = POISSON
) -> Array:
    """Differentiate `entry_loss` in eta; parameters as there. Always finite, see `ShiftedLog.derivatives`."""
    y, eta, t, own = _entries(y, eta, t, zeros)
    gradient = noise.gradient(y, t, link.derivatives(eta))
    return gradient if own is None else np.where(own.in_place(y), own.gradient(eta, t), gradient)


def entry_curvature(
    y: Array, eta: Array, t: Array, link: ShiftedLog, zeros: Form = None, *, noise: Noise = POISSON
) -> Array:
    """Curvature of `entry_loss` for steps, see `Noise.curvature`; parameters as there. Always finite."""
    y, eta, t, own = _entries(y, eta, t, zeros)
    curvature = noise.curvature(y, t, link.derivatives(eta))
    return curvature if own is None else np.where(own.in_place(y), own.curvature(eta, t), curvature)


def _entries(y: Array, eta: Array, t: Array, zeros: Form) -> tuple[Array, Array, Array, EntryZeros | None]:
    """Return the arguments of these functions as arrays, and what replaces zeros of every entry."""
    own = EntryZeros(zeros.a1, zeros.a2) if isinstance(zeros, Quadratic) else zeros
    arrays = [np.asarray(one, dtype=np.float64) for one in (y, eta, t)]
    return arrays[0], arrays[1], arrays[2], own


# ---------------------------------------------------------------- the whole matrix


def negative_log_likelihood(problem: Problem, loadings: Array, factors: Array) -> float:
    """Objective of `problem` on the eta scale, entry by entry; constants included, penalty excluded."""
    total, rows = problem.constant, problem.counts.by_row
    for block in dense_blocks(rows.shape, BLOCK_BYTES / 64):
        zeros = None if problem.zeros is None else problem.zeros.of_samples(block)
        eta, t = loadings[block] @ factors.T, exposure_of(problem, block)
        own = entry_loss(rows.to_dense(block), eta, t, problem.link, zeros, noise=problem.noise)
        total += float(own.sum())
    return total


def exposure_of(problem: Problem, samples: slice) -> Array:
    """Exposure of the entries of some samples: samples x 1, or x features with batches."""
    own = problem.exposure[samples, None]
    return own if problem.batches is None else own * problem.batches.rows(samples)


def gradients(problem: Problem, loadings: Array, factors: Array) -> tuple[Array, Array]:
    """Gradient of `negative_log_likelihood` in the loadings and in the factors, on the eta scale."""
    rows = problem.counts.by_row
    gradient_loadings, gradient_factors = np.zeros_like(loadings), np.zeros_like(factors)
    for block in dense_blocks(rows.shape, BLOCK_BYTES / 64):
        y, t = rows.to_dense(block), exposure_of(problem, block)
        zeros = None if problem.zeros is None else problem.zeros.of_samples(block)
        slope = entry_gradient(y, loadings[block] @ factors.T, t, problem.link, zeros, noise=problem.noise)
        gradient_loadings[block] = slope @ factors
        gradient_factors += slope.T @ loadings[block]
    return gradient_loadings, gradient_factors


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
