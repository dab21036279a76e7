"""What a row's exact entries add to its loss, gradient and Hessian, in plain PyTorch; and the box programs.

The same operations as in `kernels`, which takes over on a card with Triton.

Negative binomial noise: what entries add to the loss and its derivatives, in plain PyTorch.

With the mean ``t em`` and ``D = 1 + phi t em``, everything is what ``cpp/policies.hpp`` has: derivatives are
Poisson's over D, and weights are never below the second derivative and never negative.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from .rows import Block, Stored

# ---------- the two parts of a half-step: its fixed design, and what its rows have of their own

GRAM_BYTES = 1 << 28
"""Of the K x K matrices that rows have of their own, of one piece of rows."""


@dataclass(frozen=True)
class Form:
    """Link and treatment of zero counts."""

    # identity link; all zeros exact
    identity: bool
    exact: bool
    # derivatives are taken with eta held in between
    smallest: float
    largest: float
    dispersed: bool = False  # negative binomial noise
    large: bool = False  # etas are large, as at a small c, and need all digits of their type

    @property
    def linear(self) -> bool:
        """Whether zeros cost their mean, and that is linear in eta: nothing differs from a quadratic."""
        return self.identity and not self.dispersed

    @property
    def quadratic(self) -> bool:
        """Whether a quadratic replaces zeros."""
        return not (self.exact or self.linear)

    @property
    def sums_rises(self) -> bool:
        """Whether exact entries tell how the curvature changes: all others have a constant one."""
        return not self.dispersed and (self.identity or not self.exact)

    @property
    def bent(self) -> bool:
        """Whether that may have a concave part."""
        return self.quadratic and self.dispersed


@dataclass(frozen=True, eq=False)
class Design:
    """The fixed side of a half-step."""

    form: Form  # of the problem
    X: Any  # (columns, K): in the type that is computed in
    exposure: Any  # (columns,): in the same type; the latter where rows are samples of several batches
    # (columns, width): `X` with columns of zeros up to a power of two, which Triton needs; `X` itself without
    # Triton
    padded: Any
    wide: Any  # (columns, K): `X` with all its digits
    kept: Any  # weights of the columns
    # (columns, 2): linear and quadratic coefficient for zeros, where columns have their own; with dispersions
    # a third is multiplied by the exposure and added to the quadratic one
    quadratic: Any = None
    dispersion: Any = None  # (columns,): where columns have their own
    # (columns,): number of the batch of every column, where columns are samples of several batches
    batch: Any = None
    lowest: Any = None  # (1,): the smallest eta of `form`, on the device

    # Found when first asked for: by then a card is busy with the entries.

    @cached_property
    def rough(self) -> Any:
        """`padded` with two digits, for bounds of what a step changes."""
        return self.padded.to(torch.bfloat16)

    @cached_property
    def largest(self) -> Any:
        """Largest entries of the columns of `wide`, float64, shape (K,)."""
        return self.wide.amax(0)

    @cached_property
    def _sums(self) -> Any:
        return self.kept.sums(self.wide)

    @property
    def decline(self) -> Any:
        """Sums of ``t x`` over all columns, float64, shape (batches, K); one sum without batches."""
        return self._sums[0]

    @property
    def linear(self) -> Any:
        """Sum of ``x`` over all columns with the weights of `log1pnmf.model.problem.SideZeros`, (1, K).

        With the exposure where all zeros are exact; with batches there are as many, batch by batch.
        """
        return self._sums[1]

    @property
    def gram(self) -> Any:
        """Sums of ``x x'`` in the same way, shape (P, K, K)."""
        return self._sums[2]


@dataclass(frozen=True, eq=False)
class Own:
    """What the rows of a half-step have of their own, beside their counts."""

    # (n,): in the type that is computed in; the latter where columns are samples of several batches
    exposure: Any
    # (n, 1) and (n, P): weights of ``Design.linear`` and ``Design.gram``
    linear: Any
    square: Any
    quadratic: Any = None  # (n, 2): as in `Design`, where rows have their own
    stored: Stored | None = None  # zeros that are computed exactly, of all rows of the block
    dispersion: Any = None  # (n,): where rows have their own
    batch: Any = None  # (n,): number of the batch of every row, where rows are samples of several batches

    def at(self, rows: Any) -> Own:
        """Take some rows of the block."""
        some = (self.quadratic, self.dispersion, self.batch)
        quadratic, phi, batch = (None if one is None else one[rows] for one in some)
        own = self.exposure[rows], self.linear[rows], self.square[rows]
        return Own(*own, quadratic, self.stored, phi, batch)


class Sums(NamedTuple):
    """Loss (float64), gradient (float64) and, where asked for, Hessian of every row.

    bend: with a concave part, sums of ``t eta`` and ``-2 t^2 b2 eta^2``, in float64, shape (n, 2).
    """

    loss: Any
    gradient: Any
    hessian: Any
    bend: Any = None


class Reach(NamedTuple):
    """How far a step goes in every row.

    shrink: largest relative decrease of a count's mean, to first order. growth: largest increase of an eta.
    They are over the row's non-zeros, and all its exact entries; never negative. rise: by how much the
    curvature along the step may grow, all exact entries together; inf where it was not computed.
    """

    shrink: Any
    growth: Any
    rise: Any


def declines(own: Own, design: Design) -> Any:
    """Sum of ``t x`` over all columns, for every row."""
    exposure = own.exposure.double()
    return _weighed(exposure[:, None] if exposure.ndim == 1 else exposure, design.decline, own)


def linears(own: Own, design: Design) -> Any:
    """Linear part of what replaces zeros, for every row."""
    return _weighed(own.linear, design.linear, own)


def with_grams(H: Any, own: Own, design: Design) -> Any:
    """Add twice the quadratic part to every row's matrix."""
    if own.batch is None and own.square.shape[1] == 1:
        return torch.addcmul(H, own.square.to(H.dtype)[:, :, None], 2.0 * design.gram.to(H.dtype))
    return H + 2.0 * grams(own, design, H.dtype)


def grams(own: Own, design: Design, dtype: Any, *, concave: bool = False) -> Any:
    """Quadratic part, a K x K matrix for every row: the convex one, or the concave one."""
    part = slice(int(concave), None, 2 if design.form.bent else 1)
    weights, sums = own.square[:, part].to(dtype), design.gram[part].flatten(1).to(dtype)
    return _weighed(weights, sums, own).unflatten(1, design.gram.shape[1:])


def bends(own: Own, design: Design, b: Any, *, concave: bool = False) -> Any:
    """Every row's own Gram matrix times its `b`; of the convex part, or of the concave one."""
    if len(design.gram) == (2 if design.form.bent else 1):
        return own.square[:, concave : concave + 1] * (b @ design.gram[int(concave)])
    n, K = b.shape
    size, done = max(1, GRAM_BYTES // (8 * K * K)), torch.empty_like(b)
    for first in range(0, n, size):
        at = slice(first, first + size)
        matrices = grams(own.at(at), design, b.dtype, concave=concave)
        done[at] = torch.bmm(matrices, b[at, :, None])[:, :, 0]
    return done


def _weighed(weights: Any, sums: Any, own: Own) -> Any:
    """Weigh the sums over columns: all of them, or those of the row's batch."""
    if own.batch is None:
        return weights @ sums
    return torch.bmm(weights[:, None], sums.unflatten(0, (-1, weights.shape[1]))[own.batch])[:, 0]


# ---------- quadratic programs in a box, one for every row, in plain PyTorch

SWEEP_TOLERANCE = 1e-12
MOST_ROUNDS, RIDGE, TINY = 20, 1e-13, 1e-38


class Box(NamedTuple):
    """Bounds and penalties of the coefficients of some rows, each of shape (n, K)."""

    lower: Any
    upper: Any
    penalty: Any

    def at(self, rows: Any) -> Box:
        """Return those of some of the rows."""
        return Box(*(one[rows] for one in self))


def solve_box(H: Any, slope: Any, b: Any, box: Box) -> tuple[Any, Any, Any]:
    """Minimise ``slope'd + d'Hd/2`` over ``lower <= b + d <= upper`` for every row.

    Coordinate descent finds the active bounds, a Newton step on the free coordinates finishes. Where both
    bounds are the same, `b` has to be there, and stays.
    """
    H = H.double()
    x, q = b.clone(), slope.clone()
    total = torch.zeros_like(x[:, 0])
    for _ in range(MOST_ROUNDS):
        total += _sweep(H, q, x, box)
        gained = _sweep(H, q, x, box)
        total += gained
        if bool((gained <= SWEEP_TOLERANCE * total).all()):
            break
        _subspace_step(H, q, x, box)
    d = x - b
    curvature = ((q - slope) * d).sum(1).clamp(min=0.0)
    predicted = -((slope * d).sum(1) + 0.5 * curvature)
    return x, predicted.clamp(min=0.0), curvature


def _sweep(H: Any, q: Any, x: Any, box: Box) -> Any:
    """Do a cycle of coordinate descent in place; `q` is the slope at `x`. Gives ``H_kk delta_k^2`` summed."""
    gained = torch.zeros_like(x[:, 0])
    for k in range(x.shape[1]):
        h, lower = H[:, k, k], box.lower[:, k]
        to = (x[:, k] - q[:, k] / h.clamp(min=TINY)).clamp(lower, box.upper[:, k])
        to = torch.where(h > TINY, to, torch.where(q[:, k] > 0.0, lower, x[:, k]))
        delta = to - x[:, k]
        gained += h * delta**2
        q += delta[:, None] * H[:, k]
        x[:, k] = to
    return gained


def _subspace_step(H: Any, q: Any, x: Any, box: Box) -> None:
    """Newton on the coordinates away from the bounds, as far as the bounds allow, in place."""
    diagonal = torch.diagonal(H, dim1=1, dim2=2)
    lower, upper = box.lower, box.upper
    free = (x > lower) & (x < upper) & (diagonal > TINY)
    both = free[:, :, None] & free[:, None, :]
    stiff = torch.where(free, RIDGE * diagonal, 1.0)
    step = torch.linalg.solve(torch.where(both, H, 0.0) + torch.diag_embed(stiff), -q * free)
    ahead = torch.where(step < 0.0, lower - x, upper - x) / step
    room = torch.where(step == 0.0, float("inf"), ahead).amin(1, keepdim=True)
    reach = room.clamp(max=1.0)
    to = (x + reach * step).clamp(lower, upper)
    blocked = (ahead <= room) & (room < 1.0) & (step != 0.0)
    to = torch.where(blocked, torch.where(step < 0.0, lower, upper), to)
    q += torch.einsum("nkl,nl->nk", H, to - x)
    x.copy_(to)


# ---------- negative binomial noise


def zero_terms(em: Any, t: Any, phi: Any, *, identity: bool) -> tuple[Any, Any, Any]:
    """Loss, residual and weight of a zero: of every entry, whatever its count."""
    mean = t * em
    x = phi * mean
    residual = (t if identity else mean + t) / (1.0 + x)
    return mean * _log1p_ratio(x), residual, torch.zeros_like(residual) if identity else residual


def count_terms(y: Any, em: Any, t: Any, phi: Any, *, identity: bool) -> tuple[Any, Any, Any]:
    """Loss, residual and weight that a count has beyond a zero."""
    inverse, x = 1.0 / em, phi * t * em
    ratio = 1.0 / (1.0 + x)
    pull = y * (inverse if identity else 1.0 + inverse)
    push = t * torch.ones_like(em) if identity else t * em + t
    weight = ratio * (pull * inverse + (pull - push).clamp(min=0.0) * (phi * push) * ratio)
    return y * (torch.log1p(x) - torch.log(em)), -pull * ratio, weight


def rise_terms(em: Any, rise: Any, t: Any, phi: Any) -> tuple[Any, Any]:
    """Change of the loss of a zero, and of ``log(D)``, where `em` rises."""
    part = t * rise / (1.0 + phi * t * em)
    z = (phi * part).clamp(min=-1.0 + 1e-7)
    return part * _log1p_ratio(z), torch.log1p(z)


def _log1p_ratio(x: Any) -> Any:
    """``log(1 + x) / x``, 1 at 0."""
    return torch.where(x == 0.0, 1.0, torch.log1p(x) / torch.where(x == 0.0, 1.0, x))


# ---------- the exact form

DENSE_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Of one rows x columns array; at most a few are there at a time."""


def dense_sums(b: Any, design: Design, *, own: Own, hessian: bool) -> Sums:
    """Sum of what zeros cost over all columns (``t expm1(eta)`` with Poisson noise), with its derivatives.

    One matrix product gives gradient and Hessian: with the design and with its products of two columns.
    """
    form, columns, loss, parts = design.form, wide(design.X, hessian), [], []
    for piece, some in _pieces(b, design, own):
        em, t, phi = _belongings(piece, design, some)
        if form.dispersed:
            value, em, _ = zero_terms(em, t, phi, identity=form.identity)
        else:
            em.mul_(t)
            value = em
        loss.append(value.sum(1, dtype=torch.float64))
        parts.append(em @ columns)
    return completed(torch.cat(loss), torch.cat(parts), design, own, hessian)


def completed(loss: Any, total: Any, design: Design, own: Own, hessian: bool) -> Sums:
    """Make sums of those over the columns of `wide`; with Poisson noise the slope is ``t (em + 1)``."""
    K, form = design.X.shape[1], design.form
    gradient = total[:, :K].double()
    if not form.dispersed:
        gradient = gradient + linears(own, design)
    if not hessian:
        return Sums(loss, gradient, None)
    H = total[:, place(K, total.device)].to(design.X.dtype)
    if form.dispersed:  # at the identity link the weights are zero
        return Sums(loss, gradient, torch.zeros_like(H) if form.identity else H)
    return Sums(loss, gradient, H + grams(own, design, H.dtype))


def dense_change(b: Any, step: Any, design: Design, *, own: Own) -> tuple[Any, Any]:
    """Change of the sum from `b` to ``b + step``, and the largest rise of an eta; as in `dense_sums`."""
    form, loss, growth = design.form, [], []
    moves = (piece for piece, _ in _pieces(step, design, own))
    for (piece, some), move in zip(_pieces(b, design, own), moves, strict=True):
        em, t, phi = _belongings(piece, design, some)
        delta = _eta(move, design)
        rise = delta if form.identity else (em + 1.0) * torch.expm1(delta.clamp(max=form.largest))
        rise = rise_terms(em, rise, t, phi)[0] if form.dispersed else t * rise
        loss.append(rise.sum(1, dtype=torch.float64))
        growth.append(delta.amax(1).clamp(min=0.0))
    return torch.cat(loss), torch.cat(growth)


def wide(X: Any, hessian: bool) -> Any:
    """Return the design, and its products of two columns beside it where a Hessian is wanted."""
    if not hessian:
        return X
    first, second = torch.triu_indices(X.shape[1], X.shape[1], device=X.device)
    return torch.cat([X, X[:, first] * X[:, second]], dim=1)


def place(K: int, device: Any) -> Any:
    """Return the column of `wide` for every entry of a Hessian."""
    first, second = torch.triu_indices(K, K, device=device)
    where = torch.empty(K, K, dtype=torch.int64, device=device)
    where[first, second] = where[second, first] = K + torch.arange(len(first), device=device)
    return where


def _belongings(b: Any, design: Design, own: Own) -> tuple[Any, Any, Any]:
    """Return em, exposure and dispersion of all entries of some rows."""
    eta, form = _eta(b, design), design.form
    em = eta if form.identity else eta.clamp_(max=form.largest).expm1_()
    phi = design.dispersion if own.dispersion is None else own.dispersion[:, None]
    row, column = own.exposure, design.exposure
    row = row[:, None] if design.batch is None else row[:, design.batch.long()]
    return em, row * (column if own.batch is None else column[own.batch]), phi


def _pieces(values: Any, design: Design, own: Own) -> Iterator[tuple[Any, Own]]:
    row_bytes = design.X.shape[0] * design.X.element_size()
    size = max(1, DENSE_BYTES[values.device.type] // max(1, row_bytes))
    for first in range(0, max(1, len(values)), size):
        at = slice(first, first + size)
        yield values[at], own.at(at)


def _eta(b: Any, design: Design) -> Any:
    return b.to(design.X.dtype) @ design.X.T


# ---------- what a row's entries add to its loss, gradient and Hessian, in plain PyTorch

ENTRY_BYTES = 1 << 28
IMPOSSIBLE = 1e30
LEAST_RATIO = 1e-6
"""Smallest fraction to which a step may shrink the mean of a count."""


def evaluate(
    block: Block, rows: Any, b: Any, design: Design, *, own: Own, hessian: bool, with_loss: bool = True
) -> Sums:
    """Sum over the non-zeros and the stored zeros of some rows."""
    narrow = b.to(design.X.dtype)

    def sums(entries: _Entries) -> Sums:
        return _evaluate(entries, narrow[entries.at], design, own, hessian)

    found = _joined(block, rows, design, sums, hessian=hessian)
    if own.stored is not None:
        more = _joined(own.stored, rows, design, sums, hessian=hessian)
        found = [None if one is None else one + other for one, other in zip(found, more, strict=True)]
    return Sums(*found)


def bend_slopes(block: Block, rows: Any, b: Any, design: Design, *, own: Own) -> list[Any]:
    """Gradients of the two sums of ``Sums.bend`` over exact entries; parameters as in `evaluate`."""
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
    """How far the step from `b` to ``b + step`` goes; other parameters as in `evaluate`."""
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
    """Return what every entry has of its column, or of its row; None where neither has anything."""
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
