"""The start "auto": a few iterations from two starts at sparse cost, and the better one is taken.

One is the non-negative SVD. The other begins with half as many random factors again as are wanted, and merges
those that say nearly the same. Neither is the best everywhere, and a few iterations tell which one is
(`benchmarks.starts`). Below c = 1 starts differ little and iterations are dear: there it is the SVD.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from .renewal import AdaptiveRenewal, is_due
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
    other = "nndsvd" if number == 0 else "random"
    K, problem = settings.n_components, engine.problem
    if K == 1 or problem.link.c < SMALLEST_RACED:
        name = "rank1" if K == 1 else other
        return Taken(Pair(*initialize(engine, K, name, rng)), name)
    exact = replace(problem, zeros=None, noise=POISSON, size_prior=None)
    part, rows = problem.counts.part_in_memory(MOST_RACED)
    whole = len(rows) == problem.counts.n_samples
    raced = exact
    if not whole:
        batches = None if problem.batches is None else problem.batches.of_samples(rows)
        raced = replace(exact, counts=part, size_factors=problem.size_factors[rows], batches=batches)
    with _shown(verbose) as watch:
        racer = _Racer(make, make(raced), watch)
        name, (pair, objective) = "merged", racer.merged(K, rng)
        rival = racer.advance(initialize(racer.engine, K, other, rng), ALONE, BEFORE + AFTER)
    if rival[1] < objective:
        name, pair = other, rival[0]
    if not whole:
        everyone = make(replace(exact, zeros=quadratic(problem.link, "chebyshev", None)))
        pair = spread(everyone, _settling(everyone), pair, FREE)
    # with a penalty, the first factor is the one without
    ordered = arranged(pair.loadings, pair.factors, replace(settings, l1=0.0, normalize="none"))
    return Taken(Pair(*adapt_start(problem, *ordered, rng)), name)


@dataclass(frozen=True, eq=False)
class _Racer:
    """Follows the solver from a start for some iterations, with adaptive zeros.

    Parameters
    ----------
    engine : Engine
        Of the problem that is raced, with all zeros visited.
    watch : callable
        Called with every iteration.
    """

    make: Make
    engine: Engine
    watch: Callback

    def merged(self, n_components: int, rng: Random) -> tuple[Pair, float]:
        """Start from more random factors than are wanted, and merge those that say nearly the same."""
        many, problem = n_components + max(2, int(TOO_MANY * n_components)), self.engine.problem
        before, _ = self.advance(initialize(self.engine, many, "random", rng), BEFORE)
        fewer = merged(problem, before.loadings, before.factors, n_components)
        return self.advance(lifted(problem, *fewer), AFTER, BEFORE)

    def advance(self, start: tuple[Array, Array], n_iterations: int, done: int = 0) -> tuple[Pair, float]:
        """Give where some iterations lead, and the objective there, with the errors of zeros put right.

        Parameters
        ----------
        done : int
            Iterations that the progress bar has seen.
        """
        engine, pair = self.engine, Pair(*start)
        renewal = None if engine.problem.link.is_identity else AdaptiveRenewal(self.make, RACED_ERRORS)
        if renewal is not None:
            engine = renewal.chosen(engine, pair, engine.problem.counts.total)
        last: Iteration | None = None
        while last is None or last.index < n_iterations:
            before, fresh = last, None
            for iteration in self._iterations(engine, pair, n_iterations, last):
                last = iteration
                self.watch(replace(last, index=done + last.index))
                if renewal is not None and is_due(last.index) and not math.isnan(last.relative_change):
                    pair = Pair(last.loadings, last.factors)
                    fresh = renewal(engine, pair, last.loss, index=last.index, final=False)
                    if fresh is not None:
                        break
            if fresh is None or last is before:  # to the end, or nothing is left to gain
                break
            engine = fresh.engine
        assert last is not None
        reached = last.on_host()
        signed, _ = engine.zero_errors(last.loadings, last.factors)
        return Pair(reached.loadings, reached.factors), reached.objective + signed

    def _iterations(self, engine: Engine, pair: Pair, n: int, last: Iteration | None) -> Iterator[Iteration]:
        state = None if last is None else last.state
        return alternate(
            engine,
            pair.loadings,
            pair.factors,
            extrapolation=Extrapolation(),
            max_iter=n,
            state=state,
            renewed=state is not None,
        )


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
