"""Untrusted files: the memory they need is counted while they are read, and nothing in them is executed.

A file may take 1 GiB of memory, or 200 bytes for each of its own bytes where that is more. Real tables of
counts stay far below, files made to fill a machine do not. Every reader has a `Budget` and charges it before
it keeps what it reads. `log1pnmf._common.gate` is the way into HDF5 and zarr.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import stat
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

__all__ = [
    "TEXT",
    "BadFileError",
    "Budget",
    "check_npy",
    "check_npz",
    "check_regular",
    "market_matrix",
    "npy_header",
    "open_packed",
    "parse_json",
    "read_number",
]

ALWAYS_ALLOWED = 1 << 30
LARGEST_RATIO = 200
TEXT = 100
"""Bytes that a string takes in memory, at least."""
DEEPEST = 64
PIECE = 1 << 20
LEAST_LINE = 4  # of a MatrixMarket file: "1 1\n"
ENTRY = 24
"""Bytes of an entry of a MatrixMarket file: two indices and a value."""


class BadFileError(ValueError):
    """A file that cannot be used: what is wrong, where, and what to do about it."""


def check_regular(path: os.PathLike[str] | str) -> None:
    """Refuse pipes, sockets and devices, which can block or never end; folders pass.

    Raises
    ------
    FileNotFoundError
    BadFileError
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise BadFileError(
            f"{os.fspath(path)} is a pipe, a socket or a device, not a file; save the data to a file first"
        )


def stored_bytes(path: os.PathLike[str] | str) -> int:
    """Count the bytes of a file, or of all files in a folder."""
    if not os.path.isdir(path):
        return os.stat(path).st_size
    return sum(
        os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(path) for name in names
    )


class Budget:
    """The memory that one file may take, and how much of it is taken.

    Parameters
    ----------
    path : str or PathLike
        File or folder.
    max_memory : float, optional
        Bytes that are allowed even where the file is small. It says that the file is trusted.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     budget = Budget(file.name)
    >>> budget.charge(10**6)
    >>> budget.charge(10**12)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    log1pnmf._common.untrusted.BadFileError: ... has 0 bytes, but would take more than 1,073,741,824 bytes...
    """

    def __init__(self, path: os.PathLike[str] | str, max_memory: float | None = None) -> None:
        self.path, self.stored = os.fspath(path), stored_bytes(path)
        self.trusted = max_memory is not None
        self.limit = int(max(ALWAYS_ALLOWED, LARGEST_RATIO * self.stored, max_memory or 0))
        self.taken = 0

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return self.limit - self.taken

    def check(self, size: float) -> None:
        """Refuse what does not fit in what is left, without keeping account of it."""
        if size > self.left:
            raise BadFileError(
                f"{self.path} has {self.stored:,} bytes, but would take more than {self.limit:,} bytes "
                "of memory: it is damaged or malicious; if you trust it, allow more with max_memory "
                "(--max-memory 8GB)"
            )

    def charge(self, size: float) -> None:
        """Take memory, or refuse the file."""
        self.check(size)
        self.taken += int(size)

    def text(self, values: Any) -> np.ndarray:
        """Make an array of text, which has room for the longest one in every place."""
        longest = max(map(len, values), default=0)
        self.charge(4 * longest * len(values))
        return np.array(values, dtype=f"U{max(longest, 1)}")


def read_number(cell: str) -> float:
    """Read a number as tables have it; Python's own way of writing 1_000 is text.

    Examples
    --------
    >>> read_number("1e3")
    1000.0
    """
    if "_" in cell:
        raise ValueError(f"{cell!r} is not a number")
    return float(cell)


def parse_json(content: str | bytes, source: os.PathLike[str] | str) -> Any:
    """Read JSON; what is nested too deeply for Python is refused.

    Parameters
    ----------
    source : str or PathLike
        For the message.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise BadFileError(_nested(source)) from None
    except ValueError as error:
        raise BadFileError(
            f"{os.fspath(source)} is damaged: no valid JSON ({error}); get another copy of it"
        ) from error
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return value
    raise BadFileError(_nested(source))


def _nested(source: os.PathLike[str] | str) -> str:
    return f"{os.fspath(source)} is nested more than {DEEPEST} levels deep: it is damaged; get another copy"


# ---------------------------------------------------------------- NumPy


def npy_header(file: Any, size: int, name: str) -> None:
    """Refuse an array that is not exactly as long as its header says, or holds Python objects.

    Parameters
    ----------
    file : binary file
        At the beginning of an array; afterwards at its data.
    size : int
        Bytes from there to the end.
    name : str
        For the message.
    """
    began = file.tell()
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise BadFileError(f"{name} has version {version} of NumPy's format, which is not known")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    needed = dtype.itemsize * math.prod(int(length) for length in shape)  # Python's numbers do not overflow
    if dtype.hasobject:
        raise BadFileError(f"{name} holds Python objects, which are never loaded: they could run code")
    if min(shape, default=0) < 0 or needed != size - (file.tell() - began):
        raise BadFileError(f"{name} is not what its header says: {shape} of {dtype}; it is damaged")


def check_npy(file: BinaryIO, path: Path) -> None:
    """Check a .npy file, and go back to its beginning."""
    npy_header(file, path.stat().st_size, str(path))
    file.seek(0)


def check_npz(file: BinaryIO, path: Path, budget: Budget) -> None:
    """Check every array of a .npz file without unpacking it, and go back to its beginning."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        budget.charge(sum(member.file_size for member in members))
        for member in members:
            # Python unpacks a piece of any other kind whole, however large it gets.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise BadFileError(
                    f"{path}: {member.filename} is not packed as NumPy does; write it with savez_compressed"
                )
            with archive.open(member) as content:
                npy_header(content, member.file_size, f"{path}: {member.filename}")
    file.seek(0)


# ---------------------------------------------------------------- text


class _Limited(io.RawIOBase):
    """What gzip unpacks, up to a limit."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._inner, self._seen = gzip.GzipFile(path), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._inner.read(len(buffer))
        buffer[: len(piece)] = piece
        self._seen += len(piece)
        if self._seen > self._limit:
            raise BadFileError(
                f"{self._path} unpacks to more than {self._limit:,} bytes: it is damaged or "
                "malicious; if you trust it, unpack it yourself and read the result"
            )
        return len(piece)

    def close(self) -> None:
        self._inner.close()
        super().close()


def open_packed(path: Path, budget: Budget) -> BinaryIO:
    """Open a file for reading bytes, unpacked on the way where its name ends in .gz.

    Returns
    -------
    binary file
        Raises `BadFileError` where it unpacks to more than a file of its size may.
    """
    check_regular(path)
    if path.name.endswith(".gz"):
        return io.BufferedReader(_Limited(path, budget.limit), buffer_size=PIECE)
    return open(path, "rb")


class _WithLineEnd(io.RawIOBase):
    """A file with a line end added: SciPy reads beyond the end of a last line that is too long."""

    def __init__(self, inner: BinaryIO) -> None:
        self._inner, self._ended = inner, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._inner.read(len(buffer))
        if not piece and not self._ended:
            piece, self._ended = b"\n", True
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._inner.close()
        super().close()


def market_matrix(path: Path, budget: Budget) -> Any:
    """Read a MatrixMarket file with SciPy, after checks for the damage at which SciPy crashes.

    Parameters
    ----------
    path : Path
        .mtx or .mtx.gz.
    """
    from scipy.io import mmread

    _check_market(path, budget)
    with io.BufferedReader(_WithLineEnd(open_packed(path, budget)), buffer_size=PIECE) as file:
        return mmread(file)


def _check_market(path: Path, budget: Budget) -> None:
    """Refuse a file with zero bytes, or with less in it than it says, before memory is set aside for that."""
    with open_packed(path, budget) as file:
        banner = file.readline(1000)
        if not banner.lower().startswith(b"%%matrixmarket matrix"):
            raise BadFileError(
                f"{path} does not begin with '%%MatrixMarket matrix'; is it another kind of file?"
            )
        line = banner
        while line.startswith(b"%") or (line and not line.strip()):
            line = file.readline(100_000)
        length = _without_zero_bytes(path, file)
    sizes = line.split()
    if not sizes or not all(size.isdigit() for size in sizes):
        raise BadFileError(
            f"{path} has no line with its numbers of rows, columns and entries; it is incomplete"
        )
    numbers = [int(size) for size in sizes]
    listed = b"coordinate" in banner.lower()
    entries, least = (numbers[-1], LEAST_LINE) if listed else (math.prod(numbers[:2]), 2)
    if entries * least > length + least:
        raise BadFileError(
            f"{path} says it has {entries:,} entries, but is too short for them: it is truncated"
        )
    both_halves = 1 if b"general" in banner.lower() else 2
    budget.charge(entries * (ENTRY if listed else 8) * both_halves)


def _without_zero_bytes(path: Path, file: BinaryIO) -> int:
    """Length of the rest. Refuses zero bytes (files that were cut off end in them): SciPy crashes there."""
    length = 0
    while piece := file.read(PIECE):
        if b"\0" in piece:
            raise BadFileError(f"{path} holds zero bytes: it is damaged; get another copy of it")
        length += len(piece)
    return length
