"""Callbacks: each is called with every iteration and may ask to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from log1pnmf._common.checks import Progress

from .solver import History, Iteration

__all__ = ["Callback", "History", "ProgressBar", "TimeLimit"]

Callback = Callable[[Iteration], object]
"""Called with every iteration; a true result stops the fit."""


class TimeLimit:
    """Stop a fit after some seconds, counted from its first iteration.

    Parameters
    ----------
    seconds : float
        Time limit in seconds, positive.
    """

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds must be positive, got {seconds}")
        self.seconds = seconds
        self._end: float | None = None

    def __call__(self, iteration: Iteration) -> bool:
        """Return whether the time is over."""
        now = time.perf_counter()
        if self._end is None:
            self._end = now + self.seconds
        return now >= self._end


class ProgressBar(Progress):
    """Show progress on standard error; use it as a context manager.

    A terminal and a notebook show a bar. A log file gets a line at the end.

    Parameters
    ----------
    max_iter : int
        Number of iterations at the end of the bar.
    label : str
        Text in front of the bar.
    after : float
        Seconds until the bar is shown.
    """

    def __init__(self, max_iter: int, label: str = "fitting", after: float = 0.0) -> None:
        super().__init__(label, "iteration", max_iter, after=after)

    def __enter__(self) -> ProgressBar:
        return self

    def __call__(self, iteration: Iteration) -> None:
        """Show an iteration."""
        change = iteration.relative_change
        state = "" if math.isnan(change) else f"log-likelihood rising by {change:.0e}"
        self.show(iteration.index, state=state)
