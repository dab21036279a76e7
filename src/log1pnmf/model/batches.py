"""Batches: every feature is captured with an efficiency of its own in every batch of samples.

The exposure of a count is ``t_ij = s_i q_bj``, with the batch b of its sample. The effects q of a feature
have the geometric mean 1 over the batches, and are pulled towards 1: `cost` sums ``strength * (q - log(q) -
1)``, as if every batch had seen `strength` counts of the feature more, and had expected as many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.checks import check_one_each, is_missing
from log1pnmf.counts.compress import Pattern, SparseRows
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.passes import ChunkedCounts

Array = NDArray[np.float64]

STRENGTH = 10.0  # of the prior, in counts
LARGEST_EFFECT = 1e9  # effects stay between its inverse and itself
OTHER = "(other)"  # name of the batch of new samples that are of no known batch: without effects
MOST_STEPS, PRECISION = 200, 1e-14


@dataclass(frozen=True, eq=False)
class Batches:
    """Which batch every sample is of, and how well each batch captures every feature."""

    labels: NDArray[np.int32]  # (n,): number of the batch of every sample
    effects: Array  # (B, m): positive
    strength: float = 0.0  # counts by which every effect is pulled towards 1
    names: tuple[str, ...] = ()  # of the batches; their numbers, unless given
    # which effects have no level: those of all counts together, because size factors are totals and have it;
    # or, if False, those of a typical feature
    by_counts: bool = True
    # sums that do not depend on the effects, and what they are of
    known: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        labels = np.ascontiguousarray(self.labels, dtype=np.int32)
        effects = np.ascontiguousarray(self.effects, dtype=np.float64)
        if labels.ndim != 1 or effects.ndim != 2:
            raise ValueError(
                "batches must have a label for every sample and effects of batches x features, "
                f"got shapes {labels.shape} and {effects.shape}"
            )
        if labels.size and not (labels.min() >= 0 and labels.max() < len(effects)):
            raise ValueError(
                f"labels of batches must be from 0 to {len(effects) - 1}, "
                f"got {labels.min()} to {labels.max()}"
            )
        if not (np.isfinite(effects) & (effects > 0.0)).all():
            raise ValueError("effects of batches must be positive and finite")
        names = self.names or tuple(map(str, range(len(effects))))
        if len(names) != len(effects) or len(set(names)) != len(names):
            raise ValueError(f"the {len(effects)} batches must have a name each, got {', '.join(names)}")
        self.__dict__.update(labels=labels, effects=effects, names=names)

    @classmethod
    def of(
        cls, given: Any, shape: tuple[int, int], strength: float = STRENGTH, *, by_counts: bool = True
    ) -> Batches:
        """Make batches of a label for every sample, without effects so far; numbered as they appear."""
        labels = batch_labels(given, shape[0])
        names = tuple(dict.fromkeys(labels))
        _check_batches(given, labels)
        number = {name: place for place, name in enumerate(names)}
        own = np.array([number[name] for name in labels], dtype=np.int32)
        return cls(own, np.ones((len(names), shape[1])), strength, names, by_counts)

    def for_samples(self, given: Any, n_samples: int) -> Batches:
        """Return the same effects for other samples; batches that are new, and None, have effects of 1."""
        labels = [OTHER] * n_samples if given is None else batch_labels(given, n_samples)
        number = {name: place for place, name in enumerate(dict.fromkeys((*self.names, *labels)))}
        effects = np.ones((len(number), self.effects.shape[1]))
        effects[: self.n_batches] = self.effects
        own = np.array([number[name] for name in labels], dtype=np.int32)
        return Batches(own, effects, self.strength, tuple(number), self.by_counts)

    @property
    def sample_names(self) -> NDArray[np.object_]:
        """Name of the batch of every sample."""
        return np.array(self.names, dtype=object)[self.labels]

    def differing(self, batch: int, most: int) -> NDArray[np.intp]:
        """Features on which a batch has the largest effects, up or down."""
        return np.argsort(-np.abs(np.log(self.effects[batch])), kind="stable")[:most]

    @property
    def n_batches(self) -> int:
        """Number of batches."""
        return len(self.effects)

    @cached_property
    def logs(self) -> Array:
        """Logarithms of the effects."""
        return np.asarray(np.log(self.effects))

    @property
    def cost(self) -> float:
        """What the effects cost in the objective; 0 where they are all 1."""
        return self.strength * float(self.effects.sum() - self.logs.sum() - self.effects.size)

    def of_samples(self, which: Any) -> Batches:
        """Batches of some samples, in that order."""
        return replace(self, labels=self.labels[which], known={})

    def of_features(self, which: Any) -> Batches:
        """Batches with the effects of some features."""
        return replace(self, effects=self.effects[:, which], known={})

    def rows(self, which: Any) -> Array:
        """Effects of some samples, samples x features."""
        return self.effects[self.labels[which]]

    def sums(self, weights: Array) -> Array:
        """Sum of a number of every sample in each batch."""
        return np.bincount(self.labels, weights, self.n_batches).astype(np.float64)

    def totals(self, counts: Counts) -> Array:
        """Sum of the counts of every feature in each batch, batches x features."""
        if isinstance(counts, ChunkedCounts):
            return counts.group_sums(self.labels, self.n_batches)[0]

        def find() -> Array:
            return np.asarray((self.members() @ counts.to_scipy()).todense(), dtype=np.float64)

        totals: Array = self._once("totals", find, counts)
        return totals

    def feature_weights(self, counts: Counts) -> Array:
        """Weigh the features in the level of a batch: by their counts, or by how far these decide."""

        def find() -> Array:
            weights = self.totals(counts).sum(axis=0)
            if not self.by_counts:
                weights = weights / np.maximum(weights + self.strength * self.n_batches, 1.0)
            return np.asarray(weights / max(float(weights.sum()), np.finfo(np.float64).tiny))

        weights: Array = self._once("weights", find, counts, self.by_counts, self.strength)
        return weights

    def exposure_of_zeros(self, counts: Counts, exposure: Array) -> float:
        """Sum of ``t_ij = exposure_i q_bj`` over all zero counts."""
        if isinstance(counts, ChunkedCounts):
            there = counts.group_sums(self.labels, self.n_batches, exposure)[1]
            rest = np.maximum(self.sums(exposure)[:, None] - there, 0.0)
            return float((rest * self.effects).sum())
        return float(np.einsum("bj,bj->", self.rest(counts, exposure)[0], self.effects))

    def exposure_of_rest(self, counts: Counts, exposure: Array, stored: Pattern | None = None) -> Array:
        """Return sums of t and t^2 over the zeros of every feature that are not stored, features x 2."""
        rest = self.rest(counts, exposure, stored)
        powers = self.effects, self.effects**2
        sums = [np.einsum("bj,bj->j", own, power) for own, power in zip(rest, powers, strict=True)]
        return np.stack(sums, axis=1)

    def rest(self, counts: Counts, exposure: Array, stored: Pattern | None = None) -> list[Array]:
        """Sum the exposure of samples, and its square, over the zeros that are not stored, were effects 1.

        Each is batches x features.
        """

        def without(sums: list[Array], rows: SparseRows | Pattern) -> list[Array]:
            ones = sparse.csr_array((np.ones(rows.nnz), rows.indices, rows.indptr), shape=rows.shape)
            products = (self.members(exposure**power) @ ones for power in (1, 2))
            return [own - part.todense() for own, part in zip(sums, products, strict=True)]

        def of_zeros() -> list[Array]:
            each = (self.sums(exposure**power)[:, None] for power in (1, 2))
            every = [np.tile(own, (1, self.effects.shape[1])) for own in each]
            return without(every, counts.on_host().by_row)

        def find() -> list[Array]:
            zeros = self._once("zeros", of_zeros, counts, exposure)
            return [np.maximum(own, 0.0) for own in (zeros if stored is None else without(zeros, stored))]

        rest: list[Array] = self._once("rest", find, counts, exposure, stored)
        return rest

    def _once(self, name: str, find: Callable[[], Any], *of: Any) -> Any:
        """Return what was found for the same things the last time, or find it."""
        known = self.known.get(name)
        if known is None or not all(
            one is other or (isinstance(one, np.ndarray) and np.array_equal(one, other))
            for one, other in zip(known[0], of, strict=True)
        ):
            known = self.known[name] = of, find()
        return known[1]

    def members(self, weights: Array | None = None) -> sparse.csr_array:
        """Which samples each batch has, batches x samples; ones, or weights of the samples."""
        n = len(self.labels)
        data = np.ones(n) if weights is None else weights
        return sparse.csr_array((data, (self.labels, np.arange(n))), shape=(self.n_batches, n))


def batch_labels(given: Any, n_samples: int) -> list[str]:
    """Check the labels of batches, one for every sample, and give them as text."""
    values = np.asarray(given, dtype=object)
    check_one_each("batch", values if values.ndim else given, n_samples)
    missing = [place for place, value in enumerate(values) if is_missing(value)]
    if missing:
        raise ValueError(
            f"batch must have a label for every sample, but {len(missing)} have none (first at position "
            f"{missing[0]}); drop these samples, or call them a batch of their own"
        )
    return [str(value) for value in values]


def _check_batches(given: Any, labels: list[str]) -> None:
    """Refuse a continuous column: fractions with several values, or numbers that hardly ever come twice."""
    values = np.asarray(given)
    if values.dtype == object and all(isinstance(value, int | float | np.number) for value in values):
        values = values.astype(np.float64)
    n_different = len(set(labels))
    fractions = values.dtype.kind == "f" and bool((values != np.rint(values)).any())
    if values.dtype.kind in "iuf" and n_different > (5 if fractions else max(5, len(labels) / 2)):
        raise ValueError(
            f"batch must be labels, got numbers with {n_different} values in {len(labels)} samples; "
            "cut them into ranges, for instance with pandas.qcut(values, 4), or convert them to text if they "
            "are labels"
        )


def balanced_effects(seen: Array, expected: Array) -> Array:
    """Minimise ``expected * q - seen * log(q)``, summed up, where the geometric mean of every column is 1.

    That is ``q = (seen + x) / expected``, with a number x for every column.
    """
    beyond, level = seen - seen.min(axis=0), np.log(expected).mean(axis=0)
    # the mean of log(beyond + exp(z)) is convex in z, with a slope of at least 1 / B: Newton comes from above
    z = level.copy()
    for _ in range(MOST_STEPS):
        effects = beyond + np.exp(z)
        off = np.log(effects).mean(axis=0) - level
        z -= off / (np.exp(z) / effects).mean(axis=0)
        if (np.abs(off) <= PRECISION).all():
            break
    # what is left of rounding, and of effects beyond all bounds
    logs = np.clip(np.log(effects / expected), -np.log(LARGEST_EFFECT), np.log(LARGEST_EFFECT))
    return np.exp(logs - logs.mean(axis=0))
