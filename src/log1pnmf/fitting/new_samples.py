"""What a fit says about samples it has not seen: size factors, loadings, log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.counts import Counts
from log1pnmf.counts.features import select_features
from log1pnmf.engines.base import Engine
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.solver.project import solve_loadings
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import Quadratic, quadratic

from .fit import Fit

__all__ = ["NewSamples", "new_size_factors"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NewSamples:
    """Samples held against the factors of a fit, which stay as they are.

    Features that are zero in every factor had no count in training; they say nothing about the loadings, no
    loadings give them a count, and they are left out of everything here.

    Parameters
    ----------
    fit : Fit
    counts : Counts
        Features as in training.
    size_factors : ndarray of shape (n,)
        See `new_size_factors`.
    engine : str
        See `log1pnmf.engines.registry.make_engine`.
    n_jobs : int, optional
        Threads.
    """

    fit: Fit
    counts: Counts
    size_factors: Array
    engine: str = "auto"
    n_jobs: int | None = None

    def solve(self) -> tuple[Array, bool]:
        """Find the loadings.

        Zero counts are treated as in the last phase of the fit, and loadings bounded as there.

        Returns
        -------
        loadings : ndarray of shape (n, K)
            On the fit's own scale.
        converged : bool
        """
        settings, fit = self.fit.settings, self.fit
        zeros = None
        if settings["likelihood"] == "approximate":
            zeros = quadratic(fit.link, settings["approximation"], settings["interval"])
        typical = fit.loadings.mean(axis=0)
        start = np.tile(np.maximum(typical, 1e-3 * typical.max()), (self.counts.n_samples, 1))
        return solve_loadings(
            self._engine(zeros),
            start,
            self._factors,
            upper=1.0 if settings["l1"] > 0 else np.inf,
            row_solver=settings["row_solver"],
        )

    def log_likelihood(self, loadings: Array) -> float:
        """Exact Poisson log-likelihood of all entries, at loadings on the fit's own scale."""
        return -self._engine(None).loss(loadings, self._factors)

    @property
    def n_entries(self) -> int:
        """Entries of features that have a part in the model."""
        return self.counts.n_samples * len(self._used)

    @property
    def _used(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.fit.factors.any(axis=1))

    @property
    def _factors(self) -> Array:
        return self.fit.factors[self._used] / self.fit.link.alpha

    def _engine(self, zeros: Quadratic | None) -> Engine:
        used = self._used
        counts = self.counts if len(used) == self.counts.n_features else select_features(self.counts, used)
        problem = Problem(counts, self.size_factors, self.fit.link, zeros)
        return make_engine(self.engine, problem, self.n_jobs)


def new_size_factors(counts: Counts, kind: Any, *, fitted_with: str, mean_total: float) -> Array:
    """Size factors of new samples, on the scale of the training data.

    Parameters
    ----------
    counts : Counts
    kind : {"total", "none"}, array of shape (n,) or None
        None: as the model was fitted.
    fitted_with : {"total", "none", "given"}
        What that was.
    mean_total : float
        Mean total count of the training samples, by which "total" divides; samples without counts have 1.

    Returns
    -------
    ndarray of shape (n,)
    """
    if kind is None:
        if fitted_with == "given":
            raise ValueError(
                "size_factors are needed: the model was fitted with an array of them, and new samples need "
                "their own; pass size_factors=..."
            )
        kind = fitted_with
    if isinstance(kind, str) and kind == "total":
        return np.where(counts.row_sums > 0, counts.row_sums / mean_total, 1.0)
    return counts.size_factors(kind)
