"""Every feature's own regression: its row of the factors given the loadings, and what its likelihood says.

With the loadings held fixed, the counts of feature j are a regression on them with non-negative coefficients,
with Poisson or negative binomial noise. It has nothing to do with any other feature. Here it is fitted again,
without penalty and with zero counts taken exactly: a penalised or approximate fit has other estimates, around
which no standard error would be valid. Dispersions are taken as known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.counts import SparseRows
from log1pnmf.counts.sparse_rows import dense_blocks
from log1pnmf.engines.native import NativeEngine, RowSums
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.noise import Noise
from log1pnmf.model.objective import BLOCK_BYTES, entry_curvature, entry_gradient
from log1pnmf.model.problem import Problem, Side

__all__ = ["FeatureRegressions", "Terms"]

Array = NDArray[np.float64]

LEAST_MOVE = 1e-5
"""Of a feature's largest coefficient: a Newton step that moves none by more is its last."""

MOST_STEPS = 200
LEAST_START = 1e-2
"""Of a feature's mean level: where coefficients start at least, so that no count has mean zero."""

LEAST_ETA = 1e-12
"""Where a mean is zero, so is its count, and nothing depends on it."""

LEAST_SPARE = 0.05
"""One minus the leverage of a sample is taken as at least this."""


@dataclass(frozen=True, eq=False)
class Terms:
    """Sums over the samples at given factors, on the eta scale.

    Parameters
    ----------
    loss : ndarray of shape (m,)
        Negative log-likelihood up to a constant.
    information : ndarray of shape (m, K, K)
        Second derivatives of the loss; with negative binomial noise what stands in for them, which has the
        same expectation (`log1pnmf.model.noise.Noise.curvature`).
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
    n_jobs : int, optional
        Number of threads.
    """

    problem: Problem
    loadings: Array
    n_jobs: int | None = None

    def solve(self, start: Array) -> Array:
        """Find the maximum-likelihood coefficients, features x K, on the eta scale."""
        return self._solve(self.problem.factors_side, start, self.loadings)

    def losses_without(self, k: int, factors: Array, features: NDArray[np.intp], design: Array) -> Array:
        """Loss of some features at their best without column k of a design; inf where counts need it."""
        others = np.ascontiguousarray(np.delete(design, k, axis=1))
        explained = others.sum(axis=1) > 0.0
        rows = self._rows.to_scipy()[features]
        alone = np.asarray(rows @ (~explained).astype(np.float64))
        losses = np.where(alone > 0.0, np.inf, 0.0)
        if not explained.any() or not len(features):
            return losses
        side = self.problem.factors_side.at(features, None if explained.all() else np.flatnonzero(explained))
        best = self._solve(side, np.delete(factors[features], k, axis=1), others[explained])
        return losses + self._sums(side, best, others[explained]).loss

    def terms(self, factors: Array) -> Terms:
        """Likelihood, gradient and information of every feature; zero counts are taken exactly."""
        sums = self._sums(self.problem.factors_side, factors, self.loadings)
        k = self.loadings.shape[1]
        first, second = np.tril_indices(k)
        information = np.empty((len(factors), k, k))
        information[:, first, second] = information[:, second, first] = sums.hessian
        return Terms(sums.loss, sums.gradient, information)

    def scores(self, factors: Array, covariance: Array) -> Array:
        """Sum products of the gradients of single samples: the middle of a sandwich.

        A sample that the fit follows closely has a small residual for that reason alone. Its gradient is
        divided by one minus its leverage, which makes it about that of a fit without the sample (known as
        HC3); otherwise errors from few samples are much too small.
        """
        first, second = np.triu_indices(self.loadings.shape[1])
        twice = np.where(first == second, 1.0, 2.0)
        pairs = covariance[:, first, second] * twice
        parts, done, link = [], 0, self.problem.link
        for y, eta, noise in self._blocks(factors):
            some = slice(done, done + y.shape[1])
            t = self._exposure(some)
            leverage = _expected_curvature(eta, t, link, noise) * (self._products @ pairs[some].T)
            slope = entry_gradient(y, eta, t, link, noise=noise) / np.maximum(1.0 - leverage, LEAST_SPARE)
            parts.append((slope**2).T @ self._products)
            done = some.stop
        return self._square(np.concatenate(parts))

    # ---------------------------------------------------------------- inside

    @cached_property
    def _engine(self) -> NativeEngine:
        return NativeEngine(self.problem, self.n_jobs)

    def _exposure(self, features: slice) -> Array:
        """Exposure of some features: samples x 1, or x features with batches."""
        t, batches = self.problem.factors_side.column_exposure[:, None], self.problem.batches
        return t if batches is None else t * batches.effects[:, features][batches.labels]

    @property
    def _rows(self) -> SparseRows:
        return self.problem.counts.by_column

    def _solve(self, side: Side, start: Array, design: Array) -> Array:
        """Take Newton steps; features that have arrived are left behind."""
        factors = self._inside(side, start, design)
        moving = np.arange(len(factors))
        for _ in range(MOST_STEPS):
            before = factors[moving]
            after = self._engine.half_step(side, before, design).values
            factors[moving] = after
            still = np.abs(after - before).max(axis=1) > LEAST_MOVE * after.max(axis=1)
            if not still.any():
                break
            if not still.all():
                moving = moving[still]
                side = side.at(np.flatnonzero(still))
        return factors

    def _sums(self, side: Side, factors: Array, design: Array) -> RowSums:
        sums = RowSums.zeros(*factors.shape)
        self._engine.add_statistics(side, factors, design, into=sums)
        return sums

    def _inside(self, side: Side, start: Array, design: Array) -> Array:
        """Move coefficients away from zero, as far as the feature has counts."""
        link = self.problem.link
        rates = side.rows.row_sums() / (side.column_exposure.sum() / link.exposure_scale)
        level = link.link(rates) / link.alpha
        largest = max(float(design.max(initial=0.0)), 1e-300)
        return np.maximum(start, LEAST_START * level[:, None] / largest)

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

    def _blocks(self, factors: Array) -> Iterator[tuple[Array, Array, Noise]]:
        """Give counts, eta and noise of some features at a time, samples x features."""
        for block in dense_blocks(self._rows.shape, BLOCK_BYTES / (8 * 8)):
            noise = self.problem.noise.of_features(block)
            yield self._rows.to_dense(block).T, self.loadings @ factors[block].T, noise


def _expected_curvature(eta: Array, t: Array, link: ShiftedLog, noise: Noise) -> Array:
    """Second derivative of the loss on average; the observed one gives large counts a high leverage."""
    at = np.maximum(eta, LEAST_ETA)
    mean = t * link.em(at)
    return entry_curvature(mean, at, t, link, noise=noise)
