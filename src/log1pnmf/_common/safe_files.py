"""Untrusted files: nothing in them is executed, nothing outside of them is read, and their size is checked.

The sizes that a file declares (shapes, types, numbers of entries) are compared with a `MemoryLimit` before
anything is read; compressed text is counted while it is unpacked. `open_store` is the only way to open HDF5
and zarr files.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from math import ceil, prod
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from .checks import require

StrPath: TypeAlias = str | os.PathLike[str]

# ---------- memory that a file may take

ALWAYS_ALLOWED = 1 << 30
LARGEST_RATIO = 200  # bytes of memory for each byte of a file: real tables stay far below, bombs do not
TEXT = 100  # bytes that a string takes in memory, at least
DEEPEST = 64  # levels of JSON
PIECE = 1 << 20


class BadFileError(ValueError):
    """A file that cannot be used: what is wrong, where, and what to do about it."""


@contextmanager
def readable(path: StrPath, kind: str) -> Iterator[None]:
    """Turn whatever readers of other packages raise at what is in a file into one BadFileError."""
    try:
        yield
    except (BadFileError, ImportError, PermissionError):
        raise
    except Exception as error:
        cut_off = isinstance(error, EOFError | zlib.error | OSError | MemoryError)
        what = "truncated or damaged" if cut_off else f"not a {kind} file that can be read"
        why = f"{str(error).strip() or type(error).__name__:.200}".splitlines()[0]
        raise BadFileError(f"{os.fspath(path)} is {what} ({why}); get another copy of it") from error


def check_regular(path: StrPath) -> None:
    """Refuse pipes, sockets and devices, which can block or never end; folders pass."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise BadFileError(
            f"{os.fspath(path)} is a pipe, a socket or a device, not a file; save the data to a file first"
        )


def free_memory() -> float:
    """Return the free memory in bytes, or all memory where the system does not report what is free."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(1024.0 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
        return pages * (os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1)


def parse_memory(memory: str | float) -> float:
    """Return bytes from "4GB", "500 MB", "1.5GiB" or a number."""
    size = 0.0 if isinstance(memory, str | bool) else float(memory)
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?)(i?)b?\s*", memory.lower())
        if match:
            size = float(match[1]) * (1024.0 if match[3] else 1e3) ** " kmgt".index(match[2] or " ")
    if size > 0:
        return size
    raise ValueError(f"memory must be a size like '4GB' or a number of bytes, got {memory!r}")


class MemoryLimit:
    """The memory that reading a file may take: `max_memory`, or what is free and plausible for its size."""

    def __init__(self, path: StrPath, max_memory: str | float | None = None) -> None:
        self.path = os.fspath(path)
        files = (Path(at, name) for at, _, names in os.walk(path) for name in names)
        self.stored = sum(os.lstat(file).st_size for file in (files if os.path.isdir(path) else [path]))
        plausible = max(ALWAYS_ALLOWED, LARGEST_RATIO * self.stored)
        self.claimed = 0
        self.size = int(min(free_memory(), plausible) if max_memory is None else parse_memory(max_memory))

    def check(self, size: float) -> None:
        """Refuse a file that takes more."""
        if size > self.size:
            raise BadFileError(
                f"{self.path} has {self.stored:,} bytes, but would take {size:,} bytes of memory, and "
                f"{self.size:,} are free or plausible: it is too large, damaged or malicious; if you trust "
                "it, allow more with max_memory (--max-memory 8GB)"
            )

    def claim(self, size: int) -> None:
        """Refuse a file that takes more together with what was claimed before."""
        self.claimed += size
        self.check(self.claimed)

    def text_array(self, values: Any) -> np.ndarray:
        """Return an array of text, which has room for the longest one in every place."""
        longest = max(map(len, values), default=0)
        self.claim(4 * longest * len(values))
        return np.array(values, dtype=f"U{max(longest, 1)}")


def parse_json(content: str | bytes, source: StrPath) -> Any:
    """Read JSON; what is nested too deeply for Python is refused."""
    nested = f"{os.fspath(source)} is nested more than {DEEPEST} levels deep: it is damaged; get another copy"
    try:
        value = json.loads(content)
    except RecursionError:
        raise BadFileError(nested) from None
    except ValueError as error:
        raise BadFileError(
            f"{os.fspath(source)} is damaged: no valid JSON ({error}); get another copy of it"
        ) from error
    level: list[Any] = [[value]]
    for _ in range(DEEPEST + 1):
        groups = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for group in groups for one in group if isinstance(one, dict | list)]
    if level:
        raise BadFileError(nested)
    return value


# ---------- NumPy's files


def npy_header(file: Any, size: int, name: str) -> None:
    """Refuse an array whose length is not that of its header, or that holds Python objects."""
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
        raise BadFileError(f"{name} is not as its header describes: {shape} of {dtype}; it is damaged")


def check_npz(file: BinaryIO, path: Path, limit: MemoryLimit) -> None:
    """Check every array of a .npz file without unpacking it, and go back to its beginning."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        limit.check(sum(member.file_size for member in members))
        for member in members:
            # Python unpacks a piece of any other kind whole, however large it gets.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise BadFileError(
                    f"{path}: {member.filename} is not packed as NumPy does; write it with savez_compressed"
                )
            with archive.open(member) as content:
                npy_header(content, member.file_size, f"{path}: {member.filename}")
    file.seek(0)


# ---------- text, compressed or not


class _Unpacked(io.RawIOBase):
    """The bytes of a file, those of gzip up to a limit, with something added at the end."""

    def __init__(self, path: Path, limit: MemoryLimit, ending: bytes) -> None:
        packed = path.name.endswith(".gz")
        self._inner: Any = gzip.GzipFile(path) if packed else open(path, "rb")  # noqa: SIM115
        self._path, self._ending, self._left = path, ending, limit.size if packed else math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._inner.read(len(buffer))
        self._left -= len(piece)
        if self._left < 0:
            raise BadFileError(
                f"{self._path} unpacks to more than memory has room for: it is damaged or malicious; if you "
                "trust it, unpack it yourself and read the result"
            )
        if not piece:
            piece, self._ending = self._ending, b""
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._inner.close()
        super().close()


def open_packed(path: Path, limit: MemoryLimit, ending: bytes = b"") -> BinaryIO:
    """Open a file for reading bytes, unpacked on the way where its name ends in .gz."""
    check_regular(path)
    return io.BufferedReader(_Unpacked(path, limit, ending), buffer_size=PIECE)


def market_matrix(path: Path, limit: MemoryLimit) -> Any:
    """Read a MatrixMarket file with SciPy, after checks for the damage at which SciPy crashes."""
    from scipy.io import mmread

    _check_market(path, limit)
    # SciPy reads beyond the end of a last line that is too long
    with open_packed(path, limit, ending=b"\n") as file:
        try:
            return mmread(file)
        except (ValueError, OverflowError, TypeError) as error:
            raise BadFileError(
                f"{path} is not a whole MatrixMarket file ({error}); get another copy of it"
            ) from error


def _check_market(path: Path, limit: MemoryLimit) -> None:
    """Refuse a file with zero bytes, or that is too short for its header, before memory is set aside."""
    with open_packed(path, limit) as file:
        banner = file.readline(1000)
        if not banner.lower().startswith(b"%%matrixmarket matrix"):
            raise BadFileError(
                f"{path} does not begin with '%%MatrixMarket matrix'; is it another kind of file?"
            )
        line = banner
        while line.startswith(b"%") or (line and not line.strip()):
            line = file.readline(100_000)
        length = 0
        while piece := file.read(PIECE):
            if b"\0" in piece:  # files that were cut off end in them, and SciPy crashes there
                raise BadFileError(f"{path} holds zero bytes: it is damaged; get another copy of it")
            length += len(piece)
    sizes = line.split()
    if not sizes or not all(size.isdigit() for size in sizes):
        raise BadFileError(f"{path} has no line with numbers of rows, columns and entries; it is incomplete")
    numbers = [int(size) for size in sizes]
    listed, general = (word in banner.lower() for word in (b"coordinate", b"general"))
    # bytes of an entry: at least as text ("1 1\n" or "1\n"), and in memory (two indices and a value)
    entries, text, memory = (numbers[-1], 4, 24) if listed else (math.prod(numbers[:2]), 2, 8)
    if entries * text > length + text:
        raise BadFileError(f"{path} should have {entries:,} entries, but is too short: it is truncated")
    limit.check(entries * memory * (1 if general else 2))


# ---------- names of columns that a file gives: they must stay inside of the group that gives them

NAMING = ("column-order", "_index", "categories")  # attributes of AnnData that name other parts of the file


def texts(value: Any) -> list[str]:
    """Return the names in an attribute: one, or several."""
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
CHUNK_COST = 1000  # bytes that HDF5 takes for each chunk of what is read
SHAPES = ("shape", "h5sparse_shape")  # attributes: how many rows and columns a sparse matrix has
LENGTH = 8  # bytes that each of those takes, at least


class Store:
    """An open HDF5 file, of which only checked parts are returned."""

    def __init__(self, path: StrPath, limit: MemoryLimit) -> None:
        self._h5py = require("h5py", package="anndata", purpose="reading HDF5 files")
        self.root, self.limit = self._h5py.File(path, "r"), limit
        self._seen: set[int] = set()
        self._referring: list[Any] = []

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        if hasattr(self.root, "close"):  # zarr has nothing to close
            self.root.close()

    def __contains__(self, name: str) -> bool:
        return self._find(self.root, name) is not None

    def members(self, name: str) -> list[str]:
        """Return the names in a group; none where it is not there."""
        group = self._find(self.root, name)
        return sorted(group) if isinstance(group, self._h5py.Group) else []

    def node(self, name: str, *, whole: bool = True) -> Any:
        """Return a group or array after checking everything below it; `whole`: all goes into memory."""
        found = self._find(self.root, name)
        if found is None:
            raise BadFileError(f"{self.limit.path} has no {name}; is it another kind of file?")
        size = self._declared(found, whole, (), set())
        self.limit.claim(size) if whole else self.limit.check(size)
        # references to categories, as old files have them, must lead to what was checked
        for one, attribute in product(self._referring, NAMING):
            target = one.attrs.get(attribute)
            refers = isinstance(target, self._h5py.Reference)
            if refers and self._address(self.root[target]) not in self._seen:
                raise BadFileError(
                    f"{self.limit.path}: {attribute} of {one.name} leads elsewhere, which is not read"
                )
        return found

    def _find(self, group: Any, name: str) -> Any:
        """Follow a path through the file itself; None where it ends."""
        for part in filter(None, name.split("/")):
            if not isinstance(group, self._h5py.Group) or not group.id.links.exists(part.encode()):
                return None
            group = self._member(group, part)
        return group

    def _member(self, group: Any, name: str) -> Any:
        if group.id.links.get_info(name.encode()).type != self._h5py.h5l.TYPE_HARD:
            raise BadFileError(
                f"{self.limit.path}: {group.name}/{name} is a link that may lead elsewhere, which is not "
                "read; copy the data into the file"
            )
        return group[name]

    def _declared(self, node: Any, whole: bool, above: tuple[int, ...], walked: set[int]) -> int:
        """Check a node and all below it, each once, and return the memory that they need."""
        address = self._address(node)
        if len(above) > DEEPEST_GROUP or address in above:
            what = "leads back into itself" if address in above else "is nested too deeply"
            raise BadFileError(f"{self.limit.path}: {node.name} {what}; it is not read")
        if address in walked:
            return 0
        walked.add(address)
        self._seen.add(address)
        self._check_attributes(node)
        if isinstance(node, self._h5py.Dataset):
            return self._dataset_size(node, whole)
        members = (self._member(node, name) for name in node) if isinstance(node, self._h5py.Group) else ()
        return sum(self._declared(one, whole, (*above, address), walked) for one in members)

    def _address(self, node: Any) -> int:
        return int(self._h5py.h5o.get_info(node.id).addr)

    def _check_attributes(self, node: Any) -> None:
        """Check the attributes that lead to other parts of the file, or hold a size."""
        for name in (*NAMING, *SHAPES):
            if not self._h5py.h5a.exists(node.id, name.encode()):
                continue
            dtype = self._h5py.h5a.open(node.id, name.encode()).dtype
            if self._h5py.check_ref_dtype(dtype) is not None:
                self._referring += [node] if name in NAMING else []
            elif name in SHAPES and dtype.kind in "iu":
                self.limit.check(LENGTH * sum(map(int, node.attrs[name])))
            elif name in NAMING and dtype.kind in "OSU":
                names = texts(node.attrs[name])
                check_names(f"{self.limit.path}: {node.name}", names)
                for one in names:
                    self._find(node if isinstance(node, self._h5py.Group) else node.parent, one)

    def _dataset_size(self, data: Any, whole: bool) -> int:
        path, plan = self.limit.path, data.id.get_create_plist()
        # This check comes first: HDF5 opens other files even for the shape of a virtual dataset.
        if plan.get_layout() == self._h5py.h5d.VIRTUAL or plan.get_external_count():
            raise BadFileError(f"{path}: the data of {data.name} are in other files, which are not read")
        kinds = _plain_types(data.dtype)
        for dtype in kinds:
            if dtype.hasobject and self._h5py.check_string_dtype(dtype) is None:
                raise BadFileError(f"{path}: {data.name} holds references or lists, which are not read")
        return _size_of(sum(map(_width, kinds)), data.shape or (), data.chunks or (), whole)


def _plain_types(dtype: Any) -> list[Any]:
    """Return the types of the fields of a type, or the type itself."""
    if dtype.names:
        return [inner for name in dtype.names for inner in _plain_types(dtype[name])]
    return [dtype]


def _width(dtype: Any) -> int:
    """Return the bytes that a value takes, as Python's text where it is text."""
    return TEXT + 5 * dtype.itemsize if dtype.kind in "OSU" else int(dtype.itemsize)


def _size_of(width: int, shape: Iterable[int], chunks: Iterable[int], whole: bool) -> int:
    """Return the memory that an array of values of this width takes: all of it, or one chunk."""
    shape, chunks = tuple(map(int, shape)), tuple(map(int, chunks))
    n_chunks = prod(ceil(n / max(step, 1)) for n, step in zip(shape, chunks, strict=True)) if chunks else 0
    chunk = prod(chunks) if chunks else 0
    return width * (max(prod(shape), chunk) if whole else chunk) + CHUNK_COST * n_chunks


# ---------- untrusted zarr folders

TEXT_CODEC = "vlen-utf8"
COMPRESSORS = ("blosc", "gzip", "lz4", "zlib", "zstd")
CODECS = {"bytes", "crc32c", "transpose", TEXT_CODEC, *COMPRESSORS}


class ZarrStore(Store):
    """An open zarr group, of which only checked parts are returned."""

    def __init__(self, path: StrPath, limit: MemoryLimit) -> None:
        _check_folder(Path(path), limit)
        self.root, self.limit = open_zarr(path), limit

    def __contains__(self, name: str) -> bool:
        return name in self.root

    def members(self, name: str) -> list[str]:
        """Return the names in a group; none where it is not there."""
        return sorted(self.root[name]) if name in self.root else []

    def node(self, name: str, *, whole: bool = True) -> Any:
        """Return a group or array after checking everything below it; `whole`: all goes into memory."""
        if name != "/" and name not in self.root:
            raise BadFileError(f"{self.limit.path} has no {name}; is it another kind of file?")
        size = sum(_array_sizes(Path(self.limit.path, name.strip("/")), whole))
        self.limit.claim(size) if whole else self.limit.check(size)
        return self.root if name == "/" else self.root[name]


def _check_folder(folder: Path, limit: MemoryLimit) -> None:
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
                shape = attributes.get("shape")
                if isinstance(shape, list) and all(isinstance(n, int) for n in shape):
                    limit.check(LENGTH * sum(shape))
                for key in NAMING:
                    check_names(place, texts(attributes.get(key, ())))
    for _ in _array_sizes(folder, False):  # refuses codecs that could run code
        pass


def _description(file: Path) -> dict[str, Any]:
    about = parse_json(file.read_bytes(), file)
    if not isinstance(about, dict):
        raise BadFileError(f"{file} is damaged: it does not describe anything; get another copy of it")
    return about


def _array_sizes(folder: Path, whole: bool) -> Iterator[int]:
    """Return the memory that each array in a folder takes, as it declares; unknown codecs are refused."""
    for place, _, names in os.walk(folder):
        for name in sorted({".zarray", "zarr.json"}.intersection(names)):
            file = Path(place, name)
            about = _description(file)
            if name == "zarr.json" and about.get("node_type") != "array":
                continue
            try:
                grid = about.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")
                shape, chunks = ([int(n) for n in one] for one in (about["shape"], about.get("chunks", grid)))
                if len(shape) != len(chunks) or min([*shape, *chunks, 0]) < 0:
                    raise ValueError(f"shape {shape} in chunks of {chunks}")
                yield _size_of(_value_width(place, about), shape, chunks, whole)
            except BadFileError:
                raise
            except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
                raise BadFileError(f"{file} does not describe an array ({error}); it is damaged") from error


def _value_width(place: str, about: dict[str, Any]) -> int:
    """Return the bytes that a value of an array takes; codecs and types that could run code are refused."""
    listed = about.get("codecs")
    if listed is None:
        listed = [one for one in (*(about.get("filters") or []), about.get("compressor")) if one]
    codecs = [str(one.get("id", one.get("name"))) for one in listed]
    if set(codecs) - CODECS:
        raise BadFileError(
            f"{place} is packed with {', '.join(codecs)}, which could run code or fill the memory "
            f"and is never loaded; write it with one of {', '.join(COMPRESSORS)}"
        )
    kind = about.get("dtype", about.get("data_type"))
    if isinstance(kind, dict):  # zarr's own description of text of fixed length
        return TEXT + 5 * int(kind.get("configuration", {}).get("length_bytes", 0))
    try:
        dtype = np.dtype([tuple(field) for field in kind] if isinstance(kind, list) else kind)
    except TypeError:  # zarr's own names of text
        return TEXT
    if dtype.hasobject and TEXT_CODEC not in codecs:
        raise BadFileError(f"{place} holds Python objects, which are never loaded: they could run code")
    return _width(dtype)


def open_store(path: StrPath, limit: MemoryLimit) -> Store:
    """Open an HDF5 file or a zarr folder for reading; what leads out of it or could run code is refused."""
    check_regular(path)
    return (ZarrStore if os.path.isdir(path) else Store)(path, limit)


def open_zarr(path: StrPath) -> Any:
    """Open a zarr folder by the descriptions of its arrays; consolidated metadata may contradict them."""
    zarr = require("zarr", purpose="reading .zarr folders")
    newer = {"use_consolidated": False} if int(zarr.__version__.split(".")[0]) > 2 else {}
    return zarr.open_group(os.fspath(path), mode="r", **newer)
