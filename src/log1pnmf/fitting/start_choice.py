"""Which start a fit takes: one of those by name, arrays, an earlier fit, or a function of the user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.randomness import Random, as_random
from log1pnmf.engines.base import Engine, EngineFactory
from log1pnmf.engines.registry import for_parts, make_engine
from log1pnmf.fitting.solver.iteration import Pair
from log1pnmf.model.problem import Problem
from log1pnmf.model.structure import Structure

from .continuation import continued_start
from .fit import Fit
from .known import constraint_of
from .known_start import beside_known, settled, within
from .new_samples import project
from .race import race
from .request import Request
from .sampled_start import given_start, sampled_start
from .settings import GIVEN, Settings
from .starts import Start, Taken, adapt_start, check_start, initialize

__all__ = ["given", "named", "start_of"]

Array = NDArray[np.float64]


def start_of(request: Request, problem: Problem, known: Structure | None = None) -> Start:
    """Find the start that was asked for; what can be refused is refused here, before any work."""
    init, settings = request.init, request.settings
    if init is None:
        return named(
            settings, known=known, engine=request.engine, n_jobs=request.n_jobs, verbose=request.verbose
        )
    start = _given_start(request, problem)
    return start if known is None else _held(start, settings, known)


def _held(start: Start, settings: Settings, known: Structure) -> Start:
    """Put what is known into a start of the user; counts that are impossible then are seen to."""
    constraint = constraint_of(settings, known)

    def make(engine: Engine, rng: Random, number: int) -> Taken:
        taken = start(engine, rng, number)
        pair = within(constraint, taken.pair)
        if engine.sample() is None:
            pair = within(constraint, Pair(*adapt_start(engine.problem, pair.loadings, pair.factors, rng)))
        return Taken(pair, taken.name)

    return Start(make, start.arrays)


def _given_start(request: Request, problem: Problem) -> Start:
    init, settings = request.init, request.settings
    if isinstance(init, Fit):
        return given(_continued(init, problem, request), settings)
    if callable(init):
        return Start(lambda engine, rng, _: _made(init, engine, settings, rng))
    return given(check_start(init, problem.counts.shape, settings.n_components), settings)


def named(
    settings: Settings,
    *,
    known: Structure | None = None,
    engine: EngineFactory | None = None,
    number: int = 0,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> Start:
    """Take the start that ``settings.init`` names.

    Parameters
    ----------
    known : Structure, optional
        What is known of some factors: the named start is that of the others.
    engine : EngineFactory, optional
        A user's own; it is not asked to race.
    number : int
        How many starts there were before the first one.
    n_jobs, verbose : int
        Of a race.
    """
    kind = "auto" if engine is not None or settings.engine == GIVEN else for_parts(settings.engine)

    def racer(problem: Problem) -> Engine:
        return make_engine(kind, problem, n_jobs)

    n_free = settings.n_components - (0 if known is None else known.n_known)
    of_free = replace(settings, n_components=max(1, n_free))

    def free(whole: Engine, rng: Random, before: int) -> Taken:
        if settings.init == "auto":
            return race(whole, of_free, rng, make=racer, number=number + before, verbose=verbose)
        pair = Pair(*initialize(whole, n_free, settings.init, rng))
        return Taken(pair, settings.init)

    def found(whole: Engine, rng: Random, before: int, here: Structure | None) -> Taken:
        if here is None:
            return free(whole, rng, before)
        others = free(whole, rng, before) if n_free else None
        constraint = constraint_of(settings, here)
        beside = None if others is None else others.pair
        pair = beside_known(whole.problem, here, beside, constraint, rng)
        if whole.problem.noise.name != "poisson":
            pair = settled(racer, whole.problem, pair, constraint)
        return Taken(pair, "known" if others is None else others.name)

    def make(whole: Engine, rng: Random, before: int) -> Taken:
        sample = whole.sample()
        if sample is None:
            return found(whole, rng, before, known)
        here = None if known is None else known.of_samples(sample.rows)
        start = Start(lambda part, rng, _: found(part, rng, before, here))
        return sampled_start(whole, sample, settings, rng, start=start, known=known)

    return Start(make)


def given(arrays: tuple[Array, Array], settings: Settings) -> Start:
    """Start from checked loadings and factors on the link scale."""

    def make(engine: Engine, rng: Random, number: int) -> Taken:
        return _adapted(engine, arrays, settings, rng)

    return Start(make, arrays)


def _continued(fit: Fit, problem: Problem, request: Request) -> tuple[Array, Array]:
    """Start where another fit ended; for other samples, with their loadings for its factors."""
    counts = problem.counts
    if counts.n_features != len(fit.factors):
        what = f"{len(fit.factors)} features, but the counts have {counts.n_features}"
    elif _differ(fit.feature_names, counts.feature_names):
        j = int(np.argmax(fit.feature_names != counts.feature_names))
        was, now = fit.feature_names[j], counts.feature_names[j]  # type: ignore[index]
        what = f"other features (column {j} was {was!r}, now is {now!r})"
    else:
        before = None
        if counts.n_samples != len(fit.loadings):
            engine = request.engine or request.settings.engine
            before = project(fit, counts, problem.size_factors, engine=engine, n_jobs=request.n_jobs)
        rng = as_random(request.random_state)
        return continued_start(fit, problem, request.settings.n_components, rng, loadings=before)
    raise ValueError(
        f"the fit to start from has {what}; pass the same features in the same order, or set warm_start=False"
    )


def _made(init: Any, engine: Engine, settings: Settings, rng: Random) -> Taken:
    """Call the user's function and check what it gives."""
    arrays = check_start(
        init(engine.problem, settings.n_components, rng), engine.problem.counts.shape, settings.n_components
    )
    return _adapted(engine, arrays, settings, rng)


def _adapted(engine: Engine, arrays: tuple[Array, Array], settings: Settings, rng: Random) -> Taken:
    loadings, factors = arrays[0], arrays[1] / settings.link.alpha
    if engine.sample() is not None:
        return Taken(given_start(engine, loadings, factors), GIVEN)
    return Taken(Pair(*adapt_start(engine.problem, loadings, factors, rng)), GIVEN)


def _differ(names: Any, others: Any) -> bool:
    return names is not None and others is not None and not np.array_equal(names, others)
