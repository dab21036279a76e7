"""What decides a fit, as plain values: checked before any work, kept with the fit, the source of defaults."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from log1pnmf._common.checks import check_choice, check_number, check_whole
from log1pnmf.counts.counts import SIZE_FACTORS, Counts
from log1pnmf.engines.base import ROW_SOLVERS, RowSolver
from log1pnmf.engines.registry import ENGINES
from log1pnmf.model.dispersion import DispersionKind
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import FREE, Bounds, Constraint, Structure
from log1pnmf.model.zeros import QUADRATICS, Quadratic, QuadraticKind, quadratic

LikelihoodKind: TypeAlias = Literal["auto", "adaptive", "exact", QuadraticKind]
NoiseKind: TypeAlias = Literal["poisson", "nb", "auto"]
InitKind: TypeAlias = Literal["auto", "rank1", "random", "nndsvd"]
LIKELIHOODS: tuple[str, ...] = get_args(LikelihoodKind)
NOISES: tuple[str, ...] = get_args(NoiseKind)
INITS: tuple[str, ...] = get_args(InitKind)

GIVEN = "given"  # stands for what a user gave as arrays

LARGEST_EXACT = 2e8
"""Entries up to which the exact log-likelihood of an approximate fit is computed without being asked for.
An adaptive fit always has its own."""

LARGEST_EXACT_ON_CARD = 1e9
"""Entries up to which a card evaluates every one of them at about the cost of the non-zeros."""

SMALLEST_C, LARGEST_C = 1e-9, 1e12  # beyond that double precision does not hold the model

CHOICES = {
    "likelihood": LIKELIHOODS,
    "size_factors": SIZE_FACTORS,
    "noise": NOISES,
    "dispersion": get_args(DispersionKind),
    "init": INITS,
    "row_solver": ROW_SOLVERS,
    "engine": ENGINES,
}
OTHERWISE = {"size_factors": "an array", "dispersion": "an array", "init": "(loadings, factors) or a Fit"}
"""What users may give instead of a choice; it goes beside the settings."""
WHOLE = ("n_components", "n_init", "max_iter")
NUMBERS = ("l1", "mask_penalty", "tol", "zeros_tol")

SMALL, DENSE = 2e6, 0.25
"""Entries up to which, and part of them that is not zero from which, visiting all of them costs little."""


@dataclass(frozen=True)
class Settings:
    """All settings of a fit. Parameters as in `log1pnmf.Log1pNMF`.

    `size_factors`, `dispersion` and `init` are "given" where the user passed arrays; these go
    beside the settings (`log1pnmf.fitting.fit_counts.checked`).
    """

    n_components: int = 2
    c: float = 1.0
    likelihood: str = "auto"
    zeros_tol: float = 1e-4
    size_factors: str = "total"
    noise: str = "poisson"
    dispersion: str = "feature"
    init: str = "auto"
    n_init: int = 1
    l1: float = 0.0
    mask_penalty: float = math.inf
    row_solver: RowSolver = "newton"
    max_iter: int = 1000
    tol: float = 1e-9
    engine: str = "auto"
    random_state: int | None = 0
    link: ShiftedLog = field(init=False, repr=False, compare=False)
    # whether size factors are fitted; at c = inf loadings make up for any size
    fits_sizes: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if name not in OTHERWISE or getattr(self, name) != GIVEN:
                check_choice(name, getattr(self, name), choices, otherwise=OTHERWISE.get(name, ""))
        for name in WHOLE:  # plain numbers, so that settings compare and go into files
            check_whole(name, getattr(self, name), least=1)
            object.__setattr__(self, name, int(getattr(self, name)))
        link = ShiftedLog(self.c)
        fits_sizes = self.size_factors == "fit" and not link.is_identity
        self.__dict__.update(c=link.c, link=link, fits_sizes=fits_sizes)
        if not (SMALLEST_C <= self.c <= LARGEST_C or self.link.is_identity):
            raise ValueError(
                f"c must be between {SMALLEST_C:.0e} and {LARGEST_C:.0e}, or inf, got {self.c:g}: "
                "double precision cannot represent the model beyond that; for a very large c use "
                "inf, its limit"
            )
        for name in NUMBERS:
            check_number(name, getattr(self, name), finite=name != "mask_penalty")
            object.__setattr__(self, name, float(getattr(self, name)))
        poisson, newton = self.noise == "poisson", self.row_solver == "newton"
        if self.likelihood == "adaptive" and not newton:
            raise ValueError(
                "likelihood='adaptive' needs row_solver='newton', got 'coordinate', the paper's solver; use "
                "likelihood='exact', 'chebyshev' or 'taylor' with it"
            )
        if self.engine not in ("auto", "native") and not newton:
            raise ValueError(
                f"engine={self.engine!r} cannot be used here: it has row_solver='newton' only, got "
                f"{self.row_solver!r}; use engine='native' for the paper's solver"
            )
        if self.dispersion != Settings.dispersion and poisson:
            raise ValueError("dispersion is used by noise='nb' only; leave it out, or pass noise='nb'")
        if self.dispersion == GIVEN and self.noise == "auto":
            raise ValueError("noise='auto' chooses whether there is a dispersion; use noise='nb' to give one")
        if self.likelihood in QUADRATICS and not poisson:
            raise ValueError(
                f"likelihood={self.likelihood!r} supports noise='poisson' only; "
                f"with noise={self.noise!r} use 'adaptive' or 'auto'"
            )
        if not (newton or poisson):
            raise ValueError(f"row_solver must be 'newton' unless noise='poisson', got {self.row_solver!r}")

    def with_noise(self, noise: str) -> Settings:
        """Return the same with a noise that was chosen; dispersions are those of "nb" only."""
        return self.having(noise=noise, dispersion=self.dispersion if noise == "nb" else "feature")

    def having(self, **chosen: Any) -> Settings:
        """Return the same with values that a fit has chosen itself; they are not checked again."""
        other = copy(self)
        other.__dict__.update(chosen)
        return other

    def resolved(self, engine: str, counts: Counts) -> Settings:
        """Replace every "auto" by the choice for these counts and a resolved engine."""
        here = self.having(engine=engine)
        if self.link.is_identity and self.noise == "poisson":
            return here.having(likelihood="exact")  # at sparse cost
        if self.likelihood != "auto":
            return here
        return here.having(likelihood="adaptive" if here.why_exact(counts) is None else "exact")

    def why_exact(self, counts: Counts) -> str | None:
        """Describe why "auto" evaluates all zeros of `counts`, otherwise None. Of a resolved engine."""
        entries = math.prod(counts.shape)
        if self.row_solver == "coordinate":
            return "coordinate descent has no adaptive form"
        if entries <= SMALL:
            return f"there are only {entries:,} entries"
        if counts.nnz >= DENSE * entries:
            return f"{counts.nnz / entries:.0%} of the entries are not zero"
        if self.engine.startswith("torch") and entries <= LARGEST_EXACT_ON_CARD:
            return "on a GPU that costs about as much as the non-zeros alone"
        return None

    def begins_adaptive(self, counts: Counts) -> bool:
        """Whether an exact fit of `counts` evaluates few zeros until it has converged: where "auto" would."""
        cheap = self.link.is_identity and self.noise == "poisson"
        return self.likelihood == "exact" and not cheap and self.why_exact(counts) is None

    @property
    def zeros(self) -> Quadratic | None:
        """What replaces ``expm1`` at zero counts at first; None evaluates them. Of resolved settings."""
        return quadratic(self.link, self.likelihood) if self.likelihood in QUADRATICS else None


def constraint_of(settings: Settings, known: Structure | None = None) -> Constraint:
    """Return bounds and penalties of a fit, on the eta scale; with a penalty loadings are at most 1."""
    alpha = settings.link.alpha
    if known is not None:
        how: Any = {"l1": settings.l1, "mask_penalty": settings.mask_penalty, "alpha": alpha}
        return known.constraint(settings.n_components, **how)
    if settings.l1 == 0.0:
        return FREE
    penalty = np.full(settings.n_components, settings.l1 * alpha)
    penalty[0] = 0.0  # of the baseline
    return Constraint(Bounds(upper=1.0), Bounds(penalty=penalty))
