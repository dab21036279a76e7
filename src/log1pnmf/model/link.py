"""The shifted-log link ``b = alpha_c log(1 + lam / c)`` and its limit, the identity (``c = inf``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ShiftedLog"]


@dataclass(frozen=True)
class ShiftedLog:
    """Shifted-log link with shift ``c``; ``c = inf`` is the identity link.

    Parameters
    ----------
    c : float
        Positive, or inf. Small values make parts multiply, large values make them add up.

    Notes
    -----
    Three scales are in use: the rate ``lam``, the link scale ``b = link(lam)`` that users see, and
    ``eta = b / alpha`` on which everything is computed.
    """

    c: float

    def __post_init__(self) -> None:
        given: object = self.c
        if isinstance(given, bool | np.bool_) or not isinstance(given, Real):
            raise TypeError(f"c must be a number (positive or inf), got {given!r}")
        c = float(given)
        if not c > 0:
            raise ValueError(f"c must be positive or inf, got {c}")
        object.__setattr__(self, "c", c)

    @property
    def name(self) -> str:
        """What engines call it: "identity" or "shifted_log"."""
        return "identity" if self.is_identity else "shifted_log"

    @property
    def is_identity(self) -> bool:
        """Whether the link is the identity."""
        return math.isinf(self.c)

    @property
    def alpha(self) -> float:
        """The factor between the link scale and the eta scale: ``max(1, c)``, 1 for the identity."""
        return 1.0 if self.is_identity else max(1.0, self.c)

    @property
    def exposure_scale(self) -> float:
        """What multiplies the size factors in the exposure ``t``: ``c``, 1 for the identity."""
        return 1.0 if self.is_identity else self.c

    def link(self, lam: ArrayLike) -> NDArray[np.float64]:
        """Rate to link scale, ``alpha * log1p(lam / c)``."""
        lam = np.asarray(lam, dtype=np.float64)
        return lam if self.is_identity else self.alpha * np.log1p(lam / self.c)

    def inverse(self, b: ArrayLike) -> NDArray[np.float64]:
        """Link scale to rate, ``c * expm1(b / alpha)``."""
        return self.mean(np.asarray(b, dtype=np.float64) / self.alpha)

    def mean(self, eta: ArrayLike) -> NDArray[np.float64]:
        """Eta scale to rate, ``c * expm1(eta)``; ``eta`` itself for the identity."""
        eta = np.asarray(eta, dtype=np.float64)
        return eta if self.is_identity else self.exposure_scale * np.expm1(eta)
