"""Several fits side by side: which have nearly the same factors, and a finite c against c = inf.

Sentences follow from measured numbers and thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import plural
from log1pnmf.analysis import metrics
from log1pnmf.analysis.groups import Groups, group_means
from log1pnmf.fitting.fit import Fit

from .inputs import decimal
from .sections import served_groups

CLEARLY = 0.1  # two numbers differ if their difference is at least this part of the larger one ...
LEAST = 0.02  # ... and at least this much: a table with two decimals does not show less
SAME = 0.9  # two factors are nearly the same if their loadings correlate by at least this
CLUSTERED = 0.8  # samples fall into clusters if the mean share of their strongest factor is at least this

# ---------- which of several fits have nearly the same factors: the first sentence of the report

MOST_PAIRS = 4  # of fits that are named
MOST_FITS = 20  # that are compared with each other


def same_factors(fits: Sequence[Fit], labels: Sequence[str]) -> str:
    """Describe which fits have nearly the same factors."""
    # for every two fits: how many factors are nearly the same, of how many, and their lowest correlation
    shared: dict[tuple[int, int], tuple[int, int, float]] = {}
    for a, b in combinations(range(min(len(fits), MOST_FITS)), 2):
        found = metrics.match_factors(fits[a].loadings, fits[b].loadings).similarity
        close = found[found >= SAME]
        larger = max(fits[a].n_components, fits[b].n_components)
        shared[a, b] = len(close), larger, float(close.min(initial=1.0))
    same = [pair for pair, (n, of, _) in shared.items() if n == of]
    if shared and len(same) == len(shared):
        which = "Both" if len(fits) == 2 else f"All {len(fits)}"
        lowest = min(one for *_, one in shared.values())
        least = decimal(int(100 * lowest + 1e-9) / 100)  # rounded down, so that "or more" holds
        matched = f"the loadings of matched factors correlate by {least} or more"
        return f"{which} fits have nearly the same factors: {matched}."
    if len(shared) == 1:
        ((n, of, _),) = shared.values()
        verb = "is" if n == 1 else "are"
        return f"Of {plural(of, 'factor')}, {n} {verb} nearly the same in both fits."
    pairs = [f"{labels[a]} as {labels[b]}" for a, b in same[:MOST_PAIRS]]
    more = [f"{len(same) - MOST_PAIRS} more pairs"] if len(same) > MOST_PAIRS else []
    return f"Nearly the same factors: {'; '.join([*pairs, *more])}." if pairs else ""


# ---------- two links side by side: factors that multiply against factors that add up, in numbers


@dataclass(frozen=True)
class Measure:
    """One number that was measured of both fits."""

    name: str
    meaning: str
    # at finite c, and at c = inf
    finite: float
    additive: float
    # how far it is apart between fits of one setting; None where there is one fit of each
    between_starts: float | None = None

    @property
    def direction(self) -> int:
        """1 where it is larger at finite c by more than between starts, -1 where it is smaller, else 0."""
        apart, starts = self.finite - self.additive, self.between_starts or 0.0
        if abs(apart) <= max(LEAST, CLEARLY * max(abs(self.finite), abs(self.additive)), starts):
            return 0
        return 1 if apart > 0 else -1


@dataclass(frozen=True)
class Comparison:
    """Section of the report that compares two fits."""

    # positions of the two models
    finite: int
    additive: int
    measures: list[Measure]
    headline: str  # what differs clearly, in words that follow from the measures
    advice: str  # what to inspect
    n_starts: tuple[int, int]  # that the differences were compared with
    pairs: list[tuple[int, int, float]]  # factors that correspond, and the correlation of their loadings


def compare(
    fits: Sequence[Fit], which: tuple[int, int] = (0, 1), *, groups: Groups | None = None
) -> Comparison:
    """Compare a fit at finite c with one at c = inf; others show how much measures change between starts."""
    first, second = (fits[i] for i in which)
    match = metrics.match_factors(first.loadings, second.loadings)
    finite, additive = ([one, *_other_starts(one, fits)] for one in (first, second))
    measures = _measure_both(finite, additive, groups)
    pairs = [(a, b, r) for (a, b), r in zip(match.pairs.tolist(), match.similarity.tolist(), strict=True)]
    n_starts = len(finite), len(additive)
    return Comparison(*which, measures, *verdict(measures, first.name), n_starts, pairs)


def _other_starts(one: Fit, fits: Sequence[Fit]) -> list[Fit]:
    """Return the fits that differ from one in their starts only."""
    names = ("c", "n_components", "noise", "l1", "size_factors", "dispersion")
    return [
        other
        for other in fits
        if other is not one and all(getattr(one.asked, name) == getattr(other.asked, name) for name in names)
    ]


# what is measured of every fit, and what it means; the first four where there are groups
OF_GROUPS = {
    "Groups that use a factor": "mean loading at least half of the highest group's; mean over factors",
    "Factors used by one group": "and by no other",
    "Groups per factor": "effective number (exp of the entropy of mean loadings by group), mean over factors",
    "Strongest factor predicts the group": "adjusted mutual information of group and strongest factor that "
    "not all samples share; 1 if one determines the other",
}
OF_SAMPLES = {
    "Factors per sample": "effective number (exp of the entropy of a sample's shares of the signal), mean "
    "over samples",
    "Share of the strongest factor": "in the signal of a sample, mean over samples; 1 if every sample has a "
    "single factor",
    "Correlation of factors": "mean absolute Spearman correlation between the weights of two factors",
    "Sparsity of factors": "Hoyer, mean over factors; 1 if a factor is a single feature",
    "Sparsity of loadings": "Hoyer, mean over factors; 1 if a single sample has the factor",
}


def _measure_both(finite: Sequence[Fit], additive: Sequence[Fit], groups: Groups | None) -> list[Measure]:
    """Measure the first fit of each; the others of the same setting show the differences between starts."""
    tables = [zip(*(_measured(one, groups) for one in fits), strict=True) for fits in (finite, additive)]
    known = max(len(finite), len(additive)) > 1
    texts = (OF_GROUPS | OF_SAMPLES if groups is not None else OF_SAMPLES).items()
    measures = []
    for (name, meaning), *both in zip(texts, *tables, strict=True):
        apart = max(max(values) - min(values) for values in both) if known else None
        measures.append(Measure(name, meaning, both[0][0], both[1][0], between_starts=apart))
    return measures


def _measured(one: Fit, groups: Groups | None) -> list[float]:
    """Return every measure of a fit."""
    share = metrics.shares(one)
    own = [
        _mean_positive(metrics.effective_factors(share)),
        _mean_positive(share.max(axis=1)),
        metrics.factor_correlation(one.factors),
        float(metrics.hoyer(one.factors).mean()),
        float(metrics.hoyer(one.loadings).mean()),
    ]
    if groups is None:
        return own
    from sklearn.metrics import adjusted_mutual_info_score  # only reports with groups need it

    mean = group_means(one.loadings, groups)
    served = [len(served_groups(column, groups.names)) for column in mean.T]
    per_factor = _mean_positive(metrics.effective_factors(mean.T))
    agreement = adjusted_mutual_info_score(groups.codes, metrics.dominant_factor(one).astype(str))
    return [float(np.mean(served)), served.count(1), per_factor, float(agreement), *own]


def _mean_positive(values: NDArray[np.float64]) -> float:
    """Return the mean over what is not empty."""
    kept = values[values > 0.0]
    return float(kept.mean()) if len(kept) else 0.0


# ---------- the comparison of two fits in words


def verdict(measures: list[Measure], name: str) -> tuple[str, str]:
    """Return a headline that follows from the measures, and what to inspect."""
    by_name = {measure.name: measure for measure in measures}
    per_sample, strongest = by_name["Factors per sample"], by_name["Share of the strongest factor"]
    # 1 where samples clearly mix more factors at finite c, -1 at c = inf; 0 where the two measures disagree
    mixed = 0 if strongest.direction == per_sample.direction else per_sample.direction
    numbers = (
        f"{decimal(per_sample.finite)} factors per sample at {name}, {decimal(per_sample.additive)} at c = ∞"
    )
    if mixed:
        more, less = (name, "c = ∞") if mixed > 0 else ("c = ∞", name)
        headline = f"Samples mix more factors at {more} than at {less} ({numbers})."
    elif per_sample.direction:
        headline = (
            f"It is unclear in which fit samples mix more factors: {numbers}, but the strongest factor makes "
            f"up {strongest.finite:.0%} and {strongest.additive:.0%} of a sample's signal."
        )
    else:
        headline = f"Samples mix about as many factors in both fits ({numbers})."
    place, share = ("c = ∞", strongest.additive) if strongest.direction < 0 else (name, strongest.finite)
    clustered = strongest.direction != 0 and share >= CLUSTERED
    if clustered:
        headline += (
            f" At {place} samples fall into clusters: on average the strongest factor makes up {share:.0%} "
            "of a sample's signal."
        )
    if per_sample.between_starts is None and (mixed or clustered):
        headline += " Each c has one fit; another seed may give another picture."
    if mixed > 0:
        where = "groups" if "Groups per factor" in by_name else "stretches of samples"
        return headline, f"Look for colours that run through several {where} in the plot of {name}."
    if mixed < 0:
        return headline, "Check whether a factor at c = ∞ only contains what all samples have in common."
    lowest = "The pairs with the lowest correlation in the table of matched factors show how the fits differ."
    return headline, lowest
