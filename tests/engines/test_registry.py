"""Engines by name and by factory: what each supports, and one of the user's own."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import log1pnmf
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Factory
from log1pnmf.engines.reference import ReferenceEngine
from log1pnmf.engines.registry import FACTORIES, as_counts, check_memory, make_engine, resolve_engine
from log1pnmf.model.constraint import Bounds, Constraint
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.noise import NegativeBinomial
from log1pnmf.model.problem import Problem

Y = np.random.default_rng(0).poisson(1.5, size=(12, 9)).astype(float)


class CountingFactory(Factory):
    """Makes reference engines that count their half-steps."""

    name = "counting"

    def __init__(self):
        self.n_half_steps = 0

    def __call__(self, problem, n_threads=None, *, verbose=0):
        factory = self

        class Counting(ReferenceEngine):
            def half_step(self, *arguments, **options):
                factory.n_half_steps += 1
                return super().half_step(*arguments, **options)

        return Counting(problem)


def problem_of(counts):
    return Problem(counts, counts.size_factors("none"), ShiftedLog(1.0))


def test_an_engine_of_ones_own_fits_end_to_end():
    own = CountingFactory()
    options = {"c": 1.0, "likelihood": "exact", "init": "rank1", "max_iter": 5, "tol": 0.0}
    with pytest.warns(ConvergenceWarning):
        fit = log1pnmf.fit_log1p_nmf(Y, 2, engine=own, **options)
    with pytest.warns(ConvergenceWarning):
        reference = log1pnmf.fit_log1p_nmf(Y, 2, engine="reference", **options)
    assert own.n_half_steps > 0
    assert fit.settings.engine == "given"
    assert np.array_equal(fit.loadings, reference.loadings)
    assert np.array_equal(fit.factors, reference.factors)


def test_a_factory_is_asked_before_it_makes_an_engine():
    class Refusing(CountingFactory):
        def supports(self, problem, row_solver, constraint):
            return "it is out of order"

    own = Refusing()
    with pytest.raises(ValueError, match="engine='counting' cannot be used here: it is out of order"):
        log1pnmf.fit_log1p_nmf(Y, 2, engine=own)
    assert own.n_half_steps == 0


@pytest.mark.parametrize("name", sorted(FACTORIES))
def test_every_engine_says_what_it_cannot_do(name):
    factory = FACTORIES[name]
    problem = problem_of(as_counts(Y, name))
    assert factory.supports(problem, "newton", Constraint()) is None
    assert factory.supports(problem, "newton", Constraint.sparse_factors(0.5, 2)) is None
    for bounds in (Bounds(lower=0.1), Bounds(upper=np.ones(2)), Bounds(penalty=np.ones((9, 2)))):
        assert factory.supports(problem, "newton", Constraint(factors=bounds)) is None
    partly = Bounds(upper=np.where(np.eye(len(Y), 2) > 0, 1.0, np.inf))
    assert factory.supports(problem, "newton", Constraint(loadings=partly)) is None
    dispersed = replace(problem, noise=NegativeBinomial(0.5))
    assert factory.supports(dispersed, "newton", Constraint()) is None
    assert factory.supports(dispersed, "coordinate", Constraint()) is not None
    has_coordinate = factory.supports(problem, "coordinate", Constraint()) is None
    assert has_coordinate == (name in {"native", "reference"})


@pytest.mark.parametrize("name", sorted(set(FACTORIES) - {"streaming"}))
def test_counts_in_chunks_are_for_the_streaming_engine(name):
    counts = as_counts(Y, "streaming")
    with pytest.raises(ValueError, match="needs counts in memory, but these are in chunks"):
        make_engine(name, problem_of(counts))
    assert resolve_engine("auto", counts, 2) == "streaming"


def test_the_streaming_engine_refuses_counts_in_memory():
    with pytest.raises(ValueError, match="needs counts in chunks"):
        make_engine("streaming", problem_of(Counts.from_any(Y)))


def test_auto_stays_in_memory_without_a_card():
    assert resolve_engine("auto", Counts.from_any(Y), 2) == "native"
    assert resolve_engine("auto", Counts.from_any(Y), 2, "coordinate") == "native"


def test_very_many_factors_are_warned_about_before_any_work():
    counts = Counts.from_any(np.eye(4))
    with pytest.warns(UserWarning, match="n_components=4000 needs about 1.7 GB .* each of 2 threads"):
        check_memory("native", counts, 4000, 2)
    check_memory("native", counts, 64, 2)  # no warning
