"""Colours of factors that can be told apart."""

from __future__ import annotations

from itertools import cycle, islice

BASELINE = "#d0d0d0"  # light neutral grey: of what all samples share

# The first nine are safe for common kinds of colour blindness (after Okabe and Ito, with purple and brown).
# Each further one is neither pale, dark nor grey, and as far as possible from those before it in OKLab.
COLORS = """
    #0072b2 #e69f00 #009e73 #cc79a7 #56b4e9 #d55e00 #f0d94a #6a3d9a #7a4a21 #00e196
    #004b5a #006900 #b42d69 #ff96ff #8778f0 #780f4b #2df0ff #87b400 #877800 #1e2da5
    #876996 #ff9696 #87b496 #a50000 #b4a5ff #007869 #b44bb4 #2d96b4 #b48769 #e14b69
    #d278f0 #0096ff #a55a4b #5a5ad2 #3c4b0f #3c8700 #a5f069 #ff782d #c3c378 #9696c3
    #784b69 #f0c3ff #4b3c69 #781e00 #96e1b4 #00d2d2 #ffc387 #ff78c3 #961e87 #a5961e
    #87d2ff #d2a5c3 #5a692d #690f78 #00c369 #3c5a87 #00b4b4 #3ca52d #ff6978 #c32d2d
"""


def distinct_colors(n: int) -> list[str]:
    """Return n colours; after the 60th they start again."""
    return list(islice(cycle(COLORS.split()), n))


def factor_colors(n: int) -> list[str]:
    """Return the colours of the factors of a fit in all plots and in the report, grey for the first."""
    return [BASELINE, *distinct_colors(n)][:n]
