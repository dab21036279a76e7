"""The exact form: what all entries of some rows add, by matrix products over blocks of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from .dispersed import rise_terms, zero_terms
from .terms import Design, Own, Sums

__all__ = ["dense_change", "dense_sums"]

DENSE_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Of one rows x columns array; at most two are there at a time."""


def dense_sums(terms: ModuleType, b: Any, design: Design, *, own: Own, hessian: bool) -> Sums:
    """Sum of what zeros cost over all columns (``t expm1(eta)`` with Poisson noise), with its derivatives.

    One matrix product gives gradient and Hessian: with the design and with its products of two columns.

    Parameters
    ----------
    terms : module
        `log1pnmf.engines.torch.terms` or `log1pnmf.engines.torch.triton_terms`.
    """
    K, exposure = b.shape[1], own.exposure
    first, second = torch.triu_indices(K, K, device=b.device)
    wide = design.X
    if hessian:
        wide = torch.cat([wide, design.X[:, first] * design.X[:, second]], dim=1)
    place = torch.empty(K, K, dtype=torch.int64, device=b.device)
    place[first, second] = place[second, first] = K + torch.arange(len(first), device=b.device)
    loss, sums = [], []
    if design.form.dispersed:
        for piece, some in _rows(b, design, own):
            value, residual, _ = zero_terms(*_belongings(piece, design, some), identity=design.form.identity)
            loss.append(value.sum(1, dtype=torch.float64))
            sums.append(residual @ wide)
        total = torch.cat(sums)
        H = None
        if hessian:  # at the identity link the weights are zero
            H = torch.zeros_like(total[:, place]) if design.form.identity else total[:, place]
        return Sums(torch.cat(loss), total[:, :K].double(), H)
    for piece in _pieces(b, design):
        em = _eta(piece, design)
        loss.append(terms.exponentials_(em, design.exposure, design.form.largest))
        sums.append(em @ wide)
    t, total = exposure.double(), torch.cat(sums)
    gradient = (total[:, :K].double() + design.decline) * t[:, None]
    if not hessian:
        return Sums(torch.cat(loss) * t, gradient, None)
    H = (total[:, place] + design.gram[0].to(total.dtype)) * exposure[:, None, None]
    return Sums(torch.cat(loss) * t, gradient, H)


def dense_change(terms: ModuleType, b: Any, step: Any, design: Design, *, own: Own) -> tuple[Any, Any]:
    """Change of the sum from `b` to ``b + step``, and the largest rise of an eta; as in `dense_sums`."""
    if design.form.dispersed:
        return _dispersed_change(b, step, design, own)
    exposure = own.exposure
    pieces = zip(_pieces(b, design), _pieces(step, design), strict=True)
    parts = [
        terms.rises(_eta(piece, design), _eta(move, design), design.exposure, design.form.largest)
        for piece, move in pieces
    ]
    loss, growth = zip(*parts, strict=True)
    return torch.cat(loss) * exposure.double(), torch.cat(growth)


def _dispersed_change(b: Any, step: Any, design: Design, own: Own) -> tuple[Any, Any]:
    loss, growth = [], []
    form = design.form
    for (piece, some), move in zip(_rows(b, design, own), _pieces(step, design), strict=True):
        em, t, phi = _belongings(piece, design, some)
        delta = _eta(move, design)
        rise = delta if form.identity else (em + 1.0) * torch.expm1(delta.clamp(max=form.largest))
        loss.append(rise_terms(em, rise, t, phi)[0].sum(1, dtype=torch.float64))
        growth.append(delta.amax(1).clamp(min=0.0))
    return torch.cat(loss), torch.cat(growth)


def _belongings(b: Any, design: Design, own: Own) -> tuple[Any, Any, Any]:
    """Give em, exposure and dispersion of all entries of some rows."""
    eta, form = _eta(b, design), design.form
    em = eta if form.identity else eta.clamp_(max=form.largest).expm1_()
    phi = design.dispersion if own.dispersion is None else own.dispersion[:, None]
    return em, own.exposure[:, None] * design.exposure, phi


def _rows(b: Any, design: Design, own: Own) -> Iterator[tuple[Any, Own]]:
    first = 0
    for piece in _pieces(b, design):
        yield piece, own.at(slice(first, first + len(piece)))
        first += len(piece)


def _pieces(values: Any, design: Design) -> Iterator[Any]:
    row_bytes = design.X.shape[0] * design.X.element_size()
    return iter(values.split(max(1, DENSE_BYTES[values.device.type] // max(1, row_bytes))))


def _eta(b: Any, design: Design) -> Any:
    return b.to(design.X.dtype) @ design.X.T
