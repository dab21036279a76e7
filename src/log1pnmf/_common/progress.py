"""The one progress display of fits, selections and passes over chunks."""

from __future__ import annotations

import os
import sys
import time
import warnings

PATIENCE = 3.0
"""Seconds that work may take before progress is shown without being asked for."""


def is_live() -> bool:
    """Whether a progress bar can move: in a terminal and in a notebook, not in a log file."""
    if os.environ.get("TQDM_DISABLE"):  # as all bars of tqdm
        return False
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def shown_after(verbose: int | None) -> float | None:
    """Return after how many seconds progress is shown; None: not at all.

    By default (None) where a bar can move, and only if the work takes long.
    """
    if verbose is None:
        return PATIENCE if is_live() else None
    return 0.0 if verbose else None


class Progress:
    """A bar on standard error, as a context manager; a log file gets one line at the end instead.

    `after`: seconds until it is shown.
    """

    def __init__(
        self, label: str, unit: str, total: int | None = None, *, leave: bool = True, after: float = 0.0
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook without widgets gets a bar of text
            from tqdm.auto import tqdm
        self._label, self._unit, self._leave = label, unit, leave
        self._started, self._done, self._state = time.perf_counter(), "0", ""
        how = {"leave": leave, "disable": not is_live(), "delay": after}
        self._bar = tqdm(total=total, desc=label, unit=f" {unit}s", **how)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
        if self._leave and not is_live():
            seconds = time.perf_counter() - self._started
            text = f"{self._label}: {self._done} {self._unit}s in {seconds:.1f} s{self._state}"
            sys.stderr.write(f"{text}\n")

    def describe(self, label: str) -> None:
        """Show another text in front of the bar."""
        self._bar.set_description_str(label, refresh=False)

    def show(self, done: int, of_all: int | None = None, *, state: str = "") -> None:
        """Show how much is done, with a short text after the bar."""
        self._done = str(done) if of_all is None else f"{done} of {of_all}"
        self._state = f", {state}" if state else ""
        if of_all is not None:
            self._bar.total = of_all
        self._bar.set_postfix_str(state, refresh=False)
        self._bar.update(done - self._bar.n)


class Passes:
    """A bar for each pass over the chunks that disappears when the pass is done; called after each chunk."""

    def __init__(self, after: float = 0.0) -> None:
        self._number, self._after = 0, after
        self._bar = Progress("pass", "chunk", leave=False, after=after)

    def __call__(self, done: int, of_all: int) -> None:
        if done == 1:
            self._number += 1
            self._bar = Progress(f"pass {self._number}", "chunk", leave=False, after=self._after)
        self._bar.show(done, of_all)
        if done == of_all:
            self._bar.__exit__()
