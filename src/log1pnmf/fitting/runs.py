"""Run every start to its end and keep the best; `Progress` is what resuming needs.

On the way the problem of a fit is updated a little, because a better one is known by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from log1pnmf._common.checks import Random, random_parts
from log1pnmf.engines.base import Engine
from log1pnmf.model.batch_effects import update_effects
from log1pnmf.model.dispersion import DispersionKind, update_dispersions
from log1pnmf.model.noise import NegativeBinomial
from log1pnmf.model.problem import Constraint, Problem, Structure
from log1pnmf.model.size_factors import update_size_factors
from log1pnmf.model.zeros import AdaptiveZeros, caps_for, choose

from .callbacks import Callback, ProgressBar
from .fit import Certificate, DataFacts, Fit, Stopped, arranged
from .fixed_factors import parts_of_known
from .settings import Settings
from .solver import (
    STATIONARY,
    Extrapolation,
    History,
    Iteration,
    Point,
    Stopping,
    alternate,
    engine_at,
    finds_effects,
    problem_at,
    residual_at,
    with_exposure,
)

# ---------- updates of the zeros to evaluate

LARGEST_STORED = 1.0 / 3.0
"""Part of all entries from which evaluating all of them costs less than evaluating the poor ones."""

LAST_SECOND_LOOK = 31  # iteration up to which a fit that evaluates all zeros checks whether fewer would do

SLACK, LATER_SLACK = 0.5, 0.8
"""Part of the tolerance that an update may use: factors change afterwards, and errors grow. The second is for
dispersions after `LAST_EARLY`: evaluated zeros are most of the cost there, and factors change less."""

EARLY, LAST_EARLY = 10.0, 15
"""Errors that are allowed at first, in tolerances, and the iteration up to which they are."""

BEYOND = 1e-9  # part of the objective that one side may have and the other not, before zeros are chosen anew


class Update(NamedTuple):
    """A problem that takes the place of another one on the way."""

    problem: Problem
    gain: float = 0.0  # of ``loss + problem.cost`` by better parameters, all zeros evaluated
    point: Point | None = None  # where to go on, if loadings had to move along


def is_due(index: int, *, often: bool = False) -> bool:
    """Whether to check after that iteration: often at first, when factors change most.

    >>> [index for index in range(100) if is_due(index)]
    [1, 3, 7, 15, 31, 63]
    >>> [index for index in range(100) if is_due(index, often=True)]
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
    """
    shift = max(0, index.bit_length() - 2)
    return index > 0 and (index >> shift << shift == index if often else index & (index + 1) == 0)


@dataclass(frozen=True, eq=False)
class AdaptiveUpdate:
    """Chooses which zeros are evaluated, and the quadratics of all others."""

    # errors of the quadratics, summed up without regard to their sign, relative to the log-likelihood
    tolerance: float
    # so many times larger errors are allowed at first, when factors are still far from where they end
    early: float = EARLY
    # evaluate all zeros where the fit would end, and from then on: a fit that is exact at its end
    ends_exact: bool = False

    def begin(self, engine: Engine) -> Problem:
        """Return the problem with which a start is found; zeros are chosen by the features' mean rates."""
        problem = engine.problem
        at = Point(np.ones((problem.counts.n_samples, 1)), problem.profile[:, None])
        tolerance, plain = self.early * self.tolerance, {"straight": True, "quartic": False}
        return self.chosen(engine, at, problem.counts.total, tolerance, **plain)

    def __call__(
        self, engine: Engine, at: Point, loss: float, *, index: int, final: bool, error: float | None = None
    ) -> Update | None:
        """Return an update, None where the old problem will do. `error`: at the point, where it is known."""
        tolerance = self.tolerance * (1.0 if final or index > LAST_EARLY else self.early)
        problem, straight = engine.problem, not final and index < LAST_EARLY
        if not isinstance(problem.zeros, AdaptiveZeros):  # all are evaluated; by a poor start, perhaps
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
        tol: float | None = None,
        *,
        straight: bool = False,
        quartic: bool = True,
    ) -> Problem:
        """Choose anew; see `Engine.survey_zeros`."""
        tolerance = self.tolerance if tol is None else tol
        problem, dispersed = engine.problem, engine.problem.noise.name != "poisson"
        limit = (LATER_SLACK if dispersed and not straight else SLACK) * tolerance * abs(loss)
        quartic = quartic and engine.takes_quartics(at.factors.shape[1])
        caps = caps_for(tolerance, dispersed=dispersed, quartic=quartic)
        survey = engine.survey_zeros(at.loadings, at.factors, caps, straight=straight, quartic=quartic)
        chosen = choose(survey, limit)
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

LAST_PRIOR = 200
"""Iterations after which dispersions keep their prior, at most half of all: it depends on the number of
factors that a feature has, and where there are too many the two follow each other for long."""

FIRST_SIZES = 3  # iterations with the first size factors

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
    last_prior: int = LAST_PRIOR  # iteration from which on dispersions keep their prior

    def __call__(self, engine: Engine, at: Point, loss: float, *, index: int, final: bool) -> Update | None:
        """Return an update of the problem, None where the old one will do."""
        now, here, gained = engine, at.on_host(), 0.0
        for improve in (self._sizes, self._dispersions, self._effects):
            better = improve(now, here, index=index, final=final)
            if better is not None and better.gain > self.tol * abs(loss):
                now, gained = now.with_problem(better.problem), gained + better.gain
                if better.point is not None:
                    at = here = better.point
        problem = now.problem
        if problem is engine.problem:
            return None if self.zeros is None else self.zeros(engine, at, loss, index=index, final=final)
        if problem.noise is not engine.problem.noise:  # other zeros need to be evaluated
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
            again = self.zeros(now, at, loss, index=index, final=final)
            problem = problem if again is None else again.problem
        return Update(problem, gained, at)

    def _sizes(self, engine: Engine, at: Point, *, index: int, final: bool) -> Update | None:
        """Improve size factors, and loadings and factors with them."""
        problem = engine.problem
        if self.sizes is None or (index < FIRST_SIZES and not final):
            return None
        host = replace(problem, counts=problem.counts.on_host())
        found = update_size_factors(host, at.loadings, at.factors, self.sizes)
        better = with_exposure(problem, size_factors=found.size_factors)
        return Update(better, found.gain, Point(found.loadings, found.factors))

    def _dispersions(self, engine: Engine, at: Point, *, index: int, final: bool) -> Update | None:
        """Find the dispersions of negative binomial noise."""
        problem, noise = engine.problem, engine.problem.noise
        if self.dispersion is None or not isinstance(noise, NegativeBinomial):
            return None
        if noise.prior is None and index < FIRST_DISPERSIONS and not final:
            return None
        means = engine.with_problem(replace(problem, zeros=None)).mean_spectrum(at.loadings, at.factors)
        how: Any = {"kind": self.dispersion, "before": noise, "slight": self.tol}
        how["keep_prior"] = index >= self.last_prior
        new, gain = update_dispersions(problem.counts, at.factors, means, **how)
        return Update(replace(problem, noise=new), gain)

    def _effects(self, engine: Engine, at: Point, *, index: int, final: bool) -> Update | None:
        """Find the effects of batches, unless the solver does so in every iteration."""
        if not self.effects or (index and not final and finds_effects(engine)):
            return None
        sums: Any = {"sums": engine.batch_sums, "dispersed": engine.dispersed_sums}
        batches, gain = update_effects(engine.problem, at.loadings, at.factors, **sums)
        return Update(with_exposure(engine.problem, batches=batches), gain)


# ---------- runs: one start followed to its end, updates on the way


@dataclass(frozen=True, eq=False)
class Run:
    """One start followed to its end."""

    last: Iteration  # where it ended
    history: Mapping[str, np.ndarray]  # `History.table`
    stopped: Stopped  # why it ended
    # errors of adaptive zeros at the end, see `log1pnmf.engines.base.Engine.zero_errors`; None where they are
    # not known, because the fit was interrupted
    errors: tuple[float, float] | None
    start: str  # which start it was, see `log1pnmf.fitting.starts.find_start`

    @property
    def objective(self) -> float:
        """Objective at the end, with the errors of adaptive zeros put right."""
        signed, noise = 0.0 if self.errors is None else self.errors[0], self.last.noise
        # every start has found a prior of its own for dispersions, so that their cost is left out
        return self.last.objective - (0.0 if noise is None else noise.cost) + signed

    def as_fit(self, settings: Settings, problem: Problem, *, known: Structure | None = None) -> Fit:
        """Return the `Fit` of this run, given the problem at its end; no other code makes one."""
        last, counts, exact, certificate = self.last, problem.counts, self.last.likelihood == "exact", None
        if last.likelihood != "approximate" and self.errors is not None:
            signed, absolute = self.errors
            certificate = Certificate(-last.loss - signed, None if exact else -last.loss, absolute)
        own, l1 = last.factors * settings.link.alpha, settings.l1
        loadings, factors = arranged(last.loadings, own, l1=l1, normalize="max", known=known)
        return Fit(
            loadings=loadings,
            factors=factors,
            size_factors=problem.size_factors,
            settings=settings,
            asked=settings,
            data=DataFacts.of(counts),
            stopped=self.stopped,
            objective=last.objective,
            approximate_log_likelihood=None if exact else -last.loss,
            kkt_residual=last.kkt_residual,
            n_iter=last.index,
            seconds=last.seconds,
            history=self.history,
            certificate=certificate,
            sample_names=counts.sample_names,
            feature_names=counts.feature_names,
            dispersion=None if last.noise is None else last.noise.dispersion,
            batches=problem.batches,
            **({} if known is None else parts_of_known(known, settings.n_components)),
        )


@dataclass(frozen=True, eq=False)
class Progress:
    """A fit right after an iteration: all that is needed to go on with the same bits.

    An update or the end of a start needs no record of its own: a resumed fit reaches it again at once.
    """

    restart: int  # number of the start
    last: Iteration  # its seconds count from the start on
    stopping: Stopping
    history: Mapping[str, np.ndarray]  # of this start, `last` included
    # `log1pnmf._common.checks.random_parts` of the generator, from which later starts are drawn
    random: Mapping[str, Any]
    best: Run | None  # the best of the earlier starts
    start: str  # which start it was


WORTH, SIZES_WORTH = 2.0, 0.05
"""Effects of batches, and size factors, are found anew when an iteration lowers the objective by less than so
many times what the last update did. They and factors depend on each other: with few updates all creep.
Finding sizes takes as long as tens of iterations."""

Start: TypeAlias = Callable[[Engine, Random, int], tuple[Point, str]]
"""Finds a start and its name, for an engine, random numbers, and how many starts there were before."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Runs:
    """The runs of one fit."""

    settings: Settings
    engine: Engine  # of the problem with which every run begins
    rng: Random
    start: Start
    constraint: Constraint
    callbacks: Sequence[Callback] = ()
    after: float | None = None  # seconds until progress is shown; None: never
    keep: Callable[[Progress], None] | None = None  # called after every iteration

    # what evaluates a point now and then, and changes the problem where that is due
    update: AdaptiveUpdate | ParameterUpdate | None = field(init=False)
    first: Engine = field(init=False)  # with which starts are found

    def __post_init__(self) -> None:
        settings, problem, zeros = self.settings, self.engine.problem, None
        if settings.likelihood == "adaptive" or settings.begins_adaptive(problem.counts):
            zeros = AdaptiveUpdate(settings.zeros_tol, ends_exact=settings.likelihood == "exact")
        sizes = self.constraint if settings.fits_sizes else None
        kind = settings.dispersion if settings.noise == "nb" else None
        dispersion = cast(DispersionKind, kind) if kind in get_args(DispersionKind) else None
        update: Any = zeros
        if not (sizes is None and dispersion is None and problem.batches is None):
            effects = problem.batches is not None
            last_prior = min(LAST_PRIOR, settings.max_iter // 2)
            update = ParameterUpdate(settings.tol, zeros, sizes, dispersion, effects, last_prior)
        first = self.engine if zeros is None else self.engine.with_problem(zeros.begin(self.engine))
        self.__dict__.update(update=update, first=first)

    def follow(self, number: int, best: Run | None = None, resumed: Progress | None = None) -> Run:
        """Follow a start, or what is resumed, to its end; return the better of it and the best before."""
        settings, stopping, history = self.settings, Stopping(self.settings.tol), History()
        label = "fitting" + (f", start {number + 1} of {settings.n_init}" if settings.n_init > 1 else "")
        display = nullcontext() if self.after is None else ProgressBar(settings.max_iter, label, self.after)
        name, last, fresh, stopped, errors = "", None, None, None, None
        try:
            if resumed is None:
                engine = self.first
                point, name = self.start(engine, self.rng, number)
                fresh = self._checked(engine, point)
            else:  # what follows its last iteration is done first
                last, name, history = resumed.last, resumed.start, History(resumed.history)
                stopping, point = replace(resumed.stopping), Point(last.loadings, last.factors)
                engine = self.engine.with_problem(problem_at(self.engine.problem, last))
                fresh, stopped = self._next(engine, last, stopping, history)
            with display as bar:
                watchers: list[Callback] = [*self.callbacks, *([] if bar is None else [bar])]
                while stopped is None:
                    seconds = 0.0 if last is None else last.seconds
                    if fresh is not None:
                        engine, point = engine.with_problem(fresh.problem), fresh.point or point
                    for iteration in alternate(
                        engine,
                        point.loadings,
                        point.factors,
                        constraint=self.constraint,
                        row_solver=settings.row_solver,
                        extrapolation=Extrapolation() if settings.row_solver == "newton" else None,
                        max_iter=settings.max_iter,
                        after=last,
                        new_problem=fresh is not None,
                        effects=finds_effects(engine),
                    ):
                        last = replace(iteration, seconds=seconds + iteration.seconds)
                        point = Point(last.loadings, last.factors)
                        stopping(last)
                        history(last)
                        if self.keep is not None:  # complete before the callbacks see it
                            state = (last, replace(stopping), history.table(), random_parts(self.rng))
                            self.keep(Progress(number, *state, best, name))
                        shown = last.on_host() if self.callbacks else last
                        asked = [watch(shown) for watch in watchers]  # all of them see it
                        fresh, stopped = self._next(engine, last, stopping, history, asked=any(asked))
                        if fresh is not None or stopped is not None:
                            break
                    else:
                        assert last is not None
                        fresh, stopped = self._ended(engine_at(engine, last.effects), last)
            assert last is not None
            engine = engine_at(engine, last.effects)
            errors = engine.zero_errors(last.loadings, last.factors)
            if engine.rounds_loss:
                loss = engine.loss(last.loadings, last.factors)
                last = replace(last, loss=loss, objective=last.objective - last.loss + loss)
        except KeyboardInterrupt:
            if last is None and best is None:  # there is no result
                raise
            stopped = "interrupted"
        run = cast(Run, best) if last is None else Run(last.on_host(), history.table(), stopped, errors, name)
        if best is None or run.objective < best.objective:
            return run
        return replace(best, stopped=stopped) if stopped in ("interrupted", "callback") else best

    def _checked(self, engine: Engine, start: Point) -> Update | None:
        """Return an update of the problem with which a start was found, None where it will do."""
        if self.update is None:
            return None
        loss, _ = engine.evaluate(engine.problem.loadings_side, start.loadings, start.factors)
        return self.update(engine, start, loss, index=0, final=False)

    def _next(
        self, engine: Engine, last: Iteration, stopping: Stopping, history: History, *, asked: bool = False
    ) -> tuple[Update | None, Stopped | None]:
        """Return an update where one is due, not where the problem was just updated; or why to stop."""
        same = not math.isnan(last.relative_change)
        if self.update is not None and same and (stopping.met or _is_due(engine, last, history)):
            point, now = Point(last.loadings, last.factors), engine_at(engine, last.effects)
            fresh = self.update(now, point, last.loss, index=last.index, final=stopping.met)
            if fresh is not None:
                return fresh, None
        return None, "converged" if stopping.met else "callback" if asked else None

    def _ended(self, engine: Engine, last: Iteration) -> tuple[Update | None, Stopped | None]:
        """Return a last update, or why the solver ended: `max_iter`, or no step lowers the objective."""
        problem, point, settings = engine.problem, Point(last.loadings, last.factors), self.settings
        # the last iteration may have been lost to an extrapolation that was dropped
        if last.index >= settings.max_iter - 1:
            if settings.likelihood != "exact" or problem.likelihood != "adaptive":
                return None, "max_iter"
            return Update(replace(problem, zeros=None)), None  # converged or not, the end is exact
        if self.update is not None and not math.isnan(last.relative_change):
            fresh = self.update(engine, point, last.loss, index=last.index, final=True)
            if fresh is not None:
                return fresh, None
        residual = residual_at(engine, last.loadings, last.factors, constraint=self.constraint)
        return None, "converged" if residual <= STATIONARY else "stalled"


def _is_due(engine: Engine, last: Iteration, history: History) -> bool:
    """Return whether to update parameters: often at first, and where that gains more than to iterate."""
    problem = engine.problem
    effects = problem.batches is not None and not finds_effects(engine)
    if is_due(last.index, often=effects):
        return True
    if not problem.noise.zero_loss_is_mean:  # dispersions are found as well
        return False
    worth = SIZES_WORTH if problem.size_prior is not None else WORTH if effects else 0.0
    return last.relative_change * abs(last.objective) < worth * history.last_update()
