"""Two links side by side: parts that multiply against parts that add up, in figures and in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_mutual_info_score

from log1pnmf.arrange import Groups
from log1pnmf.decomposition import Decomposition
from log1pnmf.metrics import effective_factors, factor_correlation, hoyer, match_factors

from .factors import FactorSection, group_means
from .words import count, decimal

__all__ = ["Comparison", "Figure", "compare", "verdict"]

Array = NDArray[np.float64]

CLEARLY = 0.1
"""Two figures differ where they are this part of the larger one apart."""


@dataclass(frozen=True)
class Figure:
    """One measured figure of both fits.

    Parameters
    ----------
    name, meaning : str
    finite, additive : float
        At finite c, and at c = inf.
    """

    name: str
    meaning: str
    finite: float
    additive: float

    @property
    def direction(self) -> int:
        """1 where it is clearly larger at finite c, -1 where it is clearly smaller, else 0."""
        apart = self.finite - self.additive
        if abs(apart) <= CLEARLY * max(abs(self.finite), abs(self.additive)):
            return 0
        return 1 if apart > 0 else -1


@dataclass(frozen=True)
class Comparison:
    """What the report says of two fits.

    Parameters
    ----------
    finite, additive : int
        Positions of the two models.
    figures : list of Figure
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
    shown: tuple[Decomposition, ...],
    sections: list[FactorSection],
    which: tuple[int, int],
    *,
    groups: Groups | None,
) -> Comparison:
    """Compare a fit at finite c with one at c = inf.

    Parameters
    ----------
    shown : tuple of Decomposition
        Of all models.
    sections : list of FactorSection
        Their factors, described.
    which : (int, int)
        Positions of the one with finite c and the one with c = inf.
    groups : Groups, optional

    Returns
    -------
    Comparison
    """
    first, second = (shown[i] for i in which)
    match = match_factors(first.loadings, second.loadings)
    figures = _figures(first, second)
    if groups is not None:
        figures = _group_figures(first, second, groups, [sections[i] for i in which]) + figures
    headline, paragraphs = verdict(figures, first.name, grouped=groups is not None)
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


def _figures(first: Decomposition, second: Decomposition) -> list[Figure]:
    def both(name: str, meaning: str, values: list[float]) -> Figure:
        return Figure(name, meaning, *values)

    pair = (first, second)
    return [
        both(
            "Factors per sample",
            "effective number: exp of the entropy of a sample's loadings, mean over samples",
            [_mean_positive(effective_factors(one.loadings)) for one in pair],
        ),
        both(
            "Share of the strongest factor",
            "in a sample, mean over samples: 1 where every sample has a single factor",
            [_strongest(one.loadings) for one in pair],
        ),
        both(
            "Correlation of factors",
            "mean absolute Spearman correlation between the weights of two factors",
            [factor_correlation(one.factors) for one in pair],
        ),
        both(
            "Sparsity of factors",
            "Hoyer, mean over factors: 1 where a factor is a single feature",
            [float(hoyer(one.factors).mean()) for one in pair],
        ),
        both(
            "Sparsity of loadings",
            "Hoyer, mean over factors: 1 where a factor is in a single sample",
            [float(hoyer(one.loadings).mean()) for one in pair],
        ),
    ]


def _group_figures(
    first: Decomposition, second: Decomposition, groups: Groups, sections: list[FactorSection]
) -> list[Figure]:
    pair = (first, second)
    spread = [
        _mean_positive(effective_factors(group_means(one.loadings, groups).T)) for one in pair
    ]
    served = [float(np.mean([len(factor.served) for factor in section.factors])) for section in sections]
    alone = [float(sum(len(factor.served) == 1 for factor in section.factors)) for section in sections]
    agreement = [
        float(adjusted_mutual_info_score(groups.codes, one.loadings.argmax(axis=1))) for one in pair
    ]
    return [
        Figure(
            "Groups served per factor",
            "groups whose mean loading is at least half of the factor's highest, mean over factors",
            *served,
        ),
        Figure("Factors that serve one group", "number of them", *alone),
        Figure(
            "Groups per factor",
            "effective number: exp of the entropy of a factor's mean loadings by group, mean over factors",
            *spread,
        ),
        Figure(
            "Strongest factor tells the group",
            "adjusted mutual information of groups and strongest factors: 1 where one gives the other",
            *agreement,
        ),
    ]


def verdict(figures: list[Figure], name: str, *, grouped: bool) -> tuple[str, list[str]]:
    """Say in words what the figures say.

    Parameters
    ----------
    figures : list of Figure
    name : str
        Of the fit with finite c, "c = 1".
    grouped : bool
        Whether groups of samples are known.

    Returns
    -------
    headline : str
        One sentence.
    paragraphs : list of str
    """
    by_name = {figure.name: figure for figure in figures}
    telling = [by_name["Factors per sample"]]
    if grouped:
        telling += [by_name["Groups per factor"], by_name["Groups served per factor"]]
    sharing = sum(figure.direction for figure in telling)
    per_sample = by_name["Factors per sample"]
    numbers = f"{decimal(per_sample.finite)} factors per sample at {name}, {decimal(per_sample.additive)} at c = ∞"
    if sharing > 0:
        headline = f"{name} finds programmes that samples share, c = ∞ sorts samples into clusters ({numbers})."
        look = (
            f"Look for colours that run through several {'groups' if grouped else 'stretches of samples'} in the "
            f"plot of {name}: these are modular programmes, each a set of features that go up together on top of "
            "whatever else a sample does. At c = ∞ most samples are one colour: there a factor is a whole profile, "
            "so that samples with the same profile form a cluster."
        )
    elif sharing < 0:
        headline = f"Here it is c = ∞ whose factors are shared more, and {name} that clusters ({numbers})."
        look = (
            f"In most data the fit at finite c shares its factors more. Here it does not: at {name} samples are "
            "closer to one colour each. Look whether a factor at c = ∞ only carries what all samples have in "
            "common, and whether both fits have converged."
        )
    else:
        headline = f"Both links share their factors about equally among samples ({numbers})."
        look = (
            "By these figures the two fits share their factors about equally. Look at the table of matched "
            "factors below for those without a close counterpart: that is where the links differ."
        )
    return headline, [look, " ".join(_sentences(by_name, name))]


def _sentences(figures: dict[str, Figure], name: str) -> list[str]:
    sentences = []
    served, alone = figures.get("Groups served per factor"), figures.get("Factors that serve one group")
    if served is not None and alone is not None:
        sentences.append(
            f"A factor serves {decimal(served.finite)} groups on average at {name} and {decimal(served.additive)} "
            f"at c = ∞; {count(alone.finite, 'factor serves', 'factors serve')} a single group at {name}, "
            f"{alone.additive:.0f} at c = ∞."
        )
    strongest = figures["Share of the strongest factor"]
    sentences.append(
        f"The strongest factor makes up {strongest.finite:.0%} of a sample's loadings at {name} and "
        f"{strongest.additive:.0%} at c = ∞."
    )
    agreement = figures.get("Strongest factor tells the group")
    if agreement is not None:
        than = {1: "better at", -1: "less well at", 0: "about as well at"}[agreement.direction]
        end = "than at c = ∞" if agreement.direction else "as at c = ∞"
        sentences.append(
            f"The strongest factor alone tells the groups apart {than} {name} {end} "
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


def _mean_positive(values: Array) -> float:
    """Mean over what is not empty."""
    kept = values[values > 0.0]
    return float(kept.mean()) if len(kept) else 0.0


def _strongest(loadings: Array) -> float:
    sums = loadings.sum(axis=1)
    kept = sums > 0.0
    return float((loadings[kept].max(axis=1) / sums[kept]).mean()) if kept.any() else 0.0
