"""Which zeros a fit visits: few with likelihood="adaptive", up to a stated tolerance; all at an exact end."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from log1pnmf.analysis.metrics import log_likelihood
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.fit_counts import ApproximationWarning, fit_log1p_nmf
from log1pnmf.fitting.runs import AdaptiveUpdate
from log1pnmf.fitting.settings import Settings
from log1pnmf.fitting.solver import Point
from log1pnmf.fitting.starts import initialize
from log1pnmf.fitting.summary import gained_lately
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem

OPTIONS = {"tol": 1e-7, "random_state": 0, "n_jobs": 1}
N, M = 90, 80


def simulated():
    rng = np.random.default_rng(0)
    loadings, factors = rng.gamma(0.5, 0.7, (N, 3)), rng.gamma(0.5, 0.7, (M, 3))
    return sp.csr_matrix(rng.poisson(np.minimum(np.expm1(loadings @ factors.T), 200.0)))


Y = simulated()


@pytest.mark.parametrize(("c", "engine"), [(0.1, "native"), (10.0, "native"), (1.0, "streaming")])
def test_the_fit_is_that_of_the_exact_likelihood(c, engine):
    """From the same start; an exact fit goes on from the adaptive one and gains less than the tolerance."""
    adaptive = fit_log1p_nmf(Y, 3, c=c, likelihood="adaptive", engine=engine, **OPTIONS)
    exact = fit_log1p_nmf(Y, 3, c=c, likelihood="exact", init=adaptive, **OPTIONS)
    assert adaptive.converged
    assert 0.0 <= exact.log_likelihood - adaptive.log_likelihood < 1e-4 * abs(exact.log_likelihood)
    assert adaptive.certificate.zeros_error <= 1e-4 * abs(adaptive.log_likelihood)
    assert abs(adaptive.certificate.gap) <= adaptive.certificate.zeros_error + 1e-6
    assert any("zero count" in message for message in adaptive.messages)


def test_a_tighter_tolerance_is_kept():
    errors = []
    for zeros_tol in (1e-3, 1e-5, 1e-7):
        fit = fit_log1p_nmf(Y, 3, likelihood="adaptive", zeros_tol=zeros_tol, **OPTIONS)
        errors.append(fit.certificate.zeros_error / abs(fit.log_likelihood))
        assert errors[-1] <= zeros_tol
    assert errors[0] > errors[-1]


def test_the_objective_falls_between_updates_and_what_an_update_changes_is_no_gain():
    fit = fit_log1p_nmf(Y, 3, likelihood="adaptive", init="rank1", **OPTIONS)
    history = fit.history
    renewed = np.isnan(history["relative_change"])
    assert renewed.sum() > 1
    assert (np.diff(history["objective"])[~renewed[1:]] <= 0.0).all()
    indices = history["iteration"]
    assert (np.diff(indices)[renewed[1:]] == 0).all()  # the same point is looked at again
    assert (np.diff(indices)[~renewed[1:]] > 0).all()
    assert (history["likelihood"] == "adaptive").all()
    assert (np.diff(history["seconds"]) >= 0.0).all()
    renewed = np.flatnonzero(renewed)[-1]
    jumped = fit.history["objective"] + np.where(np.arange(len(fit.history["iteration"])) < renewed, 1e6, 0.0)
    other = replace(fit, history={**fit.history, "objective": jumped})
    assert gained_lately(other, most=1000) == gained_lately(fit, most=1000)


def test_where_most_zeros_would_be_visited_all_are(request):
    with pytest.warns(ApproximationWarning, match=r"every zero count was evaluated: .*; raise zeros_tol"):
        fit = fit_log1p_nmf(Y, 3, c=0.01, likelihood="adaptive", zeros_tol=1e-9, **OPTIONS)
    assert fit.history["likelihood"][-1] == "exact"
    assert fit.certificate.zeros_error == 0.0
    assert fit.approximate_log_likelihood is None
    request.getfixturevalue("large")
    assert phases(fitted(c=0.01, zeros_tol=1e-9, max_iter=40))[0] == 0  # from the beginning


def test_what_auto_takes_is_said(request):
    small = fit_log1p_nmf(Y, 2, **OPTIONS)
    assert small.settings.likelihood == "exact"
    assert any("every zero count was evaluated: there are only 7,200" in one for one in small.messages)
    request.getfixturevalue("large")
    large = fit_log1p_nmf(Y, 2, **OPTIONS)
    assert large.settings.likelihood == "adaptive"
    assert any("evaluated one by one" in message for message in large.messages)


def test_a_poor_start_does_not_decide_for_good():
    """Where it makes all zeros poor, they are visited; later most are not any more."""
    rng = np.random.default_rng(0)
    sparse = sp.csr_matrix(rng.poisson(0.05, size=(200, 150)))
    start = (rng.uniform(1.0, 2.0, (200, 2)), rng.uniform(1.0, 2.0, (150, 2)))
    fit = fit_log1p_nmf(sparse, 2, likelihood="adaptive", init=start, **OPTIONS)
    likelihoods = fit.history["likelihood"]
    assert likelihoods[0] == "exact"
    assert likelihoods[-1] == "adaptive"


def test_fewer_zeros_are_visited_at_first_and_enough_of_them_at_the_end():
    counts = Counts.from_any(Y)
    exact = NativeEngine(Problem(counts, counts.size_factors("total"), ShiftedLog(1.0)), 1)
    at = Point(*initialize(exact, 3, "nndsvd", np.random.default_rng(0)))
    loss, update = exact.loss(at.loadings, at.factors), AdaptiveUpdate(1e-5)
    engine, n_visited = NativeEngine(update.begin(exact), 1), []
    for index, final in ((0, False), (1, True), (31, False)):
        fresh = NativeEngine(update(engine, at, loss, index=index, final=final).problem, 1)
        n_visited.append(fresh.problem.zeros.stored.nnz)
        errors = fresh.zero_errors(at.loadings, at.factors)[1]
        assert errors <= (1e-5 if n_visited[1:] else 1e-4) * loss
    assert n_visited[0] < n_visited[1] == n_visited[2]
    assert update(fresh, at, loss, index=31, final=True) is None


def test_errors_that_cannot_be_less_do_not_keep_a_fit_from_its_end():
    fit = fit_log1p_nmf(Y, 3, likelihood="adaptive", zeros_tol=1e-12, init="nndsvd", **OPTIONS)
    assert fit.converged


# ---------- likelihood="exact": few zeros are visited until the fit has converged, and all at the end

KINDS = {
    "c = 1": {},
    "c = 0.1": {"c": 0.1, "zeros_tol": 1e-3},
    "negative binomial": {"noise": "nb"},
    "batches, negative binomial": {"noise": "nb", "batch": np.repeat(["one", "two", "three"], N // 3)},
    "sizes": {"size_factors": "fit"},
    "streamed": {"engine": "streaming"},
    "torch": {"engine": "torch"},
    "restarts": {"init": "random", "n_init": 2},
}


@pytest.fixture
def large(monkeypatch):
    """Let these counts be large and sparse enough for the adaptive form."""
    monkeypatch.setattr("log1pnmf.fitting.settings.SMALL", 100)
    monkeypatch.setattr("log1pnmf.fitting.settings.DENSE", 2.0)
    monkeypatch.setattr("log1pnmf.fitting.settings.LARGEST_EXACT_ON_CARD", 100)


def fitted(**options):
    options = {"likelihood": "exact", "tol": 1e-8, "init": "nndsvd", "n_jobs": 1} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fit_log1p_nmf(Y, 3, **options)


def phases(fit):
    """How often the fit changed between the two forms, and how many rows are exact."""
    exact = np.asarray(fit.history["likelihood"]) == "exact"
    return int(np.count_nonzero(np.diff(exact))), int(exact.sum()), len(exact)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.gpu) if kind == "torch" else kind for kind in KINDS]
)
def test_the_end_is_that_of_a_fit_that_visits_all_zeros_from_the_beginning(large, monkeypatch, kind):
    fit = fitted(**KINDS[kind])
    n_changes, n_exact, n_all = phases(fit)
    assert n_changes == 1
    assert 0 < n_exact < n_all
    assert fit.history["likelihood"][-1] == "exact"
    assert fit.converged
    assert fit.approximate_log_likelihood is None
    assert fit.certificate.zeros_error == 0.0
    assert not any("quadratic" in message for message in fit.messages)
    monkeypatch.setattr(Settings, "begins_adaptive", lambda self, counts: False)
    straight = fitted(**KINDS[kind])
    assert phases(straight)[0] == 0
    # dispersions have a prior of their own, found on the way: objectives differ by what it costs
    close = 2e-4 if "noise" in KINDS[kind] else 2e-5
    assert fit.objective == pytest.approx(straight.objective, rel=close)
    if "batch" not in KINDS[kind]:
        found = log_likelihood(fit, Y)
        assert fit.log_likelihood == pytest.approx(found, rel=1e-6 if kind == "torch" else 1e-10)


@pytest.mark.parametrize("max_iter", [1, 8])
def test_the_end_is_exact_also_where_iterations_run_out(large, max_iter):
    fit = fitted(max_iter=max_iter, init="rank1")
    assert fit.stopped == "max_iter"
    assert fit.n_iter <= max_iter
    assert fit.history["likelihood"][-1] == "exact"
    assert fit.approximate_log_likelihood is None
    assert fit.log_likelihood == pytest.approx(log_likelihood(fit, Y), rel=1e-10)


def test_a_fit_that_is_stopped_on_its_way_says_what_its_zeros_are(large):
    fit = fitted(callbacks=[lambda iteration: iteration.index == 4])
    assert (fit.stopped, fit.n_iter, fit.converged) == ("callback", 4, False)
    assert "stopped by a callback after 4 iterations" in fit.messages
    assert any("a quadratic per feature approximates" in message for message in fit.messages)
    assert fit.approximate_log_likelihood is not None
    assert fit.log_likelihood == pytest.approx(log_likelihood(fit, Y), rel=1e-10)


def test_a_resumed_fit_has_the_same_bits(large, tmp_path):
    path, whole = tmp_path / "checkpoint", fitted()
    n_exact = phases(whole)[1]
    switch = len(whole.history["iteration"]) - n_exact
    for cut in (switch - 2, switch - 1, switch):
        seen = []
        stop = [lambda one, seen=seen, cut=cut: seen.append(one) or len(seen) > cut]
        fitted(callbacks=stop, checkpoint=path)
        again = fitted(resume=path)
        assert again.loadings.tobytes() == whole.loadings.tobytes()
        assert again.factors.tobytes() == whole.factors.tobytes()
        np.testing.assert_array_equal(again.history["objective"], whole.history["objective"])


@pytest.mark.parametrize("options", [{}, {"row_solver": "coordinate", "max_iter": 20}, {"c": math.inf}])
def test_where_nothing_is_saved_all_zeros_are_visited(options):
    assert phases(fitted(**options))[0] == 0


def test_few_passes_visit_all_entries(large, monkeypatch):
    """The claim is about cost: half-steps and looks that visit all entries, of both kinds of fit."""
    passes = []
    half_step = NativeEngine.half_step

    def counted(self, *args, **kwargs):
        passes.append(self.problem.zeros is None)
        return half_step(self, *args, **kwargs)

    monkeypatch.setattr(NativeEngine, "half_step", counted)
    fitted(init="random", tol=1e-9)
    few = sum(passes)
    passes.clear()
    monkeypatch.setattr(Settings, "begins_adaptive", lambda self, counts: False)
    fitted(init="random", tol=1e-9)
    assert few < 0.5 * sum(passes)
