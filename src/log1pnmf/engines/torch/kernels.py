"""The sums of a half-step over entries as Triton kernels, in single and double precision.

Over exact entries (non-zeros, then stored zeros) one program does a row, or a piece of a long one, in tiles:
gather the design rows, eta, expm1, residual and weight, then the gradient by a sum and the Hessian by matrix
products on the tensor cores. In single precision every thread sums its entries in float32, and what threads
and programs have is summed in float64. Offsets into the entries are 64 bits wide. Sums have a fixed order.

Over all entries, in the exact form, a program does some rows and a range of columns, without a matrix of them
in memory. In single precision products on the tensor cores see numbers in two parts, so that gradients are as
exact as float32. Of the weights in a Hessian they see one part: that changes it by less than a thousandth,
and cannot make it indefinite.

The type that is computed in is that of the exposures. With negative binomial noise, the mean ``t em`` and
``D = 1 + phi t em``, everything is what ``cpp/policies.hpp`` has: derivatives are Poisson's over D, and
weights are never below the second derivative and never negative.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from .rows import PIECE, Block, Box, Design, Own, Sums, completed, wide

NARROWEST = 16  # what a matrix product of tiles needs
IMPOSSIBLE, LEAST_RATIO = 1e30, 1e-6
"""What a count without a mean costs, and the smallest fraction to which a step may shrink a mean."""
MANY_ROWS = 2000
# Rows begin anywhere, so alignment is no help; every variant of a kernel takes half a second to compile.
UNALIGNED = ["indptr", "indices", "values", "zeros_indptr", "zeros_indices"]
of_entries = triton.jit(do_not_specialize=["columns"], do_not_specialize_on_alignment=UNALIGNED)
LOG2E, SMALL, TINY = tl.constexpr(1.4426950408889634), tl.constexpr(0.4), tl.constexpr(1.2e-38)


def width(K: int) -> int:
    """Columns of a padded design: the next power of two, and enough for a matrix product."""
    return max(NARROWEST, triton.next_power_of_2(K))


def _belongings(design: Design, own: Own) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return exposures, batches and dispersions, and their kinds; what is not there is not read."""
    form, kept = design.form, design.kept
    labels = own.batch if own.batch is not None else kept.column_batch
    dispersion = kept.column_dispersion if own.dispersion is None else own.dispersion
    unread = kept.exposure
    places = (own.exposure, kept.exposure, unread if labels is None else labels,
              unread if dispersion is None else dispersion)  # fmt: skip
    kinds = {
        "IDENTITY": form.identity,
        "DISPERSED": form.dispersed,
        "OF_ROWS": own.dispersion is not None,
        "BATCH": 1 if own.batch is not None else 2 if kept.column_batch is not None else 0,
    }
    return places, kinds


# ---------- what single entries add to loss, gradient and Hessian


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
    if x.dtype == tl.float32:
        series = 1.0 - x * (0.5 - x * (1.0 / 3.0 - x * (0.25 - x * (0.2 - x * (1.0 / 6.0)))))
        ratio = tl.where(tl.abs(x) < 0.05, series, ratio)
    return ratio


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
def high(x):
    """Round a float32 to what a tensor core sees of it."""
    return ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def add_squares(H, X, weight):
    """Add ``X' diag(weight) X``; in single precision to three digits, which is enough for a step.

    Both operands are the same but for signs, so what tensor cores cut off leaves H symmetric, and
    semi-definite where no weight is negative.
    """
    A = X * tl.sqrt(tl.abs(weight))[:, None]
    B = tl.where(weight[:, None] < 0.0, -A, A)
    return tl.dot(tl.trans(A), B, acc=H, input_precision="tf32", out_dtype=H.dtype)


@triton.jit
def _terms(  # noqa: C901, PLR0912 - branches of the compiler, not of the program
    y, inside, em, t, phi, a1, a2, concave, IDENTITY: tl.constexpr, QUADRATIC: tl.constexpr,
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
            square = a2 + concave
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


# ---------- exact entries: one program per row, fixed order of every sum


def _entries(
    block: Block, rows: Any, design: Design, own: Own, *, rough: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return where the kernels find entries and what belongs to them, and their kinds.

    `rough`: with few digits of the design.
    """
    stored, form, kept = own.stored or block, design.form, design.kept
    by_column = kept.column_quadratic is not None
    quadratic = kept.column_quadratic if by_column else own.quadratic
    places, kinds = _belongings(design, own)
    arguments = (
        rows, block.indptr, block.indices, block.values, stored.indptr, stored.indices, *places,
        kept.exposure if quadratic is None else quadratic, design.rough if rough else design.padded,
        kept.lowest, kept.exposure.shape[-1], own.exposure.stride(0), form.smallest, form.largest,
    )  # fmt: skip
    more = {"QUADRATIC": form.quadratic, "BY_COLUMN": by_column}
    return arguments, {**kinds, **more, "STORED": own.stored is not None}


def _tile_and_warps(W: int, n: int, hessian: bool) -> tuple[int, int]:
    """Entries of a tile and warps of a program: small for many rows, large where few must be quick."""
    if W > 32:
        return 32, 4 if W <= 64 else 8
    if n >= MANY_ROWS and hessian and W <= 16:
        return 32, 2  # one warp would need too many registers
    if n >= MANY_ROWS:
        return 32 if hessian or W > 16 else 64, 1
    return (128, 4) if W <= 16 else (64, 4)


def evaluate(
    block: Block,
    rows: Any,
    b: Any,
    design: Design,
    *,
    own: Own,
    hessian: bool,
    with_loss: bool = True,
    curbed: Any = None,
) -> Sums:
    """Sum over the non-zeros and the stored zeros of some rows.

    `curbed`, (n, 2): weights of the sums of ``Sums.concave``, whose gradient then is in place of the loss's.
    """
    K, W = b.shape[1], design.padded.shape[1]
    pieces = block.pieces if rows is block.numbers else None
    n = len(b) if pieces is None else len(pieces[0])
    loss = torch.empty(n, dtype=torch.float64, device=b.device)
    gradient = torch.empty((n, K), dtype=torch.float64, device=b.device)
    tile, warps = _tile_and_warps(W, n, hessian)
    H = torch.empty((n, W, W) if hessian else (1,), dtype=design.X.dtype, device=b.device)
    concave = torch.empty((n, 2), dtype=torch.float64, device=b.device) if design.form.concave else None
    arguments, kinds = _entries(block, rows, design, own)
    _evaluate[(n,)](
        *(pieces or (rows, rows))[:2], *arguments, b, loss, gradient, H, loss if concave is None else concave,
        loss if curbed is None else curbed, IMPOSSIBLE, K, W=W, TILE=tile, HESSIAN=hessian, LOSS=with_loss,
        CURBED=curbed is not None, PIECE=0 if pieces is None else PIECE, **kinds, num_warps=warps,
    )  # fmt: skip
    if pieces is not None:
        loss, gradient = (_joined(one, pieces[2]) for one in (loss, gradient))
        H = _joined(H.flatten(1), pieces[2]).unflatten(1, (W, W)) if hessian else H
        concave = None if concave is None else _joined(concave, pieces[2])
    return Sums(loss, gradient, H[:, :K, :K] if hessian else None, concave)


def _joined(parts: Any, lengths: Any) -> Any:
    """Sum up the pieces of every row, in their order."""
    return torch.segment_reduce(parts, "sum", lengths=lengths, axis=0, unsafe=True)


def change(block: Block, rows: Any, b: Any, step: Any, design: Design, *, own: Own) -> Any:
    """Change of the sum of losses from `b` to ``b + step``, in float64; parameters as in `evaluate`."""
    n, K = b.shape
    W = design.padded.shape[1]
    loss = torch.empty(n, dtype=torch.float64, device=b.device)
    tile, warps = _tile_and_warps(W, n, hessian=False)
    arguments, kinds = _entries(block, rows, design, own)
    _change[(n,)](
        *arguments, b, step, loss, IMPOSSIBLE, LEAST_RATIO, K, W=W, TILE=tile, **kinds, num_warps=warps
    )
    return loss


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
) -> tuple[Any, Any, Any]:
    """Return how far the step from `b` to ``b + step`` goes, in rows that are not `known`; see `evaluate`.

    First the largest relative decrease of a count's mean, to first order, and the largest increase of an eta,
    over the row's non-zeros and all its exact entries; never negative. Then by how much the curvature along
    the step may grow, all exact entries together; inf where it was not computed.
    """
    n, K = b.shape
    W = design.padded.shape[1]
    tile, warps = (128, 2) if n >= MANY_ROWS and W <= 16 else _tile_and_warps(W, n, hessian=False)
    shrink, growth, rise = torch.empty((3, n), dtype=design.X.dtype, device=b.device)
    arguments, kinds = _entries(block, rows, design, own, rough=True)
    _reach[(n,)](
        *arguments, b, step, shrink, growth, rise, known.view(torch.uint8), *limits, K, W=W, TILE=tile,
        IDENTITY=kinds["IDENTITY"], STORED=kinds["STORED"], BATCH=kinds["BATCH"],
        RISES=design.form.sums_rises, num_warps=warps,
    )  # fmt: skip
    return shrink, growth, rise


@triton.jit
def begin(program, rows, indptr, exposures, columns, own_exposures, BATCH: tl.constexpr):
    """Return the row of a program, its entries, and where its exposures begin with its own one."""
    row_exposure, _, labels = exposures
    row = tl.load(rows + program)
    start, stop = tl.load(indptr + row), tl.load(indptr + row + 1)
    row_at, column_at = program * own_exposures, program * 0
    if BATCH == 1:
        column_at = tl.load(labels + program) * columns
    return row, start, stop, (program, row_at, column_at, tl.load(row_exposure + row_at))


@triton.jit
def gather(indices, at, stop, design, b, k, W: tl.constexpr, TILE: tl.constexpr):
    """Entries of a tile, whether they are there, their columns and design rows."""
    entry = at + tl.arange(0, TILE)
    there = entry < stop
    column = tl.load(indices + entry, mask=there, other=0)
    place = column.to(tl.int64)[:, None] * W + k[None, :]
    return entry, there, column, tl.load(design + place, mask=there[:, None], other=0.0).to(b.dtype)


@triton.jit
def exposure_of(exposures, place, column, there, BATCH: tl.constexpr):
    """Exposure of the entries of a tile.

    BATCH: 0 without batches, 1 where rows are samples of several, 2 where columns are.
    """
    row_exposure, column_exposure, labels = exposures
    _, row_at, column_at, t_row = place
    t = tl.load(column_exposure + column_at + column, mask=there, other=0.0)
    if BATCH == 2:
        label = tl.load(labels + column, mask=there, other=0)
        t *= tl.load(row_exposure + row_at + label, mask=there, other=0.0)
    else:
        t *= t_row
    return t


@triton.jit
def coefficients(quadratic, column, place, t, there, BY_COLUMN: tl.constexpr, DISPERSED: tl.constexpr):
    """Coefficients for zeros, of the column or of the row: linear, quadratic, and of the concave part."""
    if DISPERSED:
        N: tl.constexpr = 3
    else:
        N: tl.constexpr = 2
    if BY_COLUMN:
        at = quadratic + N * column
    else:  # loaded once for every entry, so that the arithmetic is spread over all threads
        at = quadratic + N * place[0] + tl.zeros_like(column)
    a1, a2 = tl.load(at, mask=there, other=0.0), tl.load(at + 1, mask=there, other=0.0)
    concave = tl.zeros_like(a1)
    if DISPERSED:
        concave = t * tl.load(at + 2, mask=there, other=0.0)
    return a1, a2, concave


@triton.jit
def dispersion_of(dispersion, column, place, there, OF_ROWS: tl.constexpr):
    if OF_ROWS:
        phi = tl.load(dispersion + place[0])
    else:
        phi = tl.load(dispersion + column, mask=there, other=0.0)
    return phi


@of_entries
def _evaluate(  # noqa: C901, PLR0912, PLR0915 - branches of the compiler, not of the program
    owners, offsets, rows, indptr, indices, values, zeros_indptr, zeros_indices, row_exposure,
    column_exposure, labels, dispersion, quadratic, design, lowest, columns, own_exposures, smallest,
    largest, b_at, loss_at, gradient_at, hessian_at, concave_at, curbed_at, impossible, K, W: tl.constexpr,
    TILE: tl.constexpr, IDENTITY: tl.constexpr, QUADRATIC: tl.constexpr, BY_COLUMN: tl.constexpr,
    STORED: tl.constexpr, DISPERSED: tl.constexpr, OF_ROWS: tl.constexpr, BATCH: tl.constexpr,
    HESSIAN: tl.constexpr, LOSS: tl.constexpr, CURBED: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = row_exposure.dtype.element_ty
    piece = tl.program_id(0).to(tl.int64)
    program, offset = piece, piece * 0
    if PIECE > 0:
        program, offset = tl.load(owners + piece), tl.load(offsets + piece)
    exposures = (row_exposure, column_exposure, labels)
    row, start, stop, place = begin(program, rows, indptr, exposures, columns, own_exposures, BATCH)
    if PIECE > 0:
        start += offset
        stop = tl.minimum(stop, start + PIECE)
    k = tl.arange(0, W)
    b = tl.load(b_at + program * K + k, mask=k < K, other=0.0).to(T)
    by_slope, by_curvature = 0.0, 0.0
    if CURBED:
        by_slope = tl.load(curbed_at + 2 * program).to(T)
        by_curvature = tl.load(curbed_at + 2 * program + 1).to(T)
    loss, slopes, H = tl.zeros([TILE], T), tl.zeros([TILE, W], T), tl.zeros([W, W], T)
    slope, curvature = tl.zeros([TILE], T), tl.zeros([TILE], T)
    for ZEROS in tl.static_range(2 if STORED else 1):  # counts, then stored zeros
        if ZEROS == 1:  # with the first piece of the row
            indices = zeros_indices
            start, stop = tl.load(zeros_indptr + row), tl.load(zeros_indptr + row + 1)
            stop = tl.where(offset > 0, start, stop)
        for at in tl.range(start, stop, TILE, num_stages=1):
            entry, there, column, X = gather(indices, at, stop, design, b, k, W, TILE)
            eta = tl.sum(X * b[None, :], axis=1)
            y, least = eta, smallest  # not used, unless it is loaded
            if ZEROS == 0:
                y = tl.load(values + entry, mask=there, other=0.0)
            if not (QUADRATIC or DISPERSED):  # loaded, so that the arithmetic is spread over all threads
                least = tl.load(lowest + tl.zeros_like(column), mask=there, other=1.0)
            inside, em = em_of(eta, least, largest, IDENTITY)
            t, phi, a1, a2, concave = em, em, em, em, em
            if QUADRATIC or DISPERSED:
                t = exposure_of(exposures, place, column, there, BATCH)
            if DISPERSED:
                phi = dispersion_of(dispersion, column, place, there, OF_ROWS)
            if QUADRATIC:
                a1, a2, concave = coefficients(quadratic, column, place, t, there, BY_COLUMN, DISPERSED)
            value, residual, weight = _terms(
                y, inside, em, t, phi, a1, a2, concave, IDENTITY, QUADRATIC, DISPERSED, ZEROS == 0, LOSS
            )
            if QUADRATIC and DISPERSED:
                slope += t * inside
                curvature -= 2.0 * concave * inside * (t * inside)
            if CURBED:
                residual = t * (by_slope - 4.0 * by_curvature * concave * inside)
            if ZEROS == 0:
                value += y * tl.maximum(1.0 - eta * (0.5 / smallest), 0.0) * impossible
            loss += value
            slopes += X * residual[:, None]
            if HESSIAN:
                H = add_squares(H, X, weight)
    tl.store(loss_at + piece, tl.sum(loss.to(tl.float64), axis=0))
    gradient = tl.sum(slopes.to(tl.float64), axis=0)
    tl.store(gradient_at + piece * K + k, gradient, mask=k < K)
    if HESSIAN:
        tl.store(hessian_at + piece * W * W + k[:, None] * W + k[None, :], H)
    if QUADRATIC and DISPERSED:
        tl.store(concave_at + 2 * piece, tl.sum(slope.to(tl.float64), axis=0))
        tl.store(concave_at + 2 * piece + 1, tl.sum(curvature.to(tl.float64), axis=0))


@of_entries
def _change(
    rows, indptr, indices, values, zeros_indptr, zeros_indices, row_exposure, column_exposure, labels,
    dispersion, quadratic, design, lowest, columns, own_exposures, smallest, largest, b_at, step_at, loss_at,
    impossible, least_ratio, K, W: tl.constexpr, TILE: tl.constexpr, IDENTITY: tl.constexpr,
    QUADRATIC: tl.constexpr, BY_COLUMN: tl.constexpr, STORED: tl.constexpr, DISPERSED: tl.constexpr,
    OF_ROWS: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = row_exposure.dtype.element_ty
    program, exposures = tl.program_id(0).to(tl.int64), (row_exposure, column_exposure, labels)
    row, start, stop, place = begin(program, rows, indptr, exposures, columns, own_exposures, BATCH)
    k = tl.arange(0, W)
    b = tl.load(b_at + program * K + k, mask=k < K, other=0.0).to(T)
    step = tl.load(step_at + program * K + k, mask=k < K, other=0.0).to(T)
    loss = tl.zeros([TILE], dtype=tl.float64)
    for ZEROS in tl.static_range(2 if STORED else 1):
        if ZEROS == 1:
            indices = zeros_indices
            start, stop = tl.load(zeros_indptr + row), tl.load(zeros_indptr + row + 1)
        for at in tl.range(start, stop, TILE, num_stages=1):
            entry, there, column, X = gather(indices, at, stop, design, b, k, W, TILE)
            eta, delta = tl.sum(X * b[None, :], axis=1), tl.sum(X * step[None, :], axis=1)
            inside, em = em_of(eta, smallest, largest, IDENTITY)
            rise = rise_of(em, delta, largest, IDENTITY)
            value = tl.zeros_like(em)
            if QUADRATIC or DISPERSED:
                t = exposure_of(exposures, place, column, there, BATCH)
                zero, spread = t * rise, tl.zeros_like(em)
            if DISPERSED:
                phi = dispersion_of(dispersion, column, place, there, OF_ROWS)
                part = zero / (1.0 + phi * t * em)
                z = tl.maximum(phi * part, -1.0 + 1e-7)
                by = log1p_ratio(z)
                zero, spread = part * by, z * by
            if ZEROS == 0:
                y = tl.load(values + entry, mask=there, other=0.0)
                ratio = 1.0 + rise / em
                value = -y * libdevice.log(tl.maximum(ratio, least_ratio))
                value += tl.where(ratio < least_ratio, y * impossible, 0.0)
                if DISPERSED:
                    value += y * spread
            if QUADRATIC:
                a1, a2, concave = coefficients(quadratic, column, place, t, there, BY_COLUMN, DISPERSED)
                value += zero - t * delta * (a1 + (a2 + concave) * (2.0 * inside + delta))
            loss += tl.where(there, value, 0.0).to(tl.float64)
    tl.store(loss_at + program, tl.sum(loss, axis=0))


@of_entries
def _reach(  # noqa: PLR0912, PLR0915
    rows, indptr, indices, values, zeros_indptr, zeros_indices, row_exposure, column_exposure, labels,
    dispersion, quadratic, design, lowest, columns, own_exposures, smallest, largest, b_at, step_at,
    shrink_at, growth_at, rise_at, known, least, most, K, W: tl.constexpr, TILE: tl.constexpr,
    IDENTITY: tl.constexpr, STORED: tl.constexpr, BATCH: tl.constexpr, RISES: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = row_exposure.dtype.element_ty
    program, exposures = tl.program_id(0).to(tl.int64), (row_exposure, column_exposure, labels)
    row, first, last, place = begin(program, rows, indptr, exposures, columns, own_exposures, BATCH)
    wanted = tl.load(known + program) == 0
    stop = tl.where(wanted, last, first)
    k = tl.arange(0, W)
    b = tl.load(b_at + program * K + k, mask=k < K, other=0.0).to(T)
    step = tl.load(step_at + program * K + k, mask=k < K, other=0.0).to(T)
    shrink, growth = tl.zeros([TILE], dtype=T), tl.zeros([TILE], dtype=T)
    for at in tl.range(first, stop, TILE, num_stages=1):
        X = gather(indices, at, stop, design, b, k, W, TILE)[3]
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
            X = gather(zeros_indices, at, end, design, b, k, W, TILE)[3]
            growth = tl.maximum(growth, tl.sum(X * step[None, :], axis=1))
    shrinks, grows = tl.max(shrink, axis=0), tl.max(growth, axis=0)
    tl.store(shrink_at + program, shrinks)
    tl.store(growth_at + program, grows)
    rise = float("inf")
    if RISES:  # by how much the curvature along the step may grow
        far = (shrinks > least) | (grows > most)
        stop, end = tl.where(far, stop, first), tl.where(far, end, start)
        sums = tl.zeros([TILE], dtype=T)
        for ZEROS in tl.static_range(2 if STORED else 1):
            if ZEROS == 1:
                indices, first, stop = zeros_indices, start, end
            for at in tl.range(first, stop, TILE, num_stages=1):
                entry, there, column, X = gather(indices, at, stop, design, b, k, W, TILE)
                delta = tl.sum(X * step[None, :], axis=1)
                inside, em = em_of(tl.sum(X * b[None, :], axis=1), smallest, largest, IDENTITY)
                more = tl.zeros_like(em)
                if not IDENTITY:
                    t = exposure_of(exposures, place, column, there, BATCH)
                    more = t * (em + 1.0) * libdevice.expm1(tl.minimum(tl.maximum(delta, 0.0), largest))
                if ZEROS == 0:
                    y = tl.load(values + entry, mask=there, other=0.0)
                    low = em_of(inside + tl.minimum(delta, 0.0), smallest, largest, IDENTITY)[1]
                    if IDENTITY:
                        more += y * (1.0 / (low * low) - 1.0 / (em * em))
                    else:
                        more += y * ((1.0 + low) / (low * low) - (1.0 + em) / (em * em))
                sums += more * delta * delta  # delta is 0 where there is no entry
        rise = tl.where(far, tl.sum(sums, axis=0), rise)
    tl.store(rise_at + program, rise)


# ---------- all entries of some rows, in the exact form

ROWS, FEWER_ROWS, COLUMNS, WARPS = 128, 32, 32, 8
"""Rows and columns of a tile, and warps of a program; fewer for wide designs and in double precision."""
WIDE, STAGE_BYTES = 128, 190_000  # columns of a wide design, and room for the tiles that are loaded ahead
TAIL = 128  # columns of `wide` that a program takes beside the first ones
PROGRAMS, FEWEST_COLUMNS = 1056, 1024  # programs that keep a card busy, and what is worth one


def dense_sums(b: Any, design: Design, *, own: Own, hessian: bool) -> Sums:
    """Sum of what zeros cost over all columns (``t expm1(eta)`` with Poisson noise), with its derivatives.

    One matrix product gives gradient and Hessian: with the design and with its products of two columns.
    """
    (n, K), W, identity = b.shape, design.padded.shape[1], design.form.identity
    parts = wide(design.X, hessian and not identity)
    tails = (parts.shape[1] - K) // TAIL
    head = parts.shape[1] - tails * TAIL
    HEAD = max(NARROWEST, triton.next_power_of_2(head))
    parts = torch.nn.functional.pad(parts.T, (0, 0, 0, HEAD - head))  # the tails come first
    parts = torch.cat([parts[:head], parts[head + tails * TAIL :], parts[head : head + tails * TAIL]])
    grid, arguments, sizes, kinds = _dense(b, design, own)
    stages = max(1, min(3, STAGE_BYTES // (8 * COLUMNS * (W + HEAD + TAIL))))
    out = torch.empty((grid[1], n, len(parts)), dtype=parts.dtype, device=b.device)
    loss, halves = torch.empty((grid[1], n), dtype=parts.dtype, device=b.device), _halves(parts)
    for tail in range(max(1, tails)):
        _dense_sums[grid](
            *arguments, *halves, loss, out, *sizes, len(parts), HEAD + tail * TAIL, K, W=W, HEAD=HEAD,
            TAIL=TAIL if tails else 0, FIRST=tail == 0, **kinds, num_warps=WARPS, num_stages=stages,
        )  # fmt: skip
    total = out.sum(0, dtype=torch.float64) if grid[1] > 1 else out[0]
    total = torch.cat([total[:, :head], total[:, HEAD:]], dim=1)
    if hessian and identity:
        total = torch.nn.functional.pad(total, (0, K * (K + 1) // 2))
    return completed(loss.sum(0, dtype=torch.float64), total, design, own, hessian)


def dense_change(b: Any, step: Any, design: Design, *, own: Own) -> tuple[Any, Any]:
    """Change of the sum from `b` to ``b + step``, and the largest rise of an eta; as in `dense_sums`."""
    grid, arguments, sizes, kinds = _dense(b, design, own)
    loss, growth = torch.empty((2, grid[1], len(b)), dtype=design.X.dtype, device=b.device)
    _dense_change[grid](
        *arguments, step.contiguous(), loss, growth, *sizes, b.shape[1], W=design.padded.shape[1], **kinds,
        num_warps=WARPS, num_stages=2,
    )  # fmt: skip
    return loss.sum(0, dtype=torch.float64), growth.amax(0)


def _dense(b: Any, design: Design, own: Own) -> tuple[tuple[int, int], tuple[Any, ...], tuple[int, ...], Any]:
    """Return the programs, where they find what belongs to rows and columns, sizes, and their kinds."""
    n, (m, W), large = len(b), design.padded.shape, design.form.large
    double = design.X.dtype == torch.float64
    rows = FEWER_ROWS if double or W >= WIDE else ROWS
    splits = max(1, min(triton.cdiv(PROGRAMS, triton.cdiv(n, rows)), triton.cdiv(m, FEWEST_COLUMNS)))
    each = triton.cdiv(triton.cdiv(m, splits), COLUMNS) * COLUMNS
    places, kinds = _belongings(design, own)
    halves = (design.padded, design.padded) if large else _halves(design.padded)
    arguments = (b.contiguous(), *halves, *places, own.exposure.stride(0), design.form.largest)
    kinds.update(ROWS=rows, COLUMNS=COLUMNS, LARGE=large, DOUBLE=double)
    return (triton.cdiv(n, rows), triton.cdiv(m, each)), arguments, (n, m, each), kinds


def _halves(values: Any) -> tuple[Any, Any]:
    """Split numbers of single precision into two that tensor cores see whole."""
    if values.dtype == torch.float64:
        return values.contiguous(), values
    first = _seen(values.contiguous())
    return first, _seen(values - first)


def _seen(values: Any) -> Any:
    return ((values.view(torch.int32) + 4096) & -8192).view(torch.float32)


@triton.jit
def _product(A, B_high, B_low, WHOLE: tl.constexpr):
    """Product with all digits of the type, of B in two parts; WHOLE: the first is all of it.

    The largest part is by itself, because tensor cores cut off their sums.
    """
    if WHOLE:
        out = tl.dot(A, B_high, input_precision="ieee", out_dtype=A.dtype)
    else:
        A_high = high(A)
        out = tl.dot(high(A - A_high), B_high, input_precision="tf32", out_dtype=tl.float32)
        out = tl.dot(A_high, B_low, acc=out, input_precision="tf32", out_dtype=tl.float32)
        out = tl.dot(A_high, B_high, input_precision="tf32", out_dtype=tl.float32) + out
    return out


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
    LARGE: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = row_exposure.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split, inside = tl.program_id(1).to(tl.int64), row < n
    k, first, other = tl.arange(0, W), tl.arange(0, HEAD), tl.arange(0, TAIL if TAIL > 0 else 16)
    known = inside[:, None] & (k < K)[None, :]
    b = tl.load(b_at + row[:, None] * K + k[None, :], mask=known, other=0.0).to(T)
    heads = tl.zeros([ROWS, HEAD], dtype=T)
    tails = tl.zeros([ROWS, TAIL if TAIL > 0 else 16], dtype=T)
    loss = tl.zeros([ROWS], dtype=T)
    for start in range(split * each, tl.minimum(split * each + each, m), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        there = column < m
        design = column[:, None] * W + k[None, :]
        X_high = tl.load(X_high_at + design, mask=there[:, None], other=0.0)
        X_low = tl.load(X_low_at + design, mask=there[:, None], other=0.0)
        eta = _product(b, tl.trans(X_high), tl.trans(X_low), LARGE)
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
            heads += _product(weight, tl.trans(P_high), tl.trans(P_low), DOUBLE)
            loss += tl.sum(value, axis=1)
        if TAIL > 0:
            place = (tail_at + other)[:, None].to(tl.int64) * m + column[None, :]
            P_high = tl.load(parts_high + place, mask=there[None, :], other=0.0)
            P_low = tl.load(parts_low + place, mask=there[None, :], other=0.0)
            if DOUBLE:
                tails += _product(weight, tl.trans(P_high), tl.trans(P_low), True)
            else:
                seen = high(weight)
                more = tl.dot(seen, tl.trans(P_low), input_precision="tf32", out_dtype=tl.float32)
                more = tl.dot(seen, tl.trans(P_high), acc=more, input_precision="tf32", out_dtype=tl.float32)
                tails += more
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
    LARGE: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = row_exposure.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split, inside = tl.program_id(1).to(tl.int64), row < n
    k = tl.arange(0, W)
    known, own = inside[:, None] & (k < K)[None, :], row[:, None] * K + k[None, :]
    b = tl.load(b_at + own, mask=known, other=0.0).to(T)
    step = tl.load(step_at + own, mask=known, other=0.0).to(T)
    loss, growth = tl.zeros([ROWS], dtype=T), tl.zeros([ROWS], dtype=T)
    for start in range(split * each, tl.minimum(split * each + each, m), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        there = column < m
        design = column[:, None] * W + k[None, :]
        X_high = tl.trans(tl.load(X_high_at + design, mask=there[:, None], other=0.0))
        X_low = tl.trans(tl.load(X_low_at + design, mask=there[:, None], other=0.0))
        eta = _product(b, X_high, X_low, LARGE)
        _, em = em_of(eta, 0.0, largest, IDENTITY)
        delta = _product(step, X_high, X_low, LARGE)
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


# ---------- condensed means

STRETCH, POINTS = 1 << 14, 512  # entries of a row that a program takes, and those of a tile


def binned_powers(place: Any, shape: tuple[int, int], counts: tuple[Any, Any, Any] | None = None) -> Any:
    """Sum powers of distances from the middle of a bin over the entries in it, rows x bins x 8 powers.

    Bins have width 1, and distances are from -1 to 1. The sums are over all entries of a row of `place`, or
    over those with counts (where rows begin, columns, values), weighed by these.
    """
    n, m = place.shape
    longest, given = m, (place, place, place)
    if counts is not None:
        longest, given = int(counts[0].diff().max()), counts
    out = place.new_zeros((n, max(1, triton.cdiv(longest, STRETCH)), *shape))
    _binned_powers[out.shape[:2]](
        place, m, *given, out, BINS=shape[0], STRETCH=STRETCH, POINTS=POINTS, COUNTED=counts is not None,
    )  # fmt: skip
    return out.sum(1)


@of_entries
def _binned_powers(
    place_at, m, indptr, indices, values, out_at, BINS: tl.constexpr, STRETCH: tl.constexpr,
    POINTS: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place_at += row * m
    start, stop = row * 0, row * 0 + m
    if COUNTED:
        start, stop = tl.load(indptr + row), tl.load(indptr + row + 1)
    start += stretch * STRETCH
    stop = tl.minimum(stop, start + STRETCH)
    low, high = tl.full([POINTS], BINS, tl.float64), tl.zeros([POINTS], tl.float64)
    for at in range(start, stop, POINTS):
        place, _ = _place_and_weight(place_at, indices, values, at, stop, POINTS, COUNTED)
        low, high = tl.minimum(low, tl.where(place < 0.0, low, place)), tl.maximum(high, place)
    out_at += (row * tl.num_programs(1) + stretch) * BINS * 8
    for number in range(tl.min(low, axis=0).to(tl.int32), tl.max(high, axis=0).to(tl.int32) + 1):
        none = tl.zeros([POINTS], tl.float64)
        s0, s1, s2, s3, s4, s5, s6, s7 = none, none, none, none, none, none, none, none
        for at in range(start, stop, POINTS):
            place, p = _place_and_weight(place_at, indices, values, at, stop, POINTS, COUNTED)
            d = 2.0 * (place - number) - 1.0
            p = tl.where((place >= number) & (place < number + 1), p, 0.0)
            s0, p = s0 + p, p * d
            s1, p = s1 + p, p * d
            s2, p = s2 + p, p * d
            s3, p = s3 + p, p * d
            s4, p = s4 + p, p * d
            s5, p = s5 + p, p * d
            s6, p = s6 + p, p * d
            s7 += p
        to = out_at + number * 8
        tl.store(to, tl.sum(s0, axis=0))
        tl.store(to + 1, tl.sum(s1, axis=0))
        tl.store(to + 2, tl.sum(s2, axis=0))
        tl.store(to + 3, tl.sum(s3, axis=0))
        tl.store(to + 4, tl.sum(s4, axis=0))
        tl.store(to + 5, tl.sum(s5, axis=0))
        tl.store(to + 6, tl.sum(s6, axis=0))
        tl.store(to + 7, tl.sum(s7, axis=0))


@triton.jit
def _place_and_weight(place_at, indices, values, at, stop, POINTS: tl.constexpr, COUNTED: tl.constexpr):
    """Return where entries lie, -1 beyond the last one, and their weights."""
    entry = at + tl.arange(0, POINTS)
    there = entry < stop
    column, weight = entry, there.to(tl.float64)
    if COUNTED:
        column = tl.load(indices + entry, mask=there, other=0)
        weight = tl.load(values + entry, mask=there, other=0.0).to(tl.float64)
    return tl.load(place_at + column, mask=there, other=-1.0), weight


# ---------- quadratic programs in a box, one for every row, several of them in one program

SWEEPS = {torch.float32: (1e-9, 12), torch.float64: (1e-12, 20)}
"""Part of all changes below which a sweep ends the search, and the most rounds."""


def solve_box(H: Any, slope: Any, b: Any, box: Box) -> tuple[Any, Any, Any]:
    """Minimise ``slope'd + d'Hd/2`` over ``lower <= b + d <= upper`` for every row.

    Coordinate descent finds the active bounds, conjugate gradients on the free coordinates finish. Where both
    bounds are the same, `b` has to be there, and stays. Returns ``b + d``, predicted decreases and ``d'Hd``.
    """
    n, K = b.shape
    W = width(K)
    x = torch.empty_like(b)
    predicted, curvature = torch.empty((2, n), dtype=torch.float64, device=b.device)
    group = max(1, 128 // W)
    lower, upper = box.lower.contiguous(), box.upper.contiguous()
    _solve_box[(triton.cdiv(n, group),)](
        H, H.stride(0), H.stride(1), slope, b, lower, upper, x, predicted, curvature, *SWEEPS[H.dtype], n, K,
        W=W, GROUP=group, num_warps=1,
    )  # fmt: skip
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
        curvature = tl.sum(way * image, axis=1)
        length = tl.where(curvature > 0.0, size / curvature, 0.0)
        step += length[:, None] * way
        rest -= length[:, None] * image
        new = tl.sum(rest * rest * unit, axis=1)
        way = rest * unit + tl.where(size > 0.0, new / size, 0.0)[:, None] * way
        size = new
    return step


@triton.jit
def _solve_box(
    H_at, H_row, H_column, slope_at, b_at, lower_at, upper_at, x_at, predicted_at, curvature_at, tolerance,
    most_rounds, n, K, W: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = H_at.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * GROUP + tl.arange(0, GROUP)
    k = tl.arange(0, W)
    there = (row < n)[:, None] & (k < K)[None, :]
    place = row[:, None] * K + k[None, :]
    b = tl.load(b_at + place, mask=there, other=0.0)
    slope = tl.load(slope_at + place, mask=there, other=0.0).to(T)
    lower = tl.load(lower_at + place, mask=there, other=0.0)
    lowest = (lower - b).to(T)
    highest = (tl.load(upper_at + place, mask=there, other=0.0) - b).to(T)
    line_at = H_at + row[:, None] * H_row + k[None, :]
    diagonal = tl.load(line_at + k[None, :] * H_column, mask=there, other=0.0)
    unit = tl.where(diagonal > TINY, 1.0 / diagonal, 0.0)
    d, q = tl.zeros([GROUP, W], dtype=T), slope
    total = tl.zeros([GROUP], dtype=T)
    turn, moving = 0, 1
    while (turn < most_rounds) & (moving > 0):
        gained = tl.zeros([GROUP], dtype=T)
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
