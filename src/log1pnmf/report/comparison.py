"""Two links side by side: parts that multiply against parts that add up, in figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from log1pnmf.analysis.groups import Groups, group_means
from log1pnmf.analysis.metrics import (
    dominant_factor,
    effective_factors,
    factor_correlation,
    hoyer,
    match_factors,
    shares,
)
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
    fits: Sequence[Fit],
    which: tuple[int, int] = (0, 1),
    *,
    groups: Groups | None = None,
    said_same: bool = False,
) -> Comparison:
    """Compare a fit at finite c with one at c = inf; `which` are their positions.

    Other fits with the settings of either say how much figures change from start to start. `said_same`: that
    their factors are nearly the same has been said.
    """
    first, second = (fits[i] for i in which)
    match = match_factors(first.loadings, second.loadings)
    finite, additive = ([one, *_other_starts(one, fits)] for one in (first, second))
    figures = _figures(finite, additive, groups)
    headline, paragraphs = verdict(
        figures,
        first.name,
        similarity=match.similarity.tolist(),
        n_factors=max(first.n_components, second.n_components),
        said_same=said_same,
    )
    return Comparison(
        finite=which[0],
        additive=which[1],
        figures=figures,
        paragraphs=[*paragraphs, _about_starts(len(finite), len(additive))],
        headline=headline,
        pairs=[
            (int(a), int(b), float(similarity))
            for (a, b), similarity in zip(match.pairs, match.similarity, strict=True)
        ],
    )


def _other_starts(one: Fit, fits: Sequence[Fit]) -> list[Fit]:
    """Find the fits that differ from one in their starts only."""
    names = ("c", "n_components", "noise", "l1", "size_factors", "dispersion")
    return [
        other
        for other in fits
        if other is not one and all(getattr(one.asked, name) == getattr(other.asked, name) for name in names)
    ]


def _about_starts(n_finite: int, n_additive: int) -> str:
    """Say what is known of how much the figures change from start to start."""
    if n_finite == n_additive == 1:
        return (
            "Each c has one start. To see which differences come from the start, add fits with other values "
            "of random_state to the report."
        )
    return (
        f"Only differences larger than those between starts are mentioned ({n_finite} at finite c, "
        f"{n_additive} at c = ∞)."
    )


def _figures(finite: Sequence[Fit], additive: Sequence[Fit], groups: Groups | None) -> list[Figure]:
    """Measure the first fit of each; the others of the same setting say how far starts are apart."""
    tables = [[_measures(one, groups) for one in several] for several in (finite, additive)]
    known = max(len(finite), len(additive)) > 1
    figures = []
    for row, (name, meaning, _) in enumerate(tables[0][0]):
        values = [[table[row][2] for table in several] for several in tables]
        apart = max(max(several) - min(several) for several in values) if known else None
        whole = name == "Factors used by one group"
        figures.append(Figure(name, meaning, values[0][0], values[1][0], whole=whole, between_starts=apart))
    return figures


def _measures(one: Fit, groups: Groups | None) -> list[tuple[str, str, float]]:
    """Name, meaning and value of every figure of a fit."""
    found, share = [] if groups is None else _group_measures(one, groups), shares(one)
    return [
        *found,
        (
            "Factors per sample",
            "effective number (exp of the entropy of a sample's shares of the signal), mean over samples",
            _mean_positive(effective_factors(share)),
        ),
        (
            "Share of the strongest factor",
            "in the signal of a sample, mean over samples; 1 if every sample has a single factor",
            _mean_positive(share.max(axis=1)),
        ),
        (
            "Correlation of factors",
            "mean absolute Spearman correlation between the weights of two factors",
            factor_correlation(one.factors),
        ),
        (
            "Sparsity of factors",
            "Hoyer, mean over factors; 1 if a factor is a single feature",
            float(hoyer(one.factors).mean()),
        ),
        (
            "Sparsity of loadings",
            "Hoyer, mean over factors; 1 if a single sample has the factor",
            float(hoyer(one.loadings).mean()),
        ),
    ]


def _group_measures(one: Fit, groups: Groups) -> list[tuple[str, str, float]]:
    from sklearn.metrics import adjusted_mutual_info_score  # only reports with groups need it

    mean = group_means(one.loadings, groups)
    served = [len(served_groups(column, groups.names)) for column in mean.T]
    agreement = adjusted_mutual_info_score(groups.codes, dominant_factor(one).astype(str))
    return [
        (
            "Groups that use a factor",
            "mean loading at least half of the highest group's; mean over factors",
            float(np.mean(served)),
        ),
        ("Factors used by one group", "and by no other", served.count(1)),
        (
            "Groups per factor",
            "effective number (exp of the entropy of mean loadings by group), mean over factors",
            _mean_positive(effective_factors(mean.T)),
        ),
        (
            "Strongest factor predicts the group",
            "adjusted mutual information of group and strongest factor that not all samples share; "
            "1 if one determines the other",
            float(agreement),
        ),
    ]


def _mean_positive(values: Array) -> float:
    """Mean over what is not empty."""
    kept = values[values > 0.0]
    return float(kept.mean()) if len(kept) else 0.0
