"""The operations of `torch_terms` as Triton kernels: one program per row, fixed order of every sum.

A row's non-zeros are visited in tiles: gather the design rows, eta, expm1, residual and weight, then the
gradient by a sum and the Hessian by a matrix product on the tensor cores. Three
TF32 products keep float32's accuracy there. Offsets into the non-zeros are 64 bits wide.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .rows import Block
from .terms import (
    IMPOSSIBLE,
    LEAST_RATIO,
    Change,
    Design,
    Sums,
)

__all__ = ["LARGEST_WIDTH", "change", "evaluate", "exponentials_", "rises", "solve_box", "width"]

LARGEST_WIDTH = 128
MOST_ROUNDS, SWEEP_TOLERANCE = 12, 1e-9
MANY_ROWS = 2000
NARROWEST = 16  # what a matrix product of tiles needs
TINY = tl.constexpr(1.2e-38)


def width(K: int) -> int:
    """Columns of a padded design: the next power of two, and enough for a matrix product."""
    return max(NARROWEST, triton.next_power_of_2(K))


def evaluate(block: Block, rows: Any, b: Any, design: Design, *, exposure: Any, hessian: bool) -> Sums:
    """Sum over the non-zeros of some rows; see `log1pnmf.engines.torch.terms.evaluate`."""
    n, K = b.shape
    form, W = design.form, design.padded.shape[1]
    loss = torch.empty(n, dtype=torch.float64, device=b.device)
    gradient = torch.empty((n, K), dtype=torch.float64, device=b.device)
    tile, warps = _tile_and_warps(W, n, hessian)
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
        TILE=tile,
        IDENTITY=form.identity,
        QUADRATIC=not (form.exact or form.identity),
        HESSIAN=hessian,
        num_warps=warps,
    )
    return Sums(loss, gradient, H[:, :K, :K] if hessian else None)


def change(block: Block, rows: Any, b: Any, step: Any, design: Design, *, exposure: Any) -> Change:
    """Change of the sums from `b` to ``b + step``; see `log1pnmf.engines.torch.terms.change`."""
    n, K = b.shape
    form, W = design.form, design.padded.shape[1]
    loss = torch.empty(n, dtype=torch.float64, device=b.device)
    tile, warps = _tile_and_warps(W, n, hessian=False)
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
        TILE=tile,
        IDENTITY=form.identity,
        QUADRATIC=not (form.exact or form.identity),
        num_warps=warps,
    )
    return Change(loss, shrink, growth)


def solve_box(H: Any, slope: Any, b: Any, upper: float) -> tuple[Any, Any, Any]:
    """Box-constrained quadratic programs; see `log1pnmf.engines.torch.terms.solve_box`."""
    n, K = b.shape
    W = width(K)
    x = torch.empty_like(b)
    predicted, curvature = torch.empty((2, n), dtype=torch.float64, device=b.device)
    group = max(1, 128 // W)
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
        MOST_ROUNDS,
        n,
        K,
        W=W,
        GROUP=group,
        num_warps=1,
    )
    return x.clamp_(max=upper), predicted, curvature


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
    x_at,
    predicted_at,
    curvature_at,
    upper,
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
    lowest, highest = -b.to(tl.float32), (upper - b).to(tl.float32)
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
    x = tl.where(d <= lowest, 0.0, tl.maximum(b + wide, 0.0))
    tl.store(x_at + place, x, mask=there)
    tl.store(predicted_at + row, predicted, mask=row < n)
    tl.store(curvature_at + row, curvature, mask=row < n)


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
