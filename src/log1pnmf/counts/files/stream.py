"""Counts larger than memory, written block of rows by block of rows: `write_chunks`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from log1pnmf._common.atomic import StrPath, building
from log1pnmf._common.optional import require

from .annotated import created_store, write_annotated
from .read import format_of
from .table import BadFileError
from .write import numbered

__all__ = ["write_chunks"]

PIECE = 1 << 20
"""Entries in one piece of an array on disk."""


def write_chunks(
    path: StrPath,
    chunks: Iterable[sparse.csr_array],
    *,
    shape: tuple[int, int],
    sample_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    sample_columns: Mapping[str, np.ndarray] | None = None,
    force: bool = False,
) -> int:
    """Write blocks of rows as AnnData; if it fails, no file is left.

    Parameters
    ----------
    path : str or PathLike
        .h5ad or .zarr.
    chunks : iterable of scipy.sparse.csr_array
        Rows in order, which together have the given shape. All are stored with the data type of the first
        chunk, which must represent them exactly.
    shape : tuple of int
        Samples and features.
    sample_names, feature_names : sequence of str, optional
        Names of samples and features.
    sample_columns : dict of str to ndarray, optional
        Labels of the samples, by the name of their column (in obs).
    force : bool
        Whether to replace an existing file.

    Returns
    -------
    int
        Number of entries that are not zero.
    """
    kind = format_of(path)
    if kind not in ("h5ad", "zarr"):
        raise BadFileError(f"{path}: blocks of rows go to a .h5ad or .zarr, not to a {kind} file")
    n, m = shape
    with building(path, force=force) as temporary, created_store(temporary) as store:
        names = numbered(sample_names, n), numbered(feature_names, m)
        write_annotated(store, _empty(*names, sample_columns or {}))
        return _append(store.require_group("X"), chunks, shape)


def _empty(samples: list[str], features: list[str], columns: Mapping[str, np.ndarray]) -> Any:
    """AnnData with names and labels, but without X."""
    anndata = require("anndata", purpose="writing AnnData files")
    pandas = require("pandas", purpose="writing AnnData files")
    labels = {name: pandas.Categorical(values) for name, values in columns.items()}
    return anndata.AnnData(obs=pandas.DataFrame(labels, index=samples), var=pandas.DataFrame(index=features))


def _append(group: Any, chunks: Iterable[sparse.csr_array], shape: tuple[int, int]) -> int:
    """Fill a group with a CSR matrix as AnnData lays it out."""
    n, m = shape
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0"})
    group.attrs["shape"] = np.array(shape) if not hasattr(group, "store") else list(shape)
    make = getattr(group, "create_array", None) or group.create_dataset
    growing = {} if hasattr(group, "create_array") else {"maxshape": (None,)}
    arrays: dict[str, Any] = {}
    indptr = np.zeros(n + 1, dtype=np.int64)
    row = 0
    for chunk in chunks:
        if chunk.shape[1] != m or row + chunk.shape[0] > n:
            raise ValueError(f"chunks must make up shape {shape}, got {chunk.shape} at row {row}")
        before = int(indptr[row])
        indptr[row + 1 : row + chunk.shape[0] + 1] = before + chunk.indptr[1:].astype(np.int64)
        row += chunk.shape[0]
        for name, kind in (("data", chunk.data.dtype), ("indices", np.dtype(np.int32))):
            if name not in arrays:
                arrays[name] = make(name, shape=(0,), dtype=kind, chunks=(PIECE,), **growing)
            arrays[name].resize((before + chunk.nnz,))
            arrays[name][before:] = _exactly(getattr(chunk, name), arrays[name].dtype, row)
    if row != n:
        raise ValueError(f"chunks must make up {n} rows, got {row}")
    for name in ("data", "indices"):
        if name not in arrays:
            make(name, shape=(0,), dtype=np.int32, chunks=(PIECE,), **growing)
    pieces = (max(1, min(n + 1, PIECE)),)
    make("indptr", shape=indptr.shape, dtype=indptr.dtype, chunks=pieces)[:] = indptr
    return int(indptr[-1])


def _exactly(values: np.ndarray, kind: np.dtype, row: int) -> np.ndarray:
    """Turn numbers into another kind, which must hold them as they are."""
    with np.errstate(all="ignore"):
        stored = values.astype(kind)
        same = np.can_cast(values.dtype, kind) or bool((stored.astype(values.dtype) == values).all())
    if not same:
        raise ValueError(
            f"chunks must hold numbers of one kind: the first has {kind}, which cannot hold those that end "
            f"at row {row}"
        )
    return stored
