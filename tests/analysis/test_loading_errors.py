"""Standard errors of loadings: coverage, bounds, and where they are written."""

import math
from dataclasses import replace

import anndata
import numpy as np
import pytest

from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis import loading_errors
from log1pnmf.model.noise import ShiftedLog


def coverage(c, overdispersion, noise="poisson"):
    """How often intervals hold loadings of known factors: of those above zero, and of those at zero."""
    rng, link = np.random.default_rng(0), ShiftedLog(c)
    loadings = rng.uniform(0.2, 1.0, (600, 4)) * (rng.random((600, 4)) < 0.6)
    loadings[:4] = np.eye(4)
    rates = np.exp(rng.normal(0.0, 0.8, (150, 4))) * (rng.random((150, 4)) < 0.4)
    factors = link.link(rates + 0.02)
    means = link.inverse(loadings @ factors.T)
    if overdispersion:
        means = means * rng.gamma(1.0 / overdispersion, overdispersion, means.shape)
    counts = rng.poisson(means)
    known = {"noise": "nb", "dispersion": np.full(150, overdispersion)} if noise == "nb" else {}
    fit = fit_log1p_nmf(
        counts[:9], 4, c=c, likelihood="exact", size_factors=np.ones(9), tol=0.1, n_jobs=1, **known
    )
    model = Log1pNMF.of(replace(fit, loadings=loadings[:9], factors=factors))
    found = model.transform(counts, size_factors="none")
    shares = {}
    for errors in ("sandwich", "model"):
        error = loading_errors(model, counts, found, size_factors="none", errors=errors)
        held = np.abs(found - loadings) <= 1.96 * error
        shares[errors] = held[loadings > 0].mean(), held[loadings == 0].mean()
    return shares


@pytest.mark.parametrize(
    ("c", "overdispersion", "noise"), [(math.inf, 0.0, "poisson"), (0.1, 0.5, "poisson"), (0.1, 0.5, "nb")]
)
def test_intervals_hold_the_truth(c, overdispersion, noise):
    """Errors that rest on the variance of the noise hold, if the noise is right."""
    found = coverage(c, overdispersion, noise)
    if overdispersion and noise == "poisson":
        assert found.pop("model")[0] < 0.88
    for above, zero in found.values():
        assert 0.88 < above < 0.97
        assert zero > 0.94


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


def test_transform_gives_the_errors_of_the_fit_whatever_its_scale(fitted):
    model, counts = fitted
    own = loading_errors(model, counts)
    loadings, std = model.transform(counts, prior=0, return_std=True)
    np.testing.assert_allclose(loadings, model.loadings_, atol=1e-3)
    free = model.loadings_ > 0.01
    np.testing.assert_allclose(std[free], own[free], rtol=0.02)
    other = model.fit_.normalized("factor_sum")
    scale = other.loadings.max(axis=0) / model.loadings_.max(axis=0)
    np.testing.assert_allclose(loading_errors(other, counts), scale * own, rtol=1e-6)


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


def test_anndata():
    from log1pnmf import tl

    counts = np.random.default_rng(0).poisson(2.0, (50, 12)).astype(np.float32)
    old, new = anndata.AnnData(counts[:30]), anndata.AnnData(counts[30:])
    tl.log1p_nmf(old, 2, tol=1e-3, std=True, n_jobs=1)
    assert old.obsm["X_log1p_nmf_std"].shape == (30, 2)
    tl.transform(new, old, std=True)
    assert new.obsm["X_log1p_nmf_std"].shape == (20, 2)
