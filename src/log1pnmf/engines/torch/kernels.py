"""What single entries add to loss, gradient and Hessian, as parts of Triton kernels: all links and noises.

The exact form as Triton kernels: what all entries of some rows add, without a matrix of them in memory.

A program takes some rows and a range of columns. Products on the tensor cores see numbers in two parts, so
that gradients are as exact as float32. Of the weights in a Hessian they see one part: that changes it by less
than a thousandth, and cannot make it indefinite.

The operations of `terms` as Triton kernels: one program per row, fixed order of every sum.

A row's non-zeros, and then its stored zeros, are read in tiles: gather the design rows, eta, expm1,
residual and weight, then the gradient by a sum and the Hessian by matrix products on the tensor cores. Every
thread sums its entries in float32, and what threads and programs have is summed in float64. Offsets into the
entries are 64 bits wide.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from log1pnmf.engines.torch import terms as dense
from log1pnmf.model.link import LARGEST_ETA

from .rows import PIECE, Block
from .terms import IMPOSSIBLE, LEAST_RATIO, Box, Design, Own, Reach, Sums, completed, wide

# ---------- what single entries add to loss, gradient and Hessian, as parts of Triton kernels

LOG2E = tl.constexpr(1.4426950408889634)
SMALL = tl.constexpr(0.4)
MANY_ROWS = 2000


def entry_arguments(
    block: Block, rows: Any, design: Design, own: Own, *, rough: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Where the kernels find entries and what belongs to them, and their kinds.

    What is not there is not read. `rough`: with few digits of the design.
    """
    stored, form = own.stored or block, design.form
    quadratic = design.quadratic if design.quadratic is not None else own.quadratic
    dispersion = design.dispersion if design.dispersion is not None else own.dispersion
    labels = own.batch if own.batch is not None else design.batch
    arguments = (
        rows, block.indptr, block.indices, block.values, stored.indptr, stored.indices, own.exposure,
        design.exposure, rows if labels is None else labels,
        design.exposure if quadratic is None else quadratic,
        design.exposure if dispersion is None else dispersion,
        design.rough if rough else design.padded, design.lowest,
        design.exposure.shape[-1], own.exposure.stride(0), form.smallest, form.largest,
    )  # fmt: skip
    kinds = {
        "IDENTITY": form.identity,
        "QUADRATIC": form.quadratic,
        "BY_COLUMN": design.quadratic is not None,
        "STORED": own.stored is not None,
        "DISPERSED": form.dispersed,
        "OF_ROWS": own.dispersion is not None,
        "BATCH": 1 if own.batch is not None else 2 if design.batch is not None else 0,
    }
    return arguments, kinds


def tile_and_warps(W: int, n: int, hessian: bool) -> tuple[int, int]:
    """Entries of a tile and warps of a program: small for many rows, large where few must be quick."""
    if W > 32:
        return 32, 4 if W <= 64 else 8
    if n >= MANY_ROWS and hessian and W <= 16:
        return 32, 2  # one warp would need too many registers
    if n >= MANY_ROWS:
        return 32 if hessian or W > 16 else 64, 1
    return (128, 4) if W <= 16 else (64, 4)


@triton.jit
def begin(program, rows, indptr, row_exposure, labels, columns, own_exposures, BATCH: tl.constexpr):
    """Return the row of a program, its entries and exposure, and where its exposures begin."""
    row = tl.load(rows + program)
    start, stop = tl.load(indptr + row), tl.load(indptr + row + 1)
    row_at, column_at = program * own_exposures, program * 0
    if BATCH == 1:
        column_at = tl.load(labels + program) * columns
    return row, start, stop, tl.load(row_exposure + row_at), row_at, column_at


@triton.jit
def rough_expm1(x):
    """Exponential minus one to six digits: a polynomial where more would be lost otherwise."""
    p = 1.0 / 120.0 + x * (1.0 / 720.0 + x * (1.0 / 5040.0))
    p = x + x * x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * p)))
    return tl.where(tl.abs(x) < SMALL, p, tl.exp2(x * LOG2E) - 1.0)


@triton.jit
def log1p_ratio(x):
    """``log(1 + x) / x``, 1 at 0; what is lost in ``1 + x`` is put back."""
    u = 1.0 + x
    ratio = tl.where(u == 1.0, 1.0, libdevice.log(u) / (u - 1.0))
    series = 1.0 - x * (0.5 - x * (1.0 / 3.0 - x * (0.25 - x * (0.2 - x * (1.0 / 6.0)))))
    return tl.where(tl.abs(x) < 0.05, series, ratio)


@triton.jit
def em_of(eta, smallest, largest, IDENTITY: tl.constexpr):
    """Eta held in its bounds, and ``expm1`` of it."""
    inside = tl.maximum(eta, smallest)
    if IDENTITY:
        em = inside
    else:
        inside = tl.minimum(inside, largest)
        em = libdevice.expm1(inside)
    return inside, em


@triton.jit
def rise_of(em, delta, largest, IDENTITY: tl.constexpr):
    """By how much em rises with eta."""
    if IDENTITY:
        rise = delta
    else:
        rise = (em + 1.0) * libdevice.expm1(tl.minimum(delta, largest))
    return rise


@triton.jit
def gather(indices, at, stop, design, k, W: tl.constexpr, TILE: tl.constexpr):
    """Entries of a tile, whether they are there, their columns and design rows."""
    entry = at + tl.arange(0, TILE)
    there = entry < stop
    column = tl.load(indices + entry, mask=there, other=0)
    place = column.to(tl.int64)[:, None] * W + k[None, :]
    return entry, there, column, tl.load(design + place, mask=there[:, None], other=0.0).to(tl.float32)


@triton.jit
def exposure_of(
    row_exposure, column_exposure, labels, column, row_at, column_at, t_row, there, BATCH: tl.constexpr
):
    """Exposure of the entries of a tile.

    BATCH: 0 without batches, 1 where rows are samples of several, 2 where columns are, 3 without batches
    and with the same exposure for all columns. `row_at` is where a row's exposures begin, `column_at` where
    those of its batch do.
    """
    if BATCH == 3:
        t = t_row + tl.zeros_like(column).to(tl.float32)
    else:
        t = tl.load(column_exposure + column_at + column, mask=there, other=0.0)
        if BATCH == 2:
            label = tl.load(labels + column, mask=there, other=0)
            t *= tl.load(row_exposure + row_at + label, mask=there, other=0.0)
        else:
            t *= t_row
    return t


@triton.jit
def coefficients(quadratic, column, program, t, there, BY_COLUMN: tl.constexpr, DISPERSED: tl.constexpr):
    """Coefficients for zeros, of the column or of the row: linear, quadratic, and of the concave part."""
    if DISPERSED:
        N: tl.constexpr = 3
    else:
        N: tl.constexpr = 2
    if BY_COLUMN:
        at = quadratic + N * column
    else:  # loaded once for every entry, so that the arithmetic is spread over all threads
        at = quadratic + N * program + tl.zeros_like(column)
    a1, a2 = tl.load(at, mask=there, other=0.0), tl.load(at + 1, mask=there, other=0.0)
    bent = tl.zeros_like(a1)
    if DISPERSED:
        bent = t * tl.load(at + 2, mask=there, other=0.0)
    return a1, a2, bent


@triton.jit
def dispersion_of(dispersion, column, program, there, rows_are_features: tl.constexpr):
    if rows_are_features:
        phi = tl.load(dispersion + program)
    else:
        phi = tl.load(dispersion + column, mask=there, other=0.0)
    return phi


@triton.jit
def high(x):
    """Round a float32 to what a tensor core sees of it."""
    return ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def add_squares(H, X, weight):
    """Add ``X' diag(weight) X`` to three digits, which is enough for a step.

    Both operands are the same but for signs, so what tensor cores cut off leaves H symmetric, and
    semi-definite where no weight is negative.
    """
    A = X * tl.sqrt(tl.abs(weight))[:, None]
    B = tl.where(weight[:, None] < 0.0, -A, A)
    return tl.dot(tl.trans(A), B, acc=H, input_precision="tf32", out_dtype=tl.float32)


# ---------- small box-constrained quadratic programs as a Triton kernel, several of them in one program

MOST_ROUNDS, SWEEP_TOLERANCE = 12, 1e-9
NARROWEST = 16  # what a matrix product of tiles needs
TINY = tl.constexpr(1.2e-38)


def width(K: int) -> int:
    """Columns of a padded design: the next power of two, and enough for a matrix product."""
    return max(NARROWEST, triton.next_power_of_2(K))


def solve_box(H: Any, slope: Any, b: Any, box: Box) -> tuple[Any, Any, Any]:
    """Box-constrained quadratic programs; see `log1pnmf.engines.torch.terms.solve_box`."""
    n, K = b.shape
    W = width(K)
    x = torch.empty_like(b)
    predicted, curvature = torch.empty((2, n), dtype=torch.float64, device=b.device)
    group = max(1, 128 // W)
    lower, upper = box.lower.contiguous(), box.upper.contiguous()
    _solve_box[(triton.cdiv(n, group),)](
        H,
        H.stride(0),
        H.stride(1),
        slope,
        b,
        lower,
        upper,
        x,
        predicted,
        curvature,
        SWEEP_TOLERANCE,
        MOST_ROUNDS,
        n,
        K,
        W=W,
        GROUP=group,
        num_warps=1,
    )
    return torch.minimum(x, upper), predicted, curvature


@triton.jit
def _descend(d, q, unit, lowest, highest, line_at, H_column, there, k, K):
    """One cycle of coordinate descent over steps d, q being the slope there."""
    for this in range(K):
        line = tl.load(line_at + this * H_column, mask=there, other=0.0)
        to = tl.minimum(tl.maximum(d - q * unit, lowest), highest)
        flat = tl.where(q > 0.0, lowest, d)
        delta = tl.where((k == this)[None, :], tl.where(unit > 0.0, to, flat) - d, 0.0)
        d += delta
        q += tl.sum(delta, axis=1)[:, None] * line
    return d, q


@triton.jit
def _image(way, line_at, H_column, there, k, K):
    """H times a direction."""
    image = tl.zeros_like(way)
    for this in range(K):
        line = tl.load(line_at + this * H_column, mask=there, other=0.0)
        image += tl.sum(tl.where((k == this)[None, :], way, 0.0), axis=1)[:, None] * line
    return image


@triton.jit
def _newton(rest, free, unit, line_at, H_column, there, k, K):
    """Solve H step = rest on the free coordinates, by K conjugate gradients."""
    step, way = tl.zeros_like(rest), rest * unit
    size = tl.sum(rest * rest * unit, axis=1)
    for _ in range(K):
        image = tl.where(free, _image(way, line_at, H_column, there, k, K), 0.0)
        bend = tl.sum(way * image, axis=1)
        length = tl.where(bend > 0.0, size / bend, 0.0)
        step += length[:, None] * way
        rest -= length[:, None] * image
        new = tl.sum(rest * rest * unit, axis=1)
        way = rest * unit + tl.where(size > 0.0, new / size, 0.0)[:, None] * way
        size = new
    return step


@triton.jit
def _solve_box(
    H_at,
    H_row,
    H_column,
    slope_at,
    b_at,
    lower_at,
    upper_at,
    x_at,
    predicted_at,
    curvature_at,
    tolerance,
    most_rounds,
    n,
    K,
    W: tl.constexpr,
    GROUP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * GROUP + tl.arange(0, GROUP)
    k = tl.arange(0, W)
    there = (row < n)[:, None] & (k < K)[None, :]
    place = row[:, None] * K + k[None, :]
    b = tl.load(b_at + place, mask=there, other=0.0)
    slope = tl.load(slope_at + place, mask=there, other=0.0).to(tl.float32)
    lower = tl.load(lower_at + place, mask=there, other=0.0)
    lowest = (lower - b).to(tl.float32)
    highest = (tl.load(upper_at + place, mask=there, other=0.0) - b).to(tl.float32)
    line_at = H_at + row[:, None] * H_row + k[None, :]
    diagonal = tl.load(line_at + k[None, :] * H_column, mask=there, other=0.0)
    unit = tl.where(diagonal > TINY, 1.0 / diagonal, 0.0)
    d, q = tl.zeros([GROUP, W], dtype=tl.float32), slope
    total = tl.zeros([GROUP], dtype=tl.float32)
    turn, moving = 0, 1
    while (turn < most_rounds) & (moving > 0):
        gained = tl.zeros([GROUP], dtype=tl.float32)
        for _ in range(2):  # coordinate descent finds the active bounds
            before = d
            d, q = _descend(d, q, unit, lowest, highest, line_at, H_column, there, k, K)
            gained = tl.sum(diagonal * (d - before) * (d - before), axis=1)
            total += gained
        moving = tl.max((gained > tolerance * total).to(tl.int32), axis=0)
        if moving > 0:  # conjugate gradients on the free coordinates finish
            free = (d > lowest) & (d < highest) & (unit > 0.0)
            step = _newton(tl.where(free, -q, 0.0), free, unit, line_at, H_column, there, k, K)
            ahead = tl.where(step < 0.0, (lowest - d) / step, (highest - d) / step)
            ahead = tl.where(step == 0.0, 2.0, ahead)
            room = tl.min(ahead, axis=1)[:, None]
            to = tl.minimum(tl.maximum(d + tl.minimum(room, 1.0) * step, lowest), highest)
            blocked = (ahead <= room) & (room < 1.0)
            to = tl.where(blocked, tl.where(step < 0.0, lowest, highest), to)
            q += _image(to - d, line_at, H_column, there, k, K)
            d = to
        turn += 1
    wide = d.to(tl.float64)
    curvature = tl.maximum(tl.sum((q - slope).to(tl.float64) * wide, axis=1), 0.0)
    predicted = tl.maximum(-(tl.sum(slope.to(tl.float64) * wide, axis=1) + 0.5 * curvature), 0.0)
    x = tl.where(d <= lowest, lower, tl.maximum(b + wide, lower))
    tl.store(x_at + place, x, mask=there)
    tl.store(predicted_at + row, predicted, mask=row < n)
    tl.store(curvature_at + row, curvature, mask=row < n)


# ---------- the exact form as Triton kernels

ROWS, COLUMNS, WARPS = 128, 32, 8
WIDEST, STAGE_BYTES = 64, 190_000
"""Of designs that are taken here, and room for the tiles that are loaded ahead."""
TAIL = 128
"""Columns of `log1pnmf.engines.torch.terms.wide` that a program takes beside the first ones."""
PROGRAMS, FEWEST_COLUMNS = 1056, 1024
"""Programs that keep a card busy, and what is worth one."""


def dense_sums(b: Any, design: Design, *, own: Own, hessian: bool) -> Sums:
    """Sum over all columns; see `log1pnmf.engines.torch.terms.dense_sums`."""
    if _is_elsewhere(design):
        return dense.dense_sums(b, design, own=own, hessian=hessian)
    (n, K), m, identity = b.shape, design.X.shape[0], design.form.identity
    parts = wide(design.X, hessian and not identity)
    tails = (parts.shape[1] - K) // TAIL
    head = parts.shape[1] - tails * TAIL
    HEAD = max(16, triton.next_power_of_2(head))
    parts = torch.nn.functional.pad(parts.T, (0, 0, 0, HEAD - head))  # the tails come first
    parts = torch.cat([parts[:head], parts[head + tails * TAIL :], parts[head : head + tails * TAIL]])
    halves = _halves(parts)
    W, splits, each = design.padded.shape[1], *_splits(n, m)
    stages = max(1, min(3, STAGE_BYTES // (8 * COLUMNS * (W + HEAD + TAIL))))
    out = torch.empty((splits, n, len(parts)), dtype=torch.float32, device=b.device)
    loss = torch.empty((splits, n), dtype=torch.float32, device=b.device)
    arguments, kinds = _dense_arguments(b, design, own)
    for tail in range(max(1, tails)):
        _dense_sums[(triton.cdiv(n, ROWS), splits)](
            *arguments, *halves, loss, out, n, m, each, len(parts), HEAD + tail * TAIL, K,
            W=W, HEAD=HEAD, TAIL=TAIL if tails else 0, FIRST=tail == 0, ROWS=ROWS,
            COLUMNS=COLUMNS, **kinds, num_warps=WARPS, num_stages=stages,
        )  # fmt: skip
    total = out.sum(0, dtype=torch.float64) if splits > 1 else out[0]
    total = torch.cat([total[:, :head], total[:, HEAD:]], dim=1)
    if hessian and identity:
        total = torch.nn.functional.pad(total, (0, K * (K + 1) // 2))
    return completed(loss.sum(0, dtype=torch.float64), total, design, own, hessian)


def dense_change(b: Any, step: Any, design: Design, *, own: Own) -> tuple[Any, Any]:
    """Change of the sum, and the largest rise of an eta; see `log1pnmf.engines.torch.terms.dense_change`."""
    if _is_elsewhere(design):
        return dense.dense_change(b, step, design, own=own)
    (n, K), m = b.shape, design.X.shape[0]
    splits, each = _splits(n, m)
    loss, growth = torch.empty((2, splits, n), dtype=torch.float32, device=b.device)
    arguments, kinds = _dense_arguments(b, design, own)
    _dense_change[(triton.cdiv(n, ROWS), splits)](
        *arguments, step.contiguous(), loss, growth, n, m, each, K, W=design.padded.shape[1], ROWS=ROWS,
        COLUMNS=COLUMNS, **kinds, num_warps=WARPS, num_stages=2,
    )  # fmt: skip
    return loss.sum(0, dtype=torch.float64), growth.amax(0)


def _is_elsewhere(design: Design) -> bool:
    """Whether plain PyTorch has to do it: for wide designs, and for large etas, which need more digits."""
    return bool(design.padded.shape[1] > WIDEST or design.form.large)


def _halves(values: Any) -> tuple[Any, Any]:
    """Split numbers into two that tensor cores see whole."""
    first = _seen(values.contiguous())
    return first, _seen(values - first)


def _seen(values: Any) -> Any:
    return ((values.view(torch.int32) + 4096) & -8192).view(torch.float32)


def _splits(n: int, m: int) -> tuple[int, int]:
    """Ranges of columns, and columns of each."""
    splits = max(1, min(triton.cdiv(PROGRAMS, triton.cdiv(n, ROWS)), triton.cdiv(m, FEWEST_COLUMNS)))
    each = triton.cdiv(triton.cdiv(m, splits), COLUMNS) * COLUMNS
    return triton.cdiv(m, each), each


def _dense_arguments(b: Any, design: Design, own: Own) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Where the kernels find what belongs to rows and columns, and their kinds."""
    form, labels = design.form, own.batch if own.batch is not None else design.batch
    dispersion = design.dispersion if design.dispersion is not None else own.dispersion
    exposure = own.exposure.contiguous()
    arguments = (
        b.contiguous(), *_halves(design.padded), exposure, design.exposure,
        design.exposure if labels is None else labels.contiguous(),
        design.exposure if dispersion is None else dispersion, exposure.stride(0), form.largest,
    )  # fmt: skip
    kinds = {
        "IDENTITY": form.identity,
        "DISPERSED": form.dispersed,
        "OF_ROWS": own.dispersion is not None,
        "BATCH": 1 if own.batch is not None else 2 if design.batch is not None else 0,
    }
    return arguments, kinds


@triton.jit
def _split_dot(A, B_high, B_low):
    """Product as exact as float32; the largest part by itself, because tensor cores cut off their sums."""
    A_high = high(A)
    out = tl.dot(high(A - A_high), B_high, input_precision="tf32", out_dtype=tl.float32)
    out = tl.dot(A_high, B_low, acc=out, input_precision="tf32", out_dtype=tl.float32)
    return tl.dot(A_high, B_high, input_precision="tf32", out_dtype=tl.float32) + out


@triton.jit
def _exposures(
    row, column, there, inside, row_exposure, column_exposure, labels, own_exposures, m, BATCH: tl.constexpr
):
    """Exposure of rows x columns; 0 beyond the last column."""
    if BATCH == 1:
        label = tl.load(labels + row, mask=inside, other=0)
        place = column_exposure + label[:, None] * m + column[None, :]
        t = tl.load(place, mask=inside[:, None] & there[None, :], other=0.0)
    else:
        t = tl.load(column_exposure + column, mask=there, other=0.0)[None, :]
    if BATCH == 2:
        label = tl.load(labels + column, mask=there, other=0)
        place = row_exposure + row[:, None] * own_exposures + label[None, :]
        t = t * tl.load(place, mask=inside[:, None] & there[None, :], other=0.0)
    else:
        t = t * tl.load(row_exposure + row * own_exposures, mask=inside, other=0.0)[:, None]
    return t


@triton.jit
def _dispersions(dispersion, row, column, inside, there, OF_ROWS: tl.constexpr):
    if OF_ROWS:
        phi = tl.load(dispersion + row, mask=inside, other=0.0)[:, None]
    else:
        phi = tl.load(dispersion + column, mask=there, other=0.0)[None, :]
    return phi


@triton.jit
def _dense_sums(
    b_at, X_high_at, X_low_at, row_exposure, column_exposure, labels, dispersion, own_exposures, largest,
    parts_high, parts_low, loss_at, out_at, n, m, each, width, tail_at, K, W: tl.constexpr,
    HEAD: tl.constexpr, TAIL: tl.constexpr, FIRST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    IDENTITY: tl.constexpr, DISPERSED: tl.constexpr, OF_ROWS: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split, inside = tl.program_id(1).to(tl.int64), row < n
    k, first, other = tl.arange(0, W), tl.arange(0, HEAD), tl.arange(0, TAIL if TAIL > 0 else 16)
    known = inside[:, None] & (k < K)[None, :]
    b = tl.load(b_at + row[:, None] * K + k[None, :], mask=known, other=0.0).to(tl.float32)
    heads = tl.zeros([ROWS, HEAD], dtype=tl.float32)
    tails = tl.zeros([ROWS, TAIL if TAIL > 0 else 16], dtype=tl.float32)
    loss = tl.zeros([ROWS], dtype=tl.float32)
    for start in range(split * each, tl.minimum(split * each + each, m), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        there = column < m
        design = column[:, None] * W + k[None, :]
        X_high = tl.load(X_high_at + design, mask=there[:, None], other=0.0)
        X_low = tl.load(X_low_at + design, mask=there[:, None], other=0.0)
        eta = _split_dot(b, tl.trans(X_high), tl.trans(X_low))
        _, em = em_of(eta, 0.0, largest, IDENTITY)
        t = _exposures(
            row, column, there, inside, row_exposure, column_exposure, labels, own_exposures, m, BATCH
        )
        if DISPERSED:
            x = _dispersions(dispersion, row, column, inside, there, OF_ROWS) * t * em
            value = t * em * log1p_ratio(x)
            if IDENTITY:
                weight = t / (1.0 + x)
            else:
                weight = (t * em + t) / (1.0 + x)
        else:
            value = t * em
            weight = value
        if FIRST:
            place = first[:, None] * m + column[None, :]
            P_high = tl.load(parts_high + place, mask=there[None, :], other=0.0)
            P_low = tl.load(parts_low + place, mask=there[None, :], other=0.0)
            heads += _split_dot(weight, tl.trans(P_high), tl.trans(P_low))
            loss += tl.sum(value, axis=1)
        if TAIL > 0:
            place = (tail_at + other)[:, None].to(tl.int64) * m + column[None, :]
            P_high = tl.load(parts_high + place, mask=there[None, :], other=0.0)
            P_low = tl.load(parts_low + place, mask=there[None, :], other=0.0)
            seen = high(weight)
            more = tl.dot(seen, tl.trans(P_low), input_precision="tf32", out_dtype=tl.float32)
            tails += tl.dot(seen, tl.trans(P_high), acc=more, input_precision="tf32", out_dtype=tl.float32)
    line = out_at + (split * n + row)[:, None] * width
    if FIRST:
        tl.store(line + first[None, :], heads, mask=inside[:, None])
        tl.store(loss_at + split * n + row, loss, mask=inside)
    if TAIL > 0:
        tl.store(line + tail_at + other[None, :], tails, mask=inside[:, None])


@triton.jit
def _dense_change(
    b_at, X_high_at, X_low_at, row_exposure, column_exposure, labels, dispersion, own_exposures, largest,
    step_at, loss_at, growth_at, n, m, each, K, W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    IDENTITY: tl.constexpr, DISPERSED: tl.constexpr, OF_ROWS: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split, inside = tl.program_id(1).to(tl.int64), row < n
    k = tl.arange(0, W)
    known, own = inside[:, None] & (k < K)[None, :], row[:, None] * K + k[None, :]
    b = tl.load(b_at + own, mask=known, other=0.0).to(tl.float32)
    step = tl.load(step_at + own, mask=known, other=0.0).to(tl.float32)
    loss, growth = tl.zeros([ROWS], dtype=tl.float32), tl.zeros([ROWS], dtype=tl.float32)
    for start in range(split * each, tl.minimum(split * each + each, m), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        there = column < m
        design = column[:, None] * W + k[None, :]
        X_high = tl.trans(tl.load(X_high_at + design, mask=there[:, None], other=0.0))
        X_low = tl.trans(tl.load(X_low_at + design, mask=there[:, None], other=0.0))
        eta = _split_dot(b, X_high, X_low)
        _, em = em_of(eta, 0.0, largest, IDENTITY)
        delta = _split_dot(step, X_high, X_low)
        rise = rise_of(em, delta, largest, IDENTITY)
        t = _exposures(
            row, column, there, inside, row_exposure, column_exposure, labels, own_exposures, m, BATCH
        )
        rise = t * rise
        if DISPERSED:
            phi = _dispersions(dispersion, row, column, inside, there, OF_ROWS)
            rise = rise / (1.0 + phi * t * em)
            rise = rise * log1p_ratio(tl.maximum(phi * rise, -1.0 + 1e-7))
        loss += tl.sum(rise, axis=1)
        growth = tl.maximum(growth, tl.max(delta, axis=1))
    tl.store(loss_at + split * n + row, loss, mask=inside)
    tl.store(growth_at + split * n + row, growth, mask=inside)


# ---------- how far a step goes in every row, as a Triton kernel


def reach(
    block: Block,
    rows: Any,
    b: Any,
    step: Any,
    design: Design,
    *,
    own: Own,
    known: Any,
    limits: tuple[float, float],
) -> Reach:
    """How far a step goes; see `log1pnmf.engines.torch.terms.reach`."""
    n, K = b.shape
    W = design.padded.shape[1]
    tile, warps = (128, 2) if n >= MANY_ROWS and W <= 16 else tile_and_warps(W, n, hessian=False)
    shrink, growth, rise = torch.empty((3, n), dtype=design.X.dtype, device=b.device)
    arguments, kinds = entry_arguments(block, rows, design, own, rough=True)
    _reach[(n,)](
        *arguments, b, step, shrink, growth, rise, known.view(torch.uint8), *limits, K, W=W, TILE=tile,
        IDENTITY=kinds["IDENTITY"], STORED=kinds["STORED"], BATCH=kinds["BATCH"],
        RISES=design.form.sums_rises, num_warps=warps,
    )  # fmt: skip
    return Reach(shrink, growth, rise)


@triton.jit
def _rises(
    start, stop, indices, values, row_exposure, column_exposure, labels, design, b, step, t_row, row_at,
    column_at, smallest, largest, k, rise, W: tl.constexpr, TILE: tl.constexpr, IDENTITY: tl.constexpr,
    BATCH: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """Add by how much the entries from `start` to `stop` let the curvature along a step grow."""
    for at in tl.range(start, stop, TILE, num_stages=1):
        entry, there, column, X = gather(indices, at, stop, design, k, W, TILE)
        delta = tl.sum(X * step[None, :], axis=1)
        inside, em = em_of(tl.sum(X * b[None, :], axis=1), smallest, largest, IDENTITY)
        more = tl.zeros_like(em)
        if not IDENTITY:
            t = exposure_of(
                row_exposure, column_exposure, labels, column, row_at, column_at, t_row, there, BATCH
            )
            more = t * (em + 1.0) * libdevice.expm1(tl.minimum(tl.maximum(delta, 0.0), largest))
        if COUNTED:
            y = tl.load(values + entry, mask=there, other=0.0)
            low = em_of(inside + tl.minimum(delta, 0.0), smallest, largest, IDENTITY)[1]
            if IDENTITY:
                more += y * (1.0 / (low * low) - 1.0 / (em * em))
            else:
                more += y * ((1.0 + low) / (low * low) - (1.0 + em) / (em * em))
        rise += more * delta * delta  # delta is 0 where there is no entry
    return rise


@triton.jit
def _reach(
    rows, indptr, indices, values, zeros_indptr, zeros_indices, row_exposure, column_exposure, labels,
    quadratic, dispersion, design, lowest, columns, own_exposures, smallest, largest, b_at, step_at,
    shrink_at, growth_at, rise_at, known, least, most, K, W: tl.constexpr, TILE: tl.constexpr,
    IDENTITY: tl.constexpr, STORED: tl.constexpr, BATCH: tl.constexpr, RISES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row, first, last, t_row, row_at, column_at = begin(
        program, rows, indptr, row_exposure, labels, columns, own_exposures, BATCH
    )
    wanted = tl.load(known + program) == 0
    stop = tl.where(wanted, last, first)
    k = tl.arange(0, W)
    b = tl.load(b_at + program * K + k, mask=k < K, other=0.0).to(tl.float32)
    step = tl.load(step_at + program * K + k, mask=k < K, other=0.0).to(tl.float32)
    shrink, growth = tl.zeros([TILE], dtype=tl.float32), tl.zeros([TILE], dtype=tl.float32)
    for at in tl.range(first, stop, TILE, num_stages=1):
        X = gather(indices, at, stop, design, k, W, TILE)[3]
        delta = tl.sum(X * step[None, :], axis=1)
        inside = tl.maximum(tl.sum(X * b[None, :], axis=1), smallest)
        if IDENTITY:
            fall = -delta / inside
        else:
            fall = -delta - delta / rough_expm1(tl.minimum(inside, largest))
        shrink = tl.maximum(shrink, fall)  # delta is 0 where there is no entry
        growth = tl.maximum(growth, delta)
    start, end = first, first
    if STORED:
        start, end = tl.load(zeros_indptr + row), tl.load(zeros_indptr + row + 1)
        end = tl.where(wanted, end, start)
        for at in tl.range(start, end, TILE, num_stages=1):
            X = gather(zeros_indices, at, end, design, k, W, TILE)[3]
            growth = tl.maximum(growth, tl.sum(X * step[None, :], axis=1))
    shrinks, grows = tl.max(shrink, axis=0), tl.max(growth, axis=0)
    tl.store(shrink_at + program, shrinks)
    tl.store(growth_at + program, grows)
    rise = float("inf")
    if RISES:
        far = (shrinks > least) | (grows > most)
        stop, end = tl.where(far, stop, first), tl.where(far, end, start)
        sums = tl.zeros([TILE], dtype=tl.float32)
        sums = _rises(
            first, stop, indices, values, row_exposure, column_exposure, labels, design, b, step, t_row,
            row_at, column_at, smallest, largest, k, sums, W, TILE, IDENTITY, BATCH, True,
        )  # fmt: skip
        if STORED:
            sums = _rises(
                start, end, zeros_indices, values, row_exposure, column_exposure, labels, design, b, step,
                t_row, row_at, column_at, smallest, largest, k, sums, W, TILE, IDENTITY, BATCH, False,
            )  # fmt: skip
        rise = tl.where(far, tl.sum(sums, axis=0), rise)
    tl.store(rise_at + program, rise)


# ---------- the operations of terms as Triton kernels: one program per row, fixed order of every sum

LARGEST_WIDTH = 128


def evaluate(
    block: Block, rows: Any, b: Any, design: Design, *, own: Own, hessian: bool, with_loss: bool = True
) -> Sums:
    """Sum over the exact entries of some rows; see `log1pnmf.engines.torch.terms.evaluate`."""
    K, W = b.shape[1], design.padded.shape[1]
    pieces = block.pieces if rows is block.numbers else None
    n = len(b) if pieces is None else len(pieces[0])
    loss = torch.empty(n, dtype=torch.float64, device=b.device)
    gradient = torch.empty((n, K), dtype=torch.float64, device=b.device)
    tile, warps = tile_and_warps(W, n, hessian)
    H = torch.empty((n, W, W) if hessian else (1,), dtype=design.X.dtype, device=b.device)
    bend = torch.empty((n, 2), dtype=torch.float64, device=b.device) if design.form.bent else None
    own_arguments, kinds = entry_arguments(block, rows, design, own)
    _evaluate[(n,)](
        *(pieces or (rows, rows))[:2], *own_arguments, b, loss, gradient, H, loss if bend is None else bend,
        IMPOSSIBLE, K, W=W, TILE=tile, HESSIAN=hessian, LOSS=with_loss,
        PIECE=0 if pieces is None else PIECE, **kinds,
        num_warps=warps,
    )  # fmt: skip
    if pieces is not None:
        loss, gradient = (_joined(one, pieces[2]) for one in (loss, gradient))
        H = _joined(H.flatten(1), pieces[2]).unflatten(1, (W, W)) if hessian else H
        bend = None if bend is None else _joined(bend, pieces[2])
    return Sums(loss, gradient, H[:, :K, :K] if hessian else None, bend)


def _joined(parts: Any, lengths: Any) -> Any:
    """Sum up the pieces of every row, in their order."""
    return torch.segment_reduce(parts, "sum", lengths=lengths, axis=0, unsafe=True)


def change(block: Block, rows: Any, b: Any, step: Any, design: Design, *, own: Own) -> Any:
    """Change of the sums from `b` to ``b + step``; see `log1pnmf.engines.torch.terms.change`."""
    n, K = b.shape
    W = design.padded.shape[1]
    loss = torch.empty(n, dtype=torch.float64, device=b.device)
    tile, warps = tile_and_warps(W, n, hessian=False)
    own_arguments, kinds = entry_arguments(block, rows, design, own)
    _change[(n,)](
        *own_arguments, b, step, loss, IMPOSSIBLE, LEAST_RATIO, K, W=W, TILE=tile, **kinds, num_warps=warps
    )
    return loss


@triton.jit
def _terms(  # noqa: C901, PLR0912 - branches of the compiler, not of the program
    y, eta, inside, em, t, phi, a1, a2, bent, IDENTITY: tl.constexpr, QUADRATIC: tl.constexpr,
    DISPERSED: tl.constexpr, COUNTED: tl.constexpr, LOSS: tl.constexpr,
):  # fmt: skip
    """Loss, residual and weight of entries; of stored zeros where not COUNTED."""
    value, residual, weight = tl.zeros_like(em), tl.zeros_like(em), tl.zeros_like(em)
    if DISPERSED:
        ratio = 1.0 / (1.0 + phi * t * em)
        if IDENTITY:
            push = t
        else:
            push = t * em + t
        if COUNTED:
            inverse = 1.0 / em
            if IDENTITY:
                pull = y * inverse
            else:
                pull = y * (1.0 + inverse)
            if LOSS:
                value = -y * libdevice.log(em * ratio)
            residual = -pull * ratio
            weight = ratio * (pull * inverse + tl.maximum(pull - push, 0.0) * (phi * push) * ratio)
        if QUADRATIC:
            square = a2 + bent
            if LOSS:
                value += t * (em * log1p_ratio(phi * t * em) - inside * (a1 + square * inside))
            slope = push * ratio
            residual += slope - t * (a1 + 2.0 * square * inside)
            if not IDENTITY:
                weight += slope
            weight -= 2.0 * t * a2
    else:
        if COUNTED:
            inverse = 1.0 / em
            if IDENTITY:
                residual = -y * inverse
            else:
                residual = -y * (1.0 + inverse)
            weight = -residual * inverse
            if LOSS:
                value = -y * libdevice.log(em)
        if QUADRATIC:
            value += t * (em - inside * (a1 + a2 * inside))
            residual += t * (em + 1.0 - a1 - 2.0 * a2 * inside)
            weight += t * (em + 1.0 - 2.0 * a2)
    return value, residual, weight


@triton.jit
def _sums(
    start, stop, indices, values, row_exposure, column_exposure, labels, quadratic, dispersion, design, b,
    t_row, row_at, column_at, program, lowest, smallest, largest, impossible, k, loss, slopes, H, steep,
    bend, W: tl.constexpr, TILE: tl.constexpr, IDENTITY: tl.constexpr, QUADRATIC: tl.constexpr,
    BY_COLUMN: tl.constexpr, DISPERSED: tl.constexpr, OF_ROWS: tl.constexpr, BATCH: tl.constexpr,
    HESSIAN: tl.constexpr, LOSS: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """Add the entries from `start` to `stop`."""
    for at in tl.range(start, stop, TILE, num_stages=1):
        entry, there, column, X = gather(indices, at, stop, design, k, W, TILE)
        eta = tl.sum(X * b[None, :], axis=1)
        y, least = eta, smallest  # not used, unless it is loaded
        if COUNTED:
            y = tl.load(values + entry, mask=there, other=0.0)
        if not (QUADRATIC or DISPERSED):  # loaded, so that the arithmetic is spread over all threads
            least = tl.load(lowest + tl.zeros_like(column), mask=there, other=1.0)
        inside, em = em_of(eta, least, largest, IDENTITY)
        t, phi, a1, a2, bent = em, em, em, em, em
        if QUADRATIC or DISPERSED:
            t = exposure_of(
                row_exposure, column_exposure, labels, column, row_at, column_at, t_row, there, BATCH
            )
        if DISPERSED:
            phi = dispersion_of(dispersion, column, program, there, OF_ROWS)
        if QUADRATIC:
            a1, a2, bent = coefficients(quadratic, column, program, t, there, BY_COLUMN, DISPERSED)
        value, residual, weight = _terms(
            y, eta, inside, em, t, phi, a1, a2, bent, IDENTITY, QUADRATIC, DISPERSED, COUNTED, LOSS
        )
        if QUADRATIC and DISPERSED:
            steep += t * inside
            bend -= 2.0 * bent * inside * (t * inside)
        if COUNTED:
            value += y * tl.maximum(1.0 - eta * (0.5 / smallest), 0.0) * impossible
        loss += value
        slopes += X * residual[:, None]
        if HESSIAN:
            H = add_squares(H, X, weight)
    return loss, slopes, H, steep, bend


@triton.jit
def _evaluate(
    owners, offsets, rows, indptr, indices, values, zeros_indptr, zeros_indices, row_exposure,
    column_exposure, labels, quadratic, dispersion, design, lowest, columns, own_exposures, smallest,
    largest, b_at, loss_at, gradient_at, hessian_at, bend_at, impossible, K, W: tl.constexpr,
    TILE: tl.constexpr, IDENTITY: tl.constexpr, QUADRATIC: tl.constexpr, BY_COLUMN: tl.constexpr,
    STORED: tl.constexpr, DISPERSED: tl.constexpr, OF_ROWS: tl.constexpr, BATCH: tl.constexpr,
    HESSIAN: tl.constexpr, LOSS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0).to(tl.int64)
    program, offset = piece, piece * 0
    if PIECE > 0:
        program, offset = tl.load(owners + piece), tl.load(offsets + piece)
    row, start, stop, t_row, row_at, column_at = begin(
        program, rows, indptr, row_exposure, labels, columns, own_exposures, BATCH
    )
    if PIECE > 0:
        start += offset
        stop = tl.minimum(stop, start + PIECE)
    k = tl.arange(0, W)
    b = tl.load(b_at + program * K + k, mask=k < K, other=0.0).to(tl.float32)
    loss, slopes = tl.zeros([TILE], dtype=tl.float32), tl.zeros([TILE, W], dtype=tl.float32)
    H, steep = tl.zeros([W, W], dtype=tl.float32), tl.zeros([TILE], dtype=tl.float32)
    bend = tl.zeros_like(steep)
    loss, slopes, H, steep, bend = _sums(
        start, stop, indices, values, row_exposure, column_exposure, labels, quadratic, dispersion, design,
        b, t_row, row_at, column_at, program, lowest, smallest, largest, impossible, k, loss, slopes, H,
        steep, bend, W, TILE, IDENTITY, QUADRATIC, BY_COLUMN, DISPERSED, OF_ROWS, BATCH, HESSIAN, LOSS, True,
    )  # fmt: skip
    if STORED:  # with the first piece of the row
        start, stop = tl.load(zeros_indptr + row), tl.load(zeros_indptr + row + 1)
        stop = tl.where(offset > 0, start, stop)
        loss, slopes, H, steep, bend = _sums(
            start, stop, zeros_indices, values, row_exposure, column_exposure, labels, quadratic, dispersion,
            design, b, t_row, row_at, column_at, program, lowest, smallest, largest, impossible, k, loss,
            slopes, H, steep, bend, W, TILE, IDENTITY, QUADRATIC, BY_COLUMN, DISPERSED, OF_ROWS, BATCH,
            HESSIAN, LOSS, False,
        )  # fmt: skip
    tl.store(loss_at + piece, tl.sum(loss.to(tl.float64), axis=0))
    gradient = tl.sum(slopes.to(tl.float64), axis=0)
    tl.store(gradient_at + piece * K + k, gradient, mask=k < K)
    if HESSIAN:
        tl.store(hessian_at + piece * W * W + k[:, None] * W + k[None, :], H)
    if QUADRATIC and DISPERSED:
        tl.store(bend_at + 2 * piece, tl.sum(steep.to(tl.float64), axis=0))
        tl.store(bend_at + 2 * piece + 1, tl.sum(bend.to(tl.float64), axis=0))


@triton.jit
def _changes(
    start, stop, indices, values, row_exposure, column_exposure, labels, quadratic, dispersion, design, b,
    step, t_row, row_at, column_at, program, smallest, largest, impossible, least_ratio, k, loss,
    W: tl.constexpr, TILE: tl.constexpr, IDENTITY: tl.constexpr, QUADRATIC: tl.constexpr,
    BY_COLUMN: tl.constexpr, DISPERSED: tl.constexpr, OF_ROWS: tl.constexpr, BATCH: tl.constexpr,
    COUNTED: tl.constexpr,
):  # fmt: skip
    """Add what the entries from `start` to `stop` change."""
    for at in tl.range(start, stop, TILE, num_stages=1):
        entry, there, column, X = gather(indices, at, stop, design, k, W, TILE)
        eta, delta = tl.sum(X * b[None, :], axis=1), tl.sum(X * step[None, :], axis=1)
        inside, em = em_of(eta, smallest, largest, IDENTITY)
        rise = rise_of(em, delta, largest, IDENTITY)
        value = tl.zeros_like(em)
        if QUADRATIC or DISPERSED:
            t = exposure_of(
                row_exposure, column_exposure, labels, column, row_at, column_at, t_row, there, BATCH
            )
            zero, spread = t * rise, tl.zeros_like(em)
        if DISPERSED:
            phi = dispersion_of(dispersion, column, program, there, OF_ROWS)
            part = zero / (1.0 + phi * t * em)
            z = tl.maximum(phi * part, -1.0 + 1e-7)
            by = log1p_ratio(z)
            zero, spread = part * by, z * by
        if COUNTED:
            y = tl.load(values + entry, mask=there, other=0.0)
            ratio = 1.0 + rise / em
            value = -y * libdevice.log(tl.maximum(ratio, least_ratio))
            value += tl.where(ratio < least_ratio, y * impossible, 0.0)
            if DISPERSED:
                value += y * spread
        if QUADRATIC:
            a1, a2, bent = coefficients(quadratic, column, program, t, there, BY_COLUMN, DISPERSED)
            value += zero - t * delta * (a1 + (a2 + bent) * (2.0 * inside + delta))
        loss += tl.where(there, value, 0.0).to(tl.float64)
    return loss


@triton.jit
def _change(
    rows, indptr, indices, values, zeros_indptr, zeros_indices, row_exposure, column_exposure, labels,
    quadratic, dispersion, design, lowest, columns, own_exposures, smallest, largest, b_at, step_at, loss_at,
    impossible, least_ratio, K, W: tl.constexpr, TILE: tl.constexpr, IDENTITY: tl.constexpr,
    QUADRATIC: tl.constexpr, BY_COLUMN: tl.constexpr, STORED: tl.constexpr, DISPERSED: tl.constexpr,
    OF_ROWS: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row, start, stop, t_row, row_at, column_at = begin(
        program, rows, indptr, row_exposure, labels, columns, own_exposures, BATCH
    )
    k = tl.arange(0, W)
    b = tl.load(b_at + program * K + k, mask=k < K, other=0.0).to(tl.float32)
    step = tl.load(step_at + program * K + k, mask=k < K, other=0.0).to(tl.float32)
    loss = tl.zeros([TILE], dtype=tl.float64)
    loss = _changes(
        start, stop, indices, values, row_exposure, column_exposure, labels, quadratic, dispersion, design,
        b, step, t_row, row_at, column_at, program, smallest, largest, impossible, least_ratio, k, loss, W,
        TILE, IDENTITY, QUADRATIC, BY_COLUMN, DISPERSED, OF_ROWS, BATCH, True,
    )  # fmt: skip
    if STORED:
        start, stop = tl.load(zeros_indptr + row), tl.load(zeros_indptr + row + 1)
        loss = _changes(
            start, stop, zeros_indices, values, row_exposure, column_exposure, labels, quadratic, dispersion,
            design, b, step, t_row, row_at, column_at, program, smallest, largest, impossible, least_ratio,
            k, loss, W, TILE, IDENTITY, QUADRATIC, BY_COLUMN, DISPERSED, OF_ROWS, BATCH, False,
        )  # fmt: skip
    tl.store(loss_at + program, tl.sum(loss, axis=0))


# ---------- survey and errors of zeros as Triton kernels

TILE = 1024


def survey(eta: Any, exposure: Any, caps: np.ndarray) -> tuple[Any, Any, Any]:
    """Survey some features; see `log1pnmf.engines.torch.zeros.survey`."""
    (m, n), n_caps = eta.shape, len(caps)
    error, n_above = eta.new_empty((2, m, n_caps))
    quadratics = eta.new_empty((m, n_caps, 3))
    em, there = eta.clamp(max=LARGEST_ETA).expm1_(), torch.tensor(caps, device=eta.device)
    t = exposure, 0 if exposure.ndim == 1 else n
    _survey[(m,)](eta, em, *t, there, error, n_above, quadratics, n, n_caps, SIZE=TILE, num_warps=8)
    return error, n_above, quadratics


def errors(eta: Any, exposure: Any, quadratics: Any) -> Any:
    """Sum up how far the quadratics are off; see `log1pnmf.engines.torch.zeros.errors`."""
    m, n = eta.shape
    sums = eta.new_empty((m, 2))
    t = exposure, 0 if exposure.ndim == 1 else n
    _errors[(m,)](eta, *t, quadratics, sums, n, LARGEST_ETA, SIZE=TILE, num_warps=8)
    return sums.sum(0)


@triton.jit
def _load(row_at, exposure_at, start, n, SIZE: tl.constexpr):
    """Eta and exposure of some samples; the exposure is 0 where there is no zero."""
    sample = start + tl.arange(0, SIZE)
    eta = tl.load(row_at + sample, mask=sample < n, other=-1.0)
    t = tl.load(exposure_at + sample, mask=sample < n, other=0.0)
    return eta, tl.where(eta >= 0.0, t, 0.0)


@triton.jit
def _em(em_at, start, n, SIZE: tl.constexpr):
    sample = start + tl.arange(0, SIZE)
    return tl.load(em_at + sample, mask=sample < n, other=0.0)


@triton.jit
def _mean_and_scale(row_at, exposure_at, cap, n, SIZE: tl.constexpr):
    s0 = tl.zeros([SIZE], dtype=tl.float64)
    s1, s2 = s0, s0
    for start in range(0, n, SIZE):
        eta, t = _load(row_at, exposure_at, start, n, SIZE)
        w = tl.where(eta <= cap, t, 0.0)
        s0 += w
        s1 += w * eta
        s2 += w * eta * eta
    total = tl.sum(s0, axis=0)
    some = tl.where(total > 0.0, total, 1.0)
    mean = tl.sum(s1, axis=0) / some
    variance = tl.maximum(tl.sum(s2, axis=0) / some - mean * mean, 0.0)
    return mean, tl.maximum(tl.sqrt(variance), 1e-7 * (1.0 + mean))


@triton.jit
def _solve(m0, m1, m2, m3, m4, r0, r1, r2):
    """Solve the normal equations of a quadratic, made solvable by a tiny ridge."""
    ridge = 1e-9 * m0 + 1e-300
    first, second, third = m0 * (1.0 + 1e-9) + ridge, m2 * (1.0 + 1e-9) + ridge, m4 * (1.0 + 1e-9) + ridge
    by1, by2 = m1 / first, m2 / first
    second -= by1 * m1
    third -= by2 * m2
    beside = m3 - by1 * m2
    r1 -= by1 * r0
    r2 -= by2 * r0
    by2 = beside / second
    x2 = (r2 - by2 * r1) / (third - by2 * beside)
    x1 = (r1 - beside * x2) / second
    return (r0 - m1 * x1 - m2 * x2) / first, x1, x2


@triton.jit
def _fit(row_at, em_at, exposure_at, cap, n, SIZE: tl.constexpr):
    """Least squares around the mean, as in ``cpp/zeros.hpp``; in powers of eta."""
    mean, scale = _mean_and_scale(row_at, exposure_at, cap, n, SIZE)
    level, slope, unit = libdevice.expm1(mean), libdevice.exp(mean), 1.0 / scale
    m0 = tl.zeros([SIZE], dtype=tl.float64)
    m1, m2, m3, m4, r0, r1, r2 = m0, m0, m0, m0, m0, m0, m0
    for start in range(0, n, SIZE):
        eta, t = _load(row_at, exposure_at, start, n, SIZE)
        w = tl.where(eta <= cap, t, 0.0)
        d = tl.where(w > 0.0, eta - mean, 0.0)
        rest = _em(em_at, start, n, SIZE) - (level + slope * d * (1.0 + 0.5 * d))
        x = d * unit
        m0 += w
        r0 += w * rest
        w *= x
        m1 += w
        r1 += w * rest
        w *= x
        m2 += w
        r2 += w * rest
        w *= x
        m3 += w
        m4 += w * x
    by0, by1, by2 = _solve(
        tl.sum(m0, axis=0),
        tl.sum(m1, axis=0),
        tl.sum(m2, axis=0),
        tl.sum(m3, axis=0),
        tl.sum(m4, axis=0),
        tl.sum(r0, axis=0),
        tl.sum(r1, axis=0),
        tl.sum(r2, axis=0),
    )
    linear = slope + by1 / scale
    square = tl.maximum(0.5 * slope + by2 / (scale * scale), 0.0)
    return level + by0 - mean * (linear - mean * square), linear - 2.0 * mean * square, square


@triton.jit
def _survey(
    eta_at,
    em_at,
    exposure_at,
    exposure_row,
    caps_at,
    error_at,
    above_at,
    quadratic_at,
    n,
    n_caps,
    SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_at, em_at, exposure_at = eta_at + row * n, em_at + row * n, exposure_at + row * exposure_row
    tops = tl.zeros([SIZE], dtype=tl.float64)
    for start in range(0, n, SIZE):
        tops = tl.maximum(tops, _load(row_at, exposure_at, start, n, SIZE)[0])
    top = tl.max(tops, axis=0)
    a0, last = top - top, top - top - 1.0
    a1, a2, error, above = a0, a0, a0, a0
    for g in range(n_caps):
        cap = tl.load(caps_at + g)
        if top > last:  # otherwise no entry lies between the two caps
            a0, a1, a2 = _fit(row_at, em_at, exposure_at, cap, n, SIZE)
            errors = tl.zeros([SIZE], dtype=tl.float64)
            others = errors
            for start in range(0, n, SIZE):
                eta, t = _load(row_at, exposure_at, start, n, SIZE)
                off = _em(em_at, start, n, SIZE) - (a0 + eta * (a1 + a2 * eta))
                errors += tl.where(eta <= cap, t * tl.abs(off), 0.0)
                others += tl.where(eta > cap, 1.0, 0.0)
            error, above = tl.sum(errors, axis=0), tl.sum(others, axis=0)
        place = row * n_caps + g
        tl.store(error_at + place, error)
        tl.store(above_at + place, above)
        tl.store(quadratic_at + 3 * place, a0)
        tl.store(quadratic_at + 3 * place + 1, a1)
        tl.store(quadratic_at + 3 * place + 2, a2)
        last = cap


@triton.jit
def _errors(eta_at, exposure_at, exposure_row, quadratic_at, sums_at, n, most, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    a0, a1 = tl.load(quadratic_at + 3 * row), tl.load(quadratic_at + 3 * row + 1)
    a2 = tl.load(quadratic_at + 3 * row + 2)
    signed = tl.zeros([SIZE], dtype=tl.float64)
    absolute = signed
    for start in range(0, n, SIZE):
        eta, t = _load(eta_at + row * n, exposure_at + row * exposure_row, start, n, SIZE)
        off = t * (libdevice.expm1(tl.minimum(eta, most)) - (a0 + eta * (a1 + a2 * eta)))
        signed += off
        absolute += tl.abs(off)
    tl.store(sums_at + 2 * row, tl.sum(signed, axis=0))
    tl.store(sums_at + 2 * row + 1, tl.sum(absolute, axis=0))
