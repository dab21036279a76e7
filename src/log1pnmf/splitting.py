"""Count splitting: one count matrix becomes two independent ones, one to fit and one to judge the fit.

If ``y ~ Poisson(s lam)`` and every single count goes to the test part with probability ``eps``, then ``test
~ Poisson(eps s lam)`` and ``train ~ Poisson((1 - eps) s lam)`` are *independent*. No sample and no feature
is left out, so a fit to the training part predicts the test part without fitting anything to it: its means
are those of the training part times ``eps / (1 - eps)``, whatever size factors it was fitted with.

**The scale of c.** The shift of the link is measured against the rates. Size factors of mean 1 take the
smaller depth of the training part as smaller rates, ``lam' = (1 - eps) lam``, and ``log(1 + lam / c) = log(1
+ lam' / c')`` for ``c' = (1 - eps) c``: a fit to the training part with the usual size factors is the model
with ``c`` only if it is given ``(1 - eps) c``. It is simpler to say what has happened: every sample was
observed with exposure ``1 - eps``. With `training_size_factors` the rates, ``c``, ``alpha_c`` and the
approximation of zero counts stay those of the whole data. A penalty is weighed against a log-likelihood of
``1 - eps`` times the size: ``l1`` becomes ``(1 - eps) l1``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import gammaln

from .counts import Counts
from .fitted import FittedModel
from .initialize import Random, as_random
from .link import ShiftedLog
from .result import Fit
from .settings import check_number, check_whole

__all__ = [
    "BACKGROUND",
    "folds",
    "heldout_by_sample",
    "heldout_log_likelihood",
    "heldout_rows_log_likelihood",
    "split_counts",
    "training_size_factors",
]

Array = NDArray[np.float64]

BACKGROUND = 1e-3
"""Share of the rank-one background in the predicted means; see `heldout_by_sample`."""

LARGEST_SPLIT = 2.0**53
"""Above, a double no longer holds every whole number."""

BLOCK_ENTRIES = 1 << 18
"""Means computed at a time: they stay in the cache."""


# ---------------------------------------------------------------- splitting


def split_counts(
    counts: Any, test_fraction: float = 0.1, *, random_state: Any = None
) -> tuple[Counts, Counts]:
    """Split every count at random into a training and a test part (binomial thinning).

    Parameters
    ----------
    counts : array, sparse matrix, data frame or Counts
        Whole numbers.
    test_fraction : float
        Probability with which each single count goes to the test part, between 0 and 1.
    random_state : int, RandomState, Generator or None

    Returns
    -------
    train, test : Counts
        Their sum is `counts`; names are kept. Under the Poisson model they are independent.

    Examples
    --------
    >>> train, test = split_counts([[40, 0, 2], [1, 10, 7]], 0.25, random_state=0)
    >>> (train.to_scipy() + test.to_scipy()).toarray().tolist()
    [[40.0, 0.0, 2.0], [1.0, 10.0, 7.0]]
    """
    (pair,) = _splits(counts, 1, _checked_fraction(test_fraction), as_random(random_state))
    return pair


def folds(
    counts: Any, n_folds: int = 3, *, test_fraction: float | None = None, random_state: Any = None
) -> list[tuple[Counts, Counts]]:
    """Split every count at random into folds (multinomial thinning).

    Parameters
    ----------
    counts : array, sparse matrix, data frame or Counts
        Whole numbers.
    n_folds : int
        Number of pairs.
    test_fraction : float, optional
        Share of each test part; at most ``1 / n_folds``, which is the default. Below that, what is in no test
        part is in every training part.
    random_state : int, RandomState, Generator or None

    Returns
    -------
    list of (train, test)
        No single count is in two test parts; train is everything that is not in test.

    Examples
    --------
    >>> pairs = folds([[40, 0, 2], [1, 10, 7]], 3, random_state=0)
    >>> sum(test.total for _, test in pairs), [train.total + test.total for train, test in pairs]
    (60.0, [60.0, 60.0, 60.0])
    """
    check_whole("n_folds", n_folds, least=1)
    if test_fraction is None:
        if n_folds == 1:
            raise ValueError(
                "n_folds=1 leaves nothing to train on: pass test_fraction, or at least two folds"
            )
        share = 1.0 / n_folds
    else:
        share = _checked_fraction(test_fraction)
        if share * n_folds > 1.0 + 1e-12:
            raise ValueError(
                f"test_fraction must be at most 1 / n_folds = {1 / n_folds:.3g}, so that no count is in "
                f"two test parts, got {share}; take fewer folds or a smaller fraction"
            )
    return list(_splits(counts, n_folds, share, as_random(random_state)))


def _splits(counts: Any, n: int, share: float, rng: Random) -> Iterator[tuple[Counts, Counts]]:
    data, values = _whole_numbers(counts)
    left = values.copy()
    for fold in range(n):
        drawn = rng.binomial(left, min(1.0, share / (1.0 - fold * share)))
        left -= drawn
        yield _with_values(data, values - drawn), _with_values(data, drawn)


def _whole_numbers(counts: Any) -> tuple[Counts, NDArray[np.int64]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about fractions, which are refused here
        data = Counts.from_any(counts)
    values = data.by_row.values.astype(np.float64)
    bad = (values != np.rint(values)) | (values > LARGEST_SPLIT)
    if bad.any():
        place = int(np.argmax(bad))
        row = int(np.searchsorted(data.by_row.indptr, place, side="right")) - 1
        raise ValueError(
            f"only whole numbers up to 2**53 can be split, got {values[place]:g} at row {row}, column "
            f"{data.by_row.indices[place]} ({int(bad.sum())} such entries); pass raw counts, or "
            "round them first if they are expected counts"
        )
    return data, values.astype(np.int64)


def _with_values(counts: Counts, values: NDArray[np.int64]) -> Counts:
    rows = counts.by_row
    kept = values > 0
    indptr = np.concatenate([[0], np.cumsum(kept)])[rows.indptr]
    matrix = sparse.csr_array((values[kept].astype(np.float64), rows.indices[kept], indptr), shape=rows.shape)
    return replace(
        Counts.from_any(matrix), sample_names=counts.sample_names, feature_names=counts.feature_names
    )


def _checked_fraction(test_fraction: float) -> float:
    check_number("test_fraction", test_fraction)
    if not 0.0 < test_fraction < 1.0:
        raise ValueError(f"test_fraction must be between 0 and 1, got {test_fraction}")
    return float(test_fraction)


def training_size_factors(train: Counts, test_fraction: float, size_factors: Any = "total") -> Array:
    """Size factors with which a fit to a training part is the model of the whole data, at the same `c`.

    Parameters
    ----------
    train : Counts
        From `split_counts` or `folds`.
    test_fraction : float
        With which it was split.
    size_factors : {"total", "none"} or array of shape (n,)
        What the whole data would be fitted with; "total" is taken from the training part, not from the whole.

    Returns
    -------
    ndarray of shape (n,)
        ``(1 - test_fraction)`` times the usual ones.

    Examples
    --------
    >>> train, _ = split_counts([[40, 0, 2], [1, 10, 7]], 0.25, random_state=0)
    >>> float(training_size_factors(train, 0.25).mean())
    0.75
    """
    return (1.0 - _checked_fraction(test_fraction)) * train.size_factors(size_factors)


# ---------------------------------------------------------------- scoring


def heldout_log_likelihood(
    fit: Fit | FittedModel,
    train: Any,
    test: Any,
    *,
    test_fraction: float = 0.1,
    background: float = BACKGROUND,
) -> float:
    """Exact log-likelihood of the test part under a fit to the training part.

    Parameters
    ----------
    fit : Fit or Log1pNMF
        Fitted to `train`, with any size factors; see `training_size_factors` for those that keep `c`
        comparable.
    train, test : array, sparse matrix, data frame or Counts
        From `split_counts` or `folds`.
    test_fraction : float
        With which they were split.
    background : float
        See `heldout_by_sample`.

    Returns
    -------
    float
        Full Poisson log-likelihood, never approximate and always finite, so comparable between any fits.

    Examples
    --------
    >>> from log1pnmf import fit_log1p_nmf
    >>> from log1pnmf.datasets import pancreas
    >>> train, test = split_counts(pancreas().counts[:200], 0.1, random_state=0)
    >>> sizes = training_size_factors(train, 0.1)
    >>> scores = [
    ...     heldout_log_likelihood(
    ...         fit_log1p_nmf(train, K, size_factors=sizes, tol=1e-4, random_state=0), train, test
    ...     )
    ...     for K in (1, 3)
    ... ]
    >>> scores[1] > scores[0]
    True
    """
    return float(
        heldout_by_sample(fit, train, test, test_fraction=test_fraction, background=background).sum()
    )


def heldout_by_sample(
    fit: Fit | FittedModel,
    train: Any,
    test: Any,
    *,
    test_fraction: float = 0.1,
    background: float = BACKGROUND,
) -> Array:
    """Each sample's part of `heldout_log_likelihood`.

    A maximum-likelihood fit may predict a mean of exactly zero where a count turns up in the test part: one
    such count would rule out the model. So a small share of the predicted means comes from a background that
    has no factors at all, made from the training part alone and therefore the same for all fits that are
    compared:

        ``mean = eps / (1 - eps) * ((1 - background) * s_i lam_ij + background * (r_i + 1/2) p_j)``

    where ``r`` are the row totals of the training part and ``p`` its column totals + 1/2, as shares. With
    the default share of 0.001 an unforeseen count costs log(1000) = 7 more than the background would ask for
    it.

    Parameters
    ----------
    fit : Fit or Log1pNMF
    train, test : array, sparse matrix, data frame or Counts
    test_fraction : float
    background : float
        Share of the background, between 0 and 1; at 0 the result may be -inf.

    Returns
    -------
    ndarray of shape (n,)
    """
    found = fit.fit_ if isinstance(fit, FittedModel) else fit
    rates = _Rates(found.loadings, found.factors, found.link, found.size_factors)
    return _score(rates, train, test, test_fraction=test_fraction, background=background)


def heldout_rows_log_likelihood(
    model: FittedModel,
    train: Any,
    test: Any,
    *,
    test_fraction: float = 0.1,
    size_factors: Any = None,
    background: float = BACKGROUND,
) -> float:
    """Exact log-likelihood of samples that the model has never seen, each given a part of its own counts.

    Their counts are split; loadings come from the training part of each sample, with the factors as they
    are, and the test part is scored. Nothing of the test part is used, so more factors do not look better
    than they are (in `Log1pNMF.score` they do). It judges the factors as a description of *other* samples.

    Parameters
    ----------
    model : Log1pNMF
        Fitted to other samples with the same features, at their full depth.
    train, test : array, sparse matrix, data frame or Counts
        Parts of the new samples, from `split_counts`.
    test_fraction : float
        With which they were split.
    size_factors : {"total", "none"} or array, optional
        Of the new samples at their full depth; see `Log1pNMF.transform`.
    background : float
        See `heldout_by_sample`; here it is made from the training part of the new samples.

    Returns
    -------
    float

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> from log1pnmf.datasets import pancreas
    >>> counts = pancreas().counts[:300]
    >>> model = Log1pNMF(2, tol=1e-4, random_state=0).fit(counts[:200])
    >>> train, test = split_counts(counts[200:], 0.1, random_state=0)
    >>> bool(np.isfinite(heldout_rows_log_likelihood(model, train, test)))
    True
    """
    share = _checked_fraction(test_fraction)
    seen = Counts.from_any(train)
    kind = size_factors if size_factors is not None else model.fit_.settings["size_factors"]
    if not (isinstance(kind, str) and kind in ("total", "given")):  # totals have shrunk with the counts
        kind = training_size_factors(seen, share, kind)
    samples = model._new_samples(seen, None if isinstance(kind, str) and kind == "given" else kind)
    loadings, _ = samples.solve()
    fit = model.fit_
    rates = _Rates(loadings, fit.factors, fit.link, samples.size_factors)
    return float(_score(rates, seen, test, test_fraction=share, background=background).sum())


@dataclass(frozen=True, eq=False)
class _Rates:
    """Fitted means of a training part, ``s_i lam_ij``."""

    loadings: Array
    factors: Array
    link: ShiftedLog
    size_factors: Array

    def row_sums(self) -> Array:
        """Sum over the features of every sample's means."""
        if self.link.is_identity:
            return self.size_factors * (self.loadings @ self.factors.sum(axis=0))
        eta_factors = np.ascontiguousarray(self.factors.T) / self.link.alpha
        sums = np.empty(len(self.loadings))
        step = max(1, BLOCK_ENTRIES // max(1, len(self.factors)))
        for start in range(0, len(sums), step):
            eta = self.loadings[start : start + step] @ eta_factors
            sums[start : start + step] = np.expm1(eta, out=eta).sum(axis=1)
        return self.link.exposure_scale * self.size_factors * sums

    def at(self, i: NDArray[np.intp], j: NDArray[np.int32]) -> Array:
        b = np.einsum("ek,ek->e", self.loadings[i], self.factors[j])
        return self.size_factors[i] * self.link.inverse(b)


def _score(rates: _Rates, train: Any, test: Any, *, test_fraction: float, background: float) -> Array:
    share = _checked_fraction(test_fraction)
    seen, unseen = Counts.from_any(train), Counts.from_any(test)
    expected = (len(rates.loadings), len(rates.factors))
    for name, counts in (("train", seen), ("test", unseen)):
        if counts.shape != expected:
            raise ValueError(f"{name} must have the shape {expected} of the fit, got {counts.shape}")
    if not 0.0 <= background < 1.0:
        raise ValueError(f"background must be at least 0 and below 1, got {background}")
    totals = seen.by_column.row_sums() + 0.5
    profile, size = totals / totals.sum(), seen.row_sums + 0.5
    odds = share / (1.0 - share)
    score = -odds * ((1.0 - background) * rates.row_sums() + background * size)
    rows = unseen.by_row
    step = max(1, BLOCK_ENTRIES // rates.loadings.shape[1])
    for start in range(0, rows.nnz, step):
        entries = np.arange(start, min(start + step, rows.nnz))
        i, j = np.searchsorted(rows.indptr, entries, side="right") - 1, rows.indices[entries]
        y = rows.values[entries].astype(np.float64)
        with np.errstate(divide="ignore"):
            log_mean = np.log(
                odds * ((1.0 - background) * rates.at(i, j) + background * size[i] * profile[j])
            )
        score += np.bincount(i, y * log_mean - gammaln(y + 1.0), minlength=len(score))
    return score
