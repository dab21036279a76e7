"""The multinomial topic model that Poisson NMF with the identity link is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice, check_whole
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.features import align_features
from log1pnmf.engines.registry import as_counts
from log1pnmf.fitting.anndata import as_fit
from log1pnmf.fitting.fit import c_name, or_one
from log1pnmf.fitting.new_samples import counts_of
from log1pnmf.fitting.ranking import ORDERS, Order, ranking_of
from log1pnmf.model.problem import Array

EPSILON = 1e-12  # added to the share of documents with both words, which may be zero, as in gensim


def coherence(
    source: Any, counts: Any, n_top: int = 10, *, by: Order = "score", key: str | None = None
) -> Array:
    """NPMI coherence of each factor: how often its top features occur in the same samples.

    Let ``p_i`` and ``p_j`` be the shares of documents that contain one of two words, and ``p_ij`` the share
    that contains both. The NPMI of the two words is ``log((p_ij + eps) / (p_i p_j)) / -log(p_ij + eps)``,
    with ``eps = 1e-12``: 1 if they always occur together, 0 if they are independent, near -1 if they never
    do. The coherence of a topic is the mean over all pairs of its first `n_top` words: gensim's "c_npmi" with
    whole documents as windows (Röder, Both and Hinneburg 2015).

    Parameters
    ----------
    source : Fit, anything that `log1pnmf.as_fit` takes, or array of shape (K, features)
        Arrays are `components_` of other programs, such as LDA; their features are ranked by weight.
    counts : array, sparse matrix or data frame of shape (documents, features)
        Documents in which words are counted: those of the fit or, better, others with the same features.
    n_top : int
        Number of top features of each factor, at least 2.
    by : {"score", "log2_fold_change", "weight"}
        Which features come first, as in `top_features`; "weight" is usual in papers on topic models.

    Returns
    -------
    ndarray of shape (K,)
        NaN for factors with fewer than two features that occur.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> counts = np.kron(np.eye(2), np.ones((3, 2))) * [4, 3, 2, 5]  # two topics of two words
    >>> coherence(Log1pNMF(2, c=float("inf")).fit(counts), counts, 2).round(6)
    array([1., 1.])
    """
    check_whole("n_top", n_top, least=2)
    if isinstance(source, np.ndarray):
        found = align_features(as_counts(counts), None, source.shape[1])
        orders = [np.argsort(-weights, kind="stable")[: np.sum(weights > 0.0)] for weights in source]
        return np.array([npmi(found, order[:n_top]) for order in orders])
    check_choice("by", by, ORDERS)
    fit = as_fit(source, key=key)
    found, ranking = counts_of(fit, counts, same_samples=False), ranking_of(fit)
    return np.array([npmi(found, ranking.top(k, n_top, by)) for k in range(fit.n_components)])


def npmi(counts: Counts, features: NDArray[np.intp]) -> float:
    """Mean over all pairs of features that occur."""
    column = counts.by_column
    holders = [column.indices[column.indptr[j] : column.indptr[j + 1]] for j in features]
    holders = [samples for samples in holders if len(samples)]
    if len(holders) < 2:
        return np.nan
    there = np.zeros((len(holders), counts.n_samples))
    for row, samples in zip(there, holders, strict=True):
        row[samples] = 1.0
    both = (there @ there.T) / counts.n_samples
    i, j = np.triu_indices(len(there), k=1)
    share, alone = both[i, j] + EPSILON, both.diagonal()
    everywhere = both[i, j] >= 1.0  # in all documents: no information about each other
    value = np.log(share / (alone[i] * alone[j])) / np.where(everywhere, 1.0, -np.log(share))
    return float(np.where(everywhere, 0.0, value).mean())


@dataclass(frozen=True, eq=False)
class TopicModel:
    """Topics as distributions over words, documents as mixtures; make one with `topic_model` (example there).

    The counts of document i are ``Poisson(sizes_i * (proportions @ words)_i)``; given its total they are
    ``Multinomial(total_i, (proportions @ words)_i)``.

    Parameters
    ----------
    proportions : ndarray of shape (n_documents, n_topics)
        Rows sum to 1. A document without any count has the same proportion of every topic.
    words : ndarray of shape (n_topics, n_words)
        Probability of every word in every topic; rows sum to 1.
    sizes : ndarray of shape (n_documents,)
        Expected total count of every document; at the maximum of the likelihood, its total count.
    word_names : ndarray of str
        Names of the words, or their numbers.
    """

    proportions: Array
    words: Array
    sizes: Array
    word_names: NDArray[np.object_]

    def to_pyldavis(self) -> dict[str, Any]:
        """Return the arguments of pyLDAvis: ``pyLDAvis.prepare(**model.to_pyldavis())``.

        Frequencies of words are expected ones; at the maximum of the likelihood, those of the counts.
        """
        return {
            "topic_term_dists": self.words,
            "doc_topic_dists": self.proportions,
            "doc_lengths": self.sizes,
            "vocab": self.word_names.tolist(),
            "term_frequency": (self.sizes @ self.proportions) @ self.words,
        }


def topic_model(fit: Any) -> TopicModel:
    """Convert a fit at ``c = inf``, where factors add up, to a topic model; other fits are refused.

    >>> from log1pnmf import Log1pNMF
    >>> topic_model(Log1pNMF(1, c=float("inf")).fit([[4, 4], [2, 2]])).words.round(6)
    array([[0.5, 0.5]])
    """
    fit = as_fit(fit)
    if not fit.link.is_identity:
        raise ValueError(
            f"a topic model needs c = inf, where factors add up; this model was fitted with "
            f"c = {c_name(fit.c)}. Fit Log1pNMF(c=np.inf) instead"
        )
    mass = fit.loadings * fit.factors.sum(axis=0)
    return TopicModel(
        proportions=_rows_to_one(mass),
        words=_rows_to_one(fit.factors.T),
        sizes=fit.size_factors * mass.sum(axis=1),
        word_names=fit.feature_labels,
    )


def _rows_to_one(values: Array) -> Array:
    """Divide every row by its sum; rows of zeros become uniform."""
    sums = values.sum(axis=1, keepdims=True)
    return np.where(sums > 0.0, values / or_one(sums), 1.0 / values.shape[1])
