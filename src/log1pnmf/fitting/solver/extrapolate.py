"""How far to go beyond each update."""

from __future__ import annotations

__all__ = ["Extrapolation"]


class Extrapolation:
    """Schedule of the extrapolation parameter beta, after Ang and Gillis (2019).

    Beta grows while extrapolated points lower the objective; when one does not, it shrinks and its ceiling
    becomes the last value that worked. The ceiling itself grows slowly, up to `largest`. One object serves
    one run of the solver.

    Parameters
    ----------
    start : float
        First beta after the warm-up.
    grow, grow_ceiling, shrink : float
        Factors, all > 1.
    largest : float
        Bound of the ceiling.
    warm_up : int
        Updates at the beginning that are not extrapolated.
    """

    def __init__(
        self,
        *,
        start: float = 0.5,
        grow: float = 1.1,
        grow_ceiling: float = 1.02,
        shrink: float = 1.5,
        largest: float = 1.0,
        warm_up: int = 2,
    ) -> None:
        self._grow, self._grow_ceiling, self._shrink = grow, grow_ceiling, shrink
        self._largest, self._warm_up = largest, warm_up
        self._beta = self._worked = start
        self._ceiling = largest

    @property
    def beta(self) -> float:
        """Extrapolation to apply to the next update; 0 is none."""
        return 0.0 if self._warm_up > 0 else self._beta

    def accepted(self) -> None:
        """Take note that the last point lowered the objective."""
        if self._warm_up > 0:
            self._warm_up -= 1
            return
        self._worked = self._beta
        self._ceiling = min(self._largest, self._ceiling * self._grow_ceiling)
        self._beta = min(self._ceiling, self._beta * self._grow)

    def rejected(self) -> None:
        """Take note that the last extrapolated point raised the objective and was dropped."""
        self._ceiling = self._worked
        self._beta /= self._shrink

    @property
    def state(self) -> tuple[float, ...]:
        """Where the schedule stands, for `restore`."""
        return self._beta, self._worked, self._ceiling, float(self._warm_up)

    def restore(self, state: tuple[float, ...]) -> None:
        """Go on from where another schedule with the same parameters stood."""
        self._beta, self._worked, self._ceiling, warm_up = state
        self._warm_up = int(warm_up)
