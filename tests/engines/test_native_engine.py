"""The compiled engine against the NumPy one, and laws of both."""

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from tests.engines.problems import FORMS
from tests.reference_engine import ReferenceEngine, both_sides, example

from log1pnmf import _core
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine, RowSums, effective_threads
from log1pnmf.model.noise import NegativeBinomial, ShiftedLog
from log1pnmf.model.problem import Bounds, Problem

KERNELS = _core.runnable_kernels()
SOLVERS = ["newton", "coordinate"]
ENGINES = [NativeEngine, ReferenceEngine]


@pytest.mark.parametrize(("c", "kind"), FORMS)
@pytest.mark.parametrize(("n_components", "bounded"), [(3, True), (9, False)])
def test_newton_steps_near_the_optimum_are_those_of_the_reference(c, kind, n_components, bounded):
    problem, loadings, factors = example(c, kind, n_components, m=70)
    natives = [NativeEngine(problem, 1, kernel) for kernel in KERNELS]
    penalty = np.linspace(0.0, 0.2, n_components) if bounded else np.zeros(n_components)
    for side, start, design in both_sides(problem, loadings, factors):
        upper = float(np.quantile(start, 0.9)) if bounded else math.inf
        form = {"bounds": Bounds(upper=upper, penalty=penalty)}
        rows = np.minimum(start, upper)
        for _ in range(15):
            rows = natives[0].half_step(side, rows, design, **form).values
        eta = ReferenceEngine(problem).half_step(side, rows, design, **form).values @ design.T
        for native in natives:
            values = native.half_step(side, rows, design, **form).values
            np.testing.assert_allclose(values @ design.T, eta, rtol=1e-6, atol=1e-7 * eta.max())
            assert ((values >= 0) & (values <= upper)).all()


@pytest.mark.parametrize(("c", "kind"), FORMS)
@pytest.mark.parametrize(("near", "kept"), [(False, 0.1), (True, 1.0)])
def test_coordinate_steps_are_those_of_the_reference(c, kind, near, kept):
    """Long steps and short ones (near the optimum), few counts in a row and many: all take other ways."""
    rng = np.random.default_rng(3)
    problem, loadings, factors = example(c, kind, 5, n=24, m=40)
    y = np.where(rng.random((24, 40)) < kept, problem.counts.to_scipy().toarray(), 0.0)
    problem = Problem(Counts.from_any(y), problem.size_factors, problem.link, problem.zeros)
    natives = [NativeEngine(problem, 1, kernel) for kernel in KERNELS]
    form = {"bounds": Bounds(penalty=[0.0, 0.0, 0.1, 1.0, 3.0]), "row_solver": "coordinate"}
    for side, start, design in both_sides(problem, loadings, factors):
        rows = start * rng.uniform(0.2, 5.0, size=start.shape)
        for _ in range(40 if near else 0):
            rows = natives[0].half_step(side, rows, design, **form).values
        other = ReferenceEngine(problem).half_step(side, rows, design, **form)
        for one in (native.half_step(side, rows, design, **form) for native in natives):
            same = np.isclose(one.values, other.values, rtol=1e-8, atol=1e-9 * other.values.max()).all(axis=1)
            # The reference is content with any fall, the kernel wants a hundredth of the predicted one.
            assert same.all() if near else same.mean() > 0.9
            assert one.loss == pytest.approx(other.loss, rel=1e-11)


@pytest.mark.parametrize("c", [1e-3, 1.0, math.inf])
def test_both_row_solvers_meet(c):
    problem, loadings, factors = example(c, n=3, m=6)
    engine, ends = NativeEngine(problem, 1), []
    for row_solver in SOLVERS:
        values, before = loadings, np.inf
        for _ in range(500):  # the published steps are short
            step = engine.half_step(problem.loadings_side, values, factors, row_solver=row_solver)
            if before - step.loss <= 1e-10 * abs(step.loss):
                break
            values, before = step.values, step.loss
        ends.append(before)
    assert ends[0] == pytest.approx(ends[1], rel=1e-7)


@pytest.mark.parametrize("engine_of", ENGINES)
@pytest.mark.parametrize("row_solver", SOLVERS)
@pytest.mark.parametrize("c", [1e-6, 1.0, math.inf])
def test_transposed_problem_is_the_same(c, row_solver, engine_of):
    problem, loadings, factors = example(c, n=7, m=9)
    y, steps = problem.counts.to_scipy().toarray(), []
    for counts, name in ((y, "factors_side"), (y.T, "loadings_side")):
        engine = engine_of(Problem(Counts.from_any(counts), np.ones(len(counts)), problem.link))
        side = getattr(engine.problem, name)
        steps.append(engine.half_step(side, factors, loadings, row_solver=row_solver))
    one, other = steps
    np.testing.assert_allclose(one.values, other.values, rtol=1e-9, atol=1e-12)
    assert one.loss == pytest.approx(other.loss, rel=1e-12)
    assert one.n_rejected == other.n_rejected


@pytest.mark.parametrize("engine_of", ENGINES)
@pytest.mark.parametrize("row_solver", SOLVERS)
@pytest.mark.parametrize(("c", "kind"), [(1e-6, None), *FORMS[1::2]])
def test_impossible_starts_and_components_that_nothing_depends_on(c, kind, row_solver, engine_of):
    problem, loadings, factors = example(c, kind, n=7, m=9)
    engine, side = engine_of(problem), problem.loadings_side
    start = loadings.copy()
    start[0] = 0.0
    step = engine.half_step(side, start, factors, row_solver=row_solver)
    assert step.loss > 1e20  # infinite, or held just below
    assert np.isfinite(step.gradient).all()
    assert np.isfinite(step.values).all()
    after = engine.loss(step.values, factors)
    assert math.isfinite(after)
    assert after < step.loss
    if kind is not None:
        return
    factors[:, 1] = 0.0
    counted = ~side.empty
    step = engine.half_step(side, loadings, factors, row_solver=row_solver)
    np.testing.assert_array_equal(step.values[counted, 1], loadings[counted, 1])
    costly = Bounds(penalty=np.array([0.0, 0.1, 0.0]))
    for _ in range(10):  # a backtracked row gets there later
        loadings = engine.half_step(side, loadings, factors, bounds=costly, row_solver=row_solver).values
    np.testing.assert_array_equal(loadings[:, 1], 0.0)


@pytest.mark.parametrize("row_solver", SOLVERS)
def test_row_solvers_meet_at_means_beyond_any_exponent(row_solver):
    # with the identity link eta is the mean itself and may be large
    y = np.array([[4000, 10, 0], [90000, 0, 3]])
    problem = Problem(Counts.from_any(y), np.ones(2), ShiftedLog(math.inf))
    engine, loadings = NativeEngine(problem, 1), np.array([[1.0], [1.0]])
    factors = np.array([[800.0], [2.0], [1.0]])
    for _ in range(20):
        loadings = engine.half_step(problem.loadings_side, loadings, factors, row_solver=row_solver).values
    np.testing.assert_allclose(loadings[:, 0], y.sum(axis=1) / factors.sum(), rtol=1e-8)


def test_fits_may_run_at_the_same_time():
    problem, loadings, factors = example(1.0, None, 5, n=700, m=300)
    engine, alone = NativeEngine(problem, 3), NativeEngine(problem, 1)
    expected = alone.half_step(problem.loadings_side, loadings, factors)
    with ThreadPoolExecutor(4) as together:
        steps = [
            together.submit(engine.half_step, problem.loadings_side, loadings, factors) for _ in range(12)
        ]
        for step in steps:
            np.testing.assert_array_equal(step.result().values, expected.values)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("c", [1.0, math.inf])
def test_dispersed_loss_near_and_far_from_poisson(c, kernel):
    # phi times the mean from far below to far above 1: nothing may cancel in log(1 + phi mean) / phi
    problem, loadings, factors = example(c, None, 3, n=20, m=150)
    for phi in (0.0, 1e-18, 1e-12, 1e-7, 1e-3, 1.0, 1e3):
        dispersed = replace(problem, noise=NegativeBinomial(np.full(len(factors), phi)), zeros=None)
        loss = NativeEngine(dispersed, 1, kernel).loss(loadings, factors)
        assert loss == pytest.approx(ReferenceEngine(dispersed).loss(loadings, factors), rel=1e-11)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("name", "powers", "interval"), [("expm1", (-99, 2.6), (0.0, 3.0)), ("log", (-99, 200), (0.5, 2.0))]
)
def test_functions_are_accurate(kernel, name, powers, interval):
    rng = np.random.default_rng(0)
    x = np.concatenate([10.0 ** rng.uniform(*powers, 200_000), rng.uniform(*interval, 200_000)])
    # the loss of a zero is expm1(eta), that of a count with next to no exposure -log(eta)
    c, count, size, sign = (1.0, 0, 1.0, 1.0) if name == "expm1" else (math.inf, 1, 1e-300, -1.0)
    counts, sums = Counts.from_any(np.full((len(x), 1), count)), RowSums.zeros(len(x), 1)
    problem = Problem(counts, np.full(len(x), size), ShiftedLog(c))
    side = problem.loadings_side
    NativeEngine(problem, 1, kernel).add_statistics(side, x[:, None], np.ones((1, 1)), into=sums)
    y = sign * sums.loss
    np.testing.assert_allclose(y, getattr(np, name)(x), rtol=1e-14, atol=1e-15 if name == "log" else 0.0)
    with mpmath.workdps(40):
        precise = [float(getattr(mpmath, name)(one)) for one in x[::500]]
    np.testing.assert_allclose(y[::500], precise, rtol=1e-14, atol=1e-15 if name == "log" else 0.0)


def test_number_of_threads():
    everything = effective_threads(None)
    assert everything == effective_threads(-1) >= 1
    assert effective_threads(np.int64(7)) == 7
    with pytest.raises(ValueError, match="n_jobs must not be 0"):
        effective_threads(0)
    for bad in (100_000, 3_000_000_000):
        with pytest.raises(ValueError, match=f"n_jobs must be at most 4096, got {bad}; pass -1"):
            effective_threads(bad)
    for bad in (1.5, "2", True):
        with pytest.raises(TypeError, match="n_jobs must be a whole number or None"):
            effective_threads(bad)


def test_negative_numbers_of_threads_are_those_of_scikit_learn(monkeypatch):
    monkeypatch.setattr(_core, "max_threads", lambda: 6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [effective_threads(n) for n in (-1, -2, -5, -6, -7, -100)] == [6, 5, 2, 1, 1, 1]
    monkeypatch.setattr(os, "cpu_count", lambda: 32)  # more than there are processors: bounded
    assert effective_threads(128) == effective_threads(4096) == 128
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert effective_threads(64) == effective_threads(65) == 64


def test_unknown_kernels_are_refused():
    with pytest.raises(ValueError, match=r"kernel must be one of 'auto', .*got 'mmx'"):
        NativeEngine(example(1.0, None, 2, m=150)[0], 1, "mmx")


def test_the_core_bounds_threads_itself():
    problem, loadings, factors = example(1.0, None, 2, m=150)
    engine, one = NativeEngine(problem, 1), NativeEngine(problem, 1)
    engine.n_threads = 100_000
    assert engine.loss(loadings, factors) == one.loss(loadings, factors)


FORKS = """
import multiprocessing
import numpy as np
from log1pnmf import fit_log1p_nmf

Y = np.random.default_rng(0).poisson(1.0, size=(1500, 100))  # enough for two threads

def fit(_):
    return fit_log1p_nmf(Y, 3, init="rank1", max_iter=5, random_state=0, n_jobs=2).objective

if __name__ == "__main__":
    here = fit(None)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(fit, range(2)).get(timeout=600) == [here, here]
    assert fit(None) == here
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_can_fit_after_a_fit_with_threads():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], check=True)


def test_openmp_limits_the_default():
    code = "from log1pnmf.engines.native import effective_threads as e; print(e(None), e(-1), e(5))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout.split() == [b"1", b"1", b"5"]
