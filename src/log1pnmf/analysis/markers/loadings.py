"""Loadings as what they are in a test: estimates, with errors, to which the tested feature has contributed.

**Without bounds.** Loadings are bounded, so those at zero are too large on average. One Newton step from the
bounded estimate gives the estimate without bounds. Its mean is the truth, and its covariance is the inverse
of the sample's information.

**Without the tested feature.** A sample with many counts of a feature by chance gets more of the factors
that have the feature. That is not evidence, so every feature is tested on loadings without its own
contribution. With the gradient ``g_ij F_j`` of one entry and the sample's information ``H_i``, the step is
``H_i^-1 F_j g_ij / (1 - h_ij)``, where ``h_ij`` is the leverage of the entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.sparse_rows import dense_blocks
from log1pnmf.fitting.fit import Fit
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.noise import Noise
from log1pnmf.model.objective import BLOCK_BYTES, entry_curvature, entry_gradient, exposure_of
from log1pnmf.model.problem import Problem

__all__ = [
    "RIDGE",
    "EstimatedLoadings",
    "estimate_loadings",
    "expected_curvature",
    "forms",
    "inverse_information",
]

Array = NDArray[np.float64]

RIDGE = 1e-10
"""Added to the information, scaled to a unit diagonal: what is not identified gets a huge error, not none."""

LEAST_ETA = 1e-12
"""Where a mean is zero, so is its count, and nothing depends on it."""

LEAST_SPARE = 0.05
"""One minus a leverage is taken as at least this."""

MOST_ERRORS = 3.0
"""A loading is moved below its bound by at most this many standard errors: more is misfit, not chance."""


@dataclass(frozen=True, eq=False)
class EstimatedLoadings:
    """Loadings of samples, with errors.

    Parameters
    ----------
    bounded : ndarray of shape (n, K)
        Loadings of the fit.
    shift : ndarray of shape (n, K)
        What leads from there to the estimates without bounds.
    covariance : ndarray of shape (n, K, K)
        Of the errors of the estimates.
    inverse : ndarray of shape (n, K, K), or None
        Inverse information; None if the tested counts are not those from which the loadings were estimated.
    factors : ndarray of shape (m, K)
        With which they were estimated, on the eta scale.
    """

    bounded: Array
    shift: Array
    covariance: Array
    inverse: Array | None
    factors: Array

    @classmethod
    def known(cls, loadings: Array, n_features: int) -> EstimatedLoadings:
        """Take loadings as known: without errors."""
        n, k = loadings.shape
        return cls(loadings, np.zeros((n, k)), np.zeros((n, k, k)), None, np.zeros((n_features, k)))

    @property
    def values(self) -> Array:
        """Estimates without bounds."""
        return self.bounded + self.shift

    @property
    def squares(self) -> Array:
        """Products of every two loadings of a sample, without what errors add: n x K x K."""
        values = self.values
        return values[:, :, None] * values[:, None, :] - self.covariance

    def reliability(self, size_factors: Array) -> Array:
        """Share of a loading's variance beyond the other loadings that is not error: K numbers up to 1."""
        error = np.einsum("i,ikl->kl", size_factors, self.covariance)
        inverse = _inverse(self.values.T @ (size_factors[:, None] * self.values))
        share = np.einsum("kl,lm,mk->k", inverse, error, inverse) / inverse.diagonal()
        return np.clip(1.0 - share, 0.0, 1.0)

    def excess(self, size_factors: Array) -> Array:
        """Sum up what errors add to products of loadings: K x K; 0 for factors of which nothing is known."""
        known = self.reliability(size_factors) > 0.0
        error = np.einsum("i,ikl->kl", size_factors, self.covariance)
        return np.where(known[:, None] & known, error, 0.0)

    def weights(self, size_factors: Array) -> Array:
        """Give samples whose loadings are badly known a small weight in the tests: n numbers up to 1."""
        seen = self.bounded.T @ (size_factors[:, None] * self.bounded) / size_factors.sum()
        weights: Array = 1.0 / (1.0 + np.einsum("ikl,kl->i", self.covariance, _inverse(seen)))
        return weights

    def own_part(self, y: Array, t: Array, link: ShiftedLog, noise: Noise, block: slice) -> Array | None:
        """Say by how many ``H_i^-1 F_j`` the loadings change without the feature: samples x features."""
        if self.inverse is None:
            return None
        factors = self.factors[block]
        eta = self.bounded @ factors.T
        curvature = expected_curvature(eta, t, link, noise)
        gradient = entry_gradient(y, eta, t, link, noise=noise) + curvature * (self.shift @ factors.T)
        leverage = curvature * forms(self.inverse, factors, factors)
        return gradient / np.maximum(1.0 - leverage, LEAST_SPARE)


def estimate_loadings(
    fit: Fit, problem: Problem, loadings: Array, *, errors: str, own: bool
) -> EstimatedLoadings:
    """Find estimates without bounds and their errors, from the counts of each sample.

    Parameters
    ----------
    problem : Problem
        With the counts from which the loadings were estimated, and exact zeros.
    own : bool
        Whether the same counts are tested.
    """
    factors, rows = np.ascontiguousarray(fit.factors / fit.link.alpha), problem.counts.by_row
    (n, k), kinds = loadings.shape, np.array(fit.kinds)
    counted = np.broadcast_to(kinds != "loadings", (n, k)) & ((loadings > 0.0) | (kinds != "pattern"))
    shift, inverse = np.empty((n, k)), np.empty((n, k, k))
    covariance = np.empty((n, k, k)) if errors == "sandwich" else inverse
    products = (factors[:, :, None] * factors[:, None, :]).reshape(len(factors), -1)
    for block in dense_blocks(rows.shape, BLOCK_BYTES / (8 * 8)):
        y, t, eta = rows.to_dense(block), exposure_of(problem, block), loadings[block] @ factors.T
        curvature = expected_curvature(eta, t, fit.link, problem.noise)
        slope = entry_gradient(y, eta, t, fit.link, noise=problem.noise)
        information = (curvature @ products).reshape(-1, k, k)
        inverse[block] = inverse_information(information, counted[block])
        error = np.sqrt(np.einsum("ikk->ik", inverse[block]))
        step = -np.einsum("ikl,il->ik", inverse[block], slope @ factors)
        shift[block] = np.clip(step, -MOST_ERRORS * error, MOST_ERRORS * error)
        if errors == "sandwich":
            leverage = curvature * forms(inverse[block], factors, factors)
            slope = slope + curvature * (shift[block] @ factors.T)
            scores = (slope**2 / np.maximum(1.0 - leverage, LEAST_SPARE) @ products).reshape(-1, k, k)
            scores += RIDGE * information * np.eye(k)  # gradients say nothing of what is not identified
            covariance[block] = inverse[block] @ scores @ inverse[block]
    return EstimatedLoadings(loadings, shift, covariance, inverse if own else None, factors)


def expected_curvature(eta: Array, t: Array, link: ShiftedLog, noise: Noise) -> Array:
    """Second derivative of the loss on average; the observed one gives large counts a high leverage."""
    at = np.maximum(eta, LEAST_ETA)
    return entry_curvature(t * link.em(at), at, t, link, noise=noise)


def forms(matrices: Array, left: Array, right: Array) -> Array:
    """``left_j' M_i right_j`` for all i and j, with symmetric matrices."""
    first, second = np.triu_indices(left.shape[1])
    products = left[:, first] * right[:, second] + np.where(
        first == second, 0.0, left[:, second] * right[:, first]
    )
    found: Array = matrices[:, first, second] @ products.T
    return found


def inverse_information(information: Array, counted: NDArray[np.bool_]) -> Array:
    """Invert the information of the coordinates that count; zeros elsewhere."""
    scale = np.sqrt(np.maximum(np.einsum("jkk->jk", information), 0.0))
    scale = np.where(scale > 0.0, scale, 1.0)
    both = counted[:, :, None] & counted[:, None, :]
    unit = np.where(both, information / (scale[:, :, None] * scale[:, None, :]), 0.0)
    diagonal = np.einsum("jkk->jk", unit)
    diagonal += np.where(counted, RIDGE, 1.0)
    inverse = np.where(both, np.linalg.inv(unit), 0.0)
    return inverse / (scale[:, :, None] * scale[:, None, :])


def _inverse(products: Array) -> Array:
    return inverse_information(products[None], np.ones((1, len(products)), dtype=bool))[0]
