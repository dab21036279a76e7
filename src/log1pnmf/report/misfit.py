"""What a fit does not explain: features, samples and entries whose counts it does not expect."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from log1pnmf._common.words import plural
from log1pnmf.analysis.diagnostics import OUTLYING, Diagnostics, diagnose
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.certificate import LARGEST_CERTIFIED
from log1pnmf.fitting.fit import Fit

from .figures import Chart, histogram
from .inputs import ReportInput
from .words import enumerate_words, significant

__all__ = ["MisfitSection", "describe_misfit"]

N_LISTED = 8

OVERDISPERSED = 1.5
"""Variance of a typical feature, as a multiple of Poisson's, from which the reader is warned."""


@dataclass(frozen=True)
class MisfitSection:
    """What the report says of the misfit of one model.

    Parameters
    ----------
    label : str
        Of the fit.
    sentences : list of str
        The findings in words.
    chart : Chart or None
        Histogram of the variances of features.
    features, entries : list of list of str
        Rows of the tables of the least explained.
    """

    label: str
    sentences: list[str]
    chart: Chart | None
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
        x_title="variance / Poisson variance (log scale)",
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
    return MisfitSection(label, sentences, chart, features, entries)


def _variance(found: Diagnostics) -> str:
    known = found.feature_dispersion[np.isfinite(found.feature_dispersion)]
    typical = float(np.median(known)) if len(known) else 1.0
    text = (
        f"The variance of a typical feature is {typical:.2f} times what Poisson counts would have; over all "
        f"entries it is mean + {significant(found.overdispersion)} mean²."
    )
    if typical < OVERDISPERSED:
        return f"{text} Standard errors of Poisson counts are about right."
    return f"{text} The standard errors of effects allow for that."


def _outliers(inputs: ReportInput, found: Diagnostics) -> str:
    outliers = found.outliers()
    if not len(outliers):
        return f"No sample is explained much worse than the others (none beyond {OUTLYING:g} robust z)."
    names = [str(inputs.sample_names[i]) for i in outliers]
    samples = plural(len(outliers), "sample is", "samples are")
    return (
        f"{samples} explained much worse than the others (deviance beyond {OUTLYING:g} robust z): "
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
        f"The approximation at zero counts misjudges {significant(total)} units of log-likelihood, half of "
        f"them in {plural(half, 'feature')}: {enumerate_words(names)}" + (", ..." if half > N_LISTED else ".")
    ]
