"""How far a pass over the chunks is."""

from __future__ import annotations

import time
from typing import Any

from log1pnmf._common.live import is_live

__all__ = ["PassBar"]


class PassBar:
    """A progress bar on standard error for every pass, with the time left; called after each chunk.

    It goes when the pass is done, so that the bar of the iterations stays. A log file gets no bar.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._number = 0
        self._ended = time.perf_counter()

    def __call__(self, done: int, of_all: int) -> None:
        """Show that `done` of all chunks are done in this pass."""
        from tqdm.auto import tqdm

        if self._bar is None:
            self._number += 1
            label, hidden = f"pass {self._number}", not is_live()
            self._bar = tqdm(total=of_all, desc=label, unit="chunk", leave=False, disable=hidden)
            self._bar.start_t = self._ended  # the first chunk took time as well
        self._bar.update(done - self._bar.n)
        if done == of_all:
            self._bar.close()
            self._bar = None
            self._ended = time.perf_counter()
