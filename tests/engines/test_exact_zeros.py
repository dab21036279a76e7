"""The compiled engine with all zeros visited: sparse and dense rows, similar columns and others."""

import math

import numpy as np
import pytest
from tests.reference_engine import ReferenceEngine, both_sides

from log1pnmf import _core
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.model.batches import Batches
from log1pnmf.model.noise import POISSON, NegativeBinomial, ShiftedLog
from log1pnmf.model.problem import Problem

KERNELS = _core.runnable_kernels()
SPREADS = {"similar": (-4.0, 0.1), "mixed": (-3.0, 2.0)}
"""Logarithms of the features' levels: mean and standard deviation."""


def example(spread, *, c=1.0, K=3, n=90, m=400, dispersed=False, batches=None, seed=0):
    """Sparse counts but for some dense rows on both sides, with loadings and factors near the truth."""
    rng = np.random.default_rng(seed)
    link, (mean, deviation) = ShiftedLog(c), SPREADS[spread]
    loadings = rng.uniform(0.2, 1.0, (n, K)) * 3.0 / K
    factors = rng.uniform(0.2, 1.0, (m, K)) * np.exp(rng.normal(mean, deviation, (m, 1)))
    factors[:5] = rng.uniform(0.5, 1.5, (5, K))
    sizes = rng.uniform(0.5, 2.0, n)
    sizes[:3] = 40.0
    eta = np.minimum(loadings @ factors.T, 5.0)
    y = rng.poisson(sizes[:, None] * link.mean(eta))
    y[7], y[:, 11] = 0, 0
    own = None
    if batches is not None:
        effects = np.exp(rng.normal(0.0, 0.3, (batches, m)))
        own = Batches(rng.integers(0, batches, n), effects, 3.0)
    noise = NegativeBinomial(rng.uniform(0.05, 2.0, m)) if dispersed else POISSON
    return Problem(Counts.from_any(y), sizes, link, noise=noise, batches=own), loadings, factors


FORMS = {
    "poisson": {},
    "small c": {"c": 1e-2},
    "dispersed": {"dispersed": True},
    "dispersed, identity": {"dispersed": True, "c": math.inf},
    "batches": {"batches": 3},
    "dispersed, batches": {"dispersed": True, "batches": 3},
    "many components": {"K": 26},
}


def test_examples_have_sparse_and_dense_rows():
    for spread in SPREADS:
        problem, *_ = example(spread)
        for rows, n_columns in zip((problem.counts.by_row, problem.counts.by_column), (400, 90), strict=True):
            filled = np.diff(rows.indptr) / n_columns
            assert filled.max() > 0.5
            assert np.median(filled) < 0.3


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("form", FORMS)
def test_loss_and_gradient_of_a_half_step_are_exact(form, spread):
    problem, loadings, factors = example(spread, **FORMS[form])
    for side, start, design in both_sides(problem, loadings, factors):
        loss, gradient = ReferenceEngine(problem).evaluate(side, start, design)
        for native in (NativeEngine(problem, 1, kernel) for kernel in KERNELS):
            step = native.half_step(side, start, design)
            assert step.loss == pytest.approx(loss, rel=1e-11)
            scale = np.abs(gradient).max(axis=1, keepdims=True)
            np.testing.assert_allclose(step.gradient / scale, gradient / scale, atol=1e-10)
            quiet = native.half_step(side, start, design, with_loss=False)
            after = [native.evaluate(side, rows, design)[0] for rows in (step.values, quiet.values)]
            assert after[0] == pytest.approx(after[1], rel=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("form", FORMS)
def test_half_steps_lower_the_loss_and_end_at_the_optimum(form, spread, kernel):
    """Hessians of zeros may be a fifth off; what they lead to may not."""
    problem, loadings, factors = example(spread, n=50, m=200, **FORMS[form])
    engine, rng = NativeEngine(problem, 1, kernel), np.random.default_rng(1)
    for side, start, design in both_sides(problem, loadings, factors):
        rows, before = start * rng.uniform(0.05, 5.0, start.shape), math.inf
        for _ in range(40):
            step = engine.half_step(side, rows, design)
            assert step.loss <= before + 1e-12 * abs(before)
            rows, before = step.values, step.loss
        gradient = engine.evaluate(side, rows, design)[1]
        scale = np.abs(engine.evaluate(side, 0.5 * rows + 1e-3, design)[1]).max()
        assert np.abs(np.minimum(rows / rows.max(), gradient / scale)).max() < 1e-6


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("form", ["poisson", "batches", "dispersed"])
def test_bits_do_not_depend_on_threads(form, spread):
    problem, loadings, factors = example(spread, n=400, m=700, **FORMS[form])
    for side, start, design in both_sides(problem, loadings, factors):
        one, three = (NativeEngine(problem, n).half_step(side, start, design) for n in (1, 3))
        np.testing.assert_array_equal(one.values, three.values)
        assert one.loss == three.loss


def test_similar_columns_change_the_steps_and_not_the_optimum():
    """Where weights are even, a step is another one than the reference's, and a good one."""
    problem, loadings, factors = example("similar", n=30)
    native, reference = NativeEngine(problem, 1), ReferenceEngine(problem)
    start = loadings * np.random.default_rng(2).uniform(0.8, 1.25, loadings.shape)
    side = problem.loadings_side
    ours, theirs = (engine.half_step(side, start, factors).values for engine in (native, reference))
    assert not np.allclose(ours, theirs, rtol=1e-9)
    losses = [native.evaluate(side, rows, factors)[0] for rows in (start, ours, theirs)]
    assert losses[0] - losses[1] > 0.98 * (losses[0] - losses[2])
