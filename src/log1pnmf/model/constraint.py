"""Bounds and a linear penalty for the loadings and for the factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from log1pnmf._common.arrays import like, on_host

# ---------- bounds and a linear penalty for the loadings and for the factors

Array = NDArray[np.float64]

NUMBERS = ("lower", "upper", "penalty")


@dataclass(frozen=True, eq=False)
class Bounds:
    """``lower <= b <= upper`` for the entries of one side, and their penalty ``sum of penalty * b``."""

    # broadcast to rows x K: a number, one per column, or one per entry. On the eta scale. Where both bounds
    # are the same, an entry is a constant
    lower: ArrayLike = 0.0
    upper: ArrayLike = math.inf
    penalty: ArrayLike = 0.0

    def __post_init__(self) -> None:
        for name in NUMBERS:
            values = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, values[0] if values.ndim == 2 and len(values) == 1 else values)

    def tables(self, n_components: int) -> tuple[Array, Array, Array]:
        """Return lower bounds, upper bounds and penalties: 1 x K where all rows are alike, or rows x K."""
        tables = []
        for name in NUMBERS:
            values = np.atleast_2d(getattr(self, name))
            tables.append(np.ascontiguousarray(np.broadcast_to(values, (len(values), n_components))))
        return tables[0], tables[1], tables[2]

    @property
    def differs(self) -> bool:
        """Whether rows differ in their bounds or penalties."""
        return any(len(np.atleast_2d(getattr(self, name))) > 1 for name in NUMBERS)

    @property
    def held(self) -> NDArray[np.bool_]:
        """Which entries are constants, because both bounds are the same: K or rows x K, or one for all."""
        return np.asarray(np.equal(self.lower, self.upper))

    def of_rows(self, rows: Any) -> Bounds:
        """Return the bounds of some rows: a slice or their numbers."""
        if not self.differs:
            return self
        values = (np.asarray(getattr(self, name)) for name in NUMBERS)
        return Bounds(*(one[rows] if one.ndim > 1 and len(one) > 1 else one for one in values))

    @property
    def kinds(self) -> tuple[Bounds, NDArray[np.int32] | None, tuple[int, ...]]:
        """Bounds of each kind of rows, the kind of every row, and the columns that are constants.

        Such a column has no bounds here. The kind of a row is None where all rows are of one kind.
        """
        if not self.differs:
            return self, None, ()
        held = np.all(np.atleast_2d(self.held), axis=0).reshape(-1)
        lower, upper, penalty = self.tables(len(held))
        free = [np.where(held, 0.0, lower), np.where(held, math.inf, upper), penalty]
        n_rows = max(map(len, free))
        every = np.hstack([np.broadcast_to(one, (n_rows, len(held))) for one in free])
        found, kind = np.unique(every, axis=0, return_inverse=True)
        own = None if len(found) == 1 else kind.reshape(-1).astype(np.int32)
        return Bounds(*np.split(found, 3, axis=1)), own, tuple(int(k) for k in np.flatnonzero(held))

    def holding(self, values: Array, columns: Sequence[int]) -> Bounds:
        """Return the bounds that keep some columns as they are."""
        if not columns:
            return self
        lower, upper = (np.broadcast_to(one, values.shape).copy() for one in self.tables(values.shape[1])[:2])
        for bound in (lower, upper):
            bound[:, columns] = values[:, columns]
        return Bounds(lower, upper, self.penalty)

    def cost(self, values: Any) -> float:
        """Sum the penalties of all entries."""
        penalty = np.asarray(self.penalty)
        if not penalty.any():
            return 0.0
        if penalty.ndim < 2:
            return float(np.broadcast_to(penalty, values.shape[1]) @ on_host(values.sum(axis=0)))
        return float(np.sum(on_host((like(values, penalty) * values).sum(axis=0))))

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

    def scales(self, n_components: int) -> tuple[NDArray[np.bool_], Array]:
        """Describe which columns may be scaled: loadings multiplied and factors divided by a number."""
        low, high, _ = self.loadings.tables(n_components)
        least, most, _ = self.factors.tables(n_components)
        factors_free = ((least == 0.0) & ((most == 0.0) | np.isinf(most))).all(axis=0)
        loadings_free = ((low == 0.0) & ((high == 0.0) | np.isinf(high))).all(axis=0)
        top = high.max(axis=0)
        alike = ((low == 0.0) & ((high == top) | (high == 0.0))).all(axis=0) & np.isfinite(top)
        bounded = factors_free & ~loadings_free & alike
        return loadings_free & factors_free, np.where(bounded, top, np.nan)

    @property
    def scale_is_free(self) -> bool:
        """Whether every column may be scaled freely, see `scales`."""
        widths = [np.shape(getattr(side, name)) for side in (self.loadings, self.factors) for name in NUMBERS]
        return bool(self.scales(max((shape[-1] for shape in widths if shape), default=1))[0].all())

    def cost(self, loadings: Any, factors: Any) -> float:
        """Sum the penalties of both sides."""
        return self.loadings.cost(loadings) + self.factors.cost(factors)


FREE = Constraint()
"""Non-negative, without penalty."""


# ---------- what is known of factors beforehand

KINDS = ("loadings", "pattern", "factors", "mask")
"""What may be known of a factor: its loadings, in which samples it is not, itself, or where it may be."""
FREE_KIND = "free"


@dataclass(frozen=True, eq=False)
class Structure:
    """Factors of which something is known. They come first, in this order, and free ones follow."""

    # (n, K_1): of factors whose loadings are known; or zeros, and NaN where they are not known (a "pattern")
    loadings: Array
    factors: Array  # (m, K_2): of factors that are known themselves, on the link scale
    mask: NDArray[np.bool_]  # (m, K_3): which features factors may have
    names: tuple[str, ...] = ()  # of all these factors; empty where none has a name

    @property
    def n_known(self) -> int:
        """Number of factors of which something is known."""
        return len(self.kinds)

    @property
    def kinds(self) -> list[str]:
        """What is known of each of them, one of `KINDS`."""
        parts = zip(KINDS[2:], (self.factors, self.mask), strict=True)
        first = [
            "pattern" if some else "loadings" for some in np.any(np.isnan(self.loadings), axis=0).tolist()
        ]
        return first + [kind for kind, part in parts for _ in range(part.shape[1])]

    def of_samples(self, rows: Any) -> Structure:
        """Return what is known of some samples."""
        return replace(self, loadings=self.loadings[rows])

    def constraint(self, n_components: int, *, l1: float, mask_penalty: float, alpha: float) -> Constraint:
        """Make the bounds and penalties, on the eta scale.

        `l1`: penalty of all factors but the baseline: the first whose known loadings are all alike; otherwise
        the first free one.
        """
        kinds = np.array(self.kinds + [FREE_KIND] * (n_components - self.n_known))
        penalty = np.where(kinds == "factors", 0.0, l1 * alpha)
        if l1 > 0.0 and (baseline := self._baseline(kinds)) is not None:
            penalty[baseline] = 0.0
        soft = 0.0 < mask_penalty < math.inf
        bounded = (kinds == "mask") & soft if l1 == 0.0 else kinds != "factors"
        upper = np.where(bounded, 1.0, math.inf)
        loadings = Bounds(upper=upper if bounded.any() else math.inf)
        if self.loadings.size:
            every = np.full((len(self.loadings), n_components), np.nan)
            every[:, : self.loadings.shape[1]] = self.loadings
            loadings = Bounds(np.nan_to_num(every), np.where(np.isnan(every), upper, every))
        return Constraint(loadings, self._of_factors(kinds, penalty, mask_penalty * alpha, alpha))

    def _of_factors(self, kinds: NDArray[np.str_], penalty: Array, outside: float, alpha: float) -> Bounds:
        shape = (len(self.factors), len(kinds))
        lower, upper, own = np.zeros(shape), np.full(shape, math.inf), np.tile(penalty, (shape[0], 1))
        lower[:, kinds == "factors"] = upper[:, kinds == "factors"] = self.factors / alpha
        masked = np.flatnonzero(kinds == "mask")
        if math.isinf(outside):
            upper[:, masked] = np.where(self.mask, math.inf, 0.0)
        else:
            own[:, masked] += np.where(self.mask, 0.0, outside)
        return Bounds(lower, upper, own if own.any() else 0.0)

    def _baseline(self, kinds: NDArray[np.str_]) -> int | None:
        even = np.flatnonzero(
            (self.loadings == self.loadings[:1]).all(axis=0) & (self.loadings > 0.0).all(axis=0)
        )
        if len(even):
            return int(even[0])
        free = np.flatnonzero(kinds == FREE_KIND)
        return int(free[0]) if len(free) else None
