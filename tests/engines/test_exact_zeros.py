"""The compiled engine with all zeros visited, where steps are not those of the reference."""

import math

import numpy as np
import pytest
from tests.engines.problems import SPARSE_FORMS as FORMS
from tests.engines.problems import SPREADS
from tests.engines.problems import sparse_rows as example
from tests.reference_engine import ReferenceEngine, both_sides

from log1pnmf import _core
from log1pnmf.engines.native import NativeEngine

KERNELS = _core.runnable_kernels()


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
