"""Fits with likelihood="adaptive": exact up to a stated tolerance, monotone between renewals."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.fit_counts import ApproximationWarning, fit_log1p_nmf
from log1pnmf.fitting.runs import AdaptiveUpdate
from log1pnmf.fitting.solver import Point
from log1pnmf.fitting.starts import initialize
from log1pnmf.fitting.summary import gained_lately
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem

OPTIONS = {"tol": 1e-7, "random_state": 0, "n_jobs": 1}


def simulated(n=150, m=120, seed=0, c=1.0):
    rng = np.random.default_rng(seed)
    loadings, factors = rng.gamma(0.5, 0.7, (n, 3)), rng.gamma(0.5, 0.7, (m, 3))
    return sp.csr_matrix(rng.poisson(np.minimum(c * np.expm1(loadings @ factors.T), 200.0)))


Y = simulated()


@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("engine", ["native", "streaming"])
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


def test_the_objective_falls_between_renewals():
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


def test_what_a_renewal_changes_is_no_gain():
    fit = fit_log1p_nmf(Y, 3, likelihood="adaptive", init="rank1", **OPTIONS)
    renewed = np.flatnonzero(np.isnan(fit.history["relative_change"]))[-1]
    jumped = fit.history["objective"] + np.where(np.arange(len(fit.history["iteration"])) < renewed, 1e6, 0.0)
    other = replace(fit, history={**fit.history, "objective": jumped})
    assert gained_lately(other, most=1000) == gained_lately(fit, most=1000)


def test_where_most_zeros_would_be_visited_all_are():
    with pytest.warns(ApproximationWarning, match=r"every zero count was visited: .*; raise zeros_tol"):
        fit = fit_log1p_nmf(Y, 3, c=0.01, likelihood="adaptive", zeros_tol=1e-9, **OPTIONS)
    assert fit.history["likelihood"][-1] == "exact"
    assert fit.certificate.zeros_error == 0.0
    assert fit.approximate_log_likelihood is None


def test_what_auto_takes_is_said(monkeypatch):
    small = fit_log1p_nmf(Y, 2, **OPTIONS)
    assert small.settings.likelihood == "exact"
    assert any("every zero count was visited: there are only 18,000 entries" in one for one in small.messages)
    monkeypatch.setattr("log1pnmf.fitting.settings.SMALL", 100)
    monkeypatch.setattr("log1pnmf.fitting.settings.DENSE", 2.0)
    large = fit_log1p_nmf(Y, 2, **OPTIONS)
    assert large.settings.likelihood == "adaptive"
    assert any("visited one by one" in message for message in large.messages)


def test_it_needs_newton_steps():
    with pytest.raises(ValueError, match="likelihood='adaptive' needs row_solver='newton'"):
        fit_log1p_nmf(Y, 2, likelihood="adaptive", row_solver="coordinate")


def test_the_best_of_several_starts_is_chosen_by_the_exact_likelihood():
    fits = [fit_log1p_nmf(Y, 3, likelihood="adaptive", init="random", n_init=n, **OPTIONS) for n in (1, 4)]
    assert fits[1].log_likelihood >= fits[0].log_likelihood


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
