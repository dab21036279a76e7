"""The half-step in plain NumPy, one dense row at a time: slow, and what other engines are tested against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tests.reference_zeros import polynomial, survey_feature, zero_costs

from log1pnmf.counts.compress import Pattern
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine, HalfStep
from log1pnmf.engines.native import NativeEngine
from log1pnmf.model.noise import LARGEST_ETA, POISSON, SMALLEST_ETA, NegativeBinomial, Noise, ShiftedLog
from log1pnmf.model.objective import entry_curvature, entry_gradient, entry_loss, exposure_of
from log1pnmf.model.problem import NON_NEGATIVE, Bounds, Problem, Side
from log1pnmf.model.zeros import MOST_BEND, AdaptiveZeros, EntryZeros, ZeroSurvey, quadratic

Array = NDArray[np.float64]

MAX_SWEEPS = 1000
MAX_HALVINGS = 60
N_CYCLES = 3
TOLERANCE = 1e-12
ROUNDING = 1e-14


class ReferenceEngine(Engine):
    """Reference implementation of `log1pnmf.engines.base.Engine`."""

    sums_batches_quickly = True

    def __init__(self, problem):
        self.problem = problem

    def with_problem(self, problem):
        return ReferenceEngine(problem)

    def half_step(self, side, start, design, *, bounds=NON_NEGATIVE, row_solver="newton", **_):
        solve = _newton if row_solver == "newton" else _coordinate
        values, predicted, n_rejected = np.empty_like(start), 0.0, 0
        for i, row in enumerate(self._rows(side, design, bounds)):
            values[i], decrease, rejected = (solve if row.y.any() else _empty)(row, start[i])
            predicted += decrease
            n_rejected += rejected
        return HalfStep(values, *self.evaluate(side, start, design), predicted, n_rejected)

    def evaluate(self, side, start, design):
        loss, gradient = self.problem.constant, np.empty_like(start)
        for i, row in enumerate(self._rows(side, design, NON_NEGATIVE)):
            loss += row.loss(start[i])
            gradient[i] = row.gradient(start[i])
        return loss, gradient

    def mean_spectrum(self, loadings, factors):
        return AllMeans(self.problem, loadings, factors)

    def takes_quartics(self, n_components):
        return True

    def survey_zeros(self, loadings, factors, caps, *, straight=False, quartic=False):
        shape, width = (len(factors), len(caps)), 3 + quartic if dispersion_of(self.problem, 0) is None else 5
        out = ZeroSurvey(caps, *(np.empty(size) for size in (shape, shape, (*shape, width))))
        side = self.problem.factors_side
        for j, (_, eta, t) in enumerate(self._zeros(loadings, factors)):
            for g, cap in enumerate(caps):
                how = {"dispersion": dispersion_of(self.problem, j), "straight": straight, "quartic": quartic}
                largest = float(np.max(_exposure_of(side, j) * (loadings @ factors[j])))
                found = survey_feature(eta, t, cap, link=self.problem.link, largest=largest, **how)
                out.error[j, g], out.n_above[j, g], out.quadratics[j, g] = found
        return out

    def collect_zeros(self, loadings, factors, caps):
        lists, exposure = [], np.empty((len(factors), 2))
        for j, (where, eta, t) in enumerate(self._zeros(loadings, factors)):
            above = zero_costs(eta, t, self.problem.link, dispersion_of(self.problem, j))[1] > caps[j]
            lists.append(where[above])
            exposure[j] = t[~above].sum(), np.sum(t[~above] ** 2)
        indptr = np.concatenate(([0], np.cumsum([len(one) for one in lists], dtype=np.int64)))
        indices = np.concatenate(lists).astype(np.int32)
        return Pattern((len(factors), len(loadings)), indptr, indices), exposure

    def _zero_errors(self, zeros, loadings, factors, roughly):
        signed = absolute = 0.0
        for j, (where, eta, t) in enumerate(self._zeros(loadings, factors)):
            cost, _ = zero_costs(eta, t, self.problem.link, dispersion_of(self.problem, j))
            off = t * (cost - polynomial(eta, t, zeros.quadratics[j]))
            off[zeros.stored.to_dense(slice(j, j + 1))[0][where]] = 0.0
            signed, absolute = signed + float(off.sum()), absolute + float(np.abs(off).sum())
        return signed, absolute

    def _zeros(self, loadings: Array, factors: Array) -> Iterator[tuple[NDArray[np.intp], Array, Array]]:
        """Return the samples in which a feature is zero, their eta and exposure; feature by feature."""
        side = self.problem.factors_side
        for j in range(len(factors)):
            counted = side.rows.indices[side.rows.indptr[j] : side.rows.indptr[j + 1]]
            where = np.setdiff1d(np.arange(len(loadings)), counted)
            yield where, loadings[where] @ factors[j], _exposure_of(side, j)[where]

    def _rows(self, side: Side, design: Array, bounds: Bounds) -> Iterator[_Row]:
        (n, m), K = side.rows.shape, design.shape[1]
        lower, upper, penalty = (np.broadcast_to(one, (n, K)) for one in bounds.tables(K))
        for i in range(n):
            entries = slice(side.rows.indptr[i], side.rows.indptr[i + 1])
            y = np.zeros(m)
            y[side.rows.indices[entries]] = side.rows.values[entries]
            t, noise, zeros = _exposure_of(side, i), _noise_of_row(side, i), _zeros_of_row(side, i)
            box = _Box(lower[i], upper[i], penalty[i])
            yield _Row(y, t, design, box, self.problem, noise, zeros)


class AllMeans:
    """What `MeanSpectrum` condenses: the means of all entries."""

    def __init__(self, problem, loadings, factors):
        self.means = exposure_of(problem, slice(None)) * problem.link.em(loadings @ factors.T)
        self.y = problem.counts.on_host().to_scipy().toarray().astype(np.float64)
        self.n_free = np.full(1, float(np.count_nonzero(loadings)))

    def sums(self, phi, which):
        x, y = phi * self.means[:, which], self.y[:, which]
        log, part = np.log1p(x), x / (1.0 + x)
        weighed = y * log, y * part, y * part * (1.0 - part)
        return [[one.sum(axis=0) for one in terms] for terms in ((log, part, part**2), weighed)]

    def adopt(self, array):
        return array


def example(c, kind=None, n_components=3, *, n=9, m=60, seed=0, wide=False):
    """Return a problem with an empty row and column, and a point that fits it about as well as the truth.

    `kind`: of zeros, after "nb" for negative binomial noise; exact where nothing is said. `wide`: with counts
    that do not fit into float32.
    """
    rng, link = np.random.default_rng(seed), ShiftedLog(c)
    loadings, factors = rng.uniform(0.5, 1.5, (n, n_components)), rng.uniform(0.5, 1.5, (m, n_components))
    factors *= (1.0 if link.is_identity else math.log1p(2.0 / c)) / (loadings @ factors.T).mean()
    sizes = rng.uniform(0.5, 2.0, size=n)
    y = rng.poisson(sizes[:, None] * link.mean(loadings @ factors.T)).astype(np.float64)
    y[n // 2], y[:, m // 2] = 0, 0
    if wide:
        y[y > 0] += 2.0**25 + 1.0
    noise: Noise = POISSON
    if (kind or "").startswith("nb"):
        noise = NegativeBinomial(rng.gamma(0.5, 1.0, m) * (rng.random(m) > 0.2))
    problem = Problem(Counts.from_any(y), sizes, link, noise=noise)
    kind = (kind or "").removeprefix("nb").strip()
    if kind in ("adaptive", "quartic"):
        how = {"quartic": kind == "quartic"}
        problem = replace(problem, zeros=adaptive_zeros(NativeEngine(problem, 1), loadings, factors, **how))
    elif kind:
        problem = replace(problem, zeros=quadratic(link, kind))
    return problem, loadings, factors


def adaptive_zeros(engine, loadings, factors, *, quartic=False):
    """About half of the zeros are computed exactly, and the quadratics of the others are poor."""
    zeros = engine.problem.counts.to_scipy().toarray() == 0
    caps = np.full(len(factors), np.median((loadings @ factors.T)[zeros]))
    quadratics = engine.survey_zeros(loadings, factors, caps[:1], quartic=quartic).quadratics[:, 0]
    stored, exposure = engine.collect_zeros(loadings, factors, caps)
    assert 0 < stored.nnz < zeros.sum()
    poor = np.array([1.0, 1.2, 0.7, 1.0, 1.1])[: quadratics.shape[1]]
    return AdaptiveZeros(quadratics * poor, stored, exposure, caps, 0.0)


def both_sides(problem, loadings, factors):
    """Return side, own rows and design of both half-steps."""
    return (problem.loadings_side, loadings, factors), (problem.factors_side, factors, loadings)


def dispersion_of(problem: Problem, j: int) -> float | None:
    """Return the dispersion of a feature; None with Poisson noise."""
    noise = problem.noise
    return float(noise.of_features(j).dispersion) if isinstance(noise, NegativeBinomial) else None


def _zeros_of_row(side: Side, i: int) -> EntryZeros | None:
    """Return what replaces the zeros of one row; None where all are exact."""
    zeros = side.zeros
    if zeros is None:
        return None
    own = zeros.row_quadratic[i] if zeros.row_quadratic is not None else zeros.column_quadratic.T  # type: ignore[union-attr]
    stored = False if zeros.stored is None else zeros.stored.to_dense(slice(i, i + 1))[0]
    third = {} if len(own) < 3 else {"a4" if side.noise is POISSON else "b2": own[2]}
    return EntryZeros(own[0], own[1], stored, **third)


def _noise_of_row(side: Side, i: int) -> Noise:
    """Return the noise of the entries of one row."""
    return side.noise.of_features(i) if side.rows_are_features else side.noise


def _exposure_of(side: Side, row: int) -> Array:
    """Exposure of the entries of one row."""
    exposure, batches = side.row_exposure[row] * side.column_exposure, side.batches
    if batches is None:
        return exposure
    if side.rows_are_features:
        return exposure * batches.effects[batches.labels, row]
    return exposure * batches.effects[batches.labels[row]]


class _Box(NamedTuple):
    """Bounds and penalties of the K coefficients of a row."""

    lower: Array
    upper: Array
    penalty: Array


@dataclass(frozen=True, eq=False)
class _Row:
    """The problem of one row: ``min loss(b) + penalty'b, lower <= b <= upper``."""

    y: Array
    t: Array
    design: Array
    box: _Box
    problem: Problem
    noise: Noise
    zeros: EntryZeros | None

    def published_excess(self, b: Array, k: int) -> float:
        """Return what the published implementation adds to the second derivative in coordinate k.

        It takes ``y (1 + 1/em)^2`` for the counts' part, the second derivative is ``y (1 + 1/em) / em``. The
        steps are shorter, and its fits, stopped on the way, depend on it.
        """
        if self.problem.link.is_identity:
            return 0.0
        em = np.expm1(np.clip(self.design @ b, SMALLEST_ETA, LARGEST_ETA))
        return float((self.y * (1.0 + 1.0 / em)) @ self.design[:, k] ** 2)

    def loss(self, b: Array) -> float:
        return float(self._entries(entry_loss, b).sum()) + self._beyond(b)[0]

    def penalised(self, b: Array) -> float:
        return self.loss(b) + float(self.box.penalty @ b)

    def gradient(self, b: Array) -> Array:
        return self.design.T @ (self._entries(entry_gradient, b) + self._beyond(b)[1])

    def _beyond(self, b: Array) -> tuple[float, Array]:
        """Cost of a row that is beyond where its concave part holds, and its gradient in eta; 0 inside.

        Inside, the concave part takes at most `MOST_BEND` from the slope that the means of the zeros have.
        Further out it has no minimum. There the sum of it and this cost goes on as a straight line.
        """
        if self.zeros is None:
            return 0.0, np.zeros_like(self.t)
        approximated, b2 = self.zeros.in_place(self.y), self.zeros.b2
        mean = np.where(approximated, self.t * (self.design @ b), 0.0)
        steep, bend = float(mean.sum()), -2.0 * float(np.sum(b2 * mean**2))
        ratio = 1.0 - MOST_BEND * steep / bend if bend > 0.0 else 0.0
        if ratio <= 1e-9:
            return 0.0, np.zeros_like(mean)
        slope = -4.0 * (ratio - 0.5 * ratio**2) * b2 * self.t * mean - MOST_BEND * ratio * self.t
        return 0.5 * ratio**2 * bend, np.where(approximated, slope, 0.0)

    def hessian(self, b: Array) -> Array:
        weight = self._entries(entry_curvature, b)
        return self.design.T @ (weight[:, None] * self.design)

    def _entries(self, function: Callable[..., Array], b: Array) -> Array:
        return function(self.y, self.design @ b, self.t, self.problem.link, self.zeros, noise=self.noise)


def _empty(row: _Row, b: Array) -> tuple[Array, float, bool]:
    """Return the least values, the optimum of a row without counts, even if a crude quadratic has another."""
    least = row.box.lower.copy()
    return least, row.penalised(b) - row.penalised(least), False


def _newton(row: _Row, b: Array) -> tuple[Array, float, bool]:
    """One projected Newton step: improved row, predicted decrease, whether the full step was refused.

    Coefficients that a bound holds back stay.
    """
    gradient, hessian = row.gradient(b) + row.box.penalty, row.hessian(b)
    lower, upper, penalty = row.box
    held = (b <= lower) & (gradient >= 0.0) | (b >= upper) & (gradient <= 0.0)
    free = _Box(np.where(held, b, lower), np.where(held, b, upper), penalty)
    target = _box_quadratic_program(gradient, hessian, b, free)
    step = target - b
    values, rejected = _backtrack(row, b, target)
    return values, -float(gradient @ step + 0.5 * step @ hessian @ step), rejected


def _coordinate(row: _Row, b: Array) -> tuple[Array, float, bool]:
    """Cycles of projected one-dimensional Newton steps; derivatives are updated for every coordinate.

    The curvature is that of the published implementation, see `_Row.published_excess`.
    """
    predicted, any_rejected = 0.0, False
    for _ in range(N_CYCLES):
        for k in range(len(b)):
            g = float(row.gradient(b)[k] + row.box.penalty[k])
            h = float(row.hessian(b)[k, k] + row.published_excess(b, k))
            target = b.copy()
            target[k] = _minimise_parabola(g, h, b[k], row.box.lower[k], row.box.upper[k])
            step = target[k] - b[k]
            b, rejected = _backtrack(row, b, target)
            predicted -= g * step + 0.5 * h * step**2
            any_rejected |= rejected
    return b, predicted, any_rejected


def _box_quadratic_program(gradient: Array, hessian: Array, b: Array, box: _Box) -> Array:
    """Minimise ``gradient'd + d'hessian d/2`` over ``lower <= b + d <= upper``; returns ``b + d``.

    Cyclic coordinate descent until no coordinate moves, measured in units of its curvature.
    """
    x, slope = b.copy(), gradient.copy()
    unit = np.sqrt(np.diag(hessian))
    for _ in range(MAX_SWEEPS):
        before = x.copy()
        for k in range(len(x)):
            new = _minimise_parabola(slope[k], hessian[k, k], x[k], box.lower[k], box.upper[k])
            slope += hessian[:, k] * (new - x[k])
            x[k] = new
        if np.max(unit * np.abs(x - before)) <= TOLERANCE * np.max(unit * x):
            break
    return x


def _minimise_parabola(g: float, h: float, x: float, lower: float, upper: float) -> float:
    """Minimiser over [lower, upper] of the parabola with slope g and curvature h at x.

    Without curvature (no count depends on this coordinate) it is the lower bound if the slope is positive.
    """
    if h > np.finfo(np.float64).tiny:
        return float(min(max(x - g / h, lower), upper))
    return float(lower if g > 0 else x)


def _backtrack(row: _Row, b: Array, target: Array) -> tuple[Array, bool]:
    """Halve the step from `b` to `target` until the penalised loss does not rise; whether it was halved."""
    loss = row.penalised(b)
    accepted = loss + ROUNDING * abs(loss)
    fraction = 1.0
    for _ in range(MAX_HALVINGS):
        point = np.clip((1.0 - fraction) * b + fraction * target, row.box.lower, row.box.upper)
        if row.penalised(point) <= accepted:
            return point, fraction < 1.0
        fraction *= 0.5
    return b.copy(), True
