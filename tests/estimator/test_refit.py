"""A fit that fails leaves the earlier one as it was; one that succeeds leaves nothing of it."""

import numpy as np
import pandas as pd
import pytest

from log1pnmf import Log1pNMF
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.starts import check_start

rng = np.random.default_rng(0)
Y = rng.poisson(rng.gamma(0.5, 2.0, size=(40, 3)) @ rng.gamma(0.5, size=(3, 20)) + 0.1)
FRAME = pd.DataFrame(Y, columns=[f"g{j}" for j in range(20)])
OTHER = pd.DataFrame(rng.poisson(1.0, size=(15, 8)), columns=[f"h{j}" for j in range(8)])
OPTIONS = {"n_components": 3, "random_state": 0, "n_jobs": 1, "tol": 1e-4}


class StopError(Exception):
    pass


def fail(error):
    def work(*args, **options):
        raise error

    return work


class Failing:
    """Engines that fail at a half-step, or where the exact log-likelihood is computed after the last one."""

    def __init__(self, error, method):
        self.error, self.method = error, method

    def supports(self, problem, row_solver):
        return None

    def __call__(self, problem, n_threads, *, verbose=0):
        engine = NativeEngine(problem, n_threads)
        if self.method == "half_step" or problem.zeros is None:
            setattr(engine, self.method, fail(self.error))
        return engine


STAGES = {
    "input": ({}, -OTHER, ()),
    "names": ({}, OTHER.rename(columns={"h0": 0}), ()),
    "start": ({"init": (np.ones((2, 2)), np.ones((2, 2)))}, OTHER, ()),
    "callback": ({}, OTHER, [fail(StopError())]),
    "Ctrl-C at the start": ({"engine": Failing(KeyboardInterrupt(), "half_step")}, OTHER, ()),
    "memory": ({"likelihood": "chebyshev", "engine": Failing(MemoryError(), "loss")}, OTHER, ()),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_failed_refit_changes_nothing(stage, tmp_path):
    model = Log1pNMF(**OPTIONS).fit(FRAME)
    model.save(tmp_path / "before")
    loadings, fitted = model.transform(FRAME), {k: v for k, v in vars(model).items() if k.endswith("_")}
    parameters, counts, callbacks = STAGES[stage]
    with pytest.raises((ValueError, TypeError, StopError, KeyboardInterrupt, MemoryError)):
        model.set_params(**parameters).fit(counts, callbacks=callbacks)
    model.set_params(**Log1pNMF(**OPTIONS).get_params())
    assert {k: v for k, v in vars(model).items() if k.endswith("_")}.keys() == fitted.keys()
    assert all(getattr(model, name) is value for name, value in fitted.items())
    np.testing.assert_array_equal(model.transform(FRAME), loadings)
    model.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


def test_a_refit_leaves_nothing_of_the_fit_before():
    model = Log1pNMF(**OPTIONS).fit(FRAME).fit(OTHER.to_numpy())
    fresh = Log1pNMF(**OPTIONS).fit(OTHER.to_numpy())
    assert vars(model).keys() == vars(fresh).keys()
    assert model.n_features_in_ == 8
    np.testing.assert_array_equal(model.components_, fresh.components_)


def test_a_failed_first_fit_leaves_an_unfitted_model():
    model = Log1pNMF(**OPTIONS)
    before = dict(vars(model))
    with pytest.raises(StopError):
        model.fit(FRAME, callbacks=[fail(StopError())])
    assert vars(model) == before


def test_shown_loadings_and_components_are_a_start():
    options = {**OPTIONS, "likelihood": "exact"}
    model = Log1pNMF(**{**options, "tol": 1e-8}).fit(Y)
    for start in ((model.loadings_, model.components_), (model.loadings_, model.components_.T)):
        again = Log1pNMF(**options, init=start).fit(Y)
        assert again.n_iter_ <= 5
        assert again.log_likelihood_ == pytest.approx(model.log_likelihood_, rel=1e-6)


def test_factors_of_as_many_features_as_factors_are_features_by_factors():
    factors = rng.uniform(0.1, 1.0, size=(3, 3))
    np.testing.assert_array_equal(check_start((np.ones((4, 3)), factors), (4, 3), 3)[1], factors)
