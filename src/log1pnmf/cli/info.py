"""``log1pnmf info``: what is in a file of counts, a run or a model."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from log1pnmf.counts.files import CountTable
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.keys import c_name
from log1pnmf.fitting.summary import summarize

from . import options as common
from .console import Screen
from .inputs import Reading, describe
from .run_folder import RunFolder, is_run

__all__ = ["count_facts", "info", "is_model"]

MOST_LABELS = 8


def info(
    *,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="Counts, the folder of a run, or a model (.npz).", show_default=False
        ),
    ],
    layer: common.Layer = None,
    transpose: common.Transpose = False,
    max_memory: common.MaxMemory = None,
    text: common.Text = None,
    stop_words: common.StopWords = None,
    json: common.Json = False,
) -> int:
    """Describe a file of counts, a run or a model."""
    screen = Screen(json=json)
    if is_run(path):
        _about_run(RunFolder.open(path), screen)
    elif is_model(path):
        _about_fit(Fit.load(path), screen)
    else:
        reading = Reading(
            layer, transpose, allow_fractions=True, max_memory=max_memory, text=text, stop_words=stop_words
        )
        _about_counts(reading.table(path), screen)
    return 0


def is_model(path: Path) -> bool:
    """Whether there is a file that `Fit.save` wrote, or another archive of this package."""
    if not path.is_file():  # a pipe would wait for ever
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "metadata.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _number(value: float) -> str:
    """All digits before the point, six in all where they are fewer."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.{max(6, len(f'{value:.0f}') + 1)}g}"


def _about_counts(table: CountTable, screen: Screen) -> None:
    facts = count_facts(table)
    if not screen.json:
        screen.say((table.source, "bold"), f" ({table.format}): {describe(table)}")
        kind = "whole numbers" if facts["integer"] else "NOT all whole numbers"
        rows = {
            "values": f"{kind}, up to {_number(facts['max'])}",
            "per sample": "{} counts at least, {} in the middle, {} at most".format(
                *map(_number, facts["totals"])
            ),
            "empty": f"{facts['empty_samples']:,} samples, {facts['empty_features']:,} features",
            "samples": _some(table.sample_names),
            "features": _some(table.feature_names),
        }
        for name, text in rows.items():
            screen.say((f"  {name:<12}", "cyan"), text)
        for name, levels in facts["labels"].items():
            screen.say((f"  label {name}: ", "cyan"), levels)
        screen.notes(table.notes)
    screen.result(facts)


def count_facts(table: CountTable) -> dict[str, Any]:
    """Numbers that say what a table is like."""
    counts, values = table.counts, table.counts.by_row.values
    totals = np.quantile(counts.row_sums, [0.0, 0.5, 1.0])
    return {
        "path": table.source,
        "format": table.format,
        "n_samples": table.shape[0],
        "n_features": table.shape[1],
        "nnz": counts.nnz,
        "density": table.fraction,
        "total": counts.total,
        "max": float(values.max(initial=0.0)),
        "integer": bool((values == np.rint(values)).all()),
        "totals": totals.tolist(),
        "empty_samples": counts.n_empty_rows,
        "empty_features": counts.n_empty_columns,
        "labels": {name: _levels(column) for name, column in table.sample_columns.items()},
        "notes": list(table.notes),
    }


def _levels(column: np.ndarray) -> str:
    levels, often = np.unique(column, return_counts=True)
    if len(levels) > MOST_LABELS:
        return f"{len(levels):,} different values"
    return ", ".join(f"{level} ({n:,})" for level, n in zip(levels, often, strict=True))


def _some(names: np.ndarray | None) -> str:
    if names is None:
        return "without names"
    return ", ".join(map(str, names[:4])) + (", ..." if len(names) > 4 else "")


def _about_run(run: RunFolder, screen: Screen) -> None:
    run.check_record("command", "filters", "notes", "shape", "source")
    record = run.record
    if not screen.json:
        screen.say((str(run.path), "bold"), f": {record['command']}")
        screen.say(
            ("  data    ", "cyan"), "{} ({:,} x {:,})".format(record["source"]["path"], *record["shape"])
        )
        screen.notes(record["filters"], kind="filter")
        screen.notes(record["notes"])
        if not record.get("finished", True):
            screen.notes(["some fits are missing: the run is not finished, or it ended early"])
        for fit in run.fits:
            screen.say("")
            screen.lines(summarize(fit))
    screen.result(record)


def _about_fit(fit: Fit, screen: Screen) -> None:
    if not screen.json:
        screen.lines(summarize(fit))
    screen.result(
        {
            "c": fit.c,
            "c_name": c_name(fit.c),
            "n_components": fit.n_components,
            "n_samples": len(fit.loadings),
            "n_features": len(fit.factors),
            "log_likelihood": fit.log_likelihood,
            "n_iter": fit.n_iter,
            "converged": fit.converged,
            "kkt_residual": fit.kkt_residual,
            "seconds": fit.seconds,
            "messages": list(fit.messages),
        }
    )
