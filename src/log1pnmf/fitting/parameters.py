"""Renewals of a model's parameters: size factors, dispersions, effects of batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine
from log1pnmf.fitting.solver.effects import effects_of, with_exposure
from log1pnmf.fitting.solver.iteration import Pair
from log1pnmf.model.batch_effects import renewed_effects
from log1pnmf.model.batches import Batches
from log1pnmf.model.constraint import Constraint
from log1pnmf.model.dispersion import FIRST_DISPERSION, DispersionKind, renewed
from log1pnmf.model.negative_binomial import NegativeBinomial
from log1pnmf.model.noise import POISSON, Noise
from log1pnmf.model.problem import Problem, SizePrior
from log1pnmf.model.size_factors import WEIGHT, levelled

from .renewal import LAST_EARLY, AdaptiveRenewal, Remake, Renewal, Renewed, is_due
from .settings import Settings

__all__ = [
    "BetterDispersions",
    "BetterEffects",
    "BetterSizes",
    "Improved",
    "Improvement",
    "ParameterRenewal",
    "first_noise",
    "first_problem",
    "renewal_of",
]

Array = NDArray[np.float64]

FIRST_DISPERSIONS = 7
"""Iterations with the same dispersion for all features before any are found. At the start they would have to
explain what the factors do not explain yet, and fits would end in poor optima. Without any dispersion factors
would follow the scatter of the largest counts, and stay there."""

FIRST_SIZES = 3
"""Iterations with the first size factors."""

SMALL_GAIN = 0.01
"""Gain of better parameters, in tolerances of adaptive zeros, from which on it is the turn of exact ones.
Where those are not wanted, zeros stay as they are: another choice would change the objective by more than was
gained, and dispersions and choices could follow each other for ever."""

KeepsZeros: TypeAlias = Literal["yes", "nearly", "no"]


class Improved(NamedTuple):
    """A problem with better parameters.

    Parameters
    ----------
    problem : Problem
        The same one where nothing is better. Its zeros do not matter, unless the improvement `keeps_zeros`.
    gain : float
        Of ``loss + problem.cost``, all zeros visited; inf for a change that is made in any case.
    at : Pair, optional
        Where loadings had to move along.
    """

    problem: Problem
    gain: float
    at: Pair | None = None


class Improvement(Protocol):
    """Finds better parameters of the model for the loadings and factors there are."""

    keeps_zeros: ClassVar[KeepsZeros]
    """Whether the zeros of the problem that it gives are those of its parameters, or nearly so."""

    def __call__(self, problem: Problem, at: Pair, *, index: int, final: bool) -> Improved:
        """Give the problem with other parameters, and how much lower its objective is.

        Parameters
        ----------
        at : Pair
            NumPy arrays.
        index, final
            As in `Renewal`.
        """
        ...


@dataclass(frozen=True, eq=False)
class ParameterRenewal:
    """Improves parameters of the model one after the other, and then chooses zeros anew.

    Parameters
    ----------
    remake : callable
        Makes the engine of the renewed problem.
    improvements : tuple of Improvement
        Each is given the problem that the one before has left.
    tol : float
        What lowers the objective by less, relative to its size, is not worth a renewal.
    zeros : AdaptiveRenewal, optional
        Chooses zeros for new parameters, and where these stay.
    """

    remake: Remake
    improvements: tuple[Improvement, ...]
    tol: float
    zeros: AdaptiveRenewal | None = None

    def begin(self, engine: Engine) -> Engine:
        """Find the start with the parameters there are."""
        return engine if self.zeros is None else self.zeros.begin(engine)

    def __call__(self, engine: Engine, at: Pair, loss: float, *, index: int, final: bool) -> Renewed | None:
        """See `Renewal`."""
        problem, here, kept, gained = engine.problem, at.on_host(), {"yes"}, 0.0
        for improve in self.improvements:
            better = improve(problem, here, index=index, final=final)
            if better.gain > self.tol * abs(loss):
                problem, gained = better.problem, gained + better.gain
                kept.add(improve.keeps_zeros)
                if better.at is not None:
                    at = here = better.at
        if problem is engine.problem:
            return None if self.zeros is None else self.zeros(engine, at, loss, index=index, final=final)
        if kept != {"yes"}:
            exact = self.remake(replace(problem, zeros=None))
            if self.zeros is None:
                return Renewed(exact, at)
            small = final and gained <= SMALL_GAIN * self.zeros.tolerance * abs(loss)
            if self.zeros.is_last(engine.problem, final=small):
                return Renewed(exact, at)
            if not small or "no" in kept:
                early = not final and index < LAST_EARLY
                tolerance = self.zeros.tolerance * (self.zeros.early if early else 1.0)
                return Renewed(self.zeros.chosen(exact, at, loss, tolerance, straight=early), at)
        fresh = self.remake(problem)
        if self.zeros is None or not (final or is_due(index)):
            return Renewed(fresh, at)
        return self.zeros(fresh, at, loss, index=index, final=final) or Renewed(fresh, at)


@dataclass(frozen=True)
class BetterDispersions:
    """Finds the dispersions of negative binomial noise.

    Parameters
    ----------
    remake : callable
        Makes the engine that looks at the means.
    """

    keeps_zeros: ClassVar[KeepsZeros] = "nearly"
    remake: Remake
    kind: DispersionKind

    def __call__(self, problem: Problem, at: Pair, *, index: int, final: bool) -> Improved:
        """See `Improvement`."""
        noise = problem.noise
        assert isinstance(noise, NegativeBinomial)
        if noise.prior is None and index < FIRST_DISPERSIONS and not final:
            return Improved(problem, 0.0)
        means = self.remake(replace(problem, zeros=None)).mean_spectrum(at.loadings, at.factors)
        point = at.loadings, at.factors
        new, gain = renewed(problem, *point, kind=self.kind, before=noise, spectrum=means)
        return Improved(replace(problem, noise=new), gain)


@dataclass(frozen=True, eq=False)
class BetterSizes:
    """Improves size factors, and loadings and factors with them."""

    constraint: Constraint
    keeps_zeros: ClassVar[KeepsZeros] = "yes"

    def __call__(self, problem: Problem, at: Pair, *, index: int, final: bool) -> Improved:
        """See `Improvement`."""
        if index < FIRST_SIZES and not final:
            return Improved(problem, 0.0)
        host = replace(problem, counts=problem.counts.on_host())
        found = levelled(host, at.loadings, at.factors, self.constraint)
        better = with_exposure(problem, size_factors=found.size_factors)
        return Improved(better, found.gain, Pair(found.loadings, found.factors))


def first_problem(
    settings: Settings, counts: Counts, size_factors: Array, noise: Noise, batches: Batches | None = None
) -> Problem:
    """Give the problem with which a fit begins. Of resolved settings."""
    common = np.full(len(size_factors), size_factors.mean())
    prior = SizePrior(common, WEIGHT) if settings.fits_sizes else None
    return Problem(counts, size_factors, settings.link, settings.zeros, noise, batches, prior)


@dataclass(frozen=True)
class BetterEffects:
    """Finds the effects of batches, unless the solver does so in every iteration."""

    keeps_zeros: ClassVar[KeepsZeros] = "yes"
    remake: Remake

    def __call__(self, problem: Problem, at: Pair, *, index: int, final: bool) -> Improved:
        """See `Improvement`."""
        engine = self.remake(problem)
        if index and not final and effects_of(engine, self.remake) is not None:
            return Improved(problem, 0.0)
        dispersed = getattr(engine, "dispersed_sums", None)
        point = at.loadings, at.factors
        batches, gain = renewed_effects(problem, *point, sums=engine.batch_sums, dispersed=dispersed)
        return Improved(with_exposure(problem, batches=batches), gain)


def first_noise(settings: Settings, n_features: int) -> Noise:
    """Give the noise with which a fit begins whose dispersions are not given."""
    if settings.noise == "poisson":
        return POISSON
    return NegativeBinomial(np.full(n_features, FIRST_DISPERSION))


def renewal_of(
    settings: Settings,
    remake: Remake,
    counts: Counts,
    *,
    batched: bool = False,
    constraint: Constraint | None = None,
) -> Renewal | None:
    """Give what changes the problem of a fit on the way; None for most fits. Of resolved settings.

    Parameters
    ----------
    constraint : Constraint, optional
        That of the settings by default.
    """
    zeros = None
    if settings.likelihood == "adaptive" or settings.begins_adaptive(counts):
        exact = settings.likelihood == "exact"
        zeros = AdaptiveRenewal(remake, settings.zeros_tol, ends_exact=exact)
    improvements: list[Improvement] = []
    if settings.fits_sizes:
        improvements.append(BetterSizes(settings.constraint if constraint is None else constraint))
    if settings.noise == "nb" and settings.dispersion in get_args(DispersionKind):
        improvements.append(BetterDispersions(remake, cast(DispersionKind, settings.dispersion)))
    if batched:
        improvements.append(BetterEffects(remake))
    if not improvements:
        return zeros
    return ParameterRenewal(remake, tuple(improvements), settings.tol, zeros)
