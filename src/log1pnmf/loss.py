"""The objective in plain NumPy: what every engine is compared with.

Everything named *entry* works on the eta scale: ``em = expm1(eta)`` (``em = eta`` for the identity link) and
the mean of a count is ``t * em``. The loss of a count is what it costs above a mean of its own size (half its
deviance): nothing cancels in it, however large the counts. The constant puts back what no factor changes, so
that the sum of losses + constant is the full Poisson negative log-likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy

from .approximation import EXACT_FOR_IDENTITY, Quadratic
from .arrays import like
from .counts import Counts, SparseRows
from .link import ShiftedLog

__all__ = [
    "approximate_log_likelihood",
    "entry_curvature",
    "entry_gradient",
    "entry_loss",
    "gradients",
    "kkt_residual",
    "likelihood_constant",
    "log_likelihood",
    "negative_log_likelihood",
    "plain_constant",
]

Array = NDArray[np.float64]

SMALLEST_ETA, LARGEST_ETA = 1e-100, 500.0
"""Derivatives are taken at eta held inside this range: finite for any start, also at eta = 0 with a count."""

LARGE_TOTAL = 1e10
"""Sum of all counts from which the rounding errors of a sum of means would show beside the loss."""

BLOCK_BYTES = 64e6
"""Dense intermediate arrays of one block of rows stay below this, unless a single row is larger."""


class Model(Protocol):
    """What fixes the objective; `log1pnmf.problem.Problem` is one."""

    @property
    def counts(self) -> Counts: ...
    @property
    def size_factors(self) -> Array: ...
    @property
    def link(self) -> ShiftedLog: ...
    @property
    def zeros(self) -> Quadratic | None: ...


@dataclass(frozen=True, eq=False)
class _Given:
    """A `Model` from its parts."""

    counts: Counts
    size_factors: Array
    link: ShiftedLog
    zeros: Quadratic | None


# ---------------------------------------------------------------- one entry


def entry_loss(
    y: ArrayLike, eta: ArrayLike, t: ArrayLike, identity: bool = False, zeros: Quadratic | None = None
) -> Array:
    """Half the deviance, ``mean - y - y*log(mean/y)`` with ``mean = t*em``, for every entry.

    That is ``t*em`` where ``y = 0``, or with `zeros` ``t*(a1*eta + a2*eta**2)``.

    Parameters
    ----------
    y, eta, t : array_like
        Count, linear predictor (>= 0) and exposure; broadcast against each other.
    identity : bool
        Whether the link is the identity.
    zeros : Quadratic, optional
        Approximation for zero counts; None is exact.

    Returns
    -------
    ndarray
        inf where ``eta = 0`` meets a positive count; never NaN.
    """
    y, eta, t = _float(y), _float(eta), _float(t)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        mean = t * (eta if identity else np.expm1(eta))
        own = np.where(y > 0, y, 1.0)
        excess = (mean - y) / own
        log_ratio = np.where(excess > -0.5, np.log1p(excess), np.log(mean / own))
        loss = np.where(y > 0, y * (excess - log_ratio), mean)
        loss = np.where(np.isinf(mean), np.inf, loss)
    return loss if zeros is None else np.where(y > 0, loss, t * eta * (zeros.a1 + zeros.a2 * eta))


def entry_gradient(
    y: ArrayLike, eta: ArrayLike, t: ArrayLike, identity: bool = False, zeros: Quadratic | None = None
) -> Array:
    """Differentiate `entry_loss` in eta: ``t*(em+1) - y*(1 + 1/em)``, identity ``t - y/eta``.

    Parameters as in `entry_loss`. Taken at eta within ``[1e-100, 500]``, so always finite.
    """
    y, eta, t = _float(y), _float(eta), _float(t)
    inside = _inside(eta, identity)
    gradient = t - y / inside if identity else t * np.exp(inside) + y / np.expm1(-inside)
    return gradient if zeros is None else np.where(y > 0, gradient, t * (zeros.a1 + 2.0 * zeros.a2 * eta))


def entry_curvature(
    y: ArrayLike, eta: ArrayLike, t: ArrayLike, identity: bool = False, zeros: Quadratic | None = None
) -> Array:
    """Differentiate `entry_loss` twice in eta: ``t*(em+1) + y*(em+1)/em**2``, identity ``y/eta**2``.

    Parameters as in `entry_loss`. Taken at eta within ``[1e-100, 500]``, so always finite.
    """
    y, eta, t = _float(y), _float(eta), _float(t)
    inside = _inside(eta, identity)
    if identity:
        curvature = y / inside**2 + 0.0 * t
    else:
        curvature = t * np.exp(inside) + y * np.exp(-inside) / np.expm1(-inside) ** 2
    return curvature if zeros is None else np.where(y > 0, curvature, 2.0 * zeros.a2 * t)


def _float(x: ArrayLike) -> Array:
    return np.asarray(x, dtype=np.float64)


def _inside(eta: Array, identity: bool) -> Array:
    return np.maximum(eta, SMALLEST_ETA) if identity else np.clip(eta, SMALLEST_ETA, LARGEST_ETA)


# ---------------------------------------------------------------- the whole matrix


def log_likelihood(
    counts: Counts, loadings: Array, factors: Array, link: ShiftedLog, size_factors: Array
) -> float:
    """Full Poisson log-likelihood, exactly.

    Parameters
    ----------
    counts : Counts
        n x m counts.
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the link scale: ``loadings @ factors.T = alpha_c * log(1 + lam / c)``.
    link : ShiftedLog
        Visits all n x m entries in blocks of rows; only the non-zeros for the identity link.
    size_factors : ndarray of shape (n,)
        Exposure of each sample.

    Returns
    -------
    float
        -inf if a positive count has mean zero.
    """
    zeros = EXACT_FOR_IDENTITY if link.is_identity else None
    model = _Given(counts, size_factors, link, zeros)
    return -negative_log_likelihood(model, loadings, factors / link.alpha)


def approximate_log_likelihood(
    counts: Counts,
    loadings: Array,
    factors: Array,
    link: ShiftedLog,
    size_factors: Array,
    *,
    zeros: Quadratic,
) -> float:
    """Full Poisson log-likelihood with ``expm1(eta)`` replaced by `zeros` at zero counts.

    Parameters as in `log_likelihood`; costs O(nnz K + (n + m) K^2).
    """
    model = _Given(counts, size_factors, link, zeros)
    return -negative_log_likelihood(model, loadings, factors / link.alpha)


def negative_log_likelihood(problem: Model, loadings: Array, factors: Array) -> float:
    """Objective of `problem` on the eta scale, constants included, penalty excluded.

    Sums over all entries, by rank-K algebra where zeros are approximate, corrected at the non-zeros.

    Parameters
    ----------
    problem : Problem
        Its `zeros` decides between the exact and the approximate objective.
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the eta scale.

    Returns
    -------
    float
    """
    link, zeros, rows = problem.link, problem.zeros, problem.counts.by_row
    exposure = link.exposure_scale * problem.size_factors
    if link.is_identity and problem.counts.total > LARGE_TOTAL:
        zeros = None
    if zeros is None:
        loss = _means_of_zeros(problem, loadings, factors)
    else:  # sum t*eta and sum t*eta^2 over all entries
        linear = (exposure @ loadings) @ factors.sum(axis=0)
        square = np.sum((loadings.T @ (exposure[:, None] * loadings)) * (factors.T @ factors))
        loss = float(zeros.a1 * linear + zeros.a2 * square)
    for y, eta, t in _nonzeros(rows, loadings, factors, exposure):
        own = entry_loss(y, eta, t, link.is_identity)
        loss += float(np.sum(own if zeros is None else own - t * eta * (zeros.a1 + zeros.a2 * eta)))
    return loss + likelihood_constant(problem)


def likelihood_constant(problem: Model) -> float:
    """Difference between the full negative log-likelihood and the sum of `entry_loss`.

    The sum of `log1pnmf.factorial.stirling`, plus ``a0m1 * sum of t over zero counts`` in approximate form.
    """
    return problem.counts.stirling + _offset_of_zeros(problem)


def plain_constant(problem: Model) -> float:
    """Difference between the full negative log-likelihood and the sum of ``t*em - y*log(em)``.

    ``sum lgamma(y+1) - sum y*log(t)``, and the zeros' part as in `likelihood_constant`. This form is quicker
    to sum, but loses digits where counts are large.
    """
    counts, exposure = problem.counts, problem.link.exposure_scale * problem.size_factors
    own = counts.log_factorial - float(np.sum(xlogy(counts.row_sums, exposure)))
    return own + _offset_of_zeros(problem)


def _offset_of_zeros(problem: Model) -> float:
    if problem.zeros is None:
        return 0.0
    exposure = problem.link.exposure_scale * problem.size_factors
    n_zeros = problem.counts.shape[1] - np.diff(problem.counts.by_row.indptr)
    return problem.zeros.a0m1 * float(exposure @ n_zeros)


def gradients(problem: Model, loadings: Array, factors: Array) -> tuple[Array, Array]:
    """Gradient of `negative_log_likelihood` in the loadings and in the factors, on the eta scale.

    Parameters
    ----------
    problem : Problem
        Its `zeros` decides between the exact and the approximate objective.
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the eta scale.

    Returns
    -------
    gradient_loadings, gradient_factors : ndarray of shape (n, K) and (m, K)
    """
    rows, identity = problem.counts.by_row, problem.link.is_identity
    exposure = problem.link.exposure_scale * problem.size_factors
    gradient_loadings, gradient_factors = np.zeros_like(loadings), np.zeros_like(factors)
    for block in _row_blocks(rows, arrays=8):
        y, t = _dense(rows, block), exposure[block, None]
        slope = entry_gradient(y, loadings[block] @ factors.T, t, identity, problem.zeros)
        gradient_loadings[block] = slope @ factors
        gradient_factors += slope.T @ loadings[block]
    return gradient_loadings, gradient_factors


def _means_of_zeros(problem: Model, loadings: Array, factors: Array) -> float:
    """Sum of the fitted means over all entries that are zero."""
    total, rows = 0.0, problem.counts.by_row
    with np.errstate(over="ignore"):
        for block in _row_blocks(rows, arrays=3):
            means = problem.link.mean(loadings[block] @ factors.T)
            first, last = rows.indptr[block.start], rows.indptr[block.stop]
            lengths = np.diff(rows.indptr[block.start : block.stop + 1])
            means[np.repeat(np.arange(len(means)), lengths), rows.indices[first:last]] = 0.0
            total += float(problem.size_factors[block] @ means.sum(axis=1))
    return total


def _row_blocks(rows: SparseRows, arrays: int) -> Iterator[slice]:
    """Slices of rows for which `arrays` dense arrays fit in `BLOCK_BYTES`."""
    n, m = rows.shape
    size = max(1, int(BLOCK_BYTES / (8 * arrays * max(m, 1))))
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def _dense(rows: SparseRows, block: slice) -> Array:
    """Rows of `block` with their zeros."""
    y = np.zeros((block.stop - block.start, rows.shape[1]))
    first, last = rows.indptr[block.start], rows.indptr[block.stop]
    row = np.repeat(np.arange(len(y)), np.diff(rows.indptr[block.start : block.stop + 1]))
    y[row, rows.indices[first:last]] = rows.values[first:last]
    return y


def _nonzeros(
    rows: SparseRows, loadings: Array, factors: Array, exposure: Array
) -> Iterator[tuple[Array, Array, Array]]:
    """Count, eta and exposure of the non-zero entries, in blocks."""
    size = max(1, int(BLOCK_BYTES / (8 * (3 * loadings.shape[1] + 8))))
    for start in range(0, len(rows.values), size):
        entries = np.arange(start, min(start + size, len(rows.values)))
        i = np.searchsorted(rows.indptr, entries, side="right") - 1
        j = rows.indices[entries]
        eta = np.einsum("ek,ek->e", loadings[i], factors[j])
        yield rows.values[entries].astype(np.float64), eta, exposure[i]


# ---------------------------------------------------------------- optimality


def kkt_residual(
    loadings: Array,
    factors: Array,
    gradient_loadings: Array,
    gradient_factors: Array,
    total: float,
    *,
    penalty_factors: ArrayLike = 0.0,
    upper_loadings: float = np.inf,
) -> float:
    """How far from a stationary point, free of scale: 0 at an optimum.

    Minimised is ``loss + sum_jk penalty_k f_jk`` over ``0 <= loadings <= upper``, ``factors >= 0``. The
    projected gradient ``pg`` of an entry ``b`` with derivative ``g`` (penalty included) is ``min(g, 0)`` at
    ``b = 0``, ``max(g, 0)`` at ``b = upper`` and ``g`` between. Each side has the residual

        ``sum_ik |pg_ik| * mean_i(b_ik) / total``

    and the larger one is returned. Weighing a column's gradient by the column's mean makes this invariant to
    ``(L_k * a, F_k / a)`` as long as neither penalty nor bound fixes the scale, and dividing by the total
    makes it independent of the amount of data. A column that is zero throughout does not count.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
    gradient_loadings, gradient_factors : ndarray of shape (n, K) and (m, K)
        Of the negative log-likelihood, penalty excluded, on the same scale as the factors.
    total : float
        Sum of all counts.
    penalty_factors : float or ndarray of shape (K,)
        Linear penalty on the factors.
    upper_loadings : float
        Upper bound of the loadings.

    Returns
    -------
    float
    """
    loadings_side = _side_residual(loadings, gradient_loadings, upper_loadings)
    penalised = gradient_factors + like(gradient_factors, penalty_factors)
    factors_side = _side_residual(factors, penalised, np.inf)
    return max(loadings_side, factors_side) / (total if total > 0 else 1.0)


def _side_residual(values: Array, gradient: Array, upper: float) -> float:
    projected = gradient - gradient.clip(min=0.0) * (values <= 0)
    projected = projected - projected.clip(max=0.0) * (values >= upper)
    return float(abs(projected).sum(axis=0) @ values.mean(axis=0))
