"""Diagnostics: features, samples and entries whose counts a fit does not explain.

**What a deviance is compared with.** The deviance of a count under its own law is not 1 on average when the
mean is small: it goes to zero with it. Deviances of features and samples are therefore divided by what the
model itself expects of them, so that 1 is a good fit whatever the depth.

**Which noise.** Deviances, their expectations and Pearson's chi-squares are those of the noise of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from log1pnmf.counts.counts import Counts
from log1pnmf.counts.sparse_rows import dense_blocks
from log1pnmf.fitting.as_fit import fit_and_counts
from log1pnmf.fitting.fit import Fit
from log1pnmf.model.dispersion import renewed
from log1pnmf.model.negative_binomial import NegativeBinomial
from log1pnmf.model.objective import BLOCK_BYTES
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import Quadratic, quadratic

from .residual_sums import Entries, Sums

__all__ = ["OUTLYING", "Diagnostics", "diagnose"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]

OUTLYING = 5.0
"""Robust standard deviations above the median from which a sample is an outlier."""

OWN = {"poisson": "Poisson's", "nb": "that of the negative binomial"}
"""Whose variance that of a feature is compared with."""

ARRAYS_PER_BLOCK = 10


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
        Pearson's chi-square over its degrees of freedom: variance as a multiple of that of the noise.
    feature_overdispersion : ndarray of shape (m,)
        Estimate (of moments, at least 0) of ``phi`` in the variance ``mean + phi mean**2``.
    sample_deviance, sample_dispersion : ndarray of shape (n,)
        The same for samples.
    sample_score : ndarray of shape (n,)
        Robust standard deviations of the log of `sample_deviance` above its median.
    worst : Entries
        Entries with the largest deviance residuals (signed roots of the deviance), and these residuals.
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
        Names of features and samples.
    noise : {"poisson", "nb"}
        Of the fit.
    fitted_dispersion : ndarray of shape (m,) or None
        `phi` of every feature that a fit with negative binomial noise has.
    trend : ndarray of shape (m,) or None
        Dispersions that the mean counts suggest, if the fit estimated one for each feature; it pulls its
        estimates towards them.
    trend_spread : float
        Standard deviation of the logarithm of dispersions around the trend, as estimated from all features.
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
    noise: str = "poisson"
    fitted_dispersion: Array | None = None
    trend: Array | None = None
    trend_spread: float = math.nan

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
        return _with_more(
            {
                "feature": self.feature_names,
                "mean": self.feature_mean,
                "deviance": self.feature_deviance,
                "dispersion": self.feature_dispersion,
                "overdispersion": self.feature_overdispersion,
            },
            fitted_dispersion=self.fitted_dispersion,
            trend=self.trend,
            gap=self.feature_gap,
        )

    @property
    def samples(self) -> dict[str, Any]:
        """One row per sample; ``pandas.DataFrame(samples)`` shows it."""
        return _with_more(
            {
                "sample": self.sample_names,
                "deviance": self.sample_deviance,
                "dispersion": self.sample_dispersion,
                "score": self.sample_score,
            },
            gap=self.sample_gap,
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
        """Summarise the diagnostics in words.

        Parameters
        ----------
        n_top : int
            Number of features, samples and entries to name.

        Returns
        -------
        str
            Text to print.
        """
        dispersion = float(np.nanmedian(self.feature_dispersion))
        worst = np.argsort(-np.nan_to_num(self.feature_dispersion), kind="stable")[:n_top]
        named = ", ".join(f"{self.feature_names[j]} ({self.feature_dispersion[j]:.3g})" for j in worst)
        outliers = self.outliers()
        samples = ", ".join(str(self.sample_names[i]) for i in outliers[:n_top]) or "none"
        lines = [
            f"Variance of a feature: {dispersion:.2f} times {OWN[self.noise]} (median); most in {named}",
            f"Overdispersion: variance = mean + {self.overdispersion:.3g} mean^2, over all entries",
            *self._fitted(),
            f"Outlying samples: {len(outliers):,} of {len(self.sample_score):,}: {samples}",
        ]
        if self.n_unexpected:
            lines.append(f"Counts where the model expects none: {self.n_unexpected:,}, not in the variances")
        if self.gaps is not None and self.feature_gap is not None:
            most = np.argsort(-self.feature_gap, kind="stable")[:n_top]
            named = ", ".join(f"{self.feature_names[j]} ({self.feature_gap[j]:.3g})" for j in most)
            lines.append(f"Error of the approximation, in units of log-likelihood; largest in {named}")
        return "\n".join(lines)

    def _fitted(self) -> list[str]:
        """Say what dispersions the fit has."""
        if self.fitted_dispersion is None:
            return []
        low, middle, high = np.quantile(self.fitted_dispersion, (0.05, 0.5, 0.95))
        return [f"Fitted dispersions: {middle:.3g} in the median, 90% in {low:.3g} to {high:.3g}"]


def diagnose(fit: Any, counts: Any, *, n_entries: int = 50, feature_names: Any = None) -> Diagnostics:
    """Find the features, samples and counts that a fit does not explain.

    Parameters
    ----------
    fit : Fit, or anything that `log1pnmf.as_fit` takes
        The fit.
    counts : array, sparse matrix or data frame of shape (n_samples, n_features)
        The counts that were fitted. All entries are visited; of counts in chunks, only those of the samples
        kept in memory, up to 8,192 at random.
    n_entries : int
        Number of extreme entries to keep.
    feature_names : sequence of str, optional
        Names of the features; by default those of the fit.

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
    sums = Sums(counts.shape, n_entries, fit.noise)
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
        noise=fit.settings.noise,
        fitted_dispersion=fit.dispersion,
        **_trend(fit, counts, rows_in_memory),
    )


def _trend(fit: Fit, counts: Counts, place: Index) -> dict[str, Any]:
    """Find the trend of dispersions that were estimated feature by feature."""
    if fit.dispersion is None or fit.settings.dispersion != "feature":
        return {}
    batches = None if fit.batches is None else fit.batches.of_samples(place)
    problem = Problem(counts, fit.size_factors[place], fit.link, batches=batches)
    at = fit.loadings[place], fit.factors / fit.link.alpha
    prior = renewed(problem, *at, before=NegativeBinomial(fit.dispersion))[0].prior
    assert prior is not None  # it was just found
    return {"trend": np.exp(prior.centre), "trend_spread": prior.spread}


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
        exposure = fit.exposure(place[rows])
        mean = exposure * fit.link.mean(eta)
        gap = None
        if approximation is not None:
            gap = np.where(y > 0.0, 0.0, mean - fit.link.exposure_scale * exposure * approximation.value(eta))
        yield rows, y, mean, gap


def _robust_score(ratios: Array) -> Array:
    """Robust standard deviations of the logarithms above their median."""
    logs = np.log(np.where(ratios > 0.0, ratios, np.nan))
    if np.isnan(logs).all():
        return np.zeros(len(ratios))
    spread = float(scipy.stats.median_abs_deviation(logs, scale="normal", nan_policy="omit"))
    return np.nan_to_num((logs - np.nanmedian(logs)) / spread) if spread > 0.0 else np.zeros(len(ratios))


def _with_more(columns: dict[str, Any], **more: Array | None) -> dict[str, Any]:
    return columns | {name: values for name, values in more.items() if values is not None}


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.full(len(a), np.nan), where=b > 0.0)
