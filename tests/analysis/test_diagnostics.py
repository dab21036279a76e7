"""Diagnostics: sums agree with plain formulas, what is wrong is found, and what is right is not."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import sparse
from scipy.special import xlogy
from scipy.stats import nbinom, poisson

from log1pnmf import Log1pNMF, fit_log1p_nmf, pl
from log1pnmf.analysis import diagnostics
from log1pnmf.analysis.diagnostics import diagnose, expected_deviance


@pytest.fixture(scope="module")
def drawn():
    """Poisson counts of the model itself, with depths from 0.5 to 3."""
    rng = np.random.default_rng(0)
    loadings = np.column_stack([rng.uniform(0.5, 1.0, 150), rng.random(150) < 0.4])
    factors = np.column_stack([rng.uniform(0.3, 1.5, 80), rng.exponential(0.5, 80)])
    sizes = np.exp(rng.uniform(-0.7, 1.1, 150))
    return rng.poisson(sizes[:, None] * np.expm1(loadings @ factors.T))


@pytest.fixture(scope="module")
def model(drawn):
    return Log1pNMF(2, c=1.0, likelihood="exact", random_state=0, n_jobs=1).fit(drawn)


@pytest.mark.parametrize("phi", [0.0, 1e-4, 0.7])
def test_expected_deviance(phi):
    """Against sums over all counts."""
    y = np.arange(40_000.0)
    for mean in (1e-4, 0.03, 0.7, 5.0, 150.0):
        deviance = 2.0 * (xlogy(y, np.maximum(y, 1.0) / mean) - y + mean)
        share, given, off = poisson.pmf(y, mean), None, 2e-4
        if phi:
            ratio = np.log1p(phi * y) - np.log1p(phi * mean)
            deviance = 2.0 * (xlogy(y, np.maximum(y, 1.0) / mean) - (y + 1.0 / phi) * ratio)
            share, given, off = nbinom.pmf(y, 1.0 / phi, 1.0 / (1.0 + phi * mean)), np.array([phi]), 0.01
        exact = (share * deviance).sum()
        assert expected_deviance(np.array([mean]), given)[0] == pytest.approx(exact, rel=off)


def test_sums_agree_with_plain_formulas(drawn, model, monkeypatch):
    monkeypatch.setattr(diagnostics, "BLOCK_BYTES", 8 * 10 * 80 * 7)  # seven samples at a time
    found = diagnose(model, sparse.csr_array(drawn))
    mean = model.inverse_transform(model.loadings_, model.fit_.size_factors)
    mean = np.maximum(mean, 1e-300)  # zero where both effects are
    pearson = (drawn - mean) ** 2 / mean
    np.testing.assert_allclose(found.feature_dispersion, pearson.sum(axis=0) / 148 / (1 - 2 / 80))
    np.testing.assert_allclose(found.sample_dispersion, pearson.sum(axis=1) / 78 / (1 - 2 / 150))
    deviance, expected = (
        2.0 * (xlogy(drawn, np.maximum(drawn, 1) / mean) - drawn + mean),
        expected_deviance(mean),
    )
    np.testing.assert_allclose(found.sample_deviance, deviance.sum(axis=1) / expected.sum(axis=1))
    np.testing.assert_allclose(found.feature_deviance, deviance.sum(axis=0) / expected.sum(axis=0))
    order = np.argsort(-deviance, axis=None)[:50]
    np.testing.assert_array_equal(found.worst["sample"], order // 80)
    np.testing.assert_array_equal(found.worst["feature"], order % 80)
    np.testing.assert_allclose(np.abs(found.worst["value"]), np.sqrt(deviance.ravel()[order]))


def test_a_good_fit_looks_good(drawn, model):
    found = diagnose(model, drawn)
    assert abs(np.median(found.feature_deviance) - 1.0) < 0.08
    assert abs(np.median(found.sample_deviance) - 1.0) < 0.08
    depth = drawn.sum(axis=1)
    assert abs(np.corrcoef(np.log(depth), found.sample_deviance)[0, 1]) < 0.35
    assert len(found.outliers()) == 0
    assert found.overdispersion < 0.02


def test_overdispersion_is_estimated():
    rng = np.random.default_rng(1)
    means = np.full((300, 40), 4.0) * rng.gamma(1 / 0.3, 0.3, size=(300, 40))
    counts = rng.poisson(means)
    found = diagnose(Log1pNMF(1, random_state=0, n_jobs=1).fit(counts), counts)
    assert found.overdispersion == pytest.approx(0.3, rel=0.12)
    assert np.median(found.feature_dispersion) == pytest.approx(1.0 + 0.3 * 4.0, rel=0.1)


@pytest.fixture(scope="module")
def dispersed():
    """A fit with negative binomial noise to counts with dispersion 0.6, and the same with Poisson noise."""
    rng = np.random.default_rng(3)
    loadings = np.column_stack([rng.uniform(0.5, 1.0, 250), rng.random(250) < 0.4])
    factors = np.column_stack([rng.uniform(0.3, 2.0, 60), rng.exponential(0.5, 60)])
    means = np.expm1(loadings @ factors.T)
    counts = rng.poisson(means * rng.gamma(1 / 0.6, 0.6, means.shape))
    fits = [fit_log1p_nmf(counts, 2, noise=noise, random_state=0, n_jobs=1) for noise in ("nb", "poisson")]
    return counts, [diagnose(fit, counts) for fit in fits]


def test_residuals_are_those_of_the_noise(dispersed):
    """Variances and deviances are right for the noise of the counts, and not for Poisson noise."""
    _, (found, wrong) = dispersed
    busy = found.feature_mean > 1.0
    assert abs(np.median(found.feature_dispersion[busy]) - 1.0) < 0.12
    assert abs(np.median(found.feature_deviance[busy]) - 1.0) < 0.12
    assert np.median(wrong.feature_dispersion[busy]) > 1.5
    assert np.median(wrong.feature_deviance[busy]) > 1.5
    assert "times that of negative binomial counts" in found.summary()
    assert "times that of Poisson counts" in wrong.summary()


def test_the_largest_residuals_are_of_the_noise(dispersed):
    """Half the square is the log-likelihood lost against a mean of the count itself, as scipy has it."""
    _, (found, _) = dispersed
    at = SimpleNamespace(**found.worst)
    r = 1.0 / found.fitted_dispersion[at.feature]
    own, fitted = (nbinom.logpmf(at.count, r, r / (r + mean)) for mean in (at.count, at.mean))
    np.testing.assert_allclose(0.5 * at.value**2, own - fitted, rtol=1e-9)


def test_trend_of_dispersions(dispersed):
    """Dispersions scatter around their trend by about its spread; Poisson fits have none."""
    _, (found, wrong) = dispersed
    away = np.log(found.fitted_dispersion / found.trend)
    assert np.mean(np.abs(away) < 2.0 * found.trend_spread) > 0.9
    assert np.median(found.trend) == pytest.approx(0.6, rel=0.3)
    assert list(found.features)[-3:] == ["fitted_dispersion", "trend", "shared"]
    assert wrong.trend is None
    assert "trend" not in wrong.features


def test_dispersions_that_hide_structure_are_named_and_no_others():
    """Eight features rise together in a fifth of the samples: two factors miss it, three do not."""
    rng = np.random.default_rng(1)
    loadings = np.column_stack([np.ones(300), rng.random(300) < 0.5, rng.random(300) < 0.2])
    second = rng.uniform(0.0, 1.5, 80) * (rng.random(80) < 0.5)
    factors = np.column_stack([rng.uniform(0.5, 2.0, 80), second, 1.5 * (np.arange(80) < 8)])
    means = np.expm1(loadings @ factors.T)
    counts = rng.poisson(means * rng.gamma(1 / 0.3, 0.3, means.shape))
    missed, reached = (
        diagnose(fit_log1p_nmf(counts, K, noise="nb", tol=1e-6, n_jobs=1), counts) for K in (2, 3)
    )
    assert sorted(missed.hidden()) == list(range(8))
    assert np.median(missed.fitted_dispersion[:8]) > 0.5
    assert "The dispersions of 8 features hide structure: " in missed.summary()
    assert not reached.feature_shared.any()
    assert "hide structure" not in reached.summary()


def test_wrong_rows_columns_and_entries_are_found(drawn):
    counts = drawn.copy()
    rng = np.random.default_rng(2)
    counts[17] = rng.permutation(20 * np.arange(80) % 37)
    counts[60, 5] = 300
    model = Log1pNMF(2, c=1.0, likelihood="exact", random_state=0, n_jobs=1).fit(counts)
    found = diagnose(model, counts, feature_names=[f"g{j}" for j in range(80)])
    assert 17 in found.outliers()[:2]
    assert (60, 5) in zip(found.worst["sample"].tolist(), found.worst["feature"].tolist(), strict=True)
    assert "g5" in found.entries["feature"][:10]
    assert "explained much worse" in found.summary()
    assert list(found.samples) == ["sample", "deviance", "dispersion", "score"]


def test_empty_features_and_samples():
    counts = np.zeros((12, 6))
    counts[:10, :5] = np.random.default_rng(0).poisson(2.0, size=(10, 5))
    found = diagnose(Log1pNMF(1, random_state=0, n_jobs=1).fit(counts), counts)
    assert np.isnan(found.feature_dispersion[5])
    assert np.isfinite(found.sample_score).all()


def test_plot(drawn, model):
    found = diagnose(model, drawn)
    figure = pl.diagnostics(found, figure=Figure())
    features, samples = figure.axes
    np.testing.assert_allclose(
        features.collections[0].get_offsets(), np.column_stack([found.feature_mean, found.feature_dispersion])
    )
    np.testing.assert_allclose(samples.collections[0].get_offsets()[:, 1], found.sample_score)
    with pytest.raises(TypeError, match="expected Diagnostics, got Log1pNMF"):
        pl.diagnostics(model)


def test_counts_that_are_never_expected_do_not_drown_the_others():
    counts = np.random.default_rng(0).poisson(3.0, size=(40, 20))
    counts[:, 5] = 0
    model = Log1pNMF(1, random_state=0).fit(counts)
    other = counts.copy()
    other[3, 5] = 2
    found, clean = diagnose(model, other), diagnose(model, counts)
    assert (clean.n_unexpected, found.n_unexpected) == (0, 1)
    np.testing.assert_array_equal(
        np.delete(found.feature_dispersion, 5), np.delete(clean.feature_dispersion, 5)
    )
    assert np.nan_to_num(found.feature_dispersion).max() < 10
    assert "expects none: 1" in found.summary()


def test_plot_of_dispersions(dispersed):
    _, (found, poisson_fit) = dispersed
    ax = pl.dispersion(found, n_labels=3, ax=Figure().subplots())
    points = np.column_stack([found.feature_mean, found.fitted_dispersion])
    np.testing.assert_allclose(ax.collections[0].get_offsets(), points)
    x, trend = ax.lines[0].get_data()
    np.testing.assert_allclose(trend, found.trend[np.argsort(found.feature_mean)])
    assert (np.diff(x) >= 0.0).all()
    with pytest.raises(ValueError, match="Poisson noise and therefore no dispersions"):
        pl.dispersion(poisson_fit, ax=Figure().subplots())
