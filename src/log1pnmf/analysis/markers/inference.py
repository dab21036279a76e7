"""From likelihoods to standard errors, tests and intervals, with non-negative effects.

**Which coordinates count.** An effect at its bound (zero) is not estimated but pinned: the others' errors
come from the information without it. That is also right when its true value is zero. Let S be the gradient
of the log-likelihood at the truth and H the information: the unbounded estimate of the pinned effect is
``(H^-1 S)_l``, which is uncorrelated with ``S_k``, so whether it is pinned says nothing about the estimate
of k without it.

**Test of "no effect" against a positive one.** ``z`` is the smaller of two, each of which is standard normal
in large samples without an effect:

- the signed root of twice the log-likelihood ratio against the best fit without the factor (the null law of
  the ratio is half a point mass at zero and half a chi-square, whose root is half a normal). It sees whether
  other factors could have explained the counts: where few samples are without the factor, a feature that by
  chance has no count there has a tiny standard error, but still a small ratio.
- the estimate over its standard error (Wald). It sees how many counts there are: where samples have no other
  factor the mean without it is zero, and a single count would make the ratio infinite.

Rejecting where both do keeps the level. An effect at its bound has the (negative) score statistic instead,
so p-values fill the whole of (0, 1). Loadings are non-negative, so all entries of H are. With two factors
estimates are then negatively correlated, and a nuisance effect at its bound makes the test conservative,
not liberal; simulations with more (docs/markers.md) agree.

**Net effects.** That a feature has an effect of factor k does not say that it changes with k: where samples
with the factor have less of the others (a treatment under which the baseline loading falls), every feature
that does not change needs an effect of k to make up for it. The net effect is the slope of
``alpha_c log(1 + rate / c)`` on the loading k across the samples: with ``s_l`` the slope of loading l on
loading k, ``f_k + sum_l s_l f_l``. It may be negative. Its ``z`` is its Wald statistic, or that of the
effect itself where it is smaller: what changes only because another factor comes along is not counted.

**Overdispersion.** The sandwich ``H^-1 J H^-1``, with J the sum of the outer products of the samples'
gradients, is right for any variance of the counts; gradients are corrected for leverage, see
`log1pnmf.analysis.markers.regression.FeatureRegressions.scores`. The root of the likelihood ratio is divided
by the ratio of the two errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from .regression import FeatureRegressions

__all__ = ["ERRORS", "Z95", "Inference", "infer"]

Array = NDArray[np.float64]

ERRORS = ("model", "sandwich")
Z95 = float(norm.ppf(0.975))

AT_BOUND = 1e-9
"""Of a feature's largest effect: what is smaller counts as zero."""

RIDGE = 1e-10
"""Added to the information, scaled to a unit diagonal: what is not identified gets a huge error, not none."""


@dataclass(frozen=True, eq=False)
class Inference:
    """Errors and tests of all effects, on the eta scale; arrays of shape (m, K).

    Parameters
    ----------
    error : ndarray
        Standard error. At the bound: such that `Z95` of them reach the end of the interval.
    z : ndarray
        Standard normal, or smaller, without an effect.
    difference, difference_error : ndarray
        To the largest effect on the same feature in another factor; NaN with a single factor.
    nearest : ndarray of int
        Which factor that is; -1 with a single factor.
    net, net_error : ndarray
        Change with membership across the samples, where other loadings change as well.
    net_z : ndarray
        Of a positive net effect, as `z`; never above it.
    """

    error: Array
    z: Array
    difference: Array
    difference_error: Array
    nearest: NDArray[np.intp]
    net: Array
    net_error: Array
    net_z: Array


def infer(regressions: FeatureRegressions, effects: Array, *, errors: str) -> Inference:
    """Find standard errors and tests of the effects, which are at the maximum of the likelihood."""
    terms = regressions.terms(effects)
    free = effects > AT_BOUND * effects.max(axis=1, keepdims=True)
    scores = None
    if errors == "sandwich":
        scores = regressions.scores(effects, _inverse(terms.information, free))
        # as in the information: gradients say nothing of what is not identified, so its error would be none
        scores += RIDGE * terms.information * np.eye(effects.shape[1])
    empty = np.full((7, *effects.shape), np.nan)
    slopes = slopes_on_each(regressions.loadings)
    found = Inference(
        error=empty[0],
        z=empty[1],
        difference=empty[2],
        difference_error=empty[3],
        nearest=np.full(effects.shape, -1, dtype=np.intp),
        net=empty[4],
        net_error=empty[5],
        net_z=empty[6],
    )
    for k in range(effects.shape[1]):
        counted = free.copy()
        counted[:, k] = True
        model = _inverse(terms.information, counted)
        covariance = model if scores is None else model @ scores @ model
        ratio = np.sqrt(covariance[:, k, k] / model[:, k, k])
        at_bound = ~free[:, k]
        slope = np.maximum(terms.gradient[:, k], 0.0)
        error = np.sqrt(covariance[:, k, k])
        gain, estimated = np.zeros(len(effects)), np.flatnonzero(free[:, k])
        without = regressions.losses_without(k, effects, estimated)
        gain[estimated] = np.maximum(without - terms.loss[estimated], 0.0)
        z = np.minimum(effects[:, k] / error, np.sqrt(2.0 * gain) / ratio)
        found.z[:, k] = np.where(at_bound, -slope * np.sqrt(model[:, k, k]) / ratio, z)
        found.error[:, k] = np.where(at_bound, ratio * _upper_end(slope, model[:, k, k]) / Z95, error)
        found.net[:, k] = effects @ slopes[k]
        found.net_error[:, k] = np.sqrt(np.einsum("l,jlm,m->j", slopes[k], covariance, slopes[k]))
        net_z = np.divide(found.net[:, k], found.net_error[:, k])
        found.net_z[:, k] = np.minimum(net_z, found.z[:, k])
        if effects.shape[1] > 1:
            _compare(found, k, effects, covariance)
    return found


def slopes_on_each(loadings: Array) -> Array:
    """Slopes of all loadings (columns) on each of them (rows) across the samples; 1 for itself.

    Examples
    --------
    >>> slopes_on_each(np.array([[1.0, 0.0], [0.8, 1.0]])).round(2).tolist()
    [[1.0, -5.0], [-0.2, 1.0]]
    """
    centred = loadings - loadings.mean(axis=0)
    products = centred.T @ centred
    spread = np.diag(products)
    varies = spread > 1e-12 * np.einsum("ik,ik->k", loadings, loadings)
    slopes = np.divide(products, spread[:, None], out=np.zeros_like(products), where=varies[:, None])
    np.fill_diagonal(slopes, 1.0)
    return slopes


def _inverse(information: Array, counted: NDArray[np.bool_]) -> Array:
    """Invert the information of the coordinates that count; zeros elsewhere."""
    scale = np.sqrt(np.einsum("jkk->jk", information))
    scale = np.where(scale > 0.0, scale, 1.0)
    both = counted[:, :, None] & counted[:, None, :]
    unit = np.where(both, information / (scale[:, :, None] * scale[:, None, :]), 0.0)
    diagonal = np.einsum("jkk->jk", unit)
    diagonal += np.where(counted, RIDGE, 1.0)
    inverse = np.where(both, np.linalg.inv(unit), 0.0)
    return inverse / (scale[:, :, None] * scale[:, None, :])


def _upper_end(slope: Array, variance: Array) -> Array:
    """Where twice the loss has risen by ``Z95**2``, going up from the bound with this slope and curvature."""
    curvature = 1.0 / variance
    return Z95**2 / (slope + np.sqrt(slope**2 + Z95**2 * curvature))


def _compare(found: Inference, k: int, effects: Array, covariance: Array) -> None:
    """Compare factor k with the one that has the largest effect among the others."""
    others = effects.copy()
    others[:, k] = -np.inf
    nearest = others.argmax(axis=1)
    rows = np.arange(len(effects))
    found.nearest[:, k] = nearest
    found.difference[:, k] = effects[:, k] - effects[rows, nearest]
    variance = covariance[:, k, k] + covariance[rows, nearest, nearest] - 2.0 * covariance[rows, k, nearest]
    found.difference_error[:, k] = np.sqrt(np.maximum(variance, 0.0))
