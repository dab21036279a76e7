"""The folder that a run of the command line leaves: models, tables anyone can open, and what was asked.

run.json              what was asked and of what: command, versions, data, filters, notes, labels
models/c=1.npz        `Log1pNMF.save`, one for each c
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
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn

from .estimator import Log1pNMF
from .files.table import BadFileError, CountTable
from .files.whole import building, check_place
from .files.write import numbered, sample_labels, write_csv
from .persist import StrPath
from .version import __version__

__all__ = ["RunFolder", "c_name", "check_run_place", "is_run", "json_text", "source_record", "write_run"]

RECORD = "run.json"
REPORT = "report.html"
FORMAT, FORMAT_VERSION = "log1pnmf run", 1
BYTES_AT_ONCE = 1 << 20


def c_name(c: float) -> str:
    """Write c so that it is short, and still the same number.

    Examples
    --------
    >>> c_name(1.0), c_name(math.inf), c_name(0.1 + 0.2)
    ('1', 'inf', '0.30000000000000004')
    """
    short = f"{c:g}"
    return short if float(short) == c else repr(c)


def json_text(value: Any) -> str:
    """Write JSON that any program reads: infinity and NaN, which it does not have, as text."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)


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


# ---------------------------------------------------------------- writing


def check_run_place(path: StrPath, *, force: bool = False) -> None:
    """Refuse a place for a run before any work: one that is taken, or a folder that no run has written.

    Parameters
    ----------
    path : str or PathLike
    force : bool
        Whether an earlier run may be replaced; nothing else ever is.
    """
    place = check_place(path, force=force)
    if place.exists() and not is_run(place) and not (place.is_dir() and not any(place.iterdir())):
        raise FileExistsError(f"{place} exists and is not the folder of a run; it is not replaced")


def write_run(
    path: StrPath,
    models: Sequence[Log1pNMF],
    table: CountTable,
    *,
    record: Mapping[str, Any],
    measures: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    add: Callable[[Path], None] | None = None,
    force: bool = False,
) -> None:
    """Write the folder of a run, whole or not at all.

    Parameters
    ----------
    path : str or PathLike
    models : sequence of Log1pNMF
        Fitted to `table`, with different c.
    table : CountTable
        After all filters.
    record : dict
        What was asked; versions and shape are added.
    measures : dict of str to sequence, optional
        Columns of sweep.csv, one entry for each model.
    add : callable, optional
        Adds more files: called with the folder before it is in its place.
    force : bool
        Whether an earlier run may be replaced.
    """
    check_run_place(path, force=force)
    files = {f"c={c_name(model.fit_.c)}": model for model in models}
    if len(files) != len(models):
        raise ValueError("models must have different c, one file each")
    with building(path, force=force) as folder:
        (folder / "models").mkdir(parents=True)
        n, m = table.shape
        features = numbered(table.feature_names, m)
        samples = numbered(table.sample_names, n)
        for name, model in files.items():
            model.save(folder / "models" / f"{name}.npz")
            _write_factors(folder / f"loadings_{name}.csv", "sample", samples, model.loadings_)
            _write_factors(folder / f"factors_{name}.csv", "feature", features, model.components_.T)
        _write_samples(folder / "samples.csv", samples, table, models[0].fit_.size_factors)
        if measures is not None:
            _write_measures(folder / "sweep.csv", measures)
        complete = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "versions": versions(),
            "shape": list(table.shape),
            "models": [f"models/{name}.npz" for name in files],
            **record,
        }
        (folder / RECORD).write_text(json_text(complete) + "\n", encoding="utf-8")
        if add is not None:
            add(folder)


def versions() -> dict[str, str]:
    """Tell what the numbers were computed with."""
    return {
        "log1pnmf": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "platform": platform.platform(),
    }


def source_record(path: StrPath) -> dict[str, Any]:
    """Describe a file by place, size and checksum; of a folder, place only.

    Parameters
    ----------
    path : str or PathLike

    Returns
    -------
    dict
    """
    place = Path(path)
    record: dict[str, Any] = {"path": str(place.resolve())}
    if place.is_file():
        digest = hashlib.sha256()
        with open(place, "rb") as file:
            while piece := file.read(BYTES_AT_ONCE):
                digest.update(piece)
        record |= {"bytes": place.stat().st_size, "sha256": digest.hexdigest()}
    return record


def _write_factors(path: Path, corner: str, names: Sequence[str], values: np.ndarray) -> None:
    header = [corner, *(f"factor_{k}" for k in range(values.shape[1]))]
    write_csv(path, names, [header], rows=(row.tolist() for row in values))


def _write_samples(path: Path, names: Sequence[str], table: CountTable, sizes: np.ndarray) -> None:
    labels = sample_labels(table)
    columns = [sizes.tolist(), *(values.tolist() for values in labels.values())]
    write_csv(path, names, [["sample", "size_factor", *labels]], rows=zip(*columns, strict=True))


def _write_measures(path: Path, measures: Mapping[str, Sequence[Any] | np.ndarray]) -> None:
    first, *others = (np.asarray(column).tolist() for column in measures.values())
    write_csv(path, [c_name(c) for c in first], [list(measures)], rows=zip(*others, strict=True))


# ---------------------------------------------------------------- reading


def is_run(path: StrPath) -> bool:
    """Whether there is the folder of a run."""
    return (Path(path) / RECORD).is_file()


@dataclass(frozen=True, eq=False)
class RunFolder:
    """A run on disk; what it holds is read when it is asked for.

    Parameters
    ----------
    path : Path
    record : dict
        What is in run.json.
    """

    path: Path
    record: Mapping[str, Any]

    @classmethod
    def open(cls, path: StrPath) -> RunFolder:
        """Open a folder that `write_run` wrote.

        Parameters
        ----------
        path : str or PathLike

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
        try:
            record = json.loads((place / RECORD).read_text(encoding="utf-8"))
            known = record["format"] == FORMAT and isinstance(record["models"], list)
            later = record["format_version"] > FORMAT_VERSION
        except (ValueError, KeyError, TypeError) as error:
            raise BadFileError(f"{place / RECORD} is damaged ({error}); run the command again") from error
        if not known or later:
            raise BadFileError(
                f"{place / RECORD} is not of this version of log1pnmf; pip install -U log1pnmf"
            )
        return cls(place, record)

    @cached_property
    def models(self) -> tuple[Log1pNMF, ...]:
        """The fitted models, in the order in which they were asked for."""
        return tuple(Log1pNMF.load(self.path / name) for name in self.record["models"])

    def model(self, c: float | None = None) -> Log1pNMF:
        """Give the model of one c.

        Parameters
        ----------
        c : float, optional
            Not needed where there is only one model.

        Returns
        -------
        Log1pNMF
        """
        known = ", ".join(c_name(model.fit_.c) for model in self.models)
        if c is None and len(self.models) > 1:
            raise BadFileError(f"{self.path} has models for c = {known}; choose one (-c)")
        for model in self.models:
            if c is None or model.fit_.c == c:
                return model
        raise BadFileError(f"{self.path} has no model for c = {c:g}; choose one of {known}")

    @cached_property
    def samples(self) -> dict[str, np.ndarray]:
        """Columns of samples.csv, the names as "sample"; all but the size factors are text."""
        path = self.path / "samples.csv"
        try:
            with open(path, newline="", encoding="utf-8") as file:
                header, *rows = csv.reader(file)
            columns = {
                name: np.array(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)
            }
            return {**columns, "size_factor": columns["size_factor"].astype(np.float64)}
        except (OSError, ValueError, KeyError, csv.Error) as error:
            raise BadFileError(f"{path} is damaged ({error}); run the command again") from error

    def labels(self, column: str) -> np.ndarray:
        """Labels of the samples, by the name of their column."""
        if column not in self.samples or column in ("sample", "size_factor"):
            known = ", ".join(name for name in self.samples if name not in ("sample", "size_factor"))
            raise BadFileError(f"{self.path} has no label {column!r}; choose one of: {known or 'none'}")
        return self.samples[column]
