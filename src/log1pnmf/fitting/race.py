"""The start "auto": a few iterations from two starts at sparse cost, and the better one is taken.

One is the non-negative SVD. The other begins with half as many random factors again as are wanted, and merges
those that say nearly the same. Neither is the best everywhere, and a few iterations tell which one is
(`benchmarks.starts`). Below c = 1 starts differ little and iterations are dear: there it is the SVD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.randomness import Random
from log1pnmf.engines.base import Engine
from log1pnmf.fitting.solver.alternate import alternate
from log1pnmf.fitting.solver.callbacks import Callback, ProgressBar
from log1pnmf.fitting.solver.extrapolate import Extrapolation
from log1pnmf.fitting.solver.iteration import Iteration, Pair
from log1pnmf.model.constraint import FREE, Bounds
from log1pnmf.model.noise import POISSON
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

from .arrangement import arranged
from .merging import merged
from .sampled_start import spread
from .settings import Settings
from .starts import Taken, adapt_start, initialize, lifted

__all__ = ["SMALLEST_RACED", "race"]

Array = NDArray[np.float64]

SMALLEST_RACED = 1.0
"""The smallest c at which starts are raced."""
MOST_RACED = 5000
"""Samples on which starts are raced at most; of larger data the loadings are found afterwards."""
TOO_MANY = 0.5
"""Factors beyond those wanted, as a part of them; two at least."""
BEFORE, AFTER = 15, 10
"""Iterations before and after factors are merged."""
ALONE = 30
"""Iterations from the other start. After fewer, slow ones that end well are not yet ahead."""
SETTLING = 5
"""Newton steps in which all loadings adapt to given factors."""

Make: TypeAlias = Callable[[Problem], Engine]
"""Makes the engine of a problem whose counts are in memory."""


def race(
    engine: Engine, settings: Settings, rng: Random, *, make: Make, number: int = 0, verbose: int = 0
) -> Taken:
    """Find a start for counts in memory.

    Parameters
    ----------
    engine : Engine
        Of the problem that is to be started.
    make : callable
        Makes engines for the race, which has Poisson noise and the paper's quadratic for zeros.
    number : int
        How many starts there were before. The SVD is the same each time, so later ones are random instead.
    verbose : int
        1 shows a progress bar.
    """
    other = "nndsvd" if number == 0 else "random"
    K, problem = settings.n_components, engine.problem
    if K == 1 or problem.link.c < SMALLEST_RACED:
        name = "rank1" if K == 1 else other
        return Taken(Pair(*initialize(engine, K, name, rng)), name)
    cheap = replace(problem, zeros=quadratic(problem.link, "chebyshev", None), noise=POISSON)
    part, rows = problem.counts.part_in_memory(MOST_RACED)
    whole = len(rows) == problem.counts.n_samples
    raced = cheap if whole else replace(cheap, counts=part, size_factors=problem.size_factors[rows])
    racer = make(raced)
    with _shown(verbose) as watch:
        name, best = "merged", _from_merged(racer, K, rng, watch)
        rival = _advance(racer, initialize(racer, K, other, rng), ALONE, watch, BEFORE + AFTER)
    if rival.objective < best.objective:
        name, best = other, rival
    pair = Pair(best.loadings, best.factors)
    if not whole:
        everyone = make(cheap)
        pair = spread(everyone, _settling(everyone), pair, FREE)
    # with a penalty, the first factor is the one without
    ordered = arranged(pair.loadings, pair.factors, replace(settings, l1=0.0, normalize="none"))
    return Taken(Pair(*adapt_start(problem, *ordered, rng)), name)


def _from_merged(engine: Engine, n_components: int, rng: Random, watch: Callback) -> Iteration:
    many = n_components + max(2, int(TOO_MANY * n_components))
    before = _advance(engine, initialize(engine, many, "random", rng), BEFORE, watch)
    fewer = merged(engine.problem, before.loadings, before.factors, n_components)
    return _advance(engine, lifted(engine.problem, *fewer), AFTER, watch, BEFORE)


def _advance(
    engine: Engine, start: tuple[Array, Array], n_iterations: int, watch: Callback, done: int = 0
) -> Iteration:
    """Follow the solver for some iterations.

    Parameters
    ----------
    done : int
        Iterations that the progress bar has seen.
    """
    for iteration in alternate(engine, *start, extrapolation=Extrapolation(), max_iter=n_iterations):
        watch(replace(iteration, index=done + iteration.index))
    return iteration.on_host()


def _settling(engine: Engine) -> Callable[[Array, Array, Bounds], Array]:
    def settle(row: Array, factors: Array, bounds: Bounds) -> Array:
        side = engine.problem.loadings_side
        loadings = engine.adopt(np.tile(row, (engine.problem.counts.n_samples, 1)))
        for _ in range(SETTLING):
            loadings = engine.half_step(side, loadings, engine.adopt(factors), bounds=bounds).values
        return loadings

    return settle


@contextmanager
def _shown(verbose: int) -> Iterator[Callback]:
    if not verbose:
        yield lambda iteration: None
        return
    with ProgressBar(BEFORE + AFTER + ALONE, "start") as bar:
        yield bar
