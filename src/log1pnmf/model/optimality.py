"""How far a point is from an optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.arrays import column_sums, like

from .constraint import FREE, Bounds, Constraint

__all__ = ["kkt_residual", "larger_residual", "side_residual"]

Array = NDArray[np.float64]


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

    Parameters
    ----------
    gradient_loadings, gradient_factors : ndarray of shape (n, K) and (m, K)
        Of the negative log-likelihood, penalty excluded, on the same scale as the factors.
    total : float
        Sum of all counts.
    """
    by_loadings = side_residual(loadings, gradient_loadings, constraint.loadings)
    by_factors = side_residual(factors, gradient_factors, constraint.factors)
    return larger_residual(by_loadings, by_factors, total)


def larger_residual(by_loadings: Any, by_factors: Any, total: float) -> float:
    """Give `kkt_residual`, if those of both sides are known."""
    return max(float(by_loadings), float(by_factors)) / (total if total > 0 else 1.0)


def side_residual(values: Array, gradient: Array, bounds: Bounds) -> Any:
    """Give the part of one side of `kkt_residual`, not divided by the total, where the arrays live."""
    lower, upper, penalty = (like(values, one) for one in (bounds.lower, bounds.upper, bounds.penalty))
    gradient = gradient + penalty
    projected = gradient - gradient.clip(min=0.0) * (values <= lower)
    if np.isfinite(bounds.upper).any():
        projected = projected - projected.clip(max=0.0) * (values >= upper)
    return column_sums(abs(projected)) @ (column_sums(values) / values.shape[0])
