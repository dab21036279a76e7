"""Zero entries and the quadratics that replace them, in blocks of features of a bounded size.

It computes what ``cpp/zeros.hpp`` does, in plain PyTorch, because it is done once for many iterations; always
in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from log1pnmf._common.arrays import on_host
from log1pnmf.counts.compress import Pattern
from log1pnmf.model.dispersion import N_BINS, POWERS, MeanSpectrum
from log1pnmf.model.noise import LARGEST_ETA
from log1pnmf.model.zeros import (
    FLATTEST,
    LARGEST_BEND,
    MOST_BENT,
    MOST_OF_ALL,
    STEEPEST,
    ZeroSurvey,
    surveyed_every,
)

from . import kernels
from .rows import DENSE_BYTES, Block, DevicePattern, DeviceRows, Kept, Stored, TensorPattern

RIDGE = 1e-9


@dataclass(frozen=True, eq=False)
class Zeros:
    """The zeros at one point, features x samples."""

    rows: DeviceRows  # counts of the features
    kept: Kept  # exposures of the features and samples
    loadings: Any
    factors: Any
    noise: Noise

    def survey(self, caps: np.ndarray, *, straight: bool = False) -> ZeroSurvey:
        """See `Engine.survey_zeros`."""
        error, n_above = self.factors.new_empty((2, len(self.factors), len(caps)))
        width = 3 if self.noise.dispersion is None else 5
        quadratics = self.factors.new_empty((len(self.factors), len(caps), width))
        every = surveyed_every(len(self.loadings))
        for at, eta in self._eta(every=every):
            found = self.noise.at(at).survey(eta, self._exposure(at, every), caps, straight=straight)
            error[at], n_above[at], quadratics[at] = found
        all_of = self._share(every)
        return ZeroSurvey(caps, on_host(all_of * error), on_host(all_of * n_above), on_host(quadratics))

    def collect(self, caps: np.ndarray) -> tuple[Pattern, np.ndarray]:
        """See `Engine.collect_zeros`."""
        limits = _as(caps, self.factors)[:, None]
        exposure, n_above, samples = [], [], []
        for at, eta in self._eta():
            t = self._exposure(at)
            above = eta > self.noise.at(at).largest_eta(limits[at], t)
            n_above.append(above.sum(1))
            samples.append(torch.nonzero(above)[:, 1].int())
            others = torch.where((eta >= 0.0) & ~above, t, 0.0)
            exposure.append(torch.stack([others.sum(1), torch.linalg.vector_norm(others, dim=1) ** 2], 1))
        indptr = np.concatenate(([0], np.cumsum(on_host(torch.cat(n_above))))).astype(np.int64)
        shape = (len(self.factors), len(self.loadings))
        return TensorPattern(shape, indptr, torch.cat(samples)), on_host(torch.cat(exposure))

    def errors(
        self, quadratics: np.ndarray, stored: DevicePattern | None, *, every: int = 1
    ) -> tuple[float, float]:
        """See `Engine.zero_errors`; of `every` so many samples one."""
        a = _as(quadratics, self.factors)
        total = a.new_zeros(2)
        for at, eta in self._eta(stored, every=every):
            t = self._exposure(at, every)
            off = self.noise.at(at).cost(eta, t) - _polynomial(eta, t, a[at])
            off = torch.where(eta >= 0.0, t, 0.0) * off
            total += torch.stack([off.sum(), off.abs_().sum()])
        signed, absolute = (self._share(every) * total).tolist()
        return signed, absolute

    def spectrum(self, low: np.ndarray) -> DeviceSpectrum:
        """Condense the means, given where the bins of every feature begin."""
        sums, begin = self.factors.new_zeros((2, len(self.factors), N_BINS, POWERS)), _as(low, self.factors)
        for (block, _), own, at, eta in self._blocks(self.loadings.T):
            means = self.noise.at(at).em(eta).mul_(self._exposure(at))
            place = means.log_().sub_(begin[at, None]).clamp_(0.0, N_BINS - 1e-9)
            sums[0, at] = kernels.binned_powers(place, sums.shape[2:])
            counts = block.indptr[own.start : own.stop + 1], block.indices, block.values
            sums[1, at] = kernels.binned_powers(place, sums.shape[2:], counts)
        n_free = torch.count_nonzero(self.loadings).double().reshape(1)
        return DeviceSpectrum(low, sums[0], sums[1], on_host(n_free))

    def batch_sums(self, quadratics: np.ndarray | None, stored: DevicePattern | None) -> np.ndarray:
        """See `Engine.batch_sums`; quadratics have a row for each feature, with the constant first."""
        a, sums = None if quadratics is None else _as(quadratics, self.factors)[:, :, None], []
        members = self.kept.column_exposure * self._members
        for at, marked in self._eta(stored):
            exact = marked < 0.0  # a count, or an exact zero
            eta = torch.where(exact, -1.0 - marked, marked)
            means = self.noise.em(eta)
            if a is not None:
                means = torch.where(exact, means, a[at, 0] + eta * (a[at, 1] + a[at, 2] * eta))
            sums.append(members @ means.T)
        return on_host(torch.cat(sums, dim=1))

    def dispersed_sums(self, effects: np.ndarray) -> np.ndarray:
        """See `Engine.dispersed_sums`; the formulas are those of `batch_effects.dispersed_sums`."""
        t, sums = _as(effects, self.factors).T[:, self.kept.column_batch.long()], []
        for (block, _), own, at, eta in self._blocks(self.loadings.T):
            means, y = self.noise.em(eta).mul_(self.kept.column_exposure).mul_(t[at]), torch.zeros_like(eta)
            first, last = block.indptr[[own.start, own.stop]].tolist()
            y[_places(block, own.start, own.stop)] = block.values[first:last].double()
            grown = (phi := self.noise.dispersion[at, None]) * means
            log, D = grown.log1p(), 1.0 + grown
            loss = torch.where(grown > 0.0, means * (log / grown), means) + y * log
            parts = loss, (means - y) / D, means * (1.0 + phi * y) / D**2
            sums.append(torch.stack([self._members @ part.T for part in parts]))
        return on_host(torch.cat(sums, dim=2))

    @cached_property
    def _members(self) -> Any:  # batches x samples
        batches = torch.arange(self.kept.row_exposure.shape[1], device=self.factors.device)
        return (batches[:, None] == self.kept.column_batch).double()

    def _exposure(self, features: slice, every: int = 1) -> Any:
        """Return exposures of some features, of `every` so many samples one; a line without batches."""
        samples, batch = self.kept.column_exposure[::every].contiguous(), self.kept.column_batch
        if batch is None:
            return samples
        return self.kept.row_exposure[features][:, batch[::every].long()].mul_(samples)

    def _share(self, every: int) -> float:
        """How many samples one stands for, where of `every` so many one is evaluated."""
        return len(self.loadings) / max(1, len(self.loadings[::every]))

    def _eta(self, stored: DevicePattern | None = None, *, every: int = 1) -> Iterator[tuple[slice, Any]]:
        """Lay out eta of some features at a time, of `every` so many samples one.

        It is -1 where there is a count, or an exact zero.
        """
        for parts, own, at, eta in self._blocks(self.loadings[::every].T, stored):
            for entries in parts:
                if entries is not None:
                    _leave_out(eta, entries, own.start, own.stop, every)
            yield at, eta

    def _blocks(self, design: Any, stored: DevicePattern | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield some features at a time: counts and exact zeros, where the features are in these, and eta."""
        size = max(1, DENSE_BYTES // (8 * max(1, design.shape[1])))
        for block in self.rows.blocks():
            parts = block, None if stored is None else stored.of(block)
            for start in range(0, block.n_rows, size):
                own = slice(start, min(start + size, block.n_rows))
                at = slice(block.first + start, block.first + own.stop)
                yield parts, own, at, self.factors[at] @ design


def _as(array: np.ndarray, like: Any) -> Any:
    return torch.as_tensor(array, device=like.device)


def _leave_out(eta: Any, entries: Block | Stored, start: int, stop: int, every: int) -> None:
    # -1 - eta at the entries of rows `start` to `stop`; of `every` so many columns eta has one
    where = _places(entries, start, stop, every)
    eta[where] = -1.0 - eta[where]


def _places(entries: Block | Stored, start: int, stop: int, every: int = 1) -> tuple[Any, Any]:
    # rows, and columns, of the entries of rows `start` to `stop`
    indptr = entries.indptr[start : stop + 1]
    first, last = indptr[[0, -1]].tolist()
    columns = entries.indices[first:last]
    if every > 1:
        seen = torch.nonzero(columns % every == 0)[:, 0]
        rows = torch.searchsorted(indptr, seen + first, right=True) - 1
        columns = columns[seen] // every
    else:
        rows = torch.repeat_interleave(torch.arange(stop - start, device=columns.device), indptr.diff())
    return rows, columns.long()


class DeviceSpectrum(MeanSpectrum):
    """Condensed means whose sums are tensors of a device."""

    @cached_property
    def _nodes(self) -> Any:
        """Means that stand for all, and their weights over all samples and by counts; features x nodes."""
        x, weights = (_as(one, self.entries) for one in self.quadrature())
        bins = torch.arange(N_BINS, device=x.device)[:, None] + x
        means = _as(self.low, x)[:, None] + bins.flatten()
        return means.exp(), *((one @ weights).flatten(1) for one in (self.entries, self.counted))

    def adopt(self, array: np.ndarray) -> Any:
        """Copy an array to the device."""
        return _as(array, self.entries)

    def sums(self, phi: np.ndarray, which: np.ndarray) -> Any:
        """See `MeanSpectrum.sums`."""
        means, entries, counted = (one[_as(which, one)] for one in self._nodes)
        x = _as(phi, means)[:, None] * means
        log, part = x.log1p(), x / (1.0 + x)
        of_all = [(entries * one).sum(1) for one in (log, part, part**2)]
        own = [(counted * one).sum(1) for one in (log, part, part * (1.0 - part))]
        sums = on_host(torch.stack([*of_all, *own]))
        return sums[:3], sums[3:]


# ---------- what zeros cost with either noise, and the quadratics of some features


@dataclass(frozen=True, eq=False)
class Noise:
    """Noise of some features."""

    dispersion: Any  # of every feature; None with Poisson noise
    identity: bool  # whether the link is the identity

    def at(self, features: Any) -> Noise:
        """Return that of some features."""
        return self if self.dispersion is None else Noise(self.dispersion[features], self.identity)

    def em(self, eta: Any) -> Any:
        """Return the means over their exposures."""
        return eta if self.identity else eta.clamp(max=LARGEST_ETA).expm1_()

    def cost(self, eta: Any, exposure: Any) -> Any:
        """Return what zeros cost over t; any number beside zeros."""
        em = self.em(eta)
        if self.dispersion is None:
            return em
        x = self.dispersion[:, None] * exposure * em
        return em * torch.where(x > 0.0, torch.log1p(x) / x, 1.0)

    def measure(self, eta: Any, exposure: Any) -> Any:
        """Return what is held against caps; it is negative beside zeros."""
        if self.dispersion is None:
            return eta
        x = self.dispersion[:, None] * exposure * self.em(eta)
        return torch.where(eta >= 0.0, x if self.identity else torch.maximum(eta, x), -1.0)

    def largest_eta(self, caps: Any, exposure: Any) -> Any:
        """Return up to which eta the measure of a zero is below the cap of its feature."""
        if self.dispersion is None:
            return caps
        em = caps / self.dispersion[:, None] / exposure
        return em if self.identity else em.log1p_().minimum(caps)

    def survey(
        self, eta: Any, exposure: Any, caps: np.ndarray, *, straight: bool = False
    ) -> tuple[Any, Any, Any]:
        """Return error, zeros above and quadratics for every feature and cap."""
        cost, measure = self.cost(eta, exposure), self.measure(eta, exposure)
        rows, largest, noise = torch.arange(len(eta), device=eta.device), measure.amax(1), self
        error, n_above = eta.new_empty((2, len(eta), len(caps)))
        quadratics = eta.new_empty((len(eta), len(caps), 3 if self.dispersion is None else 5))
        for g, cap in enumerate(caps):
            if g > 0:  # the same as for the last cap, where no entry lies between the two
                for out in (error, n_above, quadratics):
                    out[:, g] = out[:, g - 1]
                more = torch.nonzero(largest > caps[g - 1])[:, 0]
                if len(more) < len(rows):
                    rows, eta, cost, measure, largest = (
                        one[more] for one in (rows, eta, cost, measure, largest)
                    )
                    exposure, noise = exposure if exposure.ndim == 1 else exposure[more], noise.at(more)
            if len(rows):
                found = noise.fit(eta, cost, measure, exposure, float(cap), straight=straight)
                error[rows, g], n_above[rows, g], quadratics[rows, g] = found
        return error, n_above, quadratics

    def fit(
        self, eta: Any, cost: Any, measure: Any, exposure: Any, cap: float, *, straight: bool
    ) -> tuple[Any, Any, Any]:
        """Return error, zeros above the cap, and coefficients, as ``cpp/zeros.hpp`` does."""
        w = torch.where((measure >= 0.0) & (measure <= cap), exposure, 0.0)
        (center, scale), any_number = _standard(eta, w), torch.full_like(w[:, :1], torch.inf)
        # least squares correct an expansion, so that nothing is lost where all eta are nearly equal
        level, slope = (center, torch.ones_like(center)) if self.identity else (center.expm1(), center.exp())
        curve = 0.0 * slope if self.identity else 0.5 * slope
        d = eta - center
        x, rest = d / scale, cost - (level + d * (slope + curve * d))
        basis = [torch.ones_like(x), x, x * x]
        least, most = [-any_number, -any_number, -curve * scale**2], [any_number] * 3
        if self.dispersion is not None:
            t, concave = exposure.expand(eta.shape), -0.5 * self.dispersion[:, None]
            (middle, spread), square = _standard(t, w), t * eta * eta
            unit = _mean(square**2, w).sqrt().clamp(1e-100)
            basis, rest = [*basis, (t - middle) / spread, square / unit], rest - concave * square
            flattest, largest = 0.0 if straight else FLATTEST, -STEEPEST * slope**2 * concave
            least[1], most[1] = ((times - 1.0) * slope * scale for times in (flattest, STEEPEST))
            most[2] = 0.0 * slope if self.identity else (STEEPEST * slope - curve) * scale**2
            most_concave = 0.0 if straight else _most_concave(eta, exposure, w, square).minimum(largest)
            least += [-any_number, (-most_concave - concave) * unit]
            most += [any_number, -concave * unit]
        found = _bounded(*_normal_equations(w, basis, rest), torch.cat(least, 1), torch.cat(most, 1))
        linear, a2 = found[:, 1:2] / scale + slope, (found[:, 2:3] / scale**2 + curve).clamp(0.0)
        a0 = found[:, :1] + level - center * (linear - center * a2)
        parts = [a0, linear - 2.0 * center * a2, a2]
        if self.dispersion is not None:
            by_t, b2 = found[:, 3:4] / spread, found[:, 4:] / unit + concave
            b2 = torch.where(b2 > 1e-12 * concave, 0.0, b2)  # smaller ones are rounding errors
            parts = [a0 - middle * by_t, *parts[1:], by_t, b2]
        quadratics = torch.cat(parts, 1)
        off = cost - _polynomial(eta, exposure, quadratics)
        return (w * off.abs_()).sum(1), (measure > cap).sum(1).double(), quadratics


def _polynomial(eta: Any, t: Any, quadratics: Any) -> Any:
    a0, a1, a2, *by_t = quadratics[:, :, None].unbind(1)
    value = a0 + eta * (a1 + a2 * eta)
    return value + t * (by_t[0] + by_t[1] * eta * eta) if by_t else value


def _mean(x: Any, w: Any) -> Any:
    """Weighed mean of every feature, 0 without weights."""
    total = w.sum(1, keepdim=True)
    return (w * x).sum(1, keepdim=True) / torch.where(total > 0.0, total, 1.0)


def _standard(x: Any, w: Any) -> tuple[Any, Any]:
    """Weighed mean and standard deviation of every feature; the latter is never zero."""
    mean = _mean(x, w)
    return mean, torch.maximum(_mean((x - mean) ** 2, w).sqrt(), 1e-7 * (1.0 + mean.abs()))


def _most_concave(eta: Any, exposure: Any, w: Any, square: Any) -> Any:
    """How concave a feature may be; see `log1pnmf.model.zeros.MOST_BENT`."""
    widest = (w * eta).amax(1, keepdim=True)
    largest = (exposure * torch.maximum(eta, -1.0 - eta)).amax(1, keepdim=True)  # see `_leave_out`
    of_all = MOST_OF_ALL * (w * eta).sum(1, keepdim=True) / (w * square).sum(1, keepdim=True)
    most = torch.minimum(0.5 * MOST_BENT / widest, LARGEST_BEND / largest**2)
    return torch.where(widest > 0.0, torch.minimum(most, 0.5 * of_all), 0.0)


def _normal_equations(w: Any, basis: list[Any], rest: Any) -> tuple[Any, Any]:
    A, right = w.new_empty((len(w), len(basis), len(basis))), w.new_empty((len(w), len(basis)))
    for i, one in enumerate(basis):
        weighed = w * one
        right[:, i] = (weighed * rest).sum(1)
        for k, other in enumerate(basis[: i + 1]):
            A[:, i, k] = A[:, k, i] = (weighed * other).sum(1)
    return A, right


def _bounded(A: Any, right: Any, least: Any, most: Any) -> Any:
    """Solve normal equations; values out of bounds are set to the nearest one, the others solved again."""
    fixed, value = least == most, torch.where(least == most, least, 0.0)
    for _ in range(4):
        found = _solve(A, right, fixed, value)
        inside = torch.minimum(torch.maximum(found, least), most)
        out = ~fixed & (inside != found)
        if not bool(out.any()):
            break
        fixed, value = fixed | out, torch.where(out, inside, value)
    return found


def _solve(A: Any, right: Any, fixed: Any, value: Any) -> Any:
    """Solve normal equations that are made solvable by a tiny ridge, as ``cpp/zeros.hpp`` has it."""
    diagonal, total = torch.diagonal(A, dim1=1, dim2=2), A[:, 0, 0, None]
    ridge = RIDGE * diagonal + RIDGE * total + 1e-300
    ridge[:, 0] = 1e-300
    A = A + torch.diag_embed(ridge)
    # a feature without zeros below the cap has only the ridge, which would overflow
    A = torch.where(total[:, :, None] > 0.0, A, torch.eye(A.shape[1], dtype=A.dtype, device=A.device))
    right = torch.where(fixed, value, right - (A * value[:, None]).sum(2))
    free = ~fixed
    A = torch.where(free[:, :, None] & free[:, None], A, torch.diag_embed(fixed.to(A.dtype)))
    return torch.linalg.solve(A, right)
