"""Numbers far from ordinary counts: right, or refused at the door."""

import math
import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from sklearn.exceptions import ConvergenceWarning
from tests.reference_engine import ReferenceEngine

from log1pnmf import Log1pNMF, fit_log1p_nmf, select
from log1pnmf.counts import Counts
from log1pnmf.counts.counts import stirling
from log1pnmf.engines.native import NativeEngine
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.objective import negative_log_likelihood
from log1pnmf.model.problem import Problem

QUICK = {"random_state": 0, "n_jobs": 1}

pytestmark = pytest.mark.filterwarnings("ignore:counts has:UserWarning")


def large(size, seed=0):
    """Counts of about that size with zeros among them, and loadings and factors close to them."""
    rng = np.random.default_rng(seed)
    loadings, factors = (rng.gamma(2.0, size=(rows, 2)) * math.sqrt(size) for rows in (6, 9))
    mean = loadings @ factors.T
    counts = np.rint(mean + np.sqrt(mean) * rng.normal(size=mean.shape))
    counts[1, 2] = counts[3, 4] = 0.0
    return counts, loadings, factors


def precise(counts, mean):
    """Poisson log-likelihood of means, to many digits."""
    with mpmath.workdps(60):
        pairs = zip(counts.ravel().tolist(), mean.ravel().tolist(), strict=True)
        terms = [
            mpmath.mpf(y) * mpmath.log(mpmath.mpf(m)) - mpmath.mpf(m) - mpmath.loggamma(mpmath.mpf(y) + 1)
            for y, m in pairs
        ]
        return float(mpmath.fsum(terms))


@pytest.mark.parametrize("size", [1e3, 1e7])
@pytest.mark.parametrize("row_solver", ["newton", "coordinate"])
def test_the_log_likelihood_of_large_counts_is_exact(size, row_solver):
    counts, loadings, factors = large(size)
    mean = loadings @ factors.T
    counts[counts == 0.0] = np.rint(mean[counts == 0.0])  # a zero would cost so much that nothing else counts
    link, ones = ShiftedLog(math.inf), np.ones(len(counts))
    problem = Problem(Counts.from_any(counts), ones, link)
    expected = precise(counts, mean)
    engine = NativeEngine(problem, 1)
    for one in (
        negative_log_likelihood(problem, loadings, factors),
        engine.loss(loadings, factors),
        ReferenceEngine(problem).loss(loadings, factors),
        engine.half_step(problem.factors_side, factors, loadings, row_solver=row_solver).loss,
    ):  # logarithms of kernels are that exact
        assert -one == pytest.approx(expected, abs=1e-14 * counts.sum())
    assert expected == pytest.approx(stats.poisson.logpmf(counts, mean).sum(), rel=1e-6)


@pytest.mark.parametrize(("c", "engine"), [(1e-3, "native"), (math.inf, "streaming")])
def test_large_counts_of_zeros_and_all_links(c, engine):
    counts, _, _ = large(1e7)
    fit = fit_log1p_nmf(counts, 2, c=c, likelihood="exact", tol=1e-6, max_iter=50000, engine=engine, **QUICK)
    assert fit.converged
    mean = fit.size_factors[:, None] * fit.link.inverse(fit.loadings @ fit.factors.T)
    seen = counts > 0
    expected = precise(counts[seen], mean[seen]) - mean[~seen].sum()
    assert fit.log_likelihood == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("row_solver", ["newton", "coordinate"])
def test_steps_on_large_counts_gain_what_they_say(row_solver):
    counts, loadings, factors = large(1e7)
    problem = Problem(Counts.from_any(counts), np.ones(len(counts)), ShiftedLog(math.inf))
    engine = NativeEngine(problem, 1)
    step = engine.half_step(problem.loadings_side, 1.1 * loadings, factors, row_solver=row_solver)
    gained = step.loss - engine.loss(step.values, factors)
    assert gained > 0.0
    if row_solver == "coordinate":
        assert step.predicted_decrease == pytest.approx(gained, rel=1e-6)


@pytest.mark.parametrize(
    ("face", "how"),
    [
        (fit_log1p_nmf, {"n_components": 2}),
        (fit_log1p_nmf, {"n_components": 2, "engine": "streaming"}),
        (select, {"c": [1.0], "n_components": [2]}),
    ],
)
@pytest.mark.parametrize("total", [2e9, 2.0**63])
def test_samples_whose_log_likelihood_would_lose_digits_are_refused(face, how, total):
    counts = np.full((5, 6), 2.0)
    counts[1, 2] = total
    with pytest.raises(ValueError, match=r"a sample must not have more than 1e\+09 counts in all, got "):
        face(counts, **how)


def test_stirling_is_accurate():
    values = [0.0, 0.3, 1.0, 2.0, 19.99, 20.0, 21.0, 1e3, 1e9, 1e15, 1e100]
    with mpmath.workdps(150):
        expected = [
            float(mpmath.loggamma(y + 1) - (y * mpmath.log(y) if y else 0) + y)
            for y in map(mpmath.mpf, values)
        ]
    np.testing.assert_allclose(stirling(values), expected, rtol=1e-13, atol=1e-300)


Y = np.random.default_rng(0).poisson(2.0, size=(20, 12))


@pytest.mark.parametrize("c", [1e-10, 1e13])
def test_shifts_beyond_double_precision_are_refused(c):
    with pytest.raises(ValueError, match=r"c must be between 1e-09 and 1e\+12, or inf, got"):
        fit_log1p_nmf(Y, 2, c=c)


@pytest.mark.parametrize("c", [1e-9, 1e12])
@pytest.mark.parametrize("likelihood", ["exact", "chebyshev"])
def test_the_most_extreme_shifts_are_right(c, likelihood):
    fit = fit_log1p_nmf(Y, 2, c=c, likelihood=likelihood, tol=1e-5, **QUICK)
    mean = fit.size_factors[:, None] * fit.link.inverse(fit.loadings @ fit.factors.T)
    assert fit.log_likelihood == pytest.approx(stats.poisson.logpmf(Y, mean).sum(), rel=1e-9)


def test_counts_too_small_to_compute_with_are_refused():
    model = Log1pNMF(2, tol=1e-4, **QUICK).fit(Y)
    for call in (lambda X: fit_log1p_nmf(X, 2), model.score, model.transform):
        with pytest.raises(ValueError, match=r"above 0 but below 1e-50 .first at row 0, column 0"):
            call(np.where(Y > 0, 1e-300, 0.0) + np.eye(*Y.shape) * 1e-300)


@pytest.mark.parametrize("extreme", [1e-31, 1e31])
def test_size_factors_too_extreme_to_compute_with_are_refused(extreme):
    sizes = np.where(np.arange(len(Y)) == 3, extreme, 1.0)
    with pytest.raises(ValueError, match=r"size_factors must be .* from 1e-30 to 1e30, got .* at position 3"):
        fit_log1p_nmf(Y, 2, size_factors=sizes)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("engine", ["native", "streaming"])
def test_the_residual_is_finite_whatever_the_size_factors(engine):
    sizes = np.geomspace(1e-30, 1e30, len(Y))
    fit = fit_log1p_nmf(Y, 2, c=1e12, size_factors=sizes, max_iter=1, engine=engine, **QUICK)
    assert math.isfinite(fit.kkt_residual)
    assert math.isfinite(fit.log_likelihood)


@st.composite
def count_matrices(draw):
    """Small matrices of every density, with empty rows and columns and counts up to a million."""
    n, m = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    largest = draw(st.sampled_from([1, 3, 100, 10**6]))
    density = draw(st.floats(0.0, 1.0))
    y = rng.integers(1, largest, size=(n, m), endpoint=True) * (rng.random((n, m)) < density)
    y[rng.random(n) < draw(st.sampled_from([0.0, 0.3]))] = 0
    y[:, rng.random(m) < draw(st.sampled_from([0.0, 0.3]))] = 0
    return y


@given(
    y=count_matrices(),
    n_components=st.integers(1, 15),
    c=st.one_of(st.floats(-6, 8).map(lambda power: 10.0**power), st.just(math.inf)),
    likelihood=st.sampled_from(["exact", "chebyshev", "adaptive"]),
    init=st.sampled_from(["rank1", "random", "nndsvd"]),
    l1=st.sampled_from([0.0, 1.0]),
    row_solver=st.sampled_from(["newton", "newton", "coordinate"]),
    size_factors=st.sampled_from(["total", "none"]),
)
def test_any_fit(*, y, n_components, likelihood, l1, row_solver, **how):
    assume(y.any())
    assume(row_solver == "newton" or likelihood != "adaptive")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "n_components=.* is larger", UserWarning)
        how |= {"likelihood": likelihood, "l1": l1, "row_solver": row_solver}
        fit = fit_log1p_nmf(y, n_components, max_iter=25, n_jobs=1, random_state=0, **how)
    for values in (fit.loadings, fit.factors):
        assert np.isfinite(values).all()
        assert (values >= 0).all()
    np.testing.assert_array_equal(fit.loadings[y.sum(axis=1) == 0], 0.0)
    np.testing.assert_array_equal(fit.factors[y.sum(axis=0) == 0], 0.0)
    assert math.isfinite(fit.log_likelihood)
    assert math.isfinite(fit.objective)
    assert math.isfinite(fit.kkt_residual)
    renewed = np.isnan(fit.history["relative_change"])
    assert (np.diff(fit.history["objective"])[~renewed[1:]] <= 0).all()
    eta = fit.loadings @ fit.factors.T
    assert (eta[y > 0] > 0).all()
    if l1 > 0:
        assert (fit.loadings <= 1.0).all()
