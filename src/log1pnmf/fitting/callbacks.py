"""Callbacks: each is called with every iteration and may ask to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from log1pnmf._common.progress import Progress

from .solver import Iteration

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
        """Look at the clock."""
        now = time.perf_counter()
        if self._end is None:
            self._end = now + self.seconds
        return now >= self._end


class History:
    """Record all iterations in a table.

    Parameters
    ----------
    table : dict of str to ndarray, optional
        Rows to begin with, as `table` returned them.
    """

    COLUMNS = ("loss", "objective", "log_likelihood", "relative_change", "kkt_residual", "beta", "seconds")

    def __init__(self, table: Mapping[str, np.ndarray] | None = None) -> None:
        self._rows: list[tuple[Any, ...]] = []
        if table is not None:
            names = ("iteration", "likelihood", *self.COLUMNS)
            self._rows = list(zip(*(table[name].tolist() for name in names), strict=True))

    def __call__(self, iteration: Iteration) -> None:
        """Add a row."""
        numbers = {"log_likelihood": -iteration.loss}
        row = [numbers[name] if name in numbers else getattr(iteration, name) for name in self.COLUMNS]
        self._rows.append((iteration.index, iteration.likelihood, *row))

    def last_update(self) -> float:
        """How much the last update of the problem has lowered the objective; 0 where there was none."""
        change, objective = (2 + self.COLUMNS.index(name) for name in ("relative_change", "objective"))
        for place in range(len(self._rows) - 1, 0, -1):
            if math.isnan(self._rows[place][change]):
                return float(self._rows[place - 1][objective] - self._rows[place][objective])
        return 0.0

    @classmethod
    def check(cls, table: Mapping[str, np.ndarray]) -> None:
        """Refuse what `table` did not give."""
        kinds = {"iteration": "i", "likelihood": "U", **dict.fromkeys(cls.COLUMNS, "f")}
        if set(table) != set(kinds):
            raise ValueError(f"history must have the columns {', '.join(kinds)}")
        length = table["iteration"].size
        for name, kind in kinds.items():
            if table[name].dtype.kind != kind or table[name].shape != (length,) or not length:
                raise ValueError(f"history.{name} has {table[name].dtype} of shape {table[name].shape}")

    def table(self) -> dict[str, np.ndarray]:
        """One array per column; ``pandas.DataFrame(table)`` shows them side by side.

        Returns
        -------
        dict of str to ndarray
            iteration, likelihood ("exact", "approximate" or "adaptive": which one the row is about), loss,
            objective, log_likelihood, relative_change, kkt_residual, beta, seconds.
        """
        names = ("iteration", "likelihood", *self.COLUMNS)
        types = (np.int64, np.str_, *(np.float64 for _ in self.COLUMNS))
        columns = zip(*self._rows, strict=True) if self._rows else [()] * len(names)
        return {
            name: np.array(values, dtype=kind)
            for name, kind, values in zip(names, types, columns, strict=True)
        }


class ProgressBar(Progress):
    """Show progress on standard error; use it as a context manager.

    A terminal and a notebook show a bar. A log file gets one line at the end.

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
