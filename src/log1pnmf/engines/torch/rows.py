"""Counts on a device: kept there where they fit, streamed from the host block by block where they do not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary, finalize

import numpy as np
import torch

from log1pnmf.counts.sparse_rows import Pattern, SparseRows, row_blocks

from .counts import TensorPattern, read_only, to_device

__all__ = ["Block", "DevicePattern", "DeviceRows", "Stored", "device_rows", "fits"]

RESIDENT_SHARE = 0.4
"""Part of a card's free memory that the rows of one side may take; the other side wants as much."""
STREAMED_ENTRIES = 1 << 27
"""Entries of a block that is streamed, 1 GiB; two of them are on the device at a time."""
PIECE = 1 << 12
"""Entries of a row that one program takes, where all rows are looked at."""
LEAST_LOCKED = 1 << 26
"""Bytes of an array that is page-locked; smaller ones may share a page with others."""
MOST_ROWS = 1 << 18
"""Rows of a block: bounds the memory of their K x K matrices."""


@dataclass(frozen=True, eq=False)
class Block:
    """Some consecutive rows, on the device.

    Parameters
    ----------
    first : int
        Number of its first row.
    indptr : Tensor of int64, shape (rows + 1,)
        Into `indices` and `values`, from 0.
    has_empty : bool
        Whether there are rows without entries.
    """

    first: int
    indptr: Any
    indices: Any
    values: Any
    has_empty: bool

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.indptr.shape[0]) - 1

    @property
    def lengths(self) -> Any:
        """Entries of every row."""
        return self.indptr[1:] - self.indptr[:-1]

    @cached_property
    def numbers(self) -> Any:
        """Numbers of all rows."""
        return torch.arange(self.n_rows, device=self.indptr.device)

    @cached_property
    def pieces(self) -> tuple[Any, Any, Any] | None:
        """Row of each piece of up to `PIECE` entries, where it begins in the row, and how many every row has.

        A row that is much longer than others would keep the card waiting. None if no row is long.
        """
        parts = ((self.lengths + PIECE - 1) // PIECE).clamp(min=1)
        if int(parts.max()) <= 2:
            return None
        owner = torch.repeat_interleave(self.numbers, parts)
        number = torch.arange(len(owner), device=owner.device) - (torch.cumsum(parts, 0) - parts)[owner]
        return owner, PIECE * number, parts

    @cached_property
    def smallest(self) -> Any:
        """Smallest count of every row, in float64; inf without entries."""
        least = torch.segment_reduce(self.values, "min", lengths=self.lengths, unsafe=True, initial=np.inf)
        return least.double()


@dataclass(frozen=True, eq=False)
class Stored:
    """Zeros of some consecutive rows that are visited, on the device.

    Parameters
    ----------
    indptr : Tensor of int64, shape (rows + 1,)
        Into `indices`, not from 0.
    """

    indptr: Any
    indices: Any

    @property
    def lengths(self) -> Any:
        """Entries of every row."""
        return self.indptr[1:] - self.indptr[:-1]


class DevicePattern:
    """Entries of compressed rows on a device, or brought there block by block where they do not fit."""

    def __init__(self, pattern: Pattern, device: Any, *, resident: bool | None = None) -> None:
        self._pattern, self._device = pattern, device
        self.resident = fits(4 * pattern.nnz, device) if resident is None else resident
        if self.resident:
            self._indptr = torch.from_numpy(np.array(pattern.indptr)).to(device)
            self._indices = to_device(_indices_of(pattern), device, torch.int32)

    def of(self, block: Block) -> Stored | None:
        """Give those of the rows of a block; None where there are none."""
        rows = slice(block.first, block.first + block.n_rows + 1)
        first, last = (int(end) for end in self._pattern.indptr[rows][[0, -1]])
        if first == last:
            return None
        if self.resident:
            return Stored(self._indptr[rows], self._indices)
        local = torch.from_numpy(self._pattern.indptr[rows] - first).to(self._device)
        return Stored(local, to_device(_indices_of(self._pattern)[first:last], self._device, torch.int32))


class DeviceRows:
    """Compressed rows that can be walked through on a device.

    Parameters
    ----------
    dtype : torch.dtype
        Of the values on the device.
    resident : bool, optional
        Whether they stay on the device; by default where they fit.
    streamed_entries : int
        Entries of a streamed block.
    """

    def __init__(
        self,
        rows: SparseRows,
        device: Any,
        dtype: Any,
        *,
        resident: bool | None = None,
        streamed_entries: int = STREAMED_ENTRIES,
    ) -> None:
        self.shape = rows.shape
        self._indptr, self._device, self._dtype = rows.indptr, device, dtype  # not the rows: see `_UPLOADED`
        self._streamed_entries = streamed_entries
        size = rows.nnz * (4 + torch.empty(0, dtype=dtype).element_size())
        self.resident = fits(size, device) if resident is None else resident
        self._blocks: list[Block] = []
        if self.resident:
            self._indices = to_device(rows.indices, device, torch.int32)
            self._values = to_device(rows.values, device, dtype)
        else:
            self._indices, self._values = (self._readable(one) for one in (rows.indices, rows.values))

    def blocks(self) -> Iterator[Block]:
        """Walk through all rows, in order."""
        if not self.resident:
            return self._streamed()
        if not self._blocks:
            self._blocks.extend(self._kept())
        return iter(self._blocks)

    def _ranges(self, most_entries: int) -> Iterator[tuple[int, int]]:
        for start, stop in row_blocks(self._indptr, most_entries):
            for first in range(start, stop, MOST_ROWS):
                yield first, min(first + MOST_ROWS, stop)

    def _block(self, start: int, stop: int, indices: Any, values: Any) -> Block:
        indptr = self._indptr[start : stop + 1]
        local = torch.from_numpy(indptr - indptr[0]).to(self._device)
        return Block(start, local, indices, values, bool((np.diff(indptr) == 0).any()))

    def _entries(self, start: int, stop: int) -> slice:
        return slice(int(self._indptr[start]), int(self._indptr[stop]))

    def _kept(self) -> Iterator[Block]:
        for start, stop in self._ranges(max(1, int(self._indptr[-1]))):
            entries = self._entries(start, stop)
            yield self._block(start, stop, self._indices[entries], self._values[entries])

    def _streamed(self) -> Iterator[Block]:
        """Copy a block while the one before is worked on; two sets of buffers take turns."""
        ranges = list(self._ranges(self._streamed_entries))
        largest = max((self._indptr[b] - self._indptr[a] for a, b in ranges), default=0)
        source = self._indices, self._values
        buffers = [_Buffers(int(largest), self._device, source) for _ in range(2)]
        for number, (start, stop) in enumerate(ranges):
            here = buffers[number % 2]
            if number == 0:
                here.fill(self._entries(start, stop))
            if number + 1 < len(ranges):
                buffers[(number + 1) % 2].fill(self._entries(*ranges[number + 1]))
            indices, values = here.filled()
            yield self._block(start, stop, indices, values.to(self._dtype))
            here.release()

    def _readable(self, array: Any) -> Any:
        """Give an array of the host as a tensor, and page-lock it: the card then reads it without a copy.

        Where that is refused, the driver copies through memory of its own, at a fraction of the speed.
        """
        if isinstance(array, torch.Tensor):
            return array
        tensor = read_only(array)
        if self._device.type == "cuda" and tensor.nbytes >= LEAST_LOCKED:
            runtime, at = torch.cuda.cudart(), tensor.data_ptr()
            if int(runtime.cudaHostRegister(at, tensor.nbytes, 0)) == 0:
                finalize(self, runtime.cudaHostUnregister, at).atexit = False
            else:
                _forget_error(self._device)
        return tensor


def _forget_error(device: Any) -> None:
    """Let the next kernel report the error that the runtime remembers, and drop it."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)


class _Buffers:
    """Room on the device for one streamed block."""

    def __init__(self, entries: int, device: Any, source: tuple[Any, Any]) -> None:
        self._source = source
        self._room = [torch.empty(entries, dtype=one.dtype, device=device) for one in source]
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._n = 0
        self.release()

    def fill(self, entries: slice) -> None:
        """Copy a block from the host, once the work on the last one is done."""
        self._n = entries.stop - entries.start
        with torch.cuda.stream(self._stream):
            if self._stream is not None:
                self._stream.wait_event(self._free)
            for room, one in zip(self._room, self._source, strict=True):
                room[: self._n].copy_(one[entries], non_blocking=True)

    def filled(self) -> tuple[Any, Any]:
        """Give the block; the work that comes now waits for the copy."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        indices, values = (room[: self._n] for room in self._room)
        return indices, values

    def release(self) -> None:
        """Mark the work queued so far as the last that uses this memory."""
        if self._stream is not None:
            self._free = torch.cuda.current_stream().record_event()


def fits(size: int, device: Any) -> bool:
    """Whether so many bytes are a small enough part of a device's free memory."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return bool(size <= RESIDENT_SHARE * free)


def _indices_of(pattern: Pattern) -> Any:
    return pattern.tensor if isinstance(pattern, TensorPattern) else pattern.indices


_UPLOADED: WeakKeyDictionary[SparseRows, dict[tuple[str, str], DeviceRows]] = WeakKeyDictionary()
"""Leaves with the rows, so nothing in it may hold them."""


def device_rows(rows: SparseRows, device: Any, dtype: Any) -> DeviceRows:
    """Bring rows to a device, once for as long as the rows live: the renewed problems of a fit share them."""
    places = _UPLOADED.setdefault(rows, {})
    key = (str(device), str(dtype))
    if key not in places:
        places[key] = DeviceRows(rows, device, dtype)
    return places[key]
