"""What a fit does not explain: features, samples and entries whose counts it does not expect."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from log1pnmf._common.words import plural
from log1pnmf.analysis.diagnostics import OUTLYING, Diagnostics, diagnose
from log1pnmf.analysis.markers.inference import Z95
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.certificate import LARGEST_CERTIFIED
from log1pnmf.fitting.fit import Fit

from .figures import Chart, histogram, log_points
from .inputs import ReportInput
from .words import enumerate_words, significant

__all__ = ["MisfitSection", "describe_misfit"]

N_LISTED = 8

NOISES = {"poisson": "Poisson", "nb": "negative binomial"}

OVERDISPERSED = 1.5
"""The reader is warned if the variance of a typical feature is more than this multiple of Poisson's."""


@dataclass(frozen=True)
class MisfitSection:
    """What the report says of the misfit of one model.

    Parameters
    ----------
    label : str
        Name of the fit.
    sentences : list of str
        The findings in words.
    noise : str
        Noise with whose variance that of features is compared.
    chart : Chart or None
        Histogram of the variances of features.
    dispersions : Chart or None
        Dispersions of the fit against mean counts.
    features, entries : list of list of str
        Rows of the tables of the least explained.
    """

    label: str
    sentences: list[str]
    noise: str
    chart: Chart | None
    dispersions: Chart | None
    features: list[list[str]]
    entries: list[list[str]]


def describe_misfit(inputs: ReportInput) -> list[MisfitSection]:
    """Compare all fits with the counts; nothing without counts, or with too many entries to visit."""
    counts = inputs.counts
    if counts is None or math.prod(counts.shape) > LARGEST_CERTIFIED:
        return []
    return [
        _describe(inputs, label, fit, counts) for label, fit in zip(inputs.labels, inputs.fits, strict=True)
    ]


def _describe(inputs: ReportInput, label: str, fit: Fit, counts: Counts) -> MisfitSection:
    found = diagnose(fit, counts)
    chart = histogram(
        np.nan_to_num(found.feature_dispersion),
        label=f"Histogram of the variances of features at {label}",
        x_title=f"variance / {NOISES[found.noise]} variance (log scale)",
        y_title="features",
    )
    worst = np.argsort(-np.nan_to_num(found.feature_dispersion), kind="stable")[:N_LISTED]
    features = [
        [
            str(found.feature_names[j]),
            significant(float(found.feature_mean[j])),
            significant(float(found.feature_dispersion[j])),
        ]
        for j in worst
        if found.feature_dispersion[j] > 0.0
    ]
    shown = found.worst
    entries = [
        [
            str(inputs.sample_names[shown.sample[e]]),
            str(found.feature_names[shown.feature[e]]),
            significant(float(shown.count[e])),
            significant(float(shown.mean[e])),
        ]
        for e in range(min(N_LISTED, len(shown.value)))
    ]
    sentences = [_variance(found), _outliers(inputs, found), *_approximation(found)]
    return MisfitSection(
        label=label,
        sentences=sentences,
        noise=NOISES[found.noise],
        chart=chart,
        dispersions=_dispersions(found, label),
        features=features,
        entries=entries,
    )


def _dispersions(found: Diagnostics, label: str) -> Chart | None:
    """Draw the dispersions of a fit with negative binomial noise."""
    if found.fitted_dispersion is None:
        return None
    return log_points(
        found.feature_mean,
        found.fitted_dispersion,
        trend=found.trend,
        spread=1.0 if found.trend is None else math.exp(Z95 * found.trend_spread),
        label=f"Dispersions of features against their mean counts at {label}",
        x_title="mean count (log scale)",
        y_title="dispersion",
    )


def _variance(found: Diagnostics) -> str:
    known = found.feature_dispersion[np.isfinite(found.feature_dispersion)]
    typical = float(np.median(known)) if len(known) else 1.0
    noise = NOISES[found.noise]
    text = f"The variance of a typical feature is {typical:.2f} times that of {noise} counts"
    if found.fitted_dispersion is not None:
        middle = significant(float(np.median(found.fitted_dispersion)))
        return f"{text}, with the dispersions of the fit ({middle} in the median)."
    text += f"; over all entries it is mean + {significant(found.overdispersion)} mean²."
    if typical < OVERDISPERSED:
        return f"{text} Standard errors of Poisson counts are about right."
    return f"{text} The standard errors of effects allow for this; noise='nb' would model it."


def _outliers(inputs: ReportInput, found: Diagnostics) -> str:
    outliers = found.outliers()
    if not len(outliers):
        return f"No sample is explained much worse than the others (robust z at most {OUTLYING:g})."
    names = [str(inputs.sample_names[i]) for i in outliers]
    samples = plural(len(outliers), "sample is", "samples are")
    return (
        f"{samples} explained much worse than the others (robust z of the deviance above {OUTLYING:g}): "
        f"{enumerate_words(names, most=N_LISTED)}."
    )


def _approximation(found: Diagnostics) -> list[str]:
    if found.feature_gap is None:
        return []
    order = np.argsort(-found.feature_gap, kind="stable")
    total = float(found.feature_gap.sum())
    if total <= 0.0:
        return ["The approximation at zero counts is exact here."]
    half = int(np.searchsorted(np.cumsum(found.feature_gap[order]), 0.5 * total)) + 1
    names = [str(found.feature_names[j]) for j in order[: min(half, N_LISTED)]]
    return [
        f"The approximation at zero counts is off by {significant(total)} units of log-likelihood, half of "
        f"them in {plural(half, 'feature')}: {enumerate_words(names)}" + (", ..." if half > N_LISTED else ".")
    ]
