"""The stopping rule: when a fit has converged."""

from __future__ import annotations

import math

from .iteration import Iteration

__all__ = ["PATIENCE", "STATIONARY", "Stopping", "largest_residual"]

PATIENCE = 2
"""Iterations in a row that have to gain less than the tolerance.

With this and the default tolerance of 1e-9 all of 54 fits (parts of nine data sets, three c, two starts) end
within 3e-6 of what 1,000 more iterations reach, relative to the log-likelihood. With 1e-8 two end 4e-5 short,
with 1e-5 nearly all, one by 3e-3. More patience does not help: 1e-8 twenty times in a row still leaves one
4e-5 short (`benchmarks.convergence`).
"""


STATIONARY = 1e-3
"""KKT residual up to which a point is an optimum, whatever the tolerance.

The residual is free of scale (`log1pnmf.model.optimality.kkt_residual`). The possible gain is about its
square: at 1e-3 about a millionth of the total count. Rounding errors hide no more than that, also in single
precision, where losses are known to about 1e-7. Where steps fail for another reason, the residual is larger.
"""


def largest_residual(tol: float) -> float:
    """KKT residual up to which a small gain says that an optimum is near, not that the fit is on a plateau.

    The possible gain goes with the square of the residual, so a looser tolerance allows a larger one. Where
    the default rule ends, the residual is between 2e-9 and 5e-5 on all data sets of `benchmarks.convergence`;
    where small gains alone would have ended fits with ``tol=1e-5``, it is up to 2e-2.

    Examples
    --------
    >>> largest_residual(1e-8), round(largest_residual(1e-4), 3)
    (0.001, 0.1)
    """
    return max(STATIONARY, 10.0 * math.sqrt(tol))


class Stopping:
    """Stop when the objective falls by less than `tol`, relative to its size, `patience` times in a row.

    The KKT residual has to be small as well: on a plateau the objective hardly falls, but there is much to
    gain. Around a dropped extrapolation the steps are small for another reason, so the count starts again
    there; unless the one before was dropped as well, which happens where nothing is left to gain. One object
    serves one run of the solver.

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
        small = small and iteration.kkt_residual <= largest_residual(self._tol)
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
