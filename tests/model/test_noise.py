"""Noise models: against SciPy and finite differences, and a fit with one that is not Poisson."""

import math

import numpy as np
import pytest
from scipy import stats
from tests.reference_engine import ReferenceEngine

from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.solver import alternate
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.noise import NegativeBinomial, Poisson
from log1pnmf.model.objective import entry_curvature, entry_gradient, entry_loss, negative_log_likelihood
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

LINKS = [ShiftedLog(0.1), ShiftedLog(1.0), ShiftedLog(math.inf)]


NOISES = [(Poisson(), stats.poisson), (NegativeBinomial(0.4), lambda mu: stats.nbinom(2.5, 2.5 / (2.5 + mu)))]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return (
        rng.poisson(2.0, size=(6, 8)).astype(float),
        rng.uniform(0.2, 1.0, (6, 2)),
        rng.uniform(0.2, 1.0, (8, 2)),
    )


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(("noise", "distribution"), NOISES)
def test_the_log_likelihood_is_that_of_scipy(data, link, noise, distribution):
    y, loadings, factors = data
    sizes = np.linspace(0.5, 2.0, len(y))
    problem = Problem(Counts.from_any(y), sizes, link, noise=noise)
    means = sizes[:, None] * link.mean(loadings @ factors.T)
    expected = -distribution(means).logpmf(y).sum()
    assert negative_log_likelihood(problem, loadings, factors) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("noise", [one for one, _ in NOISES])
def test_derivatives_are_finite_differences(link, noise):
    y, t = np.array([0.0, 1.0, 7.0]), np.array([0.3, 2.0, 1.0])
    for eta in (0.05, 0.8, 3.0):
        h = 1e-5 * eta
        loss, gradient = (
            [function(y, eta + step, t, link, noise=noise) for step in (h, -h)]
            for function in (entry_loss, entry_gradient)
        )
        slope = (loss[0] - loss[1]) / (2 * h)
        bend = (gradient[0] - gradient[1]) / (2 * h)
        assert entry_gradient(y, eta, t, link, noise=noise) == pytest.approx(slope, rel=1e-6, abs=1e-7)
        if isinstance(noise, Poisson):  # others may have a stand-in
            assert entry_curvature(y, eta, t, link, noise=noise) == pytest.approx(bend, rel=1e-6, abs=1e-7)


def test_the_reference_engine_fits_any_noise(data):
    y, loadings, factors = data
    problem = Problem(Counts.from_any(y), np.ones(len(y)), ShiftedLog(1.0), noise=NegativeBinomial(0.4))
    engine = ReferenceEngine(problem)
    objective = [one.objective for one in alternate(engine, loadings, factors, max_iter=15)]
    assert np.diff(objective).max() <= 0.0
    assert objective[-1] < objective[0] - 1.0


def test_a_quadratic_for_zeros_needs_noise_whose_zeros_cost_their_mean(data):
    link = ShiftedLog(1.0)
    with pytest.raises(ValueError, match="zeros must be None"):
        Problem(Counts.from_any(data[0]), np.ones(6), link, quadratic(link), NegativeBinomial(0.4))
