"""Scale and order of the factors; topics; what an approximate fit is worth."""

import dataclasses
import math

import numpy as np
import pytest

from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis import topic_model
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import NORMALIZATIONS, arranged, evenness, factor_shares
from log1pnmf.model.objective import log_likelihood

rng = np.random.default_rng(0)
Y = rng.poisson(rng.gamma(0.5, 2.0, size=(50, 3)) @ rng.gamma(0.5, size=(3, 30)) + 0.3)
OPTIONS = {"n_components": 3, "random_state": 0, "n_jobs": 1, "tol": 1e-7}


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("c", [0.1, math.inf])
def test_the_scale_does_not_change_the_fit(normalize, c):
    usual = Log1pNMF(c=c, **OPTIONS).fit(Y)
    fit = usual.fit_.normalized(normalize)
    model = Log1pNMF.of(fit)
    eta = usual.loadings_ @ usual.components_
    np.testing.assert_allclose(model.loadings_ @ model.components_, eta, rtol=1e-12, atol=1e-300)
    found = log_likelihood(
        Counts.from_any(Y), model.loadings_, model.components_.T, fit.link, fit.size_factors
    )
    assert found == pytest.approx(model.log_likelihood_, rel=1e-10)
    expected = usual.transform(Y[:5]) @ usual.components_
    np.testing.assert_allclose(model.transform(Y[:5]) @ model.components_, expected, rtol=1e-9, atol=1e-12)
    assert model.score(Y) == pytest.approx(usual.score(Y), rel=1e-12)
    back = fit.normalized("max")
    np.testing.assert_allclose(back.loadings, usual.loadings_, rtol=1e-12)
    with pytest.raises(ValueError, match=r"normalize must be one of 'max', .* got 'sum'"):
        fit.normalized("sum")


def test_every_scale_is_what_it_says():
    fit = fit_log1p_nmf(Y, **OPTIONS)
    np.testing.assert_array_equal(fit.loadings.max(axis=0), 1.0)
    np.testing.assert_allclose(fit.normalized("factor_max").factors.max(axis=0), 1.0)
    np.testing.assert_allclose(fit.normalized("factor_sum").factors.sum(axis=0), 1.0)
    np.testing.assert_array_equal(fit.normalized("none").factors, fit.factors)


def test_the_baseline_comes_first_then_by_share():
    even, small = np.ones(50), np.full(50, 1e-6)
    block = np.r_[np.ones(10), np.zeros(40)]
    factors = np.outer(np.ones(30), [10.0, 3.0, 1.0, 40.0])
    loadings = np.c_[block, even, small, block[::-1]]

    def order(l1):
        _, shown = arranged(loadings, factors, l1=l1)
        return [factors[0].tolist().index(value) for value in shown[0]]

    # the second is the most even of those that count; the third is as even but carries nothing
    assert order(l1=0.0) == [1, 3, 0, 2]
    assert order(l1=1.0) == [0, 3, 1, 2]
    np.testing.assert_allclose(evenness(loadings), [0.2, 1.0, 1.0, 0.2])
    np.testing.assert_allclose(factor_shares(loadings, factors).sum(), 1.0)


def test_the_order_does_not_depend_on_that_of_the_solver_and_empty_factors_do_not_divide_by_zero():
    fit, shuffle = fit_log1p_nmf(Y, **OPTIONS), [2, 0, 1]
    other = arranged(fit.loadings[:, shuffle], fit.factors[:, shuffle], normalize=fit.scale)
    for one, again in zip((fit.loadings, fit.factors), other, strict=True):
        np.testing.assert_array_equal(one, again)
    loadings, factors = fit.loadings.copy(), fit.factors.copy()
    loadings[:, 1] = factors[:, 1] = 0.0
    for how in NORMALIZATIONS:
        shown = arranged(loadings, factors, normalize=how)
        for side in shown:
            assert np.isfinite(side).all()
            assert (side[:, :2].max(axis=0) > 0.0).all()
            assert not side[:, 2].any()


def test_topics_are_the_same_model_and_documents_have_their_own_size_at_the_optimum():
    y = Y.copy()
    y[3] = 0  # a document without words
    model = Log1pNMF(c=math.inf, **{**OPTIONS, "tol": 1e-12}).fit(y)
    topics, components = topic_model(model), model.components_
    np.testing.assert_allclose(topics.proportions.sum(axis=1), 1.0)
    np.testing.assert_allclose(topics.proportions[3], 1 / 3)
    np.testing.assert_allclose(topics.words, components / components.sum(axis=1, keepdims=True))
    means = model.inverse_transform(model.loadings_, model.fit_.size_factors)
    expected = topics.sizes[:, None] * (topics.proportions @ topics.words)
    np.testing.assert_allclose(expected, means, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(topics.sizes, y.sum(axis=1), rtol=1e-4)
    with pytest.raises(ValueError, match=r"needs c = inf.*fitted with c = 2.*Log1pNMF\(c=np.inf\)"):
        topic_model(fit_log1p_nmf(Y, c=2.0, **OPTIONS))


def test_the_certificate_is_the_exact_log_likelihood():
    exact = Log1pNMF(c=0.5, **OPTIONS).fit(Y).certificate_
    assert exact.gap == 0.0
    assert "no gap" in str(exact)
    model = Log1pNMF(c=1.0, likelihood="chebyshev", **OPTIONS).fit(Y)
    found, fit = model.certificate_, model.fit_
    expected = log_likelihood(Counts.from_any(Y), fit.loadings, fit.factors, fit.link, fit.size_factors)
    assert found.log_likelihood == pytest.approx(expected, rel=1e-12)
    assert found.gap == pytest.approx(fit.approximate_log_likelihood - expected, rel=1e-9)
    assert found.gap != 0.0
    assert f"off by {found.gap:,.1f}" in str(found)
    assert str(found) in model.summary()
    model.fit_ = dataclasses.replace(fit, certificate=None)
    assert model.log_likelihood_ is None
    assert "log1pnmf.analysis.log_likelihood" in model.summary()
