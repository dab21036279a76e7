"""Counts on a device: kept there where they fit, streamed from the host block by block where they do not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from log1pnmf.counts.sparse_rows import Pattern, SparseRows, row_blocks

from .counts import TensorPattern

__all__ = ["Block", "DevicePattern", "DeviceRows", "Stored", "device_rows"]

RESIDENT_SHARE = 0.4
"""Part of a card's free memory that the rows of one side may take; the other side wants as much."""
STREAMED_ENTRIES = 1 << 27
"""Entries of a block that is streamed, 1 GiB; two of them are on the device at a time."""
PIECE = 1 << 12
"""Entries of a row that one program takes, where all rows are looked at."""
N_COPIERS = min(8, os.cpu_count() or 1)
"""Threads that copy counts into page-locked memory: one alone is slower than the way to the card."""
MOST_ROWS = 1 << 18
"""Rows of a block: bounds the memory of their K x K matrices."""


_COPIERS = ThreadPoolExecutor(N_COPIERS, "log1pnmf-copy")


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
    def pieces(self) -> tuple[Any, Any] | None:
        """Row of each piece of up to `PIECE` entries, and where it begins in the row; None if no row is long.

        A row that is much longer than others would keep the card waiting.
        """
        parts = ((self.lengths + PIECE - 1) // PIECE).clamp(min=1)
        if int(parts.max()) <= 2:
            return None
        owner = torch.repeat_interleave(self.numbers, parts)
        number = torch.arange(len(owner), device=owner.device) - (torch.cumsum(parts, 0) - parts)[owner]
        return owner, PIECE * number

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
        self.resident = _fits(4 * pattern.nnz, device) if resident is None else resident
        if self.resident:
            self._indptr = torch.from_numpy(np.array(pattern.indptr)).to(device)
            self._indices = _to_device(_indices_of(pattern), device, torch.int32)

    def of(self, block: Block) -> Stored | None:
        """Give those of the rows of a block; None where there are none."""
        rows = slice(block.first, block.first + block.n_rows + 1)
        first, last = (int(end) for end in self._pattern.indptr[rows][[0, -1]])
        if first == last:
            return None
        if self.resident:
            return Stored(self._indptr[rows], self._indices)
        local = torch.from_numpy(self._pattern.indptr[rows] - first).to(self._device)
        return Stored(local, _to_device(_indices_of(self._pattern)[first:last], self._device, torch.int32))


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
        self._rows, self._device, self._dtype = rows, device, dtype
        self._streamed_entries = streamed_entries
        size = rows.nnz * (4 + torch.empty(0, dtype=dtype).element_size())
        self.resident = _fits(size, device) if resident is None else resident
        self._blocks: list[Block] = []
        if self.resident:
            self._indices = _to_device(rows.indices, device, torch.int32)
            self._values = _to_device(rows.values, device, dtype)

    def blocks(self) -> Iterator[Block]:
        """Walk through all rows, in order."""
        if not self.resident:
            return self._streamed()
        if not self._blocks:
            self._blocks.extend(self._kept())
        return iter(self._blocks)

    def _ranges(self, most_entries: int) -> Iterator[tuple[int, int]]:
        for start, stop in row_blocks(self._rows.indptr, most_entries):
            for first in range(start, stop, MOST_ROWS):
                yield first, min(first + MOST_ROWS, stop)

    def _block(self, start: int, stop: int, indices: Any, values: Any) -> Block:
        indptr = self._rows.indptr[start : stop + 1]
        local = torch.from_numpy(indptr - indptr[0]).to(self._device)
        return Block(start, local, indices, values, bool((np.diff(indptr) == 0).any()))

    def _kept(self) -> Iterator[Block]:
        for start, stop in self._ranges(max(1, self._rows.nnz)):
            entries = slice(int(self._rows.indptr[start]), int(self._rows.indptr[stop]))
            yield self._block(start, stop, self._indices[entries], self._values[entries])

    def _streamed(self) -> Iterator[Block]:
        """Copy a block while the one before is worked on; two sets of buffers take turns."""
        ranges = list(self._ranges(self._streamed_entries))
        largest = max((int(self._rows.indptr[b] - self._rows.indptr[a]) for a, b in ranges), default=0)
        buffers = [_Buffers(largest, self._device, self._dtype) for _ in range(2)]
        with ThreadPoolExecutor(max_workers=1) as pool:
            coming: Future[tuple[Any, Any]] | None = None
            for number, (start, stop) in enumerate(ranges):
                here = coming or pool.submit(buffers[0].fill, self._rows, start, stop)
                indices, values = here.result()
                buffers[number % 2].wait()
                coming = None
                if number + 1 < len(ranges):
                    other = buffers[(number + 1) % 2]
                    other.release()
                    coming = pool.submit(other.fill, self._rows, *ranges[number + 1])
                yield self._block(start, stop, indices, values)


class _Buffers:
    """Room for one streamed block: page-locked on the host, plain on the device."""

    def __init__(self, entries: int, device: Any, dtype: Any) -> None:
        self._cuda = device.type == "cuda"
        host = {"pin_memory": self._cuda}
        self._host = (
            torch.empty(entries, dtype=torch.int32, **host),
            torch.empty(entries, dtype=dtype, **host),
        )
        self._there = tuple(torch.empty_like(one, device=device, pin_memory=False) for one in self._host)
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._free: Any = None

    def fill(self, rows: SparseRows, start: int, stop: int) -> tuple[Any, Any]:
        first, last = int(rows.indptr[start]), int(rows.indptr[stop])
        n = last - first
        if self._stream is not None:
            self._stream.synchronize()  # the last copy out of the host's buffer
        jobs = []
        for buffer, source in zip(self._host, (rows.indices, rows.values), strict=True):
            to, size = buffer.numpy(), max(1 << 16, -(-n // N_COPIERS))
            for at in range(0, n, size):
                piece = source[first + at : first + min(at + size, n)]
                jobs.append(_COPIERS.submit(np.copyto, to[at : at + len(piece)], piece, casting="same_kind"))
        for job in jobs:
            job.result()
        if self._stream is None:
            for there, here in zip(self._there, self._host, strict=True):
                there[:n].copy_(here[:n])
        else:
            with torch.cuda.stream(self._stream):
                if self._free is not None:
                    self._stream.wait_event(self._free)
                for there, here in zip(self._there, self._host, strict=True):
                    there[:n].copy_(here[:n], non_blocking=True)
        return self._there[0][:n], self._there[1][:n]

    def wait(self) -> None:
        """Let the work that comes now wait for the copy."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def release(self) -> None:
        """Mark the work queued so far as the last that uses this buffer."""
        if self._stream is not None:
            self._free = torch.cuda.Event()
            self._free.record()


def _fits(size: int, device: Any) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return bool(size <= RESIDENT_SHARE * free)


def _to_device(array: Any, device: Any, dtype: Any) -> Any:
    if isinstance(array, torch.Tensor):
        return array.to(device=device, dtype=dtype)
    if device.type == "cpu":
        return torch.from_numpy(array.astype(np.dtype(str(dtype).removeprefix("torch.")), copy=True))
    out = torch.empty(len(array), dtype=dtype, device=device)
    for at in range(0, len(array), STREAMED_ENTRIES):  # no second copy of the whole on the host
        piece = np.array(array[at : at + STREAMED_ENTRIES])
        out[at : at + len(piece)].copy_(torch.from_numpy(piece))
    return out


def _indices_of(pattern: Pattern) -> Any:
    return pattern.tensor if isinstance(pattern, TensorPattern) else pattern.indices


_UPLOADED: WeakKeyDictionary[SparseRows, dict[tuple[str, str], DeviceRows]] = WeakKeyDictionary()


def device_rows(rows: SparseRows, device: Any, dtype: Any) -> DeviceRows:
    """Bring rows to a device, once for as long as the rows live: the renewed problems of a fit share them."""
    places = _UPLOADED.setdefault(rows, {})
    key = (str(device), str(dtype))
    if key not in places:
        places[key] = DeviceRows(rows, device, dtype)
    return places[key]
