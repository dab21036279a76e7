"""How good a factorisation is, whatever program made it: prediction, labels, stability, coherence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from log1pnmf.analysis.metrics import match_factors
from log1pnmf.analysis.topics import npmi
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import SHARED, evenness, sample_shares
from log1pnmf.model.predict import BACKGROUND

Array = NDArray[np.float64]


def heldout(
    means: Array, train: Counts, test: Counts, fraction: float, background: float = BACKGROUND
) -> float:
    """Poisson log-likelihood of the test counts, given means of the training counts.

    Parameters
    ----------
    fraction : float
        Share of the counts in the test part.
    background : float
        Share of the rank-one background that is mixed into the means, so that no count is impossible.
    """
    rows, columns = train.row_sums + 0.5, train.by_column.row_sums() + 0.5
    beside = np.outer(rows, columns / columns.sum())
    mean = (1.0 - background) * np.maximum(means, 0.0) + background * beside
    mean *= fraction / (1.0 - fraction)
    y = test.to_scipy().toarray()
    return float(np.sum(xlogy(y, mean) - mean - gammaln(y + 1.0)))


def shares(loadings: Array) -> Array:
    """Shares of the factors in every sample, each factor scaled to a maximum of 1; signed ones stay."""
    if (loadings < 0.0).any():
        return loadings
    scaled = loadings / np.maximum(loadings.max(axis=0), 1e-300)
    return np.asarray(scaled / np.maximum(scaled.sum(axis=1, keepdims=True), 1e-300))


def strongest(loadings: Array, labels: NDArray[np.str_]) -> float:
    """Return the adjusted Rand index of labels and strongest factors; NaN for signed loadings."""
    if (loadings < 0.0).any():
        return np.nan
    return float(adjusted_rand_score(labels, shares(loadings).argmax(axis=1)))


def dominant(loadings: Array, weights: Array, labels: NDArray[np.str_]) -> float:
    """Return the same without factors that all samples share, as `log1pnmf.dominant_factor` finds them."""
    if (loadings < 0.0).any() or (weights < 0.0).any():
        return np.nan
    own = evenness(sample_shares(loadings, weights.T)) < SHARED
    return strongest(loadings[:, own] if own.any() else loadings, labels)


def clustered(loadings: Array, labels: NDArray[np.str_]) -> float:
    """Return the adjusted Rand index of labels and as many k-means clusters of the shares."""
    clusters = KMeans(len(np.unique(labels)), n_init=5, random_state=0).fit_predict(shares(loadings))
    return float(adjusted_rand_score(labels, clusters))


def predicted(loadings: Array, labels: NDArray[np.str_]) -> float:
    """Return the balanced accuracy of a logistic regression on the shares, in five folds."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    return float(
        cross_val_score(model, shares(loadings), labels, cv=folds, scoring="balanced_accuracy").mean()
    )


def stability(runs: Sequence[Array]) -> float:
    """Mean correlation of matched loadings over all pairs of runs; signs do not count."""
    if any((run < 0.0).any() for run in runs):
        return float(np.mean([_subspace(a, b) for a, b in combinations(runs, 2)]))
    return float(np.mean([match_factors(a, b).similarity.mean() for a, b in combinations(runs, 2)]))


def coherent(weights: Array, documents: Counts, n: int = 10) -> float:
    """Mean NPMI of the words with the largest weights, counted in other documents."""
    first = np.argsort(-weights, axis=1, kind="stable")[:, :n]
    return float(np.nanmean([npmi(documents, words) for words in first]))


def _subspace(a: Array, b: Array) -> float:
    """Mean canonical correlation: how far two tables span the same space."""
    bases = [np.linalg.qr(table - table.mean(axis=0))[0] for table in (a, b)]
    return float(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).mean())
