"""``log1pnmf report``: the report of a run, written again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from log1pnmf.counts.counts import Counts

from . import options as common
from .console import Screen, one_line
from .inputs import Reading
from .reporting import report_fits
from .run_folder import REPORT, RunFolder, source_record

__all__ = ["report"]


def report(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="PATH", help="HTML file. [default: report.html in the folder]"
        ),
    ] = None,
    groupby: common.GroupBy = None,
    title: Annotated[str | None, typer.Option("--title", help="Title. [default: name of the data]")] = None,
) -> int:
    """Write the report of a run: one HTML file that opens anywhere, without network."""
    screen = Screen()
    folder = RunFolder.open(run)
    folder.check_record("command", "filters", "groupby", "notes", "reading", "shape", "source")
    record = {**folder.record, "groupby": groupby or folder.record["groupby"]}
    labels = None if record["groupby"] is None else folder.labels(record["groupby"])
    path = output or folder.path / REPORT
    counts, why = _counts(folder.record)
    if why:
        screen.notes([f"the counts are not looked at again: {why}"])
    report_fits(path, folder.fits, record=record, labels=labels, counts=counts, title=title)
    screen.say(("wrote ", "green"), (str(path), "bold"))
    return 0


def _counts(record: Any) -> tuple[Counts | None, str]:
    """Read the counts of a run again, where they are as they were."""
    source = Path(record["source"]["path"])
    if not source.exists():
        return None, f"{source} is not there any more"
    if {**source_record(source), "format": record["source"]["format"]} != record["source"]:
        return None, f"{source} has changed since the fit"
    try:
        # How much memory a file may take is not for the folder to say, which may be a stranger's as well.
        reading = Reading(**{**record["reading"], "max_memory": None})
        table = reading.filtered(reading.table(source)).table
    except (ValueError, TypeError, OSError, ImportError) as error:
        return None, one_line(error)
    if list(table.shape) != record["shape"]:
        return None, f"{source} has changed since the fit"
    return table.counts, ""
