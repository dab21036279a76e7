"""Effects of batches as a third block of the solver, beside loadings and factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from log1pnmf.engines.base import Engine
from log1pnmf.model.batch_effects import renewed_effects
from log1pnmf.model.batches import LARGEST_EFFECT, Batches
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import AdaptiveZeros

__all__ = ["Effects", "effects_of", "further", "with_exposure"]

Array = NDArray[np.float64]
Remake: TypeAlias = Callable[[Problem], Engine]

NEARLY_ONE, N_TERMS = 1.0 / 64.0, 8
"""So many terms of a series are exact to the last bit where ratios of effects are so near to 1."""


@dataclass(frozen=True, eq=False)
class Effects:
    """Finds effects in every iteration, so that they are extrapolated with loadings and factors.

    Found only now and then, effects and loadings would follow each other in thousands of small steps: most of
    what an effect does to many features of a factor, the loadings of all samples of the batch can do, too.

    Parameters
    ----------
    remake : callable
        Makes an engine of the same kind for another problem of the same counts.
    """

    remake: Remake

    def at(self, engine: Engine, effects: Array | None) -> Engine:
        """Give the engine of the same problem with other effects."""
        batches = engine.problem.batches
        if effects is None or batches is None or effects is batches.effects:
            return engine
        return self.remake(with_exposure(engine.problem, batches=batches.with_effects(effects)))

    def found(self, engine: Engine, loadings: Array, factors: Array, sums: Array | None) -> Array:
        """Give effects that lower the objective of an engine's problem; their sums may be known.

        With dispersions every step of the search visits all entries, and there is one.
        """
        problem, at = engine.problem, (loadings, factors)
        if not problem.noise.zero_loss_is_mean:
            dispersed = getattr(engine, "dispersed_sums", None)
            return renewed_effects(problem, *at, dispersed=dispersed, n_steps=1)[0].effects
        means = engine.batch_sums(*at) if sums is None else sums
        step = getattr(engine, "next_effects", None)
        near: Array | None = None if step is None else step(means)
        return renewed_effects(problem, *at, sums=lambda *_: means)[0].effects if near is None else near


def effects_of(engine: Engine, remake: Remake) -> Effects | None:
    """Give the steps of the effects, where they cost less than an iteration; None where they are renewals."""
    problem = engine.problem
    if problem.batches is None or not (problem.noise.zero_loss_is_mean or problem.zeros is None):
        return None
    return Effects(remake) if getattr(engine, "sums_batches_quickly", False) else None


def with_exposure(problem: Problem, **changed: Any) -> Problem:
    """Return the problem with other size factors or batches; the zeros that are visited stay the same."""
    problem = replace(problem, **changed)
    zeros, batches = problem.zeros, problem.batches
    if not isinstance(zeros, AdaptiveZeros) or not problem.counts.in_memory:
        return problem
    if batches is None:
        n, m = problem.counts.shape
        batches = Batches(np.zeros(n, dtype=np.int32), np.ones((1, m)))
    exposure = problem.link.exposure_scale * problem.size_factors
    rest = batches.exposure_of_rest(problem.counts, exposure, zeros.by_sample)
    return replace(problem, zeros=zeros.with_exposure(rest))


def further(to: Array | None, since: Array | None, beta: float, engine: Engine | None = None) -> Array | None:
    """Extrapolate effects on the scale of their logarithms, where their levels are sums.

    An engine may know a quicker way.
    """
    if to is None or since is None:
        return to
    quick = getattr(engine, "further_effects", None)
    near: Array | None = None if quick is None else quick(to, since, beta)
    if near is not None:
        return near
    found = to / since
    found -= 1.0
    if np.abs(found).max(initial=0.0) > NEARLY_ONE:
        np.log1p(found, out=found)
        found *= beta
        np.exp(found, out=found)
    else:
        found = _power_near_one(found, beta)
    found *= to
    return np.clip(found, 1.0 / LARGEST_EFFECT, LARGEST_EFFECT, out=found)


def _power_near_one(change: Array, power: float) -> Array:
    """Raise 1 + change to a power by the binomial series, four times as quick as logarithms."""
    found = np.ones_like(change)
    for k in range(N_TERMS, 0, -1):  # 1 + p d (1 + (p - 1) / 2 d (1 + (p - 2) / 3 d (...)))
        found *= change
        found *= (power - k + 1.0) / k
        found += 1.0
    return found
