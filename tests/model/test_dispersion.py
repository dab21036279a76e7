"""Dispersions: their likelihood, its maximum, the pull to the trend, and that fits with them never rise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize_scalar
from tests.reference_engine import AllMeans, ReferenceEngine

from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.solver import alternate
from log1pnmf.model.dispersion import HIGHEST, LOWEST, Likelihood, update_dispersions
from log1pnmf.model.noise import NegativeBinomial, Prior, ShiftedLog
from log1pnmf.model.objective import negative_log_likelihood
from log1pnmf.model.problem import Problem


def drawn(phi, *, n=120, c=math.inf, seed=0, low=-1.5, high=2.0):
    """Counts with these dispersions, as a problem, with the loadings and factors that made them."""
    rng, link, m = np.random.default_rng(seed), ShiftedLog(c), len(phi)
    means = np.exp(np.linspace(low, high, m))
    loadings = rng.gamma(4.0, 0.25, (n, 2))
    factors = link.link(means[:, None] * rng.uniform(0.5, 1.5, (m, 2))) / (2.0 * link.alpha)
    sizes = rng.uniform(0.5, 1.5, n)
    mu = sizes[:, None] * link.mean(loadings @ factors.T)
    y = rng.poisson(mu * rng.gamma(1.0 / phi, phi, (n, m)))
    return Problem(Counts.from_any(y), sizes, link), loadings, factors, y, mu


def flat(m):
    """A prior that pulls nowhere, and where to begin."""
    return NegativeBinomial(np.full(m, 0.3), Prior(np.zeros(m), math.inf, np.zeros(m), np.ones(m)))


def updated(problem, loadings, factors, **options):
    means = AllMeans(problem, loadings, factors)
    return update_dispersions(problem.counts, factors, means, **options)


def found_by(*arguments, **options):
    return updated(*arguments, **options)[0]


@pytest.mark.parametrize("c", [0.01, 1.0, math.inf])
def test_the_likelihood_is_that_of_the_noise_and_its_derivatives_are_finite_differences(c):
    problem, loadings, factors, _, _ = drawn(np.full(8, 0.5), c=c, n=30)
    means, which = AllMeans(problem, loadings, factors), np.array([6, 0, 3])
    likelihood = Likelihood(problem.counts, factors, means)
    for theta in np.log([1e-5, 1e-3, 0.049, 0.051, 0.4, 20.0]):
        h = 1e-4
        at, up, down = (likelihood(np.full(3, theta + s), which) for s in (0.0, h, -h))
        np.testing.assert_allclose(at.slope, (up.value - down.value) / (2 * h), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(at.bend, (up.slope - down.slope) / (2 * h), rtol=1e-5, atol=1e-6)

    def total(theta):
        dispersed = replace(problem, noise=NegativeBinomial(np.exp(theta)), zeros=None)
        return negative_log_likelihood(dispersed, loadings, factors)

    thetas = [np.linspace(-4.0, 1.0, 8), np.linspace(0.0, -9.0, 8)]
    values = [likelihood(theta, np.arange(8)).value.sum() for theta in thetas]
    assert values[0] - values[1] == pytest.approx(total(thetas[0]) - total(thetas[1]), rel=1e-9)


def test_without_a_pull_it_is_the_maximum_of_the_likelihood():
    problem, loadings, factors, y, mu = drawn(np.array([0.05, 0.3, 0.5, 1.0, 3.0, 0.2]))
    found = found_by(problem, loadings, factors, before=flat(6), keep_prior=True).dispersion
    for j, phi in enumerate(found):

        def loss(theta, j=j):
            r = math.exp(-theta)
            return -stats.nbinom(r, r / (r + mu[:, j])).logpmf(y[:, j]).sum()

        best = minimize_scalar(loss, bounds=(-8.0, 4.0), method="bounded", options={"xatol": 1e-7})
        assert math.log(phi) == pytest.approx(best.x, abs=2e-5)
    found = found_by(problem, loadings, factors, kind="shared")
    shared, free, level = found.dispersion, found.prior.freedom, found.prior.level
    assert len(set(shared)) == 1

    def total(theta):
        r = math.exp(-theta)
        given = 0.5 * np.sum(free * np.log1p(level / r))
        return -stats.nbinom(r, r / (r + mu)).logpmf(y).sum() - given

    assert (free > 0.5).all()
    assert math.log(shared[0]) == pytest.approx(minimize_scalar(total, bounds=(-8.0, 4.0)).x, abs=1e-4)


@pytest.mark.parametrize("kind", ["alike", "trend", "scattered"])
def test_dispersions_are_recovered(kind):
    """Within 20% in the median, over features with 50 counts or more; better than without the pull."""
    rng = np.random.default_rng(1)
    position = np.linspace(-2.5, 2.0, 150)
    phi = np.full(150, 0.5) if kind == "alike" else np.exp(-1.0 - 0.4 * position)
    if kind == "scattered":
        phi = phi * np.exp(0.5 * rng.standard_normal(150))
    problem, loadings, factors, y, _ = drawn(phi, n=300, c=1.0, low=-2.5)
    found = found_by(problem, loadings, factors)
    plain = found_by(problem, loadings, factors, before=flat(150), keep_prior=True)
    many = y.sum(axis=0) >= 50
    error, without = (np.median(np.abs(one.dispersion / phi - 1.0)[many]) for one in (found, plain))
    assert error < 0.2
    assert error < without
    assert found.prior.spread < 0.3 or kind == "scattered"
    assert found.prior.spread > 0.3 or kind != "scattered"


def test_fitted_means_do_not_make_counts_look_less_dispersed():
    """Means that were fitted to the counts are nearer to them than the true ones."""
    problem, loadings, factors, _, _ = drawn(np.full(60, 0.3), n=60, c=1.0)
    engine = ReferenceEngine(replace(problem, noise=NegativeBinomial(0.3), zeros=None))
    *_, last = alternate(engine, loadings, factors, max_iter=8)
    found = found_by(problem, last.loadings, last.factors)
    plain = found_by(problem, last.loadings, last.factors, before=flat(60), keep_prior=True)
    error, without = (abs(np.median(np.log(one.dispersion / 0.3))) for one in (found, plain))
    assert error < 0.6 * without


def test_a_prior_that_would_stay_is_kept_and_the_objective_falls():
    problem, loadings, factors, _, _ = drawn(np.full(40, 0.4), n=100)
    first = found_by(problem, loadings, factors)
    for _ in range(6):
        again, gain = updated(problem, loadings, factors, before=first)
        if again.prior is first.prior:
            break
        assert gain == math.inf
        first = again
    assert again.prior is first.prior
    assert 0.0 <= gain < 1e-6
    moved, gain = updated(problem, loadings, 1.001 * factors, before=first)
    assert moved.prior is first.prior
    before, after = (
        negative_log_likelihood(replace(problem, noise=one, zeros=None), loadings, 1.001 * factors) + one.cost
        for one in (first, moved)
    )
    assert before - after == pytest.approx(gain, abs=1e-8 * abs(before))
    assert gain > 0.0


def test_a_prior_that_hardly_changes_the_likelihood_is_not_taken():
    problem, loadings, factors, _, _ = drawn(np.full(30, 1e-3))
    before, _ = updated(problem, loadings, factors)
    other, gain = updated(problem, loadings, factors, before=before)
    assert not other.prior.is_near(before.prior)
    assert gain == math.inf
    same, gain = updated(problem, loadings, factors, before=before, slight=0.01)
    assert same.prior is before.prior
    assert 0.0 <= gain < 0.01 * problem.counts.nnz


def test_features_with_few_counts_get_the_trend():
    problem, loadings, factors, y, _ = drawn(np.full(60, 0.5), low=-6.0)
    y[:, 3] = 0
    found = found_by(replace(problem, counts=Counts.from_any(y)), loadings, factors)
    few = y.sum(axis=0) < 10
    assert few[3]
    assert few.sum() > 3
    np.testing.assert_allclose(found.dispersion[few], np.exp(found.prior.centre[few]), rtol=1e-12)
    assert np.abs(np.log(found.dispersion[~few]) - found.prior.centre[~few]).min() > 0.0


def test_the_order_of_the_features_does_not_matter():
    problem, loadings, factors, y, _ = drawn(np.linspace(0.1, 1.0, 20), n=60)
    order = np.random.default_rng(0).permutation(20)
    other = replace(problem, counts=Counts.from_any(y[:, order]))
    expected = found_by(problem, loadings, factors).dispersion[order]
    np.testing.assert_allclose(found_by(other, loadings, factors[order]).dispersion, expected, rtol=1e-5)


def test_counts_that_vary_less_than_poisson_get_the_lowest_dispersion():
    y = np.full((40, 5), 7)
    problem = Problem(Counts.from_any(y), np.ones(40), ShiftedLog(math.inf))
    for how in ({"kind": "shared"}, {"before": flat(5), "keep_prior": True}):
        found = found_by(problem, np.ones((40, 1)), np.full((5, 1), 7.0), **how)
        assert (found.dispersion < 1e-3).all()
        assert (found.dispersion >= LOWEST * (1 - 1e-12)).all()


@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-3, 0.1, 1.0, 1e4, 1e9]),
    m=st.integers(1, 6),
    kind=st.sampled_from(["feature", "shared"]),
    c=st.sampled_from([1e-6, 1.0, math.inf]),
)
@settings(max_examples=20)
def test_ugly_counts_have_dispersions_within_bounds(seed, scale, m, kind, c):
    rng, link = np.random.default_rng(seed), ShiftedLog(c)
    y = rng.poisson(rng.gamma(0.05, scale * 20.0, size=(8, m)))
    y[0, 0] += 1
    rates = np.maximum(y.mean(axis=0), 1e-3)
    problem = Problem(Counts.from_any(y), np.ones(8), link)
    found = found_by(problem, np.ones((8, 1)), link.link(rates)[:, None] / link.alpha, kind=kind)
    assert found.dispersion.shape == (m,)
    assert (found.dispersion >= LOWEST * (1 - 1e-12)).all()
    assert (found.dispersion <= HIGHEST * (1 + 1e-12)).all()
    assert math.isfinite(found.cost)
