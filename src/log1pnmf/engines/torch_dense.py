"""The exact form: what all entries of some rows add, by matrix products over blocks of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from log1pnmf.engines.torch_terms import Design, Sums

__all__ = ["dense_change", "dense_sums"]

DENSE_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Of one rows x columns array; two or three are there at a time."""


def dense_sums(b: Any, design: Design, *, exposure: Any, hessian: bool) -> Sums:
    """Sum of ``t expm1(eta)`` over all columns, with its derivatives.

    Parameters
    ----------
    b : Tensor of float64, shape (n, K)
    design : Design
    exposure : Tensor of shape (n,)
    hessian : bool

    Returns
    -------
    Sums
    """
    K = b.shape[1]
    upper = torch.triu_indices(K, K, device=b.device)
    products = design.X[:, upper[0]] * design.X[:, upper[1]] if hessian else None
    loss, gradient, packed = [], [], []
    for piece in _pieces(b, design):
        em = torch.expm1_(_eta(piece, design)) * design.exposure
        loss.append(em.sum(1, dtype=torch.float64))
        gradient.append((em @ design.X).double())
        if products is not None:
            packed.append(em @ products)
    t = exposure.double()
    total_gradient = (torch.cat(gradient) + design.linear) * t[:, None]
    if not hessian:
        return Sums(torch.cat(loss) * t, total_gradient, None)
    flat = torch.empty(K, K, dtype=torch.int64, device=b.device)
    flat[upper[0], upper[1]] = flat[upper[1], upper[0]] = torch.arange(upper.shape[1], device=b.device)
    H = torch.cat(packed)[:, flat] + design.gram.to(design.X.dtype)
    return Sums(torch.cat(loss) * t, total_gradient, H * exposure[:, None, None])


def dense_change(b: Any, step: Any, design: Design, *, exposure: Any) -> tuple[Any, Any]:
    """Change of the sum from `b` to ``b + step``, and the largest rise of an eta; as in `dense_sums`."""
    loss, growth = [], []
    for piece, move in zip(_pieces(b, design), _pieces(step, design), strict=True):
        delta = move.to(design.X.dtype) @ design.X.T
        growth.append(delta.amax(1))
        rise = torch.exp_(_eta(piece, design)) * torch.expm1_(delta.clamp_(max=design.form.largest))
        loss.append((rise * design.exposure).sum(1, dtype=torch.float64))
    return torch.cat(loss) * exposure.double(), torch.cat(growth)


def _pieces(values: Any, design: Design) -> Iterator[Any]:
    row_bytes = design.X.shape[0] * design.X.element_size()
    return iter(values.split(max(1, DENSE_BYTES[values.device.type] // max(1, row_bytes))))


def _eta(b: Any, design: Design) -> Any:
    return (b.to(design.X.dtype) @ design.X.T).clamp_(max=design.form.largest)
