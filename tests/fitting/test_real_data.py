"""Laws that hold on real counts: the objective never rises, and one seed gives one result."""

import math
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from log1pnmf import fit_log1p_nmf
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.settings import Settings
from log1pnmf.model.objective import log_likelihood

SMALL = ("associated_press", "baron_human_pancreas", "bbc_news", "mcf7_bulk", "pbmc_facs", "pcawg_sbs96")
LARGE = ("her2st_spatial", "kang_pbmc_ifnb_14k", "newsgroups20")
SHIFTS = (1e-3, 1.0, math.inf)
QUICK = ("bbc_news", "pbmc_facs", "pcawg_sbs96")  # texts, cells and mutations: one of each kind
ROWS = 120  # an exact fit visits every entry, so the quick tests take this many rows


class Watch:
    """Keeps what the laws are about; the factors are not kept."""

    def __init__(self):
        self.indices, self.objectives, self.restarts, self.change = [], [], 0, math.nan

    def __call__(self, iteration):
        self.indices.append(iteration.index)
        self.objectives.append(iteration.objective)
        self.restarts += iteration.restarted
        self.change = iteration.relative_change
        assert iteration.objective == iteration.loss  # nothing is penalised here


def watched(counts, c, n_iter, **options):
    options = {"likelihood": "exact" if c < 1 else "chebyshev", **options}  # one phase
    watch = Watch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # not meant to converge
        fit = fit_log1p_nmf(
            counts, 4, c=c, tol=0.0, max_iter=n_iter, callbacks=[watch], random_state=0, **options
        )
    assert_law(watch, n_iter)
    return fit, watch


def assert_law(watch, n_iter):
    """The objective never rises; an iteration may be lost to an extrapolation, but never two in a row.

    What follows a lost one is a plain update, so this says that plain updates always lower the objective.
    (Otherwise the solver would end early, which is right only where nothing but rounding is left.)
    """
    rounding = 1e-13 * abs(watch.objectives[0])
    assert (np.diff(watch.objectives) <= rounding).all()
    assert np.isfinite(watch.objectives).all()
    assert (np.diff(watch.indices) <= 2).all()
    assert watch.indices[-1] >= n_iter - 1 or watch.change < 1e-12


def some_rows(counts, n=ROWS):
    """Rows spread over the matrix, so that every group of samples is there; columns without counts go."""
    counts = counts[np.linspace(0, counts.shape[0] - 1, min(n, counts.shape[0])).astype(int)]
    return counts[:, np.asarray(counts.sum(axis=0)).ravel() > 0]


@pytest.mark.parametrize("c", SHIFTS)
@pytest.mark.parametrize("name", QUICK)
def test_objective_never_rises(real_data, name, c):
    """Exact at c = 1e-3, approximate at c = 1, exact at sparse cost for inf."""
    fit, watch = watched(some_rows(real_data(name).X), c, 5, init="random")
    assert fit.settings.likelihood == ("chebyshev" if c == 1.0 else "exact")
    log_likelihoods = (fit.approximate_log_likelihood, fit.log_likelihood)
    assert -watch.objectives[-1] == log_likelihoods[0 if c == 1.0 else 1]


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["exact", "chebyshev"])
@pytest.mark.parametrize("c", SHIFTS)
@pytest.mark.parametrize("name", SMALL)
def test_objective_never_rises_on_the_whole(real_data, name, c, likelihood, monkeypatch):
    """All zeros are visited from the beginning: where adaptive zeros end, the objective changes."""
    monkeypatch.setattr(Settings, "begins_adaptive", lambda *_: False)
    watched(real_data(name).X, c, 25, likelihood=likelihood)


@pytest.mark.slow
@pytest.mark.parametrize("c", SHIFTS)
@pytest.mark.parametrize("name", LARGE)
def test_objective_never_rises_on_the_whole_of_large_sets(real_data, name, c):
    watched(real_data(name).X, c, 3 if c < 1 else 20)


@pytest.mark.parametrize("c", SHIFTS)
def test_objective_never_rises_through_restarts(real_data, c):
    """Long enough for extrapolations to be dropped, with what is reported checked against plain NumPy."""
    counts = some_rows(real_data("bbc_news").X)
    fit, watch = watched(counts, c, 120, init="rank1")
    assert watch.restarts >= 2
    if fit.log_likelihood is not None:
        truth = log_likelihood(Counts.from_any(counts), fit.loadings, fit.factors, fit.link, fit.size_factors)
        assert fit.log_likelihood == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize("c", SHIFTS)
def test_objective_never_rises_without_extrapolation(real_data, c):
    """Then nothing but the half-steps themselves keeps the law."""
    counts = some_rows(real_data("pbmc_facs").X, 60)
    watched(counts, c, 15, row_solver="coordinate", init="random")


@pytest.mark.parametrize("c", SHIFTS)
def test_pbmc_same_bits_for_any_number_of_threads(real_data, c):
    """Another seed is another start."""
    counts = some_rows(real_data("pbmc_facs").X[:, ::8])
    starts = []

    def first(iteration):
        if iteration.index == 0:
            starts.append(iteration)

    options = {"c": c, "callbacks": [first], "tol": 0.0, "max_iter": 8, "init": "random"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        one = fit_log1p_nmf(counts, 4, n_jobs=1, random_state=0, **options)
        two = fit_log1p_nmf(counts, 4, n_jobs=2, random_state=0, **options)
        other = fit_log1p_nmf(counts, 4, n_jobs=2, random_state=1, **options)
    np.testing.assert_array_equal(two.loadings, one.loadings)
    np.testing.assert_array_equal(two.factors, one.factors)
    assert two.log_likelihood == one.log_likelihood
    np.testing.assert_array_equal(two.history["objective"], one.history["objective"])
    np.testing.assert_array_equal(two.history["kkt_residual"], one.history["kkt_residual"])
    assert not np.array_equal(starts[2].loadings, starts[0].loadings)
    assert not np.array_equal(starts[2].factors, starts[0].factors)
    assert not np.array_equal(other.loadings, one.loadings)
