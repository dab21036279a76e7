"""The folder that `log1pnmf select` leaves.

select.json      what was asked and of what; what the data say
settings.csv     one line for each setting: held-out log-likelihood, its errors, stability
select.png       the same as a picture
selection.npz    everything, for `log1pnmf.analysis.Selection.load` and to go on after a stop
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.atomic import StrPath, building, claimed, remove, replacing
from log1pnmf._common.version import versions
from log1pnmf.analysis.selection.selection import Selection
from log1pnmf.counts.files.write import write_csv
from log1pnmf.fitting.keys import c_name

from .console import explain
from .inputs import Reading
from .run_folder import json_text, source_record

__all__ = ["SelectFolder", "writing_selection"]

RECORD, TABLE, PICTURE, STATE = "select.json", "settings.csv", "select.png", "selection.npz"
NAMES = (RECORD, TABLE, PICTURE, STATE)


@contextmanager
def writing_selection(path: StrPath, *, force: bool, resume: bool) -> Iterator[SelectFolder]:
    """Take a folder for a comparison, before any work.

    Parameters
    ----------
    path : str or PathLike
        A new folder, an empty one, or that of an earlier comparison.
    force : bool
        Whether an earlier one is replaced; nothing else ever is.
    resume : bool
        Whether to go on with it.
    """
    with claimed(path) as place:
        there = {entry.name for entry in place.iterdir() if not entry.name.startswith(".")}
        ours = STATE in there or RECORD in there
        if resume and STATE not in there:
            raise FileNotFoundError(f"{os.fspath(path)} holds no comparison to continue; leave out --resume")
        if there and not resume:
            if not force:
                raise FileExistsError(
                    f"{os.fspath(path)} already exists; choose another name, continue it (--resume) "
                    "or replace it (--force)"
                )
            if not ours:
                raise FileExistsError(f"{place} exists and is not the folder of a comparison; it stays")
            for name in NAMES:
                remove(place / name)
        yield SelectFolder(place, path)


class SelectFolder:
    """Writes a comparison to a folder of its own.

    Parameters
    ----------
    path : Path
    shown : str or PathLike
        As the user gave it.
    """

    names = NAMES

    def __init__(self, path: Path, shown: StrPath) -> None:
        self.path, self.shown = path, shown

    @property
    def state(self) -> Path:
        """What is done so far."""
        return self.path / STATE

    def record_of(self, file: Path, reading: Reading, options: Mapping[str, Any]) -> dict[str, Any]:
        """Describe what was asked."""
        return {
            "command": shlex.join(["log1pnmf", *sys.argv[1:]]),
            "source": source_record(file),
            "reading": reading.as_dict(),
            "options": dict(options),
            "versions": versions(),
        }

    def summary_of(self, found: Selection) -> dict[str, Any]:
        """Give what was found as plain values."""
        judgement = found.judgement
        return {
            "suggested": None if judgement.setting is None else judgement.setting.parameters,
            "clear": judgement.clear,
            "best": found.best.parameters,
            "headline": judgement.headline,
            "reasons": list(judgement.reasons),
            "settings": {name: np.asarray(column).tolist() for name, column in found.summary.items()},
        }

    def write(self, found: Selection, record: Mapping[str, Any]) -> dict[str, str]:
        """Write record, table and picture; gives what went wrong with what, since all is in the state."""
        steps: dict[str, Callable[[], None]] = {
            RECORD: lambda: self._write_record({**record, **self.summary_of(found)}),
            TABLE: lambda: self._write_table(found),
            PICTURE: lambda: self._draw(found),
        }
        problems = {}
        for name, step in steps.items():
            try:
                step()
            except Exception as error:  # the fits are kept, whatever happens to their picture
                problems[name] = explain(error)
        return problems

    def _write_record(self, record: Mapping[str, Any]) -> None:
        with replacing(self.path / RECORD) as file:
            file.write(f"{json_text(record)}\n".encode())

    def _write_table(self, found: Selection) -> None:
        names, columns = list(found.summary), [np.asarray(one).tolist() for one in found.summary.values()]
        with building(self.path / TABLE, force=True) as temporary:
            shifts = [c_name(c) for c in columns[0]]
            write_csv(temporary, shifts, [names], rows=zip(*columns[1:], strict=True))

    def _draw(self, found: Selection) -> None:
        from matplotlib.figure import Figure

        from log1pnmf.pl import select as draw

        figure = Figure(figsize=(6.2, 4.9), layout="constrained")
        draw(found, figure=figure)
        with building(self.path / PICTURE, force=True) as temporary:
            figure.savefig(temporary, dpi=150)
