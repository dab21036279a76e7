"""The factors of one fit: their share, the groups that use them, and how similar they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import plural
from log1pnmf.analysis.evidence import Evidence, evidence
from log1pnmf.analysis.groups import Groups, group_means
from log1pnmf.analysis.markers import Markers, markers
from log1pnmf.analysis.metrics import correlation_matrix, hoyer
from log1pnmf.fitting.fit import KNOWN, Fit, evenness, factor_shares
from log1pnmf.fitting.ranking import Ranking, ranking_of

from .inputs import N_TABLE, ReportInput, alike, decimal, enumerate_words, percent

# ---------- tests of whether factors are real

N_SEEDS, N_BOOTSTRAP = 2, 5
"""Fits that a report makes for itself."""

LARGEST = 2e7
"""Most entries times factors times fits, over all fits of a report, for which that takes seconds."""

DEARER = 4.0
"""How many times longer a fit with dispersions takes."""


def find_presence(inputs: ReportInput) -> list[Evidence | None]:
    """Return the evidence of every fit, or compute it if that takes seconds; None without counts."""
    if inputs.evidence:
        return [
            None if found is None else found.renamed(fit.factor_names)
            for found, fit in zip(inputs.evidence, inputs.fits, strict=True)
        ]
    counts = inputs.counts
    if counts is None or not _is_affordable(inputs):
        return [None] * len(inputs.fits)
    return [
        evidence(fit, counts, n_seeds=N_SEEDS, n_bootstrap=N_BOOTSTRAP, n_jobs=inputs.n_jobs)
        for fit in inputs.fits
    ]


def presence_note(inputs: ReportInput) -> str | None:
    """Describe why factors were not tested; None if they were, or if there are no counts."""
    if inputs.evidence or inputs.counts is None or _is_affordable(inputs):
        return None
    n_fits = sum(_n_fits(fit) for fit in inputs.fits)
    return (
        "This report does not test whether each factor is real: that would take "
        f"{n_fits} more fits of counts of this size. Use log1pnmf.analysis.evidence(fit, counts) or "
        "log1pnmf evidence."
    )


def _n_fits(fit: Fit) -> int:
    return fit.n_components + N_SEEDS + N_BOOTSTRAP


def _is_affordable(inputs: ReportInput) -> bool:
    costs = [
        math.prod(inputs.counts.shape if inputs.counts is not None else (0,))
        * fit.n_components
        * _n_fits(fit)
        * (1.0 if fit.dispersion is None else DEARER)
        for fit in inputs.fits
    ]
    return math.fsum(costs) <= LARGEST


# ---------- the factors of one fit: their share, the groups that use them, and how similar they are

Array = NDArray[np.float64]

MOST_NAMED = 2
"""Groups of a factor that are named after the first; the others are counted."""

SERVED = 0.5
"""A factor serves the groups whose mean loading is at least this part of its highest."""

N_TOP = 10

TESTED_ENTRIES = 10_000_000
"""About how many entries are tested, in random samples, so that a test takes seconds."""

LEAST_SAMPLES = 1000
"""Least number of samples that are tested, however many features they have."""


@dataclass(frozen=True)
class Feature:
    """A feature of a factor."""

    name: str
    rank: int  # 1 for the first
    # log2 fold change, with the factor against the rest of the sample's own mixture; the lower end of its
    # interval, by which features are ranked
    fold: float
    least: float
    # both, with as many decimals as those of the other features
    fold_text: str
    least_text: str
    weight: float  # in the factor, on the link scale, where its largest loading is 1
    width: float  # length of the bar, which shows the lower end, as a share of the longest
    # how much it rises with the factor on the link scale, the 95% interval, and the test of it; NaN where it
    # was not tested
    effect: float
    lower: float
    upper: float
    adjusted_p: float


@dataclass(frozen=True)
class Factor:
    """Section of the report about a factor."""

    name: str
    known: str  # what was known of it before the fit; empty for nothing
    color: str
    share: float  # of the fitted signal
    # of its loadings over samples; of its weights over features (Hoyer)
    evenness: float
    sparsity: float
    served: list[str]  # groups, the one with the highest mean loading first
    sentence: str  # which groups use it, in words
    # features drawn as bars; features of the long table
    top: list[Feature]
    table: list[Feature]
    # features that rise significantly with it; None where they were not tested, or nothing can be compared
    # with it
    n_markers: int | None
    # what is lost without it, times what noise gives, and in how many other starts and bootstrap samples it
    # comes back; empty where that is not known
    presence: list[str]


@dataclass(frozen=True)
class FactorSection:
    """The factors of a fit."""

    label: str  # name of the fit
    factors: list[Factor]
    groups: list[str]
    group_sizes: list[int]
    means: list[list[float]]  # mean loading of each group (row) on each factor
    correlations: list[list[float]]  # spearman's, between factors
    n_tested: int | None  # samples on which features were tested; None where they were not
    judgement: str  # whether the factors are real, in words; empty if that is not known


def find_markers(inputs: ReportInput) -> list[Markers | None]:
    """Return tests of the features of every fit: given ones, or new ones if there are counts."""
    if inputs.markers:
        return list(inputs.markers)
    counts = inputs.counts
    if counts is None:
        return [None] * len(inputs.fits)
    most = max(LEAST_SAMPLES, TESTED_ENTRIES // counts.n_features)
    return [markers(fit, counts, max_samples=most, n_jobs=inputs.n_jobs) for fit in inputs.fits]


def describe_factors(
    fit: Fit,
    *,
    label: str,
    colors: list[str],
    groups: Groups | None,
    tests: Markers | None = None,
    presence: Evidence | None = None,
) -> FactorSection:
    """Describe the factors of a fit; with tests, list features that rise significantly first."""
    means = None if groups is None else group_means(fit.loadings, groups)
    share, even = factor_shares(fit.loadings, fit.factors), evenness(fit.loadings)
    sparsity, ranking = hoyer(fit.factors), ranking_of(fit)
    factors = []
    for k, name in enumerate(fit.factor_names):
        column = None if means is None else means[:, k]
        served = [] if groups is None or column is None else served_groups(column, groups.names)
        table = _features(fit, k, ranking, tests)
        factors.append(
            Factor(
                name=name,
                known=KNOWN.get(fit.kinds[k], ""),
                color=colors[k],
                share=float(share[k]),
                evenness=float(even[k]),
                sparsity=float(sparsity[k]),
                served=served,
                sentence=_sentence(fit.loadings[:, k], groups, column, served),
                top=table[:N_TOP],
                table=table,
                n_markers=None if tests is None or np.isnan(tests.p[:, k]).all() else int(tests.n_rising[k]),
                presence=[] if presence is None else _presence(presence, k),
            )
        )
    return FactorSection(
        label=label,
        factors=factors,
        groups=[] if groups is None else list(groups.names),
        group_sizes=[] if groups is None else groups.sizes.tolist(),
        means=[] if means is None else means.tolist(),
        correlations=correlation_matrix(fit.factors).tolist(),
        n_tested=None if tests is None else tests.n_samples,
        judgement="" if presence is None else presence.judgement(),
    )


def _presence(found: Evidence, k: int) -> list[str]:
    """Write what speaks for a factor, as the cells of a table."""
    shares = [(found.seeds[k], found.n_seeds), (found.bootstrap[k], found.n_bootstrap)]
    loss = found.loss[k]
    known = ["–", "–"] if np.isnan(loss) else [f"{loss:,.0f}", f"{found.times_noise[k]:.1f}"]
    return [*known, *("–" if np.isnan(share) else f"{share * n:.0f} of {n}" for share, n in shares)]


def served_groups(means: Array, names: tuple[str, ...]) -> list[str]:
    """Find the groups whose mean loading is at least half of the highest, the highest first.

    >>> served_groups(np.array([0.2, 0.9, 0.5]), ("a", "b", "c"))
    ['b', 'c']
    """
    highest = float(means.max())
    order = np.argsort(-means, kind="stable")
    return [names[code] for code in order if highest > 0.0 and means[code] >= SERVED * highest]


def _sentence(loading: Array, groups: Groups | None, means: Array | None, served: list[str]) -> str:
    if not (loading > 0.0).any():
        return "Empty: no sample has it."
    if groups is None or means is None:
        return (
            f"Above half of its maximum in {plural(int((loading > SERVED).sum()), 'sample')}; "
            f"exactly zero in {percent(float((loading == 0.0).mean()))} of all samples."
        )
    value = {name: decimal(means[groups.names.index(name)]) for name in served}
    if len(served) == len(groups.names) and len(served) > 1:
        who = "both" if len(served) == 2 else f"all {len(served)}"
        return f"Used by {who} groups, most by {served[0]} (mean loading {value[served[0]]})."
    first = f"{served[0]} (mean loading {value[served[0]]})"
    if len(served) == 1:
        return f"Used by one group: {first}."
    others = enumerate_words([f"{name} ({value[name]})" for name in served[1:]], most=MOST_NAMED)
    return f"Used by {len(served)} of {len(groups.names)} groups: {first}, {others}."


def _features(fit: Fit, k: int, ranking: Ranking, found: Markers | None) -> list[Feature]:
    """Describe the significant features or, where these are fewer than the bars, the top ones and them."""
    chosen = ranking.top(k, N_TABLE)
    tests = np.full((len(fit.factors), 4), np.nan)
    if found is not None:
        tests = np.stack(
            [part[:, k] for part in (found.effect, found.lower, found.upper, found.adjusted_p)], 1
        )
        significant = found.top_index(k, N_TABLE)
        if len(significant) >= N_TOP:
            chosen = significant
        else:
            chosen = np.r_[chosen, np.setdiff1d(significant, chosen)]
    fold, least = ranking.log2_fold_change[:, k], ranking.lower[:, k]
    longest = float(least[chosen].max(initial=0.0)) or 1.0
    texts = [alike(part[chosen].tolist()) for part in (fold, least)]
    return [
        Feature(
            str(fit.feature_labels[j]),
            rank,
            float(fold[j]),
            float(least[j]),
            texts[0][rank - 1],
            texts[1][rank - 1],
            float(fit.factors[j, k]),
            max(float(least[j]), 0.0) / longest,
            *tests[j].tolist(),
        )
        for rank, j in enumerate(chosen, start=1)
    ]
