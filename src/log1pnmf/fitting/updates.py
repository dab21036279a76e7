"""Updates: the problem of a fit is changed a little on the way, because a better one is known by then."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine
from log1pnmf.model.batch_effects import renewed_effects
from log1pnmf.model.batches import Batches
from log1pnmf.model.dispersion import FIRST_DISPERSION, DispersionKind, renewed
from log1pnmf.model.noise import POISSON, NegativeBinomial, Noise
from log1pnmf.model.problem import Constraint, Problem, SizePrior
from log1pnmf.model.size_factors import WEIGHT, levelled
from log1pnmf.model.zeros import AdaptiveZeros, caps_for, choose

from .settings import Settings
from .solver import Point, finds_effects, with_exposure

# ---------- updates of the zeros that are visited

Array = NDArray[np.float64]

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


class Update(NamedTuple):
    """A problem that takes the place of another one on the way."""

    problem: Problem
    gain: float = 0.0  # of ``loss + problem.cost`` by better parameters, all zeros visited
    point: Point | None = None  # where to go on, if loadings had to move along


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
        """Return the problem with which the start is found; zeros are chosen by the mean rates of features.

        There is no concave part, which would not hold for long.
        """
        problem = engine.problem
        rates = problem.counts.by_column.row_sums() / problem.size_factors.sum()
        profile = (problem.link.link(rates) / problem.link.alpha)[:, None]
        at = Point(np.ones((problem.counts.n_samples, 1)), profile)
        return self.chosen(engine, at, problem.counts.total, self.early * self.tolerance, straight=True)

    def __call__(
        self, engine: Engine, at: Point, loss: float, *, index: int, final: bool, error: float | None = None
    ) -> Update | None:
        """Return an update of the problem, None where the old one will do.

        `error`: of the quadratics at the point, where it is known.
        """
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


def _is_beyond(engine: Engine, at: Point) -> bool:
    """Whether a row has left where its concave part holds: then the objectives of the two sides differ."""
    problem = engine.problem
    if not (isinstance(problem.zeros, AdaptiveZeros) and problem.zeros.is_bent):
        return False
    one, _ = engine.evaluate(problem.loadings_side, at.loadings, at.factors)
    other, _ = engine.evaluate(problem.factors_side, at.factors, at.loadings)
    return abs(one - other) > BEYOND * abs(one)


# ---------- updates of the parameters of the model: size factors, dispersions, effects of batches

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


@dataclass(frozen=True, eq=False)
class ParameterUpdate:
    """Improves parameters of the model one after the other, and then chooses zeros anew."""

    tol: float  # what lowers the objective by less, relative to its size, is not worth an update
    zeros: AdaptiveUpdate | None  # chooses zeros for new parameters, and where these stay
    sizes: Constraint | None  # of the fit, where size factors are fitted
    dispersion: DispersionKind | None  # where dispersions are fitted
    effects: bool  # whether there are batches

    def begin(self, engine: Engine) -> Problem:
        """Return the problem with which the start is found, with the parameters there are."""
        return engine.problem if self.zeros is None else self.zeros.begin(engine)

    def __call__(self, engine: Engine, at: Point, loss: float, *, index: int, final: bool) -> Update | None:
        """Return an update of the problem, None where the old one will do."""
        problem, here, gained = engine.problem, at.on_host(), 0.0
        for improve in (self._sizes, self._dispersions, self._effects):
            better = improve(engine, problem, here, index=index, final=final)
            if better is not None and better.gain > self.tol * abs(loss):
                problem, gained = better.problem, gained + better.gain
                if better.point is not None:
                    at = here = better.point
        if problem is engine.problem:
            return None if self.zeros is None else self.zeros(engine, at, loss, index=index, final=final)
        if (
            problem.noise is not engine.problem.noise
        ):  # zeros that are visited are nearly those of the new one
            exact = replace(problem, zeros=None)
            if self.zeros is None:
                return Update(exact, gained, at)
            small = final and gained <= SMALL_GAIN * self.zeros.tolerance * abs(loss)
            if self.zeros.ends_exact and (small or engine.problem.zeros is None):
                return Update(exact, gained, at)
            if not small:
                early = not final and index < LAST_EARLY
                tolerance = self.zeros.tolerance * (self.zeros.early if early else 1.0)
                fresh = self.zeros.chosen(engine.with_problem(exact), at, loss, tolerance, straight=early)
                return Update(fresh, gained, at)
        if self.zeros is not None and (final or is_due(index)):
            again = self.zeros(engine.with_problem(problem), at, loss, index=index, final=final)
            problem = problem if again is None else again.problem
        return Update(problem, gained, at)

    def _sizes(
        self, engine: Engine, problem: Problem, at: Point, *, index: int, final: bool
    ) -> Update | None:
        """Improve size factors, and loadings and factors with them."""
        if self.sizes is None or (index < FIRST_SIZES and not final):
            return None
        host = replace(problem, counts=problem.counts.on_host())
        found = levelled(host, at.loadings, at.factors, self.sizes)
        better = with_exposure(problem, size_factors=found.size_factors)
        return Update(better, found.gain, Point(found.loadings, found.factors))

    def _dispersions(
        self, engine: Engine, problem: Problem, at: Point, *, index: int, final: bool
    ) -> Update | None:
        """Find the dispersions of negative binomial noise."""
        noise = problem.noise
        if self.dispersion is None or not isinstance(noise, NegativeBinomial):
            return None
        if noise.prior is None and index < FIRST_DISPERSIONS and not final:
            return None
        exact, point = engine.with_problem(replace(problem, zeros=None)), (at.loadings, at.factors)
        means = exact.mean_spectrum(*point)
        new, gain = renewed(problem, *point, kind=self.dispersion, before=noise, spectrum=means)
        return Update(replace(problem, noise=new), gain)

    def _effects(
        self, engine: Engine, problem: Problem, at: Point, *, index: int, final: bool
    ) -> Update | None:
        """Find the effects of batches, unless the solver does so in every iteration."""
        if not self.effects:
            return None
        here = engine.with_problem(problem)
        if index and not final and finds_effects(here):
            return None
        batches, gain = renewed_effects(
            problem, at.loadings, at.factors, sums=here.batch_sums, dispersed=here.dispersed_sums
        )
        return Update(with_exposure(problem, batches=batches), gain)


ProblemUpdate: TypeAlias = AdaptiveUpdate | ParameterUpdate
"""Evaluates a point now and then, and changes the problem where that is due."""


def first_problem(
    settings: Settings, counts: Counts, size_factors: Array, noise: Noise, batches: Batches | None = None
) -> Problem:
    """Return the problem with which a fit begins. Of resolved settings."""
    common = np.full(len(size_factors), size_factors.mean())
    prior = SizePrior(common, WEIGHT) if settings.fits_sizes else None
    return Problem(counts, size_factors, settings.link, settings.zeros, noise, batches, prior)


def first_noise(settings: Settings, n_features: int) -> Noise:
    """Return the noise with which a fit begins whose dispersions are not given."""
    if settings.noise == "poisson":
        return POISSON
    return NegativeBinomial(np.full(n_features, FIRST_DISPERSION))


def update_of(
    settings: Settings, counts: Counts, *, batched: bool = False, constraint: Constraint | None = None
) -> ProblemUpdate | None:
    """Return what changes the problem of a fit on the way; None for most fits. Of resolved settings."""
    zeros = None
    if settings.likelihood == "adaptive" or settings.begins_adaptive(counts):
        zeros = AdaptiveUpdate(settings.zeros_tol, ends_exact=settings.likelihood == "exact")
    sizes = (constraint or settings.constraint) if settings.fits_sizes else None
    kind = settings.dispersion if settings.noise == "nb" else None
    dispersion = cast(DispersionKind, kind) if kind in get_args(DispersionKind) else None
    if sizes is None and dispersion is None and not batched:
        return zeros
    return ParameterUpdate(settings.tol, zeros, sizes, dispersion, batched)
