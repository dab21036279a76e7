"""Size factors on their way through pipelines and cross-validation."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline

from log1pnmf import Log1pNMF

rng = np.random.default_rng(0)
GROUPS = np.arange(60) % 2
SIZES = rng.uniform(0.5, 2.0, size=60)
RATES = np.where((np.arange(12) < 6) == GROUPS[:, None], 3.0, 0.5)
Y = rng.poisson(SIZES[:, None] * RATES)
OPTIONS = {"n_components": 2, "random_state": 0, "n_jobs": 1, "tol": 1e-6}


@pytest.fixture(autouse=True)
def _routing():
    with config_context(enable_metadata_routing=True):
        yield


def test_fit_takes_size_factors():
    model = Log1pNMF(**OPTIONS).fit(Y, size_factors=SIZES)
    same = Log1pNMF(**OPTIONS, size_factors=SIZES).fit(Y)
    np.testing.assert_array_equal(model.components_, same.components_)
    np.testing.assert_array_equal(model.fit_.size_factors, SIZES)
    assert model.get_params()["size_factors"] == "total"
    with pytest.raises(ValueError, match="size_factors are needed"):
        model.transform(Y)
    loadings = Log1pNMF(**OPTIONS).fit_transform(Y, size_factors=SIZES)
    np.testing.assert_array_equal(loadings, model.loadings_)
    model.set_params(init=model.fit_).fit(Y, size_factors=SIZES)
    np.testing.assert_array_equal(model.fit_.size_factors, SIZES)
    assert model.fit_.objective <= same.fit_.objective * (1 + 1e-9)


@pytest.mark.parametrize("asked", [True, False])
def test_a_pipeline_passes_them_on(asked):
    model = Log1pNMF(**OPTIONS)
    pipeline = make_pipeline(
        model.set_transform_request(size_factors=True) if asked else model, LogisticRegression()
    )
    pipeline.fit(Y, GROUPS, size_factors=SIZES)
    model = Log1pNMF(**OPTIONS).fit(Y, size_factors=SIZES)
    np.testing.assert_array_equal(pipeline[0].components_, model.components_)
    direct = LogisticRegression().fit(model.loadings_, GROUPS)
    expected = direct.predict_proba(model.transform(Y, size_factors=SIZES))
    np.testing.assert_array_equal(pipeline.predict_proba(Y, size_factors=SIZES), expected)
    assert pipeline.score(Y, GROUPS, size_factors=SIZES) > 0.9
    with pytest.raises(ValueError, match="size_factors are needed"):
        pipeline.predict(Y)


def test_cross_validation_divides_them_among_the_folds():
    pipeline = make_pipeline(Log1pNMF(**OPTIONS), LogisticRegression())
    done = cross_validate(pipeline, Y, GROUPS, cv=2, params={"size_factors": SIZES}, return_estimator=True)
    assert (done["test_score"] > 0.8).all()
    seen = np.concatenate([one[0].fit_.size_factors for one in done["estimator"]])
    np.testing.assert_array_equal(np.sort(seen), np.sort(SIZES))


def test_cross_validation_divides_batches_too():
    """Those who know their effects predict better."""
    counts, batch = np.where(GROUPS[:, None] == np.arange(12) % 2, 6, 1) * Y, GROUPS
    model = Log1pNMF(**{**OPTIONS, "tol": 1e-3})
    known, unknown = (
        cross_validate(model, counts, cv=2, **more) for more in ({"params": {"batch": batch}}, {})
    )
    assert (known["test_score"] > unknown["test_score"]).all()


def test_only_one_of_the_two_is_a_conflict_that_scikit_learn_explains():
    model = Log1pNMF(**OPTIONS).set_fit_request(size_factors=False)
    with pytest.raises(ValueError, match=r"(?i)conflicting metadata requests"):
        make_pipeline(model, LogisticRegression()).fit(Y, GROUPS, size_factors=SIZES)
