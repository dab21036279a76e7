"""What a row's visited entries add to its loss, gradient and Hessian, in plain PyTorch; and the box programs.

The same three operations as in `triton_terms`, which takes over on a card with Triton.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .rows import Block, Stored

__all__ = [
    "Box",
    "Change",
    "Design",
    "Form",
    "Own",
    "Sums",
    "change",
    "evaluate",
    "exponentials_",
    "rises",
    "solve_box",
]

ENTRY_BYTES = 1 << 28
IMPOSSIBLE = 1e30
LEAST_RATIO = 1e-6
"""Smallest fraction to which a step may shrink the mean of a count."""
SWEEP_TOLERANCE = 1e-12
MOST_ROUNDS, RIDGE, TINY = 20, 1e-13, 1e-38


@dataclass(frozen=True)
class Form:
    """Link and treatment of zero counts.

    Parameters
    ----------
    identity, exact : bool
        Identity link; all zeros visited.
    smallest, largest : float
        Derivatives are taken with eta held in between.
    """

    identity: bool
    exact: bool
    smallest: float
    largest: float

    @property
    def quadratic(self) -> bool:
        """Whether a quadratic stands in for zeros; at the identity link nothing differs from it."""
        return not (self.exact or self.identity)


@dataclass(frozen=True, eq=False)
class Design:
    """The fixed side of a half-step.

    Parameters
    ----------
    form : Form
        Of the problem.
    X : Tensor of shape (columns, K)
        In the type that is computed in.
    exposure : Tensor of shape (columns,)
        In the same type.
    padded : Tensor of shape (columns, width)
        `X` with columns of zeros up to a power of two, which Triton needs; `X` itself without Triton.
    decline, largest : Tensor of float64, shape (K,)
        Sum of ``t x`` over all columns, and the largest entries.
    linear, gram : Tensor of float64, shape (P, K) and (P, K, K)
        Sums of ``x`` and ``x x'`` over all columns with the weights of `log1pnmf.model.problem.SideZeros`; of
        the exposure where all zeros are visited.
    quadratic : Tensor of shape (columns, 2) or None
        Linear and quadratic coefficient for zeros, where columns have their own.
    """

    form: Form
    X: Any
    exposure: Any
    padded: Any
    decline: Any
    largest: Any
    linear: Any
    gram: Any
    quadratic: Any = None


@dataclass(frozen=True, eq=False)
class Own:
    """What the rows of a half-step have of their own, beside their counts.

    Parameters
    ----------
    exposure : Tensor of shape (n,)
        In the type that is computed in.
    linear, square : Tensor of float64, shape (n, P)
        Weights of ``Design.linear`` and ``Design.gram``.
    quadratic : Tensor of shape (n, 2) or None
        Linear and quadratic coefficient for zeros, where rows have their own.
    stored : Stored or None
        Zeros that are visited, of all rows of the block.
    """

    exposure: Any
    linear: Any
    square: Any
    quadratic: Any = None
    stored: Stored | None = None

    def at(self, rows: Any) -> Own:
        """Take some rows of the block."""
        quadratic = None if self.quadratic is None else self.quadratic[rows]
        return Own(self.exposure[rows], self.linear[rows], self.square[rows], quadratic, self.stored)


class Box(NamedTuple):
    """Bounds and penalties of the coefficients of some rows, each of shape (n, K)."""

    lower: Any
    upper: Any
    penalty: Any

    def at(self, rows: Any) -> Box:
        """Give those of some of the rows."""
        return Box(*(one[rows] for one in self))


class Sums(NamedTuple):
    """Loss (float64), gradient (float64) and, where asked for, Hessian of every row."""

    loss: Any
    gradient: Any
    hessian: Any


class Change(NamedTuple):
    """Changes of every row in a step.

    loss: of the loss (float64). shrink: largest relative decrease of a count's mean, to first order. growth:
    largest increase of an eta. They are over the row's non-zeros, and all its visited entries.
    """

    loss: Any
    shrink: Any
    growth: Any


def evaluate(block: Block, rows: Any, b: Any, design: Design, *, own: Own, hessian: bool) -> Sums:
    """Sum over the non-zeros and the stored zeros of some rows.

    Parameters
    ----------
    rows : Tensor of int64, shape (n,)
        Numbers of rows in the block.
    b : Tensor of float64, shape (n, K)
        Their coefficients.
    own : Own
        Of these rows.
    hessian : bool
        Whether it is wanted.
    """
    narrow = b.to(design.X.dtype)

    def sums(entries: _Entries) -> Sums:
        return _evaluate(entries, narrow[entries.at], design, own, hessian)

    loss, gradient, H = _joined(block, rows, design, sums)
    if own.stored is not None:
        more = _joined(own.stored, rows, design, sums)
        loss, gradient, H = loss + more[0], gradient + more[1], H + more[2] if hessian else None
    return Sums(loss, gradient, H)


def change(block: Block, rows: Any, b: Any, step: Any, design: Design, *, own: Own) -> Change:
    """Change of the sums from `b` to ``b + step``; parameters as in `evaluate`."""
    b, step = (x.to(design.X.dtype) for x in (b, step))

    def changes(entries: _Entries) -> Change:
        return _change(entries, b[entries.at], step[entries.at], design, own)

    loss, shrink, growth = _joined(block, rows, design, changes)
    if own.stored is not None:
        more = _joined(own.stored, rows, design, changes)
        loss, growth = loss + more[0], torch.maximum(growth, more[2])
    return Change(loss, shrink, growth)


def solve_box(H: Any, slope: Any, b: Any, box: Box) -> tuple[Any, Any, Any]:
    """Minimise ``slope'd + d'Hd/2`` over ``lower <= b + d <= upper`` for every row.

    Coordinate descent finds the active bounds, a Newton step on the free coordinates finishes. Where both
    bounds are the same, `b` has to be there, and stays.

    Returns
    -------
    x : Tensor of shape (n, K)
        ``b + d``.
    predicted, curvature : Tensor of shape (n,)
        How much the quadratic falls, and ``d'Hd``.
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


def exponentials_(eta: Any, exposure: Any, largest: float) -> Any:
    """Turn eta into ``t expm1(eta)`` in place.

    Parameters
    ----------
    eta : Tensor of shape (n, columns)
        Held at `largest`.

    Returns
    -------
    Tensor of float64, shape (n,)
        The sums over columns.
    """
    eta.clamp_(max=largest).expm1_().mul_(exposure)
    return eta.sum(1, dtype=torch.float64)


def rises(eta: Any, delta: Any, exposure: Any, largest: float) -> tuple[Any, Any]:
    """Change of the sum of ``t exp`` from eta to ``eta + delta``, and the largest delta above 0."""
    rise = torch.exp(eta.clamp(max=largest)) * torch.expm1(delta.clamp(max=largest))
    return (rise * exposure).sum(1, dtype=torch.float64), delta.amax(1).clamp(min=0.0)


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
    source: Block | Stored, rows: Any, design: Design, part: Callable[[_Entries], Sums | Change]
) -> list[Any]:
    """Do some rows piece by piece: K x K numbers for every entry of a piece fit into `ENTRY_BYTES`."""
    lengths = source.lengths[rows]
    most = max(1, ENTRY_BYTES // (8 * design.X.shape[1] ** 2))
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


def _of_entries(entries: _Entries, design: Design, own: Own) -> tuple[Any, Any, Any]:
    """Exposure, and the coefficients of the quadratics."""
    t = own.exposure[entries.at][entries.row] * design.exposure[entries.column]
    if design.quadratic is not None:
        return t, *design.quadratic[entries.column].unbind(1)
    if own.quadratic is not None:
        return t, *own.quadratic[entries.at][entries.row].unbind(1)
    return t, 0.0, 0.0


def _evaluate(entries: _Entries, b: Any, design: Design, own: Own, hessian: bool) -> Sums:
    X, form, y = design.X[entries.column], design.form, entries.y
    eta = (X * b[entries.row]).sum(1)
    inside = _inside(eta, form)
    em = inside if form.identity else torch.expm1(inside)
    loss = residual = weight = torch.zeros_like(em)
    if y is not None:
        inverse, one = 1.0 / em, 0.0 if form.identity else 1.0
        loss, residual = -y * torch.log(em), -y * (one + inverse)
        weight = -residual * inverse
        loss = loss + y * IMPOSSIBLE * (1.0 - eta * (0.5 / form.smallest)).clamp(min=0.0)
    if form.quadratic:
        t, a1, a2 = _of_entries(entries, design, own)
        loss = loss + t * (em - inside * (a1 + a2 * inside))
        residual = residual + t * (em + 1.0 - a1 - 2.0 * a2 * inside)
        weight = weight + t * (em + 1.0 - 2.0 * a2)
    H = None
    if hessian:
        products = ((X * weight[:, None])[:, :, None] * X[:, None, :]).flatten(1)
        H = _sum(products, entries.lengths).unflatten(1, (X.shape[1], X.shape[1]))
    return Sums(
        _sum(loss.double(), entries.lengths),
        _sum((X * residual[:, None]).double(), entries.lengths),
        H,
    )


def _change(entries: _Entries, b: Any, step: Any, design: Design, own: Own) -> Change:
    X, form, y = design.X[entries.column], design.form, entries.y
    eta, delta = (X * b[entries.row]).sum(1), (X * step[entries.row]).sum(1)
    inside = _inside(eta, form)
    em = inside if form.identity else torch.expm1(inside)
    rise = delta if form.identity else (em + 1.0) * torch.expm1(delta.clamp(max=form.largest))
    loss = shrink = torch.zeros_like(em)
    if y is not None:
        ratio = 1.0 + rise / em
        loss = -y * torch.log(ratio.clamp(min=LEAST_RATIO))
        loss = loss + torch.where(ratio < LEAST_RATIO, y * IMPOSSIBLE, 0.0)
        shrink = -delta * ((0.0 if form.identity else 1.0) + 1.0 / em)
    if form.quadratic:
        t, a1, a2 = _of_entries(entries, design, own)
        loss = loss + t * (rise - delta * (a1 + a2 * (2.0 * inside + delta)))
    return Change(
        _sum(loss.double(), entries.lengths),
        _max(shrink, entries.lengths),
        _max(delta, entries.lengths),
    )


def _inside(eta: Any, form: Form) -> Any:
    return eta.clamp(form.smallest, float("inf") if form.identity else form.largest)


def _sum(values: Any, lengths: Any) -> Any:
    return torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True)


def _max(values: Any, lengths: Any) -> Any:
    return torch.segment_reduce(values, "max", lengths=lengths, axis=0, unsafe=True, initial=0)
