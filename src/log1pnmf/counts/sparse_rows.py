"""Compressed rows of a matrix, and how to walk through them in pieces.

Everything that looks at every stored value does so in pieces of about a million, so that no pass over a
large matrix needs memory of its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from log1pnmf._core import transpose

CHUNK = 1 << 20
MAX_INT32 = int(np.iinfo(np.int32).max)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Compressed rows of a matrix: column indices sorted, no duplicates, no stored zeros.

    The arrays are read-only views.

    Parameters
    ----------
    shape : tuple of int
        Rows and columns.
    indptr : ndarray of int64, shape (rows + 1,)
        Row i has the entries ``indptr[i]`` to ``indptr[i + 1]``.
    indices : ndarray of int32, shape (nnz,)
        Column of each entry.
    values : ndarray of float32 or float64, shape (nnz,)
        float32 when that holds every value exactly.
    """

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    def __post_init__(self) -> None:
        for name in ("indptr", "indices", "values"):
            view = np.asarray(getattr(self, name)).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @classmethod
    def from_scipy(cls, matrix: sparse.csr_array) -> SparseRows:
        """Take the rows of a CSR array of counts; its indices are sorted in place."""
        matrix.sort_indices()
        return cls(matrix.shape, matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data)

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return int(self.indptr[-1])

    def row_sums(self) -> np.ndarray:
        """Sum of every row, added up in float64."""
        sums = np.zeros(self.shape[0])
        for start, stop in row_blocks(self.indptr, CHUNK):
            first, last = self.indptr[start], self.indptr[stop]
            filled = start + np.flatnonzero(np.diff(self.indptr[start : stop + 1]))
            if filled.size:
                values = self.values[first:last].astype(np.float64)
                sums[filled] = np.add.reduceat(values, self.indptr[filled] - first)
        return sums

    def transpose(self) -> SparseRows:
        """Compressed columns, as the rows of the transpose."""
        indptr, indices = np.empty(self.shape[1] + 1, dtype=np.int64), np.empty(self.nnz, dtype=np.int32)
        own, columns, given = map(np.ascontiguousarray, (self.indptr, self.indices, self.values))
        values = np.empty_like(given)
        transpose(own, columns, given, self.shape[1], indptr, indices, values)
        return SparseRows(self.shape[::-1], indptr, indices, values)

    def to_scipy(self, start: int = 0, stop: int | None = None) -> sparse.csr_array:
        """Return rows start to stop as a SciPy CSR array that shares the (read-only) memory."""
        stop = self.shape[0] if stop is None else stop
        first, last = self.indptr[start], self.indptr[stop]
        indptr = self.indptr[start : stop + 1] - first
        if last - first <= MAX_INT32:
            indptr = indptr.astype(np.int32)
        parts = (self.values[first:last], self.indices[first:last], indptr)
        return sparse.csr_array(parts, shape=(stop - start, self.shape[1]))

    def to_dense(self, block: slice) -> np.ndarray:
        """Give the rows of a block with their zeros, in float64."""
        return self.to_scipy(block.start, block.stop).toarray().astype(np.float64)

    def entry_blocks(self, limit: int) -> Iterator[tuple[np.ndarray, slice]]:
        """Give the row of each entry, and where the entries lie, at most `limit` at a time."""
        for start in range(0, self.nnz, limit):
            stop = min(start + limit, self.nnz)
            yield np.searchsorted(self.indptr, np.arange(start, stop), side="right") - 1, slice(start, stop)


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which entries of compressed rows there are, without values.

    Parameters
    ----------
    shape, indptr, indices
        As in `SparseRows`.
    """

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: np.ndarray

    @classmethod
    def empty(cls, shape: tuple[int, int]) -> Pattern:
        """Make a pattern without entries."""
        return cls(shape, np.zeros(shape[0] + 1, dtype=np.int64), np.zeros(0, dtype=np.int32))

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return int(self.indptr[-1])

    def transpose(self) -> Pattern:
        """Exchange rows and columns."""
        rows = SparseRows(self.shape, self.indptr, self.indices, np.ones(self.nnz, dtype=np.int8)).transpose()
        return Pattern(rows.shape, rows.indptr, rows.indices.astype(np.int32, copy=False))

    def to_dense(self, block: slice) -> np.ndarray:
        """Say for every entry of some rows whether it is there."""
        there = np.zeros((block.stop - block.start, self.shape[1]), dtype=bool)
        for i in range(block.start, block.stop):
            there[i - block.start, self.indices[self.indptr[i] : self.indptr[i + 1]]] = True
        return there


def dense_blocks(shape: tuple[int, int], limit: float) -> Iterator[slice]:
    """Ranges of rows with at most `limit` entries, zeros included (or one row, where that has more)."""
    n_rows, n_columns = shape
    size = max(1, int(limit / max(n_columns, 1)))
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Cut an array into views of at most `CHUNK` elements."""
    for start in range(0, array.size, CHUNK):
        yield array[start : start + CHUNK]


def row_blocks(indptr: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of whole rows with at most `limit` entries each (or one row, where that alone has more)."""
    start, n_rows = 0, indptr.size - 1
    while start < n_rows:
        fits = int(np.searchsorted(indptr, int(indptr[start]) + limit, side="right")) - 1
        stop = max(start + 1, fits)
        yield start, stop
        start = stop


def checksum_of(arrays: Iterable[np.ndarray]) -> str:
    """Tell arrays from others by their bytes and types."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(array.dtype.str.encode())
        for piece in pieces(np.ascontiguousarray(array).reshape(-1)):
            digest.update(piece.data)
    return digest.hexdigest()
