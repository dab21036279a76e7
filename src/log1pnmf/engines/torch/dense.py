"""The exact form: what all entries of some rows add, by matrix products over blocks of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .dispersed import rise_terms, zero_terms
from .sides import Design, Own, Sums, grams, linears

__all__ = ["completed", "dense_change", "dense_sums", "wide"]

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
    """Give the design, and its products of two columns beside it where a Hessian is wanted."""
    if not hessian:
        return X
    first, second = torch.triu_indices(X.shape[1], X.shape[1], device=X.device)
    return torch.cat([X, X[:, first] * X[:, second]], dim=1)


def place(K: int, device: Any) -> Any:
    """Give the column of `wide` for every entry of a Hessian."""
    first, second = torch.triu_indices(K, K, device=device)
    where = torch.empty(K, K, dtype=torch.int64, device=device)
    where[first, second] = where[second, first] = K + torch.arange(len(first), device=device)
    return where


def _belongings(b: Any, design: Design, own: Own) -> tuple[Any, Any, Any]:
    """Give em, exposure and dispersion of all entries of some rows."""
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
