"""The two parts of a half-step: its fixed design, and what its rows have of their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from .rows import Stored

GRAM_BYTES = 1 << 28
"""Of the K x K matrices that rows have of their own, of one piece of rows."""


@dataclass(frozen=True)
class Form:
    """Link and treatment of zero counts."""

    # identity link; all zeros visited
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
        """Whether a quadratic stands in for zeros."""
        return not (self.exact or self.linear)

    @property
    def sums_rises(self) -> bool:
        """Whether visited entries tell how the curvature changes: all others have a constant one."""
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

        With the exposure where all zeros are visited; with batches there are as many, batch by batch.
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
    stored: Stored | None = None  # zeros that are visited, of all rows of the block
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
    They are over the row's non-zeros, and all its visited entries; never negative. rise: by how much the
    curvature along the step may grow, all visited entries together; inf where it was not computed.
    """

    shrink: Any
    growth: Any
    rise: Any


def declines(own: Own, design: Design) -> Any:
    """Sum of ``t x`` over all columns, for every row."""
    exposure = own.exposure.double()
    return _weighed(exposure[:, None] if exposure.ndim == 1 else exposure, design.decline, own)


def linears(own: Own, design: Design) -> Any:
    """Linear part of what stands in for zeros, for every row."""
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
