"""Diagnostics: features, samples and entries whose counts a fit does not explain.

**What a deviance is compared with.** The deviance of a count under its own Poisson law is not 1 on average
when the mean is small: it goes to zero with it. Deviances of features and samples are therefore divided by
what the model itself expects of them, so that 1 is a good fit whatever the depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy
from scipy.stats import median_abs_deviation, poisson

from log1pnmf.counts.counts import Counts
from log1pnmf.counts.sparse_rows import dense_blocks
from log1pnmf.fitting.as_fit import fit_and_counts
from log1pnmf.fitting.fit import Fit
from log1pnmf.model.objective import BLOCK_BYTES
from log1pnmf.model.zeros import Quadratic, quadratic

__all__ = ["OUTLYING", "Diagnostics", "diagnose"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]

OUTLYING = 5.0
"""Robust standard deviations above the median from which a sample is an outlier."""

ARRAYS_PER_BLOCK = 10
LEAST_MEAN = 1e-6
LEAST_TABLED, LARGEST_TABLED = 1e-9, 200.0
"""Means between which the expected deviance is tabled; above it is ``1 + 1 / (6 mean)``."""


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


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How well features, samples and entries are explained; make one with `diagnose`.

    Parameters
    ----------
    feature_mean : ndarray of shape (m,)
        Mean count.
    feature_deviance : ndarray of shape (m,)
        Deviance as a multiple of what the model expects; NaN where it expects none.
    feature_dispersion : ndarray of shape (m,)
        Pearson's chi-square over its degrees of freedom: variance as a multiple of Poisson's.
    feature_overdispersion : ndarray of shape (m,)
        Estimate (of moments, at least 0) of ``phi`` in the variance ``mean + phi mean**2``.
    sample_deviance, sample_dispersion : ndarray of shape (n,)
        The same of samples.
    sample_score : ndarray of shape (n,)
        Robust standard deviations of the log of `sample_deviance` above its median.
    worst : Entries
        With the largest deviance residuals (signed roots of the deviance), which are their values.
    feature_gap, sample_gap : ndarray of shape (m,) and (n,), or None
        Log-likelihood that the approximation at zero counts misjudges (sum of absolute values); None unless
        the fit is of ``likelihood="approximate"``.
    gaps : Entries or None
        Zero counts with the largest gap, signed: exact minus approximate mean.
    overdispersion : float
        `phi` of all entries together.
    n_unexpected : int
        Counts where the model expects none (a mean below 1e-6), as there may be in counts it was not fitted
        to; they are left out of Pearson's chi-square.
    feature_names, sample_names : ndarray of str
    """

    feature_mean: Array
    feature_deviance: Array
    feature_dispersion: Array
    feature_overdispersion: Array
    sample_deviance: Array
    sample_dispersion: Array
    sample_score: Array
    worst: Entries
    feature_gap: Array | None
    sample_gap: Array | None
    gaps: Entries | None
    overdispersion: float
    n_unexpected: int
    feature_names: NDArray[np.object_] = field(repr=False)
    sample_names: NDArray[np.object_] = field(repr=False)

    def outliers(self, threshold: float = OUTLYING) -> Index:
        """Find samples that are explained much worse than the others, the worst first.

        Parameters
        ----------
        threshold : float
            Robust standard deviations above the median.

        Returns
        -------
        ndarray of int
        """
        order = np.argsort(-self.sample_score, kind="stable")
        return order[self.sample_score[order] > threshold]

    @property
    def features(self) -> dict[str, Any]:
        """One row per feature; ``pandas.DataFrame(features)`` shows it."""
        return _with_gap(
            {
                "feature": self.feature_names,
                "mean": self.feature_mean,
                "deviance": self.feature_deviance,
                "dispersion": self.feature_dispersion,
                "overdispersion": self.feature_overdispersion,
            },
            self.feature_gap,
        )

    @property
    def samples(self) -> dict[str, Any]:
        """One row per sample; ``pandas.DataFrame(samples)`` shows it."""
        return _with_gap(
            {
                "sample": self.sample_names,
                "deviance": self.sample_deviance,
                "dispersion": self.sample_dispersion,
                "score": self.sample_score,
            },
            self.sample_gap,
        )

    def entries(self, which: Entries | None = None) -> dict[str, Any]:
        """One row per entry; ``pandas.DataFrame(entries)`` shows it.

        Parameters
        ----------
        which : Entries, optional
            By default `worst`; `gaps` is the other.

        Returns
        -------
        dict of str to ndarray
        """
        shown = self.worst if which is None else which
        return {
            "sample": self.sample_names[shown.sample],
            "feature": self.feature_names[shown.feature],
            "count": shown.count,
            "mean": shown.mean,
            "value": shown.value,
        }

    def summary(self, n_top: int = 5) -> str:
        """Say in words what is to be known.

        Parameters
        ----------
        n_top : int
            Features, samples and entries named.

        Returns
        -------
        str
            To be printed.
        """
        dispersion = float(np.nanmedian(self.feature_dispersion))
        worst = np.argsort(-np.nan_to_num(self.feature_dispersion), kind="stable")[:n_top]
        named = ", ".join(f"{self.feature_names[j]} ({self.feature_dispersion[j]:.3g})" for j in worst)
        outliers = self.outliers()
        samples = ", ".join(str(self.sample_names[i]) for i in outliers[:n_top]) or "none"
        lines = [
            f"Variance of a feature: {dispersion:.2f} times Poisson's (median); most in {named}",
            f"Overdispersion: variance = mean + {self.overdispersion:.3g} mean^2, over all entries",
            f"Outlying samples: {len(outliers):,} of {len(self.sample_score):,}: {samples}",
        ]
        if self.n_unexpected:
            lines.append(f"Counts where the model expects none: {self.n_unexpected:,}, not in the variances")
        if self.gaps is not None and self.feature_gap is not None:
            most = np.argsort(-self.feature_gap, kind="stable")[:n_top]
            named = ", ".join(f"{self.feature_names[j]} ({self.feature_gap[j]:.3g})" for j in most)
            lines.append(f"Misjudged by the approximation, in units of log-likelihood: most in {named}")
        return "\n".join(lines)


def diagnose(fit: Any, counts: Any, *, n_entries: int = 50, feature_names: Any = None) -> Diagnostics:
    """Compare a fit with its counts.

    Parameters
    ----------
    fit : Fit, or what `log1pnmf.as_fit` takes
    counts : array, sparse matrix or data frame of shape (n_samples, n_features)
        What it was fitted to. All entries are visited, in blocks of samples; of counts in chunks only those
        of the samples that are kept in memory, up to 8,192 at random.
    n_entries : int
        Extreme entries that are kept.
    feature_names : sequence of str, optional
        By default those of the fit.

    Returns
    -------
    Diagnostics

    Examples
    --------
    >>> import numpy as np
    >>> from log1pnmf import Log1pNMF
    >>> counts = np.random.default_rng(0).poisson(3.0, size=(60, 30))
    >>> counts[7] = np.arange(30) ** 2 % 29  # unlike all others
    >>> found = diagnose(Log1pNMF(1, random_state=0).fit(counts), counts)
    >>> found.outliers().tolist(), bool(0.8 < np.median(found.feature_deviance) < 1.6)
    ([7], True)
    """
    fit, whole = fit_and_counts(fit, counts)
    counts, rows_in_memory = whole.part_in_memory()
    sums = _Sums(counts.shape, n_entries)
    for rows, y, mean, gap in _blocks(fit, counts, rows_in_memory):
        sums.add(rows, y, mean, gap)
    n, m = counts.shape
    names = fit.named(feature_names=feature_names).feature_labels
    samples = counts.sample_names
    if samples is None:
        samples = rows_in_memory.astype(str).astype(object)
    gaps = sums.gaps.found() if sums.has_gaps else None
    sample_deviance = _ratio(sums.deviance[0], sums.expected[0])
    # Every feature and every sample has K coefficients: the part of the residuals' squares that is left.
    left = max(1.0 - fit.n_components / n, 1.0 / n) * max(1.0 - fit.n_components / m, 1.0 / m)
    excess = sums.differences / left - sums.means
    return Diagnostics(
        feature_mean=sums.total / n,
        feature_deviance=_ratio(sums.deviance[1], sums.expected[1]),
        feature_dispersion=np.where(sums.total > 0.0, sums.pearson[1] / (left * n), np.nan),
        feature_overdispersion=np.maximum(_ratio(excess, sums.squares), 0.0),
        sample_deviance=sample_deviance,
        sample_dispersion=np.where(sums.squares_of_samples > 0.0, sums.pearson[0] / (left * m), np.nan),
        sample_score=_robust_score(sample_deviance),
        worst=sums.worst.found(),
        feature_gap=sums.gap[1] if sums.has_gaps else None,
        sample_gap=sums.gap[0] if sums.has_gaps else None,
        gaps=gaps,
        overdispersion=max(float(excess.sum() / max(sums.squares.sum(), 1e-300)), 0.0),
        n_unexpected=sums.n_unexpected,
        feature_names=names,
        sample_names=samples,
    )


# ---------------------------------------------------------------- sums over entries


class _Sums:
    """What blocks of samples add up to: pairs are by sample and by feature."""

    def __init__(self, shape: tuple[int, int], n_entries: int) -> None:
        def pair() -> tuple[Array, Array]:
            return np.zeros(shape[0]), np.zeros(shape[1])

        self.deviance, self.expected, self.pearson, self.gap = pair(), pair(), pair(), pair()
        self.squares_of_samples, self.squares = pair()
        self.total, self.differences, self.means = (np.zeros(shape[1]) for _ in range(3))
        self.worst, self.gaps = _Largest(n_entries), _Largest(n_entries)
        self.has_gaps, self.n_unexpected = False, 0

    def add(self, rows: slice, y: Array, mean: Array, gap: Array | None) -> None:
        """Take in a block of samples."""
        deviance = np.maximum(2.0 * (xlogy(y, np.where(y > 0.0, y, 1.0) / _positive(mean)) - (y - mean)), 0.0)
        difference = (y - mean) ** 2
        never = (mean < LEAST_MEAN) & (y > 0.0)  # one of these would outweigh all others together
        self.n_unexpected += int(np.count_nonzero(never))
        terms = (deviance, expected_deviance(mean), np.where(never, 0.0, difference / _positive(mean)))
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


class _Largest:
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


def _blocks(fit: Fit, counts: Counts, place: Index) -> Iterator[tuple[slice, Array, Array, Array | None]]:
    """Give samples, counts, means and gaps of the approximation (at zero counts), block by block.

    `place` says which samples of the fit the counts are of.
    """
    approximation: Quadratic | None = None
    if fit.settings.likelihood == "approximate" and not fit.link.is_identity:
        approximation = quadratic(fit.link, fit.settings.approximation, fit.settings.interval)
    for rows in dense_blocks(counts.shape, BLOCK_BYTES / (8 * ARRAYS_PER_BLOCK)):
        y = counts.by_row.to_dense(rows)
        eta = fit.loadings[place[rows]] @ fit.factors.T / fit.link.alpha
        sizes = fit.size_factors[place[rows], None]
        mean = sizes * fit.link.mean(eta)
        gap = None
        if approximation is not None:
            gap = np.where(y > 0.0, 0.0, mean - fit.link.exposure_scale * sizes * approximation.value(eta))
        yield rows, y, mean, gap


def expected_deviance(mean: Array) -> Array:
    """Deviance that a Poisson count with this mean has on average.

    Examples
    --------
    >>> expected_deviance(np.array([0.0, 0.01, 1.0, 1000.0])).round(3).tolist()
    [0.0, 0.092, 1.147, 1.0]
    """
    grid, values = _deviance_table()
    inside = np.interp(np.log(np.clip(mean, LEAST_TABLED, LARGEST_TABLED)), grid, values)
    inside *= np.minimum(mean / LEAST_TABLED, 1.0)
    return np.where(mean > LARGEST_TABLED, 1.0 + 1.0 / (6.0 * _positive(mean)), inside)


@cache
def _deviance_table() -> tuple[Array, Array]:
    grid = np.linspace(np.log(LEAST_TABLED), np.log(LARGEST_TABLED), 600)
    mean = np.exp(grid)[:, None]
    y = np.arange(400.0)[None, :]
    deviance = 2.0 * (xlogy(y, np.where(y > 0.0, y, 1.0) / mean) - (y - mean))
    return grid, (poisson.pmf(y, mean) * deviance).sum(axis=1)


def _robust_score(ratios: Array) -> Array:
    """Robust standard deviations of the logarithms above their median."""
    logs = np.log(np.where(ratios > 0.0, ratios, np.nan))
    if np.isnan(logs).all():
        return np.zeros(len(ratios))
    spread = float(median_abs_deviation(logs, scale="normal", nan_policy="omit"))
    return np.nan_to_num((logs - np.nanmedian(logs)) / spread) if spread > 0.0 else np.zeros(len(ratios))


def _with_gap(columns: dict[str, Any], gap: Array | None) -> dict[str, Any]:
    return columns if gap is None else {**columns, "gap": gap}


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.full(len(a), np.nan), where=b > 0.0)


def _positive(values: Array) -> Array:
    return np.maximum(values, 1e-300)
