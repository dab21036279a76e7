"""Simulation: the law of the counts, and the density asked for."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.simulate import MIXTURES, draw_poisson, simulate


@pytest.mark.parametrize("c", [1e-3, 1.0, 50.0, math.inf])
@pytest.mark.parametrize("density", [0.01, 0.3])
def test_density_is_reached(c, density):
    drawn = simulate(300, 200, 4, c=c, density=density, size_spread=0.3)
    expected = 60_000 * density
    assert abs(drawn.counts.nnz - expected) < 4.0 * math.sqrt(expected * (1.0 - density))


@pytest.mark.parametrize("level", [0.01, 0.4, 0.6, 5.0])  # both ways of drawing
def test_draws_have_mean_and_variance_of_poisson(level):
    mean = level * np.linspace(0.5, 1.5, 200)[None, :] * np.ones((2000, 1))
    drawn = draw_poisson(mean, np.random.default_rng(0)).toarray()
    total = mean.sum()
    assert abs(drawn.sum() - total) < 5.0 * math.sqrt(total)
    assert drawn.var(axis=0).sum() == pytest.approx(mean[0].sum(), rel=0.05)
    halves = drawn[:, :100].sum(), mean[:, :100].sum()
    assert abs(halves[0] - halves[1]) < 5.0 * math.sqrt(halves[1])


@pytest.mark.parametrize("c", [1e-3, 1.0, math.inf])
def test_counts_are_negative_binomial_around_the_model(c):
    phi = np.tile([0.0, 0.3, 2.0], 40)
    drawn = simulate(900, 120, 3, c=c, density=0.3, size_spread=0.4, dispersion=phi, random_state=3)
    np.testing.assert_array_equal(drawn.dispersion, phi)
    counts = drawn.counts.toarray()
    assert drawn.counts.nnz / counts.size == pytest.approx(0.3, rel=0.05)
    mean = drawn.size_factors[:, None] * ShiftedLog(c).inverse(drawn.loadings @ drawn.factors.T)
    for one in (0.0, 0.3, 2.0):
        group = (phi == one) & (mean > 0.5) & (mean < 20.0)
        mu, y = mean[group], counts[group]
        variance = mu + one * mu**2
        assert abs(y.sum() - mu.sum()) < 5.0 * math.sqrt(variance.sum())
        assert np.mean((y - mu) ** 2 / variance) == pytest.approx(1.0, abs=0.15)
        zeros = stats.poisson(mu).pmf(0) if one == 0 else stats.nbinom(1 / one, 1 / (1 + one * mu)).pmf(0)
        assert abs((y == 0).sum() - zeros.sum()) < 5.0 * math.sqrt(zeros.sum())


def test_a_density_out_of_reach_is_refused_with_the_highest_one():
    options = {"size_spread": 0.2, "dispersion": 0.4, "random_state": 4}
    with pytest.raises(ValueError, match=r"density must be at most about [\d.]+ .*, got 0.1") as refused:
        simulate(1, 9, 2, density=0.1, **options)
    highest = float(re.search(r"about ([\d.]+)", str(refused.value))[1])
    simulate(1, 9, 2, density=0.9 * highest, **options)


def test_seed_decides():
    first, same, other = (simulate(50, 20, 2, random_state=seed) for seed in (0, 0, 1))
    assert (first.counts != same.counts).nnz == 0
    assert (first.counts != other.counts).nnz > 0
    assert not np.array_equal(first.factors, other.factors)
    plain, dispersed = (simulate(50, 20, 2, dispersion=phi) for phi in (np.zeros(20), 1.0))
    assert (plain.counts != first.counts).nnz == 0
    assert (dispersed.counts != first.counts).nnz > 0


def test_entries_follow_the_mixture():
    loadings = simulate(20_000, 5, 3, c=1.0).loadings
    low, high = MIXTURES[1.0].uniform
    inside = np.mean((loadings >= low) & (loadings <= high))
    assert inside > 0.9  # the uniform part, and the exponential part where it is small
    assert loadings.max() <= math.sqrt(math.log1p(1e4))
    median = np.quantile(loadings, 0.45)  # the exponential part adds little below the bound
    assert median == pytest.approx(0.5 * high, rel=0.1)


def test_size_factors_have_mean_one():
    sizes = simulate(20_000, 2, 1, size_spread=0.5).size_factors
    assert sizes.mean() == pytest.approx(1.0, abs=0.02)
    assert np.log(sizes).std() == pytest.approx(0.5, rel=0.03)
    assert (simulate(10, 2, 1).size_factors == 1.0).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"n_components": 0}, "n_components"),
        ({"c": -1.0}, "c must be positive"),
        ({"density": 1.0}, "density"),
        ({"density": -0.1}, "density"),
        ({"size_spread": -1.0}, "size_spread"),
        ({"random_state": -1}, "random_state"),
        ({"dispersion": -0.5}, "dispersion must be finite and not negative"),
        ({"dispersion": [0.1, 0.2]}, "dispersion must be a number, or one for each of the 4 features"),
    ],
)
def test_bad_parameters(options, words):
    with pytest.raises(ValueError, match=words):
        simulate(**{"n_samples": 5, "n_features": 4, "n_components": 2, **options})


def test_drawn_batches_have_log_normal_effects_and_one_batch_has_none():
    effects = simulate(2, 4000, 1, batches=3, batch_spread=0.5).batch_effects
    assert np.log(effects).sum(axis=0) == pytest.approx(0.0, abs=1e-9)
    assert np.log(effects).std() == pytest.approx(0.5 * np.sqrt(2.0 / 3.0), rel=0.03)
    plain, one = simulate(300, 20, 2), simulate(300, 20, 2, batches=1, batch_spread=2.0)
    assert (plain.counts != one.counts).nnz == 0
    drawn = simulate(300, 20, 4, density=0.4, batches=2, batch_spread=1.0)
    found = np.log([drawn.counts[drawn.batch == b].mean(axis=0) for b in (0, 1)])
    truth = np.log(drawn.batch_effects)
    assert np.corrcoef(found[0] - found[1], truth[0] - truth[1])[0, 1] > 0.9
