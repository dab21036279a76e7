"""How a fit is shown: scale and order of the factors. The fit itself is not changed by it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.rows import Rows

from .fit import Fit

__all__ = ["NORMALIZATIONS", "Readout", "check_normalize", "evenness", "read_out", "shares"]

Array = NDArray[np.float64]

NORMALIZATIONS = ("max", "factor_max", "factor_sum", "none")

LEAST_BASELINE = 0.5
"""Part of the average share of the signal that a factor has to carry to be taken for the baseline."""


@dataclass(frozen=True, eq=False)
class Readout:
    """Order and scale in which the columns of a fit are shown.

    Column k of what is shown is column ``order[k]`` of the fit, the loadings divided and the factors
    multiplied by ``scale[k]``.

    Parameters
    ----------
    order : ndarray of int, shape (K,)
    scale : ndarray of shape (K,)
        Positive.
    """

    order: NDArray[np.intp]
    scale: Array

    def loadings(self, raw: Array) -> Array:
        """Bring loadings from the fit's own columns to those shown."""
        if isinstance(raw, np.memmap):  # of a streamed fit: not all of it at once
            return Rows(raw.shape, lambda start, stop: raw[start:stop][:, self.order] / self.scale).to_array()
        return raw[:, self.order] / self.scale

    def factors(self, raw: Array) -> Array:
        """Bring factors from the fit's own columns to those shown."""
        return raw[:, self.order] * self.scale


def read_out(fit: Fit, normalize: str) -> Readout:
    """Choose order and scale of a fit's columns.

    Parameters
    ----------
    fit : Fit
    normalize : {"max", "factor_max", "factor_sum", "none"}
        "max": the largest loading of every factor is 1 (memberships); "factor_max" and "factor_sum": the
        largest entry, or the sum, of every factor is 1; "none": the solver's own scale.

    Returns
    -------
    Readout
        The baseline comes first: column 0 of a penalised fit (it is the one without penalty), otherwise the
        factor with the most even loadings among those that carry at least half of the average share of the
        signal. The others follow by their share of the signal, largest first.

    Examples
    --------
    >>> from log1pnmf import fit_log1p_nmf
    >>> fit = fit_log1p_nmf([[4, 0, 2], [3, 1, 2], [0, 5, 2]], 2, tol=1e-4, random_state=0)
    >>> readout = read_out(fit, "max")
    >>> readout.loadings(fit.loadings).max(axis=0)
    array([1., 1.])
    """
    check_normalize(normalize)
    share, even = shares(fit.loadings, fit.factors), evenness(fit.loadings)
    if fit.settings["l1"] > 0:
        baseline = 0
    else:
        eligible = share >= LEAST_BASELINE * share.mean()
        baseline = int(np.argmax(np.where(eligible, even, -1.0)))
    by_share = np.argsort(-share, kind="stable")
    order = np.concatenate(([baseline], by_share[by_share != baseline]))
    if normalize == "max":
        scale = _or_one(fit.loadings.max(axis=0))
    elif normalize == "factor_max":
        scale = 1.0 / _or_one(fit.factors.max(axis=0))
    elif normalize == "factor_sum":
        scale = 1.0 / _or_one(fit.factors.sum(axis=0))
    else:
        scale = np.ones(fit.n_components)
    return Readout(order, scale[order])


def check_normalize(normalize: object) -> None:
    """Refuse what is not one of `NORMALIZATIONS`."""
    if not isinstance(normalize, str) or normalize not in NORMALIZATIONS:
        names = ", ".join(map(repr, NORMALIZATIONS))
        raise ValueError(f"normalize must be one of {names}, got {normalize!r}")


def shares(loadings: Array, factors: Array) -> Array:
    """Part of the fitted signal ``sum_ij (L F')_ij`` that each factor carries; they sum to 1."""
    signal = loadings.sum(axis=0) * factors.sum(axis=0)
    return signal / _or_one(signal.sum())


def evenness(loadings: Array) -> Array:
    """How evenly each factor is spread over the samples: ``(sum l)^2 / (n sum l^2)``, 1 where all are alike.

    A factor shared equally by some samples and absent from all others has the share of those samples.
    """
    largest = _or_one(loadings.max(axis=0))
    relative = loadings / largest
    return relative.sum(axis=0) ** 2 / (len(loadings) * _or_one((relative**2).sum(axis=0)))


def _or_one(values: Array) -> Array:
    return np.where(values > 0.0, values, 1.0)
