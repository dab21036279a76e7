"""Engines with adaptive zeros against the objective in NumPy, and against each other."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from tests.engines.problems import LINKS, other_engines
from tests.engines.problems import with_zeros as case
from tests.reference_engine import ReferenceEngine

from log1pnmf._core import runnable_kernels
from log1pnmf.counts.compress import Pattern
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.runs import AdaptiveUpdate
from log1pnmf.fitting.solver import Extrapolation, Point, alternate
from log1pnmf.model.noise import NegativeBinomial, ShiftedLog
from log1pnmf.model.objective import negative_log_likelihood
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import MOST_BENT, STEEPEST, caps_for, surveyed_every


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 6)),
    st.floats(-2.0, 2.0),
    st.floats(-6.0, 2.0),
    st.sampled_from([{}, {"dispersed": True}, {"quartic": True}]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_the_stated_error_is_never_below_the_true_one(size, log_c, log_limit, form, seed):
    (n, m, K), c, limit = size, 10.0**log_c, 10.0**log_limit
    exact, problem, chosen_at, near = case(seed, n=n, m=m, K=K, c=c, limit=limit, **form)
    for loadings, factors in (chosen_at, near):
        truth = negative_log_likelihood(exact, loadings, factors)
        loss = NativeEngine(problem).loss(loadings, factors)
        signed, absolute = NativeEngine(problem).zero_errors(loadings, factors)
        rounding = 1e-9 * (1.0 + abs(truth))
        assert abs(truth - loss) <= absolute + rounding
        assert loss + signed == pytest.approx(truth, abs=rounding)
    assert NativeEngine(problem).zero_errors(*chosen_at)[1] == pytest.approx(
        problem.zeros.error, abs=1e-7 * (1.0 + abs(truth))
    )


@pytest.mark.parametrize("kernel", runnable_kernels())
@pytest.mark.parametrize(("c", "dispersed"), LINKS)
def test_engines_choose_the_same(kernel, c, dispersed):
    exact, problem, (loadings, factors), near = case(5, n=70, m=25, c=c, dispersed=dispersed)
    caps = caps_for(1e-4)
    native = NativeEngine(exact, kernel=kernel).survey_zeros(loadings, factors, caps)
    one = NativeEngine(exact, kernel=kernel).collect_zeros(loadings, factors, problem.zeros.caps)
    for engine in other_engines(exact):
        survey = engine.survey_zeros(loadings, factors, caps)
        np.testing.assert_array_equal(native.n_above, survey.n_above)
        np.testing.assert_allclose(native.error, survey.error, rtol=1e-3, atol=1e-6)
        other = engine.collect_zeros(loadings, factors, problem.zeros.caps)
        np.testing.assert_array_equal(one[0].indptr, other[0].indptr)
        np.testing.assert_array_equal(one[0].indices, other[0].indices)
        np.testing.assert_allclose(one[1], other[1])
    found = NativeEngine(problem, kernel=kernel).zero_errors(*near)
    for engine in other_engines(problem):
        np.testing.assert_allclose(found, engine.zero_errors(*near), rtol=1e-9)


@pytest.mark.parametrize("kernel", runnable_kernels())
@pytest.mark.parametrize("c", [0.001, 0.02, 0.5])
def test_quartics_are_convex_and_better_than_quadratics(kernel, c):
    exact, problem, (loadings, factors), near = case(5, n=150, m=25, c=c, limit=0.2, quartic=True)
    native, reference = NativeEngine(exact, kernel=kernel), ReferenceEngine(exact)
    at = loadings, factors, caps_for(1e-4, quartic=True)
    ours, theirs = (engine.survey_zeros(*at, quartic=True) for engine in (native, reference))
    np.testing.assert_array_equal(ours.n_above, theirs.n_above)
    np.testing.assert_allclose(ours.error, theirs.error, rtol=1e-3, atol=1e-6)
    assert (ours.quadratics[:, :, 2:] >= 0.0).all()
    assert ours.error.sum() < 0.2 * native.survey_zeros(*at).error.sum()
    errors = (
        engine.zero_errors(*near) for engine in (NativeEngine(problem, 1, kernel), ReferenceEngine(problem))
    )
    np.testing.assert_allclose(*errors, rtol=1e-9)


@pytest.mark.parametrize("kernel", runnable_kernels())
@pytest.mark.parametrize("dispersed", [False, True])
def test_rough_errors_are_those_of_some_samples(kernel, dispersed):
    """Of every third sample here, scaled up."""
    n, m = 3100, 7
    _, problem, _, (loadings, factors) = case(9, n=n, m=m, limit=2.0, dispersed=dispersed)
    zeros, seen = problem.zeros, slice(0, n, surveyed_every(n))
    assert seen.step == 3
    assert zeros.stored.nnz > 100
    visited = sparse.csr_array(zeros.stored.to_dense(slice(0, m))[:, seen])
    stored = Pattern(visited.shape, visited.indptr.astype(np.int64), visited.indices)
    part = replace(
        problem,
        counts=Counts.from_any(problem.counts.to_scipy()[seen]),
        size_factors=problem.size_factors[seen],
        zeros=replace(zeros, stored=stored),
    )
    expected = np.array(ReferenceEngine(part).zero_errors(loadings[seen], factors))
    expected *= n / part.counts.n_samples
    others = (one for one in other_engines(problem) if not isinstance(one, ReferenceEngine))
    for engine in (NativeEngine(problem, kernel=kernel), *others):
        rough = engine.zero_errors(loadings, factors, roughly=True)
        np.testing.assert_allclose(rough, expected, rtol=1e-9)
        assert rough != engine.zero_errors(loadings, factors)


def test_of_many_samples_some_are_enough():
    exact, problem, (loadings, factors), _ = case(8, n=40_000, m=6, limit=20.0)
    assert problem.zeros.stored.nnz > 1000
    _, absolute = NativeEngine(problem).zero_errors(loadings, factors)
    assert absolute == pytest.approx(problem.zeros.error, rel=0.1)  # the estimate of the survey
    whole = ReferenceEngine(exact).survey_zeros(loadings, factors, caps_for(1e-4))
    some = NativeEngine(exact).survey_zeros(loadings, factors, caps_for(1e-4))
    spread = np.sqrt(surveyed_every(len(loadings)) * whole.n_above)  # of a sample's estimate
    assert (np.abs(some.n_above - whole.n_above) <= 5.0 * spread + 1e-9).all()


@pytest.mark.parametrize("c", [0.02, 1.0, math.inf])
def test_the_concave_part_keeps_to_its_bounds(c):
    exact, _, (loadings, factors), _ = case(9, n=80, m=30, c=c, dispersed=True)
    caps, eta, t = caps_for(1e-4), loadings @ factors.T, exact.loadings_side.row_exposure[:, None]
    zero = exact.counts.by_row.to_scipy().toarray() == 0
    for engine in (NativeEngine(exact), *other_engines(exact)):
        found = engine.survey_zeros(loadings, factors, caps).quadratics
        assert (found[:, :, 2] >= 0.0).all()
        assert (found[:, :, 4] <= 0.0).all()
        assert (found[:, :, 4] < 0.0).any()
        assert c < math.inf or not found[:, :, 2].any()
        measure = exact.noise.dispersion * t * exact.link.em(eta)
        measure = measure if c == math.inf else np.maximum(measure, eta)
        for g, cap in enumerate(caps):
            taken = np.where(zero & (measure <= cap), -2.0 * found[:, g, 4] * t * eta, 0.0)
            assert taken.max() <= MOST_BENT + 1e-9
        straight = engine.survey_zeros(loadings, factors, caps, straight=True).quadratics
        assert not straight[:, :, 4].any()


@pytest.mark.parametrize("c", [1.0, math.inf])
def test_few_zeros_with_nearly_the_same_eta_do_not_give_huge_coefficients(c):
    """They would be subtracted from the sums of the visited entries, and the two sides would differ."""
    rng = np.random.default_rng(12)
    loadings, factors = 1.0 + 1e-6 * rng.random((60, 1)), rng.uniform(0.3, 0.5, (20, 1))
    y = rng.poisson(3.0, (60, 20)) + 1
    y[:4] = 0
    exact = replace(
        case(12, n=60, m=20, c=c, dispersed=True)[0],
        counts=Counts.from_any(y),
        size_factors=rng.uniform(0.5, 2.0, 60),
    )
    for engine in (NativeEngine(exact), *other_engines(exact)):
        found = engine.survey_zeros(loadings, factors, caps_for(1e-4)).quadratics
        assert np.abs(found[:, :, :3]).max() < 4.0 * STEEPEST
        assert (found[:, :, 4] >= -0.5 * STEEPEST * np.exp(1.0) * exact.noise.dispersion[:, None]).all()


@pytest.mark.parametrize("c", [1.0, math.inf])
def test_beyond_where_the_concave_part_holds_the_loss_goes_on_as_a_line(c):
    """A concave form has no minimum: rows would leave along it for good."""
    _, problem, (loadings, factors), _ = case(10, n=60, m=50, c=c, dispersed=True)
    assert problem.zeros.is_bent
    side, reference = problem.factors_side, ReferenceEngine(problem)
    for times in (1.0, 8.0):
        loss, gradient = reference.evaluate(side, times * factors, loadings)
        beyond = loss - negative_log_likelihood(problem, loadings, times * factors)
        assert (beyond > 1e-3) == (times > 1.0)
        for engine in (NativeEngine(problem), *other_engines(problem, without_a_card=False)):
            found = engine.evaluate(side, times * factors, loadings)
            assert found[0] == pytest.approx(loss, rel=1e-9)
            np.testing.assert_allclose(found[1], gradient, rtol=1e-7, atol=1e-7 * np.abs(gradient).max())
            after = np.asarray(engine.half_step(side, times * factors, loadings).values)
            assert engine.evaluate(side, after, loadings)[0] < loss
    at, step = 8.0 * factors, 1e-5
    _, gradient = reference.evaluate(side, at, loadings)
    for j, k in ((0, 0), (20, 1), (40, 2)):
        move = np.zeros_like(at)
        move[j, k] = step
        difference = (
            reference.evaluate(side, at + move, loadings)[0]
            - reference.evaluate(side, at - move, loadings)[0]
        )
        assert gradient[j, k] == pytest.approx(difference / (2 * step), rel=5e-3, abs=1e-2)


@pytest.mark.parametrize("c", [1.0, math.inf])
def test_iterations_without_a_renewal_do_not_run_away(c):
    exact, problem, chosen_at, _ = case(11, n=80, m=60, K=4, c=c, dispersed=True)
    rng, most = np.random.default_rng(0), exact.counts.by_row.values.max()
    for _ in range(3):
        start = [one * rng.uniform(0.3, 3.0, one.shape) for one in chosen_at]
        iterations = list(alternate(NativeEngine(problem), *start, max_iter=80, residuals=False))
        assert (np.diff([one.objective for one in iterations]) <= 0.0).all()
        last = iterations[-1]
        assert last.loss < 1e20
        means = exact.link.em(np.minimum(last.loadings @ last.factors.T, 50.0)) * exact.size_factors[:, None]
        assert means.max() < 20.0 * most


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("c", [1.0, 1e5, math.inf])
def test_means_of_very_different_size_do_not_run_away(seed, c):
    """A few features have huge means, and large dispersions let any mean grow for nearly nothing."""
    rng = np.random.default_rng(seed)
    loadings, factors = rng.gamma(0.3, 1.0, (200, 3)), rng.gamma(0.3, 0.1, (150, 3))
    factors[:5, 2] *= 3000.0
    dispersion = rng.gamma(1.0, 10.0, 150) + 0.5
    y = rng.poisson(
        np.minimum(loadings @ factors.T, 1e5) * rng.gamma(1.0 / dispersion, dispersion, (200, 150))
    )
    noise = NegativeBinomial(dispersion)
    exact = NativeEngine(Problem(Counts.from_any(y), np.ones(200), ShiftedLog(c), noise=noise))
    start = [loadings + 1e-6, (factors + 1e-6) / (c if c < math.inf else 1.0)]
    start = [one * rng.uniform(0.3, 3.0, one.shape) for one in (map(np.log1p, start) if c == 1.0 else start)]
    engine = NativeEngine(AdaptiveUpdate(1e-3).chosen(exact, Point(*start), exact.loss(*start)))
    assert engine.problem.zeros.is_bent
    how = {"max_iter": 25, "residuals": False, "extrapolation": Extrapolation()}
    *_, last = alternate(engine, *start, **how)
    assert last.loss == pytest.approx(exact.loss(last.loadings, last.factors), rel=0.03)
    by_loadings = engine.evaluate(engine.problem.loadings_side, last.loadings, last.factors)[0]
    assert by_loadings == pytest.approx(last.loss, rel=0.02)
