"""Count splitting: one count matrix becomes two independent ones, one to fit and one to judge the fit.

If ``y ~ Poisson(s lam)`` and every single count goes to the test part with probability ``eps``, then ``test
~ Poisson(eps s lam)`` and ``train ~ Poisson((1 - eps) s lam)`` are *independent*. No sample and no feature
is left out, so a fit to the training part predicts the test part without fitting anything to it: its means
are those of the training part times ``eps / (1 - eps)``, whatever size factors it was fitted with.

**The scale of c.** The shift of the link is measured against the rates. Size factors of mean 1 take the
smaller depth of the training part as smaller rates, ``lam' = (1 - eps) lam``, and ``log(1 + lam / c) = log(1
+ lam' / c')`` for ``c' = (1 - eps) c``: a fit to the training part with the usual size factors is the model
with ``c`` only if it is given ``(1 - eps) c``. It is simpler to describe what has happened: every sample was
observed with exposure ``1 - eps``. With `training_size_factors` the rates, ``c``, ``alpha_c`` and the
approximation of zero counts stay those of the whole data. A penalty is weighed against a log-likelihood of
``1 - eps`` times the size: ``l1`` becomes ``(1 - eps) l1``.

**Counts that vary more than Poisson.** Thinned like this, the parts of negative binomial counts share their
excess and are not independent. They are, if the probability is drawn for every entry: with the dispersion
``phi`` and ``r = 1 / phi``, from a beta law with parameters ``eps r`` and ``(1 - eps) r``. The parts are then
negative binomial with dispersions ``phi / eps`` and ``phi / (1 - eps)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.checks import Random, as_random, check_number, check_whole, one_for_each, quiet

from .counts import Counts

Array = NDArray[np.float64]

LARGEST_SPLIT = 2.0**53  # above, a double no longer holds every whole number


def split_counts(
    counts: Any, test_fraction: float = 0.1, *, dispersion: Any = 0.0, random_state: Any = None
) -> tuple[Counts, Counts]:
    """Split every count at random into a training and a test part (thinning).

    Parameters
    ----------
    counts : array, sparse matrix, data frame or Counts
        Whole numbers.
    test_fraction : float
        Probability with which each single count goes to the test part, between 0 and 1.
    dispersion : float or array of shape (m,)
        Dispersion of negative binomial counts, for every feature; 0 is Poisson.
    random_state : int, RandomState, Generator or None
        Seed or generator of the random numbers.

    Returns
    -------
    train, test : Counts
        Their sum is `counts`; names are kept. Under the model with that `dispersion` they are independent,
        with dispersions ``dispersion / (1 - test_fraction)`` and ``dispersion / test_fraction``.

    Examples
    --------
    >>> train, test = split_counts([[40, 0, 2], [1, 10, 7]], 0.25, random_state=0)
    >>> (train.to_scipy() + test.to_scipy()).toarray().tolist()
    [[40.0, 0.0, 2.0], [1.0, 10.0, 7.0]]
    """
    (pair,) = _splits(counts, 1, check_fraction(test_fraction), dispersion, as_random(random_state))
    return pair


def folds(
    counts: Any,
    n_folds: int = 3,
    *,
    test_fraction: float | None = None,
    dispersion: Any = 0.0,
    random_state: Any = None,
) -> list[tuple[Counts, Counts]]:
    """Split every count at random into folds (multinomial thinning, or Dirichlet-multinomial).

    Parameters
    ----------
    counts : array, sparse matrix, data frame or Counts
        Whole numbers.
    n_folds : int
        Number of folds.
    test_fraction : float, optional
        Share of each test part, at most ``1 / n_folds``, which is the default. With a smaller share, counts
        that are in no test part are in every training part.
    dispersion : float or array of shape (m,)
        Dispersion of negative binomial counts, see `split_counts`.
    random_state : int, RandomState, Generator or None
        Seed or generator of the random numbers.

    Returns
    -------
    list of (train, test)
        Training and test part of each fold. No single count is in two test parts; the training part has
        everything else.

    Examples
    --------
    >>> pairs = folds([[40, 0, 2], [1, 10, 7]], 3, random_state=0)
    >>> sum(test.total for _, test in pairs), [train.total + test.total for train, test in pairs]
    (60.0, [60.0, 60.0, 60.0])
    """
    check_whole("n_folds", n_folds, least=1)
    if test_fraction is None:
        if n_folds == 1:
            raise ValueError("n_folds=1 leaves nothing to train on: pass test_fraction, or more folds")
        share = 1.0 / n_folds
    else:
        share = check_fraction(test_fraction)
        if share * n_folds > 1.0 + 1e-12:
            raise ValueError(
                f"test_fraction must be at most 1 / n_folds = {1 / n_folds:.3g}, so that no count is in "
                f"two test parts, got {share}; use fewer folds or a smaller fraction"
            )
    return list(_splits(counts, n_folds, share, dispersion, as_random(random_state)))


def _splits(
    counts: Any, n: int, share: float, dispersion: Any, rng: Random
) -> Iterator[tuple[Counts, Counts]]:
    data, values = _whole_numbers(counts)
    phi = one_for_each("dispersion", dispersion, data.n_features)[data.by_row.indices]
    left = values.copy()
    for fold in range(n):
        drawn = rng.binomial(left, _probabilities(share, 1.0 - fold * share, phi, rng))
        left -= drawn
        yield _with_values(data, values - drawn), _with_values(data, drawn)


def _probabilities(share: float, of: float, phi: Array, rng: Random) -> Array | float:
    """Draw with which probability the counts of every entry go to a part, of what is left of the whole."""
    usual, varied = min(1.0, share / of), np.flatnonzero(phi)
    if usual >= 1.0 - 1e-12 or not varied.size:
        return usual
    probabilities = np.full(len(phi), usual)
    r = 1.0 / phi[varied]
    probabilities[varied] = rng.beta(share * r, (of - share) * r)
    return probabilities


def _whole_numbers(counts: Any) -> tuple[Counts, NDArray[np.int64]]:
    with quiet(UserWarning):  # about fractions, which are refused here
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


def check_fraction(test_fraction: float) -> float:
    """Refuse a `test_fraction` that is not a number between 0 and 1."""
    check_number("test_fraction", test_fraction)
    if not 0.0 < test_fraction < 1.0:
        raise ValueError(f"test_fraction must be between 0 and 1, got {test_fraction}")
    return float(test_fraction)


def training_size_factors(train: Counts, test_fraction: float, size_factors: Any = "total") -> Array:
    """Size factors for a fit to the training part, so that `c` means the same as for all counts.

    Parameters
    ----------
    train : Counts
        Parts of the counts, from `split_counts` or `folds`.
    test_fraction : float
        Share of the test part in the split.
    size_factors : {"total", "fit", "none"} or array of shape (n,)
        Size factors of a fit to all counts; "total" uses the totals of the training part.

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
    return (1.0 - check_fraction(test_fraction)) * train.size_factors(size_factors)
