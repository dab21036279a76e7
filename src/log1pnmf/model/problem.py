"""Everything that stays fixed during a fit: the problem with its two sides, bounds and penalties."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from log1pnmf._common.arrays import column_sums, like, on_host
from log1pnmf.counts.compress import Pattern, SparseRows
from log1pnmf.counts.counts import Counts

from .batches import Batches
from .noise import POISSON, Noise, ShiftedLog
from .zeros import EXACT_FOR_IDENTITY, AdaptiveZeros, Zeros

Array = NDArray[np.float64]
Likelihood = Literal["exact", "approximate", "adaptive"]

# ---------- the problem, seen from the side of the loadings and of the factors


@dataclass(frozen=True, eq=False)
class SideZeros:
    """The zeros of one side, where they are not all computed exactly.

    The quadratics of all entries of a row sum up to ``linear_i'b + b'G_i b``, where ``linear_i`` is
    ``row_linear[i] * sum_j column_linear[j] x_j``, and ``G_i`` the sum over p of
    ``row_square[i, p] * sum_j column_square[p, j] x_j x_j'``: a form of rank P. P is 1. With dispersions
    it is 2, and the second term is the concave part. Of quartics it is 2 as well, and in the second term
    ``(x_j'b + SHIFT)**4`` replaces ``(x_j'b)**2``.
    """

    stored: Pattern | None  # zeros that are computed exactly
    # (rows, 2): linear and quadratic coefficient in place of ``expm1(eta)``; one of the two. With dispersions
    # there is a third: what is multiplied by the exposure and added to the quadratic one. Quartics have a
    # third as well
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

    def at(self, features: NDArray[np.intp]) -> Side:
        """Return some features of the factors' side; the zeros must not be adaptive."""
        zeros = self.zeros
        batches = None if self.batches is None else self.batches.of_features(features)
        if zeros is not None:
            own = None if zeros.row_quadratic is None else zeros.row_quadratic[features]
            linear, square = zeros.row_linear[features], zeros.row_square[features]
            zeros = replace(zeros, row_quadratic=own, row_linear=linear, row_square=square)
        rows, noise = SparseRows.from_scipy(self.rows.to_scipy()[features]), self.noise.of_features(features)
        return Side(rows, self.row_exposure[features], self.column_exposure, noise, True, zeros, batches)


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
    likelihood: Likelihood = field(init=False)  # how zero counts are treated
    cost: float = field(init=False)  # of the model's own parameters, beside those of loadings and factors

    def __post_init__(self) -> None:
        size_factors = np.ascontiguousarray(self.size_factors, dtype=np.float64)
        exact = self.link.is_identity and self.noise.zero_loss_is_mean
        kind: Likelihood = "adaptive" if isinstance(self.zeros, AdaptiveZeros) else "approximate"
        cost = self.noise.cost + (0.0 if self.batches is None else self.batches.cost)
        cost += 0.0 if self.size_prior is None else float(self.size_prior.costs(size_factors).sum())
        self.__dict__.update(
            size_factors=size_factors,
            exposure=self.link.exposure_scale * size_factors,
            zeros=EXACT_FOR_IDENTITY if exact else self.zeros,
            likelihood="exact" if exact or self.zeros is None else kind,
            cost=cost,
        )

    @property
    def profile(self) -> Array:
        """Eta of every feature at its mean rate."""
        rates = self.counts.by_column.row_sums() / self.size_factors.sum()
        return self.link.link(rates) / self.link.alpha

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
        zeros = self.zeros
        if zeros is None:
            return None
        n, m = self.counts.shape
        if isinstance(zeros, AdaptiveZeros):
            own, stored = zeros.of_eta, zeros.stored
        else:
            own, stored = np.tile([float(zeros.a1), float(zeros.a2)], (m, 1)), None
        linear, square = np.ascontiguousarray(own.T[:1]), np.ascontiguousarray(own.T[1:])
        powers = np.array([[1], [1 if self.noise.zero_loss_is_mean else 2]])[: len(square)]
        t = self.exposure[None]
        exposures, squares = np.ascontiguousarray(t), t**powers
        if features:
            of_features = np.ascontiguousarray(linear.T), np.ascontiguousarray(square.T)
            return SideZeros(stored, own, None, *of_features, exposures, squares)
        of_samples = np.ascontiguousarray(exposures.T), np.ascontiguousarray(squares.T)
        if isinstance(zeros, AdaptiveZeros):
            return SideZeros(zeros.stored.transposed, None, own, *of_samples, linear, square)
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


# ---------- bounds and a linear penalty for the loadings and for the factors

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
            values = np.asarray(getattr(self, name), dtype=np.float64, order="C")
            object.__setattr__(self, name, values[0] if values.ndim == 2 and len(values) == 1 else values)

    def tables(self, n_components: int) -> tuple[Array, Array, Array]:
        """Return lower bounds, upper bounds and penalties: 1 x K where all rows are alike, or rows x K."""
        K, numbers = n_components, (np.atleast_2d(getattr(self, name)) for name in NUMBERS)
        lower, upper, penalty = (one if one.shape[1] == K else np.full((len(one), K), one) for one in numbers)
        return lower, upper, penalty

    def of_rows(self, rows: Any) -> Bounds:
        """Return the bounds of some rows: a slice or their numbers."""
        values = (np.asarray(getattr(self, name)) for name in NUMBERS)
        return Bounds(*(one[rows] if one.ndim > 1 and len(one) > 1 else one for one in values))

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

    def residual(self, values: Any, gradient: Any) -> Any:
        """Return one side's part of `kkt_residual`, not divided by the total; the gradient has no penalty."""
        lower, upper, penalty = (like(values, one) for one in (self.lower, self.upper, self.penalty))
        gradient = gradient + penalty
        projected = gradient - gradient.clip(min=0.0) * (values <= lower)
        if np.isfinite(self.upper).any():
            projected = projected - projected.clip(max=0.0) * (values >= upper)
        return column_sums(abs(projected)) @ (column_sums(values) / values.shape[0])


def _limit(values: Any, limit: ArrayLike) -> Any:
    return like(values, limit) if np.ndim(limit) else float(limit)  # type: ignore[arg-type]


NON_NEGATIVE = Bounds()  # without an upper bound and a penalty


@dataclass(frozen=True, eq=False)
class Constraint:
    """Bounds and penalties of both sides."""

    loadings: Bounds = NON_NEGATIVE
    factors: Bounds = NON_NEGATIVE

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


FREE = Constraint()  # non-negative, without penalty


# ---------- what is known of factors beforehand

KINDS = ("loadings", "pattern", "factors", "mask")
"""What may be known of a factor: its loadings, in which samples it is not, itself, or where it may be."""
FREE_KIND = "free"


def bounds_of_loadings(
    kinds: NDArray[np.str_], known: Array | None, *, l1: float, mask_penalty: float
) -> Bounds:
    """Return the bounds of loadings; those that are `known`, of the first factors, are constants."""
    soft = 0.0 < mask_penalty < math.inf
    bounded = (kinds == "mask") & soft if l1 == 0.0 else ~np.isin(kinds, ("loadings", "factors"))
    upper = np.where(bounded, 1.0, math.inf)
    if known is None or not known.size:
        return Bounds(upper=upper)
    every = np.full((len(known), len(kinds)), np.nan)
    every[:, : known.shape[1]] = known
    return Bounds(np.nan_to_num(every), np.where(np.isnan(every), upper, every))


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
        first = ["pattern" if unknown.any() else "loadings" for unknown in np.isnan(self.loadings).T]
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
        loadings = bounds_of_loadings(kinds, self.loadings, l1=l1, mask_penalty=mask_penalty)
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
        same = (self.loadings == self.loadings[:1]) & (self.loadings > 0.0)
        even = np.flatnonzero(same.all(axis=0))
        if len(even):
            return int(even[0])
        free = np.flatnonzero(kinds == FREE_KIND)
        return int(free[0]) if len(free) else None
