"""The operations of `torch_terms` as Triton kernels: one program per row, fixed order of every sum.

A row's non-zeros are visited in tiles: gather the design rows, eta, expm1, residual and weight, then the
gradient by a sum and the Hessian by a matrix product on the tensor cores, three TF32 products that together
keep float32's accuracy. Offsets into the non-zeros are 64 bits wide.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from log1pnmf.engines.torch_rows import Block
from log1pnmf.engines.torch_terms import (
    IMPOSSIBLE,
    LEAST_RATIO,
    SWEEP_TOLERANCE,
    Change,
    Design,
    Sums,
)

__all__ = ["LARGEST_WIDTH", "change", "evaluate", "solve_box", "width"]

LARGEST_WIDTH = 128
MOST_SWEEPS = 200
NARROWEST = 16  # what a matrix product of tiles needs
TINY = tl.constexpr(1.2e-38)


def width(K: int) -> int:
    """Columns of a padded design: the next power of two, and enough for a matrix product."""
    return max(NARROWEST, triton.next_power_of_2(K))


def evaluate(block: Block, rows: Any, b: Any, design: Design, *, exposure: Any, hessian: bool) -> Sums:
    """Sum over the non-zeros of some rows; see `log1pnmf.engines.torch_terms.evaluate`."""
    n, K = b.shape
    form, W = design.form, design.padded.shape[1]
    loss = torch.empty(n, dtype=torch.float64, device=b.device)
    gradient = torch.empty((n, K), dtype=torch.float64, device=b.device)
    H = torch.empty((n, W, W) if hessian else (1,), dtype=design.X.dtype, device=b.device)
    _evaluate[(n,)](
        rows,
        block.indptr,
        block.indices,
        block.values,
        exposure,
        design.exposure,
        design.padded,
        b,
        loss,
        gradient,
        H,
        form.a1,
        form.a2,
        form.smallest,
        form.largest,
        IMPOSSIBLE,
        K,
        W=W,
        TILE=_tile(W),
        IDENTITY=form.identity,
        QUADRATIC=not (form.exact or form.identity),
        HESSIAN=hessian,
        num_warps=_warps(W),
    )
    return Sums(loss, gradient, H[:, :K, :K] if hessian else None)


def change(block: Block, rows: Any, b: Any, step: Any, design: Design, *, exposure: Any) -> Change:
    """Change of the sums from `b` to ``b + step``; see `log1pnmf.engines.torch_terms.change`."""
    n, K = b.shape
    form, W = design.form, design.padded.shape[1]
    loss = torch.empty(n, dtype=torch.float64, device=b.device)
    shrink, growth = torch.empty((2, n), dtype=design.X.dtype, device=b.device)
    _change[(n,)](
        rows,
        block.indptr,
        block.indices,
        block.values,
        exposure,
        design.exposure,
        design.padded,
        b,
        step,
        loss,
        shrink,
        growth,
        form.a1,
        form.a2,
        form.smallest,
        form.largest,
        IMPOSSIBLE,
        LEAST_RATIO,
        K,
        W=W,
        TILE=_tile(W),
        IDENTITY=form.identity,
        QUADRATIC=not (form.exact or form.identity),
        num_warps=_warps(W),
    )
    return Change(loss, shrink, growth)


def solve_box(H: Any, slope: Any, b: Any, upper: float) -> tuple[Any, Any, Any]:
    """Box-constrained quadratic programs by coordinate descent; see `log1pnmf.engines.torch_terms.solve_box`."""
    n, K = b.shape
    W = width(K)
    x = torch.empty_like(b)
    predicted, curvature = torch.empty((2, n), dtype=torch.float64, device=b.device)
    group = max(1, 1024 // W)
    _solve_box[(triton.cdiv(n, group),)](
        H,
        H.stride(0),
        H.stride(1),
        slope,
        b,
        x,
        predicted,
        curvature,
        upper,
        SWEEP_TOLERANCE,
        MOST_SWEEPS,
        n,
        K,
        W=W,
        GROUP=group,
        num_warps=2,
    )
    return x, predicted, curvature


def _tile(W: int) -> int:
    return 128 if W <= 16 else 64 if W <= 32 else 32


def _warps(W: int) -> int:
    return 4 if W <= 64 else 8


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
def _evaluate(
    rows,
    indptr,
    indices,
    values,
    row_exposure,
    column_exposure,
    design,
    b_at,
    loss_at,
    gradient_at,
    hessian_at,
    a1,
    a2,
    smallest,
    largest,
    impossible,
    K,
    W: tl.constexpr,
    TILE: tl.constexpr,
    IDENTITY: tl.constexpr,
    QUADRATIC: tl.constexpr,
    HESSIAN: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + program)
    start, stop = tl.load(indptr + row), tl.load(indptr + row + 1)
    k = tl.arange(0, W)
    kind = design.dtype.element_ty
    a1, a2 = a1.to(kind), a2.to(kind)
    smallest, largest = smallest.to(kind), largest.to(kind)
    b = tl.load(b_at + program * K + k, mask=k < K, other=0.0).to(kind)
    t_row = tl.load(row_exposure + program)
    loss = tl.zeros([TILE], dtype=tl.float64)
    gradient = tl.zeros([W], dtype=tl.float64)
    H = tl.zeros([W, W], dtype=kind)
    for at in range(start, stop, TILE):
        entry = at + tl.arange(0, TILE)
        there = entry < stop
        column = tl.load(indices + entry, mask=there, other=0).to(tl.int64)
        y = tl.load(values + entry, mask=there, other=0.0)
        X = tl.load(design + column[:, None] * W + k[None, :], mask=there[:, None], other=0.0)
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
            value += t * (em - inside * (a1 + a2 * inside))
            residual += t * (em + 1.0 - a1 - 2.0 * a2 * inside)
            weight += t * (em + 1.0 - 2.0 * a2)
        value += y * tl.maximum(1.0 - eta * (0.5 / smallest), 0.0) * impossible
        loss += tl.where(there, value, 0.0).to(tl.float64)
        gradient += tl.sum(X * tl.where(there, residual, 0.0)[:, None], axis=0).to(tl.float64)
        if HESSIAN:
            weighted = X * tl.where(there, weight, 0.0)[:, None]
            H = tl.dot(tl.trans(weighted), X, acc=H, input_precision="tf32x3", out_dtype=kind)
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
    row_exposure,
    column_exposure,
    design,
    b_at,
    step_at,
    loss_at,
    shrink_at,
    growth_at,
    a1,
    a2,
    smallest,
    largest,
    impossible,
    least_ratio,
    K,
    W: tl.constexpr,
    TILE: tl.constexpr,
    IDENTITY: tl.constexpr,
    QUADRATIC: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + program)
    start, stop = tl.load(indptr + row), tl.load(indptr + row + 1)
    k = tl.arange(0, W)
    kind = design.dtype.element_ty
    a1, a2 = a1.to(kind), a2.to(kind)
    smallest, largest, least_ratio = smallest.to(kind), largest.to(kind), least_ratio.to(kind)
    b = tl.load(b_at + program * K + k, mask=k < K, other=0.0).to(kind)
    step = tl.load(step_at + program * K + k, mask=k < K, other=0.0).to(kind)
    t_row = tl.load(row_exposure + program)
    loss = tl.zeros([TILE], dtype=tl.float64)
    shrink, growth = tl.zeros([TILE], dtype=kind), tl.zeros([TILE], dtype=kind)
    for at in range(start, stop, TILE):
        entry = at + tl.arange(0, TILE)
        there = entry < stop
        column = tl.load(indices + entry, mask=there, other=0).to(tl.int64)
        y = tl.load(values + entry, mask=there, other=0.0)
        X = tl.load(design + column[:, None] * W + k[None, :], mask=there[:, None], other=0.0)
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
            value += t * (rise - delta * (a1 + a2 * (2.0 * inside + delta)))
        value += tl.where(ratio < least_ratio, y * impossible, 0.0)
        loss += tl.where(there, value, 0.0).to(tl.float64)
        shrink = tl.maximum(shrink, tl.where(there, fall, 0.0))
        growth = tl.maximum(growth, tl.where(there, delta, 0.0))
    tl.store(loss_at + program, tl.sum(loss, axis=0))
    tl.store(shrink_at + program, tl.max(shrink, axis=0))
    tl.store(growth_at + program, tl.max(growth, axis=0))


@triton.jit
def _solve_box(
    H_at,
    H_row,
    H_column,
    slope_at,
    b_at,
    x_at,
    predicted_at,
    curvature_at,
    upper,
    tolerance,
    most_sweeps,
    n,
    K,
    W: tl.constexpr,
    GROUP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * GROUP + tl.arange(0, GROUP)
    k = tl.arange(0, W)
    there = (row < n)[:, None] & (k < K)[None, :]
    place = row[:, None] * K + k[None, :]
    slope = tl.load(slope_at + place, mask=there, other=0.0)
    b = tl.load(b_at + place, mask=there, other=0.0)
    x, q = b, slope
    total = tl.zeros([GROUP], dtype=tl.float64)
    sweep, moving = 0, 1
    while (sweep < most_sweeps) & (moving > 0):
        gained = tl.zeros([GROUP], dtype=tl.float64)
        for this in range(K):
            chosen = (k == this)[None, :]
            line = tl.load(H_at + row[:, None] * H_row + this * H_column + k[None, :], mask=there, other=0.0)
            line = line.to(tl.float64)
            h = tl.sum(tl.where(chosen, line, 0.0), axis=1)
            old = tl.sum(tl.where(chosen, x, 0.0), axis=1)
            pull = tl.sum(tl.where(chosen, q, 0.0), axis=1)
            to = tl.minimum(tl.maximum(old - pull / tl.maximum(h, TINY), 0.0), upper)
            to = tl.where(h > TINY, to, tl.where(pull > 0.0, 0.0, old))
            delta = to - old
            gained += h * delta * delta
            q += delta[:, None] * line
            x = tl.where(chosen, to[:, None], x)
        total += gained
        moving = tl.max((gained > tolerance * total).to(tl.int32), axis=0)
        sweep += 1
    d = x - b
    curvature = tl.maximum(tl.sum((q - slope) * d, axis=1), 0.0)
    predicted = tl.maximum(-(tl.sum(slope * d, axis=1) + 0.5 * curvature), 0.0)
    tl.store(x_at + place, x, mask=there)
    tl.store(predicted_at + row, predicted, mask=row < n)
    tl.store(curvature_at + row, curvature, mask=row < n)
