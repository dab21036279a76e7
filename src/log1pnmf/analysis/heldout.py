"""Held-out log-likelihood: how well a fit to one part of the counts predicts the other part."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.arrays import Numbers
from log1pnmf._common.checks import Seed
from log1pnmf.counts.compress import dense_blocks
from log1pnmf.counts.counts import Counts, SizesKind
from log1pnmf.counts.features import select_features
from log1pnmf.counts.splitting import check_fraction, split_counts, training_size_factors
from log1pnmf.fitting.anndata import as_fit
from log1pnmf.fitting.fit import Fit, or_one
from log1pnmf.fitting.new_samples import NewSamples, counts_of, fits_new_sizes, new_size_factors
from log1pnmf.model.batches import Batches
from log1pnmf.model.objective import BLOCK_BYTES, Array
from log1pnmf.model.predict import BACKGROUND, BLOCK_ENTRIES, OUTLIERS, Background, score_entries, score_parts

SEED = 0  # of the choice of features that `heldout_score` scores: the same for every model


def heldout_log_likelihood(
    fit: Any, train: Any, test: Any, *, test_fraction: float = 0.1, background: float = BACKGROUND
) -> Array:
    """Exact log-likelihood of the test part of each sample, given its training part.

    A fit may predict a mean of exactly zero where a count turns up in the test part. So a small share of the
    predicted means comes from a background without factors, made from the training part alone and therefore
    the same for all fits that are compared:

        ``mean = eps / (1 - eps) * ((1 - background) * s_i lam_ij + background * (r_i + 1/2) p_j)``

    where ``r`` are the row totals of the training part and ``p`` its column totals + 1/2, as shares.

    With negative binomial noise the test part is scored *given* the training part: with the training count
    ``y``, its mean ``m`` and the dispersion ``phi`` of the fit it is negative binomial with
    ``(1 + phi y) / (1 + phi m)`` times the mean, and the dispersion ``phi / (1 + phi y)``.

    Parameters
    ----------
    fit : Fit, or anything that `log1pnmf.as_fit` takes
        Fitted to `train`, with any size factors; see `log1pnmf.counts.training_size_factors` for those that
        keep `c` comparable.
    train, test : array, sparse matrix, data frame or Counts
        Training and test part of the counts, from `log1pnmf.counts.split_counts` or `folds`.
    test_fraction : float
        Share of the counts in the test part.
    background : float
        Share of the background, between 0 and 1; at 0 the result may be -inf.

    Returns
    -------
    ndarray of shape (n,)
        Never approximate, so comparable between any fits; the sum is that of all samples.

    Examples
    --------
    >>> from log1pnmf import fit_log1p_nmf
    >>> from log1pnmf.counts import split_counts, training_size_factors
    >>> from log1pnmf.datasets import pancreas
    >>> train, test = split_counts(pancreas().counts[:100, :300], 0.1, random_state=0)
    >>> sizes = training_size_factors(train, 0.1)
    >>> few, more = (fit_log1p_nmf(train, K, size_factors=sizes) for K in (1, 3))
    >>> bool(heldout_log_likelihood(more, train, test).sum() > heldout_log_likelihood(few, train, test).sum())
    True
    """
    share, found = check_fraction(test_fraction), as_fit(fit)
    seen, unseen = Counts.from_any(train), Counts.from_any(test)
    expected = (len(found.loadings), len(found.factors))
    for name, counts in (("train", seen), ("test", unseen)):
        if counts.shape != expected:
            raise ValueError(f"{name} must have the shape {expected} of the fit, got {counts.shape}")
    return score_parts(found.rates, seen, unseen, test_fraction=share, background=background)


def training_by_sample(fit: Fit, train: Counts) -> Array:
    """Exact log-likelihood of the counts of each sample that were fitted."""
    nothing = Background(np.zeros(train.n_samples), np.zeros(train.n_features), 0.0)
    return score_entries(fit.rates, train, nothing)


def heldout_features(
    fit: Fit,
    totals: Array,
    new: Counts,
    *,
    scored: NDArray[np.intp],
    size_factors: Array | None = None,
    batches: Batches | None = None,
    background: float = BACKGROUND,
) -> Array:
    """Return the exact log-likelihood of some features of new samples, given the other features."""
    given = np.setdiff1d(np.arange(new.n_features), scored)
    seen, unseen = select_features(new, given), select_features(new, scored)
    unsized = size_factors is None and fits_new_sizes(fit)
    if size_factors is None:
        per_unit = totals[given].sum() / fit.size_factors.sum()
        size_factors = np.where(seen.row_sums > 0, seen.row_sums / per_unit, 1.0)
    held = NewSamples(fit, seen, size_factors, batches=batches, n_jobs=1, features=given)
    held = held.sized() if unsized else held
    rates = replace(fit.rates, batches=batches).of_features(scored)
    rates = replace(rates, loadings=held.solve()[0], size_factors=held.size_factors)
    profile = (totals[scored] + 0.5) / (totals[given] + 0.5).sum()
    beside = Background(seen.row_sums + 0.5, profile, background)
    return score_entries(rates, unseen, beside, outliers=OUTLIERS)


def perplexity(
    fit: Any,
    X: Any,
    *,
    test_fraction: float = 0.5,
    size_factors: SizesKind | Numbers | None = None,
    random_state: Seed = 0,
    n_jobs: int | None = None,
) -> float:
    """Perplexity of held-out words, given the other words of each document; smaller is better.

    The counts of every document are split. Loadings come from one part, and the other part is scored:
    ``exp(-sum(y log p) / sum(y))``, where p are the fitted means as shares of their sum over the features. A
    share of 0.001 of p comes from the totals of the words, so that no word is impossible. Values of
    scikit-learn's ``LatentDirichletAllocation`` cannot be compared: it scores the words that it has seen.

    Parameters
    ----------
    fit : Fit, or anything that `log1pnmf.as_fit` takes
        A fit to other documents. Perplexity on the documents of the fit itself is too small.
    X : array, sparse matrix or data frame of shape (n_documents, n_features)
        Counts of words.
    test_fraction : float
        Share of the counts that is scored.
    size_factors : {"total", "fit", "none"} or array, optional
        Size factors of these documents; see `log1pnmf.Log1pNMF.transform`.
    random_state : int, RandomState, Generator or None
        Seed of the split; use the same one for all models that you compare.

    Returns
    -------
    float
        300 means as uncertain as a choice among 300 equally likely words.

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
    kind = found.settings.size_factors if size_factors is None else size_factors
    if isinstance(kind, str) and kind in ("total", "fit", "given"):
        sizes = new_size_factors(found, seen, size_factors)  # totals have shrunk with the counts
    else:
        sizes = training_size_factors(seen, share, kind)
    held = NewSamples(found, seen, sizes, n_jobs=n_jobs)
    held = held.sized(1.0 - share) if fits_new_sizes(found, size_factors) else held
    loadings = held.solve()[0]
    totals = seen.by_column.row_sums() + 0.5
    flat, log_shares = totals / totals.sum(), 0.0
    for rows in dense_blocks(unseen.shape, BLOCK_ENTRIES):
        rates = found.link.inverse(loadings[rows] @ found.factors.T)
        sums = rates.sum(axis=1, keepdims=True)
        own = np.where(sums > 0.0, rates / or_one(sums), flat)
        y = unseen.by_row.to_dense(rows)
        log_shares += float(np.sum(y * np.log((1.0 - BACKGROUND) * own + BACKGROUND * flat)))
    return math.exp(-log_shares / unseen.total)


def heldout_score(estimator: Any, X: Any, y: Any = None, *, test_fraction: float = 0.2) -> float:
    """Mean exact log-likelihood per entry of held-out features in new samples; a scorer for GridSearchCV.

    ``estimator.score`` grows with the number of factors. Here loadings come from some features, and the
    others are scored: more factors help only if they predict.

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

    Examples
    --------
    >>> from sklearn.model_selection import GridSearchCV
    >>> from log1pnmf import Log1pNMF
    >>> from log1pnmf.datasets import pancreas
    >>> search = GridSearchCV(Log1pNMF(tol=1e-3), {"n_components": [1, 3]}, scoring=heldout_score, cv=2)
    >>> search.fit(pancreas().counts[:120, :200]).best_params_
    {'n_components': 3}
    """
    check_fraction(test_fraction)
    if hasattr(estimator, "steps"):
        X = estimator[:-1].transform(X) if len(estimator.steps) > 1 else X
        estimator = estimator[-1]
    fit = as_fit(estimator)
    new = counts_of(fit, X, same_samples=False)
    m = len(fit.factors)
    if m < 2:
        raise ValueError("X has one feature only, so none is left to find loadings from; pass more features")
    n_scored = min(max(1, round(test_fraction * m)), m - 1)
    scored = np.sort(np.random.default_rng(SEED).permutation(m)[:n_scored])
    totals = np.zeros(m)  # of the features over the fitted samples, as the fit has them
    for rows in dense_blocks((len(fit.loadings), m), BLOCK_BYTES / 32):
        totals += fit.rates.of_rows(rows).sum(axis=0)
    found = heldout_features(fit, np.rint(totals), new, scored=scored)
    return float(found.sum()) / (new.n_samples * n_scored)
