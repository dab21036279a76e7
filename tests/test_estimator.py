"""The scikit-learn estimator, as far as it goes."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from log1pnmf import Log1pNMF, fit_log1p_nmf

rng = np.random.default_rng(0)
Y = rng.poisson(rng.gamma(0.5, 2.0, size=(50, 3)) @ rng.gamma(0.5, size=(3, 30)))
Y[0] += 1
OPTIONS = {"n_components": 3, "random_state": 0, "n_jobs": 1, "tol": 1e-9}


@pytest.mark.parametrize("c", [1e-2, 1.0, math.inf])
def test_fit_is_fit_log1p_nmf(c):
    model = Log1pNMF(c=c, **OPTIONS).fit(Y)
    fit = fit_log1p_nmf(Y, c=c, **OPTIONS)
    np.testing.assert_array_equal(model.components_, fit.factors.T)
    np.testing.assert_array_equal(model.loadings_, fit.loadings)
    assert model.log_likelihood_ == fit.log_likelihood
    assert (model.n_iter_, model.converged_, model.kkt_residual_) == (
        fit.n_iter,
        fit.converged,
        fit.kkt_residual,
    )
    np.testing.assert_array_equal(model.history_["objective"], fit.history["objective"])
    np.testing.assert_array_equal(Log1pNMF(c=c, **OPTIONS).fit_transform(Y), fit.loadings)


@pytest.mark.parametrize("c", [1e-2, 1.0, math.inf])
@pytest.mark.parametrize("l1", [0.0, 1.0])
def test_transform_of_the_training_samples_gives_their_loadings(c, l1):
    model = Log1pNMF(c=c, l1=l1, **OPTIONS).fit(Y)
    before = model.components_.copy()
    found = model.transform(sparse.csr_array(Y))
    np.testing.assert_array_equal(model.components_, before)
    eta = model.loadings_ @ before
    np.testing.assert_allclose(found @ before, eta, rtol=2e-2, atol=2e-3 * eta.max())


def test_new_samples_are_measured_against_the_training_mean():
    model = Log1pNMF(c=math.inf, **OPTIONS).fit(Y)
    one = model.transform(Y[:1])
    together = model.transform(Y[:7])
    np.testing.assert_allclose(one[0], together[0], rtol=1e-9)
    doubled = model.transform(2 * Y[:1])  # twice the counts, twice the size factor
    np.testing.assert_allclose(doubled, one, rtol=1e-4, atol=1e-8)


def test_features_unseen_in_training_are_left_out():
    y = Y.copy()
    y[:, 4] = 0
    model = Log1pNMF(size_factors="none", **OPTIONS).fit(y)
    np.testing.assert_array_equal(model.components_[:, 4], 0.0)
    with_counts = y.copy()
    with_counts[:, 4] = 100
    np.testing.assert_allclose(model.transform(with_counts), model.transform(y), rtol=1e-9)


def test_given_size_factors_are_needed_again():
    sizes = np.linspace(0.5, 2.0, len(Y))
    model = Log1pNMF(size_factors=sizes, **OPTIONS).fit(Y)
    with pytest.raises(ValueError, match=r"pass transform\(X, size_factors=...\)"):
        model.transform(Y[:3])
    assert model.transform(Y[:3], size_factors=sizes[:3]).shape == (3, 3)


def test_names_and_shapes():
    frame = pd.DataFrame(Y, columns=[f"gene{j}" for j in range(30)])
    model = Log1pNMF(**OPTIONS).fit(frame)
    np.testing.assert_array_equal(model.feature_names_in_, frame.columns)
    assert model.n_features_in_ == 30
    assert list(model.get_feature_names_out()) == ["log1pnmf0", "log1pnmf1", "log1pnmf2"]
    with pytest.raises(ValueError, match="30 features"):
        Log1pNMF(**OPTIONS).fit(Y).transform(Y[:, :10])


def test_before_and_after_cloning():
    model = Log1pNMF(n_components=2, c=3.0, l1=0.5)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        model.transform(Y)


def test_nothing_to_learn_from():
    model = Log1pNMF(**OPTIONS).fit(np.zeros((5, 30)))
    np.testing.assert_array_equal(model.transform(Y), 0.0)
