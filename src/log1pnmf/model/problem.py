"""Everything that stays fixed during a fit, seen from the side of the loadings and of the factors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.compress import Pattern, SparseRows
from log1pnmf.counts.counts import Counts

from .batches import Batches
from .link import ShiftedLog
from .noise import POISSON, Noise
from .objective import likelihood_constant, plain_constant
from .zeros import EXACT_FOR_IDENTITY, AdaptiveZeros, Quadratic, Zeros

Array = NDArray[np.float64]
Likelihood = Literal["exact", "approximate", "adaptive"]


@dataclass(frozen=True, eq=False)
class SideZeros:
    """The zeros of one side, where they are not all computed exactly.

    The quadratics of all entries of a row sum up to ``linear_i'b + b'G_i b``, where ``linear_i`` is
    ``row_linear[i] * sum_j column_linear[j] x_j``, and ``G_i`` the sum over p of
    ``row_square[i, p] * sum_j column_square[p, j] x_j x_j'``: a form of rank P. P is 1. With dispersions
    it is 2, and the second term is the concave part.
    """

    stored: Pattern | None  # zeros that are computed exactly
    # (rows, 2): linear and quadratic coefficient in place of ``expm1(eta)``; one of the two. With dispersions
    # there is a third: what is multiplied by the exposure and added to the quadratic one
    row_quadratic: Array | None
    column_quadratic: Array | None
    row_linear: Array
    row_square: Array
    # (1, columns) and (P, columns): as if all effects of batches were 1; see `Side.terms_of_zeros`
    column_linear: Array
    column_square: Array


@dataclass(frozen=True, eq=False)
class Side:
    """Compressed rows with exposure ``t_ij = row_exposure_i * column_exposure_j``, and noise.

    `zeros` is None where all zeros are computed exactly. With batches, t is multiplied by the effect of the
    sample's batch on the feature.
    """

    rows: SparseRows
    row_exposure: Array
    column_exposure: Array
    noise: Noise = POISSON
    rows_are_features: bool = False
    zeros: SideZeros | None = None
    batches: Batches | None = None

    @cached_property
    def empty(self) -> NDArray[np.bool_] | None:
        """Which rows have no counts; None where all have some."""
        empty = np.diff(self.rows.indptr) == 0
        return empty if empty.any() else None

    def exposure_of(self, row: int) -> Array:
        """Exposure of the entries of one row."""
        exposure, batches = self.row_exposure[row] * self.column_exposure, self.batches
        if batches is None:
            return exposure
        if self.rows_are_features:
            return exposure * batches.effects[batches.labels, row]
        return exposure * batches.effects[batches.labels[row]]

    def terms_of_zeros(self) -> tuple[Array, Array, Array, Array]:
        """Return the terms of rows and columns: linear and square of rows, then of columns.

        With batches there are P terms of features for each of them, batch by batch, times powers of the
        effects. Where rows are samples, a row uses the columns' terms of its batch. Where columns are
        samples, a column adds to the rows' terms of its batch.
        """
        zeros, batches = self.zeros, self.batches
        assert zeros is not None
        rows, columns = (zeros.row_linear, zeros.row_square), (zeros.column_linear, zeros.column_square)
        if batches is None:
            return *rows, *columns

        def in_batches(terms: Array) -> Array:
            powers = batches.effects[:, None] ** np.arange(1, 1 + len(terms))[:, None]
            return np.ascontiguousarray((powers * terms).reshape(-1, terms.shape[1]))

        if self.rows_are_features:
            linear, square = (np.ascontiguousarray(in_batches(one.T).T) for one in rows)
            return linear, square, *columns
        linear, square = map(in_batches, columns)
        return *rows, linear, square

    def at(self, features: NDArray[np.intp], samples: NDArray[np.intp] | None = None) -> Side:
        """Return some features and samples of the factors' side; the zeros must not be adaptive."""
        matrix, exposure, zeros = self.rows.to_scipy()[features], self.column_exposure, self.zeros
        batches = None if self.batches is None else self.batches.of_features(features)
        if zeros is not None:
            own = None if zeros.row_quadratic is None else zeros.row_quadratic[features]
            linear, square = zeros.row_linear[features], zeros.row_square[features]
            zeros = replace(zeros, row_quadratic=own, row_linear=linear, row_square=square)
        if samples is not None:
            matrix, exposure = matrix[:, samples], exposure[samples]
            batches = None if batches is None else batches.of_samples(samples)
            if zeros is not None:
                linear, square = (one[:, samples] for one in (zeros.column_linear, zeros.column_square))
                zeros = replace(zeros, column_linear=linear, column_square=square)
        rows, noise = SparseRows.from_scipy(matrix), self.noise.of_features(features)
        return Side(rows, self.row_exposure[features], exposure, noise, True, zeros, batches)


@dataclass(frozen=True, eq=False)
class SizePrior:
    """Gamma law of fitted size factors, see `log1pnmf.model.size_factors`."""

    centre: Array  # (n,): its mean for every sample
    weight: float  # its shape: about 1 over the variance of the logarithms

    def of(self, which: Any) -> SizePrior:
        """Return the prior of some samples."""
        return SizePrior(self.centre[which], self.weight)

    def costs(self, size_factors: Array) -> Array:
        """Describe what every size factor costs in the objective; 0 at the centre."""
        ratio = size_factors / self.centre
        return self.weight * (ratio - np.log(ratio) - 1.0)


@dataclass(frozen=True, eq=False)
class Problem:
    """Counts, exposure, link and the treatment of zero counts."""

    counts: Counts  # n x m counts
    size_factors: NDArray[np.float64]  # (n,): positive
    link: ShiftedLog
    # what replaces ``expm1`` at zero counts; None computes them exactly. With the identity link this always
    # becomes ``Quadratic(0, 1, 0)``, which is exact at sparse cost
    zeros: Zeros | None = None
    noise: Noise = POISSON
    batches: Batches | None = None  # how well each batch of samples captures every feature
    size_prior: SizePrior | None = None  # where size factors are fitted

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
        if self.batches is not None:
            shape = (len(self.batches.labels), self.batches.effects.shape[1])
            if shape != self.counts.shape:
                raise ValueError(f"batches must be those of counts of shape {self.counts.shape}, got {shape}")
        if self.link.is_identity and self.noise.zero_loss_is_mean:
            object.__setattr__(self, "zeros", EXACT_FOR_IDENTITY)
        elif isinstance(self.zeros, Quadratic) and not self.noise.zero_loss_is_mean:
            raise ValueError(f"zeros must be None (exact) with {self.noise.name} noise, got {self.zeros}")

    @property
    def is_exact(self) -> bool:
        """Whether the loss is the model's own; approximate zeros of the identity link are."""
        return self.zeros is None or (self.link.is_identity and self.noise.zero_loss_is_mean)

    @property
    def cost(self) -> float:
        """What the model's own parameters cost in the objective, beside loadings and factors."""
        cost = self.noise.cost + (0.0 if self.batches is None else self.batches.cost)
        prior = self.size_prior
        return cost + (0.0 if prior is None else float(prior.costs(self.size_factors).sum()))

    @property
    def likelihood(self) -> Likelihood:
        """How zero counts are treated."""
        if self.is_exact:
            return "exact"
        return "adaptive" if isinstance(self.zeros, AdaptiveZeros) else "approximate"

    @cached_property
    def loadings_side(self) -> Side:
        """Rows of the counts: what the loadings are fitted to, with the factors as design."""
        ones = np.ones(self.counts.shape[1])
        zeros = self._loadings_zeros
        return Side(self.counts.by_row, self._exposure, ones, self.noise, False, zeros, self.batches)

    @cached_property
    def factors_side(self) -> Side:
        """Columns of the counts: what the factors are fitted to, with the loadings as design."""
        ones = np.ones(self.counts.shape[1])
        zeros = self._factors_zeros
        return Side(self.counts.by_column, ones, self._exposure, self.noise, True, zeros, self.batches)

    @property
    def _loadings_zeros(self) -> SideZeros | None:
        if self.zeros is None:
            return None
        own, linear, square = self._quadratics
        t, powers = self._exposure[:, None], np.arange(1, 1 + len(square))
        of_rows = (np.ascontiguousarray(t), t**powers)
        if isinstance(self.zeros, AdaptiveZeros):
            return SideZeros(self.zeros.by_sample, None, own, *of_rows, linear, square)
        return SideZeros(None, np.tile(own[0], (self.counts.n_samples, 1)), None, *of_rows, linear, square)

    @property
    def _factors_zeros(self) -> SideZeros | None:
        if self.zeros is None:
            return None
        own, linear, square = self._quadratics
        t, powers = self._exposure[None], np.arange(1, 1 + len(square))[:, None]
        linear, square = (np.ascontiguousarray(one.T) for one in (linear, square))
        stored = self.zeros.stored if isinstance(self.zeros, AdaptiveZeros) else None
        return SideZeros(stored, own, None, linear, square, np.ascontiguousarray(t), t**powers)

    @property
    def _quadratics(self) -> tuple[Array, Array, Array]:
        """Coefficients of every feature, (m, 2) or (m, 3); linear ones, (1, m); quadratic ones, (P, m)."""
        zeros, m = self.zeros, self.counts.n_features
        assert zeros is not None
        own = np.stack([np.broadcast_to(one, m) for one in (zeros.a1, zeros.a2)], axis=1).astype(np.float64)
        linear, square = (np.ascontiguousarray(own[:, p][None]) for p in (0, 1))
        if self.noise.zero_loss_is_mean or not isinstance(zeros, AdaptiveZeros):
            return own, linear, square
        by_t = zeros.by_exposure[:, 1]
        return np.column_stack([own, by_t]), linear, np.vstack([square, by_t])

    @cached_property
    def constant(self) -> float:
        """The full negative log-likelihood minus the sum of entry losses."""
        return likelihood_constant(self)

    @cached_property
    def plain_constant(self) -> float:
        """The same for a sum of ``t*em - y*log(em)``, see `log1pnmf.model.objective.plain_constant`."""
        return plain_constant(self)

    @cached_property
    def _exposure(self) -> NDArray[np.float64]:
        return self.link.exposure_scale * self.size_factors
