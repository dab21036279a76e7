"""Stability over seeds: whether fits of one setting to all counts find the same factors from other starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from log1pnmf.analysis.stability import stability
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import Fit
from log1pnmf.model.batches import Batches

from .grid import Setting

__all__ = ["Agreement", "WholeData", "agreement", "stability_with_error"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WholeData:
    """What is fitted where nothing is held out."""

    train: Counts
    size_factors: Array
    number: int
    batches: Batches | None = None
    penalty_scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Agreement:
    """How alike the fits of one setting with different seeds are.

    Parameters
    ----------
    between : ndarray of shape (seeds, seeds)
        Mean similarity of the matched factors of any two fits, see `log1pnmf.analysis.Stability`.
    """

    setting: Setting
    between: Array


def agreement(setting: Setting, fits: Sequence[Fit], n_seeds: int) -> Agreement:
    """Compare the loadings of fits with several seeds; one factor alone has no other optimum."""
    return Agreement(setting, stability(fits).between if fits else np.ones((n_seeds, n_seeds)))


def stability_with_error(between: Array) -> tuple[float, float]:
    """Mean similarity over all pairs of fits, and its standard error by leaving out one fit after the other.

    Examples
    --------
    >>> value, error = stability_with_error(np.array([[1.0, 0.9, 0.5], [0.9, 1.0, 0.4], [0.5, 0.4, 1.0]]))
    >>> round(value, 3), round(error, 3)
    (0.6, 0.306)
    """
    n = len(between)
    if n < 2:
        return np.nan, np.nan
    mean = float(between[np.triu_indices(n, k=1)].mean())
    if n < 3:
        return mean, np.nan
    pairs = between - np.diag(np.diag(between))
    without = (pairs.sum() - 2.0 * pairs.sum(axis=0)) / ((n - 1) * (n - 2))
    return mean, float(np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2)))
