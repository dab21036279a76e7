"""The folder that a run of the command line leaves: models, tables anyone can open, and what was asked.

run.json              what was asked and of what: command, versions, data, filters, notes, labels
models/c=1.npz        `Fit.save`, one for each c
loadings_c=1.csv      samples x factors
factors_c=1.csv       features x factors
samples.csv           names, size factors and labels of the samples
sweep.csv             measures of the fits, one line for each c
report.html           the same to be looked at
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.archive import StrPath, from_tree
from log1pnmf._common.safe_files import BadFileError, check_names, parse_json
from log1pnmf.counts.text import plain_cell
from log1pnmf.fitting.fit import Fit, c_name

RECORD = "run.json"
REPORT = "report.html"
SAMPLE_COLUMNS = ("sample", "size_factor")
"""Columns of samples.csv before those of the labels."""
FORMAT, FORMAT_VERSION = "log1pnmf run", 1
BYTES_AT_ONCE = 1 << 20
CELL_LIMIT = 1 << 30
CONTROL = re.compile("[\x7f-\x9f]")


def json_text(value: Any) -> str:
    """Write JSON that any program reads: infinity and NaN, which it does not have, as text."""
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # those below space are escaped already


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value:g}"
    return value


# ---------- what was asked, and of what


@dataclass(frozen=True)
class Source:
    """A file by place, size and checksum; a folder by its place."""

    path: str
    bytes: int | None = None
    sha256: str | None = None

    @classmethod
    def of(cls, path: StrPath) -> Source:
        """Describe what is there now."""
        place = Path(path)
        if not place.is_file():
            return cls(str(place.resolve()))
        digest = hashlib.sha256()
        with open(place, "rb") as file:
            while piece := file.read(BYTES_AT_ONCE):
                digest.update(piece)
        return cls(str(place.resolve()), place.stat().st_size, digest.hexdigest())


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What run.json holds."""

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    command: str
    created: str
    versions: Mapping[str, str]
    source: Source
    source_format: str
    reading: Mapping[str, Any]  # how the source was read: `log1pnmf.cli.options.Reading`
    shape: tuple[int, int]
    sample_columns: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    groupby: str | None = None
    batch: str | None = None
    parameters: Mapping[str, Any]
    models: tuple[str, ...] = ()
    finished: bool = False
    interrupted: bool = False
    fits: tuple[Mapping[str, Any], ...] = ()  # measures, with infinity and NaN as text

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Read run.json; whatever is missing or of another type is refused."""
        try:
            tree = parse_json(path.read_bytes(), path)
            if tree["format"] == FORMAT and tree["format_version"] == FORMAT_VERSION:
                record: RunRecord = from_tree(cls, tree)
                check_names(str(path), record.models)
                return record
        except BadFileError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise BadFileError(f"{path} is damaged ({error}); run the command again") from error
        raise BadFileError(f"{path} is not of this version of log1pnmf; pip install -U log1pnmf")


def is_run(path: StrPath) -> bool:
    """Whether there is the folder of a run."""
    return (Path(path) / RECORD).is_file()


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The folder of a run of the command line; files are read when needed.

    Parameters
    ----------
    path : Path
        Folder of the run.
    record : RunRecord
        What is in run.json.
    """

    path: Path
    record: RunRecord

    @classmethod
    def open(cls, path: StrPath) -> RunFolder:
        """Open a folder that a run left.

        Parameters
        ----------
        path : str or PathLike
            Folder of the run.

        Returns
        -------
        RunFolder

        Raises
        ------
        FileNotFoundError
        BadFileError
            Where it is not such a folder, or not whole.
        """
        place = Path(path)
        if not place.exists():
            raise FileNotFoundError(f"{path} does not exist; check the path (working folder: {Path.cwd()})")
        if not is_run(place):
            raise BadFileError(f"{path} is not the folder of a run: there is no {RECORD} in it")
        return cls(place, RunRecord.read(place / RECORD))

    @cached_property
    def fits(self) -> tuple[Fit, ...]:
        """The fits, in the order in which they were asked for."""
        return tuple(Fit.load(self.path / name) for name in self.record.models)

    def fit(self, c: float | None = None) -> Fit:
        """Return the fit of one c.

        Parameters
        ----------
        c : float, optional
            Not needed where there is only one fit.

        Returns
        -------
        Fit
        """
        known = ", ".join(c_name(fit.c) for fit in self.fits)
        if c is None and len(self.fits) > 1:
            raise BadFileError(f"{self.path} has models for c = {known}; choose one (-c)")
        for fit in self.fits:
            if c is None or fit.c == c:
                return fit
        raise BadFileError(f"{self.path} has no model for c = {c}; choose one of {known}")

    @cached_property
    def samples(self) -> dict[str, np.ndarray]:
        """Columns of samples.csv, the names as "sample"; all but the size factors are text."""
        path = self.path / "samples.csv"
        before = csv.field_size_limit(CELL_LIMIT)
        try:
            with open(path, newline="", encoding="utf-8") as file:
                header, *rows = [[plain_cell(cell) for cell in row] for row in csv.reader(file)]
            columns = {
                name: np.array(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)
            }
            return {**columns, "size_factor": columns["size_factor"].astype(np.float64)}
        except (OSError, ValueError, KeyError, csv.Error) as error:
            raise BadFileError(f"{path} is damaged ({error}); run the command again") from error
        finally:
            csv.field_size_limit(before)

    def labels(self, column: str) -> np.ndarray:
        """Labels of the samples, by the name of their column in the data."""
        there = [name for name in self.samples if name not in SAMPLE_COLUMNS]
        columns = dict(zip(self.record.sample_columns, there, strict=False))
        if column not in columns:
            known = ", ".join(columns)
            raise BadFileError(f"{self.path} has no label {column!r}; choose one of: {known or 'none'}")
        return self.samples[columns[column]]


def fit_in(place: Path, c: float | None) -> Fit:
    """Read the fit of a file, or that of one c of a run."""
    if not place.is_file():
        return RunFolder.open(place).fit(c)
    fit = Fit.load(place)
    if c is not None and c != fit.c:
        raise BadFileError(f"{place} is a model for c = {c_name(fit.c)}, not {c_name(c)}")
    return fit
