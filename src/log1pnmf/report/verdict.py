"""What the figures of two fits say, in words that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from .words import count, decimal

__all__ = ["CLEARLY", "Figure", "verdict"]

CLEARLY = 0.1
"""Two figures differ where they are this part of the larger one apart."""

LEAST = 0.02
"""And at least this much: less is not seen in a table with two decimals."""


@dataclass(frozen=True)
class Figure:
    """One measured figure of both fits.

    Parameters
    ----------
    name, meaning : str
    finite, additive : float
        At finite c, and at c = inf.
    whole : bool
        Whether it is a number of things.
    """

    name: str
    meaning: str
    finite: float
    additive: float
    whole: bool = False

    def shown(self, value: float) -> str:
        """Write one of the two."""
        return f"{value:.0f}" if self.whole else decimal(value)

    @property
    def direction(self) -> int:
        """1 where it is clearly larger at finite c, -1 where it is clearly smaller, else 0."""
        apart = self.finite - self.additive
        if abs(apart) <= max(LEAST, CLEARLY * max(abs(self.finite), abs(self.additive))):
            return 0
        return 1 if apart > 0 else -1


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
    numbers = (
        f"{decimal(per_sample.finite)} factors per sample at {name}, {decimal(per_sample.additive)} at c = ∞"
    )
    if sharing > 0:
        headline = (
            f"{name} finds programmes that samples share, c = ∞ sorts samples into clusters ({numbers})."
        )
        look = (
            f"Look for colours that run through several {'groups' if grouped else 'stretches of samples'} in "
            f"the plot of {name}: these are modular programmes, each a set of features that go up together "
            "on top of whatever else a sample does. At c = ∞ a factor is closer to a whole profile, so that "
            "samples with the same profile form a cluster of one colour."
        )
    elif sharing < 0:
        headline = f"Here it is c = ∞ whose factors are shared more, and {name} that clusters ({numbers})."
        look = (
            f"Often the fit at finite c shares its factors more. Here it does not: at {name} samples are "
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
            f"A factor serves {decimal(served.finite)} groups on average at {name} and "
            f"{decimal(served.additive)} at c = ∞; {count(alone.finite, 'factor serves', 'factors serve')} "
            f"a single group at {name}, {alone.additive:.0f} at c = ∞."
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
