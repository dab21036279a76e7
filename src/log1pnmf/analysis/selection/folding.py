"""What is fitted in a fold and how a fit is judged: held-out counts, or held-out samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from log1pnmf.analysis.heldout import (
    heldout_by_sample,
    heldout_features_by_sample,
    training_by_sample,
)
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import folds, training_size_factors
from log1pnmf.fitting.fit import Fit
from log1pnmf.model.batch_effects import first_effects
from log1pnmf.model.batches import Batches

__all__ = ["HOLDOUTS", "Fold", "Training", "make_folds"]

Array = NDArray[np.float64]

HOLDOUTS = ("counts", "samples")


class Training(Protocol):
    """What is fitted: all counts, or those that are not held out."""

    @property
    def number(self) -> int:
        """Which fold; for all counts the number of folds."""
        ...

    @property
    def train(self) -> Counts:
        """The counts."""
        ...

    @property
    def size_factors(self) -> Array:
        """Of the training samples, such that c means what it means in the whole data."""
        ...

    @property
    def batches(self) -> Batches | None:
        """Of the training samples; a fit begins with their effects."""
        ...

    @property
    def penalty_scale(self) -> float:
        """Share of the whole data's log-likelihood that is fitted, which the penalty is weighed against."""
        ...


class Fold(Training, Protocol):
    """One way to hold something out."""

    def score(self, fit: Fit) -> Array:
        """Held-out log-likelihood of every sample of the whole data, 0 for those that are not scored."""
        ...

    def fitted(self, fit: Fit) -> Array:
        """Log-likelihood of the training counts of every sample, where it tells values of c apart, or 0."""
        ...


def make_folds(
    counts: Counts,
    n_folds: int,
    *,
    holdout: str,
    test_fraction: float,
    size_factors: Any,
    seed: int,
    batches: Batches | None = None,
) -> list[Fold]:
    """Split the data `n_folds` times."""
    rng = np.random.default_rng([seed, 0])
    made: list[Fold] = []
    if holdout == "counts":
        pairs = folds(counts, n_folds, test_fraction=test_fraction, random_state=rng)
        for k, (train, test) in enumerate(pairs):
            sizes = training_size_factors(train, test_fraction, size_factors)
            first = None if batches is None else first_effects(batches, train, sizes)
            made.append(_HeldOutCounts(k, train, sizes, test, test_fraction, first))
        return made
    full = counts.size_factors(size_factors)
    by_total = isinstance(size_factors, str) and size_factors in ("total", "fit")
    n_scored = max(1, round(test_fraction * counts.n_features))
    for k, part in enumerate(np.array_split(rng.permutation(counts.n_samples), n_folds)):
        rows = np.sort(part)
        others = np.setdiff1d(np.arange(counts.n_samples), rows)
        train, first = _samples(counts, others), None
        if batches is not None:
            first = first_effects(batches.of_samples(others), train, full[others])
        made.append(
            _HeldOutSamples(
                number=k,
                train=train,
                size_factors=full[others],
                new=_samples(counts, rows),
                new_size_factors=None if by_total else full[rows],
                rows=rows,
                scored=np.sort(rng.permutation(counts.n_features)[:n_scored]),
                n_samples=counts.n_samples,
                batches=first,
                new_batches=None if batches is None else batches.of_samples(rows),
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
    batches: Batches | None = None

    @property
    def penalty_scale(self) -> float:
        return 1.0 - self.test_fraction

    def score(self, fit: Fit) -> Array:
        return heldout_by_sample(fit, self.train, self.test, test_fraction=self.test_fraction)

    def fitted(self, fit: Fit) -> Array:
        """With negative binomial noise only: given the training counts, the others hardly depend on c."""
        return np.zeros(len(fit.loadings)) if fit.dispersion is None else training_by_sample(fit, self.train)


@dataclass(frozen=True, eq=False)
class _HeldOutSamples:
    """Some samples are held out; some of their features give the loadings, the others are scored."""

    number: int
    train: Counts
    size_factors: Array
    new: Counts
    new_size_factors: Array | None
    rows: NDArray[np.intp]
    scored: NDArray[np.intp]
    n_samples: int
    batches: Batches | None = None
    new_batches: Batches | None = None

    @property
    def penalty_scale(self) -> float:
        return self.train.n_samples / self.n_samples

    def score(self, fit: Fit) -> Array:
        scores, batches = np.zeros(self.n_samples), self.new_batches
        if batches is not None and fit.batches is not None:  # effects of training
            batches = replace(batches, effects=fit.batches.effects, known={})
        scores[self.rows] = heldout_features_by_sample(
            fit,
            self.train,
            self.new,
            scored=self.scored,
            size_factors=self.new_size_factors,
            batches=batches,
            n_jobs=1,
        )
        return scores

    def fitted(self, fit: Fit) -> Array:
        """Nothing of these samples was fitted."""
        return np.zeros(self.n_samples)
