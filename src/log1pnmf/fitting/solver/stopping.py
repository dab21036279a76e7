"""When an optimum is reached."""

from __future__ import annotations

from .iteration import Iteration

__all__ = ["PATIENCE", "Stopping"]

PATIENCE = 2
"""Iterations in a row that have to gain less than the tolerance."""


class Stopping:
    """Stop when the objective falls by less than `tol`, relative to its size, `patience` times in a row.

    Around a dropped extrapolation the steps are small for another reason, so the count starts again there;
    unless the one before was dropped as well, which happens where nothing is left to gain. One object serves
    one run of the solver.

    Parameters
    ----------
    tol : float
        >= 0; 0 runs until nothing is gained any more.
    patience : int
        Iterations in a row.
    """

    def __init__(self, tol: float, patience: int = PATIENCE) -> None:
        self._tol, self._patience = tol, patience
        self._in_a_row = 0
        self._restarted = False

    def __call__(self, iteration: Iteration) -> bool:
        """Look at an iteration; True says stop."""
        counts = not iteration.restarted or self._restarted
        self._restarted = iteration.restarted
        small = iteration.relative_change <= self._tol  # False for NaN, at the start
        self._in_a_row = self._in_a_row + 1 if small and counts else 0
        return self.met

    @property
    def met(self) -> bool:
        """Whether the last iteration seen was one to stop at."""
        return self._in_a_row >= self._patience

    @property
    def state(self) -> tuple[int, bool]:
        """What is remembered of the iterations seen, for `restore`."""
        return self._in_a_row, self._restarted

    def restore(self, state: tuple[int, bool]) -> None:
        """Go on from where another one with the same parameters stood."""
        self._in_a_row, self._restarted = state
