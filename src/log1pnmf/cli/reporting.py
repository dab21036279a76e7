"""The report of a run, from what is in memory or in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.optional import require
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import Fit

from .console import one_line
from .inputs import Reading
from .run_folder import source_record

__all__ = ["counts_again", "report_fits"]


def report_fits(
    path: Path,
    fits: Sequence[Fit],
    *,
    record: Mapping[str, Any],
    labels: np.ndarray | None,
    counts: Counts | None = None,
    title: str | None = None,
) -> None:
    """Write the report of a run.

    Parameters
    ----------
    record : dict
        What is in run.json.
    labels : ndarray, optional
        Labels of the samples.
    counts : Counts, optional
        What was fitted, where it is at hand.
    """
    require("jinja2", purpose="the report")
    from log1pnmf.report.document import write_report

    source = Path(record["source"]["path"])
    write_report(
        path,
        fits,
        title=title or source.name.split(".")[0].replace("_", " "),
        groupby=labels,
        group_name=record["groupby"] if labels is not None else None,
        source=source.name,
        command=record["command"],
        filters=record["filters"],
        notes=record["notes"],
        counts=counts,
    )


def counts_again(record: Any) -> tuple[Counts | None, str]:
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
