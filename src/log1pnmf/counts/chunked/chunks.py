"""Where chunks of rows come from: files, arrays that can be sliced, sequences, Dask arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.gate.store import open_zarr
from log1pnmf._common.optional import require
from log1pnmf._common.untrusted import BadFileError
from log1pnmf.counts.sparse_rows import MAX_INT32, row_blocks

__all__ = ["DaskChunks", "FileChunks", "GivenChunks", "RowChunks", "SlicedChunks", "open_group"]


class RowChunks(Protocol):
    """Rows of a matrix in chunks, which can be read repeatedly and in any order."""

    shape: tuple[int, int]

    def __len__(self) -> int:
        """Count the chunks."""
        ...

    def read(self, index: int) -> Any:
        """Give a chunk: a SciPy matrix or an array, of all columns."""
        ...

    def only(self, index: int) -> Callable[[], Any]:
        """Give an object that reads only this chunk and can be sent to a worker."""
        ...


class SlicedChunks:
    """Chunks of something that gives rows when sliced: a matrix, an array in a file, a memory map.

    Parameters
    ----------
    matrix : array-like
        With ``shape`` and ``matrix[start:stop]``.
    indptr : ndarray of shape (rows + 1,)
        Of its compressed rows, or of what it costs to hold them.
    limit : int
        Entries in a chunk at most, or one row.
    """

    def __init__(self, matrix: Any, indptr: NDArray[Any], limit: int) -> None:
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        self._matrix, self._ranges = matrix, list(row_blocks(indptr, limit))

    def __len__(self) -> int:
        return len(self._ranges)

    def read(self, index: int) -> Any:
        """Give a chunk."""
        start, stop = self._ranges[index]
        return self._matrix[start:stop]

    def only(self, index: int) -> Callable[[], Any]:
        """Give the chunk itself: it is in memory, or in an array that is open here only."""
        return partial(_itself, self.read(index))


class FileChunks:
    """Chunks of a CSR matrix in an AnnData file, h5ad or zarr, that was checked; workers open it themselves.

    Parameters
    ----------
    name : str
        Of the matrix in the file, as in "X" or "layers/counts".
    limit : int
        Entries in a chunk at most, or one row.
    """

    def __init__(self, path: str, name: str, limit: int) -> None:
        self._path, self._name = os.path.abspath(path), name
        self._group: Any = None
        group = self._opened()
        self.shape = (int(group.attrs["shape"][0]), int(group.attrs["shape"][1]))
        indptr = _checked_indptr(f"{path}: {name}", group, self.shape)
        self._ranges = list(row_blocks(indptr, limit))
        self.largest = max((int(indptr[stop] - indptr[start]) for start, stop in self._ranges), default=0)
        """Entries of the largest chunk."""
        # of each chunk only, so that what is sent to workers is small
        self._indptr = [indptr[start : stop + 1] for start, stop in self._ranges]

    def __len__(self) -> int:
        return len(self._ranges)

    def read(self, index: int) -> sparse.csr_array:
        """Read a chunk."""
        return _rows_of(self._opened(), self._indptr[index], self.shape[1])

    def only(self, index: int) -> Callable[[], sparse.csr_array]:
        """Give what opens the file and reads this chunk."""
        return partial(_read_rows, self._path, self._name, self._indptr[index], self.shape[1])

    def _opened(self) -> Any:
        if self._group is None:
            self._group = open_group(self._path)[self._name]
        return self._group


def _checked_indptr(where: str, group: Any, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Where the rows of a CSR matrix begin; it must go with its shape and its entries."""
    indptr = group["indptr"][:].astype(np.int64)
    lengths = {int(group[part].shape[0]) for part in ("data", "indices")}
    sound = (
        len(indptr) == shape[0] + 1
        and shape[1] >= 0
        and indptr[0] == 0
        and lengths == {int(indptr[-1])}
        and bool((np.diff(indptr) >= 0).all())
    )
    if not sound:
        raise BadFileError(
            f"{where} is not a valid sparse matrix of shape {shape}: its parts contradict each other; the "
            "file is damaged, get another copy of it"
        )
    return indptr


def _rows_of(group: Any, indptr: NDArray[np.int64], n_columns: int) -> sparse.csr_array:
    """Rows of a CSR matrix in a file, from their part of its `indptr`."""
    part = slice(int(indptr[0]), int(indptr[-1]))
    own = indptr - indptr[0]
    if own[-1] <= MAX_INT32:  # SciPy would widen all indices with it
        own = own.astype(np.int32)
    parts = group["data"][part], group["indices"][part], own
    return sparse.csr_array(parts, shape=(len(indptr) - 1, n_columns))


def _read_rows(path: str, name: str, indptr: NDArray[np.int64], n_columns: int) -> sparse.csr_array:
    store = open_group(path)
    try:
        return _rows_of(store[name], indptr, n_columns)
    finally:
        if hasattr(store, "close"):
            store.close()


def _itself(chunk: Any) -> Any:
    return chunk


def _item(chunks: Any, index: int) -> Any:
    return chunks[index]


def open_group(path: str) -> Any:
    """Open an h5ad file or a zarr store, which `log1pnmf._common.gate` has checked before, for reading."""
    if os.path.isdir(path):
        return open_zarr(path)
    h5py = require("h5py", package="anndata", purpose="reading h5ad files")
    return h5py.File(path, "r")


class GivenChunks:
    """Chunks that the user has: ``chunks[i]``, or gone through one after the other.

    Parameters
    ----------
    shape : tuple of int
        Of all rows together.
    """

    def __init__(self, chunks: Any, shape: tuple[int, int]) -> None:
        self.shape = (int(shape[0]), int(shape[1]))
        self._chunks = chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def read(self, index: int) -> Any:
        """Give a chunk."""
        return self.only(index)()

    def only(self, index: int) -> Callable[[], Any]:
        """Give an object that takes this chunk from the chunks; it holds all of them."""
        if not hasattr(self._chunks, "__getitem__"):
            raise TypeError(
                "chunks must be indexed to be used on a cluster, got an object that can only be iterated "
                f"({type(self._chunks).__name__}); give it __getitem__"
            )
        return partial(_item, self._chunks, index)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._chunks, Iterable):
            return iter(self._chunks)
        return (self._chunks[index] for index in range(len(self)))


class DaskChunks:
    """The row chunks of a Dask array.

    Parameters
    ----------
    array : dask.array.Array
        Two-dimensional, of known shape.
    """

    def __init__(self, array: Any) -> None:
        if array.ndim != 2 or any(np.isnan(size) for size in array.shape):
            raise ValueError(
                f"counts must have two dimensions of known size, got a Dask array of shape {array.shape}; "
                "call compute_chunk_sizes() first"
            )
        self.shape = (int(array.shape[0]), int(array.shape[1]))
        self._array = array if array.numblocks[1] == 1 else array.rechunk({1: -1})

    def __len__(self) -> int:
        return int(self._array.numblocks[0])

    def read(self, index: int) -> Any:
        """Compute a chunk, here and now."""
        return self._array.blocks[index].compute(scheduler="synchronous")

    def only(self, index: int) -> Callable[[], Any]:
        """Give what computes this chunk."""
        return partial(self.read, index)

    def delayed(self) -> list[Any]:
        """Give the chunks as tasks that have not run."""
        return [block[0] for block in self._array.to_delayed()]
