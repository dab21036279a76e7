"""The scikit-learn estimator: parameters in, fitted attributes out; no maths."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from .approximation import quadratic
from .counts import Counts, SparseRows
from .engines.base import RowSolver
from .engines.registry import make_engine
from .fitting import fit_log1p_nmf
from .problem import Problem
from .solver.callbacks import Callback
from .solver.project import solve_loadings

__all__ = ["Log1pNMF"]

Array = NDArray[np.float64]


class Log1pNMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Poisson NMF with the shifted-log link, ``alpha_c log(1 + lam / c) = L F'``.

    Parameters
    ----------
    n_components : int
        Number of factors.
    c, likelihood, approximation, interval, size_factors, init, n_init, l1 : optional
        See `log1pnmf.fit_log1p_nmf`, also for all others.
    row_solver, extrapolate, max_iter, tol, n_jobs, engine, random_state, callbacks, verbose : optional

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Factors, on the link scale.
    loadings_ : ndarray of shape (n_samples, n_components)
        Loadings of the training samples.
    log_likelihood_ : float or None
        Exact log-likelihood; None where it was not computed.
    n_iter_ : int
    converged_ : bool
    kkt_residual_ : float
    history_ : dict of str to ndarray
        One entry per iteration.
    fit_ : Fit
        Everything known about the fit.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Where the counts had feature names.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> counts = pancreas().counts[:200]
    >>> model = Log1pNMF(n_components=3, c=1.0, tol=1e-5, random_state=0).fit(counts)
    >>> model.components_.shape, model.transform(counts[:5]).shape
    ((3, 2425), (5, 3))
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        c: float = 1.0,
        likelihood: str = "auto",
        approximation: str = "chebyshev",
        interval: tuple[float, float] | None = None,
        size_factors: Any = "total",
        init: Any = "rank1",
        n_init: int = 1,
        l1: float = 0.0,
        row_solver: RowSolver = "newton",
        extrapolate: bool | Literal["auto"] = "auto",
        max_iter: int = 1000,
        tol: float = 1e-8,
        n_jobs: int | None = None,
        engine: str = "auto",
        random_state: Any = None,
        callbacks: Sequence[Callback] = (),
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.c = c
        self.likelihood = likelihood
        self.approximation = approximation
        self.interval = interval
        self.size_factors = size_factors
        self.init = init
        self.n_init = n_init
        self.l1 = l1
        self.row_solver = row_solver
        self.extrapolate = extrapolate
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.engine = engine
        self.random_state = random_state
        self.callbacks = callbacks
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Log1pNMF:
        """Fit the model to counts.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        Log1pNMF
            Itself.
        """
        counts = Counts.from_any(X)
        validate_data(self, X, skip_check_array=True)
        fit = fit_log1p_nmf(counts, **self.get_params(deep=False))
        self.fit_ = fit
        self.components_ = np.ascontiguousarray(fit.factors.T)
        self.loadings_ = fit.loadings
        self.log_likelihood_ = fit.log_likelihood
        self.n_iter_ = fit.n_iter
        self.converged_ = fit.converged
        self.kkt_residual_ = fit.kkt_residual
        self.history_ = fit.history
        self._mean_total = float(counts.row_sums.mean())
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """Fit the model and return the loadings of the samples it was fitted to.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        ndarray of shape (n_samples, n_components)
        """
        return self.fit(X, y).loadings_

    def transform(self, X: Any, *, size_factors: Any = None) -> Array:
        """Find the loadings of other samples; the factors stay as they are.

        Features that are zero in every factor say nothing about the loadings and are left out.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
        size_factors : {"total", "none"} or array of shape (n,), optional
            By default what the model was fitted with; "total" divides by the mean total of the training
            samples. Needed where the model was fitted with an array.

        Returns
        -------
        ndarray of shape (n, n_components)
        """
        check_is_fitted(self)
        counts = Counts.from_any(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        sizes = self._sizes(counts, size_factors)
        used = self.components_.any(axis=0)
        if not used.any():
            return np.zeros((counts.n_samples, len(self.components_)))
        counts = counts if used.all() else _columns(counts, np.flatnonzero(used))
        problem = Problem(counts, sizes, self.fit_.link, self._zeros())
        engine = make_engine(self.engine, problem, self.n_jobs)
        factors = self.components_.T[used] / self.fit_.link.alpha
        typical = self.loadings_.mean(axis=0)
        start = np.tile(np.maximum(typical, 1e-3 * typical.max()), (counts.n_samples, 1))
        loadings, converged = solve_loadings(
            engine, start, factors, upper=1.0 if self.l1 > 0 else math.inf, row_solver=self.row_solver
        )
        if not converged:
            warnings.warn(
                "some loadings have not converged; a feature may have a count far beyond the training data",
                ConvergenceWarning,
                stacklevel=2,
            )
        return loadings

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _zeros(self) -> Any:
        """Treatment of zero counts: as in the last phase of the fit."""
        if self.fit_.settings["likelihood"] != "approximate":
            return None
        return quadratic(self.fit_.link, self.approximation, self.interval)

    def _sizes(self, counts: Counts, size_factors: Any) -> Array:
        kind = self.size_factors if size_factors is None else size_factors
        if size_factors is None and not isinstance(kind, str):
            raise ValueError(
                "size_factors are needed: the model was fitted with an array of them; "
                "pass transform(X, size_factors=...)"
            )
        if isinstance(kind, str) and kind == "total" and self._mean_total > 0:
            return np.where(counts.row_sums > 0, counts.row_sums / self._mean_total, 1.0)
        return counts.size_factors(kind)


def _columns(counts: Counts, chosen: NDArray[np.intp]) -> Counts:
    """Make counts of some features only."""
    part = counts.to_scipy()[:, chosen]
    part.sort_indices()
    rows = SparseRows(part.shape, part.indptr.astype(np.int64), part.indices.astype(np.int32), part.data)
    return Counts(rows)
