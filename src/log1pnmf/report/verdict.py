"""What the figures of two fits say, in words: each claim is a function of the numbers, with a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from log1pnmf._common.words import plural

from .words import decimal

__all__ = ["CLEARLY", "CLUSTERED", "MOST", "SAME", "Figure", "verdict"]

CLEARLY = 0.1
"""Two figures differ if their difference is at least this part of the larger one ..."""

LEAST = 0.02
"""... and at least this much: a table with two decimals does not show less."""

SAME = 0.9
"""Two factors are nearly the same if their loadings correlate by at least this."""

MOST = 0.75
"""If at least this part of the factors is nearly the same, the headline says so first."""

CLUSTERED = 0.8
"""Samples are said to fall into clusters if the mean share of their strongest factor is at least this."""


@dataclass(frozen=True)
class Figure:
    """One measured figure of both fits.

    Parameters
    ----------
    finite, additive : float
        At finite c, and at c = inf.
    whole : bool
        Whether it is a number of things.
    between_starts : float or None
        How far it is apart between fits of one setting; None where there is one fit of each.
    """

    name: str
    meaning: str
    finite: float
    additive: float
    whole: bool = False
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
    """Say in words what the figures say: a headline, and paragraphs on what to look at.

    `similarity` has the correlation of the loadings of each matched pair, `n_factors` is that of the larger
    fit. Where most factors are nearly the same in both fits, the headline says so first, unless that has
    been said.
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
    """Say that most factors are nearly the same in both fits; None where they are not."""
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
    """Say which of the fits puts samples into clusters; nothing where neither clearly does."""
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
