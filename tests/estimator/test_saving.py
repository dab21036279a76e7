"""One file keeps a model: every bit of it, no pickle."""

import math

import numpy as np
import pandas as pd
import pytest

from log1pnmf import Fit, Log1pNMF

rng = np.random.default_rng(0)
Y = rng.poisson(rng.gamma(0.5, 2.0, size=(40, 3)) @ rng.gamma(0.5, size=(3, 20)) + 0.1)
OPTIONS = {"n_components": 3, "random_state": 0, "n_jobs": 1, "tol": 1e-7}
FITTED = ("components_", "loadings_", "log_likelihood_", "approximate_objective_", "n_iter_", "converged_")
FITTED += ("kkt_residual_", "n_features_in_")


def same(one, other):
    for name in FITTED:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.history_.keys() == other.history_.keys()
    for name, column in one.history_.items():
        np.testing.assert_array_equal(column, other.history_[name])
        assert column.dtype == other.history_[name].dtype
    assert one.fit_.settings == other.fit_.settings
    assert one.fit_.messages == other.fit_.messages
    assert one.certificate_ == other.certificate_
    assert one.summary() == other.summary()
    counts = pd.DataFrame(Y, columns=getattr(one, "feature_names_in_", None))
    np.testing.assert_array_equal(one.transform(counts), other.transform(counts))
    assert one.score(counts) == other.score(counts)


@pytest.mark.parametrize(("c", "normalize"), [(1.0, "factor_sum"), (math.inf, "max")])
def test_everything_comes_back(c, normalize, tmp_path):
    names = [f"Gen {j} ä" for j in range(20)]
    model = Log1pNMF(c=c, **OPTIONS).fit(pd.DataFrame(Y, columns=names))
    model = Log1pNMF.of(model.fit_.normalized(normalize)).set_params(n_jobs=1)
    model.save(tmp_path / "model")
    again = Log1pNMF.load(tmp_path / "model")
    same(model, again)
    assert again.feature_names_in_.tolist() == names
    assert again.feature_names_in_.dtype == model.feature_names_in_.dtype
    assert again.get_params() == {**model.get_params(), "n_jobs": None}
    assert again.fit_.settings.engine == "native"
    assert again.engine == "auto"  # that of the fit need not be here


def test_parameters_of_every_kind(tmp_path):
    sizes = np.linspace(0.5, 2.0, len(Y))
    start = (np.ones((40, 3)), rng.uniform(size=(20, 3)))
    model = Log1pNMF(
        n_components=np.int64(3),
        c=np.float64(2.0),
        likelihood="taylor",
        size_factors=sizes,
        init=start,
        max_iter=30,
        tol=1e-3,
        random_state=np.random.default_rng(3),
    ).fit(Y)
    model.save(tmp_path / "model.npz")
    again = Log1pNMF.load(tmp_path / "model.npz").get_params()
    assert (again["n_components"], again["c"], again["likelihood"]) == (3, 2.0, "taylor")
    np.testing.assert_array_equal(again["size_factors"], sizes)
    # not saved, as the docstring says
    assert again["init"] == "auto"
    assert again["random_state"] is None


def test_a_model_is_kept_as_its_fit(tmp_path):
    model = Log1pNMF(**OPTIONS).fit(Y)
    model.save(tmp_path / "model.npz")
    model.fit_.save(tmp_path / "fit.npz")
    assert (tmp_path / "model.npz").read_bytes() == (tmp_path / "fit.npz").read_bytes()
    np.testing.assert_array_equal(Fit.load(tmp_path / "model.npz").loadings, model.loadings_)
    same(Log1pNMF.of(model.fit_), Log1pNMF.of(tmp_path / "fit.npz"))
