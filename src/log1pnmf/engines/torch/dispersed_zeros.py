"""Zero entries with negative binomial noise, and the quadratics that stand in for them, in plain PyTorch.

It computes what ``cpp/zeros.hpp`` and `log1pnmf.model.zeros.survey_feature` do for many features at a
time; always in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from log1pnmf.model.link import LARGEST_ETA
from log1pnmf.model.zeros import FLATTEST, LARGEST_BEND, MOST_BENT, MOST_OF_ALL, STEEPEST

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
        """Survey the features; see `log1pnmf.engines.torch.zeros.survey`."""
        cost, measure = self.costs(eta, exposure)
        how: dict[str, Any] = {"noise": self, "straight": straight}
        found = [_survey(eta, cost, measure, exposure, float(cap), **how) for cap in caps]
        error, n_above, quadratics = (torch.stack(one, 1) for one in zip(*found, strict=True))
        return error, n_above, quadratics

    def errors(self, eta: Any, exposure: Any, quadratics: Any) -> Any:
        """Sum up how far the quadratics are off: as it is, and without regard to the sign."""
        cost, measure = self.costs(eta, exposure)
        off = torch.where(measure >= 0.0, exposure, 0.0) * (cost - _polynomial(eta, exposure, quadratics))
        return torch.stack([off.sum(), off.abs_().sum()])


def _survey(
    eta: Any, cost: Any, measure: Any, exposure: Any, cap: float, *, noise: Noise, straight: bool
) -> tuple[Any, Any, Any]:
    """Error, zeros above the cap, and coefficients, as `survey_feature` gives them for one feature."""
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
    largest = (exposure * torch.maximum(eta, -1.0 - eta)).amax(1, keepdim=True)  # see `zeros._leave_out`
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
    off = cost - _polynomial(eta, exposure, quadratics)
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
        found = _solve(A, right, fixed, value)
        inside = torch.minimum(torch.maximum(found, least), most)
        out = ~fixed & (inside != found)
        fixed, value = fixed | out, torch.where(out, inside, value)
    return _solve(A, right, fixed, value)


def _solve(A: Any, right: Any, fixed: Any, value: Any) -> Any:
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


def _polynomial(eta: Any, t: Any, quadratics: Any) -> Any:
    a0, a1, a2, b0, b2 = quadratics[:, :, None].unbind(1)
    return a0 + eta * (a1 + a2 * eta) + t * (b0 + b2 * eta * eta)
