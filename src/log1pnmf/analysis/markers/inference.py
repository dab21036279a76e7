"""From likelihoods to one effect per factor and feature, its standard error and its test.

**The effect.** Does a feature rise with a factor, beyond what the other factors do? Compared are a typical
sample with the factor and the same sample in which the rest of its own mixture stands in for it
(`log1pnmf.fitting.ranking`). The effect is the difference of ``alpha_c log(1 + rate / c)`` between the two: a
contrast ``f_k - sum_l g_l f_l`` of the feature's coefficients, times the loading k of that sample, with ``g_l
>= 0``. It is zero for a feature that is the same in all samples, whose coefficients are not: where samples
with the factor have less of the baseline, such a feature needs a positive ``f_k`` to make up for it. A
feature that rises only because another factor comes along has ``f_k = 0``, and so no positive effect.

**Which coefficients count.** One at its bound (zero) is not estimated but pinned: the others' errors come
from the information without it. That is also right when its true value is zero. Let S be the gradient of the
log-likelihood at the truth and H the information: the unbounded estimate of the pinned coefficient is ``(H^-1
S)_l``, which is uncorrelated with ``S_k``, so whether it is pinned says nothing about the estimate of k.

**Test of "no effect" against a positive one.** ``z`` is the smaller of two, each of which is standard normal
in large samples without an effect:

- the effect over its standard error (Wald). It sees how many counts there are.
- the signed root of twice the log-likelihood ratio against the best fit without an effect. There
  ``f_k = sum_l g_l f_l``, so it is a regression on the other factors only, with loadings ``L_l + g_l L_k``.
  It sees whether other factors could have explained the counts: where few samples are without the factor, a
  feature that by chance has no count there has a tiny standard error, but still a small ratio.

Rejecting where both do keeps the level. p-values are from Student's distribution with as many degrees of
freedom as there are samples beyond factors.

**Overdispersion.** Likelihoods are those of the noise of the fit, Poisson or negative binomial. The sandwich
``H^-1 J H^-1``, with J the sum of the outer products of the samples' gradients, is right for any variance of
the counts; gradients are corrected for leverage, see
`log1pnmf.analysis.markers.regression.FeatureRegressions.scores`. The root of the likelihood ratio is divided
by the ratio of the two errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from log1pnmf.fitting.ranking import StandIns

from .regression import FeatureRegressions

__all__ = ["ERRORS", "Z95", "Inference", "infer", "inverse_information"]

Array = NDArray[np.float64]

ERRORS = ("sandwich", "model")
Z95 = float(norm.ppf(0.975))

AT_BOUND = 1e-9
"""Of a feature's largest coefficient: what is smaller counts as zero."""

RIDGE = 1e-10
"""Added to the information, scaled to a unit diagonal: what is not identified gets a huge error, not none."""

LEAST_LOOKED_AT = 1.0
"""Where Wald's statistic is smaller, the likelihood ratio is not computed: there is no evidence anyway."""


@dataclass(frozen=True, eq=False)
class Inference:
    """Effects with errors and tests, on the eta scale; arrays of shape (m, K).

    Columns of factors to which nothing can be compared (`StandIns.comparable`) are NaN.

    Parameters
    ----------
    z : ndarray
        Standard normal, or smaller, without an effect.
    """

    effect: Array
    error: Array
    z: Array


def infer(
    regressions: FeatureRegressions, coefficients: Array, around: StandIns, *, errors: str
) -> Inference:
    """Find effects, standard errors and tests at coefficients that maximise the likelihood."""
    terms = regressions.terms(coefficients)
    free = coefficients > AT_BOUND * coefficients.max(axis=1, keepdims=True)
    scores = None
    if errors == "sandwich":
        scores = regressions.scores(coefficients, inverse_information(terms.information, free))
        # as in the information: gradients say nothing of what is not identified, so its error would be none
        scores += RIDGE * terms.information * np.eye(coefficients.shape[1])
    found = Inference(*np.full((3, *coefficients.shape), np.nan))
    for k in np.flatnonzero(around.comparable).tolist():
        contrast = around.own[k] - around.rest[k]
        counted = free.copy()
        counted[:, k] = True
        model = inverse_information(terms.information, counted)
        covariance = model if scores is None else model @ scores @ model
        error = _spread(covariance, contrast)
        effect = coefficients @ contrast
        z = np.divide(effect, error, out=np.zeros_like(effect), where=error > 0.0)
        open_ = np.flatnonzero(z > LEAST_LOOKED_AT)
        design = regressions.loadings - np.outer(regressions.loadings[:, k], contrast / contrast[k])
        without = regressions.losses_without(k, coefficients, open_, design)
        gain = np.maximum(without - terms.loss[open_], 0.0)
        ratio = error[open_] / _spread(model[open_], contrast)
        z[open_] = np.minimum(z[open_], np.sqrt(2.0 * gain) / ratio)
        found.effect[:, k], found.error[:, k], found.z[:, k] = effect, error, z
    return found


def _spread(covariance: Array, contrast: Array) -> Array:
    """Give the standard error of a contrast of every feature's coefficients."""
    return np.sqrt(np.maximum(np.einsum("l,jlm,m->j", contrast, covariance, contrast), 0.0))


def inverse_information(information: Array, counted: NDArray[np.bool_]) -> Array:
    """Invert the information of the coordinates that count; zeros elsewhere."""
    scale = np.sqrt(np.einsum("jkk->jk", information))
    scale = np.where(scale > 0.0, scale, 1.0)
    both = counted[:, :, None] & counted[:, None, :]
    unit = np.where(both, information / (scale[:, :, None] * scale[:, None, :]), 0.0)
    diagonal = np.einsum("jkk->jk", unit)
    diagonal += np.where(counted, RIDGE, 1.0)
    inverse = np.where(both, np.linalg.inv(unit), 0.0)
    return inverse / (scale[:, :, None] * scale[:, None, :])
