"""Condensed means stand for all: the likelihood of dispersions from them is that from every entry."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.reference_engine import AllMeans

from log1pnmf._core import runnable_kernels
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.model.batches import Batches
from log1pnmf.model.dispersion import Likelihood, MeanSpectrum, update_dispersions
from log1pnmf.model.noise import NegativeBinomial, ShiftedLog
from log1pnmf.model.problem import Problem


def drawn(c, n=300, m=12, seed=0):
    """Counts of features between rare and frequent; one has none, and some loadings are zero."""
    rng, link = np.random.default_rng(seed), ShiftedLog(c)
    loadings = rng.uniform(0.0, 0.7, (n, 3)) * (rng.random((n, 3)) > 0.3)
    factors = link.link(np.geomspace(1e-3, 300.0, m)[:, None] * rng.uniform(0.0, 1.0, (m, 3))) / link.alpha
    sizes = rng.uniform(0.3, 2.0, n)
    means = sizes[:, None] * link.mean(loadings @ factors.T)
    y = rng.poisson(means * rng.gamma(2.0, 0.5, (n, m)))
    y[:, 4] = 0
    return Problem(Counts.from_any(y), sizes, link, noise=NegativeBinomial(0.5)), loadings, factors


def condensed(problem, loadings, factors, **options):
    return NativeEngine(problem, **options).mean_spectrum(loadings, factors)


@pytest.mark.parametrize("kernel", runnable_kernels())
@pytest.mark.parametrize("c", [0.1, 1.0, math.inf])
def test_condensed_means_have_the_likelihood_of_all(c, kernel):
    problem, loadings, factors = drawn(c)
    spectrum = condensed(problem, loadings, factors, kernel=kernel)
    exact = Likelihood(problem.counts, factors, AllMeans(problem, loadings, factors))
    found, which = Likelihood(problem.counts, factors, spectrum), np.array([3, 0, 11, 7, 4, 9])
    for theta in np.log([1e-6, 1e-3, 0.1, 0.5, 3.0, 50.0]):
        one, other = exact(np.full(6, theta), which), found(np.full(6, theta), which)
        for name in ("slope", "bend"):
            expected = getattr(one, name)
            size = 1.0 + np.abs(expected)
            np.testing.assert_allclose(getattr(other, name) / size, expected / size, atol=2e-6)
        free, level = found.freedom(np.full(12, theta))
        expected_free, expected_level = exact.freedom(np.full(12, theta))
        np.testing.assert_allclose(free, expected_free, rtol=1e-3)
        if theta <= math.log(3.0):  # beyond, tiny means decide about the level, which hardly matters there
            np.testing.assert_allclose(level, expected_level, rtol=1e-3)
    for kind in ("feature", "shared"):
        noises = [update_dispersions(one.counts, factors, one.means, kind=kind)[0] for one in (found, exact)]
        np.testing.assert_allclose(noises[0].dispersion, noises[1].dispersion, rtol=1e-5)


def test_effects_of_batches_are_in_the_means():
    problem, loadings, factors = drawn(1.0)
    rng = np.random.default_rng(1)
    batches = Batches(rng.integers(0, 3, len(loadings)), rng.uniform(0.3, 3.0, (3, len(factors))))
    problem = replace(problem, batches=batches)
    spectrum, theta = condensed(problem, loadings, factors), np.log(np.linspace(0.1, 1.0, len(factors)))
    every = np.arange(len(factors))
    expected = Likelihood(problem.counts, factors, AllMeans(problem, loadings, factors))(theta, every).slope
    found = Likelihood(problem.counts, factors, spectrum)(theta, every).slope
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_samples_add_up_in_any_pieces_and_with_any_number_of_threads():
    problem, loadings, factors = drawn(1.0)
    whole, y = condensed(problem, loadings, factors, n_threads=1), problem.counts.to_scipy()
    for name in ("entries", "counted"):
        again = condensed(problem, loadings, factors, n_threads=3)
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))
    low, parts = whole.low, []
    for rows in (slice(0, 17), slice(17, 300)):
        some, sizes = Counts.from_any(y[rows]), problem.size_factors[rows]
        piece = Problem(some, sizes, problem.link, noise=problem.noise)
        parts.append(MeanSpectrum.zeros(low))
        NativeEngine(piece).add_spectrum(loadings[rows], factors, into=parts[-1])
    both = parts[0] + parts[1]
    np.testing.assert_allclose(both.entries, whole.entries, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(both.counted, whole.counted, rtol=1e-12, atol=1e-8)
    assert both.n_free == np.count_nonzero(loadings)
