"""Starting a fit where another one ended: other samples, more or fewer factors, another link."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.randomness import Random
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.problem import Problem

from .arrangement import scale_of, scaled
from .fit import Fit
from .starts import TINY, match_total

__all__ = ["continued_start"]

Array = NDArray[np.float64]


def continued_start(
    fit: Fit,
    problem: Problem,
    n_components: int,
    rng: Random,
    *,
    loadings: Array | None = None,
) -> tuple[Array, Array]:
    """Make a start for `problem` from an earlier fit.

    Factors that are to be added are tiny and random, so that the start fits as the earlier fit did; when
    there are to be fewer, those with the largest share of the signal stay, and the baseline. When `c` has
    changed the loadings stay, with a largest value of 1, and each factor goes from the old link to the new
    one as the rates of a sample that has only this factor, fully; then all are scaled alike, so that the
    fitted total is that of the counts.

    Parameters
    ----------
    fit : Fit
        The earlier fit, to the same features.
    problem : Problem
        What is to be fitted now.
    loadings : ndarray of shape (n, K), optional
        Of the samples of `problem` in the earlier fit, on its own scale, where they are not its samples.

    Returns
    -------
    loadings, factors : ndarray of shape (n, n_components) and (m, n_components)
        On the link scale of `problem`, with the baseline first.
    """
    scale = scale_of(fit.loadings, fit.factors, "max", fit.kinds)
    old = scaled(fit.loadings if loadings is None else loadings, fit.factors, scale)
    old_loadings, old_factors = (side[:, :n_components] for side in old)
    if problem.link != fit.link:
        old_loadings, old_factors = _relinked(problem, old_loadings, old_factors, fit.link, rng)
    n_more = n_components - old_loadings.shape[1]
    return _with_more(old_loadings, n_more, rng), _with_more(old_factors, n_more, rng)


def _relinked(
    problem: Problem, loadings: Array, factors: Array, old: ShiftedLog, rng: Random
) -> tuple[Array, Array]:
    link = problem.link
    with np.errstate(over="ignore"):
        rates = np.minimum(old.inverse(factors), problem.counts.total)
    scaled_loadings, scaled_factors = match_total(problem, loadings, link.link(rates) / link.alpha, rng)
    return scaled_loadings, scaled_factors * link.alpha


def _with_more(values: Array, n_more: int, rng: Random) -> Array:
    """Add tiny random columns."""
    more = TINY * values.mean() * rng.uniform(0.5, 1.5, size=(len(values), n_more))
    return np.hstack([values, more])
