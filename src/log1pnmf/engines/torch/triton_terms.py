"""The operations of `terms` as Triton kernels: one program per row, fixed order of every sum.

A row's non-zeros, and then its stored zeros, are visited in tiles: gather the design rows, eta, expm1,
residual and weight, then the gradient by a sum and the Hessian by a matrix product on the tensor cores. Three
TF32 products keep float32's accuracy there. Offsets into the entries are 64 bits wide.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .rows import Block
from .terms import IMPOSSIBLE, LEAST_RATIO, Change, Design, Own, Sums
from .triton_box import solve_box, width

__all__ = ["LARGEST_WIDTH", "change", "evaluate", "exponentials_", "rises", "solve_box", "width"]

LARGEST_WIDTH = 128
MANY_ROWS = 2000


def evaluate(block: Block, rows: Any, b: Any, design: Design, *, own: Own, hessian: bool) -> Sums:
    """Sum over the visited entries of some rows; see `log1pnmf.engines.torch.terms.evaluate`."""
    n, K = b.shape
    form, W = design.form, design.padded.shape[1]
    loss = torch.empty(n, dtype=torch.float64, device=b.device)
    gradient = torch.empty((n, K), dtype=torch.float64, device=b.device)
    tile, warps = _tile_and_warps(W, n, hessian)
    H = torch.empty((n, W, W) if hessian else (1,), dtype=design.X.dtype, device=b.device)
    _evaluate[(n,)](
        *_visited(block, rows, design, own),
        b,
        loss,
        gradient,
        H,
        form.smallest,
        form.largest,
        IMPOSSIBLE,
        K,
        W=W,
        TILE=tile,
        HESSIAN=hessian,
        **_kinds(design, own),
        num_warps=warps,
    )
    return Sums(loss, gradient, H[:, :K, :K] if hessian else None)


def change(block: Block, rows: Any, b: Any, step: Any, design: Design, *, own: Own) -> Change:
    """Change of the sums from `b` to ``b + step``; see `log1pnmf.engines.torch.terms.change`."""
    n, K = b.shape
    form, W = design.form, design.padded.shape[1]
    loss = torch.empty(n, dtype=torch.float64, device=b.device)
    tile, warps = _tile_and_warps(W, n, hessian=False)
    shrink, growth = torch.empty((2, n), dtype=design.X.dtype, device=b.device)
    _change[(n,)](
        *_visited(block, rows, design, own),
        b,
        step,
        loss,
        shrink,
        growth,
        form.smallest,
        form.largest,
        IMPOSSIBLE,
        LEAST_RATIO,
        K,
        W=W,
        TILE=tile,
        **_kinds(design, own),
        num_warps=warps,
    )
    return Change(loss, shrink, growth)


def _visited(block: Block, rows: Any, design: Design, own: Own) -> tuple[Any, ...]:
    """Where the kernels find entries, exposures, quadratics and design; what is not there is not read."""
    stored = own.stored or block
    quadratic = design.quadratic if design.quadratic is not None else own.quadratic
    return (
        rows,
        block.indptr,
        block.indices,
        block.values,
        stored.indptr,
        stored.indices,
        own.exposure,
        design.exposure,
        design.exposure if quadratic is None else quadratic,
        design.padded,
    )


def _kinds(design: Design, own: Own) -> dict[str, bool]:
    form = design.form
    return {
        "IDENTITY": form.identity,
        "QUADRATIC": form.quadratic,
        "BY_COLUMN": design.quadratic is not None,
        "STORED": own.stored is not None,
    }


def exponentials_(eta: Any, exposure: Any, largest: float) -> Any:
    """Turn eta into ``t expm1(eta)`` in place; see `log1pnmf.engines.torch.terms.exponentials_`."""
    n, m = eta.shape
    sums = torch.empty(n, dtype=torch.float64, device=eta.device)
    _exponentials[(n,)](eta, exposure, sums, m, largest, TILE=1024, num_warps=4)
    return sums


def rises(eta: Any, delta: Any, exposure: Any, largest: float) -> tuple[Any, Any]:
    """Change of the sum over columns, and largest rise; see `log1pnmf.engines.torch.terms.rises`."""
    n, m = eta.shape
    sums = torch.empty(n, dtype=torch.float64, device=eta.device)
    most = torch.empty(n, dtype=eta.dtype, device=eta.device)
    _rises[(n,)](eta, delta, exposure, sums, most, m, largest, TILE=1024, num_warps=4)
    return sums, most


def _tile_and_warps(W: int, n: int, hessian: bool) -> tuple[int, int]:
    """Entries of a tile and warps of a program: small for many rows, large where few must be quick."""
    if W > 32:
        return 32, 4 if W <= 64 else 8
    if hessian and n >= MANY_ROWS:
        return 32, 1
    return (128, 4) if W <= 16 else (64, 4)


@triton.jit
def _inside(eta, smallest, largest, IDENTITY: tl.constexpr):
    inside = tl.maximum(eta, smallest)
    if not IDENTITY:
        inside = tl.minimum(inside, largest)
    return inside


@triton.jit
def _em(inside, IDENTITY: tl.constexpr):
    if IDENTITY:
        em = inside
    else:
        em = libdevice.expm1(inside)
    return em


@triton.jit
def _gather(indices, at, stop, design, k, W: tl.constexpr, TILE: tl.constexpr):
    """Entries of a tile, whether they are there, their columns and design rows."""
    entry = at + tl.arange(0, TILE)
    there = entry < stop
    column = tl.load(indices + entry, mask=there, other=0).to(tl.int64)
    return (
        entry,
        there,
        column,
        tl.load(design + column[:, None] * W + k[None, :], mask=there[:, None], other=0.0),
    )


@triton.jit
def _add_squares(H, X, weight):
    weighted = tl.trans(X * weight[:, None])
    return tl.dot(weighted, X, acc=H, input_precision="tf32x3", out_dtype=H.dtype)


@triton.jit
def _coefficients(quadratic, column, program, there, BY_COLUMN: tl.constexpr):
    """Linear and quadratic coefficient for zeros: those of the column, or those of the row."""
    if BY_COLUMN:
        a1 = tl.load(quadratic + 2 * column, mask=there, other=0.0)
        a2 = tl.load(quadratic + 2 * column + 1, mask=there, other=0.0)
    else:
        a1, a2 = tl.load(quadratic + 2 * program), tl.load(quadratic + 2 * program + 1)
    return a1, a2


@triton.jit
def _excess(t, em, inside, a1, a2):
    """Loss, slope and curvature of ``t expm1(eta)`` beyond the quadratic."""
    value = t * (em - inside * (a1 + a2 * inside))
    return value, t * (em + 1.0 - a1 - 2.0 * a2 * inside), t * (em + 1.0 - 2.0 * a2)


@triton.jit
def _evaluate(
    rows,
    indptr,
    indices,
    values,
    zeros_indptr,
    zeros_indices,
    row_exposure,
    column_exposure,
    quadratic,
    design,
    b_at,
    loss_at,
    gradient_at,
    hessian_at,
    smallest,
    largest,
    impossible,
    K,
    W: tl.constexpr,
    TILE: tl.constexpr,
    IDENTITY: tl.constexpr,
    QUADRATIC: tl.constexpr,
    BY_COLUMN: tl.constexpr,
    STORED: tl.constexpr,
    HESSIAN: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + program)
    start, stop = tl.load(indptr + row), tl.load(indptr + row + 1)
    k = tl.arange(0, W)
    kind = design.dtype.element_ty
    b = tl.load(b_at + program * K + k, mask=k < K, other=0.0).to(kind)
    t_row = tl.load(row_exposure + program)
    loss = tl.zeros([TILE], dtype=tl.float64)
    gradient = tl.zeros([W], dtype=tl.float64)
    H = tl.zeros([W, W], dtype=kind)
    for at in range(start, stop, TILE):
        entry, there, column, X = _gather(indices, at, stop, design, k, W, TILE)
        y = tl.load(values + entry, mask=there, other=0.0)
        eta = tl.where(there, tl.sum(X * b[None, :], axis=1), 1.0)
        inside = _inside(eta, smallest, largest, IDENTITY)
        em = _em(inside, IDENTITY)
        inverse = 1.0 / em
        if IDENTITY:
            residual = -y * inverse
        else:
            residual = -y * (1.0 + inverse)
        weight = -residual * inverse
        value = -y * libdevice.log(em)
        if QUADRATIC:
            t = t_row * tl.load(column_exposure + column, mask=there, other=0.0)
            a1, a2 = _coefficients(quadratic, column, program, there, BY_COLUMN)
            more, slope, bend = _excess(t, em, inside, a1, a2)
            value, residual, weight = value + more, residual + slope, weight + bend
        value += y * tl.maximum(1.0 - eta * (0.5 / smallest), 0.0) * impossible
        loss += tl.where(there, value, 0.0).to(tl.float64)
        gradient += tl.sum(X * tl.where(there, residual, 0.0)[:, None], axis=0).to(tl.float64)
        if HESSIAN:
            H = _add_squares(H, X, tl.where(there, weight, 0.0))
    if STORED:  # the same without a count
        start, stop = tl.load(zeros_indptr + row), tl.load(zeros_indptr + row + 1)
        for at in range(start, stop, TILE):
            entry, there, column, X = _gather(zeros_indices, at, stop, design, k, W, TILE)
            inside = _inside(tl.sum(X * b[None, :], axis=1), smallest, largest, IDENTITY)
            t = t_row * tl.load(column_exposure + column, mask=there, other=0.0)
            a1, a2 = _coefficients(quadratic, column, program, there, BY_COLUMN)
            value, residual, weight = _excess(t, _em(inside, IDENTITY), inside, a1, a2)
            loss += tl.where(there, value, 0.0).to(tl.float64)
            gradient += tl.sum(X * tl.where(there, residual, 0.0)[:, None], axis=0).to(tl.float64)
            if HESSIAN:
                H = _add_squares(H, X, tl.where(there, weight, 0.0))
    tl.store(loss_at + program, tl.sum(loss, axis=0))
    tl.store(gradient_at + program * K + k, gradient, mask=k < K)
    if HESSIAN:
        tl.store(hessian_at + program * W * W + k[:, None] * W + k[None, :], H)


@triton.jit
def _change(
    rows,
    indptr,
    indices,
    values,
    zeros_indptr,
    zeros_indices,
    row_exposure,
    column_exposure,
    quadratic,
    design,
    b_at,
    step_at,
    loss_at,
    shrink_at,
    growth_at,
    smallest,
    largest,
    impossible,
    least_ratio,
    K,
    W: tl.constexpr,
    TILE: tl.constexpr,
    IDENTITY: tl.constexpr,
    QUADRATIC: tl.constexpr,
    BY_COLUMN: tl.constexpr,
    STORED: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + program)
    start, stop = tl.load(indptr + row), tl.load(indptr + row + 1)
    k = tl.arange(0, W)
    kind = design.dtype.element_ty
    b = tl.load(b_at + program * K + k, mask=k < K, other=0.0).to(kind)
    step = tl.load(step_at + program * K + k, mask=k < K, other=0.0).to(kind)
    t_row = tl.load(row_exposure + program)
    loss = tl.zeros([TILE], dtype=tl.float64)
    shrink, growth = tl.zeros([TILE], dtype=kind), tl.zeros([TILE], dtype=kind)
    for at in range(start, stop, TILE):
        entry, there, column, X = _gather(indices, at, stop, design, k, W, TILE)
        y = tl.load(values + entry, mask=there, other=0.0)
        eta = tl.where(there, tl.sum(X * b[None, :], axis=1), 1.0)
        delta = tl.sum(X * step[None, :], axis=1)
        inside = _inside(eta, smallest, largest, IDENTITY)
        em = _em(inside, IDENTITY)
        inverse = 1.0 / em
        if IDENTITY:
            rise = delta
            fall = -delta * inverse
        else:
            rise = (em + 1.0) * libdevice.expm1(tl.minimum(delta, largest))
            fall = -delta * (1.0 + inverse)
        ratio = 1.0 + rise * inverse
        value = -y * libdevice.log(tl.maximum(ratio, least_ratio))
        if QUADRATIC:
            t = t_row * tl.load(column_exposure + column, mask=there, other=0.0)
            a1, a2 = _coefficients(quadratic, column, program, there, BY_COLUMN)
            value += t * (rise - delta * (a1 + a2 * (2.0 * inside + delta)))
        value += tl.where(ratio < least_ratio, y * impossible, 0.0)
        loss += tl.where(there, value, 0.0).to(tl.float64)
        shrink = tl.maximum(shrink, tl.where(there, fall, 0.0))
        growth = tl.maximum(growth, tl.where(there, delta, 0.0))
    if STORED:
        start, stop = tl.load(zeros_indptr + row), tl.load(zeros_indptr + row + 1)
        for at in range(start, stop, TILE):
            entry, there, column, X = _gather(zeros_indices, at, stop, design, k, W, TILE)
            delta = tl.sum(X * step[None, :], axis=1)
            inside = _inside(tl.sum(X * b[None, :], axis=1), smallest, largest, IDENTITY)
            rise = (_em(inside, IDENTITY) + 1.0) * libdevice.expm1(tl.minimum(delta, largest))
            t = t_row * tl.load(column_exposure + column, mask=there, other=0.0)
            a1, a2 = _coefficients(quadratic, column, program, there, BY_COLUMN)
            value = t * (rise - delta * (a1 + a2 * (2.0 * inside + delta)))
            loss += tl.where(there, value, 0.0).to(tl.float64)
            growth = tl.maximum(growth, tl.where(there, delta, 0.0))
    tl.store(loss_at + program, tl.sum(loss, axis=0))
    tl.store(shrink_at + program, tl.max(shrink, axis=0))
    tl.store(growth_at + program, tl.max(growth, axis=0))


@triton.jit
def _exponentials(eta_at, exposure_at, sum_at, m, largest, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([TILE], dtype=tl.float64)
    for start in range(0, m, TILE):
        column = start + tl.arange(0, TILE)
        there = column < m
        place = eta_at + row * m + column
        eta = tl.load(place, mask=there, other=0.0)
        exposure = tl.load(exposure_at + column, mask=there, other=0.0)
        value = exposure * libdevice.expm1(tl.minimum(eta, largest))
        tl.store(place, value, mask=there)
        total += value.to(tl.float64)
    tl.store(sum_at + row, tl.sum(total, axis=0))


@triton.jit
def _rises(eta_at, delta_at, exposure_at, sum_at, max_at, m, largest, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total, most = tl.zeros([TILE], dtype=tl.float64), tl.zeros([TILE], dtype=tl.float32)
    for start in range(0, m, TILE):
        column = start + tl.arange(0, TILE)
        there = column < m
        eta = tl.load(eta_at + row * m + column, mask=there, other=0.0)
        delta = tl.load(delta_at + row * m + column, mask=there, other=0.0)
        exposure = tl.load(exposure_at + column, mask=there, other=0.0)
        rise = libdevice.exp(tl.minimum(eta, largest)) * libdevice.expm1(tl.minimum(delta, largest))
        total += (exposure * rise).to(tl.float64)
        most = tl.maximum(most, delta)
    tl.store(sum_at + row, tl.sum(total, axis=0))
    tl.store(max_at + row, tl.max(most, axis=0))
