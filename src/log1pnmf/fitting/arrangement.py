"""Order and scale of the factors as users see them; neither changes the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.rows import Rows
from log1pnmf.model.structure import Structure

from .settings import Settings

__all__ = ["SHARED", "arranged", "evenness", "factor_shares", "sample_shares", "scale_of", "scaled"]

Array = NDArray[np.float64]

LEAST_BASELINE = 0.5
"""Part of the average share of the signal that a factor has to carry to be taken for the baseline."""

SHARED = 0.8
"""Evenness from which all samples share a factor: its standard deviation is at most half of its mean."""


def arranged(
    loadings: Array, factors: Array, settings: Settings, known: Structure | None = None
) -> tuple[Array, Array]:
    """Bring the columns of a solver into the order and scale that users see.

    The baseline comes first: column 0 of a penalised fit (it is the one without penalty), otherwise the
    factor with the most even loadings among those that carry at least half of the average share of the
    signal. The others follow by their share of the signal, largest first. Factors of which something is known
    come before all others, in their own order; known numbers stay as they are.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the link scale.
    """
    kinds = [] if known is None else known.kinds
    first, share = len(kinds), factor_shares(loadings, factors)
    order = np.arange(first)
    if first < len(share):
        free, baseline = share[first:], 0
        if settings.l1 == 0:
            eligible = free >= LEAST_BASELINE * free.mean()
            baseline = int(np.argmax(np.where(eligible, evenness(loadings)[first:], -1.0)))
        by_share = np.argsort(-free, kind="stable")
        order = np.concatenate((order, [first + baseline], first + by_share[by_share != baseline]))
    scale = scale_of(loadings, factors, settings.normalize, kinds)
    loadings, factors = scaled(loadings, factors, scale[order], order)
    if known is not None:
        factors[:, np.flatnonzero(np.array(kinds) == "factors")] = known.factors
    return loadings, factors


def factor_shares(loadings: Array, factors: Array) -> Array:
    """Return the share of the fitted signal ``sum_ij (L F')_ij`` that each factor carries; they sum to 1."""
    signal = loadings.sum(axis=0) * factors.sum(axis=0)
    return signal / _or_one(signal.sum())


def sample_shares(loadings: Array, factors: Array) -> Array:
    """Return the share of each sample's signal ``sum_j (L F')_ij`` that each factor carries.

    Rows sum to 1; those of samples without any signal are 0. The scale of the factors does not matter.
    """
    signal = loadings * factors.sum(axis=0)
    return signal / _or_one(signal.sum(axis=1, keepdims=True))


def evenness(loadings: Array) -> Array:
    """How evenly each factor is spread over the samples: ``(sum l)^2 / (n sum l^2)``, 1 where all are alike.

    A factor shared equally by some samples and absent from all others has the share of those samples.
    """
    largest = _or_one(loadings.max(axis=0))
    relative = loadings / largest
    return relative.sum(axis=0) ** 2 / (len(loadings) * _or_one((relative**2).sum(axis=0)))


def scale_of(loadings: Array, factors: Array, normalize: str, kinds: Sequence[str] = ()) -> Array:
    """Divide loadings and multiply factors by this, column by column.

    Parameters
    ----------
    kinds : sequence of str
        What is known of the first factors; those with known numbers keep their scale.
    """
    scale = _scale_of(loadings, factors, normalize)
    scale[[k for k, kind in enumerate(kinds) if kind in ("loadings", "factors")]] = 1.0
    return scale


def _scale_of(loadings: Array, factors: Array, normalize: str) -> Array:
    if normalize == "max":
        return _or_one(loadings.max(axis=0))
    if normalize == "factor_max":
        return 1.0 / _or_one(factors.max(axis=0))
    if normalize == "factor_sum":
        return 1.0 / _or_one(factors.sum(axis=0))
    return np.ones(factors.shape[1])


def scaled(loadings: Array, factors: Array, scale: Array, order: Any = slice(None)) -> tuple[Array, Array]:
    """Divide loadings and multiply factors by a scale, after their columns are put in order."""
    if isinstance(loadings, np.memmap):  # of a streamed fit: not all of it at once
        rows = Rows(loadings.shape, lambda start, stop: loadings[start:stop][:, order] / scale)
        return rows.to_array(), factors[:, order] * scale
    return loadings[:, order] / scale, factors[:, order] * scale


def _or_one(values: Array) -> Array:
    return np.where(values > 0.0, values, 1.0)
