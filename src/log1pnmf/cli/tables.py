"""Tables of findings, as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import typer

from log1pnmf._common.atomic import building, check_place
from log1pnmf.counts.files.write import write_csv

from .console import Screen

__all__ = ["check_table", "write_table"]


def check_table(path: Path | None, *, force: bool) -> None:
    """Refuse a place for a table before anything is computed."""
    if path is None:
        return
    if not path.name.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz")):
        raise typer.BadParameter(f"-o must end with .csv, .tsv or the same with .gz, got {path}")
    check_place(path, force=force)


def write_table(path: Path | None, table: Mapping[str, Any], screen: Screen, *, force: bool) -> None:
    """Write the columns of a table, the names of its rows first, where that was asked for."""
    if path is None:
        return
    names, *columns = (np.asarray(column).tolist() for column in table.values())
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    with building(path, force=force) as temporary:
        rows = zip(*columns, strict=True)
        write_csv(temporary, names, [list(table)], rows=rows, delimiter=delimiter)
    screen.say(("wrote ", "green"), (str(path), "bold"))
