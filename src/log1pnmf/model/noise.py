"""How counts scatter around their means: the negative log-likelihood of an entry, and its derivatives.

The mean of an entry is ``t * em``, with the exposure ``t`` and ``em`` a function of eta. All
that a noise model needs of the link are its `log1pnmf.model.link.Derivatives`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.counts import Counts

from .link import Derivatives

__all__ = ["POISSON", "Noise", "Poisson"]

Array = NDArray[np.float64]


class Noise(Protocol):
    """Distribution of a count with a given mean; arrays broadcast against each other, features last."""

    @property
    def name(self) -> str:
        """What engines call it."""
        ...

    @property
    def zero_loss_is_mean(self) -> bool:
        """Whether a zero costs its mean: only then can a quadratic stand in for the zeros."""
        ...

    @property
    def n_features(self) -> int | None:
        """Number of features it has parameters for; None: the same for all."""
        ...

    @property
    def cost(self) -> float:
        """What its own parameters cost in the objective."""
        ...

    def of_features(self, which: Any) -> Noise:
        """Noise of some features (a number or an array of them), in that order."""
        ...

    def loss(self, y: Array, mean: Array) -> Array:
        """Negative log-likelihood of an entry but for a constant; inf where the count is impossible."""
        ...

    def gradient(self, y: Array, t: Array, at: Derivatives) -> Array:
        """Differentiate the loss in eta."""
        ...

    def curvature(self, y: Array, t: Array, at: Derivatives) -> Array:
        """Curvature for steps, not negative: the second derivative in eta, or what stands in for it."""
        ...

    def constant(self, counts: Counts) -> float:
        """Difference between the negative log-likelihood of all entries and the sum of their losses."""
        ...

    def plain_constant(self, counts: Counts) -> float:
        """Give the same for losses that leave out all terms in which the mean does not appear."""
        ...


@dataclass(frozen=True)
class Poisson:
    """Poisson counts. The loss is half the deviance: nothing cancels in it, however large the counts."""

    name = "poisson"
    zero_loss_is_mean = True
    n_features = None
    cost = 0.0

    def of_features(self, which: Any) -> Poisson:
        """Give itself: all features have the same noise."""
        return self

    def loss(self, y: Array, mean: Array) -> Array:
        """``mean - y - y * log(mean / y)``, and ``mean`` where ``y = 0``."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            own = np.where(y > 0, y, 1.0)
            excess = (mean - y) / own
            log_ratio = np.where(excess > -0.5, np.log1p(excess), np.log(mean / own))
            loss = np.where(y > 0, y * (excess - log_ratio), mean)
            return np.where(np.isinf(mean), np.inf, loss)

    def gradient(self, y: Array, t: Array, at: Derivatives) -> Array:
        """``t * em' - y * (log em)'``."""
        return t * at.slope - y / at.share

    def curvature(self, y: Array, t: Array, at: Derivatives) -> Array:
        """``t * em'' - y * (log em)''``."""
        return t * at.bend + y * at.share_slope / at.share**2

    def constant(self, counts: Counts) -> float:
        """Sum of ``log(y!) - y * log(y) + y``."""
        return counts.stirling

    def plain_constant(self, counts: Counts) -> float:
        """Sum of ``log(y!)``, for the loss ``mean - y log(mean)``."""
        return counts.log_factorial


POISSON = Poisson()
