"""The factors' Newton step from sums over all samples, without a further look at them."""

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
"""No entry falls below this part of itself in one step: a count may rest on it alone."""

VANISHED = 1e-6
"""Expected counts below which an entry may become zero: no count rests on it, or it would have been held.
Of a feature whose mean count (over its non-zeros) is below 1, that part of the mean."""

SMALL_CHANGE = 0.25
"""Relative change of the means, in the root mean square over counts, up to which a step is taken in full."""


def damped_step(
    sums: FactorSums,
    start: Array,
    *,
    totals: Array,
    nnz: NDArray[np.int64],
    bounds: Bounds = NON_NEGATIVE,
    n_threads: int | None = None,
) -> HalfStep:
    """Improve the factors by one Newton step whose length is judged from the quadratic model alone.

    The curvature of a step, ``d'Hd``, is about the sum over a feature's counts of the squared relative change
    of their means. Divided by the feature's total count it says how large these changes are; where they are
    not small the quadratic cannot be trusted and the step is shortened, as in the damped Newton method but
    free of the number of samples. That does not prove that the loss falls; who asks has to look.

    Parameters
    ----------
    sums : FactorSums
        At `start`.
    start : ndarray of shape (m, K)
    totals : ndarray of shape (m,)
        Total count of every feature.
    nnz : ndarray of shape (m,)
        Number of samples that have it.
    bounds : Bounds
        Without an upper bound.
    n_threads : int, optional

    Returns
    -------
    HalfStep
        Its loss has no constants.
    """
    typical = np.minimum(1.0, totals / np.maximum(nnz, 1))
    floor = np.where(start * sums.linear <= VANISHED * typical[:, None], 0.0, LEAST_KEPT * start)
    solved = solve_rows(sums.rows, start - floor, bounds=bounds, n_threads=n_threads)
    target = solved.values + floor
    counted = totals > 0.0
    change = np.sqrt(solved.curvature / np.where(counted, totals, 1.0))
    length = 1.0 / np.maximum(1.0, 1.0 - SMALL_CHANGE + change)
    values = np.where(length[:, None] < 1.0, start + length[:, None] * (target - start), target)
    return HalfStep(
        values=np.where(counted[:, None], values, 0.0),
        loss=float(np.sum(sums.rows.loss)),
        gradient=sums.rows.gradient,
        predicted_decrease=float(np.sum(solved.decrease)),
        n_rejected=int(np.count_nonzero(length < 1.0)),
        certain=False,
    )
