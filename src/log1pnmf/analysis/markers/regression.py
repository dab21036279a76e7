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
from log1pnmf.engines.native import NativeEngine
from log1pnmf.model.noise import Noise
from log1pnmf.model.objective import BLOCK_BYTES
from log1pnmf.model.problem import Problem, Side

__all__ = ["FeatureRegressions"]

Array = NDArray[np.float64]

LEAST_MOVE = 1e-5
"""Of a feature's largest coefficient: a Newton step that moves none by more is its last."""

MOST_STEPS = 200
LEAST_START = 1e-2
"""Of a feature's mean level: where coefficients start at least, so that no count has mean zero."""

ARRAYS_PER_BLOCK = 24


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

    def blocks(self) -> Iterator[tuple[slice, Array, Array, Noise]]:
        """Give some features at a time: which, their counts (samples x features), exposure and noise."""
        for block in dense_blocks(self._rows.shape, BLOCK_BYTES / (8 * ARRAYS_PER_BLOCK)):
            noise = self.problem.noise.of_features(block)
            yield block, self._rows.to_dense(block).T, self._exposure(block), noise

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

    def _inside(self, side: Side, start: Array, design: Array) -> Array:
        """Move coefficients away from zero, as far as the feature has counts."""
        link = self.problem.link
        rates = side.rows.row_sums() / (side.column_exposure.sum() / link.exposure_scale)
        level = link.link(rates) / link.alpha
        largest = max(float(design.max(initial=0.0)), 1e-300)
        return np.maximum(start, LEAST_START * level[:, None] / largest)
