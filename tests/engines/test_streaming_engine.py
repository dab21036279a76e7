"""One pass over chunks is the in-memory iteration: its sums, its steps, its course."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from tests.reference_engine import ReferenceEngine

from log1pnmf import fit_log1p_nmf
from log1pnmf.counts import open_counts
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.passes import survey
from log1pnmf.engines import streaming as engine_module
from log1pnmf.engines.native import NativeEngine, RowSums
from log1pnmf.engines.streaming import StreamingEngine
from log1pnmf.model.noise import POISSON, NegativeBinomial, ShiftedLog
from log1pnmf.model.objective import entry_curvature
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

K = 3
LOWER = np.tril_indices(K)
CHUNKS = [1, 17, (1, 2, 100, 100, 150)]
DISPERSED = NegativeBinomial(np.linspace(0.0, 1.0, 60))


def options(c, likelihood="chebyshev", **more):
    given = {"c": c, "likelihood": likelihood, "init": "rank1", "random_state": 0, "n_jobs": 1}
    return given | {"engine": "streaming"} | more


def engines(matrix, chunks, c=1.0, exact=False, noise=POISSON):
    link = ShiftedLog(c)
    zeros = None if exact else quadratic(link)
    counts, chunked = Counts.from_any(matrix), survey(open_counts(chunks))
    whole = Problem(counts, counts.size_factors("total"), link, zeros, noise)
    return NativeEngine(whole, 1), StreamingEngine(
        Problem(chunked, chunked.size_factors("total"), link, zeros, noise), 1
    )


def point(matrix, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.1, 1.0, (matrix.shape[0], K)), rng.uniform(0.05, 0.5, (matrix.shape[1], K))


@pytest.mark.parametrize("into", CHUNKS)
@pytest.mark.parametrize(
    "form",
    [
        (1.0, False, POISSON),
        (0.1, True, POISSON),
        (np.inf, False, POISSON),
        (0.1, True, DISPERSED),
        (np.inf, True, DISPERSED),
    ],
)
def test_a_pass_sees_what_the_whole_matrix_shows(matrix, cut, into, form):
    """Of c, whether zeros are exact, and noise."""
    native, streaming = engines(matrix, cut(into), *form)
    loadings, factors = point(matrix)
    whole = native.half_step(native.problem.loadings_side, loadings, factors)
    step = streaming.half_step(streaming.problem.loadings_side, loadings, factors)
    np.testing.assert_allclose(np.asarray(step.values), whole.values, rtol=1e-10, atol=1e-14)
    counted = matrix.sum(axis=1) > 0
    np.testing.assert_allclose(
        np.asarray(step.gradient)[counted], whole.gradient[counted], rtol=1e-5, atol=1e-4
    )
    loss, gradient = native.evaluate(native.problem.factors_side, factors, whole.values)
    after = streaming.half_step(streaming.problem.factors_side, factors, step.values)
    assert after.loss == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(after.gradient, gradient, rtol=1e-9, atol=1e-9)


def test_the_factors_half_step_costs_no_pass(matrix, cut):
    seen = []
    _, streaming = engines(matrix, cut(3))
    streaming._on_chunk = lambda done, of_all: seen.append((done, of_all))
    loadings, factors = point(matrix)
    step = streaming.half_step(streaming.problem.loadings_side, loadings, factors)
    streaming.half_step(streaming.problem.factors_side, factors, step.values)
    streaming.evaluate(streaming.problem.factors_side, factors, step.values)
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("exact", [False, True])
def test_sums_are_gradient_and_hessian(matrix, exact):
    loadings, factors = point(matrix)
    link, counts = ShiftedLog(1.0), Counts.from_any(matrix)
    zeros = None if exact else quadratic(link)
    problem = Problem(counts, counts.size_factors("total"), link, zeros)
    sums = RowSums.zeros(matrix.shape[1], K)
    NativeEngine(problem, 1).add_statistics(problem.factors_side, factors, loadings, into=sums)
    loss, gradient = ReferenceEngine(problem).evaluate(problem.factors_side, factors, loadings)
    assert sums.loss.sum() + problem.plain_constant == pytest.approx(loss, rel=1e-11)
    np.testing.assert_allclose(sums.gradient, gradient, rtol=1e-9, atol=1e-9)
    exposure = problem.factors_side.column_exposure[:, None]
    weight = entry_curvature(matrix.toarray(), loadings @ factors.T, exposure, ShiftedLog(1.0), zeros)
    hessian = np.einsum("ij,ik,il->jkl", weight, loadings, loadings)
    np.testing.assert_allclose(sums.hessian, hessian[:, LOWER[0], LOWER[1]], rtol=1e-9)


@pytest.mark.parametrize(
    ("likelihood", "noise"), [("chebyshev", "poisson"), ("adaptive", "poisson"), ("adaptive", "nb")]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_any_chunks_give_the_same_fit(cut, likelihood, noise):
    more = {"tol": 1e-6, "max_iter": 8, "noise": noise}
    fits = [fit_log1p_nmf(cut(into), K, **options(1.0, likelihood, **more)) for into in CHUNKS]
    for fit in fits[1:]:
        assert fit.n_iter == fits[0].n_iter
        np.testing.assert_allclose(fit.history["objective"], fits[0].history["objective"], rtol=1e-11)
        np.testing.assert_allclose(fit.loadings, fits[0].loadings, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(fit.factors, fits[0].factors, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("c", "likelihood", "l1"),
    [(1.0, "chebyshev", 0.0), (0.1, "exact", 0.0), (np.inf, "exact", 0.0), (1.0, "exact", 2.0)],
)
def test_streaming_finds_the_optimum_that_the_native_engine_finds(matrix, cut, c, likelihood, l1):
    more = {"l1": l1, "tol": 1e-9, "max_iter": 3000}
    native = fit_log1p_nmf(matrix, K, **options(c, likelihood, **more) | {"engine": "native"})
    start = (native.loadings * 1.05 + 1e-3).clip(max=1.0 if l1 else None), native.factors * 0.9 + 1e-3
    streamed = fit_log1p_nmf(cut(3), K, **options(c, likelihood, init=start, **more))
    assert streamed.converged
    assert streamed.objective == pytest.approx(native.objective, rel=2e-6)
    assert (np.diff(streamed.history["objective"]) <= 0.0).all()
    assert streamed.kkt_residual < 1e-3
    assert (streamed.loadings[17] == 0.0).all()
    assert (streamed.factors[5] == 0.0).all()
    assert (streamed.factors == 0.0).mean() == pytest.approx((native.factors == 0.0).mean(), abs=0.1)


@pytest.mark.parametrize(("c", "kind"), [(1.0, "feature"), (np.inf, "shared")])
def test_dispersions_of_chunks_are_those_of_the_whole(matrix, cut, c, kind):
    more = {"noise": "nb", "dispersion": kind, "tol": 1e-8, "max_iter": 2000}
    native = fit_log1p_nmf(matrix, K, **options(c, "exact", **more) | {"engine": "native"})
    start = native.loadings * 1.02 + 1e-4, native.factors * 0.98 + 1e-4
    streamed = fit_log1p_nmf(cut(3), K, **options(c, "exact", init=start, **more))
    assert streamed.settings.engine == "streaming"
    assert streamed.converged
    assert streamed.log_likelihood == pytest.approx(native.log_likelihood, rel=1e-4)
    np.testing.assert_allclose(streamed.dispersion, native.dispersion, rtol=0.1)
    assert streamed.kkt_residual < 1e-3


@pytest.mark.parametrize("noise", ["poisson", "nb"])
def test_square_tables_are_fitted_as_others(noise):
    """Their loadings are told from their factors, although both have the same shape."""
    counts = np.random.default_rng(0).poisson(3.0, (12, 12)) + 1
    options = {"noise": noise, "init": "rank1", "tol": 1e-5}
    fits = [fit_log1p_nmf(counts, 2, engine=engine, **options) for engine in ("streaming", "native")]
    assert fits[0].converged
    assert fits[0].log_likelihood == pytest.approx(fits[1].log_likelihood, rel=1e-4)


def test_steps_that_go_too_far_are_taken_back(cut, monkeypatch):
    honest = engine_module.damped_step

    def reckless(sums, start, **kwargs):
        step = honest(sums, start, **kwargs)
        object.__setattr__(step, "values", np.maximum(start + 6.0 * (step.values - start), 1e-6))
        return step

    good = fit_log1p_nmf(cut(3), K, **options(1.0, tol=1e-7))
    monkeypatch.setattr(engine_module, "damped_step", reckless)
    with pytest.warns(ConvergenceWarning, match="not converged"):
        fit = fit_log1p_nmf(cut(3), K, **options(1.0, tol=1e-7))
    objective = fit.history["objective"]
    assert (np.diff(objective) <= 0.0).all()
    gained = good.history["objective"][0] - good.objective
    assert objective[0] - objective[-1] > 0.5 * gained
