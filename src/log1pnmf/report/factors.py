"""The factors of one fit: their share, the groups that use them, and how similar they are."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import plural
from log1pnmf.analysis.evidence import Evidence, evidence
from log1pnmf.analysis.groups import Groups, group_means
from log1pnmf.analysis.markers import Markers, markers
from log1pnmf.analysis.metrics import correlation_matrix, hoyer
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import KNOWN, Fit, evenness, factor_shares
from log1pnmf.fitting.ranking import Ranking, ranking_of

from .inputs import N_TABLE, ReportInput, alike, decimal, enumerate_words, percent

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the report itself names factors without markers
        return [markers(fit, inputs.counts, max_samples=most, n_jobs=inputs.n_jobs) for fit in inputs.fits]


def find_evidence(inputs: ReportInput) -> list[Evidence | None]:
    """Return the evidence of every fit, or compute it if that takes seconds; None without counts."""
    if inputs.evidence:
        return [
            None if found is None else found.renamed(fit.factor_names)
            for found, fit in zip(inputs.evidence, inputs.fits, strict=True)
        ]
    counts = inputs.counts
    if counts is None or not _is_affordable(inputs.fits, counts):
        return [None] * len(inputs.fits)
    return [
        evidence(fit, counts, n_seeds=N_SEEDS, n_bootstrap=N_BOOTSTRAP, n_jobs=inputs.n_jobs)
        for fit in inputs.fits
    ]


def evidence_note(inputs: ReportInput) -> str | None:
    """Describe why factors were not tested; None if they were, or if there are no counts."""
    if inputs.evidence or inputs.counts is None or _is_affordable(inputs.fits, inputs.counts):
        return None
    return (
        "This report does not test whether each factor is real: that would take "
        f"{sum(map(_n_fits, inputs.fits))} more fits of counts of this size. Use "
        "log1pnmf.analysis.evidence(fit, counts) or log1pnmf evidence."
    )


def _n_fits(fit: Fit) -> int:
    return fit.n_components + N_SEEDS + N_BOOTSTRAP


def _is_affordable(fits: Sequence[Fit], counts: Counts) -> bool:
    costs = [fit.n_components * _n_fits(fit) * (1.0 if fit.dispersion is None else DEARER) for fit in fits]
    return math.prod(counts.shape) * math.fsum(costs) <= LARGEST


# ---------- the factors of one fit: their share, the groups that use them, and how similar they are

Array = NDArray[np.float64]

MOST_NAMED = 2  # groups of a factor that are named after the first; the others are counted
SERVED = 0.5  # a factor serves the groups whose mean loading is at least this part of its highest
N_TOP = 10  # features drawn as bars


def describe_factors(
    fit: Fit,
    *,
    label: str,
    colors: list[str],
    groups: Groups | None,
    tests: Markers | None = None,
    found: Evidence | None = None,
) -> dict[str, Any]:
    """Describe the factors of a fit; with tests, list features that rise significantly first."""
    means = None if groups is None else group_means(fit.loadings, groups)
    share, even = factor_shares(fit.loadings, fit.factors), evenness(fit.loadings)
    sparsity, ranking = hoyer(fit.factors), ranking_of(fit)
    factors = []
    for k, name in enumerate(fit.factor_names):
        served = [] if groups is None or means is None else served_groups(means[:, k], groups.names)
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
                "evidence": [] if found is None else _evidence_cells(found, k),
            }
        )
    return {
        "label": label,
        "factors": factors,
        "groups": [] if groups is None else list(groups.names),
        "group_sizes": [] if groups is None else groups.sizes.tolist(),
        "means": [] if means is None else means.tolist(),
        "correlations": correlation_matrix(fit.factors).tolist(),
        "n_tested": None if tests is None else tests.n_samples,
        "judgement": "" if found is None else found.judgement(),
    }


def _evidence_cells(found: Evidence, k: int) -> list[str]:
    """Write what is lost without a factor, and how often it comes back, as the cells of a table."""
    shares = [(found.seeds[k], found.n_seeds), (found.bootstrap[k], found.n_bootstrap)]
    loss = found.loss[k]
    lost = ["–", "–"] if np.isnan(loss) else [f"{loss:,.0f}", f"{found.times_noise[k]:.1f}"]
    return [*lost, *("–" if np.isnan(share) else f"{share * n:.0f} of {n}" for share, n in shares)]


def served_groups(means: Array, names: tuple[str, ...]) -> list[str]:
    """Find the groups whose mean loading is at least half of the highest, the highest first."""
    highest = float(means.max())
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
    others = enumerate_words([f"{name} ({value[name]})" for name in served[1:]], most=MOST_NAMED)
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
    fold, least = ranking.log2_fold_change[:, k], ranking.lower[:, k]
    longest = float(least[chosen].max(initial=0.0)) or 1.0
    texts = zip(alike(fold[chosen].tolist()), alike(least[chosen].tolist()), strict=True)
    return [
        {
            "name": str(fit.feature_labels[j]),
            "rank": rank,
            # log2 fold change, with the factor against the rest of the sample's own mixture; the lower end of
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
