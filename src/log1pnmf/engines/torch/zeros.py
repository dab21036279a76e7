"""Zero entries and the quadratics that stand in for them, in blocks of features of a bounded size.

It computes what ``cpp/zeros.hpp`` and `log1pnmf.model.zeros.survey_feature` do; always in float64.
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
from log1pnmf.engines.torch import dispersed_zeros
from log1pnmf.engines.torch import terms as dense
from log1pnmf.model.link import LARGEST_ETA
from log1pnmf.model.zeros import ZeroSurvey, surveyed_every

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
    noise: dispersed_zeros.Noise | None = None  # dispersions of the features; None with Poisson noise

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
        """How many samples one stands for, where of `every` so many one is looked at."""
        return len(self.loadings) / max(1, len(self.loadings[::every]))

    def _eta(self, stored: DevicePattern | None = None, *, every: int = 1) -> Iterator[tuple[slice, Any]]:
        """Lay out eta of some features at a time, of `every` so many samples one.

        It is -1 where there is a count, or a zero that is visited.
        """
        design = self.loadings[::every].T
        size = max(1, dense.DENSE_BYTES[self.factors.device.type] // (8 * max(1, design.shape[1])))
        for block in self.rows.blocks():
            visited = None if stored is None else stored.of(block)
            for start in range(0, block.n_rows, size):
                stop = min(start + size, block.n_rows)
                at = slice(block.first + start, block.first + stop)
                eta = self.factors[at] @ design
                for entries in (block, visited):
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
    """Error, zeros above the cap and quadratics of many features, as `survey_feature` gives them for one."""
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
