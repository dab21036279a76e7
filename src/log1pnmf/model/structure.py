"""What is known of factors beforehand: loadings, factors, or which features a factor may have."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .constraint import Bounds, Constraint

__all__ = ["FREE_KIND", "KINDS", "Structure"]

Array = NDArray[np.float64]

KINDS = ("loadings", "pattern", "factors", "mask")
"""What may be known of a factor: its loadings, in which samples it is not, itself, or where it may be."""
FREE_KIND = "free"


@dataclass(frozen=True, eq=False)
class Structure:
    """Factors of which something is known. They come first, in this order, and free ones follow.

    Parameters
    ----------
    loadings : ndarray of shape (n, K_1)
        Of factors whose loadings are known; or zeros, and NaN where they are not known (a "pattern").
    factors : ndarray of shape (m, K_2)
        Of factors that are known themselves, on the link scale.
    mask : ndarray of bool, shape (m, K_3)
        Which features factors may have.
    names : tuple of str
        Of all these factors; empty where none has a name.
    """

    loadings: Array
    factors: Array
    mask: NDArray[np.bool_]
    names: tuple[str, ...] = ()

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
        """Give what is known of some samples."""
        return replace(self, loadings=self.loadings[rows])

    def constraint(self, n_components: int, *, l1: float, mask_penalty: float, alpha: float) -> Constraint:
        """Make the bounds and penalties, on the eta scale.

        Parameters
        ----------
        l1 : float
            Penalty of all factors but the baseline: the first whose known loadings are all alike; otherwise
            the first free one.
        mask_penalty : float
            Of entries outside the mask; inf makes them zero.
        alpha : float
            Of the link.
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
