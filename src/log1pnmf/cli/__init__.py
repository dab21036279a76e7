"""The command line ``log1pnmf``; it needs the extra ``cli`` (typer and rich)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:  # a bug report is possible without the extra, too
        from .environment import describe_environment

        sys.stdout.write(f"{describe_environment()}\n")
        return 0
    try:
        try:
            import rich  # noqa: F401
            import typer  # noqa: F401
        except ImportError as error:
            needed = "rich and typer: pip install rich typer"
            sys.stderr.write(f"error: the command line needs {needed} ({error})\n")
            return 2
        from .app import run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted: nothing was written\n")
        return 130
    return run(arguments)
