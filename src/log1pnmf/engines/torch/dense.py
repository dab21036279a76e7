"""The exact form: what all entries of some rows add, by matrix products over blocks of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from .terms import Design, Sums

__all__ = ["dense_change", "dense_sums"]

DENSE_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Of one rows x columns array; at most two are there at a time."""


def dense_sums(terms: ModuleType, b: Any, design: Design, *, exposure: Any, hessian: bool) -> Sums:
    """Sum of ``t expm1(eta)`` over all columns, with its derivatives.

    One matrix product gives gradient and Hessian: with the design and with its products of two columns.

    Parameters
    ----------
    terms : module
        `log1pnmf.engines.torch.terms` or `log1pnmf.engines.torch.triton_terms`.
    """
    K = b.shape[1]
    first, second = torch.triu_indices(K, K, device=b.device)
    wide = design.X
    if hessian:
        wide = torch.cat([wide, design.X[:, first] * design.X[:, second]], dim=1)
    loss, sums = [], []
    for piece in _pieces(b, design):
        em = _eta(piece, design)
        loss.append(terms.exponentials_(em, design.exposure, design.form.largest))
        sums.append(em @ wide)
    t, total = exposure.double(), torch.cat(sums)
    gradient = (total[:, :K].double() + design.decline) * t[:, None]
    if not hessian:
        return Sums(torch.cat(loss) * t, gradient, None)
    place = torch.empty(K, K, dtype=torch.int64, device=b.device)
    place[first, second] = place[second, first] = K + torch.arange(len(first), device=b.device)
    H = (total[:, place] + design.gram[0].to(total.dtype)) * exposure[:, None, None]
    return Sums(torch.cat(loss) * t, gradient, H)


def dense_change(terms: ModuleType, b: Any, step: Any, design: Design, *, exposure: Any) -> tuple[Any, Any]:
    """Change of the sum from `b` to ``b + step``, and the largest rise of an eta; as in `dense_sums`."""
    pieces = zip(_pieces(b, design), _pieces(step, design), strict=True)
    parts = [
        terms.rises(_eta(piece, design), _eta(move, design), design.exposure, design.form.largest)
        for piece, move in pieces
    ]
    loss, growth = zip(*parts, strict=True)
    return torch.cat(loss) * exposure.double(), torch.cat(growth)


def _pieces(values: Any, design: Design) -> Iterator[Any]:
    row_bytes = design.X.shape[0] * design.X.element_size()
    return iter(values.split(max(1, DENSE_BYTES[values.device.type] // max(1, row_bytes))))


def _eta(b: Any, design: Design) -> Any:
    return b.to(design.X.dtype) @ design.X.T
