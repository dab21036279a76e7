"""Adaptive shrinkage of effects: how large they are, and whether they are there at all.

Within a factor, effects are taken as drawn from a mixture that is fitted to all of them: some are zero, the
others positive or negative halves of normals with one of several widths (unimodal at zero). An estimate ``x``
with standard error ``s`` then has a posterior in closed form (the idea is Stephens' adaptive shrinkage,
2017).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

__all__ = ["Shrunken", "shrink"]

Array = NDArray[np.float64]

WIDTHS_PER_DOUBLING = 1
MOST_WIDTHS = 24
FAR_BELOW = -1e4  # standard deviations: there both forms of the mean are right to eight digits
NULL_WEIGHT = 10.0
"""Observations of "no effect" that are added, so that the share of zeros is rather too high than too low."""

LEAST_CHANGE = 1e-5
MOST_ROUNDS = 1000


@dataclass(frozen=True, eq=False)
class Shrunken:
    """What is left of effects after shrinkage.

    Parameters
    ----------
    effect : ndarray of shape (m,)
        Posterior mean.
    false_sign_rate : ndarray of shape (m,)
        Local: the probability that the effect is not positive.
    null_share : float
        Of the features, estimated not to have an effect.
    """

    effect: Array
    false_sign_rate: Array
    null_share: float


def shrink(estimates: Array, errors: Array) -> Shrunken:
    """Shrink estimates of effects that may be zero, positive or negative.

    Errors are inf where nothing is known.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> effects = np.where(rng.random(2000) < 0.8, 0.0, 3.0 * rng.standard_normal(2000))
    >>> found = shrink(effects + rng.standard_normal(2000), np.ones(2000))
    >>> sure = found.false_sign_rate < 0.05
    >>> bool(found.null_share > 0.6), bool((effects[sure] <= 0.0).mean() < 0.05)
    (True, True)
    """
    known = np.isfinite(errors) & np.isfinite(estimates) & (errors > 0.0)
    if not known.any():
        return Shrunken(np.zeros(len(estimates)), np.ones(len(estimates)), 1.0)
    x, s = estimates[known], errors[known]
    widths = _widths(x, s)
    up, down = _log_marginals(x, s, widths), _log_marginals(-x, s, widths)
    logs = np.concatenate((up, down[:, 1:]), axis=1)
    shares = _fit_shares(logs)
    with np.errstate(divide="ignore"):
        joint = logs + np.log(shares)
    posterior = np.exp(joint - scipy.special.logsumexp(joint, axis=1, keepdims=True))
    means = np.concatenate((_means(x, s, widths), -_means(-x, s, widths)), axis=1)
    rises = slice(1, 1 + len(widths))
    effect, rate = np.zeros(len(estimates)), np.full(len(estimates), 1.0 - shares[rises].sum())
    effect[known] = (posterior[:, 1:] * means).sum(axis=1)
    rate[known] = 1.0 - posterior[:, rises].sum(axis=1)
    return Shrunken(effect, np.clip(rate, 0.0, 1.0), float(shares[0]))


def _widths(x: Array, s: Array) -> Array:
    """Widths of the half-normal parts: from a tenth of a standard error to beyond the largest effect."""
    low = float(s.min()) / 10.0
    high = max(2.0 * float(np.sqrt(np.maximum(x**2 - s**2, 0.0).max())), 8.0 * low)
    n = min(MOST_WIDTHS, int(WIDTHS_PER_DOUBLING * np.log2(high / low)) + 2)
    return np.geomspace(low, high, n)


def _log_marginals(x: Array, s: Array, widths: Array) -> Array:
    """Log density of every estimate under no effect (first column) and under every width."""
    x, s = x[:, None], s[:, None]
    total = np.hypot(s, np.concatenate(([0.0], widths)))
    normal = -0.5 * (x / total) ** 2 - np.log(total) - 0.5 * np.log(2.0 * np.pi)
    normal[:, 1:] += np.log(2.0) + scipy.special.log_ndtr(x * widths / (s * total[:, 1:]))
    return normal


def _means(x: Array, s: Array, widths: Array) -> Array:
    """Posterior mean under every width: of a normal that ends at zero."""
    x, s = x[:, None], s[:, None]
    total = np.hypot(s, widths)
    centre, spread = x * (widths / total) ** 2, s * widths / total
    a = centre / spread
    # Far below zero density and distribution function both vanish, and what is left is about -1 / a.
    with np.errstate(over="ignore"):
        hazard = np.sqrt(2.0 / np.pi) / scipy.special.erfcx(-a / np.sqrt(2.0))
    far = a < FAR_BELOW
    above = np.where(far, -1.0 / np.where(far, a, -1.0), a + hazard)
    return np.maximum(spread * above, 0.0)


def _fit_shares(logs: Array) -> Array:
    """Shares of the parts by expectation-maximisation."""
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    m, parts = weights.shape
    shares = np.full(parts, 0.5 / max(parts - 1, 1))
    shares[0] = 0.5
    for _ in range(MOST_ROUNDS):
        updated = shares * ((1.0 / (weights @ shares)) @ weights)
        updated[0] += NULL_WEIGHT
        updated /= m + NULL_WEIGHT
        change = float(np.abs(updated - shares).max())
        shares = updated
        if change < LEAST_CHANGE:
            break
    return shares
