"""Negative binomial counts: variance ``mean + dispersion * mean**2``, with a dispersion for every feature.

With the dispersion ``phi`` and ``r = 1 / phi`` the negative log-likelihood of a count is

    ``-y log(mean) + (y + r) log(1 + phi mean) + constant(y, phi)``.

Everything is written so that ``phi = 0`` is Poisson, and no digit is lost on the way there: ``log1p(x) / x``
in place of ``r log1p(phi mean)``, Stirling's series in place of differences of log-gammas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from log1pnmf.counts.counts import Counts
from log1pnmf.counts.factorial import LARGE, series, stirling

from .link import Derivatives
from .noise import POISSON
from .trend import Prior

__all__ = ["NegativeBinomial", "excess_constant", "log1p_ratio"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NegativeBinomial:
    """Negative binomial counts.

    The loss is half the deviance, 0 at ``mean = y``. In eta its gradient is Poisson's over ``1 + phi mean``.
    The curvature that is given for steps is Poisson's over ``1 + phi mean``, too. It is not that of the loss,
    which may be negative. It is never negative; at the true mean its expectation is the Fisher information,
    ``(dmean/deta)**2 / (mean (1 + phi mean))``; and where a count is zero it stays bounded as the mean goes
    to zero, which the Fisher information does not: a loading at zero could never leave it.

    Parameters
    ----------
    dispersion : array of shape (m,), or a number
        Not negative; 0 is Poisson. Features are the last axis of the entries that the methods get.
    prior : Prior, optional
        With which the dispersions were found, see `log1pnmf.model.dispersion`.

    Examples
    --------
    >>> noise = NegativeBinomial([0.0, 0.5])
    >>> noise.loss(np.array(3.0), np.array(1.0)).round(3).tolist()
    [1.296, 0.742]
    """

    dispersion: Array
    prior: Prior | None = None
    name = "negative binomial"
    zero_loss_is_mean = False

    def __post_init__(self) -> None:
        dispersion = np.array(self.dispersion, dtype=np.float64)
        if dispersion.ndim > 1 or not (np.isfinite(dispersion) & (dispersion >= 0.0)).all():
            raise ValueError(
                "dispersion must be numbers of at least 0, one for each feature; "
                f"got shape {dispersion.shape}, {np.nanmin(dispersion, initial=math.inf):g} to "
                f"{np.nanmax(dispersion, initial=-math.inf):g}, {int(np.isnan(dispersion).sum())} of them NaN"
            )
        dispersion.flags.writeable = False
        object.__setattr__(self, "dispersion", dispersion)

    @property
    def n_features(self) -> int | None:
        """Number of features it has a dispersion for; None where one number stands for all."""
        return len(self.dispersion) if self.dispersion.ndim else None

    @cached_property
    def cost(self) -> float:
        """What the prior adds to the objective."""
        return 0.0 if self.prior is None else float(self.prior.at(np.log(self.dispersion)).value.sum())

    def of_features(self, which: Any) -> NegativeBinomial:
        """Noise of some features, or of one entry of each."""
        return NegativeBinomial(self.dispersion[which]) if self.dispersion.ndim else self

    def loss(self, y: Array, mean: Array) -> Array:
        """``r log((mean + r) / (y + r)) + y log(1 + (y - mean) / (mean (1 + phi y)))``; inf if impossible."""
        phi = self.dispersion
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            beyond = (mean - y) / (1.0 + phi * y)
            ratio = (1.0 + phi * mean) / (1.0 + phi * y)
            shared = beyond * np.where(ratio < 0.5, np.log(ratio) / (ratio - 1.0), log1p_ratio(phi * beyond))
            part = beyond / mean
            own = y * np.where(part > 0.5, np.log(y / mean * ratio), np.log1p(-part))
            loss = np.where(y > 0, shared + own, shared)
            return np.where(np.isinf(mean) | ((y > 0) & (mean == 0)), np.inf, loss)

    def gradient(self, y: Array, t: Array, at: Derivatives) -> Array:
        """Poisson's over ``1 + phi mean``."""
        return POISSON.gradient(y, t, at) / self._variance_ratio(t, at)

    def curvature(self, y: Array, t: Array, at: Derivatives) -> Array:
        """Poisson's over ``1 + phi mean``: what stands in for the second derivative in steps."""
        return POISSON.curvature(y, t, at) / self._variance_ratio(t, at)

    def constant(self, counts: Counts) -> float:
        """Sum over the counts of what each costs at a mean of its own size."""
        y, phi = counts.tally.values, self._of_tally(counts)
        return float(np.sum(counts.tally.times * (stirling(y) + excess_constant(y, phi))))

    def plain_constant(self, counts: Counts) -> float:
        """Give the same for the loss ``-y log(mean) + (y + r) log(1 + phi mean)``."""
        y, phi = counts.tally.values, self._of_tally(counts)
        losses = y * (np.log1p(phi * y) + log1p_ratio(phi * y) - np.log(y))
        return self.constant(counts) - float(np.sum(counts.tally.times * losses))

    def _of_tally(self, counts: Counts) -> Array:
        """Dispersion of every entry of the tally."""
        return self.of_features(counts.tally.feature).dispersion

    def _variance_ratio(self, t: Array, at: Derivatives) -> Array:
        return 1.0 + self.dispersion * (t * at.share * at.slope)


def log1p_ratio(x: Array) -> Array:
    """``log(1 + x) / x``, 1 at 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x == 0.0, 1.0, np.log1p(x) / x)


def excess_constant(y: ArrayLike, phi: ArrayLike) -> Array:
    """Say what a count costs at a mean of its own size, beyond Poisson: about ``log(1 + phi y) / 2``.

    With ``S(y) = log(y!) - y log(y) + y`` it is ``log(1 + phi y) + S(r) - S(y + r)``.
    """
    y, phi = np.broadcast_arrays(np.asarray(y, dtype=np.float64), np.asarray(phi, dtype=np.float64))
    wide = phi * LARGE > 1.0  # r is small
    r = 1.0 / np.where(wide, phi, 1.0)
    log_ratio = np.log1p(phi * y)
    close = 0.5 * log_ratio + series(phi) - series(phi / (1.0 + phi * y))
    return np.where(wide, log_ratio + stirling(r) - stirling(y + r), close)
