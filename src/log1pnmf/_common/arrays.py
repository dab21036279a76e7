"""Arrays in memory, on a device or on disk: the operations in which they differ, in one place.

The solver is written in the operators and methods all kinds share, so that one loop serves every engine and
data of any size. `Rows` is a matrix with one row per sample that need not be in memory: its operators compute
nothing, only sums, means, maxima and `read` do, a block of rows at a time.
"""

from __future__ import annotations

import operator
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from log1pnmf._core import extrapolate


class SupportsArray(Protocol):
    """Anything that NumPy turns into an array: an array, a series, a tensor."""

    def __array__(self) -> Any: ...


Numbers: TypeAlias = Sequence[float] | SupportsArray  # no text, unlike NumPy's ArrayLike

# ---------- matrices with one row per sample that need not be in memory: lazy, and read in blocks

Array: TypeAlias = NDArray[Any]

BLOCK_BYTES = 1 << 23  # of the blocks of reductions; a change of it changes their last bits
IN_MEMORY = 1 << 28  # bytes up to which `Rows.to_array` returns an array in memory; above, one in a file


def _lazily(function: Callable[[Array, Any], Array]) -> Callable[[Any, Any], Any]:
    return lambda rows, other: rows._with(function, other)


class Rows:
    """An (n, K) matrix, given by a function that reads some of its rows.

    >>> rows = Rows.of(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> half = (rows / 2.0).clip(min=1.0)
    >>> half.read(0, 2), half.mean(axis=0)
    (array([[1. , 1. ],
           [1.5, 2. ]]), array([1.25, 1.5 ]))
    """

    __array_ufunc__ = None  # so that ``array * rows`` calls __rmul__ of this class

    def __init__(
        self, shape: tuple[int, int], read: Callable[[int, int], Array], folder: str | None = None
    ) -> None:
        self.shape, self.read, self._folder = shape, read, folder

    @classmethod
    def of(cls, array: Array, folder: str | None = None) -> Rows:
        """Wrap an array."""
        return cls((array.shape[0], array.shape[1]), lambda start, stop: array[start:stop], folder)

    def __len__(self) -> int:
        return self.shape[0]

    def _with(self, function: Callable[[Array, Any], Array], other: Any) -> Rows:
        """Combine with other rows, with an array that has as many rows, or with what broadcasts."""

        def read(start: int, stop: int) -> Array:
            if isinstance(other, Rows):
                return function(self.read(start, stop), other.read(start, stop))
            if np.ndim(other) == 2:
                return function(self.read(start, stop), other[start:stop])
            return function(self.read(start, stop), other)

        return Rows(self.shape, read, self._folder)

    __add__ = __radd__ = _lazily(operator.add)
    __mul__ = __rmul__ = _lazily(operator.mul)
    __sub__, __rsub__ = _lazily(operator.sub), _lazily(lambda a, b: b - a)
    __truediv__, __le__, __ge__ = _lazily(operator.truediv), _lazily(operator.le), _lazily(operator.ge)

    def __abs__(self) -> Rows:
        return Rows(self.shape, lambda start, stop: np.abs(self.read(start, stop)), self._folder)

    def clip(self, *, min: Any = None, max: Any = None) -> Rows:  # noqa: A002
        """Bound the entries, lazily, by numbers or by other rows."""
        rows = self
        if min is not None:
            rows = rows._with(np.maximum, min)
        return rows if max is None else rows._with(np.minimum, max)

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """First row of each block, and the block."""
        step = max(1, BLOCK_BYTES // (8 * max(1, self.shape[1])))
        for start in range(0, len(self), step):
            yield start, self.read(start, min(start + step, len(self)))

    def sum(self, axis: Literal[0] = 0) -> NDArray[np.float64]:
        """Sum of every column."""
        total = np.zeros(self.shape[1])
        for _, block in self.blocks():
            total += block.sum(axis=0, dtype=np.float64)
        return total

    def mean(self, axis: Literal[0] = 0) -> NDArray[np.float64]:
        """Mean of every column."""
        return self.sum(axis) / len(self)

    def max(self, axis: Literal[0] = 0) -> NDArray[np.float64]:
        """Largest entry of every column."""
        return np.max([block.max(axis=0) for _, block in self.blocks()], axis=0)

    def to_array(self) -> NDArray[np.float64]:
        """Compute all rows; large matrices lie in a file that is deleted with the array."""
        size = 8 * self.shape[0] * self.shape[1]
        out: NDArray[np.float64]
        if size <= IN_MEMORY:
            out = np.empty(self.shape)
        else:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                out = np.memmap(file, dtype=np.float64, mode="w+", shape=self.shape)
        for start, block in self.blocks():
            out[start : start + len(block)] = block
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("rows that are not in memory have to be copied; pass copy=None")
        return self.to_array() if dtype is None else self.to_array().astype(dtype, copy=False)


class RowFile:
    """Rows in an unnamed temporary file, deleted when nothing refers to it any more.

    It is read and written, not mapped: what it holds does not count as memory of the process.
    """

    def __init__(self, shape: tuple[int, int], dtype: Any = np.float64, folder: str | None = None) -> None:
        self.shape, self._dtype, self._folder = shape, np.dtype(dtype), folder
        self._row_bytes = self._dtype.itemsize * shape[1]
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(shape[0] * self._row_bytes)
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def write(self, start: int, rows: Array) -> None:
        """Put rows from row `start` on."""
        view = np.ascontiguousarray(rows, dtype=self._dtype).reshape(-1).view(np.uint8).data
        place = start * self._row_bytes
        while view:
            written = os.pwrite(self._descriptor, view, place)
            view, place = view[written:], place + written

    def read(self, start: int, stop: int) -> Array:
        """Return rows `start` to `stop`."""
        out = np.empty((stop - start, self.shape[1]), dtype=self._dtype)
        view, place = out.reshape(-1).view(np.uint8).data, start * self._row_bytes
        while view:
            got = os.preadv(self._descriptor, [view], place)
            if got == 0:
                raise OSError(f"a temporary file ended at byte {place}: is the disk full?")
            view, place = view[got:], place + got
        return out

    def rows(self) -> Rows:
        """Return what was written, as `Rows`."""
        return Rows(self.shape, self.read, self._folder)


# ---------- arrays in memory, on a device or on disk

ROWS_TOGETHER = 64  # rows that `column_sums` adds as one


def on_host(array: Any) -> NDArray[Any]:
    """Return a NumPy array: itself, a copy of a tensor from its device, or all of `Rows`."""
    if isinstance(array, np.ndarray):
        return array
    return array.to_array() if isinstance(array, Rows) else array.detach().cpu().numpy()


def like(array: Any, values: ArrayLike) -> Any:
    """Bring `values` to where `array` lives, in its element type; NumPy arrays stay as they are.

    A single number can stay where it is, so it is not copied to a device.
    """
    values = np.asarray(values)
    if isinstance(array, np.ndarray | Rows):
        return values
    return array.new_tensor(values) if values.ndim else values.item()


def column_sums(array: Any) -> Any:
    """Sum of every column, where the array lives; the same as `array.sum(axis=0)` but for rounding.

    NumPy adds short rows one by one. So many of them are added as one long row first, ten times as quickly.
    """
    if not isinstance(array, np.ndarray) or array.ndim != 2 or not array.flags.c_contiguous:
        return array.sum(axis=0)
    whole = len(array) - len(array) % ROWS_TOGETHER
    long = array[:whole].reshape(-1, ROWS_TOGETHER * array.shape[1]).sum(axis=0)
    return np.vstack([long.reshape(ROWS_TOGETHER, -1), array[whole:]]).sum(axis=0)


def column_max(array: Any) -> NDArray[np.float64]:
    """Largest entry of every column, on the host."""
    return on_host(array.max(axis=0) if isinstance(array, np.ndarray | Rows) else array.amax(dim=0))


def extrapolated(to: Any, since: Any, by: float, least: float) -> Any:
    """Go beyond `to` by a multiple of the way since `since`; every entry keeps at least a part of `to`."""
    if not isinstance(to, np.ndarray):
        return (to + by * (to - since)).clip(min=least * to)
    out = np.empty(to.shape)
    extrapolate(to, since, by, least, out)
    return out
