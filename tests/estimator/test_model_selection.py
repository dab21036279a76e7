"""Choosing c and the number of factors with scikit-learn's tools."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from log1pnmf import Log1pNMF
from log1pnmf.analysis import heldout_score
from log1pnmf.model.noise import ShiftedLog

OPTIONS = {"size_factors": "none", "init": "nndsvd", "tol": 1e-6, "random_state": 0, "n_jobs": 1}


def simulated(c, seed, *, mean=4.0):
    """Draw counts of 150 samples in which three parts overlap, with a given mean."""
    rng = np.random.default_rng(seed)
    loadings = rng.uniform(size=(150, 3)) * (rng.random((150, 3)) < 0.8)
    b, link = loadings @ rng.gamma(0.7, size=(60, 3)).T, ShiftedLog(c)
    log_scale = brentq(lambda power: math.log(link.inverse(math.exp(power) * b).mean() / mean), -10.0, 2.5)
    return rng.poisson(link.inverse(math.exp(log_scale) * b))


def test_grid_search_over_the_number_of_factors_in_processes():
    y = simulated(1.0, 0)
    grid = {"n_components": [1, 3], "c": [1.0, math.inf]}
    search = GridSearchCV(Log1pNMF(**OPTIONS), grid, cv=2, n_jobs=2).fit(y)
    assert search.best_params_ == {"n_components": 3, "c": 1.0}
    alone = GridSearchCV(Log1pNMF(**OPTIONS), grid, cv=2).fit(y)
    np.testing.assert_array_equal(search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"])
    np.testing.assert_array_equal(search.best_estimator_.components_, alone.best_estimator_.components_)


@pytest.mark.parametrize("overdispersion", [0.0, 0.3])
def test_the_number_of_factors_is_found_with_a_score_that_does_not_grow_with_it(overdispersion):
    """`score` takes the most factors there are; `heldout_score` about as many as there are, noise or not."""
    rng = np.random.default_rng(0)
    loadings = rng.dirichlet([0.3] * 4, 240)
    means = 4.0 * loadings @ (rng.gamma(0.5, size=(80, 4)) * 2.0).T
    if overdispersion:
        means = means * rng.gamma(1.0 / overdispersion, overdispersion, means.shape)
    y, grid = rng.poisson(means), {"n_components": [2, 4, 8]}
    model = Log1pNMF(c=math.inf, **{**OPTIONS, "tol": 1e-4})
    found = GridSearchCV(model, grid, scoring=heldout_score, cv=3).fit(y)
    assert found.best_params_ == {"n_components": 4}
    assert GridSearchCV(model, grid, cv=3).fit(y).best_params_["n_components"] > 4


def test_the_score_of_a_pipeline_is_that_of_its_last_step():
    y = simulated(1.0, 0)
    model = Log1pNMF(2, **OPTIONS)
    pipeline = make_pipeline(FunctionTransformer(lambda x: x[:, ::-1]), model).fit(y[:100])
    assert heldout_score(pipeline, y[100:]) == heldout_score(model, y[100:, ::-1])
    with pytest.raises(ValueError, match="test_fraction must be between 0 and 1"):
        heldout_score(model, y, test_fraction=1.0)


# The data of these checks are fractions, often with a single feature or sample.
@pytest.mark.filterwarnings("ignore:counts has .* non-integer value:UserWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([Log1pNMF(n_jobs=1)])
def test_scikit_learn(estimator, check):
    check(estimator)
