"""Updates: the problem of a fit is changed a little on the way, because a better one is known by then."""

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
from .solver import Point, effects_of, with_exposure

# ---------- renewals

LARGEST_STORED = 1.0 / 3.0
"""Part of all entries from which visiting all of them costs less than visiting the poor ones."""

LAST_SECOND_LOOK = 31
"""Iteration up to which a fit that visits all zeros looks whether fewer would do by now."""

SLACK, LATER_SLACK = 0.5, 0.8
"""Part of the tolerance that an update may use: factors change afterwards, and errors grow. The second is for
dispersions after `LAST_EARLY`: visited zeros are most of the cost there, and factors change less."""

EARLY, LAST_EARLY = 10.0, 15
"""Errors that are allowed at first, in tolerances, and the iteration up to which they are."""

BEYOND = 1e-9
"""Part of the objective that one side may have and the other not, before zeros are chosen anew."""

Remake: TypeAlias = Callable[[Problem], Engine]
"""Makes an engine of the same kind for another problem of the same counts."""


class Update(NamedTuple):
    """A problem that takes the place of another one on the way."""

    problem: Problem
    gain: float = 0.0  # of ``loss + problem.cost`` by better parameters, all zeros visited
    point: Point | None = None  # where to go on, if loadings had to move along


class ProblemUpdate(Protocol):
    """Looks at a point now and then, and changes the problem where that is due."""

    def begin(self, engine: Engine) -> Problem:
        """Return the problem with which the start is found."""
        ...

    def __call__(self, engine: Engine, at: Point, loss: float, *, index: int, final: bool) -> Update | None:
        """Return an update of the problem; None where the old one will do."""
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
class AdaptiveUpdate:
    """Chooses which zeros are visited, and the quadratics of all others."""

    # errors of the quadratics, summed up without regard to their sign, relative to the log-likelihood
    tolerance: float
    # so many times larger errors are allowed at first, when factors are still far from where they end
    early: float = EARLY
    # visit all zeros where the fit would end, and from then on: a fit that is exact at its end
    ends_exact: bool = False

    def begin(self, engine: Engine) -> Problem:
        """Choose by the mean rate of every feature; without a concave part, which would not hold for long."""
        problem = engine.problem
        rates = problem.counts.by_column.row_sums() / problem.size_factors.sum()
        profile = (problem.link.link(rates) / problem.link.alpha)[:, None]
        at = Point(np.ones((problem.counts.n_samples, 1)), profile)
        return self.chosen(engine, at, problem.counts.total, self.early * self.tolerance, straight=True)

    def __call__(
        self, engine: Engine, at: Point, loss: float, *, index: int, final: bool, error: float | None = None
    ) -> Update | None:
        """See `ProblemUpdate`; `error` is that of the quadratics at the point, where it is known."""
        tolerance = self.tolerance * (1.0 if final or index > LAST_EARLY else self.early)
        problem, straight = engine.problem, not final and index < LAST_EARLY
        if not isinstance(problem.zeros, AdaptiveZeros):  # all are visited; by a poor start, perhaps
            if final or index > LAST_SECOND_LOOK or self.ends_exact:
                return None
            fresh = self.chosen(engine, at, loss, tolerance, straight=straight)
            few = 0.5 * LARGEST_STORED * math.prod(problem.counts.shape)
            few_enough = isinstance(fresh.zeros, AdaptiveZeros) and fresh.zeros.stored.nnz <= few
            return Update(fresh) if few_enough else None
        if final and self.ends_exact:
            return Update(replace(problem, zeros=None))
        limit = tolerance * abs(loss)
        if error is None:
            error = engine.zero_errors(at.loadings, at.factors, roughly=not final)[1]
        if error <= limit and not (final and _is_beyond(engine, at)):
            return None
        fresh = self.chosen(engine, at, loss, tolerance, straight=straight)
        if isinstance(fresh.zeros, AdaptiveZeros) and fresh.zeros.error > max(limit, SLACK * error):
            return None  # it cannot be much less
        return Update(fresh)

    def chosen(
        self,
        engine: Engine,
        at: Point,
        loss: float,
        tolerance: float | None = None,
        *,
        straight: bool = False,
    ) -> Problem:
        """Choose anew."""
        tolerance = self.tolerance if tolerance is None else tolerance
        problem, dispersed = engine.problem, engine.problem.noise.name != "poisson"
        limit = (LATER_SLACK if dispersed and not straight else SLACK) * tolerance * abs(loss)
        caps = caps_for(tolerance, dispersed=dispersed)
        chosen = choose(engine.survey_zeros(at.loadings, at.factors, caps, straight=straight), limit)
        if chosen.n_above > LARGEST_STORED * math.prod(problem.counts.shape):
            return replace(problem, zeros=None)
        stored, exposure = engine.collect_zeros(at.loadings, at.factors, chosen.caps)
        adaptive = AdaptiveZeros(chosen.quadratics, stored, exposure, chosen.caps, chosen.error)
        return replace(problem, zeros=adaptive)

    def is_last(self, problem: Problem, *, final: bool) -> bool:
        """Whether all zeros are visited from now on; of a problem that was fitted so far."""
        return self.ends_exact and (final or problem.zeros is None)


def _is_beyond(engine: Engine, at: Point) -> bool:
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


class Improvement(Protocol):
    """Finds better parameters of the model for the loadings and factors there are."""

    keeps_zeros: ClassVar[KeepsZeros]
    """Whether the zeros of the problem that it gives are those of its parameters, or nearly so."""

    def __call__(self, problem: Problem, at: Point, *, index: int, final: bool) -> Update:
        """Return the problem with other parameters, and how much lower its objective is."""
        ...


@dataclass(frozen=True, eq=False)
class ParameterUpdate:
    """Improves parameters of the model one after the other, and then chooses zeros anew."""

    remake: Remake  # makes the engine of the renewed problem
    improvements: tuple[Improvement, ...]  # each is given the problem that the one before has left
    tol: float  # what lowers the objective by less, relative to its size, is not worth an update
    zeros: AdaptiveUpdate | None = None  # chooses zeros for new parameters, and where these stay

    def begin(self, engine: Engine) -> Problem:
        """Find the start with the parameters there are."""
        return engine.problem if self.zeros is None else self.zeros.begin(engine)

    def __call__(self, engine: Engine, at: Point, loss: float, *, index: int, final: bool) -> Update | None:
        """See `ProblemUpdate`."""
        problem, here, kept, gained = engine.problem, at.on_host(), {"yes"}, 0.0
        for improve in self.improvements:
            better = improve(problem, here, index=index, final=final)
            if better.gain > self.tol * abs(loss):
                problem, gained = better.problem, gained + better.gain
                kept.add(improve.keeps_zeros)
                if better.point is not None:
                    at = here = better.point
        if problem is engine.problem:
            return None if self.zeros is None else self.zeros(engine, at, loss, index=index, final=final)
        if kept != {"yes"}:
            exact = replace(problem, zeros=None)
            if self.zeros is None:
                return Update(exact, gained, at)
            small = final and gained <= SMALL_GAIN * self.zeros.tolerance * abs(loss)
            if self.zeros.is_last(engine.problem, final=small):
                return Update(exact, gained, at)
            if not small or "no" in kept:
                early = not final and index < LAST_EARLY
                tolerance = self.zeros.tolerance * (self.zeros.early if early else 1.0)
                fresh = self.zeros.chosen(self.remake(exact), at, loss, tolerance, straight=early)
                return Update(fresh, gained, at)
        if self.zeros is not None and (final or is_due(index)):
            again = self.zeros(self.remake(problem), at, loss, index=index, final=final)
            problem = problem if again is None else again.problem
        return Update(problem, gained, at)


@dataclass(frozen=True)
class BetterDispersions:
    """Finds the dispersions of negative binomial noise."""

    keeps_zeros: ClassVar[KeepsZeros] = "nearly"
    remake: Remake  # makes the engine that looks at the means
    kind: DispersionKind

    def __call__(self, problem: Problem, at: Point, *, index: int, final: bool) -> Update:
        """See `Improvement`."""
        noise = problem.noise
        assert isinstance(noise, NegativeBinomial)
        if noise.prior is None and index < FIRST_DISPERSIONS and not final:
            return Update(problem, 0.0)
        means = self.remake(replace(problem, zeros=None)).mean_spectrum(at.loadings, at.factors)
        point = at.loadings, at.factors
        new, gain = renewed(problem, *point, kind=self.kind, before=noise, spectrum=means)
        return Update(replace(problem, noise=new), gain)


@dataclass(frozen=True, eq=False)
class BetterSizes:
    """Improves size factors, and loadings and factors with them."""

    constraint: Constraint
    keeps_zeros: ClassVar[KeepsZeros] = "yes"

    def __call__(self, problem: Problem, at: Point, *, index: int, final: bool) -> Update:
        """See `Improvement`."""
        if index < FIRST_SIZES and not final:
            return Update(problem, 0.0)
        host = replace(problem, counts=problem.counts.on_host())
        found = levelled(host, at.loadings, at.factors, self.constraint)
        better = with_exposure(problem, size_factors=found.size_factors)
        return Update(better, found.gain, Point(found.loadings, found.factors))


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

    def __call__(self, problem: Problem, at: Point, *, index: int, final: bool) -> Update:
        """See `Improvement`."""
        engine = self.remake(problem)
        if index and not final and effects_of(engine, self.remake) is not None:
            return Update(problem, 0.0)
        batches, gain = renewed_effects(
            problem, at.loadings, at.factors, sums=engine.batch_sums, dispersed=engine.dispersed_sums
        )
        return Update(with_exposure(problem, batches=batches), gain)


def first_noise(settings: Settings, n_features: int) -> Noise:
    """Return the noise with which a fit begins whose dispersions are not given."""
    if settings.noise == "poisson":
        return POISSON
    return NegativeBinomial(np.full(n_features, FIRST_DISPERSION))


def update_of(
    settings: Settings,
    remake: Remake,
    counts: Counts,
    *,
    batched: bool = False,
    constraint: Constraint | None = None,
) -> ProblemUpdate | None:
    """Return what changes the problem of a fit on the way; None for most fits. Of resolved settings."""
    zeros = None
    if settings.likelihood == "adaptive" or settings.begins_adaptive(counts):
        exact = settings.likelihood == "exact"
        zeros = AdaptiveUpdate(settings.zeros_tol, ends_exact=exact)
    improvements: list[Improvement] = []
    if settings.fits_sizes:
        improvements.append(BetterSizes(settings.constraint if constraint is None else constraint))
    if settings.noise == "nb" and settings.dispersion in get_args(DispersionKind):
        improvements.append(BetterDispersions(remake, cast(DispersionKind, settings.dispersion)))
    if batched:
        improvements.append(BetterEffects(remake))
    if not improvements:
        return zeros
    return ParameterUpdate(remake, tuple(improvements), settings.tol, zeros)
