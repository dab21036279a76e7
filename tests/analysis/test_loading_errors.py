"""Standard errors of loadings: coverage, bounds, and where they are written."""

import math

import numpy as np
import pytest
from benchmarks.loading_errors import coverage
from threadpoolctl import threadpool_limits

from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis import loading_errors


@pytest.mark.parametrize("c", [0.1, math.inf])
@pytest.mark.parametrize("overdispersion", [0.0, 0.5])
def test_intervals_hold_the_truth(c, overdispersion):
    """The quick form of benchmarks/loading_errors.py."""
    found = coverage(c, n_features=150, overdispersion=overdispersion)
    above, zero = found["sandwich"]
    assert 0.88 < above < 0.97
    assert zero > 0.94
    if overdispersion:
        assert found["model"][0] < 0.88


@pytest.mark.parametrize("c", [0.1, math.inf])
def test_errors_of_the_model_are_those_of_its_noise(c):
    """Overdispersed counts: errors that rest on the variance of the noise hold, if the noise is right."""
    found = coverage(c, n_features=150, overdispersion=0.5, noise="nb")
    for errors in ("sandwich", "model"):
        above, zero = found[errors]
        assert 0.88 < above < 0.97
        assert zero > 0.93


@pytest.fixture(scope="module")
def fitted():
    counts = np.random.default_rng(0).poisson(np.where(np.eye(2).repeat(20, 0).repeat(10, 1), 6.0, 0.2))
    return Log1pNMF(2, likelihood="exact", random_state=0, n_jobs=1).fit(counts), counts


def test_more_counts_are_surer(fitted):
    """Samples of a hundred times the size: a tenth of the errors."""
    model, _ = fitted
    rng, rates = np.random.default_rng(1), model.inverse_transform(model.loadings_)
    small, large = (
        model.transform(rng.poisson(size * rates), size_factors=np.full(40, float(size)), return_std=True)
        for size in (1, 100)
    )
    free = (small[0] > 0.5) & (large[0] > 0.5)
    ratio = (large[1] / small[1])[free]
    assert 0.05 < np.median(ratio) < 0.2
    assert (small[1] > 0.0).all()


def test_transform_gives_the_errors_of_the_fit(fitted):
    model, counts = fitted
    loadings, std = model.transform(counts, return_std=True)
    np.testing.assert_allclose(loadings, model.loadings_, atol=1e-3)
    free = model.loadings_ > 0.01
    np.testing.assert_allclose(std[free], loading_errors(model, counts)[free], rtol=0.02)


def test_scale_of_the_fit(fitted):
    model, counts = fitted
    other = model.fit_.normalized("factor_sum")
    scale = other.loadings.max(axis=0) / model.loadings_.max(axis=0)
    np.testing.assert_allclose(
        loading_errors(other, counts), scale * loading_errors(model, counts), rtol=1e-6
    )


def test_samples_without_counts(fitted):
    """Nothing is known but that the loadings are small: finite, one-sided errors."""
    model, _ = fitted
    loadings, std = model.transform(np.zeros((1, 20)), size_factors=np.ones(1), return_std=True)
    assert (loadings == 0.0).all()
    assert np.isfinite(std).all()
    assert (std > 0.0).all()


def test_refusals(fitted):
    model, counts = fitted
    with pytest.raises(ValueError, match="errors must be one of"):
        loading_errors(model, counts, errors="robust")
    with pytest.raises(ValueError, match="the fit is of 40 samples, got counts of 39"):
        loading_errors(model, counts[1:])


def test_any_number_of_threads_gives_the_same_bits():
    """Also of BLAS, for so many samples and features that it would split the products."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.3, 1.0, (500, 6)) @ rng.gamma(0.3, 1.0, (6, 600)))
    fit = fit_log1p_nmf(counts, 6, init="rank1", tol=1e-3, n_jobs=1)
    found = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads, user_api="blas"):
            found.append(loading_errors(fit, counts))
    np.testing.assert_array_equal(*found)


def test_anndata():
    anndata = pytest.importorskip("anndata")
    from log1pnmf import tl

    counts = np.random.default_rng(0).poisson(2.0, (50, 12)).astype(np.float32)
    old, new = anndata.AnnData(counts[:30]), anndata.AnnData(counts[30:])
    tl.log1p_nmf(old, 2, tol=1e-3, std=True, n_jobs=1)
    assert old.obsm["X_log1p_nmf_std"].shape == (30, 2)
    tl.transform(new, old, std=True)
    assert new.obsm["X_log1p_nmf_std"].shape == (20, 2)
