"""Two links side by side: parts that multiply against parts that add up, in figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_mutual_info_score

from log1pnmf.analysis.groups import Groups, group_means
from log1pnmf.analysis.metrics import effective_factors, factor_correlation, hoyer, match_factors
from log1pnmf.fitting.fit import Fit

from .factors import served_groups
from .verdict import Figure, verdict

__all__ = ["Comparison", "compare"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """What the report says of two fits.

    Parameters
    ----------
    finite, additive : int
        Positions of the two models.
    paragraphs : list of str
        What to look at, in words that follow from the figures.
    headline : str
        The same in one sentence.
    pairs : list of (int, int, float)
        Factors that correspond, and the correlation of their loadings.
    """

    finite: int
    additive: int
    figures: list[Figure]
    paragraphs: list[str]
    headline: str
    pairs: list[tuple[int, int, float]]


def compare(
    fits: Sequence[Fit], which: tuple[int, int] = (0, 1), *, groups: Groups | None = None
) -> Comparison:
    """Compare a fit at finite c with one at c = inf; `which` are their positions."""
    first, second = (fits[i] for i in which)
    match = match_factors(first.loadings, second.loadings)
    figures = _figures(first, second)
    if groups is not None:
        figures = _group_figures((first, second), groups) + figures
    headline, paragraphs = verdict(
        figures,
        first.name,
        similarity=match.similarity.tolist(),
        n_factors=max(first.n_components, second.n_components),
    )
    return Comparison(
        finite=which[0],
        additive=which[1],
        figures=figures,
        paragraphs=paragraphs,
        headline=headline,
        pairs=[
            (int(a), int(b), float(similarity))
            for (a, b), similarity in zip(match.pairs, match.similarity, strict=True)
        ],
    )


def _figures(first: Fit, second: Fit) -> list[Figure]:
    def figure(name: str, meaning: str, measure: Callable[[Fit], float]) -> Figure:
        return Figure(name, meaning, measure(first), measure(second))

    return [
        figure(
            "Factors per sample",
            "effective number: exp of the entropy of a sample's loadings, mean over samples",
            lambda one: _mean_positive(effective_factors(one.loadings)),
        ),
        figure(
            "Share of the strongest factor",
            "in a sample, mean over samples: 1 where every sample has a single factor",
            lambda one: _strongest(one.loadings),
        ),
        figure(
            "Correlation of factors",
            "mean absolute Spearman correlation between the weights of two factors",
            lambda one: factor_correlation(one.factors),
        ),
        figure(
            "Sparsity of factors",
            "Hoyer, mean over factors: 1 where a factor is a single feature",
            lambda one: float(hoyer(one.factors).mean()),
        ),
        figure(
            "Sparsity of loadings",
            "Hoyer, mean over factors: 1 where a factor is in a single sample",
            lambda one: float(hoyer(one.loadings).mean()),
        ),
    ]


def _group_figures(pair: tuple[Fit, Fit], groups: Groups) -> list[Figure]:
    means = [group_means(one.loadings, groups) for one in pair]
    served = [[len(served_groups(column, groups.names)) for column in mean.T] for mean in means]
    spread = [_mean_positive(effective_factors(mean.T)) for mean in means]
    strongest = [one.loadings.argmax(axis=1) for one in pair]
    agreement = [float(adjusted_mutual_info_score(groups.codes, labels)) for labels in strongest]
    return [
        Figure(
            "Groups served per factor",
            "groups whose mean loading is at least half of the factor's highest, mean over factors",
            float(np.mean(served[0])),
            float(np.mean(served[1])),
        ),
        Figure(
            "Factors that serve one group", "and no other", served[0].count(1), served[1].count(1), whole=True
        ),
        Figure(
            "Groups per factor",
            "effective number: exp of the entropy of a factor's mean loadings by group, mean over factors",
            spread[0],
            spread[1],
        ),
        Figure(
            "Strongest factor tells the group",
            "adjusted mutual information of groups and strongest factors: 1 where one gives the other",
            agreement[0],
            agreement[1],
        ),
    ]


def _mean_positive(values: Array) -> float:
    """Mean over what is not empty."""
    kept = values[values > 0.0]
    return float(kept.mean()) if len(kept) else 0.0


def _strongest(loadings: Array) -> float:
    sums = loadings.sum(axis=1)
    kept = sums > 0.0
    return float((loadings[kept].max(axis=1) / sums[kept]).mean()) if kept.any() else 0.0
