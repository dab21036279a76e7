"""Quadratic programs in a box, one for every row, in plain PyTorch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

__all__ = ["Box", "solve_box"]

SWEEP_TOLERANCE = 1e-12
MOST_ROUNDS, RIDGE, TINY = 20, 1e-13, 1e-38


class Box(NamedTuple):
    """Bounds and penalties of the coefficients of some rows, each of shape (n, K)."""

    lower: Any
    upper: Any
    penalty: Any

    def at(self, rows: Any) -> Box:
        """Give those of some of the rows."""
        return Box(*(one[rows] for one in self))


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
