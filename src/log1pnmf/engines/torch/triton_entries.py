"""What single entries add to loss, gradient and Hessian, as parts of Triton kernels: all links and noises."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra import libdevice

from .rows import Block
from .sides import Design, Own

__all__ = [
    "add_squares",
    "begin",
    "coefficients",
    "dispersion_of",
    "em_of",
    "exposure_of",
    "gather",
    "log1p_ratio",
    "rise_of",
    "rough_expm1",
    "tile_and_warps",
    "visited",
]

LOG2E = tl.constexpr(1.4426950408889634)
SMALL = tl.constexpr(0.4)
MANY_ROWS = 2000


def visited(
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
    """Give the row of a program, its entries and exposure, and where its exposures begin."""
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
