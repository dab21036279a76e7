"""Untrusted HDF5 files: every object is checked before anything is read from it."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterator
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np

from log1pnmf._common.optional import require
from log1pnmf._common.untrusted import TEXT, BadFileError, Budget

from .names import NAMING, check_names, texts

__all__ = ["Hdf5Store"]

DEEPEST = 32
DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000
FILTERS = {DEFLATE, SHUFFLE, FLETCHER32, LZF}
DEFLATE_RATIO = 1032
"""Bytes that one byte can unpack to."""
CHUNK_COST = 1000
"""Bytes that HDF5 takes for each chunk of what is read."""
PIECE = 1 << 20
SCANNED = 1 << 32
HEAP = b"GCOL"
SHAPES, LENGTH = ("shape", "h5sparse_shape"), 8
"""Attributes that say how many rows and columns a sparse matrix has, and bytes that each takes at least."""
READ = (*NAMING, *SHAPES, "encoding-type", "encoding-version", "ordered", "h5sparse_format")
"""Attributes that are read."""


class Hdf5Store:
    """An open HDF5 file, of which only checked parts are given out.

    Parameters
    ----------
    budget : Budget
        Charged with what is given out.
    """

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
        """Give a group or dataset after a look at everything below it.

        Parameters
        ----------
        name : str
            "/" is the whole file.
        whole : bool
            Whether all of it is going to be in memory at once.
        """
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
        if len(above) > DEEPEST or address in above:
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
