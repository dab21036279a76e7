"""Renewals: the problem of a fit is changed a little on the way, because a better one is known by then."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from log1pnmf.engines.base import Engine
from log1pnmf.fitting.solver.iteration import Pair
from log1pnmf.model.problem import Problem
from log1pnmf.model.zero_survey import caps_for, choose
from log1pnmf.model.zeros import AdaptiveZeros

__all__ = [
    "LARGEST_STORED",
    "LAST_EARLY",
    "AdaptiveRenewal",
    "Remake",
    "Renewal",
    "Renewed",
    "is_due",
]

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
        """Give the engine with which the start is found."""
        ...

    def __call__(self, engine: Engine, at: Pair, loss: float, *, index: int, final: bool) -> Renewed | None:
        """Give the engine of the renewed problem and where to go on; None where the old one is good enough.

        Parameters
        ----------
        loss : float
            Of the old problem at that point.
        index : int
            Iterations so far; 0 is the start.
        final : bool
            Whether the fit would end here.
        """
        ...


def is_due(index: int, *, often: bool = False) -> bool:
    """Whether to look after that iteration: often at first, when factors change most.

    Parameters
    ----------
    often : bool
        About twice as often: what batches change the factors must not take for themselves.

    Examples
    --------
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
    """Chooses which zeros are visited, and the quadratics of all others.

    Parameters
    ----------
    remake : callable
        Makes the engine of the renewed problem.
    tolerance : float
        Errors of the quadratics, summed up without regard to their sign, relative to the log-likelihood.
    early : float
        So many times larger errors are allowed at first, when factors are still far from where they end.
    ends_exact : bool
        Visit all zeros where the fit would end, and from then on: a fit that is exact at its end.
    """

    remake: Remake
    tolerance: float
    early: float = EARLY
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
