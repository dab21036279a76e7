"""What the user sees: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from log1pnmf.run_folder import json_text

__all__ = ["Screen", "one_line"]


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
        """Print a line made of texts and (text, style) pairs; brackets in them mean nothing."""
        self.words.print(Text.assemble(*parts))

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


def one_line(text: object) -> str:
    """Put a message of several lines into one."""
    return " ".join(str(text).split())
