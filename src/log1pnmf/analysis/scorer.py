"""A score for scikit-learn's searches that does not grow with the number of factors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import check_number
from log1pnmf.counts.sparse_rows import dense_blocks
from log1pnmf.counts.splitting import check_fraction
from log1pnmf.fitting.as_fit import as_fit
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.new_samples import counts_of
from log1pnmf.model.objective import BLOCK_BYTES

from .heldout import heldout_features_by_sample

__all__ = ["heldout_score"]

SEED = 0
"""Of the choice of features that are scored: the same for every model, so that scores can be compared."""


def heldout_score(estimator: Any, X: Any, y: Any = None, *, test_fraction: float = 0.2) -> float:
    """Mean exact log-likelihood per entry of held-out features in new samples; a scorer for GridSearchCV.

    ``estimator.score`` estimates the loadings of a sample from all of its counts, so it grows with the number
    of factors. Here loadings come from some features, and the others are scored: more factors help only if
    they predict.

    Parameters
    ----------
    estimator : Log1pNMF, or a pipeline that ends in one
        A fitted model.
    X : array, sparse matrix or data frame of shape (n, n_features)
        Counts of other samples.
    y : ignored
        Ignored; scikit-learn passes it.
    test_fraction : float
        Share of the features to score; the same features are scored for every model.

    Returns
    -------
    float
        Score; larger is better.

    Examples
    --------
    >>> from sklearn.model_selection import GridSearchCV
    >>> from log1pnmf import Log1pNMF
    >>> from log1pnmf.datasets import pancreas
    >>> search = GridSearchCV(Log1pNMF(tol=1e-3), {"n_components": [1, 3]}, scoring=heldout_score, cv=2)
    >>> search.fit(pancreas().counts[:120, :200]).best_params_
    {'n_components': 3}
    """
    check_number("test_fraction", test_fraction)
    check_fraction(test_fraction)
    if hasattr(estimator, "steps"):
        X = estimator[:-1].transform(X) if len(estimator.steps) > 1 else X
        estimator = estimator[-1]
    fit = as_fit(estimator)
    new = counts_of(fit, X, same_samples=False)
    m = len(fit.factors)
    if m < 2:
        raise ValueError(
            "X has only one feature, so none is left to estimate loadings from; pass more features"
        )
    n_scored = min(max(1, round(test_fraction * m)), m - 1)
    scored = np.sort(np.random.default_rng(SEED).permutation(m)[:n_scored])
    found = heldout_features_by_sample(fit, _fitted_totals(fit)[None, :], new, scored=scored, n_jobs=1)
    return float(found.sum()) / (new.n_samples * n_scored)


def _fitted_totals(fit: Fit) -> NDArray[np.float64]:
    """Totals of the features over the fitted samples, as the fit has them."""
    totals = np.zeros(len(fit.factors))
    for rows in dense_blocks((len(fit.loadings), len(totals)), BLOCK_BYTES / 32):
        totals += (fit.exposure(rows) * fit.link.inverse(fit.loadings[rows] @ fit.factors.T)).sum(axis=0)
    return np.rint(totals)
