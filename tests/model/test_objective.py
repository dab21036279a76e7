"""The objective, its derivatives and the optimality residual against independent arithmetic."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.settings import Settings, constraint_of
from log1pnmf.model import objective as loss_module
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.objective import (
    entry_curvature,
    entry_gradient,
    entry_loss,
    gradients,
    kkt_residual,
    negative_log_likelihood,
)
from log1pnmf.model.problem import Bounds, Constraint, Problem
from log1pnmf.model.zeros import Quadratic, quadratic

SHIFTS = [1e-6, 1e-3, 1.0, 1e8, math.inf]


def example(c, n=6, m=5, n_components=2, seed=0):
    """Counts drawn from the model, with zeros, empty lines and size factors; loadings on the eta scale."""
    rng = np.random.default_rng(seed)
    link = ShiftedLog(c)
    loadings, factors = rng.gamma(1.0, size=(n, n_components)), rng.gamma(1.0, size=(m, n_components))
    factors *= (1.0 if link.is_identity else math.log1p(2.0 / c)) / (loadings @ factors.T).mean()
    size_factors = rng.uniform(0.5, 2.0, size=n)
    y = rng.poisson(size_factors[:, None] * np.minimum(link.mean(loadings @ factors.T), 50.0))
    y[2], y[:, 1], y[0, 0], y[1, 2] = 0, 0, 4, 0
    return y, Counts.from_any(y), loadings, factors, link, size_factors


def precise_loss(y, eta, t, identity, zeros=None):
    """Loss of one entry, constants included, in whatever precision mpmath has."""
    eta, t, y = mpmath.mpf(eta), mpmath.mpf(t), int(y)
    if y == 0 and zeros is not None:
        return t * (mpmath.mpf(zeros.a0m1) + zeros.a1 * eta + zeros.a2 * eta * eta)
    mean = t * (eta if identity else mpmath.expm1(eta))
    return mean - (y * mpmath.log(mean) - mpmath.loggamma(y + 1) if y else 0)


def precise_total(y, loadings, factors, link, size_factors, *, zeros=None):
    total = mpmath.mpf(0)
    for i, j in np.ndindex(*y.shape):
        eta = mpmath.fdot(map(mpmath.mpf, loadings[i]), map(mpmath.mpf, factors[j]))
        t = mpmath.mpf(link.exposure_scale) * size_factors[i]
        total += precise_loss(y[i, j], eta, t, link.is_identity, zeros)
    return total


@pytest.mark.parametrize("c", SHIFTS)
@pytest.mark.parametrize("y", [0, 1, 300])
@pytest.mark.parametrize("zeros", [None, Quadratic(0.1, 0.9, 0.7)])
def test_derivatives_of_an_entry(c, y, zeros):
    link = ShiftedLog(c)
    t = 1.3 * link.exposure_scale
    scale = 1.0 if link.is_identity else math.log1p(1.0 / c)
    for eta in scale * np.array([1e-9, 1e-3, 0.4, 1.0, 2.5]):
        with mpmath.workdps(150):

            def precise(x):
                return precise_loss(y, x, t, link.is_identity, zeros)

            # central differences: nothing is lost at 150 digits
            x, h = mpmath.mpf(eta), mpmath.mpf(eta) * mpmath.mpf(10) ** -15
            slope = (precise(x + h) - precise(x - h)) / (2 * h)
            bend = (precise(x + h) - 2 * precise(x) + precise(x - h)) / h**2
        gradient = entry_gradient(y, eta, t, link, zeros)
        curvature = entry_curvature(y, eta, t, link, zeros)
        terms = abs(float(slope)) + t * math.exp(min(eta, 50.0))  # the two terms of the gradient may cancel
        assert abs(gradient - float(slope)) <= 1e-12 * terms
        assert curvature == pytest.approx(float(bend), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("link", [ShiftedLog(1.0), ShiftedLog(math.inf)])
def test_entries_at_the_edges(link):
    assert entry_loss(0, 0.0, 2.0, link) == 0.0
    assert entry_loss(3, 0.0, 2.0, link) == np.inf
    for y in (0, 3):
        assert np.isfinite(entry_gradient(y, 0.0, 2.0, link))
        assert np.isfinite(entry_curvature(y, 0.0, 2.0, link))
        assert np.isfinite(entry_gradient(y, 1e6, 1e10, link))
        assert np.isfinite(entry_curvature(y, 1e6, 1e10, link))
    assert entry_gradient(0, 0.0, 2.0, link) == 2.0
    assert entry_gradient(3, 0.0, 2.0, link) < -1e90


def test_large_eta_does_not_lose_the_logarithm():
    with mpmath.workdps(50):
        constant = mpmath.loggamma(8) - 7 * mpmath.log(7) + 7
        for eta, t in ((700.0, 1e-300), (1e-60, 1.0), (1e-300, 1.0), (30.0, 1e-13)):
            expected = precise_loss(7, eta, t, identity=False) - constant
            assert entry_loss(7, eta, t, ShiftedLog(1.0)) == pytest.approx(float(expected), rel=1e-13)
    assert entry_loss(7, 1e5, 1.0, ShiftedLog(1.0)) == np.inf  # the mean itself is beyond double precision


@pytest.mark.parametrize("c", [*SHIFTS, 1e12])
def test_log_likelihood_is_the_poisson_log_likelihood(c):
    y, counts, loadings, factors, link, size_factors = example(c, n=30, m=20)
    found = -negative_log_likelihood(Problem(counts, size_factors, link), loadings, factors)
    lam = link.inverse(loadings @ (factors * link.alpha).T)
    assert found == pytest.approx(stats.poisson.logpmf(y, size_factors[:, None] * lam).sum(), rel=1e-10)
    with mpmath.workdps(40):
        exact = float(precise_total(y, loadings, factors, link, size_factors))
    assert found == pytest.approx(-exact, rel=1e-12)


@pytest.mark.parametrize("c", SHIFTS)
@pytest.mark.parametrize("kind", ["chebyshev", "taylor"])
def test_approximate_log_likelihood_by_algebra_is_the_sum_over_entries(c, kind):
    y, counts, loadings, factors, link, size_factors = example(c)
    zeros = quadratic(link, kind)
    found = -negative_log_likelihood(Problem(counts, size_factors, link, zeros), loadings, factors)
    with mpmath.workdps(40):
        naive = float(precise_total(y, loadings, factors, link, size_factors, zeros=zeros))
    assert found == pytest.approx(-naive, rel=1e-12)


@pytest.mark.parametrize("c", [1e-3, 1.0, math.inf])
def test_block_size_does_not_matter(c, monkeypatch):
    _, counts, loadings, factors, link, size_factors = example(c, n=23, m=7)
    problem = Problem(counts, size_factors, link)
    whole = negative_log_likelihood(problem, loadings, factors), *gradients(problem, loadings, factors)
    monkeypatch.setattr(loss_module, "BLOCK_BYTES", 8 * 8 * 7 * 2)
    parts = negative_log_likelihood(problem, loadings, factors), *gradients(problem, loadings, factors)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_impossible_counts_have_no_likelihood():
    _, counts, loadings, factors, link, size_factors = example(1.0)
    problem = Problem(counts, size_factors, link)
    for loadings[0] in (0.0, 1e4):
        assert negative_log_likelihood(problem, loadings, factors) == np.inf


def test_problem_describes_both_sides():
    y, counts, _, _, _, size_factors = example(3.0)
    problem = Problem(counts, size_factors, ShiftedLog(3.0))
    for side, matrix in ((problem.loadings_side, y), (problem.factors_side, y.T)):
        assert side.rows.shape == matrix.shape
        np.testing.assert_array_equal(side.rows.row_sums(), matrix.sum(axis=1))
        exposure = np.outer(side.row_exposure, side.column_exposure)
        t = np.outer(3.0 * size_factors, np.ones(y.shape[1]))
        np.testing.assert_array_equal(exposure, t if matrix is y else t.T)
    assert Problem(counts, size_factors, ShiftedLog(np.inf)).zeros == Quadratic(0.0, 1.0, 0.0)


@given(st.integers(0, 10**6), st.sampled_from(SHIFTS), st.integers(1, 4))
def test_kkt_residual_is_free_of_scale(seed, c, n_components):
    _, counts, loadings, factors, link, size_factors = example(c, n_components=n_components, seed=seed)
    problem = Problem(counts, size_factors, link)
    loadings[:, 0] *= loadings[:, 0] > np.median(loadings[:, 0])
    scale = np.exp(np.random.default_rng(seed).normal(scale=3.0, size=n_components))
    residuals = [
        kkt_residual(left, right, *gradients(problem, left, right), counts.total)
        for left, right in ((loadings, factors), (loadings * scale, factors / scale))
    ]
    assert residuals[0] == pytest.approx(residuals[1], rel=1e-9)
    assert residuals[0] > 0


def test_kkt_residual_is_zero_at_an_optimum():
    # one component, identity link: the optimum is known
    y, counts, *_ = example(math.inf)
    problem = Problem(counts, np.ones(y.shape[0]), ShiftedLog(math.inf))
    loadings, factors = y.sum(axis=1, keepdims=True) / y.sum(), y.sum(axis=0)[:, None].astype(float)
    assert kkt_residual(loadings, factors, *gradients(problem, loadings, factors), counts.total) < 1e-14
    away = gradients(problem, 1.01 * loadings, factors)
    assert kkt_residual(1.01 * loadings, factors, *away, counts.total) > 1e-3


def test_kkt_residual_projects_at_the_bounds():
    loadings, factors = np.array([[0.0], [0.5], [1.0]]), np.array([[0.0], [2.0]])
    calm = np.zeros((3, 1)), np.zeros((2, 1))
    at_rest = np.array([[5.0], [0.0], [-5.0]]), np.array([[5.0], [0.0]])
    bounded = Constraint(Bounds(upper=1.0))
    by_column, everywhere = (Constraint(factors=Bounds(penalty=one)) for one in ([3.0], 3.0))
    assert kkt_residual(loadings, factors, *at_rest, 10.0, constraint=bounded) == 0.0
    assert kkt_residual(loadings, factors, *at_rest, 10.0) == pytest.approx(5.0 * 0.5 / 10.0)
    pushed = np.array([[-5.0], [0.0], [3.0]])
    assert kkt_residual(loadings, factors, pushed, calm[1], 10.0, constraint=bounded) == pytest.approx(0.4)
    assert kkt_residual(loadings, factors, *calm, 10.0, constraint=by_column) == pytest.approx(0.3)
    balanced = np.array([[-1.0], [-3.0]])
    assert kkt_residual(loadings, factors, calm[0], balanced, 10.0, constraint=everywhere) == 0.0
    assert kkt_residual(loadings, factors, *calm, 0.0) == 0.0


VALUES = np.array([[0.0, 0.5], [2.0, 1.0], [3.0, 0.1]])


@pytest.mark.parametrize("penalty", [0.0, 2.0, np.array([0.0, 3.0]), np.arange(6.0).reshape(3, 2)])
def test_the_cost_is_the_sum_of_penalty_times_value(penalty):
    assert Bounds(penalty=penalty).cost(VALUES) == pytest.approx(float(np.sum(penalty * VALUES)))


@pytest.mark.parametrize("lower", [0.0, 0.2, np.array([0.2, 0.3])])
@pytest.mark.parametrize("upper", [1.0, math.inf, np.array([1.0, math.inf]), np.full((3, 2), 0.7)])
def test_clipping_leads_inside_and_changes_nothing_there(lower, upper):
    bounds = Bounds(lower, upper)
    inside = bounds.clip(VALUES)
    assert np.array_equal(inside, np.clip(VALUES, lower, upper))
    assert np.array_equal(bounds.clip(inside), inside)


def test_bounds_of_some_rows():
    known = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    some = Bounds(known, np.where(known > 0.0, known, 1.0), [0.5, 2.0]).of_rows([2, 0])
    tables = [[[3.0, 0.0], [1.0, 0.0]], [[3.0, 1.0], [1.0, 1.0]], [[0.5, 2.0]]]
    assert [one.tolist() for one in some.tables(2)] == tables


def test_only_columns_without_known_numbers_have_a_free_scale():
    lower, upper = np.zeros((3, 4)), np.full((3, 4), math.inf)
    lower[:, 0] = upper[:, 0] = [1.0, 0.0, 1.0]  # known loadings
    upper[:, 1] = 1.0
    mask = np.full((5, 4), math.inf)
    mask[2:, 2] = 0.0  # zero whatever the scale
    free, largest = Constraint(Bounds(lower, upper), Bounds(0.0, mask)).scales(4)
    assert free.tolist() == [False, False, True, True]
    np.testing.assert_array_equal(largest, [math.nan, 1.0, math.nan, math.nan])
    profile = Bounds(np.eye(5, 4), np.where(np.arange(4) == 3, np.eye(5, 4), math.inf))
    assert not Constraint(factors=profile).scales(4)[0][3]


def test_settings_make_the_constraint():
    free = constraint_of(Settings(n_components=3))
    assert free.scale_is_free
    assert free.loadings.cost(VALUES) == free.factors.cost(VALUES) == 0.0
    penalised = constraint_of(Settings(n_components=3, l1=0.5, c=4.0))
    assert not penalised.scale_is_free
    assert penalised.loadings.upper == 1.0
    assert penalised.factors.penalty.tolist() == [0.0, 2.0, 2.0]  # on the eta scale, alpha = 4
