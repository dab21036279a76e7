"""Sections of the report: factors, how far each fit went, what it does not explain, and what batches do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from log1pnmf._common.checks import joined, plural, quiet, shown
from log1pnmf.analysis.batches import batch_findings, confounded_groups
from log1pnmf.analysis.diagnostics import Diagnostics, diagnose
from log1pnmf.analysis.evidence import Evidence, evidence
from log1pnmf.analysis.groups import Groups, group_means
from log1pnmf.analysis.marker_tests import Z95
from log1pnmf.analysis.markers import Markers, markers
from log1pnmf.analysis.metrics import correlation_matrix, deviance_explained, hoyer
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import KNOWN, Fit, evenness, factor_shares
from log1pnmf.fitting.ranking import Ranking, ranking_of
from log1pnmf.fitting.settings import LARGEST_EXACT
from log1pnmf.fitting.summary import NOISES, levelled, model_facts, quality_facts

from .figures import Array, Chart, histogram, log_curve, log_points
from .inputs import N_TABLE, ReportInput, alike, decimal, percent

# ---------- tests of features, and of whether factors are real

N_SEEDS, N_BOOTSTRAP = 2, 5  # fits that a report makes for itself
LARGEST = 2e7  # most entries times factors times fits of a report for which that takes seconds
DEARER = 4.0  # how many times longer a fit with dispersions takes
TESTED_ENTRIES = 10_000_000  # about how many are tested, in random samples, so that a test takes seconds
LEAST_SAMPLES = 1000  # that are tested, however many features they have


def find_markers(inputs: ReportInput) -> list[Markers | None]:
    """Return tests of the features of every fit: given ones, or new ones if there are counts."""
    if inputs.markers or inputs.counts is None:
        return list(inputs.markers) or [None] * len(inputs.fits)
    most = max(LEAST_SAMPLES, TESTED_ENTRIES // inputs.counts.n_features)
    with quiet(UserWarning):  # the report itself names factors without markers
        return [markers(fit, inputs.counts, max_samples=most, n_jobs=inputs.n_jobs) for fit in inputs.fits]


def find_evidence(inputs: ReportInput) -> list[Evidence | None]:
    """Return the evidence of every fit, or compute it if that takes seconds; None without counts."""
    if inputs.evidence:
        return [
            None if found is None else found.renamed(fit.factor_names)
            for found, fit in zip(inputs.evidence, inputs.fits, strict=True)
        ]
    counts = inputs.counts
    if counts is None or costly_fits(inputs):
        return [None] * len(inputs.fits)
    return [
        evidence(fit, counts, n_seeds=N_SEEDS, n_bootstrap=N_BOOTSTRAP, n_jobs=inputs.n_jobs)
        for fit in inputs.fits
    ]


def costly_fits(inputs: ReportInput) -> int:
    """Return how many fits evidence would take, where that is too long for a report; otherwise 0."""
    if inputs.evidence or inputs.counts is None:
        return 0
    numbers = [fit.n_components + N_SEEDS + N_BOOTSTRAP for fit in inputs.fits]
    costs = [fit.n_components * (1.0 if fit.dispersion is None else DEARER) for fit in inputs.fits]
    cost = math.prod(inputs.counts.shape) * math.fsum(map(math.prod, zip(numbers, costs, strict=True)))
    return sum(numbers) if cost > LARGEST else 0


# ---------- the factors of one fit: their share, the groups that use them, and how similar they are

MOST_NAMED = 2  # groups of a factor that are named after the first; the others are counted
SERVED = 0.5  # a factor serves the groups whose mean loading is at least this part of its highest
N_TOP = 10  # features drawn as bars


def describe_factors(
    fit: Fit,
    groups: Groups | None,
    tests: Markers | None,
    found: Evidence | None,
    *,
    label: str,
    colors: list[str],
) -> dict[str, Any]:
    """Describe the factors of a fit; with tests, list features that rise significantly first."""
    names = () if groups is None else groups.names
    means = np.zeros((0, fit.n_components)) if groups is None else group_means(fit.loadings, groups)
    share, even = factor_shares(fit.loadings, fit.factors), evenness(fit.loadings)
    sparsity, ranking = hoyer(fit.factors), ranking_of(fit)
    if tests is not None:  # fold changes are relative to features that do not move, as those of the tests
        fold = ranking_of(fit, np.exp2(tests.unmoved)).log2_fold_change
        ranking = replace(ranking, log2_fold_change=fold)
    factors = []
    for k, name in enumerate(fit.factor_names):
        served = served_groups(means[:, k], names)
        table = _features(fit, k, ranking, tests)
        tested = None if tests is None or np.isnan(tests.p[:, k]).all() else tests  # it can be compared
        factors.append(
            {
                "name": name,
                "known": KNOWN.get(fit.kinds[k], ""),
                "color": colors[k],
                "share": float(share[k]),
                "evenness": float(even[k]),
                "sparsity": float(sparsity[k]),
                "served": served,
                "sentence": _sentence(fit.loadings[:, k], groups, served),
                "top": table[:N_TOP],
                "table": table,
                "n_markers": None if tested is None else int(tested.n_rising[k]),
                "reliability": 1.0 if tested is None else float(tested.reliability[k]),
                "relative": tested is not None and bool(tested.unmoved[k]),
            }
        )
    return {
        "label": label,
        "factors": factors,
        "means": means.tolist(),
        "correlations": correlation_matrix(fit.factors).tolist(),
        "tests": tests,
        "evidence": found,
    }


def served_groups(means: Array, names: Sequence[str]) -> list[str]:
    """Find the groups whose mean loading is at least half of the highest, the highest first."""
    highest = float(means.max(initial=0.0))
    order = np.argsort(-means, kind="stable")
    return [names[code] for code in order if highest > 0.0 and means[code] >= SERVED * highest]


def _sentence(loading: Array, groups: Groups | None, served: list[str]) -> str:
    """Describe which samples or groups use a factor."""
    if not (loading > 0.0).any():
        return "Empty: no sample has it."
    if groups is None:
        return (
            f"Above half of its maximum in {plural(int((loading > SERVED).sum()), 'sample')}; "
            f"exactly zero in {percent(float((loading == 0.0).mean()))} of all samples."
        )
    means = group_means(loading[:, None], groups)[:, 0]
    value = {name: decimal(mean) for name, mean in zip(groups.names, means, strict=True)}
    first = f"{served[0]} (mean loading {value[served[0]]})"
    if len(served) == len(groups.names) and len(served) > 1:
        who = "both" if len(served) == 2 else f"all {len(served)}"
        return f"Used by {who} groups, most by {first}."
    if len(served) == 1:
        return f"Used by one group: {first}."
    others = joined([f"{name} ({value[name]})" for name in served[1:]], most=MOST_NAMED)
    return f"Used by {len(served)} of {len(groups.names)} groups: {first}, {others}."


def _features(fit: Fit, k: int, ranking: Ranking, found: Markers | None) -> list[dict[str, Any]]:
    """Describe the significant features or, where these are fewer than the bars, the top ones and them."""
    chosen = ranking.top(k, N_TABLE)
    tests = np.full((len(fit.factors), 4), np.nan)
    if found is not None:
        parts = (found.effect, found.lower, found.upper, found.adjusted_p)
        tests = np.stack([part[:, k] for part in parts], axis=1)
        significant = found.top_index(k, N_TABLE)
        enough = len(significant) >= N_TOP
        chosen = significant if enough else np.r_[chosen, np.setdiff1d(significant, chosen)]
    fold, least = ranking.log2_fold_change[:, k], ranking.score[:, k]
    longest = float(least[chosen].max(initial=0.0)) or 1.0
    texts = zip(alike(fold[chosen].tolist()), alike(least[chosen].tolist()), strict=True)
    return [
        {
            "name": str(fit.feature_labels[j]),
            "rank": rank,
            # log2 fold change, with the factor against more of the sample's other factors; the lower end of
            # its interval, by which features are ranked; both with as many decimals as the other features
            "fold": float(fold[j]),
            "least": float(least[j]),
            "fold_text": fold_text,
            "least_text": least_text,
            "weight": float(fit.factors[j, k]),  # on the link scale, where the largest loading is 1
            "width": max(float(least[j]), 0.0) / longest,  # of the bar, as a share of the longest
            # how much it rises with the factor on the link scale, and the test of it; NaN where there is none
            **dict(zip(("effect", "lower", "upper", "adjusted_p"), tests[j].tolist(), strict=True)),
        }
        for rank, (j, (fold_text, least_text)) in enumerate(zip(chosen, texts, strict=True), start=1)
    ]


# ---------- facts about the fits, and how far they went


def describe_fits(inputs: ReportInput) -> dict[str, Any]:
    """Return facts about all fits side by side, charts of their iterations, and the deviance they explain."""
    facts = [dict((*model_facts(fit), *quality_facts(fit))) for fit in inputs.fits]
    names = dict.fromkeys(name for one in facts for name in one)
    rows = [(name[0].upper() + name[1:], [one.get(name, "none") for one in facts]) for name in names]
    rows.insert(0, ("Factors (K)", [str(fit.n_components) for fit in inputs.fits]))
    explained = []
    with shown(None, "deviance explained", "fit") as show:
        for fit in inputs.fits:
            explained.append(_explained(fit, inputs.counts, inputs.n_jobs))
            show(len(explained), len(inputs.fits))
    if inputs.counts is not None:
        texts = [_deviance(fit, share) for fit, share in zip(inputs.fits, explained, strict=True)]
        rows.insert(1, ("Deviance explained", texts))
    charts = [(label, _charts(fit)) for label, fit in zip(inputs.labels, inputs.fits, strict=True)]
    return {"rows": rows, "charts": charts, "explained": explained}


def _explained(fit: Fit, counts: Counts | None, n_jobs: int | None) -> float:
    if counts is None or (not fit.link.is_identity and math.prod(counts.shape) > LARGEST_EXACT):
        return math.nan
    return deviance_explained(fit, counts, n_jobs=n_jobs)


def _deviance(fit: Fit, share: float) -> str:
    if math.isnan(share):
        return f"not computed: it needs all {fit.data.n_entries:.2g} entries"
    own = "" if fit.dispersion is None else f", under {NOISES['nb']} noise"
    return f"{percent(share)} of the fitted counts beyond the totals of samples and features{own}"


def _charts(fit: Fit) -> list[Chart]:
    """Draw the objective above its final value, and its relative change, by iteration."""
    rows, objective = levelled(fit.history)
    x, kind = fit.history["iteration"][rows].astype(np.float64), str(fit.history["likelihood"][-1])
    tol = float(fit.settings.tol)
    charts = [
        log_curve(
            x[:-1],
            objective[:-1] - objective[-1],
            kind,
            label="Objective above its final value, by iteration",
            y_title="above final objective",
        ),
        log_curve(
            x,
            fit.history["relative_change"][rows],
            kind,
            label="Relative change of the objective, by iteration, and the tolerance",
            y_title="relative change",
            level=(tol, f"tolerance {tol:.0e}") if tol > 0 else None,
        ),
    ]
    return [chart for chart in charts if chart is not None]


# ---------- what a fit does not explain: features, samples and entries whose counts it does not expect

N_LISTED = 8


def describe_misfit(inputs: ReportInput) -> list[dict[str, Any]]:
    """Compare all fits with the counts; nothing without counts, or with too many entries."""
    if inputs.counts is None or math.prod(inputs.counts.shape) > LARGEST_EXACT:
        return []
    sections, names = [], inputs.sample_names
    for label, fit in zip(inputs.labels, inputs.fits, strict=True):
        found = diagnose(fit, inputs.counts)
        features = found.feature_names
        noise, variance = NOISES[found.noise], np.nan_to_num(found.feature_dispersion)
        largest = [j for j in np.argsort(-variance, kind="stable")[:N_LISTED] if variance[j] > 0.0]
        entries = zip(*(found.worst[name] for name in ("sample", "feature", "count", "mean")), strict=True)
        sections.append(
            {
                "label": label,
                "sentences": replace(found, sample_names=names).summary(N_LISTED).split("\n"),
                "noise": noise,
                "chart": histogram(
                    variance,
                    label=f"Histogram of the variances of features at {label}",
                    x_title=f"variance / {noise} variance (log scale)",
                    y_title="features",
                ),
                "dispersions": _dispersions(found, label),
                "features": [(features[j], found.feature_mean[j], variance[j]) for j in largest],
                "entries": [(names[i], features[j], *of) for i, j, *of in islice(entries, N_LISTED)],
            }
        )
    return sections


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


# ---------- what batches do


def describe_batches(inputs: ReportInput) -> list[dict[str, Any]]:
    """Describe the batches of all fits that have some."""
    counts = inputs.counts
    if counts is not None and math.prod(counts.shape) > LARGEST_EXACT:
        counts = None
    sections = []
    for label, fit in zip(inputs.labels, inputs.fits, strict=True):
        if fit.batches is None or fit.batches.n_batches < 2:
            continue
        found = batch_findings(fit, counts)
        coinciding = [] if inputs.groups is None else confounded_groups(fit, inputs.groups.labels)
        chart = histogram(
            fit.batches.effects.ravel(),
            label=f"Histogram of the effects of batches on features at {label}",
            x_title="effect of a batch on a feature (log scale)",
            y_title="features in batches",
        )
        sections.append(
            {
                "label": label,
                "n_batches": fit.batches.n_batches,
                "excess": found["excess"][-1],
                "warnings": [f"{text[0].upper()}{text[1:]}." for text in coinciding],
                "chart": chart,
                "rows": list(zip(*found.values(), strict=True))[:-1],
            }
        )
    return sections
