"""Zero entries and the quadratics that replace them, in blocks of features of a bounded size.

It computes what ``cpp/zeros.hpp`` does; always in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

from log1pnmf._common.arrays import on_host
from log1pnmf.counts.compress import Pattern
from log1pnmf.engines.torch import terms as dense
from log1pnmf.model.link import LARGEST_ETA
from log1pnmf.model.zeros import (
    FLATTEST,
    LARGEST_BEND,
    MOST_BENT,
    MOST_OF_ALL,
    STEEPEST,
    ZeroSurvey,
    surveyed_every,
)

from .rows import Block, DevicePattern, DeviceRows, Stored, TensorPattern


@dataclass(frozen=True, eq=False)
class Exposure:
    """Exposures of all entries, features x samples."""

    samples: Any
    batch: Any  # (n,): number of the batch of every sample
    features: Any  # (m, batches): what the exposure of a sample is multiplied by, where there are batches

    def at(self, features: slice, every: int = 1) -> Any:
        """Return those of some features, of `every` so many samples one; a single line without batches."""
        samples = self.samples[::every].contiguous()
        if self.batch is None:
            return samples
        return self.features[features][:, self.batch[::every].long()].mul_(samples)


@dataclass(frozen=True, eq=False)
class Zeros:
    """The zeros at one point, features x samples."""

    features: ModuleType  # has `survey` and `errors`: this one or `log1pnmf.engines.torch.kernels`
    rows: DeviceRows  # counts of the features
    exposure: Exposure
    loadings: Any
    factors: Any
    noise: Noise | None = None  # dispersions of the features; None with Poisson noise

    def survey(self, caps: np.ndarray, *, straight: bool = False) -> ZeroSurvey:
        """See `Engine.survey_zeros`."""
        error, n_above = self.factors.new_empty((2, len(self.factors), len(caps)))
        width = 3 if self.noise is None else 5
        quadratics = self.factors.new_empty((len(self.factors), len(caps), width))
        every = surveyed_every(len(self.loadings))
        for at, eta in self._eta(every=every):
            exposure = self.exposure.at(at, every)
            if self.noise is None:
                found = self.features.survey(eta, exposure, caps)
            else:
                found = self.noise.at(at).survey(eta, exposure, caps, straight=straight)
            error[at], n_above[at], quadratics[at] = found
        all_of = self._share(every)
        return ZeroSurvey(caps, on_host(all_of * error), on_host(all_of * n_above), on_host(quadratics))

    def collect(self, caps: np.ndarray) -> tuple[Pattern, np.ndarray]:
        """See `Engine.collect_zeros`."""
        limits = torch.as_tensor(caps, device=self.factors.device)[:, None]
        exposure, n_above, samples = [], [], []
        for at, eta in self._eta():
            t = self.exposure.at(at)
            measure = eta if self.noise is None else self.noise.at(at).costs(eta, t)[1]
            above = measure > limits[at]
            n_above.append(above.sum(1))
            samples.append(torch.nonzero(above)[:, 1].int())
            others = torch.where((eta >= 0.0) & ~above, t, 0.0)
            exposure.append(torch.stack([others.sum(1), (others * t).sum(1)], 1))
        indptr = np.concatenate(([0], np.cumsum(on_host(torch.cat(n_above))))).astype(np.int64)
        shape = (len(self.factors), len(self.loadings))
        return TensorPattern(shape, indptr, torch.cat(samples)), on_host(torch.cat(exposure))

    def errors(
        self, quadratics: np.ndarray, stored: DevicePattern | None, *, every: int = 1
    ) -> tuple[float, float]:
        """See `Engine.zero_errors`; of `every` so many samples one."""
        a = torch.as_tensor(quadratics, device=self.factors.device)
        total = a.new_zeros(2)
        for at, eta in self._eta(stored, every=every):
            found = self.features if self.noise is None else self.noise.at(at)
            total += found.errors(eta, self.exposure.at(at, every), a[at])
        signed, absolute = (self._share(every) * total).tolist()
        return signed, absolute

    def _share(self, every: int) -> float:
        """How many samples one stands for, where of `every` so many one is evaluated."""
        return len(self.loadings) / max(1, len(self.loadings[::every]))

    def _eta(self, stored: DevicePattern | None = None, *, every: int = 1) -> Iterator[tuple[slice, Any]]:
        """Lay out eta of some features at a time, of `every` so many samples one.

        It is -1 where there is a count, or an exact zero.
        """
        design = self.loadings[::every].T
        size = max(1, dense.DENSE_BYTES[self.factors.device.type] // (8 * max(1, design.shape[1])))
        for block in self.rows.blocks():
            exact = None if stored is None else stored.of(block)
            for start in range(0, block.n_rows, size):
                stop = min(start + size, block.n_rows)
                at = slice(block.first + start, block.first + stop)
                eta = self.factors[at] @ design
                for entries in (block, exact):
                    if entries is not None:
                        _leave_out(eta, entries, start, stop, every)
                yield at, eta


def _leave_out(eta: Any, entries: Block | Stored, start: int, stop: int, every: int) -> None:
    """Put -1 - eta at the entries of rows `start` to `stop`; of `every` so many columns eta has one."""
    indptr = entries.indptr[start : stop + 1]
    first, last = indptr[[0, -1]].tolist()
    columns = entries.indices[first:last]
    if every > 1:
        seen = torch.nonzero(columns % every == 0)[:, 0]
        rows = torch.searchsorted(indptr, seen + first, right=True) - 1
        columns = columns[seen] // every
    else:
        rows = torch.repeat_interleave(torch.arange(stop - start, device=eta.device), indptr.diff())
    columns = columns.long()
    eta[rows, columns] = -1.0 - eta[rows, columns]


def survey(eta: Any, exposure: Any, caps: np.ndarray) -> tuple[Any, Any, Any]:
    """Survey some features."""
    error, n_above = eta.new_empty((2, len(eta), len(caps)))
    quadratics = eta.new_empty((len(eta), len(caps), 3))
    rows, largest = torch.arange(len(eta), device=eta.device), eta.amax(1)
    em = torch.expm1(eta.clamp(max=LARGEST_ETA))
    for g, cap in enumerate(caps):
        if g > 0:  # the same as for the last cap, where no entry lies between the two
            for out in (error, n_above, quadratics):
                out[:, g] = out[:, g - 1]
            more = largest > caps[g - 1]
            if not bool(more.all()):
                rows, eta, em, largest = (one[more] for one in (rows, eta, em, largest))
                exposure = exposure if exposure.ndim == 1 else exposure[more]
        if len(rows):
            error[rows, g], n_above[rows, g], quadratics[rows, g] = _survey(eta, em, exposure, float(cap))
    return error, n_above, quadratics


def errors(eta: Any, exposure: Any, quadratics: Any) -> Any:
    """Sum up how far the quadratics are off: as it is, and without regard to the sign."""
    t = torch.where(eta >= 0.0, exposure, 0.0)
    off = t * (torch.expm1(eta.clamp(max=LARGEST_ETA)) - _polynomial(eta, quadratics))
    return torch.stack([off.sum(), off.abs_().sum()])


def _survey(eta: Any, em: Any, exposure: Any, cap: float) -> tuple[Any, Any, Any]:
    """Error, zeros above the cap and quadratics of many features."""
    w = torch.where((eta >= 0.0) & (eta <= cap), exposure, 0.0)
    total = w.sum(1)
    some = torch.where(total > 0.0, total, 1.0)
    mean = (w * eta).sum(1) / some
    d = eta - mean[:, None]
    scale = torch.maximum(((w * d * d).sum(1) / some).sqrt(), 1e-7 * (1.0 + mean))
    level, slope = torch.expm1(mean), torch.exp(mean)
    rest = em - (level[:, None] + slope[:, None] * d * (1.0 + 0.5 * d))
    x = d.div_(scale[:, None])
    moments, pulls, power = [], [], w.clone()
    for i in range(5):
        moments.append(power.sum(1))
        if i < 3:
            pulls.append((power * rest).sum(1))
        power.mul_(x)
    by = _solve(moments, torch.stack(pulls, 1))
    linear = slope + by[:, 1] / scale
    square = (0.5 * slope + by[:, 2] / scale**2).clamp(min=0.0)
    constant = level + by[:, 0] - mean * (linear - mean * square)
    quadratics = torch.stack([constant, linear - 2.0 * mean * square, square], 1)
    off = em - _polynomial(eta, quadratics)
    return (w * off.abs_()).sum(1), (eta > cap).sum(1).double(), quadratics


def _solve(moments: list[Any], right: Any) -> Any:
    """Solve the normal equations of quadratics, made solvable by a tiny ridge."""
    A = torch.stack([torch.stack(moments[i : i + 3], 1) for i in range(3)], 1)
    diagonal = torch.diagonal(A, dim1=1, dim2=2)
    diagonal += 1e-9 * diagonal + 1e-9 * moments[0][:, None] + 1e-300
    # a feature without zeros below the cap has only the ridge, which would overflow
    A[moments[0] == 0.0] = torch.eye(3, dtype=A.dtype, device=A.device)
    return torch.linalg.solve(A, right)


def _polynomial(eta: Any, quadratics: Any) -> Any:
    a0, a1, a2 = quadratics[:, :, None].unbind(1)
    return a0 + eta * (a1 + a2 * eta)


# ---------- zeros with negative binomial noise

RIDGE = 1e-9


@dataclass(frozen=True, eq=False)
class Noise:
    """Dispersions of some features."""

    dispersion: Any
    identity: bool  # whether the link is the identity

    def at(self, features: slice) -> Noise:
        """Return those of some features."""
        return Noise(self.dispersion[features], self.identity)

    def costs(self, eta: Any, exposure: Any) -> tuple[Any, Any]:
        """Return what zeros cost over t, and the measure that is held against caps; it is -1 beside zeros."""
        em = eta if self.identity else torch.expm1(eta.clamp(max=LARGEST_ETA))
        x = self.dispersion[:, None] * exposure * em
        cost = em * torch.where(x == 0.0, 1.0, torch.log1p(x) / torch.where(x == 0.0, 1.0, x))
        measure = x if self.identity else torch.maximum(eta, x)
        there = eta >= 0.0
        return torch.where(there, cost, 0.0), torch.where(there, measure, -1.0)

    def survey(
        self, eta: Any, exposure: Any, caps: np.ndarray, *, straight: bool = False
    ) -> tuple[Any, Any, Any]:
        """Survey the features; see `survey`."""
        cost, measure = self.costs(eta, exposure)
        how: dict[str, Any] = {"noise": self, "straight": straight}
        found = [_survey_dispersed(eta, cost, measure, exposure, float(cap), **how) for cap in caps]
        error, n_above, quadratics = (torch.stack(one, 1) for one in zip(*found, strict=True))
        return error, n_above, quadratics

    def errors(self, eta: Any, exposure: Any, quadratics: Any) -> Any:
        """Sum up how far the quadratics are off: as it is, and without regard to the sign."""
        cost, measure = self.costs(eta, exposure)
        off = torch.where(measure >= 0.0, exposure, 0.0) * (
            cost - _dispersed_polynomial(eta, exposure, quadratics)
        )
        return torch.stack([off.sum(), off.abs_().sum()])


def _survey_dispersed(
    eta: Any, cost: Any, measure: Any, exposure: Any, cap: float, *, noise: Noise, straight: bool
) -> tuple[Any, Any, Any]:
    """Error, zeros above the cap, and coefficients."""
    w = torch.where((measure >= 0.0) & (measure <= cap), exposure, 0.0)
    t = exposure.expand(eta.shape)
    (center, scale), (middle, spread) = _standard(eta, w), _standard(t, w)
    level, slope = (center, torch.ones_like(center)) if noise.identity else (center.expm1(), center.exp())
    curve, bent = 0.0 * slope if noise.identity else 0.5 * slope, -0.5 * noise.dispersion[:, None]
    d, square = eta - center, t * eta * eta
    total = w.sum(1, keepdim=True)
    unit = ((w * square**2).sum(1, keepdim=True) / torch.where(total > 0.0, total, 1.0)).sqrt().clamp(1e-100)
    x, rest = d / scale, cost - (level + d * (slope + curve * d)) - bent * square
    basis = (torch.ones_like(x), x, x * x, (t - middle) / spread, square / unit)
    A, right = w.new_empty((len(w), 5, 5)), w.new_empty((len(w), 5))
    for i, one in enumerate(basis):
        weighed = w * one
        right[:, i] = (weighed * rest).sum(1)
        for k, other in enumerate(basis[: i + 1]):
            A[:, i, k] = A[:, k, i] = (weighed * other).sum(1)
    widest = (w * eta).amax(1, keepdim=True)
    largest = (exposure * torch.maximum(eta, -1.0 - eta)).amax(1, keepdim=True)  # see `_leave_out`
    most_bent = torch.minimum(0.5 * MOST_BENT / widest, LARGEST_BEND / largest**2)
    of_all = MOST_OF_ALL * (w * eta).sum(1, keepdim=True) / (w * square).sum(1, keepdim=True)
    most_bent = torch.minimum(torch.minimum(most_bent, 0.5 * of_all), -STEEPEST * slope**2 * bent)
    least_bent = torch.where((widest > 0.0) & (not straight), -most_bent, 0.0)
    least, most = torch.full_like(right, -torch.inf), torch.full_like(right, torch.inf)
    flattest = 0.0 if straight else FLATTEST
    least[:, 1:2], most[:, 1:2] = ((times - 1.0) * slope * scale for times in (flattest, STEEPEST))
    least[:, 2:3], most[:, 2:3] = -curve * scale**2, (STEEPEST * slope - curve) * scale**2
    least[:, 4:], most[:, 4:] = (least_bent - bent) * unit, -bent * unit
    if noise.identity:
        most[:, 2] = 0.0
    found = _bounded(A, right, least, most)
    linear, by_t = found[:, 1:2] / scale + slope, found[:, 3:4] / spread
    a2 = (found[:, 2:3] / scale**2 + curve).clamp(0.0)
    a0 = found[:, :1] + level - center * (linear - center * a2) - middle * by_t
    b2 = found[:, 4:] / unit + bent
    b2 = torch.where(b2 > 1e-12 * bent, 0.0, b2)  # the rest is rounding
    quadratics = torch.cat([a0, linear - 2.0 * center * a2, a2, by_t, b2], 1)
    off = cost - _dispersed_polynomial(eta, exposure, quadratics)
    return (w * off.abs_()).sum(1), (measure > cap).sum(1).double(), quadratics


def _standard(x: Any, w: Any) -> tuple[Any, Any]:
    """Weighed mean and standard deviation of every feature; the latter is never zero."""
    total = w.sum(1, keepdim=True)
    some = torch.where(total > 0.0, total, 1.0)
    mean = (w * x).sum(1, keepdim=True) / some
    variance = (w * (x - mean) ** 2).sum(1, keepdim=True) / some
    return mean, torch.maximum(variance.sqrt(), 1e-7 * (1.0 + mean.abs()))


def _bounded(A: Any, right: Any, least: Any, most: Any) -> Any:
    """Solve normal equations; what is out of its bounds is set to the next one, and the rest solved again."""
    fixed, value = least == most, torch.where(least == most, least, 0.0)
    for _ in range(3):
        found = _solve_free(A, right, fixed, value)
        inside = torch.minimum(torch.maximum(found, least), most)
        out = ~fixed & (inside != found)
        fixed, value = fixed | out, torch.where(out, inside, value)
    return _solve_free(A, right, fixed, value)


def _solve_free(A: Any, right: Any, fixed: Any, value: Any) -> Any:
    """Solve normal equations that are made solvable by a tiny ridge, as ``cpp/zeros.hpp`` has it."""
    diagonal, total = torch.diagonal(A, dim1=1, dim2=2), A[:, 0, 0, None]
    ridge = RIDGE * diagonal + RIDGE * total + 1e-300
    ridge = torch.where(torch.arange(5, device=A.device) == 0, 1e-300, ridge)
    A = A + torch.diag_embed(ridge)
    # a feature without zeros below the cap has only the ridge, which would overflow
    A = torch.where(total[:, :, None] > 0.0, A, torch.eye(5, dtype=A.dtype, device=A.device))
    right = torch.where(fixed, value, right - (A * value[:, None]).sum(2))
    free = ~fixed
    A = torch.where(free[:, :, None] & free[:, None], A, torch.diag_embed(fixed.to(A.dtype)))
    return torch.linalg.solve(A, right)


def _dispersed_polynomial(eta: Any, t: Any, quadratics: Any) -> Any:
    a0, a1, a2, b0, b2 = quadratics[:, :, None].unbind(1)
    return a0 + eta * (a1 + a2 * eta) + t * (b0 + b2 * eta * eta)
