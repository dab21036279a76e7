"""Everything that stays fixed during a fit, seen from the side of the loadings and of the factors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.compress import Pattern, SparseRows
from log1pnmf.counts.counts import Counts

from .batches import Batches
from .link import ShiftedLog
from .noise import POISSON, Noise
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
    exposure: NDArray[np.float64] = field(init=False)  # (n,): of the samples, batches apart

    def __post_init__(self) -> None:
        size_factors = np.ascontiguousarray(self.size_factors, dtype=np.float64)
        if size_factors.shape != (self.counts.shape[0],):
            raise ValueError(
                f"size_factors must have shape ({self.counts.shape[0]},), got {size_factors.shape}"
            )
        object.__setattr__(self, "size_factors", size_factors)
        object.__setattr__(self, "exposure", self.link.exposure_scale * size_factors)
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
    def cost(self) -> float:
        """What the model's own parameters cost in the objective, beside loadings and factors."""
        cost = self.noise.cost + (0.0 if self.batches is None else self.batches.cost)
        prior = self.size_prior
        return cost + (0.0 if prior is None else float(prior.costs(self.size_factors).sum()))

    @property
    def likelihood(self) -> Likelihood:
        """How zero counts are treated."""
        if self.zeros is None or (self.link.is_identity and self.noise.zero_loss_is_mean):
            return "exact"
        return "adaptive" if isinstance(self.zeros, AdaptiveZeros) else "approximate"

    @cached_property
    def loadings_side(self) -> Side:
        """Rows of the counts: what the loadings are fitted to, with the factors as design."""
        ones, zeros = np.ones(self.counts.shape[1]), self._side_zeros(features=False)
        return Side(self.counts.by_row, self.exposure, ones, self.noise, False, zeros, self.batches)

    @cached_property
    def factors_side(self) -> Side:
        """Columns of the counts: what the factors are fitted to, with the loadings as design."""
        ones, zeros = np.ones(self.counts.shape[1]), self._side_zeros(features=True)
        return Side(self.counts.by_column, ones, self.exposure, self.noise, True, zeros, self.batches)

    def _side_zeros(self, *, features: bool) -> SideZeros | None:
        """Return the zeros of the side whose rows are features, or samples."""
        zeros, (n, m) = self.zeros, self.counts.shape
        if zeros is None:
            return None
        if isinstance(zeros, AdaptiveZeros):  # of every feature: linear and quadratic coefficient
            own, stored = np.ascontiguousarray(zeros.quadratics[:, 1:3]), zeros.stored
        else:
            own, stored = np.tile([float(zeros.a1), float(zeros.a2)], (m, 1)), None
        linear, square = np.ascontiguousarray(own.T[:1]), np.ascontiguousarray(own.T[1:2])
        if isinstance(zeros, AdaptiveZeros) and not self.noise.zero_loss_is_mean:
            by_exposure = zeros.by_exposure[:, 1]
            own, square = np.column_stack([own, by_exposure]), np.vstack([square, by_exposure])
        t, powers = self.exposure[None], np.arange(1, 1 + len(square))[:, None]
        exposures, squares = np.ascontiguousarray(t), t**powers
        if features:
            of_features = np.ascontiguousarray(linear.T), np.ascontiguousarray(square.T)
            return SideZeros(stored, own, None, *of_features, exposures, squares)
        of_samples = np.ascontiguousarray(exposures.T), np.ascontiguousarray(squares.T)
        if isinstance(zeros, AdaptiveZeros):
            return SideZeros(zeros.by_sample, None, own, *of_samples, linear, square)
        return SideZeros(None, np.tile(own[0], (n, 1)), None, *of_samples, linear, square)

    @cached_property
    def constant(self) -> float:
        """The full negative log-likelihood minus the sum of entry losses."""
        return self.noise.constant(self.counts) + self._constant_of_zeros()

    @cached_property
    def plain_constant(self) -> float:
        """The full negative log-likelihood minus the sum of ``t*em - y*log(em)``.

        With Poisson noise ``sum lgamma(y+1) - sum y*log(t)``, and the zeros' part. This form is quicker to
        sum, but loses digits where counts are large. With other noise ``y*log(em)`` alone is taken off the
        loss of a zero with the same mean, see `Noise.plain_constant`.
        """
        counts, batches = self.counts, self.batches
        logs = np.log(np.where(counts.row_sums > 0.0, self.exposure, 1.0))
        own = self.noise.plain_constant(counts) - float(np.sum(counts.row_sums * logs))
        if batches is not None:
            own -= float(np.einsum("bj,bj->", batches.totals(counts), batches.logs))
        return own + self._constant_of_zeros()

    def _constant_of_zeros(self) -> float:
        """Sum the constant terms of the quadratics over the zeros that they replace."""
        zeros, counts = self.zeros, self.counts
        if zeros is None:
            return 0.0
        if isinstance(zeros, AdaptiveZeros):
            return float(np.sum(zeros.constants))
        if self.batches is not None:
            return zeros.a0m1 * self.batches.exposure_of_zeros(counts, self.exposure) if zeros.a0m1 else 0.0
        return zeros.a0m1 * float(self.exposure @ (counts.shape[1] - np.diff(counts.by_row.indptr)))
