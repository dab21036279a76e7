"""What a fit returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .link import ShiftedLog

__all__ = ["Fit"]


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted model.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the link scale: ``loadings @ factors.T = alpha_c * log(1 + lam / c)``.
    c : float
        Shift of the link, may be inf.
    size_factors : ndarray of shape (n,)
        Counts are ``Poisson(size_factors_i * lam_ij)``.
    log_likelihood : float or None
        Exact, full Poisson log-likelihood; None where it was not computed, and `messages` say why.
    approximate_log_likelihood : float or None
        What an approximate fit has maximised; None for exact fits.
    objective : float
        What was minimised: negative log-likelihood (approximate in an approximate fit) + penalty.
    kkt_residual : float
        Distance from a stationary point, see `log1pnmf.loss.kkt_residual`.
    converged : bool
        Whether the tolerance was met (in every phase).
    n_iter : int
        Updates of both factors, over all phases of the best restart.
    seconds : float
        Wall time, restarts included.
    history : dict of str to ndarray
        See `log1pnmf.solver.callbacks.History.table`.
    settings : dict
        What was asked for, resolved: "auto" replaced by what it stood for.
    messages : tuple of str
        What is worth knowing about the data and the fit.
    """

    loadings: NDArray[np.float64]
    factors: NDArray[np.float64]
    c: float
    size_factors: NDArray[np.float64]
    log_likelihood: float | None
    approximate_log_likelihood: float | None
    objective: float
    kkt_residual: float
    converged: bool
    n_iter: int
    seconds: float
    history: Mapping[str, np.ndarray] = field(repr=False)
    settings: Mapping[str, Any] = field(repr=False)
    messages: tuple[str, ...] = ()

    @property
    def n_components(self) -> int:
        """Number of factors."""
        return self.factors.shape[1]

    @property
    def link(self) -> ShiftedLog:
        """The link function."""
        return ShiftedLog(self.c)
