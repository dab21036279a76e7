"""Laws of half-steps that hold for every form of problem, in every kernel."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.engines.problems import FORMS, problems, sparse_rows, with_zeros
from tests.reference_engine import ReferenceEngine, both_sides, example

from log1pnmf import _core
from log1pnmf.engines.native import NativeEngine
from log1pnmf.model.noise import POISSON
from log1pnmf.model.objective import gradients, negative_log_likelihood
from log1pnmf.model.problem import Bounds
from log1pnmf.model.zeros import caps_for, quadratic

KERNELS = _core.runnable_kernels()


@pytest.mark.parametrize("name", problems())
def test_loss_and_gradient_are_those_of_the_objective(name):
    """Of an evaluation and of a half-step; a step that leaves the loss out goes as far."""
    problem, loadings, factors = problems()[name]
    truth, slopes = (f(problem, loadings, factors) for f in (negative_log_likelihood, gradients))
    reference, natives = ReferenceEngine(problem), [NativeEngine(problem, 1, kernel) for kernel in KERNELS]
    for (side, start, design), slope in zip(both_sides(problem, loadings, factors), slopes, strict=True):
        loss, gradient = reference.evaluate(side, start, design)
        assert loss == pytest.approx(truth, rel=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-11 * np.abs(slope).max())
        size = np.abs(gradient).max(axis=None if "wide" in name or "large" in name else 1, keepdims=True)
        for native in natives:
            step, quiet = (native.half_step(side, start, design, with_loss=one) for one in (True, False))
            for found, at in (native.evaluate(side, start, design), (step.loss, step.gradient)):
                assert found == pytest.approx(loss, rel=1e-11)
                np.testing.assert_allclose(at / size, gradient / size, atol=1e-10)
            np.testing.assert_allclose(quiet.gradient / size, gradient / size, atol=1e-10)
            after = [native.evaluate(side, rows, design)[0] for rows in (step.values, quiet.values)]
            # more factors than features: which coefficients are held may hang on the last digit
            assert after[0] == pytest.approx(after[1], rel=1e-5 if "few features" in name else 1e-9)
            assert after[0] <= loss
            assert math.isnan(quiet.loss)
            assert abs(quiet.n_rejected - step.n_rejected) <= 1
    if problem.batches is not None and problem.noise is POISSON:
        sums = reference.batch_sums(loadings, factors)
        for native in natives:
            assert native.batch_sums(loadings, factors) == pytest.approx(sums, rel=1e-9)
    assert natives[0].loss(loadings, factors) == pytest.approx(truth, rel=1e-11)


@pytest.mark.parametrize("name", problems())
def test_gradients_are_finite_differences(name):
    """Of the objective in NumPy, which all engines are held to."""
    problem, *at = problems()[name]
    for side, gradient in enumerate(gradients(problem, *at)):
        for row, k in ((0, 0), (len(gradient) // 3, -1), (-1, 0)):
            h, ends = 1e-6 * at[side][row, k], []
            for sign in (-1.0, 1.0):
                moved = [at[0].copy(), at[1].copy()]
                moved[side][row, k] += sign * h
                ends.append(negative_log_likelihood(problem, *moved))
            difference, rounding = (ends[1] - ends[0]) / (2 * h), 1e-15 * abs(ends[0]) / h
            assert gradient[row, k] == pytest.approx(difference, rel=1e-5, abs=rounding + 1e-6)


@pytest.mark.parametrize("name", problems())
def test_half_steps_lower_the_loss_and_end_at_the_optimum(name):
    """Hessians of zeros may be a fifth off; what they lead to may not."""
    problem, loadings, factors = problems()[name]
    reference, rng = ReferenceEngine(problem), np.random.default_rng(1)
    engines = itertools.cycle(NativeEngine(problem, 1, kernel) for kernel in KERNELS)
    for side, start, design in both_sides(problem, loadings, factors):
        rows, before = start * rng.uniform(0.05, 5.0, start.shape), math.inf
        for engine in itertools.islice(engines, 60):
            step = engine.half_step(side, rows, design)
            assert step.loss <= before + 1e-12 * abs(before)
            rows, before = step.values, step.loss
        settled = reference.half_step(side, rows, design)
        assert settled.loss - reference.evaluate(side, settled.values, design)[0] < 1e-7 * abs(before)


def test_similar_columns_change_the_steps_and_not_the_optimum():
    """Where weights are even, a step is another one than the reference's, and a good one."""
    problem, loadings, factors = sparse_rows("similar", n=30)
    native, reference = NativeEngine(problem, 1), ReferenceEngine(problem)
    start = loadings * np.random.default_rng(2).uniform(0.8, 1.25, loadings.shape)
    side = problem.loadings_side
    ours, theirs = (engine.half_step(side, start, factors).values for engine in (native, reference))
    assert not np.allclose(ours, theirs, rtol=1e-9)
    losses = [native.evaluate(side, rows, factors)[0] for rows in (start, ours, theirs)]
    assert losses[0] - losses[1] > 0.98 * (losses[0] - losses[2])


def effects_in_the_design():
    """Return a problem whose effects are in the design or beside it: each thread writes them anew."""
    problem, loadings, factors = sparse_rows("mixed", n=400, m=1500, K=5, batches=4)
    return replace(problem, zeros=quadratic(problem.link)), loadings, factors


def quartic_at(**size):
    _, problem, _, near = with_zeros(7, c=0.05, quartic=True, **size)
    return problem, *near


LARGE = {
    **{f"{form}": lambda form=form: example(*form, 5, n=700, m=300) for form in FORMS},
    **{
        f"sparse, {spread}": lambda one=spread: sparse_rows(one, n=400, m=700)
        for spread in ("similar", "mixed")
    },
    "dispersed": lambda: sparse_rows("mixed", n=400, m=700, dispersed=True),
    "batches": lambda: sparse_rows("similar", n=400, m=700, batches=3),
    "batches, approximate": effects_in_the_design,
    "quartic": lambda: quartic_at(n=600, m=400),
    "adaptive": lambda: (with_zeros(7, n=600, m=400, K=4)[1], *with_zeros(7, n=600, m=400, K=4)[3]),
}
"""Small work gets one thread."""


@pytest.mark.parametrize("name", LARGE)
def test_any_number_of_threads_gives_the_same_bits(name):
    problem, loadings, factors = LARGE[name]()
    one, *others = (NativeEngine(problem, n_threads) for n_threads in (1, 2, 3))
    hows = [{}, {"row_solver": "coordinate"}] if name.startswith("(") else [{}]
    for side, start, design in both_sides(problem, loadings, factors):
        upper = np.where(start > np.median(start), start, math.inf)  # some are held to what they are
        for how in (*hows, {"bounds": Bounds(np.where(upper < math.inf, start, 0.0), upper)}):
            expected = one.half_step(side, start, design, **how)
            for step in (engine.half_step(side, start, design, **how) for engine in others):
                assert step.loss == expected.loss
                np.testing.assert_array_equal(step.values, expected.values)
                np.testing.assert_array_equal(step.gradient, expected.gradient)
    for found in (engine.survey_zeros(loadings, factors, caps_for(1e-4)) for engine in others):
        np.testing.assert_array_equal(
            found.quadratics, one.survey_zeros(loadings, factors, caps_for(1e-4)).quadratics
        )
    assert all(
        engine.zero_errors(loadings, factors) == one.zero_errors(loadings, factors) for engine in others
    )
