"""Diagnostics: features, samples and entries whose counts a fit does not explain.

**What a deviance is compared with.** The deviance of a count under its own law is not 1 on average when the
mean is small: it goes to zero with it. Deviances of features and samples are therefore divided by what the
model itself expects of them, so that 1 is a good fit whatever the depth.

**Which noise.** Deviances, their expectations and Pearson's chi-squares are those of the noise of the fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from log1pnmf._common.checks import check_choice, plural, shown
from log1pnmf.counts.compress import dense_blocks
from log1pnmf.counts.counts import Counts, stirling
from log1pnmf.counts.passes import parts_of, source_of
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.anndata import as_fit, fit_and_counts
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.new_samples import counts_of, new_batches, new_samples
from log1pnmf.fitting.summary import NOISES
from log1pnmf.model.dispersion import update_dispersions
from log1pnmf.model.noise import NegativeBinomial, excess_constant
from log1pnmf.model.objective import BLOCK_BYTES, entry_curvature, entry_gradient, exposure_of
from log1pnmf.model.problem import Array, Problem

from .groups import Indices
from .marker_tests import ERRORS, TINY, Z95, ErrorKind, inverse_information, weighted_products

# ---------- the deviance that the model expects

# means between which the expected deviance is tabled; above it is ``1 + 1 / (6 mean)``
LEAST_TABLED, LARGEST_TABLED = 1e-9, 200.0
# of the table for negative binomial counts; below the first one it is that of Poisson counts
DISPERSIONS, MEANS = np.geomspace(1e-3, 1e3, 43), np.geomspace(LEAST_TABLED, 1e6, 240)
# counts that are summed over: one by one, and then in ranges that grow by a factor
WHOLE, GROWTH, LARGEST_COUNT = 400, 1.03, 1e9


def expected_deviance(mean: Array, dispersion: Array | None = None) -> Array:
    """Return the deviance that a count with this mean has on average."""
    grid, values = _poisson_table()
    inside = np.interp(np.log(np.clip(mean, LEAST_TABLED, LARGEST_TABLED)), grid, values)
    inside *= np.minimum(mean / LEAST_TABLED, 1.0)
    of_poisson = np.where(mean > LARGEST_TABLED, 1.0 + 1.0 / (6.0 * np.maximum(mean, TINY)), inside)
    if dispersion is None:
        return of_poisson
    phi = np.broadcast_to(dispersion, mean.shape)
    places = [_place(phi, DISPERSIONS), _place(mean, MEANS)]
    ratio = scipy.ndimage.map_coordinates(_ratio_table(), places, order=1)
    near = np.minimum(phi / DISPERSIONS[0], 1.0)  # from Poisson's to the first of the table
    return of_poisson * (1.0 + near * (ratio - 1.0))


def _place(values: Array, grid: Array) -> Array:
    """Return the place of values in a geometric grid; that of the end where they are beyond it."""
    logs = np.log(np.clip(values, grid[0], grid[-1]) / grid[0])
    return np.asarray(np.minimum(logs / np.log(grid[1] / grid[0]), len(grid) - 1.0))


@cache
def _poisson_table() -> tuple[Array, Array]:
    grid = np.linspace(np.log(LEAST_TABLED), np.log(LARGEST_TABLED), 600)
    return grid, _summed(0.0, np.exp(grid))


@cache
def _ratio_table() -> Array:
    """Table the expected deviance of negative binomial counts over that of Poisson ones."""
    return np.stack([_summed(phi, MEANS) for phi in DISPERSIONS.tolist()]) / expected_deviance(MEANS)


def _summed(phi: float, means: Array) -> Array:
    """Sum the deviance of counts over their law, at some means."""
    n_ranges = int(np.log(LARGEST_COUNT / WHOLE) / np.log(GROWTH))
    beyond = np.unique(np.floor(np.geomspace(WHOLE, LARGEST_COUNT, n_ranges)))
    y = np.concatenate((np.arange(WHOLE), 0.5 * (beyond[:-1] + beyond[1:] - 1.0)))
    width = np.concatenate((np.ones(WHOLE), np.diff(beyond)))
    loss = NegativeBinomial(np.array(phi)).loss(y, means[:, None])  # the law is that at ``mean = y``, less it
    share = width * np.exp(-stirling(y) - excess_constant(y, phi) - loss)
    found: Array = (share * 2.0 * loss).sum(axis=1) / share.sum(axis=1)
    narrow = (means > LARGEST_TABLED) & (phi < 0.01)  # ranges of counts would be too wide for the law
    return np.where(narrow, 1.0 + 1.0 / (6.0 * means) + phi / 6.0, found)


# ---------- how well the loadings of a sample are known, given the factors

AT_BOUND = 1e-9  # of a factor's largest loading: what is nearer to a bound than this is at it
ARRAYS_OF_ERRORS = 8  # in memory at a time, of the size of a block


def loading_errors(
    fit: Any,
    counts: Any,
    loadings: Any = None,
    *,
    size_factors: Any = None,
    batch: Any = None,
    errors: ErrorKind = "sandwich",
) -> Array:
    """Compute standard errors of loadings given the factors, from the counts of each sample.

    The factors are treated as known: intervals hold a sample's loadings on the factors of this fit, and less
    often those on the true factors. For a loading at its bound, 1.96 errors reach the end of
    a one-sided 95% interval, and the errors of the other loadings are computed without it.

    Parameters
    ----------
    counts : array, sparse matrix, data frame or source of shape (n, m)
        Counts of the samples.
    loadings : array of shape (n, K), optional
        Loadings of other samples, from `log1pnmf.Log1pNMF.transform`; by default those of the fit.
    size_factors, batch : optional
        Of other samples, as in `transform`.
    errors : {"sandwich", "model"}
        "sandwich" is valid for counts of any variance; "model" trusts the noise of the fit.

    Returns
    -------
    ndarray of shape (n, K)
        On the scale of the loadings; inf if the counts contain no information.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> model = Log1pNMF(1, c=float("inf")).fit([[40, 20], [20, 10], [60, 30]])
    >>> error = loading_errors(model, [[40, 20], [20, 10], [60, 30]], errors="model")
    >>> (error / model.loadings_).round(3).ravel().tolist()  # 60, 30 and 90 counts: 1 / sqrt
    [0.129, 0.183, 0.105]
    """
    check_choice("errors", errors, ERRORS)
    fit, own = as_fit(fit), loadings is None
    source = source_of(counts)
    whole = counts_of(fit, counts) if own and source is None else counts
    values = fit.loadings if own else np.asarray(loadings, dtype=np.float64)
    found = np.empty((len(values), fit.n_components))
    given = None if size_factors is None or isinstance(size_factors, str) else np.asarray(size_factors)
    batches = fit.batches if own else new_batches(fit, batch, len(values))
    for first, part in parts_of(whole if source is None else source):
        here = counts_of(fit, part, same_samples=False)
        rows = slice(first, first + here.n_samples)
        kind = size_factors if given is None else given[rows]
        sizes = fit.size_factors[rows] if own else new_samples(fit, here, kind).size_factors
        of_part = None if batches is None else batches.of_samples(rows)
        problem = Problem(here, sizes, fit.link, noise=fit.noise, batches=of_part)
        with threadpool_limits(1, user_api="blas"):  # more threads change bits
            found[rows] = _errors(fit, problem, values[rows], errors)
    return found


def _errors(fit: Fit, problem: Problem, loadings: Array, errors: str) -> Array:
    """Errors of samples in memory, block by block."""
    factors = fit.factors / fit.link.alpha
    largest = fit.loadings.max(axis=0)
    upper = largest if fit.settings.l1 > 0 else np.full(len(largest), np.inf)
    found = np.empty_like(loadings)
    for rows in dense_blocks(problem.counts.shape, BLOCK_BYTES / (8 * ARRAYS_OF_ERRORS)):
        y, t = problem.counts.by_row.to_dense(rows), exposure_of(problem, rows)
        eta = loadings[rows] @ factors.T
        slope = entry_gradient(y, eta, t, fit.link, noise=fit.noise)
        information = weighted_products(entry_curvature(y, eta, t, fit.link, noise=fit.noise), factors)
        scores = weighted_products(slope**2, factors) if errors == "sandwich" else None
        low = loadings[rows] <= AT_BOUND * largest
        high = loadings[rows] >= (1.0 - AT_BOUND) * upper
        found[rows] = _of_block(information, scores, slope @ factors, low, high)
    return found


def _of_block(information: Array, scores: Array | None, gradient: Array, low: Any, high: Any) -> Array:
    """Errors of free loadings, and one-sided ones of those at a bound, where the loss rises away from it."""
    pinned = low | high
    found = np.empty(gradient.shape)
    for k in range(gradient.shape[1]):
        counted = ~pinned
        counted[:, k] = True
        model = inverse_information(information, counted)
        covariance = model if scores is None else model @ scores @ model
        variance = covariance[:, k, k]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.sqrt(variance / model[:, k, k])
            rise = np.maximum(np.where(low[:, k], gradient[:, k], -gradient[:, k]), 0.0)
            end = Z95**2 / (rise + np.sqrt(rise**2 + Z95**2 / model[:, k, k]))
            found[:, k] = np.where(pinned[:, k], ratio * end / Z95, np.sqrt(variance))
    return np.where(np.isfinite(found) & (information.diagonal(axis1=1, axis2=2) > 0.0), found, np.inf)


# ---------- diagnostics: features, samples and entries whose counts a fit does not explain

LEAST_MEAN = 1e-6  # where the model expects less, it expects nothing
OVERDISPERSED = 1.5  # noise="nb" is mentioned from this multiple of Poisson's variance on
OUTLYING = 5.0  # robust standard deviations above the median from which a sample is an outlier
ARRAYS_PER_BLOCK = 10  # in memory at a time, of the size of a block
MOST_COMPARED = 200  # features whose residuals are compared: those that lose most by their dispersions
BEYOND_NOISE = 1.2  # times the largest eigenvalue of correlations between independent residuals
HIDDEN = 0.2  # shared part of the variance from which a dispersion is said to hide structure


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How well features, samples and entries are explained; make one with `diagnose` (example there).

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
    worst : dict of str to ndarray
        Entries with the largest deviance residuals (signed roots of the deviance): numbers of their `sample`
        and `feature`, `count`, `mean`, and as `value` the residual.
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
    feature_shared : ndarray of shape (m,) or None
        Part of the variance of a feature's residuals that it shares with those of other features: structure
        that the factors do not reach and that is called dispersion. With negative binomial noise, for the 200
        features whose counts lose most of their weight by their dispersions; 0 for others.
    """

    feature_mean: Array
    feature_deviance: Array
    feature_dispersion: Array
    feature_overdispersion: Array
    sample_deviance: Array
    sample_dispersion: Array
    sample_score: Array
    worst: dict[str, np.ndarray]
    overdispersion: float
    n_unexpected: int
    feature_names: NDArray[np.object_] = field(repr=False)
    sample_names: NDArray[np.object_] = field(repr=False)
    noise: str = "poisson"
    fitted_dispersion: Array | None = None
    trend: Array | None = None
    trend_spread: float = math.nan
    feature_shared: Array | None = None

    def outliers(self, threshold: float = OUTLYING) -> Indices:
        """Find samples more than `threshold` robust standard deviations above the median, the worst first."""
        order = np.argsort(-self.sample_score, kind="stable")
        return order[self.sample_score[order] > threshold]

    def hidden(self, threshold: float = HIDDEN) -> Indices:
        """Find features with a `feature_shared` above `threshold`, those that lose most weight first."""
        if self.feature_shared is None or self.fitted_dispersion is None:
            return np.zeros(0, dtype=np.intp)
        lost = self.feature_shared * _lost(self.feature_mean, self.fitted_dispersion)
        order = np.argsort(-lost, kind="stable")
        return order[self.feature_shared[order] > threshold]

    @property
    def features(self) -> dict[str, Any]:
        """One row per feature; ``pandas.DataFrame(features)`` shows it."""
        names = ("mean", "deviance", "dispersion", "overdispersion")
        columns = {"feature": self.feature_names} | {one: getattr(self, f"feature_{one}") for one in names}
        columns |= {"fitted_dispersion": self.fitted_dispersion, "trend": self.trend}
        columns["shared"] = self.feature_shared
        return {name: values for name, values in columns.items() if values is not None}

    @property
    def samples(self) -> dict[str, Any]:
        """One row per sample; ``pandas.DataFrame(samples)`` shows it."""
        names = ("deviance", "dispersion", "score")
        return {"sample": self.sample_names} | {one: getattr(self, f"sample_{one}") for one in names}

    @property
    def entries(self) -> dict[str, Any]:
        """One row for each of the least expected entries; ``pandas.DataFrame(entries)`` shows it."""
        sample, feature = self.sample_names[self.worst["sample"]], self.feature_names[self.worst["feature"]]
        return {**self.worst, "sample": sample, "feature": feature}

    def summary(self, n_top: int = 5) -> str:
        """Summarise the diagnostics in sentences, naming at most `n_top` features and samples."""
        known, outliers = np.nan_to_num(self.feature_dispersion, nan=1.0), self.outliers()
        typical, worst = float(np.median(known)), np.argsort(-known, kind="stable")[:n_top]
        times = f"{typical:.2f} times that of {NOISES[self.noise]} counts"
        text = f"Around the fitted means, the variance of a typical feature is {times}"
        if self.fitted_dispersion is None:
            mild = "Given the factors, standard errors of Poisson counts are about right."
            wide = "The standard errors of effects allow for this; noise='nb' would model it."
            text += f"; over all entries it is mean + {self.overdispersion:.3g} mean². "
            text += mild if typical < OVERDISPERSED else wide
        else:
            low, middle, high = np.quantile(self.fitted_dispersion, (0.05, 0.5, 0.95))
            text += f", with the dispersions of the fit: {middle:.3g} in the median, 90% in {low:.3g} to "
            text += f"{high:.3g}."
        named = ", ".join(f"{self.feature_names[j]} ({known[j]:.3g})" for j in worst)
        samples = f"No sample is explained much worse than the others (robust z at most {OUTLYING:g})."
        if len(outliers):
            which = ", ".join(map(str, self.sample_names[outliers[:n_top]]))
            samples = f"{plural(len(outliers), 'sample is', 'samples are')} explained much worse than the "
            samples += f"others (robust z of the deviance above {OUTLYING:g}), most of all {which}."
        lines = [text, f"It is largest in {named}.", samples]
        hidden = self.hidden()
        if len(hidden):
            which = ", ".join(map(str, self.feature_names[hidden[:n_top]]))
            affected = plural(len(hidden), "feature")
            lines.append(
                f"The dispersions of {affected} hide structure: the residuals of these features ({which}) "
                "rise and fall together, which more factors can explain."
            )
        if self.n_unexpected:
            lines.append(f"Counts where the model expects none: {self.n_unexpected:,}, not in the variances.")
        return "\n".join(lines)


def diagnose(fit: Any, counts: Any, *, n_entries: int = 50, feature_names: Any = None) -> Diagnostics:
    """Find the features, samples and counts that a fit does not explain.

    Parameters
    ----------
    n_entries : int
        Number of extreme entries to keep.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> counts = np.random.default_rng(0).poisson(3.0, size=(60, 30))
    >>> counts[7] = np.arange(30) ** 2 % 29  # unlike all others
    >>> found = diagnose(Log1pNMF(1, random_state=0).fit(counts), counts)
    >>> found.outliers().tolist(), bool(0.8 < np.median(found.feature_deviance) < 1.6)
    ([7], True)
    """
    fit, whole = fit_and_counts(fit, counts)
    counts, rows_in_memory = whole.part_in_memory()
    (n, m), noise, phi = counts.shape, fit.noise, fit.dispersion
    terms = ("total", "mean", "square", "difference", "deviance", "expected", "pearson")
    by_sample, by_feature = ({name: np.zeros(length) for name in terms} for length in (n, m))
    kept, n_unexpected = [np.zeros(0, dtype=kind) for kind in (int, int, float, float, float)], 0
    compared = np.zeros(0, dtype=np.intp)
    if phi is not None:
        compared = np.argsort(-_lost(counts.by_column.row_sums() / n, phi), kind="stable")[:MOST_COMPARED]
    residuals = np.empty((n, len(compared)))
    with shown(None, "residuals", "sample") as show:
        for rows in dense_blocks(counts.shape, BLOCK_BYTES / (8 * ARRAYS_PER_BLOCK)):
            y, mean = counts.by_row.to_dense(rows), fit.rates.of_rows(rows_in_memory[rows])
            deviance = np.maximum(2.0 * noise.loss(y, np.maximum(mean, TINY)), 0.0)
            difference, variance = (y - mean) ** 2, mean if phi is None else mean * (1.0 + phi * mean)
            never = (mean < LEAST_MEAN) & (y > 0.0)  # one of these would outweigh all others together
            n_unexpected += int(np.count_nonzero(never))
            expected = expected_deviance(mean, phi)
            pearson = np.where(never, 0.0, difference / np.maximum(variance, TINY))
            values = (y, mean, mean**2, difference, deviance, expected, pearson)
            for name, value in zip(terms, values, strict=True):
                by_sample[name][rows] = value.sum(axis=1)
                by_feature[name] += value.sum(axis=0)
            residual = np.sign(y - mean) * np.sqrt(deviance)
            kept = _most_extreme(n_entries, kept, rows.start, y, mean, residual)
            residuals[rows] = residual[:, compared]
            show(rows.stop, n)
    samples = counts.sample_names
    sample_deviance = _ratio(by_sample["deviance"], by_sample["expected"])
    # Every feature and every sample has K coefficients: the part of the residuals' squares that is left.
    left = max(1.0 - fit.n_components / n, 1.0 / n) * max(1.0 - fit.n_components / m, 1.0 / m)
    excess, squares = by_feature["difference"] / left - by_feature["mean"], by_feature["square"]
    return Diagnostics(
        feature_mean=by_feature["total"] / n,
        feature_deviance=_ratio(by_feature["deviance"], by_feature["expected"]),
        feature_dispersion=np.where(by_feature["total"] > 0.0, by_feature["pearson"] / (left * n), np.nan),
        feature_overdispersion=np.maximum(_ratio(excess, squares), 0.0),
        sample_deviance=sample_deviance,
        sample_dispersion=np.where(by_sample["square"] > 0.0, by_sample["pearson"] / (left * m), np.nan),
        sample_score=_robust_score(sample_deviance),
        worst=dict(zip(("sample", "feature", "count", "mean", "value"), kept, strict=True)),
        overdispersion=max(float(excess.sum() / max(squares.sum(), TINY)), 0.0),
        n_unexpected=n_unexpected,
        feature_names=fit.named(feature_names=feature_names).feature_labels,
        sample_names=rows_in_memory.astype(str).astype(object) if samples is None else samples,
        noise=fit.settings.noise,
        fitted_dispersion=phi,
        feature_shared=None if phi is None else _shared(residuals, compared, m),
        **_trend(fit, counts, rows_in_memory),
    )


def _most_extreme(n: int, kept: list[Array], first: int, *block: Array) -> list[Array]:
    """Return sample, feature and values of the entries with the largest last value, so far and in a block."""
    size = np.abs(block[-1]).ravel()
    n_new = min(n, size.size)
    flat = np.argpartition(-size, n_new - 1)[:n_new] if n_new else np.zeros(0, dtype=np.intp)
    i, j = np.unravel_index(flat, block[-1].shape)
    new = (i + first, j, *(values[i, j] for values in block))
    joined = [np.concatenate(pair) for pair in zip(kept, new, strict=True)]
    order = np.argsort(-np.abs(joined[-1]), kind="stable")[:n]
    return [column[order] for column in joined]


def _lost(mean: Array, dispersion: Array) -> Array:
    """Return how many of a feature's counts its dispersion takes away: Poisson's information less its own."""
    return dispersion * mean**2 / (1.0 + dispersion * mean)


def _shared(residuals: Array, compared: Indices, n_features: int) -> Array:
    """Return the part of the variance of residuals that some features share; 0 for those not compared.

    Correlations between independent residuals have eigenvalues of up to ``(1 + sqrt(m / n))**2`` (Marchenko
    and Pastur). Larger ones are those of hidden factors, which explain what these exceed 1 by.
    """
    n, m = residuals.shape
    away = residuals - residuals.mean(axis=0)
    away /= np.maximum(np.sqrt((away**2).sum(axis=0)), TINY)
    with threadpool_limits(1, user_api="blas"):  # more threads change bits
        values, vectors = np.linalg.eigh(away.T @ away)
    found, edge = np.zeros(n_features), (1.0 + math.sqrt(m / n)) ** 2
    found[compared] = vectors**2 @ np.where(values > BEYOND_NOISE * edge, values - 1.0, 0.0)
    return found


def _trend(fit: Fit, counts: Counts, rows: Indices) -> dict[str, Any]:
    """Find the trend of dispersions that were estimated feature by feature."""
    if fit.dispersion is None or fit.settings.dispersion != "feature":
        return {}
    batches = None if fit.batches is None else fit.batches.of_samples(rows)
    problem = Problem(counts, fit.size_factors[rows], fit.link, batches=batches)
    at = fit.loadings[rows], fit.factors / fit.link.alpha
    means = make_engine("native", problem, 1).mean_spectrum(*at)
    prior = update_dispersions(counts, at[1], means, before=NegativeBinomial(fit.dispersion))[0].prior
    assert prior is not None  # it was just found
    return {"trend": np.exp(prior.centre), "trend_spread": prior.spread}


def _robust_score(ratios: Array) -> Array:
    """Robust standard deviations of the logarithms above their median."""
    logs = np.log(np.where(ratios > 0.0, ratios, np.nan))
    if np.isnan(logs).all():
        return np.zeros(len(ratios))
    spread = float(scipy.stats.median_abs_deviation(logs, scale="normal", nan_policy="omit"))
    return np.nan_to_num((logs - np.nanmedian(logs)) / spread) if spread > 0.0 else np.zeros(len(ratios))


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.full(len(a), np.nan), where=b > 0.0)
