"""The means of every feature, condensed: few nodes stand for all samples, in sums of smooth functions.

Logarithms of means lie in bins of width 1. With ``d`` from -1 to 1 inside of a bin, all that is kept of its
means are the sums of ``d**0`` to ``d**7``, once over all samples and once weighed by the counts. Chunks
can be added up. Eight Chebyshev nodes with weights that have the same sums take
the place of the means: ``log(1 + phi * mean)`` and its derivatives are then right to about 1e-9.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from numpy.typing import NDArray

from log1pnmf.counts.counts import Tally

Array = NDArray[np.float64]

POWERS, N_BINS = 8, 22
ABOVE = 5.0
"""The last bin ends so far above the logarithm of the largest count: means are hardly ever larger. Those that
are less than the largest count by more than ``exp(17)`` are too small to say anything about a dispersion."""
FEWEST_SAMPLES = 1000
"""With fewer, looking at all means costs no more."""


@dataclass(frozen=True, eq=False)
class MeanSpectrum:
    """Sums over the samples seen so far."""

    low: Array  # (m,): where the first bin of every feature begins
    # (m, N_BINS, POWERS): sums of the powers: of all entries, and weighed by the counts
    entries: Array
    counted: Array
    n_free: Array  # (1,): loadings that are not zero

    @classmethod
    def zeros(cls, low: Array) -> MeanSpectrum:
        """Make the sums over no samples."""
        shape = (len(low), N_BINS, POWERS)
        return cls(low, np.zeros(shape), np.zeros(shape), np.zeros(1))

    @staticmethod
    def low_for(tally: Tally) -> Array:
        """Describe where the bins of features with these counts begin."""
        largest = np.zeros(len(tally.indptr) - 1)
        np.maximum.at(largest, tally.feature, tally.values)
        return np.log(np.maximum(largest, 1.0)) + (ABOVE - N_BINS)

    def plus(self, other: MeanSpectrum) -> MeanSpectrum:
        """Return new sums over the samples of both."""
        return MeanSpectrum(
            self.low,
            self.entries + other.entries,
            self.counted + other.counted,
            self.n_free + other.n_free,
        )

    def nodes(self) -> Nodes:
        """Return the nodes of the bins that are not empty."""
        x = chebpts1(POWERS)
        weights = np.linalg.inv(np.vander(x, POWERS, increasing=True))
        feature, number = np.nonzero(self.entries[:, :, 0])
        means = np.exp((self.low[feature] + number)[:, None] + 0.5 * (1.0 + x))
        sides = (one[feature, number] @ weights for one in (self.entries, self.counted))
        lengths = np.bincount(feature, minlength=len(self.low))
        return Nodes(np.concatenate(([0], np.cumsum(lengths))), means, *sides)


@dataclass(frozen=True, eq=False)
class Nodes:
    """Means that stand for all, with weights."""

    # (m + 1,): feature j has the bins ``indptr[j]`` to ``indptr[j + 1]``, at least one
    indptr: NDArray[np.int64]
    means: Array
    entries: Array
    counted: Array

    def of(self, which: NDArray[np.intp]) -> Nodes:
        """Return those of some features, in that order."""
        lengths = np.diff(self.indptr)[which]
        indptr = np.concatenate(([0], np.cumsum(lengths)))
        at = np.repeat(self.indptr[which] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return Nodes(indptr, self.means[at], self.entries[at], self.counted[at])

    def spread(self, numbers: Array) -> Array:
        """Repeat a number of every feature for its nodes."""
        return np.repeat(numbers, np.diff(self.indptr))[:, None]

    def sums(self, terms: Array, weights: Array) -> Array:
        """Sum over the nodes of every feature."""
        return np.add.reduceat(np.einsum("ij,ij->i", terms, weights), self.indptr[:-1])
