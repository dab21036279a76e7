"""Size factors that are fitted with the model, and those of new samples."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import log1pnmf as lp
from log1pnmf.fitting.new_samples import new_samples
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem, SizePrior
from log1pnmf.model.size_factors import WEIGHT, update_size_factors

OPTIONS = {"size_factors": "fit", "tol": 1e-7, "init": "nndsvd"}


def drawn(seed=0, *, shape=(40, 30), dispersion=0.0):
    """Counts of programmes that change totals, and the true size factors."""
    rng, link, (n, m) = np.random.default_rng(seed), ShiftedLog(1.0), shape
    up = np.exp(rng.normal(0.0, 1.2, (m, 3)) * (rng.random((m, 3)) < 0.4) + [0.0, 1.5, -1.0])
    loadings = rng.dirichlet([0.1] * 3, n)
    means = link.inverse(loadings @ link.link(np.exp(rng.normal(1.0, 1.0, m))[:, None] * up).T)
    sizes = np.exp(rng.normal(0.0, 0.5, n))
    means *= sizes[:, None] / sizes.mean()
    if dispersion:
        means *= rng.gamma(1.0 / dispersion, dispersion, means.shape)
    return rng.poisson(means), sizes / sizes.mean()


@pytest.fixture(scope="module")
def counts():
    return drawn()[0]


@pytest.fixture(scope="module")
def fit(counts):
    return lp.fit_log1p_nmf(counts, 3, **OPTIONS)


@pytest.mark.parametrize(("c", "noise"), [(0.01, "nb"), (1.0, "poisson"), (30.0, "nb")])
def test_the_objective_never_rises(c, noise):
    y, _ = drawn(dispersion=0.3 if noise == "nb" else 0.0)
    given = {"dispersion": 0.3} if noise == "nb" else {}
    fit = lp.fit_log1p_nmf(y, 3, c=c, noise=noise, **given, **OPTIONS)
    assert np.diff(fit.history["objective"]).max() <= 1e-9 * abs(fit.objective)
    assert fit.size_factors.mean() == pytest.approx(1.0)
    total = lp.fit_log1p_nmf(y, 3, c=c, noise=noise, **given, **{**OPTIONS, "size_factors": "total"})
    cost = SizePrior(np.ones(len(y)), WEIGHT).costs(total.size_factors).sum()
    assert fit.objective < cost - total.log_likelihood


def test_no_size_can_be_better_than_the_fitted_ones(counts, fit):
    """The objective has the same slope in every size factor: what one gains another loses."""
    mean = fit.size_factors[:, None] * fit.link.inverse(fit.loadings @ fit.factors.T)
    slope = ((mean - counts).sum(axis=1) + WEIGHT * (fit.size_factors - 1.0)) / fit.size_factors
    assert np.ptp(slope) < 0.02 * counts.sum(axis=1).mean()


def test_depth_is_told_from_programmes_that_change_totals():
    """Samples of one programme leave open how deep they are; that depth does not depend on it decides."""
    y, true = drawn(shape=(60, 40))
    sizes = lp.fit_log1p_nmf(y, 3, **OPTIONS).size_factors
    totals = y.sum(axis=1) / y.sum(axis=1).mean()
    off, off_totals = (np.std(np.log(one / true)) for one in (sizes, totals))
    assert off < 0.5 * off_totals


def test_levelling_moves_sizes_and_rates_of_a_programme_together():
    """Samples that have one programme alone fit as well before and after, and the prior costs less."""
    rng, link = np.random.default_rng(0), ShiftedLog(0.5)
    loadings, factors = np.repeat(np.eye(2), 20, axis=0), rng.gamma(1.0, 1.0, (30, 2))
    sizes = np.repeat([1.5, 0.5], 20)
    y = lp.counts.Counts.from_any(rng.poisson(sizes[:, None] * 0.5 * np.expm1(loadings @ factors.T)))
    problem = Problem(y, sizes, link, size_prior=SizePrior(np.ones(40), WEIGHT))
    for _ in range(30):
        found = update_size_factors(problem, loadings, factors)
        problem = replace(problem, size_factors=found.size_factors)
        loadings, factors = found.loadings, found.factors
        assert found.gain >= 0.0
    first, second = problem.size_factors[:20].mean(), problem.size_factors[20:].mean()
    assert first == pytest.approx(second, rel=0.1)


def test_it_is_said_where_programmes_change_totals(fit):
    """And not where they do not; selection says it about totals."""
    said = "totals are poor size factors here: at the same depth, samples of factor"
    assert any(message.startswith(said) for message in fit.messages)
    assert said in lp.Log1pNMF.of(fit).summary()
    rng = np.random.default_rng(0)
    rates = np.expm1(rng.dirichlet([0.3] * 3, 60) @ rng.gamma(1.0, 1.0, (3, 50)))
    rates *= 150.0 * np.exp(rng.normal(0.0, 0.5, (60, 1))) / rates.sum(axis=1, keepdims=True)
    y = rng.poisson(rates)
    assert not any("poor size factors" in one for one in lp.fit_log1p_nmf(y, 3, **OPTIONS).messages)


def test_selection_fits_sizes_and_says_nothing_about_totals(counts):
    options = {"n_folds": 2, "n_starts": 1, "n_seeds": 0, "tol": 1e-4, "init": "nndsvd", "n_jobs": 1}
    for holdout in ("counts", "samples"):
        fitted = lp.select(counts, [2], [1.0, np.inf], size_factors="fit", holdout=holdout, **options)
        assert np.isfinite(fitted.scores).all()
        assert "poor size factors" not in str(fitted)


@pytest.mark.gpu
def test_with_pytorch_they_are_the_same(counts):
    y, options = counts[:25, :20], {**OPTIONS, "max_iter": 10}
    with pytest.warns(ConvergenceWarning):
        native = lp.fit_log1p_nmf(y, 2, engine="native", **options)
    with pytest.warns(ConvergenceWarning):
        found = lp.fit_log1p_nmf(y, 2, engine="torch", **options)
    np.testing.assert_allclose(found.size_factors, native.size_factors, rtol=1e-4)  # single precision
    assert not np.allclose(found.size_factors, y.sum(axis=1) / y.sum(axis=1).mean())


def test_a_fit_goes_on_with_the_sizes_of_another(counts, fit):
    again = lp.fit_log1p_nmf(counts, 3, **{**OPTIONS, "init": fit})
    np.testing.assert_allclose(again.size_factors, fit.size_factors, rtol=0.02)
    assert again.n_iter < fit.n_iter


@pytest.mark.parametrize("likelihood", ["auto", "chebyshev"])
def test_without_counts_a_sample_keeps_its_size(counts, likelihood):
    y = np.vstack([counts[:30], np.zeros((1, counts.shape[1]), dtype=int)])
    fit = lp.fit_log1p_nmf(y, 2, likelihood=likelihood, **{**OPTIONS, "c": 0.1})
    assert fit.converged
    assert fit.size_factors[-1] == 1.0
    assert np.isfinite(fit.size_factors).all()


def test_at_the_identity_sizes_are_the_totals_and_counts_in_chunks_are_refused(counts):
    options = {**OPTIONS, "c": np.inf}
    fit = lp.fit_log1p_nmf(counts, 2, **options)
    total = lp.fit_log1p_nmf(counts, 2, **{**options, "size_factors": "total"})
    np.testing.assert_array_equal(fit.loadings, total.loadings)
    assert any("at c=inf the loadings absorb any size" in message for message in fit.messages)
    with pytest.raises(ValueError, match="size_factors='fit' needs counts in memory"):
        lp.fit_log1p_nmf(lp.open_counts(counts), 2, size_factors="fit")


def test_new_samples_get_sizes_as_the_fit_had_them(counts, fit):
    """Those of the training samples are what the fit found, or nearly: their sum is free now."""
    found = new_samples(fit, lp.counts.Counts.from_any(counts))
    assert np.corrcoef(np.log(found.size_factors), np.log(fit.size_factors))[0, 1] > 0.99
    model = lp.Log1pNMF(3, **OPTIONS).fit(counts)
    assert model.score(counts) > model.score(counts, size_factors="total")
    assert model.transform(counts, return_std=True)[1].shape == fit.loadings.shape
