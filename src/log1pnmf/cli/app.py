"""The commands gathered; errors become one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from log1pnmf._common.archive import ENDING, handled
from log1pnmf._common.checks import logged

from .commands import convert, demo, evidence, info, markers, rename, report, transform, usage
from .console import INTERRUPTED, Screen, explain
from .fit import consensus, fit, sweep
from .select import select

OK, FAILED, BAD_INPUT = 0, 1, 2
DEBUG = "LOG1PNMF_DEBUG"

# Newer versions of typer carry click inside: its errors are found through one that both export.
ClickError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="log1pnmf",
    help="Poisson NMF of count matrices with the shifted-log link: from counts to factors and a report.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
FITTING = (fit, sweep, select, consensus)
for command in (*FITTING, transform, markers, usage, evidence, rename, report, info, convert, demo):
    app.command()(command)


@app.callback()
def _common(
    *,
    version: Annotated[  # heeded before this is loaded: a bug report is possible without the extra, too
        bool, typer.Option("--version", help="Print versions and system information, for bug reports.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show the traceback of an error; also with {DEBUG}=1.")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and turn whatever happens into an exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with handled(ENDING, signal.default_int_handler), logged():  # as Ctrl-C does
            code = typer.main.get_command(app).main(given, prog_name="log1pnmf", standalone_mode=False)
    except typer.Exit as end:
        code = int(end.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:  # whoever reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        return _fail(*_explained(error))
    if code == INTERRUPTED:
        return _fail("interrupted: nothing was written", INTERRUPTED)
    return abs(code) if isinstance(code, int) else OK


def _explained(error: Exception) -> tuple[str, int]:
    """Return the message and the exit code of an error."""
    if isinstance(error, ClickError):
        return f"{getattr(error, 'format_message', error.__str__)()} (see log1pnmf --help)", BAD_INPUT
    if isinstance(error, ValueError | TypeError | KeyError | OSError | ImportError):
        return explain(error), BAD_INPUT
    return f"{type(error).__name__}: {error} (--debug shows where)", FAILED


def _fail(message: str, code: int) -> int:
    if os.environ.get(DEBUG, "") not in ("", "0") and sys.exc_info()[0] is not None:
        traceback.print_exc()
    Screen().error(message)
    return code
