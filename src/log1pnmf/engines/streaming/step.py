"""The factors' Newton step from sums over all samples, without another pass over the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from log1pnmf.engines.base import HalfStep
from log1pnmf.engines.native import solve_rows
from log1pnmf.model.constraint import NON_NEGATIVE, Bounds

from .work import FactorSums

__all__ = ["damped_step"]

Array = NDArray[np.float64]

LEAST_KEPT = 0.1
"""Fraction of an entry that one step keeps at least: it may be the only one that explains some count."""

VANISHED = 1e-6
"""An entry whose expected counts, summed over samples, are below this may become zero: it explains no count.
The threshold is multiplied by the feature's mean non-zero count where that is below 1."""

SMALL_CHANGE = 0.25
"""Root mean square of the relative changes of the means up to which a full step is taken."""


def damped_step(
    sums: FactorSums,
    start: Array,
    *,
    linear: Array,
    totals: Array,
    nnz: NDArray[np.int64],
    bounds: Bounds = NON_NEGATIVE,
    n_threads: int | None = None,
) -> HalfStep:
    """Take one damped Newton step of the factors; its length depends on the quadratic model alone.

    The curvature of a step, ``d'Hd``, is about the sum over a feature's counts of the squared relative change
    of their means. Divided by the feature's total count it is the mean squared change. Where that is not
    small, the quadratic model is not accurate and the step is shortened, as in the damped Newton method. The
    loss may still rise: the caller has to check.

    Parameters
    ----------
    sums : FactorSums
        At `start`.
    linear : ndarray of shape (K,) or (m, K)
        Sum of the loadings, weighed by exposure.
    totals : ndarray of shape (m,)
        Total count of every feature, less where counts weigh less in the curvature.
    nnz : ndarray of shape (m,)
        Number of samples in which the feature is not zero.

    Returns
    -------
    HalfStep
        Its loss has no constants.
    """
    typical = np.minimum(1.0, totals / np.maximum(nnz, 1))
    lower, upper, penalty = bounds.tables(start.shape[1])
    gone = (start * linear <= VANISHED * typical[:, None]) | (lower == upper)
    floor = np.where(gone, 0.0, LEAST_KEPT * start)
    above = Bounds(np.maximum(lower - floor, 0.0), upper - floor, penalty)
    solved = solve_rows(sums.rows, start - floor, bounds=above, n_threads=n_threads)
    target = bounds.clip(solved.values + floor)  # rounding
    counted = totals > 0.0
    change = np.sqrt(solved.curvature / np.where(counted, totals, 1.0))
    length = 1.0 / np.maximum(1.0, 1.0 - SMALL_CHANGE + change)
    short = length < 1.0
    target[short] = start[short] + length[short, None] * (target[short] - start[short])
    target[~counted] = np.broadcast_to(lower, start.shape)[~counted]
    return HalfStep(
        values=target,
        loss=float(np.sum(sums.rows.loss)),
        gradient=sums.rows.gradient,
        predicted_decrease=float(np.sum(solved.decrease)),
        n_rejected=int(np.count_nonzero(short)),
        certain=False,
    )
