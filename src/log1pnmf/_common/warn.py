"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn"]

PASSED_OVER = ("log1pnmf", "sklearn")
"""Packages whose lines are not the user's: this one, and those that call it for the user."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the innermost line outside of this package and of scikit-learn."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
