"""A run written to its folder, fit by fit: what is written once stays."""

from __future__ import annotations

import os
import platform
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.atomic import StrPath, building, claimed, remove, replacing
from log1pnmf._common.version import versions
from log1pnmf.counts.files.table import CountTable
from log1pnmf.counts.files.write import numbered, sample_labels, write_csv
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.keys import c_name

from .run_folder import FORMAT, FORMAT_VERSION, OWN, RECORD, is_run, json_text

__all__ = ["RunWriter", "write_factor_tables", "write_run", "writing_run"]

PARTS = re.compile(r"run\.json|models|samples\.csv|sweep\.csv|report\.html|(loadings|factors)_c=[^/]+\.csv")
"""What a run leaves in its folder."""


@contextmanager
def writing_run(path: StrPath, *, force: bool = False) -> Iterator[RunWriter]:
    """Take a folder for a run, before any work; it is given back, and removed where nothing was written.

    Parameters
    ----------
    path : str or PathLike
        A new folder or an empty one.
    force : bool
        Whether an earlier run may be replaced; nothing else ever is.
    """
    with claimed(path) as place:
        if any(place.iterdir()):
            if not force:
                raise FileExistsError(
                    f"{os.fspath(path)} already exists; choose another name or replace it (--force)"
                )
            if not is_run(place):
                raise FileExistsError(f"{place} exists and is not the folder of a run; it is not replaced")
        yield RunWriter(place)


class RunWriter:
    """Writes a run fit by fit: what is written once stays, whatever happens later.

    Parameters
    ----------
    path : Path
        A folder that is one's own (`writing_run`). An earlier run in it is replaced with the first fit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: dict[str, Fit] = {}

    def write(
        self,
        fits: Sequence[Fit],
        table: CountTable,
        *,
        record: Mapping[str, Any],
        measures: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    ) -> None:
        """Write what is new: fits first, then run.json, which names them, then the tables.

        Parameters
        ----------
        fits : sequence of Fit
            All so far; fitted to `table`, with different c.
        table : CountTable
            After all filters.
        record : dict
            What was asked; versions and shape are added.
        measures : dict of str to sequence, optional
            Columns of sweep.csv, one entry for each fit.
        """
        files = {f"c={c_name(fit.c)}": fit for fit in fits}
        if len(files) != len(fits):
            raise ValueError("fits must have different c, one file each")
        new = {name: fit for name, fit in files.items() if self._written.get(name) is not fit}
        names = [f"models/{name}.npz" for name in files]
        complete = {**_frame(table), "models": names, **record}
        if self._written:
            self._save(new, complete)
        else:
            with _earlier_aside(self.path):
                (self.path / "models").mkdir()
                _write_samples(self.path / "samples.csv", table, fits[0].size_factors)
                self._save(new, complete)
        n, m = table.shape
        samples, features = numbered(table.sample_names, n), numbered(table.feature_names, m)
        for name, fit in new.items():
            write_factor_tables(self.path, name, fit, samples, features)
        if measures is not None:
            _write_measures(self.path / "sweep.csv", measures)

    def _save(self, new: Mapping[str, Fit], complete: Mapping[str, Any]) -> None:
        for name, fit in new.items():
            fit.save(self.path / "models" / f"{name}.npz")
        with replacing(self.path / RECORD) as file:
            file.write(f"{json_text(complete)}\n".encode())
        self._written.update(new)


def write_run(
    path: StrPath,
    fits: Sequence[Fit],
    table: CountTable,
    *,
    record: Mapping[str, Any],
    measures: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    force: bool = False,
) -> None:
    """Write the folder of a run in one go; see `RunWriter.write`.

    Parameters
    ----------
    force : bool
        Whether an earlier run may be replaced.
    """
    with writing_run(path, force=force) as run:
        run.write(fits, table, record=record, measures=measures)


@contextmanager
def _earlier_aside(folder: Path) -> Iterator[None]:
    """Put an earlier run aside; if all goes well it is removed, if not it comes back."""
    aside, moved = folder / f".{secrets.token_hex(8)}.old", False
    try:
        aside.mkdir()
        _move_parts(folder, aside)
        moved = True
        yield
    except BaseException:
        for part in _parts(folder) if moved else []:
            remove(part)
        _move_parts(aside, folder)
        raise
    finally:
        remove(aside)


def _move_parts(source: Path, target: Path) -> None:
    for part in _parts(source) if source.exists() else []:
        os.rename(part, target / part.name)


def _parts(folder: Path) -> list[Path]:
    """Files and folders of a run; whatever else lies in its folder is not ours."""
    return [path for path in folder.iterdir() if PARTS.fullmatch(path.name)]


def _frame(table: CountTable) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": {**versions(), "platform": platform.platform()},
        "shape": list(table.shape),
        "sample_columns": list(table.sample_columns),
    }


def write_factor_tables(
    folder: Path, name: str, fit: Fit, samples: Sequence[str], features: Sequence[str]
) -> None:
    """Write loadings and factors of a fit as tables, with the names of its factors."""
    _write_factors(folder / f"loadings_{name}.csv", ["sample", *fit.factor_names], samples, fit.loadings)
    _write_factors(folder / f"factors_{name}.csv", ["feature", *fit.factor_names], features, fit.factors)


def _write_factors(path: Path, header: Sequence[str], names: Sequence[str], values: np.ndarray) -> None:
    with building(path, force=True) as temporary:
        write_csv(temporary, names, [list(header)], rows=(row.tolist() for row in values))


def _write_samples(path: Path, table: CountTable, sizes: np.ndarray) -> None:
    labels = sample_labels(table)
    columns = [sizes.tolist(), *(values.tolist() for values in labels.values())]
    names = numbered(table.sample_names, table.shape[0])
    write_csv(path, names, [[*OWN, *_other_names(list(labels))]], rows=zip(*columns, strict=True))


def _other_names(labels: Sequence[str]) -> list[str]:
    """Names for columns of labels that are not those of our own columns."""
    names = []
    for label in labels:
        name = label
        while name in OWN or (name != label and name in labels):
            name += "_label"
        names.append(name)
    return names


def _write_measures(path: Path, measures: Mapping[str, Sequence[Any] | np.ndarray]) -> None:
    first, *others = (np.asarray(column).tolist() for column in measures.values())
    with building(path, force=True) as temporary:
        write_csv(temporary, [c_name(c) for c in first], [list(measures)], rows=zip(*others, strict=True))
