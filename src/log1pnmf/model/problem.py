"""Everything that stays fixed during a fit, seen from the side of the loadings and of the factors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.counts import Counts, SparseRows

from .link import ShiftedLog
from .noise import POISSON, Noise
from .objective import likelihood_constant, plain_constant
from .zeros import EXACT_FOR_IDENTITY, Quadratic

__all__ = ["LARGE_ROW", "Problem", "Side"]

LARGE_ROW = 1e9
"""Total count of a sample from which rounding errors of its log-likelihood exceed about 1e-6."""


@dataclass(frozen=True, eq=False)
class Side:
    """Compressed rows with rank-one exposure ``t_ij = row_exposure_i * column_exposure_j``, and noise."""

    rows: SparseRows
    row_exposure: NDArray[np.float64]
    column_exposure: NDArray[np.float64]
    noise: Noise = POISSON
    rows_are_features: bool = False

    def noise_of(self, row: int) -> Noise:
        """Noise of the entries of one row."""
        return self.noise.of_features(row) if self.rows_are_features else self.noise


@dataclass(frozen=True, eq=False)
class Problem:
    """Counts, exposure, link and the treatment of zero counts.

    Parameters
    ----------
    counts : Counts
        n x m counts.
    size_factors : ndarray of shape (n,)
        Positive.
    zeros : Quadratic or None
        What replaces ``expm1`` at zero counts; None visits them exactly. With the identity link this always
        becomes ``Quadratic(0, 1, 0)``, which is exact at sparse cost.
    """

    counts: Counts
    size_factors: NDArray[np.float64]
    link: ShiftedLog
    zeros: Quadratic | None = None
    noise: Noise = POISSON

    def __post_init__(self) -> None:
        size_factors = np.ascontiguousarray(self.size_factors, dtype=np.float64)
        if size_factors.shape != (self.counts.shape[0],):
            raise ValueError(
                f"size_factors must have shape ({self.counts.shape[0]},), got {size_factors.shape}"
            )
        object.__setattr__(self, "size_factors", size_factors)
        if self.noise.n_features not in (None, self.counts.shape[1]):
            raise ValueError(
                f"noise must be that of {self.counts.shape[1]} features, got {self.noise.n_features}"
            )
        if self.link.is_identity and self.noise.zero_loss_is_mean:
            object.__setattr__(self, "zeros", EXACT_FOR_IDENTITY)
        elif self.zeros is not None and not self.noise.zero_loss_is_mean:
            raise ValueError(f"zeros must be None (exact) with {self.noise.name} noise, got {self.zeros}")

    @property
    def is_exact(self) -> bool:
        """Whether the loss is the model's own; approximate zeros of the identity link are."""
        return self.zeros is None or self.link.is_identity

    @cached_property
    def loadings_side(self) -> Side:
        """Rows of the counts: what the loadings are fitted to, with the factors as design."""
        return Side(self.counts.by_row, self._exposure, np.ones(self.counts.shape[1]), self.noise)

    @cached_property
    def factors_side(self) -> Side:
        """Columns of the counts: what the factors are fitted to, with the loadings as design."""
        ones = np.ones(self.counts.shape[1])
        return Side(self.counts.by_column, ones, self._exposure, self.noise, rows_are_features=True)

    @cached_property
    def constant(self) -> float:
        """The full negative log-likelihood minus the sum of entry losses."""
        return likelihood_constant(self)

    @cached_property
    def plain_constant(self) -> float:
        """The same for a sum of ``t*em - y*log(em)``, see `log1pnmf.model.objective.plain_constant`."""
        return plain_constant(self)

    @cached_property
    def is_large(self) -> bool:
        """Whether counts are so large that ``t*em - y*log(em)`` would lose digits that matter."""
        return bool(np.max(self.counts.row_sums, initial=0.0) > LARGE_ROW)

    @property
    def native_constant(self) -> float:
        """The constant of the compiled core: `constant` if counts are large, else `plain_constant`."""
        return self.constant if self.is_large else self.plain_constant

    @cached_property
    def _exposure(self) -> NDArray[np.float64]:
        return self.link.exposure_scale * self.size_factors
