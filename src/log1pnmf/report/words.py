"""Numbers and findings in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = [
    "alike",
    "decimal",
    "enumerate_words",
    "keep_together",
    "link_in_words",
    "percent",
    "significant",
]

MULTIPLY_UP_TO = 10.0
"""Largest c at which parts are said to multiply: most rates that tell features apart are larger."""


def link_in_words(c: float) -> str:
    """Say what the link means for how factors combine.

    Examples
    --------
    >>> link_in_words(float("inf"))
    'parts add up'
    >>> link_in_words(1.0)
    'parts multiply'
    >>> link_in_words(1000.0)
    'parts add up below a rate of 1,000 and multiply above'
    """
    if math.isinf(c):
        return "parts add up"
    if c <= MULTIPLY_UP_TO:
        return "parts multiply"
    return f"parts add up below a rate of {c:,g} and multiply above"


def keep_together(text: str) -> str:
    r"""Keep equations such as "c = 1" on one line.

    Examples
    --------
    >>> keep_together("at c = 1")
    'at c\xa0=\xa01'
    """
    return text.replace(" = ", "\u00a0=\u00a0")


def enumerate_words(words: Sequence[str], most: int = 6) -> str:
    """Join words as one would say them; beyond `most` they are counted.

    Examples
    --------
    >>> enumerate_words(["a", "b", "c"]), enumerate_words(["a", "b", "c", "d"], most=2)
    ('a, b and c', 'a, b and 2 more')
    """
    shown = list(words[:most])
    if len(words) > most:
        shown.append(f"{len(words) - most} more")
    if len(shown) <= 1:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def percent(share: float) -> str:
    """Show a share, with as many digits as tell it from 0 and 1.

    Examples
    --------
    >>> percent(0.1808), percent(0.00042), percent(0.0), percent(0.9999)
    ('18.1%', '0.042%', '0%', '99.99%')
    """
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share > 0.999:
        return f"{100 * share:.4g}%"
    return f"{share:.1%}" if share >= 0.001 else f"{100 * share:.2g}%"


def decimal(number: float) -> str:
    """Show a number with two decimals, as in tables; NaN as a dash.

    Examples
    --------
    >>> decimal(0.4567), decimal(float("nan"))
    ('0.46', '–')
    """
    return "–" if math.isnan(number) else f"{number:.2f}"


def alike(numbers: Sequence[float]) -> list[str]:
    """Show numbers with the same number of decimals, three digits for the largest.

    Examples
    --------
    >>> alike([5.25, 0.5]), alike([1930.0, 32.2])
    (['5.25', '0.50'], ['1,930', '32'])
    """
    largest = max((abs(number) for number in numbers), default=0.0)
    decimals = max(0, 2 - math.floor(math.log10(largest))) if largest > 0 else 0
    return [f"{number:,.{decimals}f}" for number in numbers]


def significant(number: float) -> str:
    """Show a number with three significant digits and separators.

    Examples
    --------
    >>> significant(12345.6), significant(0.012345), significant(1.2e-7)
    ('12,346', '0.0123', '1.2e-07')
    """
    if number == 0.0 or not math.isfinite(number):
        return f"{number:g}"
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.3g}"
