"""Sums of residuals over samples and features, block of samples by block, under the noise of a fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from log1pnmf.model.negative_binomial import NegativeBinomial
from log1pnmf.model.noise import Noise

from .deviances import expected_deviance

__all__ = ["Entries", "Largest", "Sums", "positive"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]

LEAST_MEAN = 1e-6
"""Where the model expects less, it expects nothing."""


@dataclass(frozen=True, eq=False)
class Entries:
    """Some entries of the counts, the most extreme first.

    Parameters
    ----------
    count, mean : ndarray
        What was counted, and what the fit expects.
    value : ndarray
        By which they were chosen.
    """

    sample: Index
    feature: Index
    count: Array
    mean: Array
    value: Array


class Sums:
    """What blocks of samples add up to: pairs are by sample and by feature."""

    def __init__(self, shape: tuple[int, int], n_entries: int, noise: Noise) -> None:
        self.noise = noise
        self.dispersion = noise.dispersion if isinstance(noise, NegativeBinomial) else None

        def pair() -> tuple[Array, Array]:
            return np.zeros(shape[0]), np.zeros(shape[1])

        self.deviance, self.expected, self.pearson, self.gap = pair(), pair(), pair(), pair()
        self.squares_of_samples, self.squares = pair()
        self.total, self.differences, self.means = (np.zeros(shape[1]) for _ in range(3))
        self.worst, self.gaps = Largest(n_entries), Largest(n_entries)
        self.has_gaps, self.n_unexpected = False, 0

    def add(self, rows: slice, y: Array, mean: Array, gap: Array | None) -> None:
        """Take in a block of samples."""
        deviance = np.maximum(2.0 * self.noise.loss(y, positive(mean)), 0.0)
        difference = (y - mean) ** 2
        variance = mean if self.dispersion is None else mean * (1.0 + self.dispersion * mean)
        never = (mean < LEAST_MEAN) & (y > 0.0)  # one of these would outweigh all others together
        self.n_unexpected += int(np.count_nonzero(never))
        expected = expected_deviance(mean, self.dispersion)
        terms = (deviance, expected, np.where(never, 0.0, difference / positive(variance)))
        for sums, values in zip((self.deviance, self.expected, self.pearson), terms, strict=True):
            sums[0][rows] = values.sum(axis=1)
            sums[1][:] += values.sum(axis=0)
        self.total += y.sum(axis=0)
        self.differences += difference.sum(axis=0)
        self.means += mean.sum(axis=0)
        self.squares += (mean**2).sum(axis=0)
        self.squares_of_samples[rows] = (mean**2).sum(axis=1)
        self.worst.add(rows, np.sign(y - mean) * np.sqrt(deviance), y, mean)
        if gap is not None:
            self.has_gaps = True
            self.gap[0][rows] = np.abs(gap).sum(axis=1)
            self.gap[1][:] += np.abs(gap).sum(axis=0)
            self.gaps.add(rows, gap, y, mean)


class Largest:
    """The entries with the largest absolute values seen so far."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.kept = [np.zeros(0) for _ in range(5)]

    def add(self, rows: slice, values: Array, y: Array, mean: Array) -> None:
        """Look at a block of samples."""
        size = np.abs(values).ravel()
        n = min(self.n, size.size)
        flat = np.argpartition(-size, n - 1)[:n] if n else np.zeros(0, dtype=np.intp)
        i, j = np.unravel_index(flat, values.shape)
        new = (i + rows.start, j, y[i, j], mean[i, j], values[i, j])
        joined = [np.concatenate(pair) for pair in zip(self.kept, new, strict=True)]
        order = np.argsort(-np.abs(joined[-1]), kind="stable")[: self.n]
        self.kept = [column[order] for column in joined]

    def found(self) -> Entries:
        """Give what was seen."""
        sample, feature, count, mean, value = self.kept
        return Entries(sample.astype(np.intp), feature.astype(np.intp), count, mean, value)


def positive(values: Array) -> Array:
    """Keep values away from zero, to divide by them."""
    return np.maximum(values, 1e-300)
