"""What a row's non-zeros add to its loss, gradient and Hessian, in plain PyTorch; and the small box programs.

The same three operations as in `triton_terms`, which takes over on a card with Triton.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .rows import Block

__all__ = ["Change", "Design", "Form", "Sums", "change", "evaluate", "exponentials_", "rises", "solve_box"]

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
        Identity link; zeros visited one by one.
    a1, a2 : float
        Of the quadratic for zero counts otherwise.
    smallest, largest : float
        Derivatives are taken with eta held in between.
    """

    identity: bool
    exact: bool
    a1: float
    a2: float
    smallest: float
    largest: float


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
    linear, gram, largest : Tensor of float64, shape (K,), (K, K) and (K,)
        Sums of ``t x`` and ``t x x'`` over all columns, and the largest entries.
    """

    form: Form
    X: Any
    exposure: Any
    padded: Any
    linear: Any
    gram: Any
    largest: Any


class Sums(NamedTuple):
    """Loss (float64), gradient (float64) and, where asked for, Hessian of every row."""

    loss: Any
    gradient: Any
    hessian: Any


class Change(NamedTuple):
    """Changes of every row in a step.

    loss: of the loss (float64). shrink: largest relative decrease of a count's mean, to first order. growth:
    largest increase of an eta. Both are over the row's non-zeros.
    """

    loss: Any
    shrink: Any
    growth: Any


def evaluate(block: Block, rows: Any, b: Any, design: Design, *, exposure: Any, hessian: bool) -> Sums:
    """Sum over the non-zeros of some rows.

    Parameters
    ----------
    rows : Tensor of int64, shape (n,)
        Numbers of rows in the block.
    b : Tensor of float64, shape (n, K)
        Their coefficients.
    exposure : Tensor of shape (n,)
        Of these rows.
    hessian : bool
        Whether it is wanted.
    """
    parts = [
        _evaluate(entries, b[at].to(design.X.dtype), design, exposure[at], hessian)
        for at, entries in _pieces(block, rows, design.X.shape[1])
    ]
    loss, gradient, H = zip(*parts, strict=True)
    return Sums(torch.cat(loss), torch.cat(gradient), torch.cat(H) if hessian else None)


def change(block: Block, rows: Any, b: Any, step: Any, design: Design, *, exposure: Any) -> Change:
    """Change of the sums over non-zeros from `b` to ``b + step``; parameters as in `evaluate`."""
    dtype = design.X.dtype
    parts = [
        _change(entries, b[at].to(dtype), step[at].to(dtype), design, exposure[at])
        for at, entries in _pieces(block, rows, design.X.shape[1])
    ]
    return Change(*(torch.cat(part) for part in zip(*parts, strict=True)))


def solve_box(H: Any, slope: Any, b: Any, upper: float) -> tuple[Any, Any, Any]:
    """Minimise ``slope'd + d'Hd/2`` over ``0 <= b + d <= upper`` for every row.

    Coordinate descent finds the active bounds, a Newton step on the free coordinates finishes.

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
        total += _sweep(H, q, x, upper)
        gained = _sweep(H, q, x, upper)
        total += gained
        if bool((gained <= SWEEP_TOLERANCE * total).all()):
            break
        _subspace_step(H, q, x, upper)
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


def _sweep(H: Any, q: Any, x: Any, upper: float) -> Any:
    """Do a cycle of coordinate descent in place; `q` is the slope at `x`. Gives ``H_kk delta_k^2`` summed."""
    gained = torch.zeros_like(x[:, 0])
    for k in range(x.shape[1]):
        h = H[:, k, k]
        to = (x[:, k] - q[:, k] / h.clamp(min=TINY)).clamp(0.0, upper)
        to = torch.where(h > TINY, to, torch.where(q[:, k] > 0.0, 0.0, x[:, k]))
        delta = to - x[:, k]
        gained += h * delta**2
        q += delta[:, None] * H[:, k]
        x[:, k] = to
    return gained


def _subspace_step(H: Any, q: Any, x: Any, upper: float) -> None:
    """Newton on the coordinates away from the bounds, as far as the bounds allow, in place."""
    diagonal = torch.diagonal(H, dim1=1, dim2=2)
    free = (x > 0.0) & (x < upper) & (diagonal > TINY)
    both = free[:, :, None] & free[:, None, :]
    stiff = torch.where(free, RIDGE * diagonal, 1.0)
    step = torch.linalg.solve(torch.where(both, H, 0.0) + torch.diag_embed(stiff), -q * free)
    ahead = torch.where(step < 0.0, -x / step, (upper - x) / step)
    room = torch.where(step == 0.0, float("inf"), ahead).amin(1, keepdim=True)
    reach = room.clamp(max=1.0)
    to = (x + reach * step).clamp(0.0, upper)
    blocked = (ahead <= room) & (room < 1.0) & (step != 0.0)
    to = torch.where(blocked, torch.where(step < 0.0, 0.0, upper), to)
    q += torch.einsum("nkl,nl->nk", H, to - x)
    x.copy_(to)


# ---------------------------------------------------------------- entries


class _Entries(NamedTuple):
    """Non-zeros of some rows: number of the row among them, column, count; and how many each row has."""

    row: Any
    column: Any
    y: Any
    lengths: Any


def _pieces(block: Block, rows: Any, K: int) -> Iterator[tuple[slice, _Entries]]:
    """Split the rows so that K x K numbers for every entry fit into `ENTRY_BYTES`."""
    lengths = block.lengths[rows]
    most = max(1, ENTRY_BYTES // (8 * K * K))
    group = torch.div(torch.cumsum(lengths, 0), most, rounding_mode="floor")
    ends = torch.unique_consecutive(group, return_counts=True)[1].cumsum(0).tolist()
    for start, stop in itertools.pairwise([0, *ends]):
        at = slice(start, stop)
        yield at, _gather(block, rows[at], lengths[at])


def _gather(block: Block, rows: Any, lengths: Any) -> _Entries:
    row = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), lengths)
    begin = torch.cumsum(lengths, 0) - lengths
    entry = torch.arange(len(row), device=rows.device) - begin[row] + block.indptr[rows][row]
    return _Entries(row, block.indices[entry].long(), block.values[entry], lengths)


def _evaluate(
    entries: _Entries, b: Any, design: Design, exposure: Any, hessian: bool
) -> tuple[Any, Any, Any]:
    X, form = design.X[entries.column], design.form
    t = exposure[entries.row] * design.exposure[entries.column]
    y, eta = entries.y, (X * b[entries.row]).sum(1)
    inside = _inside(eta, form)
    em = inside if form.identity else torch.expm1(inside)
    inverse, one = 1.0 / em, 0.0 if form.identity else 1.0
    loss, residual = -y * torch.log(em), -y * (one + inverse)
    weight = -residual * inverse
    if not (form.exact or form.identity):
        loss = loss + t * (em - inside * (form.a1 + form.a2 * inside))
        residual = residual + t * (em + 1.0 - form.a1 - 2.0 * form.a2 * inside)
        weight = weight + t * (em + 1.0 - 2.0 * form.a2)
    loss = loss + y * IMPOSSIBLE * (1.0 - eta * (0.5 / form.smallest)).clamp(min=0.0)
    H = None
    if hessian:
        products = ((X * weight[:, None])[:, :, None] * X[:, None, :]).flatten(1)
        H = _sum(products, entries.lengths).unflatten(1, (X.shape[1], X.shape[1]))
    return (
        _sum(loss.double(), entries.lengths),
        _sum((X * residual[:, None]).double(), entries.lengths),
        H,
    )


def _change(entries: _Entries, b: Any, step: Any, design: Design, exposure: Any) -> tuple[Any, Any, Any]:
    X, form = design.X[entries.column], design.form
    t = exposure[entries.row] * design.exposure[entries.column]
    eta, delta = (X * b[entries.row]).sum(1), (X * step[entries.row]).sum(1)
    inside = _inside(eta, form)
    em = inside if form.identity else torch.expm1(inside)
    rise = delta if form.identity else (em + 1.0) * torch.expm1(delta.clamp(max=form.largest))
    ratio = 1.0 + rise / em
    loss = -entries.y * torch.log(ratio.clamp(min=LEAST_RATIO))
    if not (form.exact or form.identity):
        loss = loss + t * (rise - delta * (form.a1 + form.a2 * (2.0 * inside + delta)))
    loss = loss + torch.where(ratio < LEAST_RATIO, entries.y * IMPOSSIBLE, 0.0)
    shrink = -delta * ((0.0 if form.identity else 1.0) + 1.0 / em)
    return (
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
