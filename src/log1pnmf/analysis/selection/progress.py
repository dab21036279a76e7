"""How far a selection is, for those who wait for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

__all__ = ["OnFit", "shown"]

OnFit = Callable[[int, int], object]
"""Called with the number of fits that are done, and of all; by the thread that made the last one."""


def shown(on_fit: OnFit | None, verbose: int) -> AbstractContextManager[OnFit]:
    """Give what is told of every fit: the user's function, a progress bar, or nothing."""
    if on_fit is not None or not verbose:
        return nullcontext(on_fit or (lambda done, of_all: None))
    return _Bar()


class _Bar(AbstractContextManager[OnFit]):
    """Progress bar on standard error."""

    def __enter__(self) -> OnFit:
        from tqdm.auto import tqdm

        self._bar = tqdm(desc="select", unit="fit")
        return self._show

    def _show(self, done: int, of_all: int) -> None:
        self._bar.total = of_all
        self._bar.update(done - self._bar.n)

    def __exit__(self, *exception: object) -> None:
        self._bar.close()
