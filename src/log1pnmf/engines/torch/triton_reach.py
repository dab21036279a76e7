"""How far a step goes in every row, as a Triton kernel."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .rows import Block
from .sides import Design, Own, Reach
from .triton_entries import MANY_ROWS, begin, em_of, exposure_of, gather, rough_expm1, tile_and_warps, visited

__all__ = ["reach"]


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
    arguments, kinds = visited(block, rows, design, own, rough=True)
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
