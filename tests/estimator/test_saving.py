"""One file keeps a model: every bit of it, no pickle."""

import math

import numpy as np
import pandas as pd
import pytest

from log1pnmf import Log1pNMF

rng = np.random.default_rng(0)
Y = rng.poisson(rng.gamma(0.5, 2.0, size=(40, 3)) @ rng.gamma(0.5, size=(3, 20)) + 0.1)
OPTIONS = {"n_components": 3, "random_state": 0, "n_jobs": 1, "tol": 1e-7}
FRAME = pd.DataFrame(Y, columns=[f"Gen {j} ä" for j in range(20)])


@pytest.mark.parametrize(("c", "normalize"), [(1.0, "factor_sum"), (math.inf, "max")])
def test_everything_comes_back(c, normalize, tmp_path):
    model = Log1pNMF.of(Log1pNMF(c=c, **OPTIONS).fit(FRAME).fit_.normalized(normalize))
    model.save(tmp_path / "model")
    again = Log1pNMF.load(tmp_path / "model")
    np.testing.assert_equal(again.fit_.to_parts(), model.fit_.to_parts())
    assert again.summary() == model.summary()
    np.testing.assert_array_equal(again.transform(FRAME), model.transform(FRAME))
    assert again.score(FRAME) == model.score(FRAME)
    assert again.feature_names_in_.tolist() == FRAME.columns.tolist()
    assert again.get_params() == model.get_params()
    assert (again.fit_.settings.engine, again.engine) == (
        "native",
        "auto",
    )  # that of the fit need not be here
    model.fit_.save(tmp_path / "fit")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "fit").read_bytes()


def test_parameters_of_every_kind(tmp_path):
    sizes = np.linspace(0.5, 2.0, len(Y))
    given = {"size_factors": sizes, "init": (np.ones((40, 3)), rng.uniform(size=(20, 3)))}
    asked = {"n_components": np.int64(3), "c": np.float64(2.0), "likelihood": "taylor", "tol": 1e-3}
    Log1pNMF(**asked, **given, random_state=np.random.default_rng(3)).fit(Y).save(tmp_path / "model.npz")
    again = Log1pNMF.load(tmp_path / "model.npz").get_params()
    np.testing.assert_array_equal(again["size_factors"], sizes)
    # init and random numbers are not saved, as the docstring says
    assert {name: again[name] for name in (*asked, "init", "random_state")} == {
        **asked,
        "init": "auto",
        "random_state": None,
    }
