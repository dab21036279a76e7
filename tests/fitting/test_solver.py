"""Laws of the outer loop."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from log1pnmf._common.checks import PATIENCE, shown_after
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.callbacks import History, ProgressBar, TimeLimit
from log1pnmf.fitting.solver import Extrapolation, Stopping, alternate
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.objective import gradients, kkt_residual, negative_log_likelihood
from log1pnmf.model.problem import Bounds, Constraint, Problem
from log1pnmf.model.zeros import quadratic

K = 3
FORMS = [(1e-3, None), (1.0, None), (1.0, "chebyshev"), (1e3, "taylor"), (math.inf, None)]


def example(c, kind=None, *, n=40, m=30, seed=0):
    """A problem with structure and a random start."""
    rng = np.random.default_rng(seed)
    link = ShiftedLog(c)
    truth = rng.gamma(0.5, size=(n, K)) @ rng.gamma(0.5, 2.0, size=(K, m))
    y = rng.poisson(truth)
    y[3], y[:, 5] = 0, 0
    problem = Problem(Counts.from_any(y), np.ones(n), link, None if kind is None else quadratic(link, kind))
    loadings, factors = rng.uniform(0.5, 1.5, size=(n, K)), rng.uniform(0.5, 1.5, size=(m, K))
    loadings[3], factors[5] = 0.0, 0.0
    factors *= float(link.link(y.mean())) / link.alpha / (loadings @ factors.T).mean()
    return problem, loadings, factors


def run(problem, loadings, factors, *, max_iter=30, extrapolated=True, **options):
    engine = NativeEngine(problem, 1)
    schedule = Extrapolation() if extrapolated else None
    return list(alternate(engine, loadings, factors, extrapolation=schedule, max_iter=max_iter, **options))


@pytest.mark.parametrize(("row_solver", "penalised"), [("newton", True), ("coordinate", False)])
@pytest.mark.parametrize(("c", "kind"), FORMS)
def test_the_objective_never_rises_and_is_that_of_the_point(c, kind, row_solver, penalised):
    problem, loadings, factors = example(c, kind)
    extrapolated = row_solver == "newton"
    penalty = np.array([0.0, 2.0, 2.0]) if penalised else np.zeros(K)
    upper = 1.0 if penalised else math.inf
    iterations = run(
        problem,
        loadings / loadings.max(),
        factors * loadings.max(),
        constraint=Constraint(Bounds(upper=upper), Bounds(penalty=penalty)),
        row_solver=row_solver,
        extrapolated=extrapolated,
    )
    steps = np.diff([it.index for it in iterations])
    np.testing.assert_array_equal(steps, [2 if it.restarted else 1 for it in iterations[1:]])
    assert (np.diff([it.objective for it in iterations]) <= 0).all()
    for it in iterations:
        assert it.loss == pytest.approx(negative_log_likelihood(problem, it.loadings, it.factors), rel=1e-11)
        assert it.objective == pytest.approx(it.loss + penalty @ it.factors.sum(axis=0), rel=1e-14)
        assert (it.loadings >= 0).all()
        assert (it.factors >= 0).all()
        assert (it.loadings <= upper).all()
        assert it.likelihood == ("approximate" if kind else "exact")
    assert any(it.beta > 0 for it in iterations) == extrapolated


@pytest.mark.parametrize(("c", "kind"), FORMS)
def test_it_converges_to_a_point_where_the_gradients_vanish(c, kind):
    problem, loadings, factors = example(c, kind)
    problem = replace(problem, counts=Counts.from_any(problem.counts.to_scipy().toarray() + np.eye(40, 30)))
    first, *_, last = run(problem, loadings + 0.1, factors + 0.1, max_iter=1000)
    own = gradients(problem, last.loadings, last.factors)
    residual = kkt_residual(last.loadings, last.factors, *own, problem.counts.total)
    assert residual < 1e-5
    assert last.kkt_residual < min(1e-5, 1e-3 * first.kkt_residual)


def test_extrapolation_is_faster():
    problem, loadings, factors = example(1.0)
    plain = run(problem, loadings, factors, extrapolated=False, max_iter=200)[-1].objective
    fast = run(problem, loadings, factors, max_iter=200)
    start = fast[0].objective
    reached = next(it.index for it in fast if it.objective <= plain + 1e-9 * (start - plain))
    assert reached < 150


@pytest.mark.parametrize(("c", "kind"), FORMS[1:])
def test_permuting_samples_permutes_loadings(c, kind):
    problem, loadings, factors = example(c, kind)
    order = np.random.default_rng(1).permutation(40)
    shuffled = replace(problem, counts=Counts.from_any(problem.counts.to_scipy()[order]))
    one = run(problem, loadings, factors, max_iter=10)[-1]
    other = run(shuffled, loadings[order], factors, max_iter=10)[-1]
    np.testing.assert_allclose(other.loadings, one.loadings[order], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(other.factors, one.factors, rtol=1e-6, atol=1e-8)


def test_the_identity_is_the_limit_of_large_c_exact_or_not():
    means = []
    for c, kind in ((math.inf, None), (1e8, None), (1e8, "chebyshev")):
        problem, loadings, factors = example(c, kind)
        last = run(problem, loadings, factors, max_iter=3000)[-1]
        means.append(problem.link.mean(last.loadings @ last.factors.T))
    # all fits end where a gain is below the last bit of the objective: the means are known to its root
    for other in means[1:]:
        np.testing.assert_allclose(means[0], other, rtol=1e-5, atol=1e-5)


def iteration(index=0, **values):
    problem, loadings, factors = example(1.0)
    return replace(run(problem, loadings, factors, max_iter=1)[0], index=index, **values)


def test_stopping_needs_some_in_a_row_and_no_restart():
    point = iteration(1, kkt_residual=1e-4)
    small, large = replace(point, relative_change=1e-9), replace(point, relative_change=1e-3)
    restarted = replace(small, restarted=True)

    def stops(*seen):
        stopping = Stopping(1e-8, 2)
        return [stopping(it) for it in seen]

    assert stops(small, small) == [False, True]
    assert stops(small, large, small, small) == [False, False, False, True]
    assert stops(small, restarted, small, small) == [False, False, False, True]
    assert stops(restarted, restarted, restarted) == [False, False, True]
    assert stops(replace(point, relative_change=math.nan), small) == [False, False]


def test_a_plateau_is_no_optimum():
    plateau = iteration(1, relative_change=1e-9, kkt_residual=0.02)
    stopping, loose = Stopping(1e-8, 2), Stopping(1e-4, 2)
    assert not any(stopping(plateau) for _ in range(10))
    assert [loose(plateau) for _ in range(2)] == [False, True]
    near = replace(plateau, kkt_residual=1e-4)
    assert [stopping(near) for _ in range(2)] == [False, True]
    assert not any(stopping(replace(near, kkt_residual=math.nan)) for _ in range(3))


def test_history_is_a_table():
    history, iterations = History(), run(*example(1.0, "chebyshev"), max_iter=3)
    assert history.table()["iteration"].shape == (0,)
    for it in iterations:
        history(it)
    table = history.table()
    History.check(table)
    np.testing.assert_array_equal(table["iteration"], range(4))
    np.testing.assert_array_equal(table["log_likelihood"], [-it.loss for it in iterations])
    assert set(table["likelihood"]) == {"approximate"}


def test_time_limit():
    point = iteration()
    assert not TimeLimit(1e6)(point)
    limit = TimeLimit(1e-9)
    limit(point)
    assert limit(point)
    with pytest.raises(ValueError, match="seconds must be positive, got 0"):
        TimeLimit(0)


def test_only_long_work_in_a_terminal_shows_a_bar_on_standard_error(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert (shown_after(None), shown_after(0), shown_after(1)) == (None, None, 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert shown_after(None) == PATIENCE
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert shown_after(None) is None
    monkeypatch.delenv("TQDM_DISABLE")
    for after in (1000.0, 0.0):
        with ProgressBar(7, "fitting", after) as bar:
            bar(iteration(3))
        out, err = capsys.readouterr()
        assert out == ""
        assert ("fitting" in err) == ("3/7" in err) == (after == 0.0)


def test_a_log_file_gets_one_line_for_each_phase(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    with ProgressBar(7, "exact") as bar:
        for index in range(4):
            bar(iteration(index))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("exact: 3 iterations in ")
    assert err.count("\n") == 1
    assert "\r" not in err
