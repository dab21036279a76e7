"""Colours of factors that can be told apart: a fixed list."""

from __future__ import annotations

BASELINE = "#d0d0d0"
"""Light neutral grey: of what all samples share."""

SAFE = "#0072b2 #e69f00 #009e73 #cc79a7 #56b4e9 #d55e00 #f0d94a #6a3d9a #7a4a21"
"""Apart for all common kinds of colour vision; after Okabe and Ito, with purple and brown."""

# each one is farthest from all before it in OKLab, and neither pale, dark nor grey
FURTHER = (
    "#00e196 #004b5a #006900 #b42d69 #ff96ff #8778f0 #780f4b #2df0ff #87b400 #877800 #1e2da5 #876996 "
    "#ff9696 #87b496 #a50000 #b4a5ff #007869 #b44bb4 #2d96b4 #b48769 #e14b69 #d278f0 #0096ff #a55a4b "
    "#5a5ad2 #3c4b0f #3c8700 #a5f069 #ff782d #c3c378 #9696c3 #784b69 #f0c3ff #4b3c69 #781e00 #96e1b4 "
    "#00d2d2 #ffc387 #ff78c3 #961e87 #a5961e #87d2ff #d2a5c3 #5a692d #690f78 #00c369 #3c5a87 #00b4b4 "
    "#3ca52d #ff6978 #c32d2d "
)
COLORS = [*SAFE.split(), *FURTHER.split()]


def distinct_colors(n: int, *, baseline_first: bool = False) -> list[str]:
    """Return n colours; the first nine are safe for colour blindness, and from the 61st on they repeat.

    >>> distinct_colors(3, baseline_first=True)
    ['#d0d0d0', '#0072b2', '#e69f00']
    """
    if n < 0:
        raise ValueError(f"n must not be negative, got {n}")
    if baseline_first and n:
        return [BASELINE, *distinct_colors(n - 1)]
    return [COLORS[i % len(COLORS)] for i in range(n)]


def factor_colors(n: int) -> list[str]:
    """Return the colour of each factor of a fit: the one rule of all plots and of the report.

    The first factor, which the read-out takes for the baseline, is grey; factor k after it has the same
    colour in every fit.
    """
    return distinct_colors(n, baseline_first=True)
