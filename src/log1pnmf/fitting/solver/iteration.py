"""`Iteration`, what the solver yields, and the state that it needs to resume."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.arrays import like, on_host
from log1pnmf.model.problem import Likelihood

__all__ = ["Iteration", "Pair", "State"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pair:
    """Loadings and factors, on the eta scale, in the arrays of the engine.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
    effects : ndarray of shape (B, m), optional
        Of batches, where the solver finds them in every iteration.
    """

    loadings: Array
    factors: Array
    effects: Array | None = None

    def scaled(self, by: Array) -> Pair:
        """Move a factor per column from the loadings to the factors."""
        if (by == 1.0).all():
            return self
        loadings, factors = self.loadings / like(self.loadings, by), self.factors * like(self.factors, by)
        return replace(self, loadings=loadings, factors=factors)

    def arrays(self) -> dict[str, Array]:
        """Give the arrays by name."""
        named = {"loadings": self.loadings, "factors": self.factors, "effects": self.effects}
        return {name: array for name, array in named.items() if array is not None}

    def on_host(self) -> Pair:
        """Give the same pair as NumPy arrays."""
        return replace(self, loadings=on_host(self.loadings), factors=on_host(self.factors))


@dataclass(frozen=True, eq=False)
class State:
    """All that the solver needs to go on after an iteration as if it had not stopped there.

    Parameters
    ----------
    index : int
        Of the iteration.
    objective : float
        Accepted there.
    updated : Pair
        What its two half-steps led to.
    previous : Pair
        Where the direction of the next extrapolation begins.
    schedule : tuple of float, optional
        `log1pnmf.fitting.solver.extrapolate.Extrapolation.state`; None without extrapolation.
    """

    index: int
    objective: float
    updated: Pair
    previous: Pair
    schedule: tuple[float, ...] | None


@dataclass(frozen=True, eq=False)
class Iteration:
    """A point the solver has been at, with what is known there.

    Parameters
    ----------
    index : int
        Number of iterations that led here, lost ones included; 0 is the start.
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the eta scale, in the arrays of the engine. Never changed afterwards, so they may be kept without a
        copy.
    loss : float
        Negative log-likelihood, penalty excluded.
    objective : float
        Loss + penalty: what is minimised, and never rises from one iteration to the next.
    relative_change : float
        How much the objective fell, relative to its size; NaN at the start, and where the problem was renewed
        and the same point is looked at again.
    kkt_residual : float
        See `log1pnmf.model.optimality.kkt_residual`. The part of the side that follows (see `alternate`) is
        taken before its last update.
    beta : float
        Extrapolation that led here; 0 for a plain update.
    seconds : float
        Since the solver started.
    restarted : bool
        Whether an extrapolated point had to be dropped first.
    n_rejected : int
        Rows whose full step was backtracked, in the two half-steps of this iteration.
    likelihood : {"exact", "approximate", "adaptive"}
        Which one `loss` is.
    state : State, optional
        For going on from here; callbacks of a fit are not given it.
    effects : ndarray of shape (B, m), optional
        Of batches, where the solver finds them in every iteration.
    """

    index: int
    loadings: Array
    factors: Array
    loss: float
    objective: float
    relative_change: float
    kkt_residual: float
    beta: float
    seconds: float
    restarted: bool
    n_rejected: int
    likelihood: Likelihood
    state: State | None = None
    effects: Array | None = None

    def on_host(self) -> Iteration:
        """Give the same iteration with NumPy arrays, and without `state`."""
        return replace(self, loadings=on_host(self.loadings), factors=on_host(self.factors), state=None)
