"""Bounds and penalties for every entry: known entries stay, and engines find what the reference finds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from tests.reference_engine import ReferenceEngine, both_sides
from tests.reference_engine import example as example_of

from log1pnmf.engines.native import NativeEngine
from log1pnmf.engines.registry import has_card
from log1pnmf.fitting.solver import solve_side
from log1pnmf.model.problem import Bounds

K = 4
FORMS = [(1.0, None), (0.1, "chebyshev"), (math.inf, None)]
FAR = [*FORMS, (1e-6, None), (1e-3, "chebyshev"), (1e4, "taylor")]


def example(c=1.0, kind=None, *, n=8, m=30, seed=0):
    return example_of(c, kind, K, n=n, m=m, seed=seed)


def random_bounds(values, seed):
    """Some entries known, some zero, some in a box, some with a penalty; the last column is free."""
    rng = np.random.default_rng(seed)
    lower, upper, penalty = np.zeros(values.shape), np.full(values.shape, np.inf), np.zeros(values.shape)
    kind = rng.integers(0, 5, size=values.shape)
    kind[:, -1] = 0
    lower[kind == 1] = upper[kind == 1] = values[kind == 1] * rng.uniform(0.5, 1.5, (kind == 1).sum())
    upper[kind == 2] = 0.0
    lower[kind == 3], upper[kind == 3] = 0.5 * values[kind == 3], 1.1 * values[kind == 3]
    penalty[kind == 4] = rng.uniform(0.0, 5.0, (kind == 4).sum())
    return Bounds(lower, upper, penalty)


def check_held(bounds, start, values):
    held = np.equal(bounds.lower, bounds.upper)
    assert np.array_equal(values[held], start[held])  # to the bit
    assert (values >= bounds.lower).all()
    assert (values <= bounds.upper).all()


@pytest.mark.parametrize("row_solver", ["newton", "coordinate"])
@pytest.mark.parametrize(("c", "kind"), FAR)
@settings(max_examples=3)
@given(seed=st.integers(0, 10_000), far=st.booleans())
def test_native_takes_the_steps_of_the_reference(c, kind, row_solver, seed, far):
    """From near and far: known entries stay, and what is minimised never rises."""
    problem, loadings, factors = example(c, kind, seed=seed % 7)
    native, reference = NativeEngine(problem, 1), ReferenceEngine(problem)
    for side, values, design in both_sides(problem, loadings, factors):
        bounds = random_bounds(values, seed)
        rough = np.random.default_rng(seed).uniform(0.01, 20.0, values.shape) if far else 1.0
        start, totals, rejected = bounds.clip(rough * values), [], 0
        before = reference.evaluate(side, start, design)[0] + bounds.cost(start)
        for engine in (native, reference):
            step = engine.half_step(side, start, design, bounds=bounds, row_solver=row_solver)
            check_held(bounds, start, step.values)
            totals.append(reference.evaluate(side, step.values, design)[0] + bounds.cost(step.values))
            rejected += step.n_rejected
            assert totals[-1] <= before + 1e-11 * abs(before)
            assert step.predicted_decrease >= -1e-9 * abs(before)
        if row_solver == "newton" and not far and not rejected:
            assert totals[0] <= totals[1] + 1e-6 * abs(totals[1])  # native may take more than one step


def engines_with_residuals(problem):
    yield NativeEngine(problem, 1)
    if has_card():
        from log1pnmf.engines.torch.engine import TorchEngine

        yield TorchEngine(problem, precision="float64")


@pytest.mark.parametrize(("c", "kind"), FORMS)
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), shape=st.sampled_from([(8, 30), (2, 3), (70, 64), (130, 65)]))
def test_residuals_of_half_steps_are_those_of_the_truth(c, kind, seed, shape):
    problem, loadings, factors = example(c, kind, n=shape[0], m=shape[1], seed=seed % 7)
    for engine in engines_with_residuals(problem):
        for side, values, design in both_sides(problem, loadings, factors):
            for bounds in (Bounds(), Bounds(upper=1.0, penalty=np.arange(K)), random_bounds(values, seed)):
                start = bounds.clip(values)
                start[seed % len(start)] = np.broadcast_to(bounds.lower, start.shape)[seed % len(start)]
                step = engine.half_step(side, start, design, bounds=bounds)
                flat = np.where(side.empty[:, None], -np.asarray(bounds.penalty), step.gradient)
                assert step.residual == pytest.approx(bounds.residual(start, flat), rel=1e-12)


@pytest.mark.parametrize(("c", "kind"), [*FAR, (1.0, "nb"), (math.inf, "nb")])
def test_engines_find_the_minimum_of_scipy(c, kind):
    problem, loadings, factors = example(c, kind)
    bounds = random_bounds(loadings, 3)
    start = bounds.clip(loadings)
    side, native, reference = problem.loadings_side, NativeEngine(problem, 1), ReferenceEngine(problem)
    found = []
    for engine in (native, reference) if c >= 0.1 else (native,):  # the reference is slow there
        values, converged = solve_side(engine, "loadings", start, factors, bounds=bounds, tol=1e-12)
        assert converged
        check_held(bounds, start, values)
        found.append(native.evaluate(side, values, factors)[0] + bounds.cost(values))

    def penalised(flat):
        values = flat.reshape(start.shape)
        loss, gradient = native.evaluate(side, values, factors)
        return loss + bounds.cost(values), (gradient + bounds.penalty).ravel()

    box = list(zip(bounds.lower.ravel(), bounds.upper.ravel(), strict=True))
    best = minimize(
        penalised, start.ravel(), jac=True, bounds=box, method="L-BFGS-B", options={"ftol": 1e-14}
    )
    assert found == pytest.approx([best.fun] * len(found), rel=1e-8)


def test_numbers_columns_and_entries_are_the_same_bounds():
    problem, loadings, factors = example()
    engine, penalty = NativeEngine(problem, 1), np.arange(4.0)
    shapes = [
        (1.0, penalty),
        (np.ones(K), penalty[None]),
        (np.ones(loadings.shape), np.tile(penalty, (8, 1))),
    ]
    steps = [
        engine.half_step(problem.loadings_side, loadings.clip(max=1.0), factors, bounds=Bounds(0.0, *one))
        for one in shapes
    ]
    assert np.array_equal(steps[0].values, steps[1].values)
    assert np.array_equal(steps[0].values, steps[2].values)
