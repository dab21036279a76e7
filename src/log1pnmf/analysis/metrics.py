"""Numbers that describe a fit: sparsity, correlation, likelihood, and how factors of two fits correspond."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf.counts.compress import pieces
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.anndata import as_fit, fit_and_counts
from log1pnmf.fitting.fit import SHARED, Fit, evenness, or_one, sample_shares
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Array, Problem

Measure: TypeAlias = Literal["correlation", "cosine"]


def hoyer(values: ArrayLike) -> Array:
    """Hoyer's sparsity of every column, ``(sqrt(n) - |x|_1 / |x|_2) / (sqrt(n) - 1)``.

    1 where a single entry is not zero, 0 where all are alike; the scale of a column does not matter.

    >>> hoyer([[1, 2, 1], [0, 2, 1], [0, 2, 0], [0, 2, 0]]).round(3)
    array([1.   , 0.   , 0.586])
    """
    table = np.abs(_table(values))
    root = np.sqrt(len(table))
    relative = table / or_one(table.max(axis=0, initial=0.0))  # squares of tiny numbers would vanish
    ratio = relative.sum(axis=0) / or_one(np.sqrt((relative**2).sum(axis=0)))
    alike = (table == table[:1]).all(axis=0)
    return np.where(alike, 0.0, np.clip((root - ratio) / or_one(root - 1.0), 0.0, 1.0))


def correlation_matrix(values: ArrayLike) -> Array:
    """Return Spearman's rank correlation of all pairs of columns; 0 between a constant one and another."""
    ranks = scipy.stats.rankdata(_table(values), axis=0)
    unit = _unit(ranks - ranks.mean(axis=0))
    matrix = np.clip(unit.T @ unit, -1.0, 1.0)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def factor_correlation(values: ArrayLike) -> float:
    """Return the mean absolute Spearman correlation between two columns; 0 where there is one only."""
    matrix = correlation_matrix(values)
    pairs = matrix[np.triu_indices(len(matrix), k=1)]
    return float(np.abs(pairs).mean()) if pairs.size else 0.0


def effective_factors(loadings: ArrayLike) -> Array:
    """Effective number of factors of each sample: ``exp`` of the entropy of its shares.

    Parameters
    ----------
    loadings : array of shape (n, K)
        Not negative. The scale of the columns matters: with the largest loading of every factor at 1, as
        `Log1pNMF.loadings_` has it, they are memberships.

    Returns
    -------
    ndarray of shape (n,)
        1 for a single factor, K where all loadings are alike, 0 for a sample without any.

    Examples
    --------
    >>> effective_factors([[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.2], [0, 0, 0]]).round(6)
    array([1., 2., 3., 0.])
    """
    table = _table(loadings)
    if (table < 0).any():
        raise ValueError(f"loadings must not be negative, the least is {table.min()}")
    sums = table.sum(axis=1)
    share = table / or_one(sums)[:, None]
    return np.where(sums > 0.0, np.exp(scipy.special.entr(share).sum(axis=1)), 0.0)


def shares(source: Any, *, key: str | None = None) -> Array:
    """Return the share of each sample's signal that each factor carries.

    The signal of sample i on the link scale is ``sum_j (L F')_ij``, and factor k carries
    ``l_ik sum_j f_jk`` of it. Unlike loadings, shares do not depend on the scale of the factors. At
    ``c = inf`` they are the proportions of a topic model.

    Parameters
    ----------
    source : Fit, or anything that `log1pnmf.as_fit` takes

    Returns
    -------
    ndarray of shape (n, K)
        Rows sum to 1; that of a sample without any signal is 0.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> shares(Log1pNMF(2, random_state=0).fit([[9, 0], [0, 4], [6, 0]])).round(6)
    array([[1., 0.],
           [0., 1.],
           [1., 0.]])
    """
    fit = as_fit(source, key=key)
    return sample_shares(fit.loadings, fit.factors)


def dominant_factor(source: Any, *, key: str | None = None) -> NDArray[np.object_]:
    """Find the factor that each sample has most of, leaving out those that all samples share.

    Each factor is scaled to a largest loading of 1, and the largest loading of a sample counts. Factors whose
    `shares` are spread evenly over the samples (a standard deviation of at most half of their mean) do not
    distinguish samples and are left out, unless all factors do not.

    Parameters
    ----------
    source : Fit, or anything that `log1pnmf.as_fit` takes

    Returns
    -------
    ndarray of object, shape (n,)
        Names of factors; None for a sample that has none of them.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> dominant_factor(Log1pNMF(2, random_state=0).fit([[9, 0], [0, 4], [6, 0], [0, 0]])).tolist()
    ['k0', 'k1', 'k0', None]
    """
    fit = as_fit(source, key=key).normalized("max")
    own = evenness(sample_shares(fit.loadings, fit.factors)) < SHARED
    loadings = fit.loadings * (own if own.any() else True)
    names = np.array(fit.factor_names, dtype=object)[loadings.argmax(axis=1)]
    names[~loadings.any(axis=1)] = None
    return names


def log_likelihood(fit: Any, counts: Any, *, n_jobs: int | None = None) -> float:
    """Exact log-likelihood of counts under a fit to them, with its noise.

    Parameters
    ----------
    counts : array, sparse matrix or data frame of shape (n, m)
        Counts of the samples of the fit, in the same order. For other samples see `Log1pNMF.score`.

    Returns
    -------
    float
        Exact log-likelihood. All entries are used (only the non-zeros at ``c = inf``).

    Examples
    --------
    >>> from log1pnmf import fit_log1p_nmf
    >>> counts = [[1, 0, 3], [2, 5, 0]]
    >>> fit = fit_log1p_nmf(counts, 1)
    >>> bool(abs(log_likelihood(fit, counts) - fit.log_likelihood) < 1e-9)
    True
    """
    fit, counts = fit_and_counts(fit, counts)
    return -make_engine("auto", fit.problem(counts), n_jobs).loss(fit.loadings, fit.factors / fit.link.alpha)


def deviance_explained(fit: Any, counts: Any, *, n_jobs: int | None = None) -> float:
    """Share of the deviance that a fit explains, beyond the totals of samples and features.

    Parameters
    ----------
    counts
        As in `log_likelihood`.

    Returns
    -------
    float
        ``D^2 = 1 - D(fit) / D(null)``; the null model has mean ``rowsum_i * columnsum_j / total``. 1 where
        the counts are their own means, 0 for the null model (also where the null model is perfect), negative
        if the fit is worse than that. Both deviances are those of the fit's noise.

    Examples
    --------
    >>> from log1pnmf import fit_log1p_nmf
    >>> counts = [[4, 0], [0, 5], [2, 2]]
    >>> rank_one = fit_log1p_nmf(counts, 1, c=float("inf"))
    >>> abs(round(deviance_explained(rank_one, counts), 6))
    0.0
    """
    fit, counts = fit_and_counts(fit, counts)
    saturated = -fit.noise.constant(counts)
    null = null_deviance(fit, counts, n_jobs)
    if null == 0.0:
        return 0.0
    return 1.0 - (saturated - log_likelihood(fit, counts, n_jobs=n_jobs)) / null


def null_deviance(fit: Fit, counts: Counts, n_jobs: int | None) -> float:
    """Half the deviance of the null model; 0 where that is rounding error."""
    rows, columns, total = counts.row_sums, counts.by_column.row_sums(), counts.total
    entropy = scipy.special.entr  # -x log(x)
    own_terms = -math.fsum(entropy(part.astype(np.float64)).sum() for part in pieces(counts.by_row.values))
    if fit.dispersion is None:
        null = float(own_terms + entropy(rows).sum() + entropy(columns).sum() - entropy(total))
    else:
        identity = Problem(counts, np.ones(len(rows)), ShiftedLog(math.inf), noise=fit.noise)
        engine = make_engine("auto", identity, n_jobs)
        null = engine.loss(rows[:, None], columns[:, None] / total) - fit.noise.constant(counts)
    return null if null > 1e-12 * abs(own_terms) else 0.0


@dataclass(frozen=True, eq=False)
class FactorMatch:
    """Which factors of two fits correspond; make one with `match_factors` (example there).

    Parameters
    ----------
    pairs : ndarray of int, shape (min(K_a, K_b), 2)
        Columns of the first and the second table, by the first.
    similarity : ndarray of shape (min(K_a, K_b),)
        Similarity of each pair.
    matrix : ndarray of shape (K_a, K_b)
        Similarity of all columns.
    """

    pairs: NDArray[np.intp]
    similarity: Array
    matrix: Array

    def order(self) -> NDArray[np.intp]:
        """All columns of the second table in the order of those they correspond to; the others follow."""
        matched = self.pairs[:, 1]
        return np.concatenate((matched, np.setdiff1d(np.arange(self.matrix.shape[1]), matched)))


def match_factors(a: ArrayLike, b: ArrayLike, *, measure: Measure = "correlation") -> FactorMatch:
    """Match the factors of two fits: pair columns so that the total similarity is largest.

    Parameters
    ----------
    a, b : array of shape (m, K_a) and (m, K_b)
        Factors of two fits, or loadings of the same samples.
    measure : {"correlation", "cosine"}
        Pearson's correlation, or the cosine of the angle between columns.

    Returns
    -------
    FactorMatch
        The smaller table's columns are all paired, where the numbers differ.

    Examples
    --------
    >>> match = match_factors([[1, 0], [0, 1], [0, 2]], [[0, 1, 1], [3, 0, 1], [6, 0, 1]])
    >>> match.pairs.tolist(), match.similarity.round(6).tolist()
    ([[0, 1], [1, 0]], [1.0, 1.0])
    """
    check_choice("measure", measure, get_args(Measure))
    first, second = _table(a), _table(b)
    if len(first) != len(second):
        raise ValueError(
            f"both tables must have the same rows, got {len(first)} and {len(second)}; "
            "match factors of the same features, or loadings of the same samples"
        )
    if measure == "correlation":
        first, second = first - first.mean(axis=0), second - second.mean(axis=0)
    matrix = _unit(first).T @ _unit(second)
    rows, columns = scipy.optimize.linear_sum_assignment(matrix, maximize=True)
    return FactorMatch(np.stack((rows, columns), axis=1), matrix[rows, columns], matrix)


def _table(values: ArrayLike) -> Array:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or not len(table) or not np.isfinite(table).all():
        raise ValueError(f"expected a finite table with a column for each factor, got shape {table.shape}")
    return table


def _unit(table: Array) -> Array:
    return table / or_one(np.linalg.norm(table, axis=0))


def measures(fit: Fit, log_likelihood: float, deviance_explained: float) -> dict[str, Any]:
    """Return the row of a fit in the table of a sweep."""
    return {
        "c": fit.c,
        "log_likelihood": log_likelihood,
        "deviance_explained": deviance_explained,
        "factor_correlation": factor_correlation(fit.factors),
        "sparsity_loadings": float(hoyer(fit.loadings).mean()),
        "sparsity_factors": float(hoyer(fit.factors).mean()),
        "n_iter": fit.n_iter,
        "converged": fit.converged,
        "seconds": fit.seconds,
    }
