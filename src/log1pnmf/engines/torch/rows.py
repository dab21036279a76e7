"""What of a problem is on a device: its counts, and what belongs to the rows and columns of a half-step.

Counts stay there where they fit, and are streamed from the host block by block where they do not.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple
from weakref import finalize

import numpy as np
import torch

from log1pnmf._common.arrays import on_host
from log1pnmf.counts.compress import Pattern, SparseRows, row_blocks
from log1pnmf.counts.counts import Counts, Tally, stirling
from log1pnmf.model.noise import NegativeBinomial
from log1pnmf.model.problem import Side

# ---------- counts by column, sorted on a device

COPIED_ENTRIES = 1 << 27  # entries that are copied to a device at a time
SORTED_ENTRIES = 1 << 25  # entries that are sorted at a time, which takes 1.5 GB


class TensorPattern(Pattern):
    """`log1pnmf.counts.compress.Pattern` whose entries are on a device, and on the host when asked for."""

    def __init__(self, shape: tuple[int, int], indptr: np.ndarray, tensor: Any) -> None:
        for name, value in (("shape", shape), ("indptr", indptr), ("tensor", tensor)):
            object.__setattr__(self, name, value)

    tensor: Any

    @cached_property
    def indices(self) -> np.ndarray:
        """Column of each entry, copied to the host."""
        return on_host(self.tensor)

    @cached_property
    def transposed(self) -> TensorPattern:
        """The same entries with rows and columns exchanged, sorted on the device."""
        indptr, row, _ = _transposed(self.shape, self.indptr, self.tensor)
        return TensorPattern(self.shape[::-1], indptr, row)


def _transposed(
    shape: tuple[int, int], indptr: np.ndarray, indices: Any, values: Any = None
) -> tuple[np.ndarray, Any, Any]:
    """Return where columns begin, and row and value of each of their entries."""
    device = indices.device
    totals = on_host(torch.bincount(indices, minlength=shape[1]))
    begin = np.concatenate(([0], np.cumsum(totals))).astype(np.int64)
    place, lengths = (torch.as_tensor(one, device=device) for one in (begin[:-1], np.diff(indptr)))
    rows, moved = torch.empty_like(indices), None if values is None else torch.empty_like(values)
    for start, stop in row_blocks(indptr, SORTED_ENTRIES):
        entries = slice(int(indptr[start]), int(indptr[stop]))
        column, order = torch.sort(indices[entries], stable=True)
        own = torch.bincount(column, minlength=shape[1])
        to = (place - own.cumsum(0) + own)[column] + torch.arange(len(column), device=device)
        numbers = torch.arange(start, stop, dtype=torch.int32, device=device)
        rows[to] = torch.repeat_interleave(numbers, lengths[start:stop])[order]
        if moved is not None:
            moved[to] = values[entries][order]
        place = place + own
    return begin, rows, moved


@dataclass(frozen=True, eq=False)
class UploadedCounts(Counts):
    """Counts of the host that are on a device as well; there they are transposed much faster."""

    on_device: ClassVar[bool] = True
    there: Any = None  # `DeviceRows` of the samples

    @cached_property
    def by_column(self) -> Any:
        """The transpose, on the device: `DeviceRows`."""
        there = self.there
        parts = _transposed(self.shape, self.by_row.indptr, there.indices, there.values)
        return DeviceRows(self.shape[::-1], *parts, device=there.values.device, dtype=there.values.dtype)

    @cached_property
    def log_factorial(self) -> float:
        """Sum over all entries of log(y!)."""
        pieces = self.there.values.split(SORTED_ENTRIES)
        return math.fsum(float(torch.lgamma(piece.double() + 1.0).sum()) for piece in pieces)

    @cached_property
    def stirling(self) -> float:
        """Sum over the counts of log(y!) - y log(y) + y."""
        often = (torch.unique(piece, return_counts=True) for piece in self.there.values.split(SORTED_ENTRIES))
        return math.fsum(float(np.sum(on_host(times) * stirling(on_host(y)))) for y, times in often)

    @cached_property
    def tally(self) -> Tally:
        """How often every feature has every count; bits of positive numbers have the order of the numbers."""
        if self.by_row.values.dtype != np.float32:
            return self._host.tally
        rows, parts = self.by_column, []
        for start, stop in row_blocks(rows.indptr, SORTED_ENTRIES):
            lengths = torch.as_tensor(np.diff(rows.indptr[start : stop + 1]), device=rows.values.device)
            features = torch.arange(start, stop, device=rows.values.device)
            bits = rows.values[rows.indptr[start] : rows.indptr[stop]].float().view(torch.int32)
            keys = torch.repeat_interleave(features, lengths) << 32 | bits
            parts.append(torch.unique(keys, return_counts=True))
        keys, times = (on_host(torch.cat(one)) for one in zip(*parts, strict=True))
        ends = np.searchsorted(keys >> 32, np.arange(self.n_features + 1))
        values = keys.astype(np.int32).view(np.float32)  # the lower half
        return Tally(ends, values.astype(np.float64), times.astype(np.float64))

    @cached_property
    def _host(self) -> Counts:
        return Counts(self.by_row, None, self.sample_names, self.feature_names)

    def on_host(self) -> Counts:
        """Return the same counts with columns on the host."""
        return self._host


def uploaded(counts: Counts, device: Any, dtype: Any) -> Counts:
    """Copy counts to a device; return them as they are if they are there already, or it is too small."""
    if counts.on_device or not fits(2 * counts.nnz * (4 + dtype.itemsize), device):
        return counts
    there = DeviceRows.of(counts.by_row, device, dtype)
    copied = UploadedCounts(counts.by_row, None, counts.sample_names, counts.feature_names, there)
    copied.__dict__["row_sums"] = counts.row_sums
    return copied


def to_device(array: Any, device: Any, dtype: Any) -> Any:
    """Copy an array to a device, as a tensor of some type."""
    if isinstance(array, torch.Tensor):
        return array.to(device=device, dtype=dtype)
    out = torch.empty(len(array), dtype=dtype, device=device)
    for at in range(0, len(array), COPIED_ENTRIES):  # no second copy of the whole where types differ
        piece = read_only(np.ascontiguousarray(array[at : at + COPIED_ENTRIES]))
        out[at : at + len(piece)].copy_(piece)
    return out


def read_only(array: np.ndarray) -> Any:
    """Return an array of the host as a tensor that shares its memory, and must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


# ---------- counts on a device

RESIDENT_SHARE = 0.4
"""Part of a card's free memory that the rows of one side may take; the other side wants as much."""
STREAMED_ENTRIES = 1 << 27
"""Entries of a block that is streamed, 1 GiB; two of them are on the device at a time."""
PIECE = 1 << 12  # entries of a row that one program takes, where all rows are evaluated
LEAST_LOCKED = 1 << 26  # bytes of an array that is page-locked; smaller ones may share a page with others
MOST_ROWS = 1 << 18  # rows of a block: bounds the memory of their K x K matrices


@dataclass(frozen=True, eq=False)
class Block:
    """Some consecutive rows, on the device."""

    first: int  # number of its first row
    indptr: Any  # (rows + 1,): into `indices` and `values`, from 0
    indices: Any
    values: Any
    has_empty: bool  # whether there are rows without entries

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
    """Exact zeros of some consecutive rows, on the device."""

    indptr: Any  # (rows + 1,): into `indices`, not from 0
    indices: Any


class DevicePattern:
    """Entries of compressed rows on a device, or brought there block by block where they do not fit."""

    def __init__(self, pattern: Pattern, device: Any) -> None:
        self._pattern, self._device = pattern, device
        self.resident = fits(4 * pattern.nnz, device)
        if self.resident:
            self._indptr = torch.from_numpy(np.array(pattern.indptr)).to(device)
            self._indices = to_device(_indices_of(pattern), device, torch.int32)

    def of(self, block: Block) -> Stored | None:
        """Return those of the rows of a block; None where there are none."""
        rows = slice(block.first, block.first + block.n_rows + 1)
        first, last = (int(end) for end in self._pattern.indptr[rows][[0, -1]])
        if first == last:
            return None
        if self.resident:
            return Stored(self._indptr[rows], self._indices)
        local = torch.from_numpy(self._pattern.indptr[rows] - first).to(self._device)
        return Stored(local, to_device(_indices_of(self._pattern)[first:last], self._device, torch.int32))


class DeviceRows:
    """Compressed rows that can be walked through on a device; where rows begin is known on the host."""

    def __init__(
        self,
        shape: tuple[int, int],
        indptr: np.ndarray,
        indices: Any,
        values: Any,
        *,
        device: Any,
        dtype: Any,
        resident: bool = True,
        streamed_entries: int = STREAMED_ENTRIES,
    ) -> None:
        self.shape, self.indptr, self.nnz = shape, indptr, int(indptr[-1])
        self._device, self._dtype, self._streamed_entries = device, dtype, streamed_entries
        self.resident, self._blocks = resident, list[Block]()
        if resident:
            self.indices = to_device(indices, device, torch.int32)
            self.values = to_device(values, device, dtype)
        else:
            self.indices, self.values = (self._readable(one) for one in (indices, values))

    @classmethod
    def of(cls, rows: SparseRows, device: Any, dtype: Any, **how: Any) -> DeviceRows:
        """Bring rows of the host to a device, or read them from there in blocks if they do not fit."""
        how.setdefault("resident", fits(rows.nnz * (4 + dtype.itemsize), device))
        return cls(rows.shape, rows.indptr, rows.indices, rows.values, device=device, dtype=dtype, **how)

    def row_sums(self) -> np.ndarray:
        """Sum of every row, added up in float64."""
        sums, lengths = [], torch.as_tensor(np.diff(self.indptr), device=self._device)
        for start, stop in row_blocks(self.indptr, COPIED_ENTRIES):
            values = self.values[self._entries(start, stop)].double()
            sums.append(torch.segment_reduce(values, "sum", lengths=lengths[start:stop], unsafe=True))
        return on_host(torch.cat(sums))

    def blocks(self) -> Iterator[Block]:
        """Walk through all rows, in order."""
        if not self.resident:
            return self._streamed()
        if not self._blocks:
            self._blocks.extend(self._kept())
        return iter(self._blocks)

    def _ranges(self, most_entries: int) -> Iterator[tuple[int, int]]:
        for start, stop in row_blocks(self.indptr, most_entries):
            for first in range(start, stop, MOST_ROWS):
                yield first, min(first + MOST_ROWS, stop)

    def _block(self, start: int, stop: int, indices: Any, values: Any) -> Block:
        indptr = self.indptr[start : stop + 1]
        local = torch.from_numpy(indptr - indptr[0]).to(self._device)
        return Block(start, local, indices, values, bool((np.diff(indptr) == 0).any()))

    def _entries(self, start: int, stop: int) -> slice:
        return slice(int(self.indptr[start]), int(self.indptr[stop]))

    def _kept(self) -> Iterator[Block]:
        for start, stop in self._ranges(max(1, self.nnz)):
            entries = self._entries(start, stop)
            yield self._block(start, stop, self.indices[entries], self.values[entries])

    def _streamed(self) -> Iterator[Block]:
        """Copy a block while the one before is worked on; two sets of buffers take turns."""
        ranges = list(self._ranges(self._streamed_entries))
        largest = max((self.indptr[b] - self.indptr[a] for a, b in ranges), default=0)
        source = self.indices, self.values
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
        """Return an array of the host as a tensor, and page-lock it: the card then reads it without a copy.

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
                with contextlib.suppress(RuntimeError):  # the next kernel reports the error, and it is gone
                    torch.zeros(1, device=self._device)
        return tensor


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
        """Return the block; the work that comes now waits for the copy."""
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
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return bool(size <= RESIDENT_SHARE * (torch.cuda.mem_get_info(device)[0] + unused))


def _indices_of(pattern: Pattern) -> Any:
    return pattern.tensor if isinstance(pattern, TensorPattern) else pattern.indices


# ---------- the two parts of a half-step: its fixed design, and what its rows have of their own

SMALLEST_ETA = {torch.float32: 1e-16, torch.float64: 1e-30}
DENSE_BYTES = 1 << 30  # of one rows x columns array; at most a few are there at a time
GRAM_BYTES = 1 << 28  # of the K x K matrices that rows have of their own, of one piece of rows


@dataclass(frozen=True)
class Form:
    """Link and treatment of zero counts."""

    # identity link; all zeros exact
    identity: bool
    exact: bool
    # derivatives are taken with eta held in between
    smallest: float
    largest: float
    dispersed: bool = False  # negative binomial noise
    large: bool = False  # etas are large, as at a small c, and need all digits of their type

    @property
    def linear(self) -> bool:
        """Whether zeros cost their mean, and that is linear in eta: nothing differs from a quadratic."""
        return self.identity and not self.dispersed

    @property
    def quadratic(self) -> bool:
        """Whether a quadratic replaces zeros."""
        return not (self.exact or self.linear)

    @property
    def sums_rises(self) -> bool:
        """Whether exact entries decide how the curvature changes: all others have a constant one."""
        return not self.dispersed and (self.identity or not self.exact)

    @property
    def concave(self) -> bool:
        """Whether those quadratics may have a concave part."""
        return self.quadratic and self.dispersed


class ColumnSums(NamedTuple):
    """Sums over all columns of a design, in float64.

    decline: of ``t x``, (batches, K), one without batches. linear, gram: of ``x``, (1, K), and of ``x x'``,
    (P, K, K), with the weights of `log1pnmf.model.problem.SideZeros`, or the exposure where all zeros are
    exact; with batches there are as many, batch by batch.
    """

    decline: Any
    linear: Any
    gram: Any


@dataclass(frozen=True, eq=False)
class Design:
    """The fixed side of a half-step."""

    form: Form  # of the problem
    kept: Kept  # what belongs to the columns
    X: Any  # (columns, K): in the type that is computed in
    padded: Any  # (columns, width): `X` with columns of zeros up to a power of two, which Triton needs
    wide: Any  # (columns, K): `X` with all its digits

    # Found when first asked for: by then a card is busy with the entries.

    @cached_property
    def rough(self) -> Any:
        """`padded` with two digits in single precision, for bounds of what a step changes."""
        return self.padded.to(torch.bfloat16) if self.X.dtype == torch.float32 else self.padded

    @cached_property
    def largest(self) -> Any:
        """Largest entries of the columns of `wide`, float64, shape (K,)."""
        return self.wide.amax(0)

    @cached_property
    def sums(self) -> ColumnSums:
        """Sums over the columns."""
        return self.kept.sums(self.wide)


@dataclass(frozen=True, eq=False)
class Own:
    """What the rows of a half-step have of their own, beside their counts."""

    # (n,): in the type that is computed in; the latter where columns are samples of several batches
    exposure: Any
    # (n, 1) and (n, P): weights of ``ColumnSums.linear`` and ``ColumnSums.gram``
    linear: Any
    square: Any
    # (n, 2): linear and quadratic coefficient for zeros, where rows have their own; with dispersions a third
    # is multiplied by the exposure and added to the quadratic one
    quadratic: Any = None
    stored: Stored | None = None  # zeros that are computed exactly, of all rows of the block
    dispersion: Any = None  # (n,): where rows have their own
    batch: Any = None  # (n,): number of the batch of every row, where rows are samples of several batches

    def at(self, rows: Any) -> Own:
        """Take some rows of the block."""
        some = (self.quadratic, self.dispersion, self.batch)
        quadratic, phi, batch = (None if one is None else one[rows] for one in some)
        own = self.exposure[rows], self.linear[rows], self.square[rows]
        return Own(*own, quadratic, self.stored, phi, batch)


class Sums(NamedTuple):
    """Loss (float64), gradient (float64) and, where asked for, Hessian of every row.

    concave: with a concave part, sums of ``t eta`` and ``-2 t^2 b2 eta^2``, in float64, shape (n, 2).
    """

    loss: Any
    gradient: Any
    hessian: Any
    concave: Any = None


def declines(own: Own, design: Design) -> Any:
    """Sum of ``t x`` over all columns, for every row."""
    exposure = own.exposure.double()
    return _weighed(exposure[:, None] if exposure.ndim == 1 else exposure, design.sums.decline, own)


def linears(own: Own, design: Design) -> Any:
    """Linear part of what replaces zeros, for every row."""
    return _weighed(own.linear, design.sums.linear, own)


def with_grams(H: Any, own: Own, design: Design) -> Any:
    """Add twice the quadratic part to every row's matrix."""
    if own.batch is None and own.square.shape[1] == 1:
        return torch.addcmul(H, own.square.to(H.dtype)[:, :, None], 2.0 * design.sums.gram.to(H.dtype))
    return H + 2.0 * grams(own, design, H.dtype)


def grams(own: Own, design: Design, dtype: Any, *, concave: bool = False) -> Any:
    """Quadratic part, a K x K matrix for every row: the convex one, or the concave one."""
    part = slice(int(concave), None, 2 if design.form.concave else 1)
    weights, sums = own.square[:, part].to(dtype), design.sums.gram[part].flatten(1).to(dtype)
    return _weighed(weights, sums, own).unflatten(1, design.sums.gram.shape[1:])


def gram_products(own: Own, design: Design, b: Any, *, concave: bool = False) -> Any:
    """Every row's own Gram matrix times its `b`; of the convex part, or of the concave one."""
    if len(design.sums.gram) == (2 if design.form.concave else 1):
        return own.square[:, concave : concave + 1] * (b @ design.sums.gram[int(concave)])
    n, K = b.shape
    size, done = max(1, GRAM_BYTES // (8 * K * K)), torch.empty_like(b)
    for first in range(0, n, size):
        at = slice(first, first + size)
        matrices = grams(own.at(at), design, b.dtype, concave=concave)
        done[at] = torch.bmm(matrices, b[at, :, None])[:, :, 0]
    return done


def _weighed(weights: Any, sums: Any, own: Own) -> Any:
    """Weigh the sums over columns: all of them, or those of the row's batch."""
    if own.batch is None:
        return weights @ sums
    return torch.bmm(weights[:, None], sums.unflatten(0, (-1, weights.shape[1]))[own.batch])[:, 0]


def completed(loss: Any, total: Any, design: Design, own: Own, hessian: bool) -> Sums:
    """Make sums of those over the columns of `wide`; with Poisson noise the slope is ``t (em + 1)``."""
    K, form = design.X.shape[1], design.form
    gradient = total[:, :K].double()
    if not form.dispersed:
        gradient = gradient + linears(own, design)
    if not hessian:
        return Sums(loss, gradient, None)
    H = total[:, place(K, total.device)].to(design.X.dtype)
    if form.dispersed:  # at the identity link the weights are zero
        return Sums(loss, gradient, torch.zeros_like(H) if form.identity else H)
    return Sums(loss, gradient, H + grams(own, design, H.dtype))


def wide(X: Any, hessian: bool) -> Any:
    """Return the design, and its products of two columns beside it where a Hessian is wanted."""
    if not hessian:
        return X
    first, second = torch.triu_indices(X.shape[1], X.shape[1], device=X.device)
    return torch.cat([X, X[:, first] * X[:, second]], dim=1)


def place(K: int, device: Any) -> Any:
    """Return the column of `wide` for every entry of a Hessian."""
    first, second = torch.triu_indices(K, K, device=device)
    where = torch.empty(K, K, dtype=torch.int64, device=device)
    where[first, second] = where[second, first] = K + torch.arange(len(first), device=device)
    return where


class Box(NamedTuple):
    """Bounds and penalties of the coefficients of some rows, each of shape (n, K)."""

    lower: Any
    upper: Any
    penalty: Any

    def at(self, rows: Any) -> Box:
        """Return those of some of the rows."""
        return Box(*(one[rows] for one in self))


class Kept:
    """Exposures, zeros, dispersions and batches of one side.

    Where all zeros are computed exactly, the sums of ``x`` and ``x x'`` are weighed by exposure.
    """

    def __init__(self, side: Side, device: Any, dtype: Any) -> None:
        def there(array: Any) -> Any:
            return torch.tensor(array, device=device)

        zeros, row, column = side.zeros, there(side.row_exposure), there(side.column_exposure)
        batch = None
        self.column_batch: Any = None
        self._order: Any = None
        if side.batches is not None:
            labels, effects = there(side.batches.labels), there(side.batches.effects)
            if side.rows_are_features:
                self.column_batch, row = labels, (row[:, None] * effects.T).contiguous()
                self._order = torch.argsort(labels, stable=True)
                self._ends = [0, *np.cumsum(np.bincount(side.batches.labels, minlength=len(effects)))]
            else:
                batch, column = labels.long(), column * effects
        self.row_exposure, self.column_exposure, self.exposure = row, column, column.to(dtype)
        self.lowest = torch.full((1,), SMALLEST_ETA[dtype], dtype=dtype, device=device)
        self.stored, self.column_quadratic, quadratic = None, None, None
        if zeros is None:
            self._linear = self._square = column.reshape(-1, column.shape[-1])
            linear = square = row.reshape(len(row), -1)
        else:
            linear, square, self._linear, self._square = map(there, side.terms_of_zeros())
            if zeros.stored is not None and zeros.stored.nnz:
                self.stored = DevicePattern(zeros.stored, device)
            if zeros.row_quadratic is not None:
                quadratic = there(zeros.row_quadratic).to(dtype)
            else:
                self.column_quadratic = there(zeros.column_quadratic).to(dtype)
        self.column_dispersion, own = None, None
        if isinstance(side.noise, NegativeBinomial):
            n = side.rows.shape[0 if side.rows_are_features else 1]
            phi = there(np.broadcast_to(side.noise.dispersion, n).copy()).to(dtype)
            self.column_dispersion, own = (None, phi) if side.rows_are_features else (phi, None)
        self._own = Own(row.to(dtype), linear, square, quadratic, dispersion=own, batch=batch)
        self._of: dict[int, Own] = {}

    def of(self, block: Block) -> Own:
        """Return what the rows of a block have of their own."""
        if block.first in self._of:
            return self._of[block.first]
        own = self._own.at(slice(block.first, block.first + block.n_rows))
        if self.stored is not None:
            own = replace(own, stored=self.stored.of(block))
        if self.stored is None or self.stored.resident:
            self._of[block.first] = own
        return own

    def sums(self, X: Any) -> ColumnSums:
        """Sum over the columns of a design."""
        exposure = self.column_exposure.reshape(-1, len(X))
        parts: list[tuple[Any, Any]] = [(X, slice(None))]
        if self._order is not None:  # one part for every batch, of neighbours
            X, cuts = X[self._order], itertools.pairwise(self._ends)
            parts = [(X[first:last], self._order[first:last]) for first, last in cuts]
        weights = exposure, self._linear, self._square
        linear: tuple[list[Any], list[Any]] = [], []
        squares: list[Any] = []
        for x, at in parts:
            decline, own, square = (one[:, at] for one in weights)
            linear[0].append(decline @ x)
            linear[1].append(own @ x)
            squares.extend((one[:, None] * x).T @ x for one in square)
        return ColumnSums(joined(linear[0]), joined(linear[1]), torch.stack(squares))


def joined(parts: list[Any]) -> Any:
    """Put tensors one after the other; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
