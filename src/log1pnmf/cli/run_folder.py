"""The folder that a run of the command line leaves: models, tables anyone can open, and what was asked.

run.json              what was asked and of what: command, versions, data, filters, notes, labels
models/c=1.npz        `Fit.save`, one for each c
loadings_c=1.csv      samples x factors
factors_c=1.csv       features x factors
features.csv          which features were fitted, where others were added afterwards
samples.csv           names, size factors and labels of the samples
sweep.csv             measures of the fits, one line for each c
consensus.csv, .png   of log1pnmf consensus: how often and where each factor came back
report.html           the same to be looked at
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.archive import StrPath, building, claimed, from_tree, remove, replacing, to_tree
from log1pnmf._common.safe_files import BadFileError, check_names, parse_json
from log1pnmf.analysis.stability import Consensus
from log1pnmf.counts.text import CountTable, in_categories, plain_cell
from log1pnmf.counts.write import numbered, sample_labels, write_csv
from log1pnmf.fitting.fit import Fit, c_name

RECORD = "run.json"
REPORT = "report.html"
SAMPLE_COLUMNS = ("sample", "size_factor")  # in samples.csv before those of the labels
FORMAT, FORMAT_VERSION = "log1pnmf run", 1
BYTES_AT_ONCE = 1 << 20
CELL_LIMIT = 1 << 30
CONTROL = re.compile("[\x7f-\x9f]")


def json_text(value: Any) -> str:
    """Write JSON that any program reads: infinity and NaN, which it does not have, as text."""
    text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # those below space are escaped already


def write_json(path: Path, value: Any) -> None:
    """Write a file of JSON, whole or not at all."""
    with replacing(path) as file:
        file.write(f"{json_text(value)}\n".encode())


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
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of columns that have an order
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


# ---------- tables


def write_columns(path: Path, table: Mapping[str, Any], *, force: bool = True) -> None:
    """Write the columns of a table as .csv or .tsv, the names of its rows first, whole or not at all."""
    names, *columns = (np.asarray(column).tolist() for column in table.values())
    write_rows(path, list(table), names, rows=zip(*columns, strict=True), force=force)


def write_rows(
    path: Path, header: Sequence[str], names: Sequence[str], *, rows: Iterator[Any], force: bool = True
) -> None:
    """Write rows of numbers as .csv or .tsv with their names, whole or not at all."""
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    with building(path, force=force) as temporary:
        write_csv(temporary, names, [list(header)], rows=rows, delimiter=delimiter)


def write_picture(path: Path, plot: str, found: Any) -> None:
    """Write what a function of `log1pnmf.pl` draws of a result, whole or not at all."""
    from matplotlib.figure import Figure

    from log1pnmf import pl

    figure = getattr(pl, plot)(found, figure=Figure(figsize=(7.4, 4.9), layout="constrained"))
    with building(path, force=True) as temporary:
        figure.savefig(temporary, dpi=150)


# ---------- a run written to its folder, fit by fit: what is written once stays

# what a run leaves in its folder
PARTS = re.compile(
    r"run\.json|models|(samples|features|sweep)\.csv|consensus\.(csv|png)|report\.html"
    r"|(loadings|factors)_c=[^/]+\.csv"
)


@contextmanager
def claimed_for_run(
    path: StrPath, *, force: bool = False, record: str = RECORD, otherwise: str = ""
) -> Iterator[Path]:
    """Take a folder for a run, before any work; it is given back, and removed where nothing was written.

    Only a folder that holds the `record` of such a run is replaced.
    """
    with claimed(path) as place:
        if any(place.iterdir()):
            if not force:
                do = f"choose another name{otherwise} or replace it (--force)"
                raise FileExistsError(f"{os.fspath(path)} already exists; {do}")
            if not (place / record).is_file():
                raise FileExistsError(f"{place} exists and is not the folder of a run; it is not replaced")
        yield place


@dataclass
class RunWriter:
    """A run that is written fit by fit: what is written once stays, whatever happens later."""

    path: Path
    table: CountTable
    asked: RunRecord
    fits: list[Fit] = field(default_factory=list)
    measures: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    finished: bool = False
    consensus: Consensus | None = None  # which the fit was made from
    _written: dict[str, Fit] = field(default_factory=dict)

    @property
    def record(self) -> RunRecord:
        """What goes to run.json."""
        return replace(
            self.asked,
            models=tuple(f"models/c={c_name(fit.c)}.npz" for fit in self.fits),
            fits=tuple(self.measures),
            finished=self.finished,
            interrupted=self.interrupted,
        )

    def keep(self, fit: Fit, measures: dict[str, Any]) -> None:
        """Take a fit; of two at the same c the better one."""
        for place, other in enumerate(self.fits):
            if other.c == fit.c:
                if fit.objective < other.objective:
                    self.fits[place], self.measures[place] = fit, measures
                return
        self.fits.append(fit)
        self.measures.append(measures)

    def write(self) -> None:
        """Write what is new: fits first, then run.json, which names them, then the tables."""
        files = {f"c={c_name(fit.c)}": fit for fit in self.fits}
        new = {name: fit for name, fit in files.items() if self._written.get(name) is not fit}
        n, m = self.table.shape
        samples, features = numbered(self.table.sample_names, n), numbered(self.table.feature_names, m)
        with nullcontext() if self._written else _earlier_aside(self.path):
            if not self._written:
                (self.path / "models").mkdir()
                labels = sample_labels(self.table)
                header = [[*SAMPLE_COLUMNS, *_other_names(list(labels))]]
                given = (one.tolist() for one in (self.fits[0].size_factors, *labels.values()))
                write_csv(self.path / "samples.csv", samples, header, rows=zip(*given, strict=True))
            for name, fit in new.items():
                fit.save(self.path / "models" / f"{name}.npz")
            write_json(self.path / RECORD, to_tree(self.record))
        self._written.update(new)
        for name, fit in new.items():
            write_factor_tables(self.path, name, fit, samples, features)
            if fit.fitted_features is not None:
                columns = {"feature": features, "fitted": fit.fitted_features}
                write_columns(self.path / "features.csv", columns)
        if len(self.fits) > 1:
            columns = {name: [row[name] for row in self.measures] for name in self.measures[0]}
            write_columns(self.path / "sweep.csv", {**columns, "c": [c_name(fit.c) for fit in self.fits]})
        if self.consensus is not None:
            write_columns(self.path / "consensus.csv", self.consensus.table())


@contextmanager
def _earlier_aside(folder: Path) -> Iterator[None]:
    """Put an earlier run aside; if all goes well it is removed, if not it comes back."""
    aside, moved = folder / f".{secrets.token_hex(8)}.old", False
    try:
        aside.mkdir()
        for part in _parts(folder):
            os.rename(part, aside / part.name)
        moved = True
        yield
    except BaseException:
        for part in _parts(folder) if moved else []:
            remove(part)
        for part in _parts(aside) if aside.exists() else []:
            os.rename(part, folder / part.name)
        raise
    finally:
        remove(aside)


def _parts(folder: Path) -> list[Path]:
    """Files and folders of a run; other files in its folder are left alone."""
    return [path for path in folder.iterdir() if PARTS.fullmatch(path.name)]


def write_factor_tables(
    folder: Path, name: str, fit: Fit, samples: Sequence[str], features: Sequence[str]
) -> None:
    """Write loadings and factors of a fit as tables, with the names of its factors."""
    for kind, row, names in (("loadings", "sample", samples), ("factors", "feature", features)):
        rows = (one.tolist() for one in getattr(fit, kind))
        write_rows(folder / f"{kind}_{name}.csv", [row, *fit.factor_names], names, rows=rows)


def _other_names(labels: Sequence[str]) -> list[str]:
    """Names for columns of labels that are not those of our own columns."""
    names = []
    for label in labels:
        name = label
        while name in SAMPLE_COLUMNS or (name != label and name in labels):
            name += "_label"
        names.append(name)
    return names


# ---------- the folder read


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
        """Open the folder that a run left at `path`; a BadFileError if it is not one, or not whole."""
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
        """Return the fit of one `c`, which is not needed where there is only one fit."""
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
        return self.columns("samples.csv", size_factor=np.float64)

    def columns(self, name: str, **types: Any) -> dict[str, np.ndarray]:
        """Return the columns of the table `name` as text; those in `types` must be there."""
        path, before = self.path / name, csv.field_size_limit(CELL_LIMIT)
        try:
            with open(path, newline="", encoding="utf-8") as file:
                header, *rows = [[plain_cell(cell) for cell in row] for row in csv.reader(file)]
            columns = dict(zip(header, map(np.array, zip(*rows, strict=True)), strict=True))
            return columns | {name: columns[name].astype(kind) for name, kind in types.items()}
        except (OSError, ValueError, KeyError, csv.Error) as error:
            raise BadFileError(f"{path} is damaged ({error}); run the command again") from error
        finally:
            csv.field_size_limit(before)

    def labels(self, column: str | None) -> Any:
        """Return the labels of the samples, by the name of their `column` in the data; None for none."""
        there = [name for name in self.samples if name not in SAMPLE_COLUMNS]
        columns = dict(zip(self.record.sample_columns, there, strict=False))
        if column is None:
            return None
        if column not in columns:
            known = ", ".join(columns)
            raise BadFileError(f"{self.path} has no label {column!r}; choose one of: {known or 'none'}")
        labels, order = self.samples[columns[column]], self.record.categories.get(column)
        return labels if order is None else in_categories(labels, order)


def fit_in(place: Path, c: float | None) -> Fit:
    """Read the fit of a file, or that of one c of a run."""
    if not place.is_file():
        return RunFolder.open(place).fit(c)
    fit = Fit.load(place)
    if c is not None and c != fit.c:
        raise BadFileError(f"{place} is a model for c = {c_name(fit.c)}, not {c_name(c)}")
    return fit
