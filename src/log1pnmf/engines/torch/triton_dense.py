"""The exact form as Triton kernels: what all entries of some rows add, without a matrix of them in memory.

A program takes some rows and a range of columns. Products on the tensor cores see numbers in two parts, so
that gradients are as exact as float32. Of the weights in a Hessian they see one part: that changes it by less
than a thousandth, and cannot make it indefinite.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import dense
from .dense import completed, wide
from .sides import Design, Own, Sums
from .triton_entries import em_of, high, log1p_ratio, rise_of

__all__ = ["dense_change", "dense_sums"]

ROWS, COLUMNS, WARPS = 128, 32, 8
WIDEST, STAGE_BYTES = 64, 190_000
"""Of designs that are taken here, and room for the tiles that are loaded ahead."""
TAIL = 128
"""Columns of `log1pnmf.engines.torch.dense.wide` that a program takes beside the first ones."""
PROGRAMS, FEWEST_COLUMNS = 1056, 1024
"""Programs that keep a card busy, and what is worth one."""


def dense_sums(b: Any, design: Design, *, own: Own, hessian: bool) -> Sums:
    """Sum over all columns; see `log1pnmf.engines.torch.dense.dense_sums`."""
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
    arguments, kinds = _visited(b, design, own)
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
    """Change of the sum, and the largest rise of an eta; see `log1pnmf.engines.torch.dense.dense_change`."""
    if _is_elsewhere(design):
        return dense.dense_change(b, step, design, own=own)
    (n, K), m = b.shape, design.X.shape[0]
    splits, each = _splits(n, m)
    loss, growth = torch.empty((2, splits, n), dtype=torch.float32, device=b.device)
    arguments, kinds = _visited(b, design, own)
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


def _visited(b: Any, design: Design, own: Own) -> tuple[tuple[Any, ...], dict[str, Any]]:
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
