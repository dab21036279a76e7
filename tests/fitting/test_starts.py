"""Laws of the starts."""

import math

import numpy as np
import pytest
from scipy import sparse

from log1pnmf._common.checks import as_random
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.starts import STARTS, adapt_start, check_start, initialize, rank_one
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

SHIFTS = [1e-6, 1.0, math.inf]


def engine_for(c, kind=None, *, n=60, m=50, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.poisson(rng.gamma(0.3, 2.0, size=(n, 3)) @ rng.gamma(0.3, 1.0, size=(3, m)))
    y[4], y[:, 7] = 0, 0
    counts, link = Counts.from_any(y), ShiftedLog(c)
    zeros = None if kind is None else quadratic(link, kind)
    return NativeEngine(Problem(counts, counts.size_factors("total"), link, zeros), 1)


@pytest.mark.parametrize("c", SHIFTS)
@pytest.mark.parametrize("init", STARTS)
@pytest.mark.parametrize("n_components", [1, 55])
def test_a_start_is_usable(c, init, n_components):
    engine = engine_for(c)
    counts = engine.problem.counts
    loadings, factors = initialize(engine, n_components, init, as_random(0))
    assert loadings.shape == (60, n_components)
    assert factors.shape == (50, n_components)
    empty_rows, empty_columns = counts.row_sums == 0, counts.by_column.row_sums() == 0
    for values, empty in ((loadings, empty_rows), (factors, empty_columns)):
        assert empty.any()
        np.testing.assert_array_equal(values[empty], 0.0)
        assert (values[~empty] > 0).all()
        assert np.isfinite(values).all()
        assert len(np.unique(values, axis=1).T) == n_components  # no two columns alike
    assert math.isfinite(engine.loss(loadings, factors))


@pytest.mark.parametrize("init", STARTS)
def test_seeds_decide(init):
    engine = engine_for(1.0)
    one, same, other = (initialize(engine, 4, init, as_random(seed))[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    for rng in (np.random.RandomState(0), np.random.default_rng(0)):
        assert np.isfinite(initialize(engine, 4, init, as_random(rng))[0]).all()


@pytest.mark.parametrize("c", SHIFTS)
def test_tiny_columns_do_not_change_the_fit_of_rank_one(c):
    engine = engine_for(c)
    loadings, factors = rank_one(engine, as_random(0))
    start = initialize(engine, 5, "rank1", as_random(0))
    np.testing.assert_array_equal(start[0][:, :1], loadings)
    assert engine.loss(*start) == pytest.approx(engine.loss(loadings, factors), rel=1e-9)
    if c == math.inf:  # the optimum is known
        counts, sizes = engine.problem.counts, engine.problem.size_factors[:, None]
        expected = np.outer(counts.row_sums, counts.by_column.row_sums()) / counts.total
        np.testing.assert_allclose(sizes * (loadings @ factors.T), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("c", SHIFTS)
@pytest.mark.parametrize("init", ["random", "nndsvd"])
def test_the_fitted_total_is_that_of_the_counts(c, init):
    engine = engine_for(c)
    problem = engine.problem
    loadings, factors = initialize(engine, 3, init, as_random(0))
    fitted = problem.size_factors @ problem.link.mean(loadings @ factors.T).sum(axis=1)
    assert fitted == pytest.approx(problem.counts.total, rel=0.02)


def test_nndsvd_does_not_densify():
    y = sparse.random_array((30_000, 40_000), density=4e-5, rng=0).ceil()  # 9.6 GB if it did
    counts, link = Counts.from_any(y), ShiftedLog(1.0)
    problem = Problem(counts, counts.size_factors("none"), link, quadratic(link))
    assert initialize(NativeEngine(problem, 1), 2, "nndsvd", as_random(0))[0].shape == (30_000, 2)


def test_a_good_start_is_taken_as_it_is():
    engine = engine_for(1.0)
    start = initialize(engine, 3, "random", as_random(0))
    checked = check_start(start, (60, 50), 3)
    assert checked[0] is not start[0]
    adapted = adapt_start(engine.problem, *checked, as_random(1))
    for values, original in zip(adapted, start, strict=True):
        np.testing.assert_array_equal(values, original)


def test_impossible_counts_are_lifted():
    engine = engine_for(1.0)
    loadings, factors = initialize(engine, 3, "random", as_random(0))
    loadings[0] = 0.0
    factors[3] = 0.0
    loadings[1, 0] = 0.0  # harmless
    adapted, others = adapt_start(engine.problem, loadings, factors, as_random(1))
    assert (adapted[0] > 0).all()
    assert (others[3] > 0).all()
    assert adapted[1, 0] in (0.0, pytest.approx(1e-3 * loadings[:, 0].mean()))
    y, eta = engine.problem.counts.to_scipy().toarray(), adapted @ others.T
    assert (eta[y > 0] > 0).all()
    assert engine.loss(adapted, others) < 1e9
    apart = Problem(Counts.from_any([[3, 1], [1, 4]]), np.ones(2), ShiftedLog(1.0))  # disjoint supports
    loadings, factors = adapt_start(apart, np.eye(2), np.eye(2), as_random(0))
    assert (loadings @ factors.T > 0).all()


def test_copies_are_told_apart_and_columns_that_are_zero_on_both_sides_come_alive():
    engine = engine_for(1.0)
    start = initialize(engine, 1, "random", as_random(0))
    loadings, factors = (np.c_[np.repeat(one, 3, axis=1), np.zeros(len(one))] for one in start)
    adapted, others = adapt_start(engine.problem, loadings, factors, as_random(0))
    assert len(np.unique(adapted, axis=1).T) == 4
    np.testing.assert_allclose(adapted[:, :3], loadings[:, :3], rtol=0.11)
    np.testing.assert_allclose(others[:, :3], factors[:, :3], rtol=0.11)
    assert adapted[:, 3].any()
    assert others[:, 3].any()
