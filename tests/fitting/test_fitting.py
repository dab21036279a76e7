"""The low-level fit: parameters, phases, restarts, interruption."""

import math
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

import log1pnmf as lp
from log1pnmf import datasets, fit_log1p_nmf
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit_counts import ApproximationWarning
from log1pnmf.fitting.settings import Settings
from log1pnmf.model.objective import gradients, kkt_residual, negative_log_likelihood
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic


def simulated(n=60, m=50, k=3, seed=0):
    """Counts with sparse factors."""
    rng = np.random.default_rng(seed)
    loadings, factors = rng.gamma(0.3, size=(n, k)), rng.gamma(0.3, 3.0, size=(m, k))
    return rng.poisson(loadings @ factors.T + 0.05)


Y = simulated()
QUICK = {"tol": 1e-6, "random_state": 0, "n_jobs": 1}


@pytest.mark.parametrize("c", [1e-6, 1.0, math.inf])
@pytest.mark.parametrize("likelihood", ["exact", "chebyshev", "adaptive"])
def test_what_is_reported_is_true(c, likelihood):
    fit = fit_log1p_nmf(Y, 3, c=c, likelihood=likelihood, **QUICK)
    counts = Counts.from_any(Y)
    at = fit.loadings, fit.factors / fit.link.alpha
    assert fit.log_likelihood == pytest.approx(-negative_log_likelihood(fit.problem(counts), *at), rel=1e-10)
    if fit.history["likelihood"][-1] != "exact":
        assert fit.objective == -fit.approximate_log_likelihood
        if likelihood == "chebyshev":
            expected = negative_log_likelihood(fit.problem(counts, quadratic(fit.link)), *at)
            assert fit.approximate_log_likelihood == pytest.approx(-expected, rel=1e-10)
    else:
        assert fit.approximate_log_likelihood is None
        assert fit.objective == -fit.log_likelihood
    assert fit.converged
    assert fit.history["objective"][-1] == fit.objective
    assert fit.history["iteration"][-1] == fit.n_iter
    assert fit.n_components == 3
    if likelihood == "exact":
        solved = fit.loadings, fit.factors / fit.link.alpha
        slopes = gradients(Problem(counts, fit.size_factors, fit.link), *solved)
        expected = kkt_residual(*solved, *slopes, counts.total)
        assert fit.kkt_residual == pytest.approx(expected, rel=1e-6)


def test_likelihood_auto():
    def taken(n, m, nnz, engine="native", **options):
        counts = SimpleNamespace(shape=(n, m), nnz=nnz)
        settings = Settings(**options).resolved(engine, counts)
        assert (settings.why_exact(counts) is None) == (settings.likelihood == "adaptive") or options
        return settings.likelihood

    assert taken(1000, 1000, 10) == "exact"  # small
    assert taken(5000, 1000, 10) == "adaptive"
    assert taken(5000, 1000, 2_000_000) == "exact"  # dense
    assert taken(5000, 1000, 10, "torch") == "exact"  # on a card
    assert taken(5000, 1000, 10, "streaming") == "adaptive"
    assert taken(5000, 1000, 10, row_solver="coordinate") == "exact"
    assert taken(5000, 1000, 10, c=math.inf) == "exact"  # at sparse cost
    assert taken(5000, 1000, 10, likelihood="chebyshev") == "chebyshev"
    fit = fit_log1p_nmf(Y, 2, c=math.inf, likelihood="chebyshev", **QUICK)
    assert (fit.asked.likelihood, fit.settings.likelihood) == ("chebyshev", "exact")


@pytest.mark.parametrize(("c", "likelihood"), [(1e-3, "exact"), (1.0, "chebyshev"), (math.inf, "exact")])
def test_l1_gives_exact_zeros_and_memberships(c, likelihood):
    plain = fit_log1p_nmf(Y, 3, c=c, likelihood=likelihood, **QUICK)
    fit = fit_log1p_nmf(Y, 3, c=c, likelihood=likelihood, l1=2.0, **QUICK)
    assert (fit.loadings <= 1.0).all()
    zeros, before = (np.mean(one.factors[:, 1:] == 0.0) for one in (fit, plain))
    assert zeros > before
    assert zeros > 0.3
    loss = -(fit.log_likelihood if fit.approximate_log_likelihood is None else fit.approximate_log_likelihood)
    assert fit.objective == pytest.approx(loss + 2.0 * fit.factors[:, 1:].sum(), rel=1e-10)
    assert (np.diff(fit.history["objective"]) <= 0).all()


def test_restarts_keep_the_best():
    rng = np.random.RandomState(0)
    options = {"c": math.inf, "init": "random", "tol": 1e-6, "n_jobs": 1}
    single = [fit_log1p_nmf(Y, 4, random_state=rng, **options).objective for _ in range(4)]
    best = fit_log1p_nmf(Y, 4, random_state=0, n_init=4, **options)
    assert best.objective == min(single)
    assert len(set(single)) > 1


def test_a_fit_goes_on_from_where_it_was():
    with pytest.warns(ConvergenceWarning, match="not converged after max_iter=3"):
        first = fit_log1p_nmf(Y, 3, c=10.0, likelihood="exact", init="random", max_iter=3, **QUICK)
    assert not first.converged
    assert any("raise max_iter, or continue" in message for message in first.messages)
    for init in (first, (first.loadings, first.factors)):
        second = fit_log1p_nmf(Y, 3, c=10.0, likelihood="exact", init=init, **QUICK)
        assert second.history["objective"][0] == pytest.approx(first.objective, rel=1e-12)
        assert second.objective < first.objective
        assert second.converged


def test_empty_rows_and_columns_are_said_and_zero():
    y = Y.copy()
    y[[2, 7]], y[:, 5] = 0, 0
    fit = fit_log1p_nmf(y, 3, **QUICK)
    np.testing.assert_array_equal(fit.loadings[[2, 7]], 0.0)
    np.testing.assert_array_equal(fit.factors[5], 0.0)
    assert fit.messages[:2] == (
        f"samples without any count: {np.sum(y.sum(axis=1) == 0)}; they were given zeros",
        f"features without any count: {np.sum(y.sum(axis=0) == 0)}; they were given zeros",
    )


@pytest.mark.filterwarnings("ignore:not converged")
def test_large_matrices_are_not_certified():
    y = sparse.random_array((20_001, 10_000), density=1e-4, rng=0)
    y.data[:] = 1.0
    fit = fit_log1p_nmf(y, 1, c=1.0, likelihood="chebyshev", max_iter=2, n_jobs=1)
    assert fit.log_likelihood is None
    assert fit.approximate_log_likelihood is not None
    assert "evaluates all 200,010,000 entries" in fit.messages[-1]


@pytest.mark.filterwarnings("ignore:n_components=.* is larger:UserWarning")
@pytest.mark.parametrize("engine", ["native", "streaming"])
def test_more_factors_than_memory_holds_are_refused_before_any_work(engine):
    with pytest.raises(
        ValueError, match=r"20000000 needs about [\d,.]+ GB.* \(1 threads\).* has [\d,.]+ GB; use fewer"
    ):
        fit_log1p_nmf(Y, 20_000_000, engine=engine, n_jobs=1)
    assert fit_log1p_nmf(Y, 40, engine=engine, init="rank1", tol=1e-2).n_components == 40


@pytest.mark.parametrize("n_init", [1, 3])
def test_an_interrupt_keeps_the_fit_so_far(n_init):
    def press(iteration):
        if iteration.index == 3:
            raise KeyboardInterrupt

    with pytest.warns(RuntimeWarning, match="interrupted after 3 iterations"):
        fit = fit_log1p_nmf(Y, 3, callbacks=[press], init="random", n_init=n_init, **QUICK)
    assert not fit.converged
    assert (fit.n_iter, fit.log_likelihood) == (3, None)


def test_ctrl_c_is_answered_within_an_iteration():
    code = """
        import os, signal, threading, warnings
        import numpy as np
        from log1pnmf import fit_log1p_nmf
        rng = np.random.default_rng(0)
        y = rng.poisson(0.3, size=(300, 300))
        seen, pressed = [], []
        def press():
            pressed.append(seen[-1])
            os.kill(os.getpid(), signal.SIGINT)
        def watch(iteration):
            seen.append(iteration.index)
            if iteration.index == 1:
                threading.Thread(target=press).start()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit = fit_log1p_nmf(y, 8, c=0.1, tol=0.0, n_jobs=2, callbacks=[watch], init="random")
        late = fit.n_iter - pressed[0]
        print(late <= 1, fit.converged, np.isfinite(fit.loadings).all(), caught[0].category.__name__, late)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[:4] == ["True", "False", "True", "RuntimeWarning"], done.stdout


def test_a_poor_approximation_is_said_and_adaptive_zeros_repair_it():
    counts, options = datasets.pancreas().counts[:100, ::4], {"c": 1.0, "tol": 1e-5, "init": "nndsvd"}
    with pytest.warns(ApproximationWarning, match="use likelihood='adaptive'"):
        rough = fit_log1p_nmf(counts, 3, likelihood="chebyshev", **options)
    fine = fit_log1p_nmf(counts, 3, likelihood="adaptive", **options)
    assert rough.approximate_log_likelihood - rough.log_likelihood > 0.02 * abs(rough.log_likelihood)
    assert fine.log_likelihood > rough.log_likelihood


def test_what_holds_large_arrays_is_shown_in_one_line():
    counts = np.random.default_rng(0).poisson(2.0, (20, 15))
    fit = lp.fit_log1p_nmf(counts, 2, tol=1e-4)
    found = lp.select(counts, 2, 1.0, n_folds=2, n_starts=1, tol=1e-4)
    for shown in (fit, lp.analysis.markers(fit, counts), found):
        assert len(repr(shown)) < 160
        assert "\n" not in repr(shown)
    assert f"{fit.n_iter} iterations (converged)" in repr(fit)
    assert str(found).startswith("1 setting, 2 folds, ")
