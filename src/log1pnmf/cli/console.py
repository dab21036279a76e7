"""What the user sees: results on standard output, everything else on standard error."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from .run_folder import json_text

__all__ = ["Screen", "explain", "one_line", "printable"]

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Screen:
    """Two consoles: with JSON asked for, words go to standard error and leave standard output to it.

    Parameters
    ----------
    json : bool
        Whether the result is to be JSON.
    """

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)
        self.words = self.errors if json else Console(highlight=False, soft_wrap=True)

    def say(self, *parts: str | tuple[str, str]) -> None:
        """Print a line made of texts and (text, style) pairs; brackets and controls mean nothing."""
        safe = [printable(part) if isinstance(part, str) else (printable(part[0]), part[1]) for part in parts]
        self.words.print(Text.assemble(*safe))

    def lines(self, text: str) -> None:
        """Print a text of several lines."""
        for line in text.split("\n"):
            self.say(line)

    def error(self, message: str) -> None:
        """Print what went wrong, on one line of standard error."""
        self.errors.print(Text.assemble(("error: ", "bold red"), one_line(message)))

    def notes(self, notes: Iterable[str], kind: str = "note") -> None:
        """Print what is worth knowing, indented."""
        for note in notes:
            self.say((f"  {kind}: ", "yellow" if kind == "note" else "cyan"), note)

    def busy(self, doing: str) -> Any:
        """Show, on a terminal, that something takes a while; a context manager."""
        return self.errors.status(doing)

    def result(self, value: Any) -> None:
        """Print the result for programs, if it was asked for."""
        if self.json:
            sys.stdout.write(json_text(value) + "\n")


def printable(text: object) -> str:
    r"""Show control characters instead of sending them to the terminal, which may obey them.

    Examples
    --------
    >>> print(printable("gene\x1b[2J"))
    gene\x1b[2J
    """
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(text))


def one_line(text: object) -> str:
    """Put a message of several lines into one."""
    return printable(" ".join(str(text).split()))


def explain(error: BaseException) -> str:
    """Put an error into one line that says what to do."""
    if isinstance(error, OSError) and error.errno in FULL:
        where = f" for {error.filename}" if error.filename else ""
        return f"there is no room left on the disk{where}: make room and run it again"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'the system says'}: {error.strerror}"
    return one_line(error.args[0] if error.args else error) or type(error).__name__
