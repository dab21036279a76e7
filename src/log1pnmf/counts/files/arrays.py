"""NumPy's own files: .npy and .npz, never with pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from scipy import sparse

from log1pnmf._common.untrusted import BadFileError, Budget, check_npy, check_npz

from .table import RawTable

__all__ = ["COLUMN", "read_npy", "read_npz"]

MATRICES = ("counts", "X", "matrix", "Y", "data", "arr_0")
"""Names under which the counts are looked for, where there are several arrays."""

SINGLE = b"\x93NUMPY"

COLUMN = "sample_columns."
"""What the names of labels begin with."""


def read_npy(path: Path, budget: Budget) -> RawTable:
    """Read an array."""
    with open(path, "rb") as file:
        check_npy(file, path)
        budget.charge(path.stat().st_size)
        return RawTable(np.load(file, allow_pickle=False))


def read_npz(path: Path, budget: Budget) -> RawTable:
    """Read a sparse matrix of SciPy's `save_npz`, or the counts among several arrays."""
    # Opened here, because NumPy leaves a file open that is damaged.
    with open(path, "rb") as file:
        if file.read(len(SINGLE)) == SINGLE:
            raise BadFileError(f"{path} holds one array, not several; name it .npy")
        check_npz(file, path, budget)
        with np.load(file, allow_pickle=False) as stored:
            return _from_archive(path, file, stored)


def _from_archive(path: Path, file: BinaryIO, stored: Mapping[str, Any]) -> RawTable:
    names = list(stored)
    if "metadata" in names:
        raise BadFileError(f"{path} is a model or checkpoint of log1pnmf, not a table of counts")
    notes: tuple[str, ...] = ()
    if "format" in names:
        file.seek(0)
        matrix = sparse.load_npz(file)
        if hasattr(matrix, "check_format"):  # indices out of range would crash SciPy
            matrix.check_format(full_check=True)
    else:
        name = _matrix_name(path, stored)
        matrix = stored[name]
        notes = (f"counts read from array {name!r}",)
    columns = {one.removeprefix(COLUMN): stored[one] for one in names if one.startswith(COLUMN)}
    samples, features = (
        stored[name].tolist() if name in names else None for name in ("sample_names", "feature_names")
    )
    return RawTable(matrix, samples, features, columns, notes)


def _matrix_name(path: Path, stored: Mapping[str, Any]) -> str:
    tables = [name for name in stored if stored[name].ndim == 2]
    for name in MATRICES:
        if name in tables:
            return name
    if len(tables) == 1:
        return tables[0]
    there = ", ".join(f"{name} {stored[name].shape}" for name in stored) or "nothing"
    raise BadFileError(
        f"{path} must hold one table of counts, called 'counts' if there are several; got {there}"
    )
