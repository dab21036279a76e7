"""``log1pnmf report``: the report of a run, written again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as common
from .console import Screen
from .reporting import counts_again, report_fits
from .run_folder import REPORT, RunFolder

__all__ = ["report"]


def report(
    *,
    run: common.Run,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="PATH", help="HTML file. [default: report.html in the folder]"
        ),
    ] = None,
    groupby: common.GroupBy = None,
    title: Annotated[str | None, typer.Option("--title", help="Title. [default: name of the data]")] = None,
) -> int:
    """Write the report of a run, one HTML file."""
    screen = Screen()
    folder = RunFolder.open(run)
    folder.check_record("command", "filters", "groupby", "notes", "reading", "shape", "source")
    record = {**folder.record, "groupby": groupby or folder.record["groupby"]}
    labels = None if record["groupby"] is None else folder.labels(record["groupby"])
    path = output or folder.path / REPORT
    counts, why = counts_again(folder.record)
    if why:
        screen.notes([f"the report is written without the counts: {why}"])
    report_fits(path, folder.fits, record=record, labels=labels, counts=counts, title=title)
    screen.say(("wrote ", "green"), (str(path), "bold"))
    return 0
