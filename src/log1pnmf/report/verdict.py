"""Misfit, batches and the comparison of two fits in words; claims follow from numbers and thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from log1pnmf._common.checks import plural
from log1pnmf.analysis.batches import batch_findings, confounded_groups
from log1pnmf.analysis.diagnostics import OUTLYING, Diagnostics, diagnose
from log1pnmf.analysis.marker_tests import Z95
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.settings import LARGEST_EXACT

from .figures import Chart, histogram, log_points
from .inputs import ReportInput, decimal, enumerate_words, significant

# ---------- what a fit does not explain: features, samples and entries whose counts it does not expect

N_LISTED = 8

NOISES = {"poisson": "Poisson", "nb": "negative binomial"}

OVERDISPERSED = 1.5
"""The reader is warned if the variance of a typical feature is more than this multiple of Poisson's."""


@dataclass(frozen=True)
class MisfitSection:
    """Section of the report about the misfit of one model."""

    label: str  # name of the fit
    sentences: list[str]  # the findings in words
    noise: str  # noise with whose variance that of features is compared
    chart: Chart | None  # histogram of the variances of features
    dispersions: Chart | None  # dispersions of the fit against mean counts
    # rows of the tables of the least explained
    features: list[list[str]]
    entries: list[list[str]]


def describe_misfit(inputs: ReportInput) -> list[MisfitSection]:
    """Compare all fits with the counts; nothing without counts, or with too many entries."""
    counts = inputs.counts
    if counts is None or math.prod(counts.shape) > LARGEST_EXACT:
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
    sentences = [_variance(found), _outliers(inputs, found)]
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


# ---------- what batches do in the fits of a report


@dataclass(frozen=True)
class BatchSection:
    """Section of the report about the batches of one fit."""

    label: str  # name of the fit
    sentences: list[str]  # the findings in words
    warnings: list[str]  # groups that coincide with batches
    chart: Chart | None  # histogram of the effects
    rows: list[list[str]]  # name, number of samples, part of the deviance and features of each batch


def describe_batches(inputs: ReportInput) -> list[BatchSection]:
    """Describe the batches of all fits that have some."""
    fits = zip(inputs.labels, inputs.fits, strict=True)
    return [
        _describe_batches(inputs, label, fit)
        for label, fit in fits
        if fit.batches is not None and fit.batches.n_batches > 1
    ]


def _describe_batches(inputs: ReportInput, label: str, fit: Fit) -> BatchSection:
    assert fit.batches is not None
    counts = inputs.counts
    if counts is not None and math.prod(counts.shape) > LARGEST_EXACT:
        counts = None
    found, groups = batch_findings(fit, counts), inputs.groups
    sentences = [
        "In each batch the rate of every feature is multiplied by an effect. Loadings and factors describe "
        f"what the {len(found.names)} batches have in common."
    ]
    if counts is not None:
        sentences.append(f"Without the effects the deviance of this fit would be {found.total:.1%} larger.")
    rows = [
        [
            name,
            f"{size:,}",
            "" if math.isnan(excess) else f"{excess:.1%}",
            ", ".join(
                f"{feature} × {effect:.2g}".replace(" × ", "\u00a0×\u00a0") for feature, effect in features
            ),
        ]
        for name, size, excess, features in zip(
            found.names, found.n_samples, found.excess.tolist(), found.features, strict=True
        )
    ]
    return BatchSection(
        label=label,
        sentences=sentences,
        warnings=[]
        if groups is None
        else [f"{one[0].upper()}{one[1:]}." for one in confounded_groups(fit, groups.labels)],
        chart=histogram(
            fit.batches.effects.ravel(),
            label=f"Histogram of the effects of batches on features at {label}",
            x_title="effect of a batch on a feature (log scale)",
            y_title="features in batches",
        ),
        rows=rows,
    )


# ---------- the comparison of two fits in words

CLEARLY = 0.1
"""Two figures differ if their difference is at least this part of the larger one ..."""

LEAST = 0.02
"""... and at least this much: a table with two decimals does not show less."""

SAME = 0.9
"""Two factors are nearly the same if their loadings correlate by at least this."""

MOST = 0.75
"""If at least this part of the factors is nearly the same, the headline starts with that."""

CLUSTERED = 0.8
"""Samples fall into clusters if the mean share of their strongest factor is at least this."""


@dataclass(frozen=True)
class Figure:
    """One measured figure of both fits."""

    name: str
    meaning: str
    # at finite c, and at c = inf
    finite: float
    additive: float
    whole: bool = False  # whether it is a number of things
    # how far it is apart between fits of one setting; None where there is one fit of each
    between_starts: float | None = None

    def shown(self, value: float) -> str:
        """Write one of the two."""
        return f"{value:.0f}" if self.whole else decimal(value)

    @property
    def direction(self) -> int:
        """1 where it is clearly larger at finite c, -1 where it is clearly smaller, else 0.

        Clear is what is beyond the differences between starts, where these are known.
        """
        apart, starts = self.finite - self.additive, self.between_starts or 0.0
        if abs(apart) <= max(LEAST, CLEARLY * max(abs(self.finite), abs(self.additive)), starts):
            return 0
        return 1 if apart > 0 else -1


def verdict(
    figures: list[Figure],
    name: str,
    *,
    similarity: Sequence[float],
    n_factors: int,
    said_same: bool = False,
) -> tuple[str, list[str]]:
    """Return a headline and paragraphs that follow from the figures.

    `similarity` has the correlation of the loadings of each matched pair, `n_factors` is that of the larger
    fit. Where most factors are nearly the same in both fits, the headline starts with that, unless
    `said_same`.
    """
    by_name = {figure.name: figure for figure in figures}
    per_sample, strongest = by_name["Factors per sample"], by_name["Share of the strongest factor"]
    grouped = "Groups per factor" in by_name
    same, mixed = _same(similarity, n_factors, name), _mixed(per_sample, strongest)
    said = [
        "" if said_same else same or "",
        _mixing(per_sample, strongest, mixed, name) if mixed or not same else "",
        "" if same else _clusters(strongest, name),
    ]
    if per_sample.between_starts is None and (mixed or said[-1]):
        said.append("Each fit has one start; other starts may give another picture.")
    headline = " ".join(text for text in said if text)
    if same or not mixed:
        look = "The pairs with the lowest correlation in the table of matched factors show how they differ."
    elif mixed > 0:
        where = "groups" if grouped else "stretches of samples"
        look = f"Look for colours that run through several {where} in the plot of {name}."
    else:
        look = "Check whether a factor at c = ∞ only contains what all samples have in common."
    return headline, [look, " ".join(_sentences(by_name, name))]


def _same(similarity: Sequence[float], n_factors: int, name: str) -> str | None:
    """Describe that most factors are nearly the same in both fits; None where they are not."""
    close = [value for value in similarity if value >= SAME]
    if len(close) < MOST * n_factors:
        return None
    if len(close) == n_factors:
        return (
            f"The fits at {name} and c = ∞ have nearly the same factors: the loadings of matched factors "
            f"correlate by {_rounded_down(min(close))} or more."
        )
    return (
        f"{len(close)} of {n_factors} factors are nearly the same at {name} and c = ∞: their loadings "
        f"correlate by {_rounded_down(min(close))} or more."
    )


def _rounded_down(value: float) -> str:
    """Two decimals that are not above the value, so that "or more" holds."""
    return decimal(int(100 * value + 1e-9) / 100)


def _mixed(per_sample: Figure, strongest: Figure) -> int:
    """1 where samples clearly mix more factors at finite c, -1 at c = inf; 0 where figures disagree."""
    return 0 if strongest.direction == per_sample.direction else per_sample.direction


def _mixing(per_sample: Figure, strongest: Figure, mixed: int, name: str) -> str:
    numbers = (
        f"{decimal(per_sample.finite)} factors per sample at {name}, {decimal(per_sample.additive)} at c = ∞"
    )
    if mixed == 0 and per_sample.direction:
        return (
            f"It is unclear in which fit samples mix more factors: {numbers}, but the strongest factor makes "
            f"up {strongest.finite:.0%} and {strongest.additive:.0%} of a sample's signal."
        )
    if mixed == 0:
        return f"Samples mix about as many factors in both fits ({numbers})."
    more, less = (name, "c = ∞") if mixed > 0 else ("c = ∞", name)
    return f"Samples mix more factors at {more} than at {less} ({numbers})."


def _clusters(strongest: Figure, name: str) -> str:
    """Describe which of the fits puts samples into clusters; nothing where neither clearly does."""
    place, share = ("c = ∞", strongest.additive) if strongest.direction < 0 else (name, strongest.finite)
    if strongest.direction == 0 or share < CLUSTERED:
        return ""
    return (
        f"At {place} samples fall into clusters: on average the strongest factor makes up {share:.0%} of a "
        "sample's signal."
    )


def _sentences(figures: dict[str, Figure], name: str) -> list[str]:
    sentences = []
    served, alone = figures.get("Groups that use a factor"), figures.get("Factors used by one group")
    if served is not None and alone is not None:
        sentences.append(
            f"On average {decimal(served.finite)} groups use a factor at {name} and "
            f"{decimal(served.additive)} at c = ∞; "
            f"{plural(alone.finite, 'factor belongs', 'factors belong')} to a single group at {name}, "
            f"{alone.additive:.0f} at c = ∞."
        )
    strongest = figures["Share of the strongest factor"]
    sentences.append(
        f"The strongest factor makes up {strongest.finite:.0%} of a sample's signal at {name} and "
        f"{strongest.additive:.0%} at c = ∞."
    )
    agreement = figures.get("Strongest factor predicts the group")
    if agreement is not None:
        than = {1: "better at", -1: "less well at", 0: "about as well at"}[agreement.direction]
        end = "than at c = ∞" if agreement.direction else "as at c = ∞"
        sentences.append(
            f"The strongest factor predicts the group {than} {name} {end} "
            f"({decimal(agreement.finite)} against {decimal(agreement.additive)})."
        )
    alike = figures["Correlation of factors"]
    word = {1: "more alike", -1: "more distinct", 0: "about as distinct"}[alike.direction]
    end = "as at c = ∞" if alike.direction == 0 else "than at c = ∞"
    sentences.append(
        f"The weights of two factors are {word} at {name} {end} (mean absolute rank correlation "
        f"{decimal(alike.finite)} against {decimal(alike.additive)})."
    )
    return sentences
