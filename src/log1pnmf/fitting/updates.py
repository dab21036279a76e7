"""Renewals: the problem of a fit is changed a little on the way, because a better one is known by then."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine
from log1pnmf.model.batch_effects import renewed_effects
from log1pnmf.model.batches import Batches
from log1pnmf.model.constraint import Constraint
from log1pnmf.model.dispersion import FIRST_DISPERSION, DispersionKind, renewed
from log1pnmf.model.noise import POISSON, NegativeBinomial, Noise
from log1pnmf.model.problem import Problem, SizePrior
from log1pnmf.model.size_factors import WEIGHT, levelled
from log1pnmf.model.zeros import AdaptiveZeros, caps_for, choose

from .settings import Settings
from .solver import Pair, effects_of, with_exposure

# ---------- renewals

LARGEST_STORED = 1.0 / 3.0
"""Part of all entries from which visiting all of them costs less than visiting the poor ones."""

LAST_SECOND_LOOK = 31
"""Iteration up to which a fit that visits all zeros looks whether fewer would do by now."""

SLACK, LATER_SLACK = 0.5, 0.8
"""Part of the tolerance that a renewal may use: factors change afterwards, and errors grow. The second is for
dispersions after `LAST_EARLY`: visited zeros are most of the cost there, and factors change less."""

EARLY, LAST_EARLY = 10.0, 15
"""Errors that are allowed at first, in tolerances, and the iteration up to which they are."""

BEYOND = 1e-9
"""Part of the objective that one side may have and the other not, before zeros are chosen anew."""

Remake: TypeAlias = Callable[[Problem], Engine]
"""Makes an engine of the same kind for another problem of the same counts."""


class Renewed(NamedTuple):
    """The engine of a renewed problem, and the point from which to go on."""

    engine: Engine
    at: Pair


class Renewal(Protocol):
    """Looks at a point now and then, and changes the problem where that is due."""

    def begin(self, engine: Engine) -> Engine:
        """Return the engine with which the start is found."""
        ...

    def __call__(self, engine: Engine, at: Pair, loss: float, *, index: int, final: bool) -> Renewed | None:
        """Return the engine of the updated problem and its point; None where the old one will do."""
        ...


def is_due(index: int, *, often: bool = False) -> bool:
    """Whether to look after that iteration: often at first, when factors change most.

    >>> [index for index in range(100) if is_due(index)]
    [1, 3, 7, 15, 31, 63]
    >>> [index for index in range(100) if is_due(index, often=True)]
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
    """
    if often:
        return (
            index > 0 and index >> max(0, index.bit_length() - 2) << max(0, index.bit_length() - 2) == index
        )
    return index > 0 and index & (index + 1) == 0


@dataclass(frozen=True, eq=False)
class AdaptiveRenewal:
    """Chooses which zeros are visited, and the quadratics of all others."""

    remake: Remake  # makes the engine of the renewed problem
    # errors of the quadratics, summed up without regard to their sign, relative to the log-likelihood
    tolerance: float
    # so many times larger errors are allowed at first, when factors are still far from where they end
    early: float = EARLY
    # visit all zeros where the fit would end, and from then on: a fit that is exact at its end
    ends_exact: bool = False

    def begin(self, engine: Engine) -> Engine:
        """Choose by the mean rate of every feature; without a concave part, which would not hold for long."""
        problem = engine.problem
        rates = problem.counts.by_column.row_sums() / problem.size_factors.sum()
        profile = (problem.link.link(rates) / problem.link.alpha)[:, None]
        at = Pair(np.ones((problem.counts.n_samples, 1)), profile)
        return self.chosen(engine, at, problem.counts.total, self.early * self.tolerance, straight=True)

    def __call__(
        self, engine: Engine, at: Pair, loss: float, *, index: int, final: bool, error: float | None = None
    ) -> Renewed | None:
        """See `Renewal`; `error` is that of the quadratics at the point, where it is known."""
        tolerance = self.tolerance * (1.0 if final or index > LAST_EARLY else self.early)
        if not isinstance(engine.problem.zeros, AdaptiveZeros):  # all are visited; by a poor start, perhaps
            stays = final or index > LAST_SECOND_LOOK or self.ends_exact
            fewer = None if stays else self._fewer(engine, at, loss, tolerance, index)
            return None if fewer is None else Renewed(fewer, at)
        if final and self.ends_exact:
            return Renewed(self._exact(engine.problem), at)
        limit = tolerance * abs(loss)
        if error is None:
            error = engine.zero_errors(at.loadings, at.factors, roughly=not final)[1]
        if error <= limit and not (final and _is_beyond(engine, at)):
            return None
        fresh = self.chosen(engine, at, loss, tolerance, straight=not final and index < LAST_EARLY)
        zeros = fresh.problem.zeros
        if isinstance(zeros, AdaptiveZeros) and zeros.error > max(limit, SLACK * error):
            return None  # it cannot be much less
        return Renewed(fresh, at)

    def _fewer(self, engine: Engine, at: Pair, loss: float, tolerance: float, index: int) -> Engine | None:
        """Choose anew where all zeros are visited; None where most would have to be."""
        fresh = self.chosen(engine, at, loss, tolerance, straight=index < LAST_EARLY)
        zeros = fresh.problem.zeros
        few = 0.5 * LARGEST_STORED * math.prod(engine.problem.counts.shape)
        return fresh if isinstance(zeros, AdaptiveZeros) and zeros.stored.nnz <= few else None

    def chosen(
        self, engine: Engine, at: Pair, loss: float, tolerance: float | None = None, *, straight: bool = False
    ) -> Engine:
        """Choose anew."""
        tolerance = self.tolerance if tolerance is None else tolerance
        problem, dispersed = engine.problem, engine.problem.noise.name != "poisson"
        limit = (LATER_SLACK if dispersed and not straight else SLACK) * tolerance * abs(loss)
        caps = caps_for(tolerance, dispersed=dispersed)
        chosen = choose(engine.survey_zeros(at.loadings, at.factors, caps, straight=straight), limit)
        if chosen.n_above > LARGEST_STORED * math.prod(problem.counts.shape):
            return self._exact(problem)
        stored, exposure = engine.collect_zeros(at.loadings, at.factors, chosen.caps)
        adaptive = AdaptiveZeros(chosen.quadratics, stored, exposure, chosen.caps, chosen.error)
        return self.remake(replace(problem, zeros=adaptive))

    def is_last(self, problem: Problem, *, final: bool) -> bool:
        """Whether all zeros are visited from now on; of a problem that was fitted so far."""
        return self.ends_exact and (final or problem.zeros is None)

    def _exact(self, problem: Problem) -> Engine:
        return self.remake(replace(problem, zeros=None))


def _is_beyond(engine: Engine, at: Pair) -> bool:
    """Whether a row has left where its concave part holds: then the objectives of the two sides differ."""
    problem = engine.problem
    if not (isinstance(problem.zeros, AdaptiveZeros) and problem.zeros.is_bent):
        return False
    one, _ = engine.evaluate(problem.loadings_side, at.loadings, at.factors)
    other, _ = engine.evaluate(problem.factors_side, at.factors, at.loadings)
    return abs(one - other) > BEYOND * abs(one)


# ---------- renewals of a model's parameters: size factors, dispersions, effects of batches

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
    """A problem with better parameters."""

    # the same one where nothing is better. Its zeros do not matter, unless the improvement `keeps_zeros`
    problem: Problem
    gain: float  # of ``loss + problem.cost``, all zeros visited; inf for a change that is made in any case
    at: Pair | None = None  # where loadings had to move along


class Improvement(Protocol):
    """Finds better parameters of the model for the loadings and factors there are."""

    keeps_zeros: ClassVar[KeepsZeros]
    """Whether the zeros of the problem that it gives are those of its parameters, or nearly so."""

    def __call__(self, problem: Problem, at: Pair, *, index: int, final: bool) -> Improved:
        """Return the problem with other parameters, and how much lower its objective is."""
        ...


@dataclass(frozen=True, eq=False)
class ParameterRenewal:
    """Improves parameters of the model one after the other, and then chooses zeros anew."""

    remake: Remake  # makes the engine of the renewed problem
    improvements: tuple[Improvement, ...]  # each is given the problem that the one before has left
    tol: float  # what lowers the objective by less, relative to its size, is not worth a renewal
    zeros: AdaptiveRenewal | None = None  # chooses zeros for new parameters, and where these stay

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
    """Finds the dispersions of negative binomial noise."""

    keeps_zeros: ClassVar[KeepsZeros] = "nearly"
    remake: Remake  # makes the engine that looks at the means
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
    """Return the problem with which a fit begins. Of resolved settings."""
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
        batches, gain = renewed_effects(
            problem, at.loadings, at.factors, sums=engine.batch_sums, dispersed=engine.dispersed_sums
        )
        return Improved(with_exposure(problem, batches=batches), gain)


def first_noise(settings: Settings, n_features: int) -> Noise:
    """Return the noise with which a fit begins whose dispersions are not given."""
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
    """Return what changes the problem of a fit on the way; None for most fits. Of resolved settings."""
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
