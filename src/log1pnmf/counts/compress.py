"""Compressed rows of a matrix: every value and index is checked once, bad ones are refused.

Whatever checks every stored value does so in pieces of about a million, so that no pass over a
large matrix needs memory of its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from log1pnmf._common.checks import plural
from log1pnmf._core import take_canonical, transpose

# ---------- compressed rows of a matrix, and how to walk through them in pieces

CHUNK = 1 << 20
MAX_INT32 = int(np.iinfo(np.int32).max)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Compressed rows of a matrix: column indices sorted, no duplicates, no stored zeros.

    The arrays are read-only views.
    """

    shape: tuple[int, int]  # rows and columns
    indptr: np.ndarray  # (rows + 1,): row i has the entries ``indptr[i]`` to ``indptr[i + 1]``
    indices: np.ndarray  # (nnz,): column of each entry
    values: np.ndarray  # (nnz,): float32 when that holds every value exactly

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
        return SparseRows(
            self.shape[::-1], *_transposed(self.shape[1], self.indptr, self.indices, self.values)
        )

    def to_scipy(self, start: int = 0, stop: int | None = None) -> sparse.csr_array:
        """Return rows start to stop as a SciPy CSR array that shares the (read-only) memory."""
        stop = self.shape[0] if stop is None else stop
        entries = slice(self.indptr[start], self.indptr[stop])
        parts = (self.values[entries], self.indices[entries], narrow_indptr(self.indptr[start : stop + 1]))
        return sparse.csr_array(parts, shape=(stop - start, self.shape[1]))

    def to_dense(self, block: slice) -> np.ndarray:
        """Return the rows of a block with their zeros, in float64."""
        return self.to_scipy(block.start, block.stop).toarray().astype(np.float64)

    def entry_blocks(self, limit: int) -> Iterator[tuple[np.ndarray, slice]]:
        """Return the row of each entry, and where the entries lie, at most `limit` at a time."""
        for start in range(0, self.nnz, limit):
            stop = min(start + limit, self.nnz)
            yield np.searchsorted(self.indptr, np.arange(start, stop), side="right") - 1, slice(start, stop)


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which entries of compressed rows there are, without values."""

    # as in `SparseRows`
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

    @cached_property
    def transposed(self) -> Pattern:
        """The same entries with rows and columns exchanged."""
        ones = np.ones(len(self.indices), dtype=np.int8)
        indptr, indices, _ = _transposed(self.shape[1], self.indptr, self.indices, ones)
        return Pattern(self.shape[::-1], indptr, indices)

    def to_dense(self, block: slice) -> np.ndarray:
        """Describe for every entry of some rows whether it is there."""
        there = np.zeros((block.stop - block.start, self.shape[1]), dtype=bool)
        for i in range(block.start, block.stop):
            there[i - block.start, self.indices[self.indptr[i] : self.indptr[i + 1]]] = True
        return there


def _transposed(n_columns: int, *rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the arrays of compressed rows as those of compressed columns."""
    own, columns, given = map(np.ascontiguousarray, rows)
    indptr, indices = np.empty(n_columns + 1, dtype=np.int64), np.empty(len(columns), dtype=np.int32)
    values = np.empty_like(given)
    transpose(own, columns, given, n_columns, indptr, indices, values)
    return indptr, indices, values


def narrow_indptr(indptr: np.ndarray) -> np.ndarray:
    """Return where rows begin, counted from the first; as int32 if possible, or SciPy widens all indices."""
    own = indptr - indptr[0]
    return own.astype(np.int32) if own[-1] <= MAX_INT32 else own


def is_indptr(indptr: np.ndarray, n_rows: int) -> bool:
    """Return whether rows can begin there."""
    return indptr.shape == (n_rows + 1,) and indptr[0] == 0 and bool((np.diff(indptr) >= 0).all())


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
    """Return a text that differs between arrays of other bytes or types."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(array.dtype.str.encode())
        for piece in pieces(np.ascontiguousarray(array).reshape(-1)):
            digest.update(piece.data)
    return digest.hexdigest()


# ---------- from a numeric matrix to SparseRows

# types that the compiled core takes
INDICES = tuple(map(np.dtype, ("i4", "i8")))
VALUES = tuple(map(np.dtype, ("f4", "f8", "i4", "i8", "u1", "u2", "u4")))

SMALLEST, LARGEST = 1e-50, 1e100  # beyond, squares and products would leave the range of a double
BEYOND = "which the arithmetic cannot hold; pass raw counts"
REFUSALS = {  # the worst first
    "nan": "counts contains NaN in {entries} ({place}); drop or fill missing entries first",
    "infinite": "counts contains infinity (inf) in {entries} ({place}); pass finite raw counts",
    "huge": f"counts has {{entries}} above {LARGEST:.0e} ({{place}}: {{value}}), {BEYOND}",
    "tiny": f"counts has {{entries}} above 0 but below {SMALLEST:.0e} ({{place}}: {{value}}), {BEYOND}",
    "negative": "Negative values in data: counts has {negative} ({place}); "
    "pass raw counts, not log-transformed values",
}


def compress_dense(matrix: np.ndarray) -> tuple[SparseRows, str | None]:
    """Return compressed rows of a 2-d array, and the warning about values that are not whole numbers."""
    n_rows, n_columns = matrix.shape
    scan = ValueScan(lambda position: divmod(position, n_columns))
    indptr = np.zeros(n_rows + 1, dtype=np.int64)
    for block in dense_blocks(matrix.shape, CHUNK):
        scan.add(matrix[block].ravel())
        indptr[block.start + 1 : block.stop + 1] = np.count_nonzero(matrix[block], axis=1)
    scan.raise_errors()
    np.cumsum(indptr, out=indptr)
    indices = np.empty(indptr[-1], dtype=np.int32)
    values = np.empty(indptr[-1], dtype=scan.value_dtype)
    for block in dense_blocks(matrix.shape, CHUNK):
        filled = np.nonzero(matrix[block])
        part = slice(indptr[block.start], indptr[block.stop])
        indices[part] = filled[1]
        values[part] = matrix[block][filled]
    return SparseRows((n_rows, n_columns), indptr, indices, values), scan.fractional


def canonical_rows(matrix: Any, *, whole: bool) -> SparseRows | None:
    """Return a CSR matrix after one check of all entries; None where `compress_sparse` is needed.

    That is where something has to be corrected or refused, or where float32 does not hold a value.
    """
    indptr = np.ascontiguousarray(matrix.indptr, dtype=np.int64)
    indices, values = np.ascontiguousarray(matrix.indices), np.ascontiguousarray(matrix.data)
    known = indices.dtype in INDICES and values.dtype in VALUES
    if not known or len(indptr) != matrix.shape[0] + 1 or not len(indices) == len(values) == indptr[-1]:
        return None
    columns = None if indices.dtype == np.int32 else np.empty(len(indices), dtype=np.int32)
    counts = None if values.dtype == np.float32 else np.empty(len(values), dtype=np.float32)
    if not take_canonical(indptr, indices, values, matrix.shape[1], whole, columns, counts):
        return None
    columns, counts = indices if columns is None else columns, values if counts is None else counts
    return SparseRows(tuple(matrix.shape), indptr, columns, counts)


def compress_sparse(matrix: Any, *, transposed: bool = False) -> tuple[SparseRows, str | None]:
    """Bring a CSR matrix into canonical form, and warn about values that are not whole numbers."""
    indptr, indices, values = _canonical(matrix)

    def locate(position: int) -> tuple[int, int]:
        row = int(np.searchsorted(indptr, position, side="right")) - 1
        place = (row, int(indices[position]))
        return place[::-1] if transposed else place

    scan = ValueScan(locate)
    for piece in pieces(values):
        scan.add(piece)
    scan.raise_errors()
    # a new name: `locate`, which finds entries for messages, needs the arrays that were scanned
    kept = (indptr, indices, values)
    if scan.n_zero:
        filled = sparse.csr_array((values.astype(scan.value_dtype), indices, indptr), matrix.shape, copy=True)
        filled.eliminate_zeros()
        kept = (filled.indptr, filled.indices, filled.data)
    types: tuple[Any, ...] = (np.int64, np.int32, scan.value_dtype)
    arrays = (np.ascontiguousarray(array, dtype=kind) for array, kind in zip(kept, types, strict=True))
    return SparseRows(tuple(matrix.shape), *arrays), scan.fractional


def _canonical(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arrays of a CSR matrix with sorted, unique column indices: its own where possible."""
    indptr, indices, values = _checked_structure(matrix)
    if _strictly_increasing(indptr, indices):
        return indptr, indices, values
    ordered = sparse.csr_array((values.astype(np.float64), indices, indptr), shape=matrix.shape, copy=True)
    ordered.sum_duplicates()
    return ordered.indptr, ordered.indices, ordered.data


def _checked_structure(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the arrays of a CSR matrix, cut to the entries in use, after a check of every index."""
    indptr, nnz = np.asarray(matrix.indptr), int(matrix.indptr[-1])
    indices, values = np.asarray(matrix.indices)[:nnz], np.asarray(matrix.data)[:nnz]
    n_rows, n_columns = matrix.shape
    sound = is_indptr(indptr, n_rows) and indices.shape == values.shape == (nnz,)
    if not sound or (nnz and not 0 <= indices.min() <= indices.max() < n_columns):
        raise ValueError(
            f"counts is not a valid sparse matrix of shape {matrix.shape}: its index arrays contradict "
            "each other or point outside; build it again from rows, columns and values"
        )
    return indptr, indices, values


def _strictly_increasing(indptr: np.ndarray, indices: np.ndarray) -> bool:
    """Whether column indices rise strictly within every row, so that they fall only where a row begins."""
    for start in range(1, indices.size, CHUNK):
        stop = min(start + CHUNK, indices.size)
        falls = start + np.flatnonzero(indices[start:stop] <= indices[start - 1 : stop - 1])
        if not np.array_equal(indptr[np.searchsorted(indptr, falls)], falls):
            return False
    return True


class ValueScan:
    """Statistics of a stream of values: how many there are of each bad kind, and where the first one is."""

    def __init__(self, locate: Callable[[int], tuple[int, int]]) -> None:
        self._locate = locate
        self._seen = 0
        self._found: dict[str, tuple[int, int, Any]] = {}
        self._exact_in_float32 = True
        self.n_zero = 0

    @property
    def value_dtype(self) -> type[np.floating]:
        """The smallest of float32 and float64 that holds every value exactly."""
        return np.float32 if self._exact_in_float32 else np.float64

    @property
    def fractional(self) -> str | None:
        """The warning about values that are not whole numbers, if there are any."""
        if "fractional" not in self._found:
            return None
        count, position, value = self._found["fractional"]
        return (
            f"counts has {plural(count, 'non-integer value', 'non-integer values')} "
            f"({self._place(position)}: {value}); "
            "is it log-transformed or normalised data? The model is made for raw counts: pass those"
        )

    def add(self, values: np.ndarray) -> None:
        """Add the next values of the stream."""
        kind = values.dtype.kind
        if kind == "f":
            if values.dtype.itemsize > 8:
                values = values.astype(np.float64)
            self._note("nan", np.isnan(values), values)
            self._note("infinite", np.isinf(values), values)
            self._note("fractional", values != np.rint(values), values)
            if values.dtype.itemsize == 8:
                self._note("huge", values > LARGEST, values)
                self._note("tiny", (values > 0.0) & (values < SMALLEST), values)
        if kind in "if":
            self._note("negative", values < 0, values)
        if self._exact_in_float32 and values.dtype.itemsize > 2 and values.dtype != np.float32:
            with np.errstate(over="ignore"):
                self._exact_in_float32 = bool((values.astype(np.float32) == values.astype(np.float64)).all())
        self.n_zero += values.size - int(np.count_nonzero(values))
        self._seen += values.size

    def raise_errors(self) -> None:
        """Raise the error about the worst kind that was found."""
        for kind, message in REFUSALS.items():
            if kind in self._found:
                count, position, value = self._found[kind]
                entries = plural(count, "entry", "entries")
                negative = plural(count, "negative entry", "negative entries")
                place = self._place(position)
                raise ValueError(message.format(entries=entries, negative=negative, place=place, value=value))

    def _note(self, kind: str, mask: np.ndarray, values: np.ndarray) -> None:
        count = int(np.count_nonzero(mask))
        if count:
            first = int(np.argmax(mask))
            before, position, value = self._found.get(kind, (0, self._seen + first, values[first]))
            self._found[kind] = (before + count, position, value)

    def _place(self, position: int) -> str:
        row, column = self._locate(position)
        return f"first at row {row}, column {column}"
