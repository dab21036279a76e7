"""The start "auto": a few iterations from several starts at sparse cost, and moves from the best of them.

The starts are the non-negative SVD, random ones, and one that begins with too many random factors and merges
those that say nearly the same. From the best of them, factors are added at random and
after some iterations merged again, to leave a poor optimum: what is there twice becomes one, what was mixed
can be told apart. A move is kept where it leads to a better point (`benchmarks.starts`). Below c = 1 starts
differ little and iterations are dear: there it is the SVD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.randomness import Random
from log1pnmf.engines.base import Engine
from log1pnmf.fitting.solver.alternate import alternate
from log1pnmf.fitting.solver.callbacks import Callback, ProgressBar
from log1pnmf.fitting.solver.effects import effects_of
from log1pnmf.fitting.solver.extrapolate import Extrapolation
from log1pnmf.fitting.solver.iteration import Iteration, Pair
from log1pnmf.model.constraint import FREE, Bounds
from log1pnmf.model.noise import POISSON
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

from .arrangement import arranged
from .merging import merged, widened
from .renewal import AdaptiveRenewal
from .sampled_start import spread
from .settings import Settings
from .starts import Taken, adapt_start, initialize, lifted

__all__ = ["SMALLEST_RACED", "race"]

Array = NDArray[np.float64]

SMALLEST_RACED = 1.0
"""The smallest c at which starts are raced."""
MOST_RACED = 5000
"""Samples on which starts are raced at most; of larger data the loadings are found afterwards."""
SMALL = 1_000_000
"""Non-zeros up to which iterations are cheap."""
N_RANDOM, N_RANDOM_OF_SMALL = 2, 4
"""Random starts that are raced beside the SVD and the merged one; more where iterations are cheap."""
ALONE, ALONE_OF_SMALL = 30, 60
"""Iterations from each. After fewer, slow ones that end well are not yet ahead."""
ADDED = (0.25, 0.5)
"""Factors that moves add in turn, as a part of those wanted; two at least."""
BEFORE, AFTER = 10, 8
"""Iterations of a move before and after factors are merged."""
MOST_MOVES, MOST_FAILED = 6, 3
"""Moves from the best start, and moves in a row without a gain after which there are no more."""
WORTHWHILE = 1e-4
"""Gain of a move, relative to the objective, from which on it encourages further ones."""
FIRST_LOOK = 3
"""Iterations after which zeros are looked at that were chosen for other loadings and factors."""
RACED_ERRORS = 1e-3
"""`zeros_tol` of the race."""
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
        Makes engines for the race, which has Poisson noise and adaptive zeros.
    number : int
        How many starts there were before. The SVD is the same each time, so later ones are random instead.
    verbose : int
        1 shows a progress bar.
    """
    first = "nndsvd" if number == 0 else "random"
    K, problem = settings.n_components, engine.problem
    if K == 1 or problem.link.c < SMALLEST_RACED:
        name = "rank1" if K == 1 else first
        return Taken(Pair(*initialize(engine, K, name, rng)), name)
    exact = replace(problem, zeros=None, noise=POISSON, size_prior=None)
    part, rows = problem.counts.part_in_memory(MOST_RACED)
    whole = len(rows) == problem.counts.n_samples
    raced = exact
    if not whole:
        batches = None if problem.batches is None else problem.batches.of_samples(rows)
        raced = replace(exact, counts=part, size_factors=problem.size_factors[rows], batches=batches)
    n_random, alone = (N_RANDOM, ALONE) if part.nnz > SMALL else (N_RANDOM_OF_SMALL, ALONE_OF_SMALL)
    names = [first, "merged"] + ["random"] * n_random
    with _shown(verbose, len(names) * alone) as watch:
        racer = _Racer(make, make(raced), watch)
        ends = [racer.begun(K, name, alone, rng) for name in names]
        best = min(range(len(ends)), key=lambda one: ends[one][1])
        pair = racer.moved(*ends[best], rng)
    if not whole:
        everyone = make(replace(exact, zeros=quadratic(problem.link, "chebyshev", None)))
        pair = spread(everyone, _settling(everyone), pair, FREE)
    # with a penalty, the first factor is the one without
    ordered = arranged(pair.loadings, pair.factors, replace(settings, l1=0.0, normalize="none"))
    return Taken(Pair(*adapt_start(problem, *ordered, rng)), names[best])


class _Racer:
    """Follows the solver from one start after the other, with adaptive zeros, and improves where it leads.

    Parameters
    ----------
    exact : Engine
        Of the problem that is raced, with all zeros visited.
    watch : callable
        Called with every iteration, numbered through.
    """

    def __init__(self, make: Make, exact: Engine, watch: Callback) -> None:
        self.exact, self.watch, self.n_seen = exact, watch, 0
        identity = exact.problem.link.is_identity
        self.renewal = None if identity else AdaptiveRenewal(make, RACED_ERRORS, early=1.0)
        self.engine = exact if self.renewal is None else self.renewal.begin(exact)
        self.effects = effects_of(exact, make)

    def begun(self, n_components: int, name: str, n_iterations: int, rng: Random) -> tuple[Pair, float]:
        """Give where a start leads; "merged" begins with half as many random factors again."""
        if name != "merged":
            return self.advance(initialize(self.engine, n_components, name, rng), n_iterations)
        too_many = n_components + max(2, n_components // 2)
        many, _ = self.advance(initialize(self.engine, too_many, "random", rng), BEFORE)
        fewer = merged(self.exact.problem, many.loadings, many.factors, n_components)
        return self.advance(lifted(self.exact.problem, *fewer), n_iterations - BEFORE)

    def moved(self, pair: Pair, objective: float, rng: Random) -> Pair:
        """Add factors and merge again, and keep what is better."""
        n_failed = 0
        for added in islice(cycle(ADDED), MOST_MOVES):
            other, reached = self._move(pair, added, rng)
            n_failed = 0 if objective - reached > WORTHWHILE * abs(objective) else n_failed + 1
            if reached < objective:
                pair, objective = other, reached
            if n_failed == MOST_FAILED:
                break
        return pair

    def _move(self, pair: Pair, added: float, rng: Random) -> tuple[Pair, float]:
        n_components, problem = pair.loadings.shape[1], self.exact.problem
        more = widened(pair.loadings, pair.factors, max(2, int(added * n_components)), rng)
        many, _ = self.advance(lifted(problem, *more), BEFORE)
        fewer = merged(problem, many.loadings, many.factors, n_components)
        return self.advance(lifted(problem, *fewer), AFTER)

    def advance(self, start: tuple[Array, Array], n_iterations: int) -> tuple[Pair, float]:
        """Give where some iterations lead, and the objective there, with the errors of zeros put right.

        One choice of zeros serves all starts, as long as its errors are small enough.
        """
        batches = self.exact.problem.batches
        if self.effects is not None and batches is not None:  # every start begins with the same effects
            self.engine = self.effects.at(self.engine, batches.effects)
        last = self._followed(Pair(*start), FIRST_LOOK)
        self._renew(last)
        last = self._followed(Pair(last.loadings, last.factors), n_iterations, last)
        error, _ = self.engine.zero_errors(last.loadings, last.factors)
        self._renew(last)
        self.n_seen += n_iterations
        return Pair(last.loadings, last.factors).on_host(), last.objective + error

    def _followed(self, pair: Pair, n_iterations: int, before: Iteration | None = None) -> Iteration:
        last, state = before, None if before is None else before.state
        for last in alternate(
            self.engine,
            pair.loadings,
            pair.factors,
            extrapolation=Extrapolation(),
            max_iter=n_iterations,
            state=state,
            renewed=state is not None,
            effects=self.effects,
            residuals=False,
        ):
            self.watch(replace(last, index=self.n_seen + last.index))
        assert last is not None
        if self.effects is not None:
            self.engine = self.effects.at(self.engine, last.effects)
        return last

    def _renew(self, at: Iteration) -> None:
        if self.renewal is not None:
            pair = Pair(at.loadings, at.factors)
            fresh = self.renewal(self.engine, pair, at.loss, index=at.index, final=False)
            self.engine = self.engine if fresh is None else fresh.engine


def _settling(engine: Engine) -> Callable[[Array, Array, Bounds], Array]:
    def settle(row: Array, factors: Array, bounds: Bounds) -> Array:
        side = engine.problem.loadings_side
        loadings = engine.adopt(np.tile(row, (engine.problem.counts.n_samples, 1)))
        for _ in range(SETTLING):
            loadings = engine.half_step(side, loadings, engine.adopt(factors), bounds=bounds).values
        return loadings

    return settle


@contextmanager
def _shown(verbose: int, n_raced: int) -> Iterator[Callback]:
    if not verbose:
        yield lambda iteration: None
        return
    with ProgressBar(n_raced + MOST_MOVES * (BEFORE + AFTER), "start") as bar:
        yield bar
