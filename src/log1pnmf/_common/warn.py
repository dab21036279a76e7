"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings

__all__ = ["convergence_warning", "warn"]

PASSED_OVER = ("log1pnmf", "sklearn")
"""Packages whose lines are not the user's: this one, and those that call it for the user."""


def convergence_warning() -> type[Warning]:
    """Give scikit-learn's warning about fits that have not converged. Loading it takes a second or more."""
    from sklearn.exceptions import ConvergenceWarning

    return ConvergenceWarning


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the innermost line outside of this package and of scikit-learn."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
