"""Bounds and a linear penalty for the loadings and for the factors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from log1pnmf._common.arrays import like, on_host

__all__ = ["FREE", "NON_NEGATIVE", "Bounds", "Constraint"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Bounds:
    """``lower <= b <= upper`` for the entries of one side, and their penalty ``sum of penalty * b``.

    Parameters
    ----------
    lower, upper, penalty : float or array
        Broadcast to rows x K: a number, one per column, or one per entry. On the eta scale.
    """

    lower: ArrayLike = 0.0
    upper: ArrayLike = math.inf
    penalty: ArrayLike = 0.0

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "penalty"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))

    @property
    def beyond_a_box(self) -> str | None:
        """Name what goes beyond ``0 <= b <= one number`` with a penalty per column; None if nothing does."""
        if np.any(self.lower):
            return "lower bounds other than 0"
        if np.ndim(self.upper):
            return "an upper bound that differs between entries"
        return "a penalty that differs between rows" if np.ndim(self.penalty) > 1 else None

    @property
    def box_upper(self) -> float:
        """The upper bound, where it is one number."""
        return float(self.upper)  # type: ignore[arg-type]

    def column_penalty(self, n_components: int) -> Array:
        """Give the penalty of every column, where it is the same in all rows."""
        return np.broadcast_to(np.asarray(self.penalty), n_components)

    def cost(self, values: Any) -> float:
        """Sum the penalties of all entries."""
        penalty = np.asarray(self.penalty)
        if not penalty.any():
            return 0.0
        if penalty.ndim < 2:
            return float(self.column_penalty(values.shape[1]) @ on_host(values.sum(axis=0)))
        return float((like(values, penalty) * values).sum())

    def clip(self, values: Any) -> Any:
        """Move values to the bounds; none of them is negative."""
        if np.any(self.lower):
            values = values.clip(min=_limit(values, self.lower))
        if np.isfinite(self.upper).any():
            values = values.clip(max=_limit(values, self.upper))
        return values


def _limit(values: Any, limit: ArrayLike) -> Any:
    return like(values, limit) if np.ndim(limit) else float(limit)  # type: ignore[arg-type]


NON_NEGATIVE = Bounds()
"""Without an upper bound and a penalty."""


@dataclass(frozen=True, eq=False)
class Constraint:
    """Bounds and penalties of both sides."""

    loadings: Bounds = NON_NEGATIVE
    factors: Bounds = NON_NEGATIVE

    @classmethod
    def sparse_factors(cls, l1: float, n_components: int) -> Constraint:
        """Penalise all factors but the first, the baseline; loadings are then at most 1, to fix the scale."""
        if l1 == 0.0:
            return cls()
        penalty = np.full(n_components, l1)
        penalty[0] = 0.0
        return cls(Bounds(upper=1.0), Bounds(penalty=penalty))

    @property
    def scale_is_free(self) -> bool:
        """Whether a column may be scaled freely: loadings multiplied, factors divided by any number."""
        return not np.isfinite(self.loadings.upper).any()

    def cost(self, loadings: Any, factors: Any) -> float:
        """Sum the penalties of both sides."""
        return self.loadings.cost(loadings) + self.factors.cost(factors)


FREE = Constraint()
"""Non-negative, without penalty."""
