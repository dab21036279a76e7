"""The multinomial topic model that Poisson NMF with the identity link is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.fitting.as_fit import as_fit
from log1pnmf.fitting.keys import c_name

__all__ = ["TopicModel", "topic_model"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TopicModel:
    """Topics as distributions over words, documents as mixtures of topics.

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
    word_names : ndarray of str or None
        Names of the words.
    """

    proportions: Array
    words: Array
    sizes: Array
    word_names: NDArray[np.object_] | None = None


def topic_model(fit: Any) -> TopicModel:
    """Convert a fit at ``c = inf`` to a topic model.

    Parameters
    ----------
    fit : Fit, Log1pNMF, AnnData or a file that `save` wrote
        The fit.

    Returns
    -------
    TopicModel

    Raises
    ------
    ValueError
        At finite `c`, where parts do not add up.
    """
    fit = as_fit(fit)
    if not fit.link.is_identity:
        raise ValueError(
            f"a topic model needs c = inf, where parts add up; this model was fitted with "
            f"c = {c_name(fit.c)}. Fit Log1pNMF(c=np.inf) instead"
        )
    loadings, factors = fit.loadings, fit.factors
    weights = factors.sum(axis=0)
    mass = loadings * weights
    return TopicModel(
        proportions=_rows_to_one(mass),
        words=_rows_to_one(factors.T),
        sizes=fit.size_factors * mass.sum(axis=1),
        word_names=fit.feature_names,
    )


def _rows_to_one(values: Array) -> Array:
    """Divide every row by its sum; rows of zeros become uniform."""
    sums = values.sum(axis=1, keepdims=True)
    return np.where(sums > 0.0, values / np.where(sums > 0.0, sums, 1.0), 1.0 / values.shape[1])
