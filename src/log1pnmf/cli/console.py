"""What the user sees: results on standard output, everything else on standard error."""

from __future__ import annotations

import errno
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from log1pnmf._common.archive import ENDING, handled

from .run_folder import RunWriter, json_text

# ---------- ctrl-C and its like: what is finished is kept, and nothing half done is left

INTERRUPTED = 130  # exit code; typer makes it of every Ctrl-C that is not caught
KEPT = -INTERRUPTED  # returned by an interrupted command that has already printed what it kept


@contextmanager
def unbroken(done: RunWriter) -> Iterator[None]:
    """Finish a short piece of work of a run, which is interrupted afterwards if a signal came meanwhile."""
    pressed: list[int] = []
    with handled([signal.SIGINT, *ENDING], lambda number, _: pressed.append(number)):
        yield
    done.interrupted = done.interrupted or bool(pressed)


# ---------- what the user sees: results on standard output, everything else on standard error

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Screen:
    """Two consoles: with JSON asked for, words go to standard error and leave standard output to it."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)
        self.words = self.errors if json else Console(highlight=False, soft_wrap=True)

    def say(self, *parts: str | tuple[str, str]) -> None:
        """Print a line made of texts and (text, style) pairs; brackets and controls mean nothing."""
        safe = [printable(part) if isinstance(part, str) else (printable(part[0]), part[1]) for part in parts]
        self.words.print(Text.assemble(*safe))

    def wrote(self, place: Path, more: str = "") -> None:
        """Print what was written."""
        self.say(("wrote ", "green"), (str(place), "bold"), more)

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
        """Show that something takes a while, in a log by a line; a context manager."""
        if not self.errors.is_terminal:
            self.say(doing)
        return self.errors.status(doing)

    def result(self, value: Any) -> None:
        """Print the result for programs, if it was asked for."""
        if self.json:
            sys.stdout.write(json_text(value) + "\n")

    def attempt(self, steps: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
        """Write files by name, and return why some were not: the fits are kept, whatever happens here."""
        problems = dict.fromkeys(steps, "interrupted")
        with suppress(KeyboardInterrupt):
            for name, step in steps.items():
                try:
                    with self.busy(f"writing {name}"):
                        step()
                    del problems[name]
                except Exception as error:
                    problems[name] = explain(error)
        return problems


@contextmanager
def noted() -> Iterator[list[str]]:
    """Yield a list that has the warnings of what is done meanwhile afterwards, a line each."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield notes
    notes += [one_line(warning.message) for warning in caught]


def printable(text: object) -> str:
    """Show control characters instead of sending them to the terminal, which may obey them."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(text))


def one_line(text: object) -> str:
    """Put a message of several lines into one."""
    return printable(" ".join(str(text).split()))


def explain(error: BaseException) -> str:
    """Return the message of an error in one line, with what to do next."""
    if isinstance(error, OSError) and error.errno in FULL:
        where = f" for {error.filename}" if error.filename else ""
        return f"there is no room left on the disk{where}: make room and run it again"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'error of the system'}: {error.strerror}"
    return one_line(error.args[0] if error.args else error) or type(error).__name__
