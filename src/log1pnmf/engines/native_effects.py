"""Effects of batches in the compiled core: a Newton step, and extrapolation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from log1pnmf._core import effects_step, further_effects
from log1pnmf.counts.counts import Counts
from log1pnmf.model.batches import LARGEST_EFFECT, Batches

__all__ = ["extrapolated", "newton_step"]

Array = NDArray[np.float64]

LEVEL_ERROR, LONGEST_STEP = 1e-9, 0.3
"""Effects whose levels are off, or that are far from their optimum, need more than one Newton step."""


def newton_step(kernel: str, batches: Batches, counts: Counts, sums: Array) -> Array | None:
    """Take a Newton step of the effects for given sums of means; None where one is not enough."""
    effects, n = batches.effects, batches.n_batches
    sums_and_effects = batches.totals(counts), sums, effects, batches.logs
    given = *sums_and_effects, batches.feature_weights(counts), batches.strength
    after: Array = np.empty(effects.shape)
    out = matrix, right, _, found = np.empty((n, n)), np.empty(n), after, np.empty(2)
    effects_step(kernel, *given, np.empty(0), *out)
    if not found[0] <= LEVEL_ERROR:
        return None
    z = np.asarray(np.linalg.lstsq(matrix, right, rcond=1e-12)[0], dtype=np.float64)
    effects_step(kernel, *given, z, *out)
    longest, change = found
    if not longest <= LONGEST_STEP or max(after.max(), 1.0 / after.min()) > LARGEST_EFFECT:
        return None
    return after if change < 0.0 else effects


def extrapolated(kernel: str, to: Array, since: Array, beta: float) -> Array | None:
    """Give ``to * (to / since) ** beta``; None where an effect has changed much."""
    found: Array = np.empty(to.shape)
    return found if further_effects(kernel, to, since, beta, LARGEST_EFFECT, found) else None
