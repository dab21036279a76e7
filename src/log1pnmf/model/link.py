"""The shifted-log link ``b = alpha_c log(1 + lam / c)`` and its limit, the identity (``c = inf``)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

SMALLEST_ETA, LARGEST_ETA = 1e-100, 500.0
"""Derivatives are taken at eta held inside this range: finite for any start, also at eta = 0 with a count."""


class Derivatives(NamedTuple):
    """Derivatives of ``em`` in eta; the mean of an entry is ``t * em``.

    slope, bend: the first and the second. share: ``em / slope``, so that ``1 / share`` is the derivative of
    ``log(em)``. share_slope: the derivative of share.
    """

    slope: Array
    bend: Array
    share: Array
    share_slope: Array


@dataclass(frozen=True)
class ShiftedLog:
    """Shifted-log link with shift ``c``; ``c = inf`` is the identity link.

    Parameters
    ----------
    c : float
        Positive, or inf. Small values make parts multiply, large values make them add up.

    Attributes
    ----------
    is_identity : bool
        Whether the link is the identity.
    alpha : float
        The factor between the link scale and the eta scale: ``max(1, c)``, 1 for the identity.
    exposure_scale : float
        What multiplies the size factors in the exposure ``t``: ``c``, 1 for the identity.
    name : str
        What engines call it: "identity" or "shifted_log".

    Notes
    -----
    Three scales are in use: the rate ``lam``, the link scale ``b = link(lam)`` that users see, and
    ``eta = b / alpha`` on which everything is computed.
    """

    c: float
    is_identity: bool = field(init=False, repr=False, compare=False)
    alpha: float = field(init=False, repr=False, compare=False)
    exposure_scale: float = field(init=False, repr=False, compare=False)
    name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given: object = self.c
        if isinstance(given, bool | np.bool_) or not isinstance(given, Real):
            raise TypeError(f"c must be a number (positive or inf), got {given!r}")
        c = float(given)
        if not c > 0:
            raise ValueError(f"c must be positive or inf, got {c}")
        identity = math.isinf(c)
        own = (c, identity, 1.0 if identity else max(1.0, c), 1.0 if identity else c)
        for name, value in zip(("c", "is_identity", "alpha", "exposure_scale"), own, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "name", "identity" if identity else "shifted_log")

    def link(self, lam: ArrayLike) -> NDArray[np.float64]:
        """Rate to link scale, ``alpha * log1p(lam / c)``."""
        lam = np.asarray(lam, dtype=np.float64)
        return lam if self.is_identity else self.alpha * np.log1p(lam / self.c)

    def inverse(self, b: ArrayLike) -> NDArray[np.float64]:
        """Link scale to rate, ``c * expm1(b / alpha)``."""
        return self.mean(np.asarray(b, dtype=np.float64) / self.alpha)

    def mean(self, eta: ArrayLike) -> NDArray[np.float64]:
        """Eta scale to rate, ``c * expm1(eta)``; ``eta`` itself for the identity."""
        return self.em(eta) if self.is_identity else self.exposure_scale * self.em(eta)

    def em(self, eta: ArrayLike) -> NDArray[np.float64]:
        """Mean of an entry over its exposure, ``expm1(eta)``; ``eta`` itself for the identity."""
        eta = np.asarray(eta, dtype=np.float64)
        return eta if self.is_identity else np.expm1(eta)

    def derivatives(self, eta: ArrayLike) -> Derivatives:
        """Differentiate `em` at eta within ``[SMALLEST_ETA, LARGEST_ETA]``; the identity has no upper end."""
        eta = np.asarray(eta, dtype=np.float64)
        if self.is_identity:
            one = np.ones_like(eta)
            return Derivatives(one, np.zeros_like(eta), np.maximum(eta, SMALLEST_ETA), one)
        inside = np.clip(eta, SMALLEST_ETA, LARGEST_ETA)
        exp = np.exp(inside)
        return Derivatives(exp, exp, -np.expm1(-inside), np.exp(-inside))
