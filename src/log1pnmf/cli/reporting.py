"""The report of a run, from what is in memory or in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.optional import require
from log1pnmf.counts.files import CountTable
from log1pnmf.estimator import Log1pNMF

__all__ = ["report_models"]


def report_models(
    path: Path,
    models: Sequence[Log1pNMF],
    *,
    record: Mapping[str, Any],
    names: CountTable | Sequence[str],
    labels: np.ndarray | None,
    title: str | None = None,
) -> None:
    """Write the report of a run.

    Parameters
    ----------
    path : Path
    models : sequence of Log1pNMF
    record : dict
        What is in run.json.
    names : CountTable or sequence of str
        The data, where they are there; otherwise the names of the samples.
    labels : ndarray, optional
        Of the samples.
    title : str, optional
    """
    require("jinja2", extra="report", purpose="the report")
    from log1pnmf.report.document import write_report

    table = names if isinstance(names, CountTable) else None
    source = Path(record["source"]["path"])
    write_report(
        path,
        models,
        title=title or source.name.split(".")[0].replace("_", " "),
        sample_names=table.sample_names if table is not None else names,
        groups=labels,
        group_name=record["label"] if labels is not None else None,
        source=str(source),
        command=record["command"],
        filters=record["filters"],
        notes=record["notes"],
        counts=None if table is None else table.counts,
    )
