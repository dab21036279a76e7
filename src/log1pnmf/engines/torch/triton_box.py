"""Small box-constrained quadratic programs as a Triton kernel, several of them in one program."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .box import Box

__all__ = ["solve_box", "width"]

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
