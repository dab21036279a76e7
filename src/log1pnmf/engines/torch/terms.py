"""What a row's visited entries add to its loss, gradient and Hessian, in plain PyTorch; and the box programs.

The same operations as in `triton_terms`, which takes over on a card with Triton.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .box import Box, solve_box
from .dense import dense_change, dense_sums
from .dispersed import count_terms, rise_terms, zero_terms
from .rows import Block, Stored
from .sides import Design, Form, Own, Reach, Sums

__all__ = ["Box", "bend_slopes", "change", "dense_change", "dense_sums", "evaluate", "reach", "solve_box"]

ENTRY_BYTES = 1 << 28
IMPOSSIBLE = 1e30
LEAST_RATIO = 1e-6
"""Smallest fraction to which a step may shrink the mean of a count."""


def evaluate(
    block: Block, rows: Any, b: Any, design: Design, *, own: Own, hessian: bool, with_loss: bool = True
) -> Sums:
    """Sum over the non-zeros and the stored zeros of some rows.

    Parameters
    ----------
    rows : Tensor of int64, shape (n,)
        Numbers of rows in the block.
    b : Tensor of float64, shape (n, K)
        Their coefficients.
    own : Own
        Of these rows.
    hessian, with_loss : bool
        Whether they are wanted; the loss may be anything otherwise.
    """
    narrow = b.to(design.X.dtype)

    def sums(entries: _Entries) -> Sums:
        return _evaluate(entries, narrow[entries.at], design, own, hessian)

    found = _joined(block, rows, design, sums, hessian=hessian)
    if own.stored is not None:
        more = _joined(own.stored, rows, design, sums, hessian=hessian)
        found = [None if one is None else one + other for one, other in zip(found, more, strict=True)]
    return Sums(*found)


def bend_slopes(block: Block, rows: Any, b: Any, design: Design, *, own: Own) -> list[Any]:
    """Gradients of the two sums of ``Sums.bend`` over visited entries; parameters as in `evaluate`."""
    b = b.to(design.X.dtype)

    def slopes(entries: _Entries) -> tuple[Any, Any]:
        X = design.X[entries.column]
        t, _, _, bent = _of_entries(entries, design, own)
        eta = (X * b[entries.at][entries.row]).sum(1)
        parts = (t, -4.0 * bent * t * eta)
        return tuple(_sum((X * one[:, None]).double(), entries.lengths) for one in parts)

    found = _joined(block, rows, design, slopes)
    if own.stored is None:
        return found
    return [one + other for one, other in zip(found, _joined(own.stored, rows, design, slopes), strict=True)]


def change(block: Block, rows: Any, b: Any, step: Any, design: Design, *, own: Own) -> Any:
    """Change of the sum of losses from `b` to ``b + step``, in float64; parameters as in `evaluate`."""
    b, step = (x.to(design.X.dtype) for x in (b, step))

    def changes(entries: _Entries) -> tuple[Any]:
        return (_change(entries, b[entries.at], step[entries.at], design, own),)

    loss = _joined(block, rows, design, changes)[0]
    return loss if own.stored is None else loss + _joined(own.stored, rows, design, changes)[0]


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
    """How far the step from `b` to ``b + step`` goes; other parameters as in `evaluate`.

    Parameters
    ----------
    known : Tensor of bool, shape (n,)
        Rows whose step is known to be short: what is given for them may be anything.
    limits : (float, float)
        Of shrink and growth; `rise` is wanted of rows that are beyond one of them, if the form
        `sums_rises`.
    """
    b, step = (x.to(design.X.dtype) for x in (b, step))

    def reaches(entries: _Entries) -> Reach:
        return _reach(entries, b[entries.at], step[entries.at], design, own)

    shrink, growth, rise = _joined(block, rows, design, reaches)
    if own.stored is not None:
        _, further, more = _joined(own.stored, rows, design, reaches)
        growth, rise = torch.maximum(growth, further), rise + more
    return Reach(shrink, growth, torch.where((shrink > limits[0]) | (growth > limits[1]), rise, torch.inf))


# ---------------------------------------------------------------- entries


class _Entries(NamedTuple):
    """Entries of consecutive rows: which rows, number of the row among them, column, count, entries per row.

    The counts of stored zeros are None.
    """

    at: slice
    row: Any
    column: Any
    y: Any
    lengths: Any


def _joined(
    source: Block | Stored,
    rows: Any,
    design: Design,
    part: Callable[[_Entries], tuple[Any, ...]],
    *,
    hessian: bool = False,
) -> list[Any]:
    """Do some rows piece by piece: K x K or a few K numbers for every entry fit into `ENTRY_BYTES`."""
    lengths = source.lengths[rows]
    K = design.X.shape[1]
    most = max(1, ENTRY_BYTES // (8 * K * (K if hessian else 4)))
    group = torch.div(torch.cumsum(lengths, 0), most, rounding_mode="floor")
    ends = torch.unique_consecutive(group, return_counts=True)[1].cumsum(0).tolist()
    parts = [part(_gather(source, rows, slice(*ends))) for ends in itertools.pairwise([0, *ends])]
    return [None if one[0] is None else torch.cat(one) for one in zip(*parts, strict=True)]


def _gather(source: Block | Stored, rows: Any, at: slice) -> _Entries:
    rows = rows[at]
    lengths = source.lengths[rows]
    row = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), lengths)
    begin = torch.cumsum(lengths, 0) - lengths
    entry = torch.arange(len(row), device=rows.device) - begin[row] + source.indptr[rows][row]
    y = source.values[entry] if isinstance(source, Block) else None
    return _Entries(at, row, source.indices[entry].long(), y, lengths)


def _of_entries(entries: _Entries, design: Design, own: Own) -> tuple[Any, Any, Any, Any]:
    """Exposure, and the coefficients of the quadratics; the last is that of the concave part."""
    t = _exposures(entries, design, own)
    quadratic = _own_of(entries, design.quadratic, own.quadratic)
    if quadratic is None:
        return t, 0.0, 0.0, 0.0
    a1, a2, *by_t = quadratic.unbind(1)
    return t, a1, a2, t * by_t[0] if by_t else 0.0


def _exposures(entries: _Entries, design: Design, own: Own) -> Any:
    """Exposure of the row times that of the column, in the batch of the sample."""
    of_rows, of_columns = own.exposure[entries.at], design.exposure
    if design.batch is not None:
        return of_rows[entries.row, design.batch[entries.column].long()] * of_columns[entries.column]
    if own.batch is not None:
        of_columns = of_columns[own.batch[entries.at][entries.row], entries.column]
        return of_rows[entries.row] * of_columns
    return of_rows[entries.row] * of_columns[entries.column]


def _own_of(entries: _Entries, of_columns: Any, of_rows: Any) -> Any:
    """Give what every entry has of its column, or of its row; None where neither has anything."""
    if of_columns is not None:
        return of_columns[entries.column]
    return None if of_rows is None else of_rows[entries.at][entries.row]


def _evaluate(entries: _Entries, b: Any, design: Design, own: Own, hessian: bool) -> Sums:
    X, form, y = design.X[entries.column], design.form, entries.y
    eta = (X * b[entries.row]).sum(1)
    inside = _inside(eta, form)
    em = inside if form.identity else torch.expm1(inside)
    loss = residual = weight = torch.zeros_like(em)
    if form.dispersed:
        loss, residual, weight = _dispersed(entries, em, design, own)
    elif y is not None:
        inverse, one = 1.0 / em, 0.0 if form.identity else 1.0
        loss, residual = -y * torch.log(em), -y * (one + inverse)
        weight = -residual * inverse
    if y is not None:
        loss = loss + y * IMPOSSIBLE * (1.0 - eta * (0.5 / form.smallest)).clamp(min=0.0)
    sums = None
    if form.quadratic:
        t, a1, a2, bent = _of_entries(entries, design, own)
        zero, slope = (0.0, 0.0) if form.dispersed else (em, em + 1.0)
        square = a2 + bent
        loss = loss + t * (zero - inside * (a1 + square * inside))
        residual = residual + t * (slope - a1 - 2.0 * square * inside)
        weight = weight + t * (slope - 2.0 * a2)
        if form.bent:
            steep = t * inside
            sums = _sum(torch.stack([steep, -2.0 * bent * inside * steep], 1).double(), entries.lengths)
    H = None
    if hessian:
        products = ((X * weight[:, None])[:, :, None] * X[:, None, :]).flatten(1)
        H = _sum(products, entries.lengths).unflatten(1, (X.shape[1], X.shape[1]))
    return Sums(
        _sum(loss.double(), entries.lengths),
        _sum((X * residual[:, None]).double(), entries.lengths),
        H,
        sums,
    )


def _dispersed(entries: _Entries, em: Any, design: Design, own: Own) -> tuple[Any, Any, Any]:
    """Loss, residual and weight with negative binomial noise; in exact form, beyond those of zeros."""
    t, phi = _of_entries(entries, design, own)[0], _own_of(entries, design.dispersion, own.dispersion)
    terms: list[Any] = [torch.zeros_like(em)] * 3
    identity = design.form.identity
    if entries.y is not None:
        terms = list(count_terms(entries.y, em, t, phi, identity=identity))
    if not design.form.exact:
        terms = [a + b for a, b in zip(terms, zero_terms(em, t, phi, identity=identity), strict=True)]
    return terms[0], terms[1], terms[2]


def _change(entries: _Entries, b: Any, step: Any, design: Design, own: Own) -> Any:
    X, form, y = design.X[entries.column], design.form, entries.y
    eta, delta = (X * b[entries.row]).sum(1), (X * step[entries.row]).sum(1)
    inside = _inside(eta, form)
    em = inside if form.identity else torch.expm1(inside)
    rise = delta if form.identity else (em + 1.0) * torch.expm1(delta.clamp(max=form.largest))
    loss = torch.zeros_like(em)
    if y is not None:
        ratio = 1.0 + rise / em
        loss = -y * torch.log(ratio.clamp(min=LEAST_RATIO))
        loss = loss + torch.where(ratio < LEAST_RATIO, y * IMPOSSIBLE, 0.0)
    t, a1, a2, bent = _of_entries(entries, design, own)
    zero = t * rise
    if form.dispersed:
        zero, spread = rise_terms(em, rise, t, _own_of(entries, design.dispersion, own.dispersion))
        loss = loss if y is None else loss + y * spread
    if form.quadratic:
        loss = loss + zero - t * delta * (a1 + (a2 + bent) * (2.0 * inside + delta))
    return _sum(loss.double(), entries.lengths)


def _reach(entries: _Entries, b: Any, step: Any, design: Design, own: Own) -> Reach:
    X, form, y = design.X[entries.column], design.form, entries.y
    delta, inside = (X * step[entries.row]).sum(1), _inside((X * b[entries.row]).sum(1), form)
    shrink = -delta / inside if form.identity else -delta * (1.0 + 1.0 / torch.expm1(inside))
    rise = torch.full_like(delta, torch.inf)
    if form.sums_rises:
        rise = torch.zeros_like(delta)
        if not form.identity:  # of the mean
            rise = _exposures(entries, design, own) * torch.exp(inside) * torch.expm1(delta.clamp(min=0.0))
        if y is not None:
            lower = _inside(inside + delta.clamp(max=0.0), form)
            rise = rise + y * (_pull(lower, form) - _pull(inside, form))
        rise = rise * delta**2
    lengths = entries.lengths
    return Reach(_max(shrink, lengths), _max(delta, lengths), _sum(rise.double(), lengths))


def _pull(eta: Any, form: Form) -> Any:
    """Second derivative of the loss of a count of one, without its mean."""
    if form.identity:
        return eta**-2
    em = torch.expm1(eta)
    return (1.0 + em) / em**2


def _inside(eta: Any, form: Form) -> Any:
    return eta.clamp(form.smallest, float("inf") if form.identity else form.largest)


def _sum(values: Any, lengths: Any) -> Any:
    return torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True)


def _max(values: Any, lengths: Any) -> Any:
    return torch.segment_reduce(values, "max", lengths=lengths, axis=0, unsafe=True, initial=0)
