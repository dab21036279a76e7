"""What stays the same of one side of a problem, brought to a device once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from log1pnmf.model.link import LARGEST_ETA
from log1pnmf.model.negative_binomial import NegativeBinomial
from log1pnmf.model.problem import Side

from .dense import DENSE_BYTES
from .rows import Block, DevicePattern
from .sides import Own

__all__ = ["Kept"]


class Kept:
    """Exposures, zeros, dispersions and batches of one side.

    Where all zeros are visited, the sums of ``x`` and ``x x'`` are weighed by exposure.

    Parameters
    ----------
    dtype : torch.dtype
        That is computed in.
    """

    def __init__(self, side: Side, device: Any, dtype: Any) -> None:
        def there(array: Any) -> Any:
            return torch.tensor(array, device=device)

        zeros, row, column = side.zeros, there(side.row_exposure), there(side.column_exposure)
        batch = None
        self.column_batch: Any = None
        self._order: Any = None
        if side.batches is not None:
            labels, effects = there(side.batches.labels), there(side.batches.effects)
            if side.rows_are_features:
                self.column_batch, row = labels, (row[:, None] * effects.T).contiguous()
                self._order = torch.argsort(labels, stable=True)
                self._ends = [0, *np.cumsum(np.bincount(side.batches.labels, minlength=len(effects)))]
            else:
                batch, column = labels.long(), column * effects
        self.row_exposure, self.column_exposure, self.narrow_exposure = row, column, column.to(dtype)
        self.stored, self.column_quadratic, quadratic = None, None, None
        if zeros is None:
            self._linear = self._square = column.reshape(-1, column.shape[-1])
            linear = square = row.reshape(len(row), -1)
        else:
            linear, square, self._linear, self._square = map(there, side.terms_of_zeros())
            if zeros.stored is not None and zeros.stored.nnz:
                self.stored = DevicePattern(zeros.stored, device)
            if zeros.row_quadratic is not None:
                quadratic = there(zeros.row_quadratic).to(dtype)
            else:
                self.column_quadratic = there(zeros.column_quadratic).to(dtype)
        self.column_dispersion, own = None, None
        if isinstance(side.noise, NegativeBinomial):
            n = side.rows.shape[0 if side.rows_are_features else 1]
            phi = there(np.broadcast_to(side.noise.dispersion, n).copy()).to(dtype)
            self.column_dispersion, own = (None, phi) if side.rows_are_features else (phi, None)
        self._own = Own(row.to(dtype), linear, square, quadratic, dispersion=own, batch=batch)
        self._of: WeakKeyDictionary[Block, Own] = WeakKeyDictionary()

    def of(self, block: Block) -> Own:
        """Give what the rows of a block have of their own; known for as long as the block lives."""
        own = self._of.get(block)
        if own is None:
            own = self._own.at(slice(block.first, block.first + block.n_rows))
            if self.stored is not None:
                own = replace(own, stored=self.stored.of(block))
            if self.stored is None or self.stored.resident:
                self._of[block] = own
        return own

    def batch_means(self, loadings: Any, factors: Any, *, identity: bool) -> Any:
        """Sum of the means of features in each batch, were its effects 1, batches x features; of columns."""
        sums = []
        for first, last in itertools.pairwise(self._ends):
            of = self._order[first:last]
            total, t = factors.new_zeros(len(factors)), self.column_exposure[of]
            if identity:
                total = factors @ (t @ loadings[of])
            else:
                for some, own in zip(*(one.split(self._piece(factors)) for one in (of, t)), strict=True):
                    eta = factors @ loadings[some].T
                    total += eta.clamp_(max=LARGEST_ETA).expm1_() @ own
            sums.append(total)
        return torch.stack(sums)

    @staticmethod
    def _piece(factors: Any) -> int:
        """Count samples whose means are looked at at a time."""
        return max(1, DENSE_BYTES[factors.device.type] // (8 * max(1, len(factors))))

    def sums(self, X: Any) -> tuple[Any, Any, Any]:
        """`decline`, `linear` and `gram` of a `log1pnmf.engines.torch.sides.Design`."""
        exposure = self.column_exposure.reshape(-1, len(X))
        parts: list[tuple[Any, Any]] = [(X, slice(None))]
        if self._order is not None:  # one part for every batch, of neighbours
            X, cuts = X[self._order], itertools.pairwise(self._ends)
            parts = [(X[first:last], self._order[first:last]) for first, last in cuts]
        weights = exposure, self._linear, self._square
        found = [[], [], []]  # type: list[list[Any]]
        for x, at in parts:
            decline, linear, square = (one[:, at] for one in weights)
            found[0].append(decline @ x)
            found[1].append(linear @ x)
            found[2].extend((one[:, None] * x).T @ x for one in square)
        linear = [one[0] if len(one) == 1 else torch.cat(one) for one in found[:2]]
        return linear[0], linear[1], torch.stack(found[2])
