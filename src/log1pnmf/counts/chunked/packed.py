"""Chunks that were checked and sorted, packed into a temporary file: later passes only read them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.rows import RowFile
from log1pnmf.counts.counts import Counts, SparseRows

__all__ = ["PackedChunks", "is_in_memory"]

MOST_BYTES = 24
"""That an entry takes, by rows and by columns; 6 where rows and columns of a chunk are below 65,536 and its
counts below 256."""
LIKELY_BYTES = 10
"""With counts below 65,536."""
MOST_OF_DISK = 0.5
"""Part of the free space of a disk that the file may take."""
BLOCK = 1 << 17
"""Entries that are read and widened at a time, in the processor's cache."""


class _Part(NamedTuple):
    """Where an array lies in the file, and its types there and in memory."""

    begin: int
    size: int
    packed: Any
    wide: Any


class PackedChunks:
    """Chunks of counts, by rows and by columns, in an unnamed temporary file.

    Parameters
    ----------
    shape : tuple of int
        Of all chunks together.
    nnz, n_chunks : int
        Entries of all chunks, and how many chunks there are.
    folder : str, optional
        Where the file is; the system's place for temporary files by default.
    """

    def __init__(self, shape: tuple[int, int], nnz: int, n_chunks: int, folder: str | None) -> None:
        pointers = 8 * (shape[0] + n_chunks * (shape[1] + 2))
        self._file: RowFile | None = RowFile((MOST_BYTES * nnz + pointers, 1), np.uint8, folder)
        self._n_chunks, self._end = n_chunks, 0
        self._chunks: list[tuple[tuple[int, int], list[_Part]]] = []
        self._lock, self._rooms = threading.Lock(), list[NDArray[np.uint8]]()

    @classmethod
    def where_it_fits(
        cls, shape: tuple[int, int], nnz: int, n_chunks: int, folder: str | None
    ) -> PackedChunks | None:
        """Give a file without chunks; None where the disk is too small, or is in fact memory."""
        place = tempfile.gettempdir() if folder is None else folder
        if folder is None and is_in_memory(place):
            return None
        try:
            if LIKELY_BYTES * nnz > MOST_OF_DISK * shutil.disk_usage(place).free:
                return None
            return cls(shape, nnz, n_chunks, folder)
        except OSError:  # some disks allow no file of that size
            return None

    @property
    def complete(self) -> bool:
        """Whether all chunks are there."""
        return self._file is not None and len(self._chunks) == self._n_chunks

    def add(self, index: int, counts: Counts) -> None:
        """Put the next chunk into the file; nothing happens where it is there, or the disk is full."""
        with self._lock:
            if self._file is None or index != len(self._chunks):
                return
            sides = counts.by_row, counts.by_column
            arrays = [one for side in sides for one in (side.indptr, side.indices, side.values)]
            try:
                parts = [self._append(array) for array in arrays]
            except OSError:
                self._file = None
                return
            self._chunks.append((counts.shape, parts))

    def _append(self, array: NDArray[Any]) -> _Part:
        assert self._file is not None
        narrow = _narrowed(array)
        self._file.write(self._end, narrow.view(np.uint8)[:, None])
        part = _Part(self._end, len(array), narrow.dtype, array.dtype)
        self._end += narrow.nbytes
        return part

    def read(self, index: int) -> Counts:
        """Give a chunk."""
        shape, parts = self._chunks[index]
        arrays = [self._read(part) for part in parts]
        return Counts(SparseRows(shape, *arrays[:3]), SparseRows(shape[::-1], *arrays[3:]))

    def _read(self, part: _Part) -> NDArray[Any]:
        assert self._file is not None
        out = self._room(part.size * part.wide.itemsize).view(part.wide)
        for first in range(0, part.size, BLOCK):
            last = min(first + BLOCK, part.size)
            ends = (part.begin + end * part.packed.itemsize for end in (first, last))
            out[first:last] = self._file.read(*ends).reshape(-1).view(part.packed)
        return out

    def _room(self, size: int) -> NDArray[np.uint8]:
        """Give so many bytes: those of an earlier chunk that nobody has any more, or new ones.

        New ones would have to be cleared by the system every time.
        """
        with self._lock:
            rooms = self._rooms
            free = [number for number in range(len(rooms)) if _references(rooms, number) == ALONE]
            for number in free:
                if size <= rooms[number].nbytes <= 2 * size:
                    return rooms[number][:size]
            self._rooms = [one for number, one in enumerate(rooms) if number not in free]
            self._rooms.append(np.empty(size, np.uint8))
            return self._rooms[-1][:size]


def _references(arrays: list[NDArray[Any]], number: int) -> int:
    """Count who has one of the arrays; every view of an array has it as well."""
    return sys.getrefcount(arrays[number])


ALONE = _references([np.empty(1)], 0)
"""What `_references` counts where only the list has the array; Python's versions differ."""


def _narrowed(array: NDArray[Any]) -> NDArray[Any]:
    """Give an array in the narrowest type that holds each of its numbers."""
    for narrow in (np.uint8, np.uint16):
        if np.max(array, initial=0) <= np.iinfo(narrow).max:
            packed = array.astype(narrow)
            if np.array_equal(packed, array):
                return packed
    return np.ascontiguousarray(array)


def is_in_memory(folder: str, mounts: str = "/proc/self/mounts") -> bool:
    """Whether the files of a folder take memory and not disk, as far as the system says.

    Parameters
    ----------
    mounts : str
        The list of what is mounted where; without it the answer is no.
    """
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    place, kind, longest = os.path.realpath(folder), "", -1
    for line in lines:
        _, at, this, *_ = [*line.split(" "), "", "", ""]
        at = at.replace("\\040", " ")
        inside = place == at or place.startswith(at.rstrip("/") + "/")
        if inside and len(at) >= longest:  # of two at the same place the later one hides the other
            kind, longest = this, len(at)
    return kind in ("tmpfs", "ramfs")
