"""Log-likelihood of counts that were held out, at means that a fit to other counts predicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from log1pnmf.counts.compress import dense_blocks
from log1pnmf.counts.counts import Counts, stirling

from .batches import Batches
from .noise import NegativeBinomial, ShiftedLog, excess_constant, log1p_ratio

Array = NDArray[np.float64]

BACKGROUND = 1e-3  # share of the rank-one background in the predicted means; see `score_parts`
OUTLIERS = 1e-3  # share of the entries of unseen samples that may be far off; see `score_entries`
BLOCK_ENTRIES = 1 << 18  # means computed at a time: they stay in the cache


@dataclass(frozen=True, eq=False)
class Rates:
    """Fitted means of a training part, ``s_i lam_ij``, and dispersions of its counts, if they have any."""

    loadings: Array
    factors: Array
    link: ShiftedLog
    size_factors: Array
    dispersion: Array | None = None
    batches: Batches | None = None

    def of_rows(self, rows: Any) -> Array:
        """Means of some samples."""
        means = self.size_factors[rows, None] * self.link.inverse(self.loadings[rows] @ self.factors.T)
        return means if self.batches is None else means * self.batches.rows(rows)

    def of_features(self, which: NDArray[np.intp]) -> Rates:
        """Return the means of some features."""
        dispersion = None if self.dispersion is None else self.dispersion[which]
        batches = None if self.batches is None else self.batches.of_features(which)
        return replace(self, factors=self.factors[which], dispersion=dispersion, batches=batches)

    def row_sums(self) -> Array:
        """Sum over the features of every sample's means."""
        if self.link.is_identity and self.batches is None:
            return self.size_factors * (self.loadings @ self.factors.sum(axis=0))
        eta_factors = np.ascontiguousarray(self.factors.T) / self.link.alpha
        exposure, sums = self.link.exposure_scale * self.size_factors, np.empty(len(self.loadings))
        for rows in dense_blocks((len(sums), len(self.factors)), BLOCK_ENTRIES):
            if self.batches is None:
                eta = self.loadings[rows] @ eta_factors
                sums[rows] = exposure[rows] * np.expm1(eta, out=eta).sum(axis=1)
            else:
                sums[rows] = self.of_rows(rows).sum(axis=1)
        return sums

    def at(self, i: NDArray[np.intp], j: NDArray[np.int32]) -> Array:
        """Means of some entries."""
        b = np.einsum("ek,ek->e", self.loadings[i], self.factors[j])
        means = self.size_factors[i] * self.link.inverse(b)
        return means if self.batches is None else means * self.batches.effects[self.batches.labels[i], j]


@dataclass(frozen=True, eq=False)
class Background:
    """Means without factors, ``size_i * profile_j``, and their share in what is predicted."""

    size: Array
    profile: Array
    share: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.share < 1.0:
            raise ValueError(f"background must be at least 0 and below 1, got {self.share}")


def score_parts(
    rates: Rates, train: Counts, test: Counts, *, test_fraction: float, background: float = BACKGROUND
) -> Array:
    """Score the test part of every sample whose training part has these rates.

    A little of what is predicted comes from a background that has no factors, made from the training part:
    otherwise one count where the mean is 0 would rule out a model.
    """
    totals = train.by_column.row_sums() + 0.5
    beside = Background(train.row_sums + 0.5, totals / totals.sum(), background)
    return score_entries(rates, test, beside, scale=test_fraction / (1.0 - test_fraction), seen=train)


def score_entries(
    rates: Rates,
    unseen: Counts,
    beside: Background,
    *,
    scale: float = 1.0,
    seen: Counts | None = None,
    outliers: float = 0.0,
) -> Array:
    """Log-likelihood of every sample, at `scale` times the rates mixed with the background.

    Of dispersed counts, given what was `seen` of the same entries. A share `outliers` of the entries may
    scatter by their whole mean, for samples of which nothing was fitted: loadings that come from few counts
    may be off by a little, and a mean of hundreds with them by hundreds. Without it a few samples decide
    which setting predicts best; it is the same for all fits that are compared.
    """
    if rates.dispersion is None and not outliers:
        return _poisson(rates, unseen, beside, scale=scale)
    score = np.empty(len(rates.loadings))
    for rows in dense_blocks(unseen.shape, BLOCK_ENTRIES):
        flat = beside.share * beside.size[rows, None] * beside.profile
        mean = (1.0 - beside.share) * rates.of_rows(rows) + flat
        y = unseen.by_row.to_dense(rows)
        phi = np.broadcast_to(0.0 if rates.dispersion is None else rates.dispersion, y.shape)
        if seen is not None:
            known = 1.0 + phi * seen.by_row.to_dense(rows)
            mean, phi = mean * known / (1.0 + phi * mean), phi / known
        entries = _log_likelihood(y, scale * mean, phi)
        if outliers:
            wide = _log_likelihood(y, scale * mean, np.maximum(phi, 1.0))
            entries = np.logaddexp(np.log1p(-outliers) + entries, np.log(outliers) + wide)
        score[rows] = entries.sum(axis=1)
    return score


def _log_likelihood(y: Array, mean: Array, phi: Array) -> Array:
    """Of every entry, negative binomial or, with ``phi = 0``, Poisson."""
    found, some = -mean * log1p_ratio(phi * mean), y > 0  # zeros; the others cost more
    y, mean, phi = y[some], mean[some], phi[some]
    found[some] = -(NegativeBinomial(phi).loss(y, mean) + stirling(y) + excess_constant(y, phi))
    return found


def _poisson(rates: Rates, counts: Counts, beside: Background, *, scale: float) -> Array:
    """Return the same for Poisson counts, whose zeros need only the sums of the rates."""
    own, flat = 1.0 - beside.share, beside.share * beside.size
    score = -scale * (own * rates.row_sums() + flat * beside.profile.sum())
    rows = counts.by_row
    for i, entries in rows.entry_blocks(max(1, BLOCK_ENTRIES // rates.loadings.shape[1])):
        j, y = rows.indices[entries], rows.values[entries].astype(np.float64)
        with np.errstate(divide="ignore"):
            log_mean = np.log(scale * (own * rates.at(i, j) + flat[i] * beside.profile[j]))
        score += np.bincount(i, y * log_mean - scipy.special.gammaln(y + 1.0), minlength=len(score))
    return score
