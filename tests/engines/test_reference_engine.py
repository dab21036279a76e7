"""Laws of the reference half-step."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from tests.reference_engine import ReferenceEngine

from log1pnmf.counts.counts import Counts
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.objective import gradients, negative_log_likelihood
from log1pnmf.model.problem import Bounds, Problem
from log1pnmf.model.zeros import quadratic

SHIFTS = [1e-6, 1e-3, 1.0, 1e4, math.inf]
KINDS = [None, "chebyshev", "taylor"]
SOLVERS = ["newton", "coordinate"]
FORMS = [
    (1e-6, None),
    (1e-3, "chebyshev"),
    (1.0, None),
    (1.0, "chebyshev"),
    (1e4, "taylor"),
    (math.inf, None),
]


def example(c, kind=None, *, n=7, m=9, n_components=3, seed=0):
    """An engine with a start on the eta scale."""
    rng = np.random.default_rng(seed)
    link = ShiftedLog(c)
    loadings, factors = rng.gamma(1.0, size=(n, n_components)), rng.gamma(1.0, size=(m, n_components))
    factors *= (1.0 if link.is_identity else math.log1p(2.0 / c)) / (loadings @ factors.T).mean()
    y = rng.poisson(rng.gamma(0.3, 5.0, size=(n, m)))
    y[n // 2], y[:, m // 2] = 0, 0
    if n > 1:  # rows without counts are zero from the start
        loadings[n // 2], factors[m // 2] = 0.0, 0.0
    zeros = None if kind is None else quadratic(link, kind)
    problem = Problem(Counts.from_any(y), rng.uniform(0.5, 2.0, size=n), link, zeros)
    return ReferenceEngine(problem), loadings, factors


@pytest.mark.parametrize(("c", "kind"), FORMS)
def test_loss_and_gradient_are_those_of_the_loss_module(c, kind):
    engine, loadings, factors = example(c, kind)
    problem = engine.problem
    expected = negative_log_likelihood(problem, loadings, factors)
    assert engine.loss(loadings, factors) == pytest.approx(expected, rel=1e-12)
    gradient_loadings, gradient_factors = gradients(problem, loadings, factors)
    for step, gradient in (
        (engine.half_step(problem.loadings_side, loadings, factors), gradient_loadings),
        (engine.half_step(problem.factors_side, factors, loadings), gradient_factors),
    ):
        assert step.loss == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(step.gradient, gradient, rtol=1e-9, atol=1e-11 * np.abs(gradient).max())


@given(
    seed=st.integers(0, 10**6),
    c=st.sampled_from(SHIFTS),
    kind=st.sampled_from(KINDS),
    row_solver=st.sampled_from(SOLVERS),
    n_components=st.integers(1, 4),
    penalty=st.sampled_from([0.0, 0.3, 10.0]),
    bounded=st.booleans(),
)
@settings(max_examples=20)
def test_the_penalised_loss_never_rises(*, seed, c, kind, row_solver, n_components, penalty, bounded):
    engine, loadings, factors = example(c, kind, n_components=n_components, seed=seed)
    penalties = penalty * np.arange(n_components)
    upper = float(loadings.max()) if bounded else math.inf
    side = engine.problem.loadings_side
    before = engine.loss(loadings, factors) + penalties @ loadings.sum(axis=0)
    for _ in range(3):
        step = engine.half_step(
            side, loadings, factors, bounds=Bounds(penalty=penalties, upper=upper), row_solver=row_solver
        )
        loadings = step.values
        after = engine.loss(loadings, factors) + penalties @ loadings.sum(axis=0)
        assert after <= before + 1e-12 * abs(before)
        assert step.predicted_decrease >= -1e-9 * abs(before)
        assert (loadings >= 0).all()
        assert (loadings <= upper).all()
        before = after


@pytest.mark.parametrize(("c", "kind"), FORMS)
@pytest.mark.parametrize("bound", [None, 0.7])
def test_repeated_steps_solve_the_row_problem(c, kind, bound):
    engine, loadings, factors = example(c, kind, n=1)
    counts, rng = np.array([[3, 0, 0, 1, 0, 12, 0, 0, 2]]), np.random.default_rng(1)
    problem = Problem(Counts.from_any(counts), np.array([1.4]), engine.problem.link, engine.problem.zeros)
    engine = ReferenceEngine(problem)
    penalty, upper = rng.uniform(0.0, 2.0, size=3), math.inf if bound is None else bound
    bounds = Bounds(upper=upper, penalty=penalty)
    b = np.minimum(loadings, upper)
    for _ in range(40):
        b = engine.half_step(problem.loadings_side, b, factors, bounds=bounds).values

    def objective(x):
        gradient = gradients(problem, x[None, :], factors)[0][0] + penalty
        return negative_log_likelihood(problem, x[None, :], factors) + penalty @ x, gradient

    best = min(
        minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(1e-300, None if bound is None else upper)] * 3,
            options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 2000},
        ).fun
        for start in (np.full(3, 0.3), np.minimum(loadings[0], upper))
    )
    value, gradient = objective(b[0])
    assert value <= best + 1e-9 * abs(best)
    assert value >= best - 1e-6 * abs(best)  # and not something else that is lower
    inside = (b[0] > 0) & (b[0] < upper)
    scale = 1e-6 * counts.sum() / max(b[0].max(), 1e-300)
    assert np.abs(gradient[inside]).max(initial=0.0) <= scale
    assert (gradient[b[0] == 0] >= -scale).all()
    assert (gradient[b[0] == upper] <= scale).all()


@pytest.mark.parametrize("c", [1e-3, 1.0, math.inf])
def test_both_row_solvers_meet(c):
    engine, loadings, factors = example(c, n=3, m=6)
    side, ends = engine.problem.loadings_side, []
    for row_solver in SOLVERS:
        values, before = loadings, np.inf
        for _ in range(500):  # the published steps are short
            step = engine.half_step(side, values, factors, row_solver=row_solver)
            if before - step.loss <= 1e-10 * abs(step.loss):
                break
            values, before = step.values, step.loss
        ends.append(before)
    assert ends[0] == pytest.approx(ends[1], rel=1e-7)


@pytest.mark.parametrize("row_solver", SOLVERS)
@pytest.mark.parametrize("c", SHIFTS)
def test_transposed_problem_is_the_same(c, row_solver):
    engine, loadings, factors = example(c)
    y, link = engine.problem.counts.to_scipy().toarray(), engine.problem.link
    straight = ReferenceEngine(Problem(Counts.from_any(y), np.ones(y.shape[0]), link))
    turned = ReferenceEngine(Problem(Counts.from_any(y.T), np.ones(y.shape[1]), link))
    one = straight.half_step(straight.problem.factors_side, factors, loadings, row_solver=row_solver)
    other = turned.half_step(turned.problem.loadings_side, factors, loadings, row_solver=row_solver)
    np.testing.assert_allclose(one.values, other.values, rtol=1e-9, atol=1e-12)
    assert one.loss == pytest.approx(other.loss, rel=1e-12)
    assert one.n_rejected == other.n_rejected


@pytest.mark.parametrize("row_solver", SOLVERS)
@pytest.mark.parametrize(("c", "kind"), FORMS)
def test_impossible_starts_recover_without_nan(c, kind, row_solver):
    engine, loadings, factors = example(c, kind)
    loadings[0] = 0.0
    side = engine.problem.loadings_side
    step = engine.half_step(side, loadings, factors, row_solver=row_solver)
    assert step.loss == math.inf
    assert np.isfinite(step.gradient).all()
    assert np.isfinite(step.values).all()
    assert math.isfinite(engine.loss(step.values, factors))


@pytest.mark.parametrize("row_solver", SOLVERS)
@pytest.mark.parametrize("c", [1e-3, 1.0, math.inf])
def test_unseen_components(c, row_solver):
    engine, loadings, factors = example(c)
    factors[:, 1] = 0.0
    side = engine.problem.loadings_side
    step = engine.half_step(side, loadings, factors, row_solver=row_solver)
    np.testing.assert_array_equal(step.values[:, 1], loadings[:, 1])
    costly = np.array([0.0, 0.1, 0.0])
    for _ in range(10):  # a backtracked row gets there later
        step = engine.half_step(side, loadings, factors, bounds=Bounds(penalty=costly), row_solver=row_solver)
        loadings = step.values
    np.testing.assert_array_equal(loadings[:, 1], 0.0)
