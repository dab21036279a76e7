"""Which features distinguish a factor from the others: the one order in which they are listed everywhere.

Take a typical sample with factor k: the mean of all samples, weighted by their loading on k. How much more of
a feature does it have than without the factor? Its other factors replace the factor: they are scaled up until
a feature that is the same in all samples keeps its rate, so that such a feature has fold change 1. Both rates
are rates of counts, whatever the link is, so their ratio means the same at every c.

With samples of two kinds and a factor for each, the other kind's factor replaces the factor. Where all
samples share a baseline, the baseline replaces it, at the rate to which it falls in these samples. A feature
of another factor that often comes along is in the replacement as well, and so it does not count.

Features are ranked by the lower end of an interval of the log fold change, from the numbers of counts that
the fit expects on both sides: large and certain. docs/results/tests.md compares this with other rankings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

from log1pnmf.model.noise import Array, ShiftedLog

from .fit import Fit, or_one

Order: TypeAlias = Literal["score", "log2_fold_change", "weight"]  # what features can be ranked by
ORDERS = get_args(Order)
# added to the expected counts on both sides, so that a feature without any has no fold change
ADDED_COUNTS = 1.0
CERTAINTY = 1.96  # standard errors that are taken off the logarithm of the fold change
# how much of the mean of all samples replaces a factor, beside more of the sample's other factors, which may
# be hardly anything
ALL_SAMPLES = 0.3
REACH = 2.0  # other factors may replace a factor with loadings of up to this many times those that occur


@dataclass(frozen=True, eq=False)
class StandIns:
    """Typical samples with each factor, and what replaces the factor in them."""

    own: Array  # (K, K): row k: mean loadings of the samples, weighted by size and loading on k
    rest: Array  # (K, K): row k: the same sample without factor k, the others scaled up in its place
    # (K,): whether the others can replace it: not a factor that all samples have, to which others are added.
    # Then `rest` is not scaled up
    comparable: NDArray[np.bool_]
    weight: Array  # (K,): how many average samples with full membership there are of each


def stand_ins(loadings: Array, size_factors: Array, excess: Array | None = None) -> StandIns:
    """Find what replaces each factor.

    >>> kinds = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])  # two kinds of samples
    >>> stand_ins(kinds, np.ones(4)).rest.round(2).tolist()
    [[0.0, 1.0], [1.0, 0.0]]

    >>> response = np.array([[1.0, 0.0], [1.0, 0.1], [0.8, 1.0], [0.8, 0.9]])  # the baseline falls a little
    >>> found = stand_ins(response, np.ones(4))
    >>> found.rest[1].round(2).tolist(), found.comparable.tolist()
    ([1.01, 0.0], [False, True])
    """
    weighted = loadings * size_factors[:, None]
    products, sums = loadings.T @ weighted, weighted.sum(axis=0)
    if excess is not None:
        products, sums = np.maximum(products - excess, 0.0), np.maximum(sums, 0.0)
    largest = loadings.max(axis=0, initial=0.0)
    own = products / or_one(sums)[:, None]
    constant = _constant_feature(products, sums)
    rest = own * ~np.eye(len(own), dtype=bool)
    more = (own + ALL_SAMPLES * sums / max(float(size_factors.sum()), 1e-300)) * ~np.eye(len(own), dtype=bool)
    missing, level = own.diagonal() * constant, more @ constant
    stand_in = rest + (missing / or_one(level))[:, None] * more
    comparable = (sums > 0.0) & (level > 0.0) & (stand_in <= REACH * largest).all(axis=1)
    rest = np.where(comparable[:, None], stand_in, rest)
    return StandIns(own, rest, comparable, sums / or_one(largest))


def _constant_feature(products: Array, sums: Array) -> Array:
    """Weights, none negative, of a feature that is as constant over the samples as factors can make it."""
    values, vectors = np.linalg.eigh(products)
    kept = values > 1e-12 * max(float(values[-1]), 1e-300)
    roots, vectors = np.sqrt(values[kept]), vectors[:, kept]
    if not kept.any():
        return np.zeros(len(sums))
    solution: Array = scipy.optimize.nnls(roots[:, None] * vectors.T, (vectors.T @ sums) / roots)[0]
    return solution


@dataclass(frozen=True, eq=False)
class Ranking:
    """How much each feature distinguishes each factor from the others; arrays of shape (m, K)."""

    # of the rate in a typical sample with the factor against that with more of its other factors instead, one
    # count added to both sides
    log2_fold_change: Array
    # lower end of its interval, for counts with the variance of the noise: features are ranked by it
    score: Array
    weight: Array  # the factors

    def top(self, k: int, n: int | None = None, by: str = "score") -> NDArray[np.intp]:
        """Find the first features of factor k, only such that there are more of with it."""
        order = np.argsort(-getattr(self, by)[:, k], kind="stable")
        more = self.weight if by == "weight" else self.log2_fold_change
        return order[more[order, k] > 0.0][:n]


def rank_features(
    loadings: Array,
    factors: Array,
    size_factors: Array,
    link: ShiftedLog,
    *,
    dispersion: Array | None = None,
    unmoved: Array | None = None,
) -> Ranking:
    """Rank features from loadings and factors on the link scale.

    `unmoved`: for each factor, the change of the rate of features that do not move; 1 by default.
    With a dispersion, the sum of n counts has the squared relative error 1 / expected count + dispersion / n.
    """
    around = stand_ins(loadings, size_factors)
    with_it, without = link.inverse(factors @ around.own.T), link.inverse(factors @ around.rest.T)
    totals = with_it.sum(axis=0) / or_one(without.sum(axis=0))
    without = without * np.where(around.comparable, 1.0, totals)
    if unmoved is not None:
        without = without * unmoved
    more, less = (ADDED_COUNTS + around.weight * rates for rates in (with_it, without))
    change = np.log(more / less)
    variance = 1.0 / more + 1.0 / less
    if dispersion is not None:
        variance += 2.0 * dispersion[:, None] / np.maximum(around.weight, 1.0)
    lower = change - CERTAINTY * np.sqrt(variance)
    return Ranking(change / np.log(2.0), lower / np.log(2.0), factors)


def ranking_of(fit: Fit, unmoved: Array | None = None) -> Ranking:
    """Rank the features of a fit; `unmoved` as in `rank_features`."""
    at = fit.loadings, fit.factors, fit.size_factors, fit.link
    return rank_features(*at, dispersion=fit.dispersion, unmoved=unmoved)
