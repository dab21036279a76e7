"""The parameters of a fit, checked before any work is done."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, cast

import numpy as np

from .approximation import KINDS, Quadratic, quadratic
from .engines.base import ROW_SOLVERS, RowSolver
from .engines.native import effective_threads
from .engines.registry import ENGINES, NEWTON_ONLY
from .initialize import check_init
from .link import ShiftedLog
from .solver.callbacks import Callback

__all__ = ["LIKELIHOODS", "Phase", "Settings"]

LIKELIHOODS = ("auto", "approximate", "exact", "refined")
SMALLEST_C, LARGEST_C = 1e-9, 1e12
LOOSER = 10.0  # tolerance of the approximate phase before an exact one, relative to `tol`


@dataclass(frozen=True)
class Phase:
    """One run of the solver.

    Parameters
    ----------
    likelihood : {"approximate", "exact"}
    zeros : Quadratic or None
        Treatment of zero counts.
    tol : float
    """

    likelihood: Literal["approximate", "exact"]
    zeros: Quadratic | None
    tol: float


@dataclass(frozen=True, eq=False)
class Settings:
    """Parameters of `log1pnmf.fitting.fit_log1p_nmf`, which documents them."""

    n_components: int
    c: float
    likelihood: str
    approximation: str
    interval: tuple[float, float] | None
    size_factors: Any
    init: Any
    n_init: int
    l1: float
    row_solver: RowSolver
    extrapolate: bool | Literal["auto"]
    max_iter: int
    tol: float
    n_jobs: int | None
    engine: str
    callbacks: Sequence[Callback]
    verbose: int

    def __post_init__(self) -> None:
        check_whole("n_components", self.n_components, least=1)
        link = ShiftedLog(self.c)
        if not (SMALLEST_C <= link.c <= LARGEST_C or link.is_identity):
            raise ValueError(
                f"c must be between {SMALLEST_C:.0e} and {LARGEST_C:.0e}, or inf, got {link.c:g}: beyond "
                "that double precision does not hold the model; pass inf for what a larger c tends to"
            )
        check_choice("likelihood", self.likelihood, LIKELIHOODS)
        check_choice("approximation", self.approximation, KINDS)
        quadratic(link, self.approximation, self.interval)
        if isinstance(self.size_factors, str) and self.size_factors not in ("total", "none"):
            raise ValueError(f"size_factors must be 'total', 'none' or an array, got {self.size_factors!r}")
        check_init(self.init)
        check_whole("n_init", self.n_init, least=1)
        if self.n_init > 1 and not isinstance(self.init, str):
            raise ValueError(f"n_init must be 1 with a given start, got {self.n_init}: all would be the same")
        check_number("l1", self.l1)
        check_choice("row_solver", self.row_solver, ROW_SOLVERS)
        if not isinstance(self.extrapolate, bool | np.bool_) and not _is_auto(self.extrapolate):
            raise ValueError(f"extrapolate must be True, False or 'auto', got {self.extrapolate!r}")
        check_whole("max_iter", self.max_iter, least=1)
        check_number("tol", self.tol)
        effective_threads(self.n_jobs)
        check_choice("engine", self.engine, ENGINES)
        if self.engine in NEWTON_ONLY and self.row_solver != "newton":
            raise ValueError(
                f"engine={self.engine!r} has row_solver='newton' only, got {self.row_solver!r}; "
                "use engine='native' for the paper's solver"
            )
        if not isinstance(self.callbacks, Iterable):
            raise TypeError(f"callbacks must be a sequence of callables, got {self.callbacks!r}; pass a list")
        for callback in self.callbacks:
            if not callable(callback):
                raise TypeError(f"callbacks must be callable, got {callback!r}")
        if not isinstance(self.verbose, bool | np.bool_):
            check_whole("verbose", self.verbose, least=0)

    @property
    def link(self) -> ShiftedLog:
        """The link function."""
        return ShiftedLog(self.c)

    @property
    def resolved_likelihood(self) -> str:
        """Likelihood with "auto" decided; the identity link is always exact (at sparse cost)."""
        if self.link.is_identity:
            return "exact"
        if self.likelihood == "auto":
            return "approximate" if self.c >= 1 else "exact"
        return self.likelihood

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Runs of the solver, each starting where the one before ended."""
        exact = Phase("exact", None, self.tol)
        if self.resolved_likelihood == "exact":
            return (exact,)
        zeros = quadratic(self.link, self.approximation, self.interval)
        if self.resolved_likelihood == "approximate":
            return (Phase("approximate", zeros, self.tol),)
        return (Phase("approximate", zeros, LOOSER * self.tol), exact)

    @property
    def extrapolates(self) -> bool:
        """Extrapolation with "auto" decided: the coordinate solver is the paper's, and has none."""
        return self.row_solver == "newton" if self.extrapolate == "auto" else bool(self.extrapolate)

    @property
    def upper(self) -> float:
        """Bound of the loadings: 1 where the factors are penalised."""
        return 1.0 if self.l1 > 0 else math.inf

    @property
    def penalty(self) -> np.ndarray:
        """Penalty on the factors on the eta scale: none on the baseline, the first column."""
        penalty = np.full(self.n_components, self.l1 * self.link.alpha)
        penalty[0] = 0.0
        return penalty

    def as_dict(self) -> dict[str, Any]:
        """Parameters with "auto" replaced by what it stands for; arrays are only named as given."""
        return {
            "n_components": int(self.n_components),
            "c": float(self.c),
            "likelihood": self.resolved_likelihood,
            "approximation": self.approximation,
            "interval": self.interval,
            "size_factors": self.size_factors if isinstance(self.size_factors, str) else "given",
            "init": self.init if isinstance(self.init, str) else "given",
            "n_init": int(self.n_init),
            "l1": float(self.l1),
            "row_solver": self.row_solver,
            "extrapolate": self.extrapolates,
            "max_iter": int(self.max_iter),
            "tol": float(self.tol),
            "n_jobs": effective_threads(self.n_jobs),
            "engine": self.engine,
        }


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is not one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == "auto"


def check_whole(name: str, value: object, *, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if cast(int, value) < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_number(name: str, value: object) -> None:
    """Refuse what is not a finite number >= 0."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0.0 <= float(value) < math.inf:
        raise ValueError(f"{name} must be finite and not negative, got {value}")
