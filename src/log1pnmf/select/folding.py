"""What is fitted in a fold and how a fit is judged: held-out counts, or held-out samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts import Counts
from log1pnmf.heldout import heldout_by_sample, heldout_rows_by_sample
from log1pnmf.result import Fit
from log1pnmf.splitting import folds, split_counts, training_size_factors

__all__ = ["HOLDOUTS", "Fold", "make_folds"]

Array = NDArray[np.float64]

HOLDOUTS = ("counts", "samples")


class Fold(Protocol):
    """One way to hold something out."""

    @property
    def number(self) -> int:
        """Which one."""
        ...

    @property
    def train(self) -> Counts:
        """What is fitted."""
        ...

    @property
    def size_factors(self) -> Array:
        """Of the training samples, such that c means what it means in the whole data."""
        ...

    @property
    def penalty_scale(self) -> float:
        """Share of the whole data's log-likelihood that is fitted, which the penalty is weighed against."""
        ...

    def score(self, fit: Fit) -> Array:
        """Held-out log-likelihood of every sample of the whole data, 0 for those that are not scored."""
        ...


def make_folds(
    counts: Counts, n_folds: int, *, holdout: str, test_fraction: float, size_factors: Any, seed: int
) -> list[Fold]:
    """Split the data.

    Parameters
    ----------
    counts : Counts
    n_folds : int
    holdout : {"counts", "samples"}
    test_fraction : float
    size_factors : {"total", "none"} or array
    seed : int

    Returns
    -------
    list of Fold
    """
    rng = np.random.default_rng([seed, 0])
    if holdout == "counts":
        pairs = folds(counts, n_folds, test_fraction=test_fraction, random_state=rng)
        return [
            _HeldOutCounts(
                k, train, training_size_factors(train, test_fraction, size_factors), test, test_fraction
            )
            for k, (train, test) in enumerate(pairs)
        ]
    full = counts.size_factors(size_factors)
    by_total = isinstance(size_factors, str) and size_factors == "total"
    parts = np.array_split(rng.permutation(counts.n_samples), n_folds)
    made: list[Fold] = []
    for k, part in enumerate(parts):
        rows = np.sort(part)
        others = np.setdiff1d(np.arange(counts.n_samples), rows)
        seen, unseen = split_counts(_samples(counts, rows), test_fraction, random_state=rng)
        sizes = (1.0 - test_fraction) * full[rows]
        if by_total:  # of what is seen only, on the scale of the whole data
            sizes = np.where(seen.row_sums > 0, seen.row_sums / counts.row_sums.mean(), 1.0)
        made.append(
            _HeldOutSamples(
                number=k,
                train=_samples(counts, others),
                size_factors=full[others],
                seen=seen,
                unseen=unseen,
                seen_size_factors=sizes,
                rows=rows,
                n_samples=counts.n_samples,
                test_fraction=test_fraction,
            )
        )
    return made


def _samples(counts: Counts, rows: NDArray[np.intp]) -> Counts:
    return Counts.from_any(counts.to_scipy()[rows])


@dataclass(frozen=True, eq=False)
class _HeldOutCounts:
    """A share of all counts is held out; the training part was seen with the exposure that is left."""

    number: int
    train: Counts
    size_factors: Array
    test: Counts
    test_fraction: float

    @property
    def penalty_scale(self) -> float:
        return 1.0 - self.test_fraction

    def score(self, fit: Fit) -> Array:
        return heldout_by_sample(fit, self.train, self.test, test_fraction=self.test_fraction)


@dataclass(frozen=True, eq=False)
class _HeldOutSamples:
    """Some samples are held out; their loadings come from a part of their counts, the rest is scored."""

    number: int
    train: Counts
    size_factors: Array
    seen: Counts
    unseen: Counts
    seen_size_factors: Array
    rows: NDArray[np.intp]
    n_samples: int
    test_fraction: float

    @property
    def penalty_scale(self) -> float:
        return self.train.n_samples / self.n_samples

    def score(self, fit: Fit) -> Array:
        scores = np.zeros(self.n_samples)
        scores[self.rows] = heldout_rows_by_sample(
            fit,
            self.seen,
            self.unseen,
            size_factors=self.seen_size_factors,
            test_fraction=self.test_fraction,
            n_jobs=1,
        )
        return scores
