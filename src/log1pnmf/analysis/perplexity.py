"""Perplexity: how well a fit foretells the words of documents that it has not seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.counts import Counts
from log1pnmf.counts.sparse_rows import dense_blocks
from log1pnmf.counts.splitting import check_fraction, split_counts, training_size_factors
from log1pnmf.fitting.as_fit import as_fit
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.new_samples import NewSamples, counts_of, fits_new_sizes, new_size_factors
from log1pnmf.model.prediction import BLOCK_ENTRIES

from .heldout import BACKGROUND, PULL

__all__ = ["perplexity"]

Array = NDArray[np.float64]


def perplexity(
    fit: Any,
    X: Any,
    *,
    test_fraction: float = 0.5,
    size_factors: Any = None,
    random_state: Any = 0,
    n_jobs: int | None = None,
) -> float:
    """Perplexity of held-out words, given the other words of each document; smaller is better.

    The counts of every document are split. Loadings come from one part, and the other part is scored:
    ``exp(-sum(y log p) / sum(y))``, where p are the fitted means as shares of their sum over the features. A
    perplexity of 300 means that the fit is as uncertain as if it chose among 300 equally likely words. A
    share of 0.001 of p comes from the totals of the words, so that no word is impossible.

    Parameters
    ----------
    fit : Fit, or anything that `log1pnmf.as_fit` takes
        A fit to other documents, or to the same ones, which makes it look better.
    X : array, sparse matrix or data frame of shape (n_documents, n_features)
        Counts of words.
    test_fraction : float
        Share of the counts that is scored.
    size_factors : {"total", "fit", "none"} or array, optional
        Size factors of these documents; see `log1pnmf.Log1pNMF.transform`.
    random_state : int, RandomState, Generator or None
        Seed of the split; use the same one for all models that you compare.
    n_jobs : int, optional
        Number of threads.

    Returns
    -------
    float

    Notes
    -----
    ``LatentDirichletAllocation.perplexity`` of scikit-learn estimates the topics of a document from all of
    its words and scores the same words, so you cannot compare its values with these. Perplexity as computed
    here need not improve with every further topic.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> counts = np.kron(np.eye(2), np.full((3, 4), 5))  # two topics of four words each
    >>> model = Log1pNMF(2, c=float("inf")).fit(counts)
    >>> round(perplexity(model, counts), 1), round(perplexity(Log1pNMF(1).fit(counts), counts), 1)
    (4.0, 8.0)
    """
    share, found = check_fraction(test_fraction), as_fit(fit)
    counts = counts_of(found, X, same_samples=False)
    seen, unseen = split_counts(counts, share, random_state=random_state)
    if not unseen.total:
        raise ValueError("X has too few counts to hold any out; pass more documents")
    sizes = _sizes(found, seen, share, size_factors)
    held = NewSamples(found, seen, sizes, n_jobs=n_jobs, pull=PULL)
    held = held.sized() if fits_new_sizes(found, size_factors) else held
    return math.exp(-_log_shares(found, held.solve()[0], seen, unseen) / unseen.total)


def _sizes(fit: Fit, seen: Counts, share: float, size_factors: Any) -> Array:
    """Give the size factors of documents of which a part is seen."""
    kind = fit.settings.size_factors if size_factors is None else size_factors
    if isinstance(kind, str) and kind in ("total", "fit", "given"):
        return new_size_factors(fit, seen, size_factors)  # totals have shrunk with the counts
    return training_size_factors(seen, share, kind)


def _log_shares(fit: Fit, loadings: Array, seen: Counts, unseen: Counts) -> float:
    """Sum up the logarithms of the shares of the held-out counts."""
    totals = seen.by_column.row_sums() + 0.5
    beside, log_shares = BACKGROUND * totals / totals.sum(), 0.0
    for rows in dense_blocks(unseen.shape, BLOCK_ENTRIES):
        rates = fit.link.inverse(loadings[rows] @ fit.factors.T)
        sums = rates.sum(axis=1, keepdims=True)
        own = np.where(sums > 0.0, rates / np.where(sums > 0.0, sums, 1.0), totals / totals.sum())
        y = unseen.by_row.to_dense(rows)
        log_shares += float(np.sum(y * np.log((1.0 - BACKGROUND) * own + beside)))
    return log_shares
