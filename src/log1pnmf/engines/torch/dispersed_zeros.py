"""Zero entries with negative binomial noise, and the quadratics that stand in for them, in plain PyTorch.

It computes what ``cpp/zeros.hpp`` and `log1pnmf.model.zero_survey.survey_feature` do for many features at a
time; always in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from log1pnmf.model.link import LARGEST_ETA

__all__ = ["Noise"]

RIDGE = 1e-9


@dataclass(frozen=True, eq=False)
class Noise:
    """Dispersions of some features.

    Parameters
    ----------
    dispersion : Tensor of float64, shape (features,)
    identity : bool
        Whether the link is the identity.
    """

    dispersion: Any
    identity: bool

    def at(self, features: slice) -> Noise:
        """Give those of some features."""
        return Noise(self.dispersion[features], self.identity)

    def costs(self, eta: Any, exposure: Any) -> tuple[Any, Any]:
        """Give what zeros cost over t, and the measure that is held against caps; it is -1 beside zeros.

        Parameters
        ----------
        eta : Tensor of float64, shape (features, n)
            Negative where there is no zero.
        """
        em = eta if self.identity else torch.expm1(eta.clamp(max=LARGEST_ETA))
        x = self.dispersion[:, None] * exposure * em
        cost = em * torch.where(x == 0.0, 1.0, torch.log1p(x) / torch.where(x == 0.0, 1.0, x))
        measure = x if self.identity else torch.maximum(eta, x)
        there = eta >= 0.0
        return torch.where(there, cost, 0.0), torch.where(there, measure, -1.0)

    def survey(self, eta: Any, exposure: Any, caps: np.ndarray) -> tuple[Any, Any, Any]:
        """Survey the features; see `log1pnmf.engines.torch.zeros.survey`."""
        cost, measure = self.costs(eta, exposure)
        found = [_survey(eta, cost, measure, exposure, float(cap)) for cap in caps]
        error, n_above, quadratics = (torch.stack(one, 1) for one in zip(*found, strict=True))
        return error, n_above, quadratics

    def errors(self, eta: Any, exposure: Any, quadratics: Any) -> Any:
        """Sum up how far the quadratics are off: as it is, and without regard to the sign."""
        cost, measure = self.costs(eta, exposure)
        off = torch.where(measure >= 0.0, exposure, 0.0) * (cost - _polynomial(eta, exposure, quadratics))
        return torch.stack([off.sum(), off.abs_().sum()])


def _survey(eta: Any, cost: Any, measure: Any, exposure: Any, cap: float) -> tuple[Any, Any, Any]:
    """Error, zeros above the cap, and coefficients by least squares; the quadratic one is not negative."""
    w = torch.where((measure >= 0.0) & (measure <= cap), exposure, 0.0)
    t = exposure.expand(eta.shape)
    (center, scale), (middle, spread) = _standard(eta, w), _standard(t, w)
    x, by_t = (eta - center) / scale, (t - middle) / spread
    basis = (torch.ones_like(x), x, x * x, by_t, by_t * x)
    A, right = w.new_empty((len(w), 5, 5)), w.new_empty((len(w), 5))
    for i, one in enumerate(basis):
        weighed = w * one
        right[:, i] = (weighed * cost).sum(1)
        for k, other in enumerate(basis[: i + 1]):
            A[:, i, k] = A[:, k, i] = (weighed * other).sum(1)
    found = _solve(A, right)
    kept = torch.arange(5, device=A.device) != 2
    both, one = kept[:, None] & kept, torch.diag(~kept).to(A.dtype)
    convex = found[:, 2:3] >= 0.0
    found = torch.where(convex, found, _solve(torch.where(both, A, one), torch.where(kept, right, 0.0)))
    quadratics = _unscaled(found, (center, scale), (middle, spread))
    off = cost - _polynomial(eta, exposure, quadratics)
    return (w * off.abs_()).sum(1), (measure > cap).sum(1).double(), quadratics


def _standard(x: Any, w: Any) -> tuple[Any, Any]:
    """Weighed mean and standard deviation of every feature; the latter is never zero."""
    total = w.sum(1, keepdim=True)
    some = torch.where(total > 0.0, total, 1.0)
    mean = (w * x).sum(1, keepdim=True) / some
    variance = (w * (x - mean) ** 2).sum(1, keepdim=True) / some
    return mean, torch.maximum(variance.sqrt(), 1e-7 * (1.0 + mean.abs()))


def _solve(A: Any, right: Any) -> Any:
    """Solve normal equations that are made solvable by a tiny ridge, as ``cpp/zeros.hpp`` has it."""
    diagonal, total = torch.diagonal(A, dim1=1, dim2=2), A[:, 0, 0, None]
    ridge = RIDGE * diagonal + RIDGE * total + 1e-300
    ridge = torch.where(torch.arange(5, device=A.device) == 0, 1e-300, ridge)
    A = A + torch.diag_embed(ridge)
    # a feature without zeros below the cap has only the ridge, which would overflow
    A = torch.where(total[:, :, None] > 0.0, A, torch.eye(5, dtype=A.dtype, device=A.device))
    return torch.linalg.solve(A, right)


def _unscaled(found: Any, of_eta: tuple[Any, Any], of_t: tuple[Any, Any]) -> Any:
    """Coefficients of the standardised numbers to those of eta and t."""
    (middle, spread) = of_t
    by_t = torch.cat([found[:, 3:], torch.zeros_like(found[:, :1])], 1) / spread
    own = _powers(found[:, :3] - middle * by_t, *of_eta)
    return torch.cat([own, _powers(by_t, *of_eta)[:, :2]], 1)


def _powers(c: Any, center: Any, scale: Any) -> Any:
    linear, square = c[:, 1:2] / scale, c[:, 2:3] / scale**2
    constant = c[:, :1] - center * (linear - center * square)
    return torch.cat([constant, linear - 2.0 * center * square, square], 1)


def _polynomial(eta: Any, t: Any, quadratics: Any) -> Any:
    a0, a1, a2, b0, b1 = quadratics[:, :, None].unbind(1)
    return a0 + eta * (a1 + a2 * eta) + t * (b0 + b1 * eta)
