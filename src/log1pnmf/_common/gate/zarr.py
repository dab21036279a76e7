"""Untrusted zarr folders: every file and every description is checked before anything is read."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.untrusted import TEXT, BadFileError, Budget, parse_json

from .names import NAMING, check_names, texts

__all__ = ["ZarrStore", "check_folder"]

TEXT_CODEC = "vlen-utf8"
COMPRESSORS = ("blosc", "gzip", "lz4", "zlib", "zstd")
CODECS = {"bytes", "crc32c", "transpose", TEXT_CODEC, *COMPRESSORS}
LARGEST_RATIO = 1 << 16
"""Bytes that one byte of any of these can unpack to."""
CHUNK_COST = 1000
"""Bytes that zarr takes for each chunk of what is read."""
TEXT_COST = 16
"""Bytes in memory for each byte of packed text: short ones take most."""
DESCRIPTIONS = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
PIECE = 1 << 20
SLACK = 1 << 16
LENGTH = 8
"""Bytes that a row or column of a sparse matrix takes, at least."""
ZSTD = b"\x28\xb5\x2f\xfd"


class ZarrStore:
    """An open zarr group, of which only checked parts are given out.

    Parameters
    ----------
    budget : Budget
        Charged with what is given out.
    """

    def __init__(self, root: Any, budget: Budget) -> None:
        self.root, self.budget = root, budget
        self._charged: set[Path] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.root

    def members(self, name: str) -> list[str]:
        """Names in a group; none where it is not there."""
        return sorted(self.root[name]) if name in self.root else []

    def node(self, name: str, *, whole: bool = True) -> Any:
        """Give a group or array; see `log1pnmf._common.gate.hdf5.Hdf5Store.node`."""
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
    """What a description says of an array; codecs that are not known are refused.

    Parameters
    ----------
    about : dict
        Version 2 or 3 of zarr.
    """

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
        if self.packing is None or size * LARGEST_RATIO <= limit:
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
        budget.check(LENGTH * sum(shape))


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
