"""The operations of `terms` as Triton kernels: one program per row, fixed order of every sum.

A row's non-zeros, and then its stored zeros, are visited in tiles: gather the design rows, eta, expm1,
residual and weight, then the gradient by a sum and the Hessian by matrix products on the tensor cores. Every
thread sums its entries in float32, and what threads and programs have is summed in float64. Offsets into the
entries are 64 bits wide.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .rows import PIECE, Block
from .sides import Design, Own, Sums
from .terms import IMPOSSIBLE, LEAST_RATIO
from .triton_box import solve_box, width
from .triton_dense import dense_change, dense_sums
from .triton_entries import (
    add_squares,
    begin,
    coefficients,
    dispersion_of,
    em_of,
    exposure_of,
    gather,
    log1p_ratio,
    rise_of,
    tile_and_warps,
    visited,
)
from .triton_reach import reach

__all__ = [
    "LARGEST_WIDTH",
    "change",
    "dense_change",
    "dense_sums",
    "evaluate",
    "reach",
    "solve_box",
    "width",
]

LARGEST_WIDTH = 128


def evaluate(
    block: Block, rows: Any, b: Any, design: Design, *, own: Own, hessian: bool, with_loss: bool = True
) -> Sums:
    """Sum over the visited entries of some rows; see `log1pnmf.engines.torch.terms.evaluate`."""
    K, W = b.shape[1], design.padded.shape[1]
    pieces = block.pieces if rows is block.numbers else None
    n = len(b) if pieces is None else len(pieces[0])
    loss = torch.empty(n, dtype=torch.float64, device=b.device)
    gradient = torch.empty((n, K), dtype=torch.float64, device=b.device)
    tile, warps = tile_and_warps(W, n, hessian)
    H = torch.empty((n, W, W) if hessian else (1,), dtype=design.X.dtype, device=b.device)
    bend = torch.empty((n, 2), dtype=torch.float64, device=b.device) if design.form.bent else None
    own_arguments, kinds = visited(block, rows, design, own)
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
    own_arguments, kinds = visited(block, rows, design, own)
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
