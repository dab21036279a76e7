"""`open_store`, the only way to open HDF5 and zarr files that are not trusted.

Untrusted files: the memory they need is counted while they are read, and nothing in them is executed.

A file may take 1 GiB of memory, or 200 bytes for each of its own bytes where that is more. Real tables of
counts stay far below, files made to fill a machine do not. Every reader has a `Budget` and charges it before
it keeps what it reads. `log1pnmf._common.safe_files` is the way into HDF5 and zarr.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import mmap
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from math import ceil, prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from .checks import require

# ---------- untrusted files

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
    """Refuse pipes, sockets and devices, which can block or never end; folders pass."""
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

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     budget = Budget(file.name)
    >>> budget.charge(10**6)
    >>> budget.charge(10**12)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    log1pnmf._common.safe_files.BadFileError: ... has 0 bytes, but would take more than 1,073,741,824 bytes...
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

    >>> read_number("1e3")
    1000.0
    """
    if "_" in cell:
        raise ValueError(f"{cell!r} is not a number")
    return float(cell)


def parse_json(content: str | bytes, source: os.PathLike[str] | str) -> Any:
    """Read JSON; what is nested too deeply for Python is refused."""
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
    """Refuse an array that is not exactly as long as its header says, or holds Python objects."""
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
    """Open a file for reading bytes, unpacked on the way where its name ends in .gz."""
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
    """Read a MatrixMarket file with SciPy, after checks for the damage at which SciPy crashes."""
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


# ---------- names of columns that a file gives: they must stay inside of the group that gives them

NAMING = ("column-order", "_index", "categories")
"""Attributes of AnnData that name other parts of the file."""


def texts(value: Any) -> list[str]:
    """Names in an attribute: one, or several."""
    listed = [value] if isinstance(value, str | bytes) else list(value)
    return [one.decode() if isinstance(one, bytes) else str(one) for one in listed]


def check_names(where: str, names: Iterable[str]) -> None:
    """Refuse names that begin at the root or go up."""
    for name in names:
        if any(part in ("", ".", "..") for part in name.replace("\\", "/").split("/")):
            raise BadFileError(
                f"{where} names {name!r}, which leads out of it and is not read; the file is damaged"
            )


# ---------- untrusted HDF5 files: every object is checked before anything is read from it

DEEPEST_GROUP = 32
DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000
FILTERS = {DEFLATE, SHUFFLE, FLETCHER32, LZF}
DEFLATE_RATIO = 1032
"""Bytes that one byte can unpack to."""
CHUNK_COST = 1000
"""Bytes that HDF5 takes for each chunk of what is read."""
SCANNED = 1 << 32
HEAP = b"GCOL"
SHAPES, LENGTH = ("shape", "h5sparse_shape"), 8
"""Attributes that say how many rows and columns a sparse matrix has, and bytes that each takes at least."""
READ = (*NAMING, *SHAPES, "encoding-type", "encoding-version", "ordered", "h5sparse_format")
"""Attributes that are read."""


class Hdf5Store:
    """An open HDF5 file, of which only checked parts are given out."""

    def __init__(self, root: Any, budget: Budget) -> None:
        self.root, self.budget = root, budget
        self._h5py = require("h5py", package="anndata", purpose="reading HDF5 files")
        self._seen: set[int] = set()
        self._charged: set[int] = set()
        self._referring: list[Any] = []

    def __contains__(self, name: str) -> bool:
        return self._find(self.root, name) is not None

    def members(self, name: str) -> list[str]:
        """Names in a group; none where it is not there."""
        group = self.root if name == "/" else self._find(self.root, name)
        return sorted(group) if isinstance(group, self._h5py.Group) else []

    def node(self, name: str, *, whole: bool = True) -> Any:
        """Return a group or dataset after a look at everything below it."""
        found = self.root if name == "/" else self._find(self.root, name)
        if found is None:
            raise BadFileError(f"{self.budget.path} has no {name}; is it another kind of file?")
        self._look(found, whole, ())
        self._check_references()
        return found

    # ------------------------------------------------------------ links

    def _find(self, group: Any, name: str) -> Any:
        """Follow a path through the file itself; None where it ends."""
        for part in name.split("/"):
            if not isinstance(group, self._h5py.Group) or not group.id.links.exists(part.encode()):
                return None
            group = self._member(group, part)
        return group

    def _member(self, group: Any, name: str) -> Any:
        if group.id.links.get_info(name.encode()).type != self._h5py.h5l.TYPE_HARD:
            raise BadFileError(
                f"{self.budget.path}: {group.name}/{name} is a link that may lead elsewhere, which is not "
                "read; copy the data into the file"
            )
        return group[name]

    def _look(self, node: Any, whole: bool, above: tuple[int, ...]) -> None:
        """Check a node and all below it, each once; charge the budget where they are to be read whole."""
        address = self._address(node)
        if len(above) > DEEPEST_GROUP or address in above:
            what = "leads back into itself" if address in above else "is nested too deeply"
            raise BadFileError(f"{self.budget.path}: {node.name} {what}; it is not read")
        if address in (self._charged if whole else self._seen):
            return
        self._seen.add(address)
        if whole:
            self._charged.add(address)
        self._check_attributes(node)
        if isinstance(node, self._h5py.Dataset):
            self._check_dataset(node, whole)
        elif isinstance(node, self._h5py.Group):
            for name in node:
                self._look(self._member(node, name), whole, (*above, address))

    def _address(self, node: Any) -> int:
        return int(self._h5py.h5o.get_info(node.id).addr)

    # ------------------------------------------------------------ attributes

    def _check_attributes(self, node: Any) -> None:
        for name in READ:
            if not self._h5py.h5a.exists(node.id, name.encode()):
                continue
            attribute = self._h5py.h5a.open(node.id, name.encode())
            if attribute.dtype.hasobject:
                self.budget.check(prod(attribute.shape or ()) * self._longest)
            if self._h5py.check_ref_dtype(attribute.dtype) is not None:
                self._referring += [node] if name in NAMING else []
            elif name in SHAPES and attribute.dtype.kind in "iu":
                self.budget.check(LENGTH * sum(map(int, node.attrs[name])))
            elif name in NAMING and attribute.dtype.kind in "OSU":
                names = texts(node.attrs[name])
                check_names(f"{self.budget.path}: {node.name}", names)
                for one in names:
                    self._find(node if isinstance(node, self._h5py.Group) else node.parent, one)

    def _check_references(self) -> None:
        """Check references to categories, as old files have them: they must lead to what was checked."""
        for node in self._referring:
            for name in NAMING:
                found = node.attrs.get(name)
                if (
                    isinstance(found, self._h5py.Reference)
                    and self._address(self.root[found]) not in self._seen
                ):
                    raise BadFileError(
                        f"{self.budget.path}: {name} of {node.name} leads elsewhere, which is not read"
                    )

    # ------------------------------------------------------------ data

    def _check_dataset(self, data: Any, whole: bool) -> None:
        path, plan = self.budget.path, data.id.get_create_plist()
        # This check comes first: HDF5 opens other files even for the shape of a virtual dataset.
        if plan.get_layout() == self._h5py.h5d.VIRTUAL or plan.get_external_count():
            raise BadFileError(f"{path}: the data of {data.name} are in other files, which are not read")
        for dtype in _plain_types(data.dtype):
            if dtype.hasobject and self._h5py.check_string_dtype(dtype) is None:
                raise BadFileError(f"{path}: {data.name} holds references or lists, which are not read")
        shape, chunks = tuple(map(int, data.shape or ())), tuple(map(int, data.chunks or ()))
        if chunks:
            self._check_chunks(data, plan, data.dtype.itemsize * prod(chunks))
        width = sum(
            TEXT + 5 * dtype.itemsize if dtype.kind in "OSU" else dtype.itemsize
            for dtype in _plain_types(data.dtype)
        )
        n_chunks = prod(ceil(n / step) for n, step in zip(shape, chunks, strict=True)) if chunks else 0
        if not whole:
            self.budget.check(width * prod(chunks) + CHUNK_COST * n_chunks)
            return
        self.budget.charge(width * max(prod(shape), prod(chunks)) + CHUNK_COST * n_chunks)
        if data.dtype.hasobject and data.shape is not None:
            self._charge_texts(data, shape)

    def _check_chunks(self, data: Any, plan: Any, size: int) -> None:
        """Refuse chunks that unpack to more than they say: HDF5 would unpack them to their end."""
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        packing = [one for one in filters if one in (DEFLATE, LZF)]
        if (set(filters) - FILTERS or len(packing) > 1) and not self.budget.trusted:
            raise BadFileError(
                f"{self.budget.path}: {data.name} is packed in a way (filters {filters}) that does not tell "
                "its size in memory; write it with gzip or, if you trust it, set max_memory (--max-memory)"
            )
        stored = data.id.get_storage_size()
        if DEFLATE not in filters or stored * DEFLATE_RATIO <= self.budget.left:
            return
        bit = 1 << filters.index(DEFLATE)
        for place, mask, length in _chunks(data):
            if length * DEFLATE_RATIO > self.budget.left and not mask & bit:
                _check_deflated(f"{self.budget.path}: {data.name}", data.id.read_direct_chunk(place)[1], size)

    def _charge_texts(self, data: Any, shape: tuple[int, ...]) -> None:
        """Add up the lengths of all texts: many may be references to one."""
        step = max(1, self.budget.limit // (4 * self._longest))
        for part in _parts(shape, min(step, 1 << 16)):
            values = np.asarray(data[part], dtype=None if data.dtype.names else object)
            columns = [values[name] for name in data.dtype.names] if data.dtype.names else [values]
            for column in columns:
                if column.dtype.hasobject:
                    self.budget.charge(sum(map(len, column.ravel().tolist())))

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest text that can be in the file: the size of the largest heap."""
        stored = self.budget.stored
        if not 0 < stored <= SCANNED:
            return max(stored, 1)
        longest, place = 1, 0
        with (
            open(self.budget.path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            while (place := content.find(HEAP, place)) >= 0:
                longest = max(longest, min(int.from_bytes(content[place + 8 : place + 16], "little"), stored))
                place += 1
        return longest


def _plain_types(dtype: Any) -> list[Any]:
    """Types of the fields of a type, or the type itself."""
    if dtype.names:
        return [inner for name in dtype.names for inner in _plain_types(dtype[name])]
    return [dtype]


def _parts(shape: tuple[int, ...], step: int) -> Iterator[Any]:
    """Places that make up an array, each of at most so many elements."""
    if not shape:
        yield ()
        return
    inner = prod(shape[1:])
    if inner > step:
        for i in range(shape[0]):
            yield from ((i, *rest) for rest in _parts(shape[1:], step))
        return
    rows = max(1, step // max(inner, 1))
    for start in range(0, shape[0], rows):
        yield (slice(start, start + rows),)


def _chunks(data: Any) -> list[tuple[tuple[int, ...], int, int]]:
    """Place, filters left out and stored bytes of each chunk."""
    found: list[Any] = []
    if hasattr(data.id, "chunk_iter"):
        data.id.chunk_iter(found.append)
    else:
        found = [data.id.get_chunk_info(i) for i in range(data.id.get_num_chunks())]
    return [(one.chunk_offset, one.filter_mask, one.size) for one in found]


def _check_deflated(where: str, packed: bytes, size: int) -> None:
    unpacker, seen = zlib.decompressobj(), 0
    try:
        while not unpacker.eof and (piece := unpacker.decompress(packed, PIECE)):
            seen, packed = seen + len(piece), unpacker.unconsumed_tail
            if seen > size:
                raise BadFileError(
                    f"{where} has a chunk that unpacks to more than {size:,} bytes: it is malicious"
                )
    except zlib.error as error:
        raise BadFileError(f"{where} is damaged ({error}); get another copy of it") from error


# ---------- untrusted zarr folders

TEXT_CODEC = "vlen-utf8"
COMPRESSORS = ("blosc", "gzip", "lz4", "zlib", "zstd")
CODECS = {"bytes", "crc32c", "transpose", TEXT_CODEC, *COMPRESSORS}
LARGEST_CHUNK_RATIO = 1 << 16
"""Bytes that one byte of any of these can unpack to."""
TEXT_COST = 16
"""Bytes in memory for each byte of packed text: short ones take most."""
DESCRIPTIONS = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
SLACK = 1 << 16
BYTES_PER_ROW = 8
"""Bytes that a row or column of a sparse matrix takes, at least."""
ZSTD = b"\x28\xb5\x2f\xfd"


class ZarrStore:
    """An open zarr group, of which only checked parts are given out."""

    def __init__(self, root: Any, budget: Budget) -> None:
        self.root, self.budget = root, budget
        self._charged: set[Path] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.root

    def members(self, name: str) -> list[str]:
        """Names in a group; none where it is not there."""
        return sorted(self.root[name]) if name in self.root else []

    def node(self, name: str, *, whole: bool = True) -> Any:
        """Return a group or array; see `log1pnmf._common.safe_files.Hdf5Store.node`."""
        if name != "/" and name not in self.root:
            raise BadFileError(f"{self.budget.path} has no {name}; is it another kind of file?")
        place = Path(self.budget.path, name.strip("/"))
        for folder, array in _arrays(place):
            if not whole:
                self.budget.check(array.chunk + CHUNK_COST * array.n_chunks)
            elif folder not in self._charged:
                self._charged.add(folder)
                self.budget.charge(array.claimed)
                if array.text:
                    for file in _chunk_files(folder):
                        self.budget.charge(TEXT_COST * array.unpacked(file, self.budget.left))
        return self.root if name == "/" else self.root[name]


class _Array:
    """What a description says of an array; codecs that are not known are refused."""

    def __init__(self, where: str, about: dict[str, Any]) -> None:
        self.where = where
        listed = about.get("codecs")
        if listed is None:
            listed = [
                *(about.get("filters") or []),
                *([about["compressor"]] if about.get("compressor") else []),
            ]
        self.codecs = [str(one.get("id", one.get("name"))) for one in listed]
        packing = [one for one in self.codecs if one in COMPRESSORS]
        if set(self.codecs) - CODECS or len(packing) > 1:
            raise BadFileError(
                f"{where} is packed with {', '.join(self.codecs)}, which could run code or fill the memory "
                f"and is never loaded; write it with one of {', '.join(COMPRESSORS)}"
            )
        self.packing = packing[0] if packing else None
        kind = about.get("dtype", about.get("data_type"))
        self.text = TEXT_CODEC in self.codecs
        try:
            if isinstance(kind, dict):
                raise TypeError
            dtype = np.dtype(kind if not isinstance(kind, list) else [tuple(field) for field in kind])
            if dtype.hasobject and not self.text:
                raise BadFileError(
                    f"{where} holds Python objects, which are never loaded: they could run code"
                )
            width = TEXT + 5 * dtype.itemsize if dtype.kind in "OSU" else dtype.itemsize
        except TypeError:  # zarr's own names of strings
            width = TEXT + 5 * _text_length(kind)
        shape = [int(n) for n in about["shape"]]
        grid = about.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")
        chunks = [int(n) for n in about.get("chunks", grid)]
        if len(shape) != len(chunks) or min([*shape, *chunks, 0]) < 0:
            raise BadFileError(f"{where} has shape {shape} in chunks of {chunks}; it is damaged")
        self.chunk = width * prod(chunks)
        self.n_chunks = prod(ceil(n / max(step, 1)) for n, step in zip(shape, chunks, strict=True))
        self.claimed = max(width * prod(shape), self.chunk) + CHUNK_COST * self.n_chunks

    def check_chunk(self, file: Path, limit: int) -> None:
        """Refuse a chunk that unpacks to more than it says: zarr would unpack it to its end."""
        size = file.stat().st_size
        if self.packing is None or size * LARGEST_CHUNK_RATIO <= limit:
            return
        if self.unpacked(file, limit) > (limit if self.text else self.chunk + SLACK):
            raise BadFileError(
                f"{self.where} has a chunk that unpacks to more than it should: it is malicious"
            )

    def unpacked(self, file: Path, limit: int) -> int:
        """Bytes to which a chunk unpacks, or one more than the limit."""
        if self.packing is None:
            return file.stat().st_size
        if self.packing in ("gzip", "zlib"):
            return _inflated(file, limit, self.where)
        with open(file, "rb") as content:
            head = content.read(32)
        if self.packing == "blosc":
            return int.from_bytes(head[4:8], "little")
        if self.packing == "lz4":
            return int.from_bytes(head[:4], "little")
        return _zstd_size(head, self.where)


def check_folder(folder: Path, budget: Budget) -> None:
    """Check all files of a zarr folder."""
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            mode = os.lstat(os.path.join(place, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise BadFileError(
                    f"{Path(place, name)} is a link, a pipe or a device inside of a zarr folder, which may "
                    "lead elsewhere and is not read; copy the data into the folder"
                )
        for name in set(names) & {".zattrs", "zarr.json"}:
            about = _description(Path(place, name))
            attributes = about if name == ".zattrs" else about.get("attributes", {})
            if isinstance(attributes, dict):
                _check_shape(attributes, budget)
                check_names(
                    place, (one for key in NAMING if key in attributes for one in texts(attributes[key]))
                )
    for inner, array in _arrays(folder):
        for file in _chunk_files(inner):
            array.check_chunk(file, budget.limit)


def _check_shape(attributes: dict[str, Any], budget: Budget) -> None:
    """Refuse a sparse matrix with more rows and columns than memory is allowed for."""
    shape = attributes.get("shape")
    if isinstance(shape, list) and all(isinstance(n, int) for n in shape):
        budget.check(BYTES_PER_ROW * sum(shape))


def _description(file: Path) -> dict[str, Any]:
    about = parse_json(file.read_bytes(), file)
    if not isinstance(about, dict):
        raise BadFileError(f"{file} is damaged: it does not describe anything; get another copy of it")
    return about


def _arrays(folder: Path) -> Iterator[tuple[Path, _Array]]:
    """All arrays in a folder, and where they are."""
    for place, _, names in os.walk(folder):
        for name in sorted({".zarray", "zarr.json"}.intersection(names)):
            file = Path(place, name)
            about = _description(file)
            if name == "zarr.json" and about.get("node_type") != "array":
                continue
            try:
                yield Path(place), _Array(place, about)
            except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
                if isinstance(error, BadFileError):
                    raise
                raise BadFileError(f"{file} does not describe an array ({error}); it is damaged") from error


def _chunk_files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names if name not in DESCRIPTIONS)


def _text_length(kind: Any) -> int:
    """Bytes of a text of fixed length, by zarr's description of its type."""
    about = kind.get("configuration", {}) if isinstance(kind, dict) else {}
    return int(about.get("length_bytes", 0))


def _inflated(file: Path, limit: int, where: str) -> int:
    unpacker, seen = zlib.decompressobj(wbits=47), 0  # 47: zlib or gzip
    try:
        with open(file, "rb") as content:
            while packed := content.read(PIECE):
                while packed and not unpacker.eof and seen <= limit:
                    seen += len(unpacker.decompress(packed, PIECE))
                    packed = unpacker.unconsumed_tail
                if unpacker.eof or seen > limit:
                    break
    except zlib.error as error:
        raise BadFileError(f"{where} is damaged ({error}); get another copy of it") from error
    return seen


def _zstd_size(head: bytes, where: str) -> int:
    """Size that the head of a zstd frame states."""
    if head[:4] == ZSTD and len(head) > 4:
        flags = head[4]
        single, kind = flags >> 5 & 1, flags >> 6
        start = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
        length = (single, 2, 4, 8)[kind]
        if length and len(head) >= start + length:
            return int.from_bytes(head[start : start + length], "little") + (256 if kind == 1 else 0)
    raise BadFileError(f"{where} has a chunk that does not say how large it is; write it again with zarr")


# ---------- hDF5 files and zarr folders, opened and checked


class Store(Protocol):
    """An open file of which only checked parts are given out."""

    root: Any
    budget: Budget

    def __contains__(self, name: str) -> bool:
        """Whether there is something of this name."""
        ...

    def members(self, name: str) -> list[str]:
        """Names in a group; none where it is not there."""
        ...

    def node(self, name: str, *, whole: bool = True) -> Any:
        """Return a group or array after checking everything below it; `whole`: all goes into memory."""
        ...


def open_store(path: os.PathLike[str] | str, budget: Budget) -> Store:
    """Open an HDF5 file or a zarr folder for reading.

    Nothing is given out that is not in the file itself: links, external storage, virtual datasets, references
    to other places and codecs that are not known end with `BadFileError`.
    """
    check_regular(path)
    if os.path.isdir(path):
        check_folder(Path(path), budget)
        return ZarrStore(open_zarr(path), budget)
    h5py = require("h5py", package="anndata", purpose="reading HDF5 files")
    return Hdf5Store(h5py.File(path, "r"), budget)


def open_zarr(path: os.PathLike[str] | str) -> Any:
    """Open a zarr folder by the descriptions of its arrays; consolidated metadata may contradict them."""
    zarr = require("zarr", purpose="reading .zarr folders")
    newer = int(zarr.__version__.split(".")[0]) > 2
    return zarr.open_group(os.fspath(path), mode="r", **({"use_consolidated": False} if newer else {}))
