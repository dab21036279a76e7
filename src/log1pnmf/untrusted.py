"""Files from strangers: what they claim is checked before memory is set aside, and nothing in them is run.

A file may unpack to 1 GiB, or to 200 times its own size where that is more; the same holds for what the
headers of HDF5, zarr and NumPy files declare. Real tables of counts stay far below, archives made to fill a
machine do not.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

__all__ = [
    "BadFileError",
    "check_hdf5",
    "check_npy",
    "check_npz",
    "check_size",
    "check_zarr",
    "market_matrix",
    "npy_header",
    "open_packed",
]

ALWAYS_ALLOWED = 1 << 30
LARGEST_RATIO = 200
TEXT = 100
"""Bytes that a string takes in memory, at least."""
DEEPEST = 32
PIECE = 1 << 20
LEAST_LINE = 4  # of a MatrixMarket file: "1 1\n"


class BadFileError(ValueError):
    """A file that cannot be used: what is wrong, where, and what to do about it."""


def check_size(path: os.PathLike[str] | str, claimed: float, stored: float) -> None:
    """Refuse contents that are out of proportion to the file.

    Parameters
    ----------
    path : str or PathLike
        For the message.
    claimed : int
        Bytes that it takes in memory.
    stored : int
        Bytes of the file.

    Raises
    ------
    BadFileError

    Examples
    --------
    >>> check_size("small.npz", claimed=10**6, stored=100)
    >>> check_size("bomb.npz", claimed=10**12, stored=10**6)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    log1pnmf.untrusted.BadFileError: bomb.npz has 1,000,000 bytes, but says it holds 1,000,000,000,000...
    """
    if claimed > max(ALWAYS_ALLOWED, LARGEST_RATIO * stored):
        raise BadFileError(
            f"{os.fspath(path)} has {stored:,} bytes, but says it holds {claimed:,}: it is damaged or made "
            "to fill the memory; if you trust it, store it sparse or without compression"
        )


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


def check_npz(file: BinaryIO, path: Path) -> None:
    """Check every array of a .npz file without unpacking it, and go back to its beginning."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        check_size(path, sum(member.file_size for member in members), path.stat().st_size)
        for member in members:
            with archive.open(member) as content:
                npy_header(content, member.file_size, f"{path}: {member.filename}")
    file.seek(0)


# ---------------------------------------------------------------- text


class _Limited(io.RawIOBase):
    """What gzip unpacks, up to a limit."""

    def __init__(self, path: Path) -> None:
        self._path, self._packed = path, path.stat().st_size
        self._inner, self._seen = gzip.GzipFile(path), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._inner.read(len(buffer))
        buffer[: len(piece)] = piece
        self._seen += len(piece)
        if self._seen > max(ALWAYS_ALLOWED, LARGEST_RATIO * self._packed):
            raise BadFileError(
                f"{self._path} has {self._packed:,} bytes, but unpacks to more than {self._seen:,}: it is "
                "damaged or made to fill the memory; if you trust it, unpack it yourself and read that"
            )
        return len(piece)

    def close(self) -> None:
        self._inner.close()
        super().close()


def open_packed(path: Path) -> BinaryIO:
    """Open a file for reading bytes, unpacked on the way where its name ends in .gz.

    Parameters
    ----------
    path : Path

    Returns
    -------
    binary file
        Raises `BadFileError` where it unpacks to more than a file of its size may.
    """
    if path.name.endswith(".gz"):
        return io.BufferedReader(_Limited(path), buffer_size=PIECE)
    return open(path, "rb")


class _WithLineEnd(io.RawIOBase):
    """A file and a line end after it: at a last line with more on it than it should, SciPy reads beyond."""

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


def market_matrix(path: Path) -> Any:
    """Read a MatrixMarket file with SciPy, which crashes at some that are damaged.

    Parameters
    ----------
    path : Path
        .mtx or .mtx.gz.

    Returns
    -------
    scipy.sparse.coo_array or ndarray
    """
    from scipy.io import mmread

    _check_market(path)
    with io.BufferedReader(_WithLineEnd(open_packed(path)), buffer_size=PIECE) as file:
        return mmread(file)


def _check_market(path: Path) -> None:
    """Refuse a file with zero bytes, or with less in it than it says, before memory is set aside for that."""
    with open_packed(path) as file:
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
            f"{path} has no line with its numbers of rows, columns and entries; it is not whole"
        )
    numbers = [int(size) for size in sizes]
    listed = b"coordinate" in banner.lower()
    entries, least = (numbers[-1], LEAST_LINE) if listed else (math.prod(numbers[:2]), 2)
    if entries * least > length + least:
        raise BadFileError(
            f"{path} says it has {entries:,} entries, but is too short for them: it is truncated"
        )
    check_size(path, 8 * sum(numbers[:2]), length)


def _without_zero_bytes(path: Path, file: BinaryIO) -> int:
    """Length of the rest; at a zero byte, with which a file ends that was cut off, SciPy's reader crashes."""
    length = 0
    while piece := file.read(PIECE):
        if b"\0" in piece:
            raise BadFileError(f"{path} holds zero bytes: it is damaged; get another copy of it")
        length += len(piece)
    return length


# ---------------------------------------------------------------- HDF5


def check_hdf5(path: Path, nodes: list[Any]) -> None:
    """Check parts of an HDF5 file: all in this file, and not larger than it can be.

    Parameters
    ----------
    path : Path
    nodes : list of h5py groups and datasets
        Looked at with everything below them.
    """
    seen: set[Any] = set()
    claimed = sum(_claimed(path, node, seen, 0) for node in nodes)
    check_size(path, claimed, path.stat().st_size)


def _claimed(path: Path, node: Any, seen: set[Any], depth: int) -> int:
    """Bytes that a node and all below it take in memory, each counted once."""
    import h5py

    if depth > DEEPEST or not _within(path, node):
        raise BadFileError(f"{path}: {node.name} leads outside of the file or in circles; it is not read")
    address = h5py.h5o.get_info(node.id).addr
    if address in seen:
        return 0
    seen.add(address)
    if isinstance(node, h5py.Dataset):
        if node.is_virtual or node.external:
            raise BadFileError(f"{path}: the data of {node.name} are in other files, which are not read")
        shape, piece = node.shape or (), node.chunks or ()
        width = max(TEXT, node.dtype.itemsize) if node.dtype.kind in "OSU" else node.dtype.itemsize
        return int(width) * max(math.prod(map(int, shape)), math.prod(map(int, piece)))
    total = 0
    for name in getattr(node, "keys", tuple)():
        if isinstance(node.get(name, getlink=True), h5py.ExternalLink):
            raise BadFileError(f"{path}: {node.name}/{name} leads to another file, which is not read")
        total += _claimed(path, node[name], seen, depth + 1)
    return total


def _within(path: Path, node: Any) -> bool:
    return os.path.samefile(node.file.filename, path)


# ---------------------------------------------------------------- zarr


def check_zarr(folder: Path) -> None:
    """Check a zarr folder: no codec that runs code, and no arrays that are larger than it can be.

    Parameters
    ----------
    folder : Path
    """
    files = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    stored = sum(file.stat().st_size for file in files)
    claimed = 0
    for file in files:
        if file.name not in (".zarray", ".zmetadata", "zarr.json"):
            continue
        document = json.loads(file.read_bytes())
        size = sum(_array_bytes(part) for part in _mappings(folder, document))
        check_size(folder, size, stored)  # a description of all arrays says again what each says itself
        if file.name == ".zarray" or document.get("node_type") == "array":
            claimed += size
    check_size(folder, claimed, stored)


def _mappings(folder: Path, value: Any) -> Iterator[dict[str, Any]]:
    """All objects inside of a JSON value; an unsafe codec among them is refused."""
    if isinstance(value, dict):
        named = [value.get(key) for key in ("id", "name")]
        if any(isinstance(one, str) and "pickle" in one.lower() for one in named):
            raise BadFileError(f"{folder} is packed with pickle, which could run code; it is never loaded")
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _mappings(folder, one)


def _array_bytes(description: dict[str, Any]) -> int:
    shape = description.get("shape")
    kind = description.get("dtype", description.get("data_type"))
    if not isinstance(shape, list) or kind is None:
        return 0
    grid = description.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape", [])
    pieces = description.get("chunks", grid)
    try:
        width = TEXT if np.dtype(kind).kind in "OSU" else np.dtype(kind).itemsize
    except TypeError:  # zarr's own names of strings
        width = TEXT
    return width * max(math.prod(map(int, shape)), math.prod(map(int, pieces)))
