"""A real collection of texts that everybody has: SciPy's manual pages."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import scipy

__all__ = ["ManualPages", "manual_pages"]

PARTS = (
    "fft",
    "integrate",
    "interpolate",
    "linalg",
    "ndimage",
    "optimize",
    "signal",
    "sparse",
    "spatial",
    "special",
    "stats",
)
FEWEST_WORDS = 50


@dataclass(frozen=True, eq=False)
class ManualPages:
    """Texts with their names and labels.

    Parameters
    ----------
    texts : list of str
        Text of every page.
    names : list of str
        Name of the function that each is about, "stats.norm".
    parts : list of str
        Part of SciPy it belongs to, "stats".
    """

    texts: list[str]
    names: list[str]
    parts: list[str]


def manual_pages() -> ManualPages:
    """Read the manual pages of the installed SciPy, without their examples.

    Returns
    -------
    ManualPages
        Those of 50 words or more. Another version of SciPy has other ones: SciPy 1.17 has about 1,250.

    Examples
    --------
    >>> pages = manual_pages()
    >>> pages.parts[pages.names.index("stats.norm")]
    'stats'
    """
    texts, names, parts = [], [], []
    for part in PARTS:
        module = getattr(scipy, part)
        for name in sorted(module.__all__):
            text = (inspect.getdoc(getattr(module, name)) or "").split("\nExamples\n---")[0]
            if len(text.split()) >= FEWEST_WORDS:
                texts.append(text)
                names.append(f"{part}.{name}")
                parts.append(part)
    return ManualPages(texts, names, parts)
