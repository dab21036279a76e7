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
MOST = 0.75  # if at least this part of the factors is nearly the same, the headline starts with that
CLUSTERED = 0.8  # samples fall into clusters if the mean share of their strongest factor is at least this

# ---------- which of several fits have nearly the same factors: the first sentence of the report

MOST_PAIRS = 4  # of fits that are named
MOST_FITS = 20  # that are compared with each other


def same_factors(
    fits: Sequence[Fit], labels: Sequence[str], skip: tuple[int, int] | None = None
) -> tuple[str, bool]:
    """Describe which fits but the pair `skip` have nearly the same factors; return whether all do."""
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
        least = _rounded_down(min(lowest for *_, lowest in shared.values()))
        matched = f"the loadings of matched factors correlate by {least} or more"
        return f"{which} fits have nearly the same factors: {matched}.", True
    skipped = None if skip is None else tuple(sorted(skip))
    same = [pair for pair in same if pair != skipped]
    if same:
        pairs = [f"{labels[a]} as {labels[b]}" for a, b in same[:MOST_PAIRS]]
        more = [f"{len(same) - MOST_PAIRS} more pairs"] if len(same) > MOST_PAIRS else []
        return f"Nearly the same factors: {'; '.join([*pairs, *more])}.", False
    if len(shared) == 1 and skip is None:
        ((n, of, _),) = shared.values()
        verb = "is" if n == 1 else "are"
        return f"Of {plural(of, 'factor')}, {n} {verb} nearly the same in both fits.", False
    return "", False


# ---------- two links side by side: parts that multiply against parts that add up, in numbers


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

    def shown(self, value: float) -> str:
        """Write one of the two."""
        return f"{value}" if isinstance(value, int) else decimal(value)

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
    paragraphs: list[str]  # what to look at, in words that follow from the measures
    headline: str  # the same in one sentence
    pairs: list[tuple[int, int, float]]  # factors that correspond, and the correlation of their loadings


def compare(
    fits: Sequence[Fit],
    which: tuple[int, int] = (0, 1),
    *,
    groups: Groups | None = None,
    same_stated: bool = False,
) -> Comparison:
    """Compare a fit at finite c with one at c = inf; others show how much measures change between starts.

    `same_stated`: the page has already stated that the factors of the two are nearly the same.
    """
    first, second = (fits[i] for i in which)
    match = metrics.match_factors(first.loadings, second.loadings)
    finite, additive = ([one, *_other_starts(one, fits)] for one in (first, second))
    measures = _measure_both(finite, additive, groups)
    headline, paragraphs = verdict(
        measures,
        first.name,
        similarity=match.similarity.tolist(),
        n_factors=max(first.n_components, second.n_components),
        same_stated=same_stated,
    )
    if len(finite) == len(additive) == 1:
        starts = (
            "Each c has one start. To see which differences come from the start, add fits with other values "
            "of random_state to the report."
        )
    else:
        starts = (
            f"Only differences larger than those between starts are mentioned ({len(finite)} at finite c, "
            f"{len(additive)} at c = ∞)."
        )
    pairs = [(a, b, r) for (a, b), r in zip(match.pairs.tolist(), match.similarity.tolist(), strict=True)]
    return Comparison(*which, measures, [*paragraphs, starts], headline, pairs)


def _other_starts(one: Fit, fits: Sequence[Fit]) -> list[Fit]:
    """Return the fits that differ from one in their starts only."""
    names = ("c", "n_components", "noise", "l1", "size_factors", "dispersion")
    return [
        other
        for other in fits
        if other is not one and all(getattr(one.asked, name) == getattr(other.asked, name) for name in names)
    ]


def _measure_both(finite: Sequence[Fit], additive: Sequence[Fit], groups: Groups | None) -> list[Measure]:
    """Measure the first fit of each; the others of the same setting show the differences between starts."""
    tables = [[_measured(one, groups) for one in several] for several in (finite, additive)]
    known = max(len(finite), len(additive)) > 1
    measures = []
    for name, (meaning, _) in tables[0][0].items():
        values = [[table[name][1] for table in several] for several in tables]
        apart = max(max(several) - min(several) for several in values) if known else None
        measures.append(Measure(name, meaning, values[0][0], values[1][0], between_starts=apart))
    return measures


def _measured(one: Fit, groups: Groups | None) -> dict[str, tuple[str, float]]:
    """Return meaning and value of every measure of a fit, by name."""
    share = metrics.shares(one)
    return (_measured_groups(one, groups) if groups is not None else {}) | {
        "Factors per sample": (
            "effective number (exp of the entropy of a sample's shares of the signal), mean over samples",
            _mean_positive(metrics.effective_factors(share)),
        ),
        "Share of the strongest factor": (
            "in the signal of a sample, mean over samples; 1 if every sample has a single factor",
            _mean_positive(share.max(axis=1)),
        ),
        "Correlation of factors": (
            "mean absolute Spearman correlation between the weights of two factors",
            metrics.factor_correlation(one.factors),
        ),
        "Sparsity of factors": (
            "Hoyer, mean over factors; 1 if a factor is a single feature",
            float(metrics.hoyer(one.factors).mean()),
        ),
        "Sparsity of loadings": (
            "Hoyer, mean over factors; 1 if a single sample has the factor",
            float(metrics.hoyer(one.loadings).mean()),
        ),
    }


def _measured_groups(one: Fit, groups: Groups) -> dict[str, tuple[str, float]]:
    from sklearn.metrics import adjusted_mutual_info_score  # only reports with groups need it

    mean = group_means(one.loadings, groups)
    served = [len(served_groups(column, groups.names)) for column in mean.T]
    agreement = adjusted_mutual_info_score(groups.codes, metrics.dominant_factor(one).astype(str))
    return {
        "Groups that use a factor": (
            "mean loading at least half of the highest group's; mean over factors",
            float(np.mean(served)),
        ),
        "Factors used by one group": ("and by no other", served.count(1)),
        "Groups per factor": (
            "effective number (exp of the entropy of mean loadings by group), mean over factors",
            _mean_positive(metrics.effective_factors(mean.T)),
        ),
        "Strongest factor predicts the group": (
            "adjusted mutual information of group and strongest factor that not all samples share; "
            "1 if one determines the other",
            float(agreement),
        ),
    }


def _mean_positive(values: NDArray[np.float64]) -> float:
    """Return the mean over what is not empty."""
    kept = values[values > 0.0]
    return float(kept.mean()) if len(kept) else 0.0


# ---------- the comparison of two fits in words


def verdict(
    measures: list[Measure],
    name: str,
    *,
    similarity: Sequence[float],
    n_factors: int,
    same_stated: bool = False,
) -> tuple[str, list[str]]:
    """Return a headline and paragraphs that follow from the measures and from the similarity of factors."""
    by_name = {measure.name: measure for measure in measures}
    per_sample, strongest = by_name["Factors per sample"], by_name["Share of the strongest factor"]
    # 1 where samples clearly mix more factors at finite c, -1 at c = inf; 0 where the two measures disagree
    mixed = 0 if strongest.direction == per_sample.direction else per_sample.direction
    same = _same(similarity, n_factors, name)
    clusters = "" if same else _clusters(strongest, name)
    sentences = [
        "" if same_stated else same,
        _mixing(per_sample, strongest, mixed, name) if mixed or not same else "",
        clusters,
    ]
    if per_sample.between_starts is None and (mixed or clusters):
        sentences.append("Each fit has one start; other starts may give another picture.")
    if same or not mixed:
        advice = "The pairs with the lowest correlation in the table of matched factors show how they differ."
    elif mixed > 0:
        where = "groups" if "Groups per factor" in by_name else "stretches of samples"
        advice = f"Look for colours that run through several {where} in the plot of {name}."
    else:
        advice = "Check whether a factor at c = ∞ only contains what all samples have in common."
    return " ".join(filter(None, sentences)), [advice, " ".join(_sentences(by_name, name))]


def _same(similarity: Sequence[float], n_factors: int, name: str) -> str:
    """Describe that most factors are nearly the same in both fits; nothing where they are not."""
    close = [value for value in similarity if value >= SAME]
    if len(close) < MOST * n_factors:
        return ""
    least = f"correlate by {_rounded_down(min(close))} or more."
    if len(close) == n_factors:
        same = f"The fits at {name} and c = ∞ have nearly the same factors"
        return f"{same}: the loadings of matched factors {least}"
    same = f"{len(close)} of {n_factors} factors are nearly the same at {name} and c = ∞"
    return f"{same}: their loadings {least}"


def _rounded_down(value: float) -> str:
    """Return two decimals that are not above the value, so that "or more" holds."""
    return decimal(int(100 * value + 1e-9) / 100)


def _mixing(per_sample: Measure, strongest: Measure, mixed: int, name: str) -> str:
    """Describe in which fit samples mix more factors."""
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


def _clusters(strongest: Measure, name: str) -> str:
    """Describe which of the fits puts samples into clusters; nothing where neither clearly does."""
    place, share = ("c = ∞", strongest.additive) if strongest.direction < 0 else (name, strongest.finite)
    if strongest.direction == 0 or share < CLUSTERED:
        return ""
    return (
        f"At {place} samples fall into clusters: on average the strongest factor makes up {share:.0%} of a "
        "sample's signal."
    )


def _sentences(measures: dict[str, Measure], name: str) -> list[str]:
    """Describe how groups use factors, how strong factors are and how similar."""
    sentences = []
    served, alone = measures.get("Groups that use a factor"), measures.get("Factors used by one group")
    if served is not None and alone is not None:
        sentences.append(
            f"On average {decimal(served.finite)} groups use a factor at {name} and "
            f"{decimal(served.additive)} at c = ∞; "
            f"{plural(alone.finite, 'factor belongs', 'factors belong')} to a single group at {name}, "
            f"{alone.additive:.0f} at c = ∞."
        )
    strongest = measures["Share of the strongest factor"]
    sentences.append(
        f"The strongest factor makes up {strongest.finite:.0%} of a sample's signal at {name} and "
        f"{strongest.additive:.0%} at c = ∞."
    )
    agreement = measures.get("Strongest factor predicts the group")
    if agreement is not None:
        than = {1: "better at", -1: "less well at", 0: "about as well at"}[agreement.direction]
        end = "than at c = ∞" if agreement.direction else "as at c = ∞"
        sentences.append(
            f"The strongest factor predicts the group {than} {name} {end} "
            f"({decimal(agreement.finite)} against {decimal(agreement.additive)})."
        )
    alike = measures["Correlation of factors"]
    word = {1: "more alike", -1: "more distinct", 0: "about as distinct"}[alike.direction]
    end = "as at c = ∞" if alike.direction == 0 else "than at c = ∞"
    sentences.append(
        f"The weights of two factors are {word} at {name} {end} (mean absolute rank correlation "
        f"{decimal(alike.finite)} against {decimal(alike.additive)})."
    )
    return sentences
