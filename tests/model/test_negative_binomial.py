"""Negative binomial noise: against SciPy, mpmath and finite differences, its limits, and fits with it."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.reference_engine import ReferenceEngine

from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.solver import alternate
from log1pnmf.model.noise import NegativeBinomial, Prior, ShiftedLog, excess_constant
from log1pnmf.model.objective import entry_curvature, entry_gradient, entry_loss, negative_log_likelihood
from log1pnmf.model.problem import Problem

SHIFTS = [1e-6, 1.0, 1e8, math.inf]
DISPERSIONS = [0.0, 1e-12, 1e-6, 0.03, 0.5, 4.0, 300.0]


def example(c, *, n=9, m=7, K=2, seed=0, dispersion=None):
    """A problem with a dispersion for every feature, and a start on the eta scale."""
    rng = np.random.default_rng(seed)
    link = ShiftedLog(c)
    loadings, factors = rng.gamma(1.0, size=(n, K)) + 0.05, rng.gamma(1.0, size=(m, K)) + 0.05
    factors *= (20.0 if link.is_identity else math.log1p(20.0 / c)) / (loadings @ factors.T).max()
    phi = np.array(DISPERSIONS[:m]) if dispersion is None else np.asarray(dispersion)
    y = rng.poisson(rng.gamma(0.5, 4.0, size=(n, m)))
    problem = Problem(Counts.from_any(y), rng.uniform(0.5, 2.0, n), link, noise=NegativeBinomial(phi))
    return problem, y, loadings, factors


def means(problem, loadings, factors):
    return problem.size_factors[:, None] * problem.link.mean(loadings @ factors.T)


def scipy_log_pmf(y, mean, phi):
    return (
        stats.poisson(mean).logpmf(y) if phi == 0 else stats.nbinom(1 / phi, 1 / (1 + phi * mean)).logpmf(y)
    )


def precise_loss(y, mean, phi):
    """Full negative log-likelihood of one count in the precision of mpmath."""
    y, mean, phi = mpmath.mpf(y), mpmath.mpf(mean), mpmath.mpf(phi)
    if phi == 0:
        return mean - y * mpmath.log(mean) + mpmath.loggamma(y + 1)
    r = 1 / phi
    pmf = mpmath.loggamma(y + r) - mpmath.loggamma(r) - mpmath.loggamma(y + 1)
    return -pmf - y * mpmath.log(mean / (r + mean)) + r * mpmath.log(1 + phi * mean)


@pytest.mark.parametrize("c", SHIFTS)
def test_the_log_likelihood_is_precise(c):
    problem, y, loadings, factors = example(c)
    mean, total = means(problem, loadings, factors), mpmath.mpf(0)
    with mpmath.workdps(60):
        for i, j in np.ndindex(*y.shape):
            total += precise_loss(float(y[i, j]), mean[i, j], problem.noise.dispersion[j])
    assert negative_log_likelihood(problem, loadings, factors) == pytest.approx(float(total), rel=1e-12)
    assert ReferenceEngine(problem).loss(loadings, factors) == pytest.approx(float(total), rel=1e-12)


@given(
    y=st.one_of(st.integers(0, 50), st.integers(0, 10**12)),
    mean=st.floats(1e-12, 1e12),
    phi=st.sampled_from([1e-300, 1e-16, 1e-12, 1e-8, 1e-4, 0.049, 0.051, 0.7, 30.0, 1e3]),
)
def test_no_digit_is_lost_at_any_dispersion(y, mean, phi):
    """The error is that of numbers of the size of the Poisson loss, which is all that doubles can hold."""
    noise = NegativeBinomial(phi)
    with mpmath.workdps(400):
        expected = precise_loss(y, mean, phi)
        constant = precise_loss(y, y, phi) if y else mpmath.mpf(0)
        half_deviance = float(expected - constant)
        excess = float(constant - (precise_loss(y, y, 0) if y else 0))
    own = float(noise.loss(np.float64(y), np.float64(mean)))
    assert own >= -1e-15 * max(y, mean)
    assert own == pytest.approx(half_deviance, rel=1e-11, abs=1e-15 * max(abs(y - mean), 1.0))
    assert float(excess_constant(y, phi)) == pytest.approx(excess, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("c", [1e-3, 1.0, 50.0, math.inf])
@pytest.mark.parametrize("phi", [0.0, 1e-6, 0.1, 2.0])
def test_the_curvature_is_the_fisher_information_in_the_mean(c, phi):
    """Over draws of the count; and it is never negative, nor without bound where the mean goes to zero."""
    link, noise = ShiftedLog(c), NegativeBinomial(phi)
    t, eta = 0.8 * link.exposure_scale, 0.7 if link.is_identity else math.log1p(0.7 / c)
    mean = float(t * link.em(eta))
    y = np.arange(2000.0)
    curvature = entry_curvature(y, eta, t, link, noise=noise)
    weights = np.exp(scipy_log_pmf(y, mean, phi))
    fisher = (t * float(link.derivatives(eta).slope)) ** 2 / (mean * (1 + phi * mean))
    assert (curvature >= 0.0).all()
    assert weights @ curvature == pytest.approx(fisher, rel=1e-6)
    assert weights @ entry_gradient(y, eta, t, link, noise=noise) ** 2 == pytest.approx(fisher, rel=1e-6)
    assert 0.0 <= entry_curvature(0.0, 0.0, t, link, noise=noise) <= t


@given(
    y=st.sampled_from([0.0, 1.0, 7.0, 1e6, 1e15]),
    eta=st.sampled_from([0.0, 1e-300, 1e-8, 1.0, 40.0, 500.0, 800.0]),
    t=st.sampled_from([1e-12, 1.0, 1e12]),
    phi=st.sampled_from([0.0, 1e-300, 1e-8, 1.0, 1e3]),
    c=st.sampled_from([1e-6, 1.0, math.inf]),
)
def test_ugly_corners_are_numbers(y, eta, t, phi, c):
    link, noise = ShiftedLog(c), NegativeBinomial(phi)
    loss = float(entry_loss(y, eta, t, link, noise=noise))
    assert loss >= -1e-9 * max(y, 1.0)
    if y > 0 and eta == 0.0:
        assert loss == math.inf
    assert math.isfinite(entry_gradient(y, eta, t, link, noise=noise))
    assert 0.0 <= entry_curvature(y, eta, t, link, noise=noise) < math.inf


def test_a_loading_at_zero_can_leave_it():
    """With the Fisher information as curvature it could not: that of a zero count has no bound there."""
    y = np.array([[0, 0, 0, 6, 5, 7], [8, 0, 6, 0, 0, 0]])
    noise = NegativeBinomial(np.full(6, 0.3))
    problem = Problem(Counts.from_any(y), np.ones(2), ShiftedLog(math.inf), noise=noise)
    factors = np.array([[1.0, 0], [1.0, 0], [1.0, 0], [0.5, 1.0], [0.5, 1.0], [0.5, 1.0]])
    start = np.array([[1.0, 0.0], [2.0, 1.0]])
    for _ in range(20):
        start = ReferenceEngine(problem).half_step(problem.loadings_side, start, factors).values
    assert start[0, 1] > 1.0


def test_the_cost_of_the_dispersions_is_in_the_objective_and_not_in_the_loss():
    problem, _, loadings, factors = example(1.0, dispersion=np.exp(np.linspace(-2.0, 1.0, 7)))
    prior = Prior(np.zeros(7), 0.5, np.zeros(7), np.ones(7))
    costly = replace(problem, noise=NegativeBinomial(problem.noise.dispersion, prior))
    at = loadings, factors
    free, paid = (next(alternate(ReferenceEngine(one), *at, max_iter=0)) for one in (problem, costly))
    assert costly.noise.cost == pytest.approx(2.0 * np.sum(np.linspace(-2.0, 1.0, 7) ** 2))
    assert paid.loss == free.loss
    assert paid.objective == free.objective + costly.noise.cost
