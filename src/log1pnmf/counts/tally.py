"""How often every feature has every count: all that constants of a likelihood need to know of the counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .sparse_rows import CHUNK, SparseRows, row_blocks

__all__ = ["Tally"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tally:
    """How often every feature has every count above zero.

    Parameters
    ----------
    indptr : ndarray of int64, shape (m + 1,)
        Feature j has the entries ``indptr[j]`` to ``indptr[j + 1]``.
    values, times : ndarray of float64
        The counts that a feature has, ascending, and how often.

    Examples
    --------
    >>> tally = Tally.of(SparseRows((1, 4), np.array([0, 3]), np.array([0, 1, 3]), np.array([2.0, 1.0, 2.0])))
    >>> tally.values.tolist(), tally.times.tolist()
    ([1.0, 2.0], [1.0, 2.0])
    """

    indptr: NDArray[np.int64]
    values: Array
    times: Array

    @classmethod
    def of(cls, rows: SparseRows) -> Tally:
        """Tally counts, features x samples."""
        parts = []
        for start, stop in row_blocks(rows.indptr, CHUNK):
            bounds = rows.indptr[start : stop + 1]
            values = rows.values[bounds[0] : bounds[-1]].astype(np.float64)
            feature = np.repeat(np.arange(start, stop), np.diff(bounds))
            parts.append(_merged(feature, values, np.ones(len(values))))
        return cls._from(rows.shape[0], *map(np.concatenate, zip(*parts, strict=True)))

    @classmethod
    def none(cls, n_features: int) -> Tally:
        """Make the tally of no samples."""
        return cls(np.zeros(n_features + 1, dtype=np.int64), np.zeros(0), np.zeros(0))

    @classmethod
    def _from(cls, n_features: int, feature: NDArray[np.int64], values: Array, times: Array) -> Tally:
        lengths = np.bincount(feature, minlength=n_features)
        return cls(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64), values, times)

    @property
    def feature(self) -> NDArray[np.int64]:
        """Feature of every entry."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def plus(self, other: Tally) -> Tally:
        """Tally the samples of both."""
        sides = [(one.feature, one.values, one.times) for one in (self, other)]
        merged = _merged(*(np.concatenate(pair) for pair in zip(*sides, strict=True)))
        return Tally._from(len(self.indptr) - 1, *merged)

    def sums(self, terms: Array) -> Array:
        """Sum a number of every entry over the samples that have it, for every feature."""
        weights = self.times * terms
        return np.bincount(self.feature, weights, len(self.indptr) - 1).astype(np.float64)


def _merged(
    feature: NDArray[np.int64], values: Array, times: Array
) -> tuple[NDArray[np.int64], Array, Array]:
    """Sort entries by feature and count, and add up those that are the same."""
    if not len(values):
        return feature, values, times
    order = np.lexsort((values, feature))
    feature, values, times = feature[order], values[order], times[order]
    new = (np.diff(feature, prepend=-1) != 0) | (np.diff(values, prepend=np.nan) != 0.0)
    first = np.flatnonzero(new)
    return feature[first], values[first], np.add.reduceat(times, first)
