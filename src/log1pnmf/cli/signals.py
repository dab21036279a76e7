"""Ctrl-C and its like: what is finished is kept, and nothing half done is left."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["INTERRUPTED", "KEPT", "as_interrupts", "unbroken"]

INTERRUPTED = 130
"""Exit code; typer makes it of every Ctrl-C that is not caught."""

KEPT = -INTERRUPTED
"""What a command gives instead that was interrupted and has said what it kept."""

# SIGTERM is how schedulers end a job, SIGHUP what a closed terminal sends; Windows has not all of them.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Let the signals that end a job do what Ctrl-C does."""
    with _handled(ENDING, signal.default_int_handler):
        yield


@contextmanager
def unbroken() -> Iterator[list[int]]:
    """Do a short piece of work to its end; gives the signals that came in the meantime."""
    pressed: list[int] = []
    with _handled([signal.SIGINT, *ENDING], lambda number, _: pressed.append(number)):
        yield pressed


@contextmanager
def _handled(numbers: list[int], handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Borrow signals; those that are ignored (nohup) stay so."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in numbers}
    taken = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in taken.items():
            signal.signal(number, old)
