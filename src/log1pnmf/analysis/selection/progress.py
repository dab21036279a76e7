"""How far a selection, or other work of many fits, is: for those who wait for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from log1pnmf._common.live import is_live

__all__ = ["OnFit", "shown"]

OnFit = Callable[[int, int], object]
"""Called with the number of fits that are done, and of all."""


def shown(on_fit: OnFit | None, verbose: int, label: str = "select") -> AbstractContextManager[OnFit]:
    """Give what is told of every fit: the user's function, a progress bar, or nothing."""
    if on_fit is not None or not verbose:
        return nullcontext(on_fit or (lambda done, of_all: None))
    return _Bar(label)


class _Bar(AbstractContextManager[OnFit]):
    """Progress on standard error: a bar where someone looks, one line at the end in a log file."""

    def __init__(self, label: str) -> None:
        self.label = label

    def __enter__(self) -> OnFit:
        from tqdm.auto import tqdm

        self._started, self._live, self._fits = time.perf_counter(), is_live(), "no fit"
        self._bar = tqdm(desc=self.label, unit="fit", disable=not self._live)
        return self._show

    def _show(self, done: int, of_all: int) -> None:
        self._fits = f"{done} of {of_all} fits"
        self._bar.total = of_all
        self._bar.update(done - self._bar.n)

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
        if not self._live:
            seconds = time.perf_counter() - self._started
            sys.stderr.write(f"{self.label}: {self._fits} in {seconds:.1f} s\n")
