"""Negative binomial noise: what entries add to the loss and its derivatives, in plain PyTorch.

With the mean ``t em`` and ``D = 1 + phi t em``, everything is what ``cpp/policies.hpp`` has: derivatives are
Poisson's over D, and weights are never below the second derivative and never negative.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["count_terms", "rise_terms", "zero_terms"]


def zero_terms(em: Any, t: Any, phi: Any, *, identity: bool) -> tuple[Any, Any, Any]:
    """Loss, residual and weight of a zero: of every entry, whatever its count."""
    mean = t * em
    x = phi * mean
    residual = (t if identity else mean + t) / (1.0 + x)
    return mean * _log1p_ratio(x), residual, torch.zeros_like(residual) if identity else residual


def count_terms(y: Any, em: Any, t: Any, phi: Any, *, identity: bool) -> tuple[Any, Any, Any]:
    """Loss, residual and weight that a count has beyond a zero."""
    inverse, x = 1.0 / em, phi * t * em
    ratio = 1.0 / (1.0 + x)
    pull = y * (inverse if identity else 1.0 + inverse)
    push = t * torch.ones_like(em) if identity else t * em + t
    weight = ratio * (pull * inverse + (pull - push).clamp(min=0.0) * (phi * push) * ratio)
    return y * (torch.log1p(x) - torch.log(em)), -pull * ratio, weight


def rise_terms(em: Any, rise: Any, t: Any, phi: Any) -> tuple[Any, Any]:
    """Change of the loss of a zero, and of ``log(D)``, where `em` rises."""
    part = t * rise / (1.0 + phi * t * em)
    z = (phi * part).clamp(min=-1.0 + 1e-7)
    return part * _log1p_ratio(z), torch.log1p(z)


def _log1p_ratio(x: Any) -> Any:
    """``log(1 + x) / x``, 1 at 0."""
    return torch.where(x == 0.0, 1.0, torch.log1p(x) / torch.where(x == 0.0, 1.0, x))
