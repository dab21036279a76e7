"""Every feature's own regression: its row of the factors given the loadings, and what its likelihood says.

With the loadings held fixed, the counts of feature j are a Poisson regression on them with non-negative
coefficients. It is convex and has nothing to do with any other feature. Here it is fitted again, without
penalty and with zero counts taken exactly: a penalised or approximate fit has other estimates, around which
no standard error would be valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf.counts import Counts, SparseRows
from log1pnmf.engines.base import Engine
from log1pnmf.engines.registry import make_engine
from log1pnmf.loss import BLOCK_BYTES, entry_curvature, entry_gradient, entry_loss
from log1pnmf.problem import Problem

__all__ = ["FeatureRegressions", "Terms"]

Array = NDArray[np.float64]

GAIN = 1e-6
"""Of log-likelihood, over all features, below which a regression is taken as solved."""

MOST_STEPS = 200
LEAST_START = 1e-2
"""Of a feature's mean level: where coefficients start at least, so that no count has mean zero."""

LEAST_SPARE = 0.05
"""One minus the leverage of a sample is taken as at least this."""


@dataclass(frozen=True, eq=False)
class Terms:
    """Sums over the samples at given factors, on the eta scale.

    Parameters
    ----------
    loss : ndarray of shape (m,)
        Negative log-likelihood up to a constant.
    gradient : ndarray of shape (m, K)
    information : ndarray of shape (m, K, K)
        Observed: second derivatives of the loss.
    """

    loss: Array
    gradient: Array
    information: Array


@dataclass(frozen=True, eq=False)
class FeatureRegressions:
    """The regressions of all features on the same loadings.

    Parameters
    ----------
    problem : Problem
        With exact zeros.
    loadings : ndarray of shape (n, K)
    engine : str
        See `log1pnmf.engines.registry.make_engine`.
    n_jobs : int, optional
        Threads.
    """

    problem: Problem
    loadings: Array
    engine: str = "auto"
    n_jobs: int | None = None

    def solve(self, start: Array) -> Array:
        """Find the maximum-likelihood coefficients, features x K, on the eta scale."""
        return _solve(make_engine(self.engine, self.problem, self.n_jobs), self.loadings, self._inside(start))

    def losses_without(self, k: int, start: Array) -> Array:
        """Loss of every feature at its best coefficients when that of factor k is zero.

        Parameters
        ----------
        k : int
        start : ndarray of shape (m, K)
            Best coefficients with factor k.

        Returns
        -------
        ndarray of shape (m,)
            inf where a sample has counts but no factor other than k.
        """
        others = np.delete(self.loadings, k, axis=1)
        explained = others.sum(axis=1) > 0.0
        alone = _column_sums(self.problem.counts, ~explained)
        losses = np.where(alone > 0.0, np.inf, 0.0)
        if not explained.any():
            return losses
        problem = self.problem if explained.all() else _only(self.problem, explained)
        rest = replace(self, problem=problem, loadings=others[explained])
        best = rest.solve(np.delete(start, k, axis=1))
        return losses + rest.losses(best)

    def losses(self, factors: Array) -> Array:
        """Negative log-likelihood of every feature, without the constants."""
        if self.problem.link.is_identity:
            y, eta, _ = self._nonzeros(factors)
            exposed = factors @ (self._exposure @ self.loadings)
            return exposed + self._sums(entry_loss(y, eta, 0.0, identity=True))
        parts = [entry_loss(y, eta, t).sum(axis=1) for y, eta, t in self._blocks(factors)]
        return np.concatenate(parts)

    def terms(self, factors: Array) -> Terms:
        """Likelihood, gradient and information of every feature; zero counts are taken exactly.

        For the identity link they are linear in the coefficients, so only the others are visited.
        """
        if self.problem.link.is_identity:
            return self._sparse_terms(factors)
        loss, gradient, information = [], [], []
        for y, eta, t in self._blocks(factors):
            loss.append(entry_loss(y, eta, t).sum(axis=1))
            gradient.append(entry_gradient(y, eta, t) @ self.loadings)
            information.append(entry_curvature(y, eta, t) @ self._products)
        return Terms(
            np.concatenate(loss), np.concatenate(gradient), self._square(np.concatenate(information))
        )

    def scores(self, factors: Array, covariance: Array) -> Array:
        """Sum products of the gradients of single samples: the middle of a sandwich.

        A sample that the fit follows closely has a small residual for that reason alone. Its gradient is
        divided by one minus its leverage, which makes it about that of a fit without the sample (known as
        HC3); otherwise errors from few samples are much too small.

        Parameters
        ----------
        factors : ndarray of shape (m, K)
        covariance : ndarray of shape (m, K, K)
            Inverse of the information, for leverages.

        Returns
        -------
        ndarray of shape (m, K, K)
        """
        first, second = np.triu_indices(self.loadings.shape[1])
        twice = np.where(first == second, 1.0, 2.0)
        pairs = covariance[:, first, second] * twice
        if self.problem.link.is_identity:
            return self._sparse_scores(factors, pairs)
        parts, done = [], 0
        for y, eta, t in self._blocks(factors):
            leverage = entry_curvature(y, eta, t) * (pairs[done : done + len(y)] @ self._products.T)
            slope = entry_gradient(y, eta, t) / np.maximum(1.0 - leverage, LEAST_SPARE)
            parts.append(slope**2 @ self._products)
            done += len(y)
        return self._square(np.concatenate(parts))

    # ---------------------------------------------------------------- inside

    @property
    def _exposure(self) -> Array:
        return self.problem.link.exposure_scale * self.problem.size_factors

    @property
    def _rows(self) -> SparseRows:
        return self.problem.counts.by_column

    @cached_property
    def _products(self) -> Array:
        """Products of every two loadings of a sample, each pair once."""
        first, second = np.triu_indices(self.loadings.shape[1])
        return self.loadings[:, first] * self.loadings[:, second]

    def _square(self, pairs: Array) -> Array:
        """Make symmetric matrices of sums over `_products`."""
        k = self.loadings.shape[1]
        first, second = np.triu_indices(k)
        full = np.empty((len(pairs), k, k))
        full[:, first, second] = full[:, second, first] = pairs
        return full

    def _blocks(self, factors: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Give counts, eta and exposure of some features at a time, features x samples."""
        m, n = self._rows.shape
        size = max(1, int(BLOCK_BYTES / (8 * 8 * max(n, 1))))
        for start in range(0, m, size):
            stop = min(start + size, m)
            y = self._rows.to_scipy(start, stop).toarray().astype(np.float64)
            yield y, factors[start:stop] @ self.loadings.T, self._exposure[None, :]

    def _nonzeros(self, factors: Array) -> tuple[Array, Array, Array]:
        """Give counts, eta and exposure of the entries that are not zero, feature by feature."""
        feature = np.repeat(np.arange(self._rows.shape[0]), np.diff(self._rows.indptr))
        sample = self._rows.indices
        eta = np.zeros(len(sample))
        for k in range(self.loadings.shape[1]):
            eta += factors[feature, k] * self.loadings[sample, k]
        return self._rows.values.astype(np.float64), eta, self._exposure[sample]

    def _sums(self, values: Array, products: Array | None = None) -> Array:
        """Sum values of the non-zeros over samples, each times what `products` has for its sample."""
        matrix = sparse.csr_array((values, self._rows.indices, self._rows.indptr), shape=self._rows.shape)
        return matrix @ (np.ones(self._rows.shape[1]) if products is None else products)

    def _sparse_terms(self, factors: Array) -> Terms:
        y, eta, t = self._nonzeros(factors)
        slope = entry_gradient(y, eta, t, identity=True)
        curvature = entry_curvature(y, eta, t, identity=True)
        return Terms(
            self.losses(factors),
            self._exposure @ self.loadings + self._sums(slope - t, self.loadings),
            self._square(self._sums(curvature, self._products)),
        )

    def _sparse_scores(self, factors: Array, pairs: Array) -> Array:
        """Scores with the identity link, where zero counts have no leverage and the gradient ``t``."""
        y, eta, t = self._nonzeros(factors)
        feature = np.repeat(np.arange(self._rows.shape[0]), np.diff(self._rows.indptr))
        leverage = np.zeros(len(y))
        for pair, products in zip(pairs.T, self._products.T, strict=True):
            leverage += pair[feature] * products[self._rows.indices]
        leverage *= entry_curvature(y, eta, t, identity=True)
        slope = entry_gradient(y, eta, t, identity=True) / np.maximum(1.0 - leverage, LEAST_SPARE)
        zeros = self._exposure**2 @ self._products
        return self._square(zeros + self._sums(slope**2 - t**2, self._products))

    def _inside(self, start: Array) -> Array:
        """Move coefficients away from zero, as far as the feature has counts."""
        rates = _column_sums(self.problem.counts) / self.problem.size_factors.sum()
        level = self.problem.link.link(rates) / self.problem.link.alpha
        largest = max(float(self.loadings.max(initial=0.0)), 1e-300)
        return np.maximum(start, LEAST_START * level[:, None] / largest)


def _solve(engine: Engine, loadings: Array, start: Array) -> Array:
    side, none = engine.problem.factors_side, np.zeros(start.shape[1])
    factors = start
    for _ in range(MOST_STEPS):
        step = engine.half_step(side, factors, loadings, penalty=none, upper=np.inf, row_solver="newton")
        factors = step.values
        if step.predicted_decrease <= GAIN:
            break
    return factors


def _column_sums(counts: Counts, rows: NDArray[np.bool_] | None = None) -> Array:
    chosen = np.ones(counts.n_samples) if rows is None else rows.astype(np.float64)
    return np.asarray(counts.to_scipy().T @ chosen, dtype=np.float64)


def _only(problem: Problem, rows: NDArray[np.bool_]) -> Problem:
    """Make the problem of some samples."""
    part = problem.counts.to_scipy()[np.flatnonzero(rows)]
    return replace(
        problem, counts=Counts.from_any(part.astype(np.float64)), size_factors=problem.size_factors[rows]
    )
