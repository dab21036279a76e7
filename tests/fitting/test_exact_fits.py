"""Fits with likelihood="exact": few zeros are visited until they have converged, and all at the end."""

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.metrics import log_likelihood
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.settings import Settings

N, M = 150, 120


def simulated():
    rng = np.random.default_rng(0)
    loadings, factors = rng.gamma(0.5, 0.7, (N, 3)), rng.gamma(0.5, 0.7, (M, 3))
    return sp.csr_matrix(rng.poisson(np.minimum(np.expm1(loadings @ factors.T), 200.0)))


Y = simulated()
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


@pytest.mark.parametrize("max_iter", range(1, 12))
def test_the_end_is_exact_also_where_iterations_run_out(large, max_iter):
    fit = fitted(max_iter=max_iter, init="rank1")
    assert fit.stopped == "max_iter"
    assert fit.n_iter <= max_iter
    assert fit.history["likelihood"][-1] == "exact"
    assert fit.approximate_log_likelihood is None
    assert fit.log_likelihood == pytest.approx(log_likelihood(fit, Y), rel=1e-10)


def test_a_fit_that_is_stopped_on_its_way_says_what_its_zeros_are(large):
    fit = fitted(callbacks=[lambda iteration: iteration.index == 4])
    assert fit.stopped == "callback"
    assert any("a quadratic per feature approximates" in message for message in fit.messages)
    assert fit.approximate_log_likelihood is not None
    assert fit.log_likelihood == pytest.approx(log_likelihood(fit, Y), rel=1e-10)


def test_a_resumed_fit_has_the_same_bits(large, tmp_path):
    path, whole = tmp_path / "checkpoint", fitted()
    n_exact = phases(whole)[1]
    switch = len(whole.history["iteration"]) - n_exact
    for cut in (1, switch - 2, switch - 1, switch, switch + 1):
        seen = []
        fitted(
            callbacks=[lambda one, seen=seen, cut=cut: seen.append(one) or len(seen) > cut], checkpoint=path
        )
        again = fitted(resume=path)
        assert again.loadings.tobytes() == whole.loadings.tobytes()
        assert again.factors.tobytes() == whole.factors.tobytes()
        np.testing.assert_array_equal(again.history["objective"], whole.history["objective"])


def test_what_would_visit_most_zeros_visits_all_of_them_from_the_beginning(large):
    fit = fitted(c=0.01, zeros_tol=1e-9, max_iter=40)
    assert phases(fit)[0] == 0


@pytest.mark.parametrize("options", [{}, {"row_solver": "coordinate", "max_iter": 20}, {"c": math.inf}])
def test_where_nothing_is_saved_all_zeros_are_visited(options):
    assert (np.asarray(fitted(**options).history["likelihood"]) == "exact").all()


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
