"""A fit as it goes: iteration, loss, change and time left, live where someone looks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from log1pnmf.fitting.solver.callbacks import TimeLimit
from log1pnmf.fitting.solver.iteration import Iteration

__all__ = ["GridWatch", "Watch", "iterations_left"]

TREND = 12
"""Iterations from which the course of a fit is judged."""


class Watch:
    """Callback of all fits of a command: shows them, and keeps their time limit.

    Parameters
    ----------
    console : Console
        Nothing is shown where it is not a terminal.
    time_limit : float, optional
        Seconds for each fit.

    Notes
    -----
    Where counts are in chunks, a second line shows the chunks of the present pass (`on_chunk`).
    """

    def __init__(
        self, console: Console, *, max_iter: int, tol: float, time_limit: float | None = None
    ) -> None:
        self.max_iter, self.tol, self.time_limit = max_iter, tol, time_limit
        self._limit: TimeLimit | None = None
        self._label = ""
        self._changes: list[float] = []
        self._started = time.perf_counter()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[unit]} {task.completed:.0f}"),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=max_iter, unit="iteration", state="", visible=False)
        self._pass = self._progress.add_task("", unit="chunk", state="", visible=False)
        self._pass_number = 0
        self.stopped_by_clock = False
        self._pass_started = self._pass_ended = time.perf_counter()

    @contextmanager
    def showing(self, label: str) -> Iterator[None]:
        """Turn to the next fit; when it is done its line is gone, and others may be printed."""
        self._label = label
        self._limit = None if self.time_limit is None else TimeLimit(self.time_limit)
        self.stopped_by_clock = False
        self._pass_number = 0
        self._progress.reset(
            self._task,
            total=self.max_iter,
            visible=True,
            description=label,
            unit="iteration",
            state="start",
        )
        self._progress.start()
        try:
            yield
        finally:
            self._progress.stop()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Turn to the first look at counts in chunks."""
        self._progress.start()
        try:
            yield
        finally:
            self._progress.update(self._pass, visible=False)
            self._progress.stop()

    def on_chunk(self, done: int, of_all: int) -> None:
        """Show how far a pass over the chunks is."""
        if done == 1:
            self._pass_number += 1
            self._progress.reset(self._pass, total=of_all, visible=True, unit="chunk", state="")
            self._pass_started = self._pass_ended
        now = time.perf_counter()
        left = _clock((of_all - done) * (now - self._pass_started) / done)
        name = f"pass {self._pass_number}" if self._label else "first look"
        state = f"of {of_all}, about {left} left"
        self._progress.update(self._pass, completed=done, description=name, state=state)
        if done == of_all:
            self._pass_ended = now

    def __call__(self, iteration: Iteration) -> bool:
        """Show an iteration; True says that the time is over."""
        if iteration.index == 0:
            self._changes, self._started = [], time.perf_counter()
        self._changes.append(iteration.relative_change)
        done = iteration.index
        self._progress.update(
            self._task,
            completed=done,
            description=f"{self._label} {iteration.likelihood}",
            state=f"loss {iteration.loss:,.0f}, change {iteration.relative_change:.1e}, {self._left(done)}",
        )
        self.stopped_by_clock = self._limit is not None and self._limit(iteration)
        return self.stopped_by_clock

    def _left(self, done: int) -> str:
        if done < 2:
            return "time left -"
        each = (time.perf_counter() - self._started) / done
        left = iterations_left(self._changes, tol=self.tol, remaining=self.max_iter - done)
        return f"about {_clock(left * each)} left"


def _clock(seconds: float) -> str:
    """Minutes and seconds."""
    whole, rest = divmod(round(seconds), 60)
    return f"{whole}:{rest:02d}"


def iterations_left(changes: Sequence[float], *, tol: float, remaining: int) -> int:
    """Guess how many iterations it takes until the relative change is below the tolerance.

    The logarithm of the change is followed along its recent slope.

    Parameters
    ----------
    changes : sequence of float
        Relative changes so far.
    remaining : int
        Iterations that are allowed.

    Returns
    -------
    int
        Between 0 and `remaining`; `remaining` where the change does not fall.

    Examples
    --------
    >>> iterations_left([1e-3, 1e-4, 1e-5, 1e-6], tol=1e-8, remaining=100)
    2
    """
    logs = [math.log(change) for change in changes[-TREND:] if change > 0]
    if len(logs) < 4 or tol <= 0:
        return remaining
    middle = (len(logs) - 1) / 2
    spread = sum((i - middle) ** 2 for i in range(len(logs)))
    slope = sum((i - middle) * value for i, value in enumerate(logs)) / spread
    if slope >= 0:
        return remaining
    mean = sum(logs) / len(logs)
    steps = (math.log(tol) - (mean + slope * middle)) / slope
    return min(remaining, max(0, round(steps)))


class GridWatch:
    """Shows how many fits of a comparison are done; a context manager, called after every fit.

    Parameters
    ----------
    console : Console
        Nothing is shown where it is not a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("comparing"),
            BarColumn(bar_width=24),
            TextColumn("fit {task.completed:.0f} of {task.total:.0f}"),
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=1, left="", visible=False)
        self._started = time.perf_counter()

    def __enter__(self) -> GridWatch:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def __call__(self, done: int, of_all: int) -> None:
        """Show that one more is done."""
        each = (time.perf_counter() - self._started) / done
        left = f"about {_clock(each * (of_all - done))} left"
        self._progress.update(self._task, completed=done, total=of_all, left=left, visible=True)
