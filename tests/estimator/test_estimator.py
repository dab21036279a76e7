"""The scikit-learn estimator: fit, new samples, warm starts, and its place among other tools."""

import math
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.starts import check_start
from log1pnmf.model.objective import negative_log_likelihood
from log1pnmf.model.problem import Problem

rng = np.random.default_rng(0)
Y = rng.poisson(rng.gamma(0.5, 2.0, size=(50, 3)) @ rng.gamma(0.5, size=(3, 30)))
Y[0] += 1
OPTIONS = {"n_components": 3, "random_state": 0, "n_jobs": 1, "tol": 1e-9}
NAMES = np.array([f"gene{j}" for j in range(30)], dtype=object)


def frame(y=Y):
    return pd.DataFrame(y, columns=NAMES)


class TestFit:
    @pytest.mark.parametrize(("c", "likelihood"), [(1e-2, "auto"), (1.0, "chebyshev")])
    def test_is_fit_log1p_nmf(self, c, likelihood):
        model = Log1pNMF(c=c, likelihood=likelihood, **OPTIONS).fit(Y)
        fit = fit_log1p_nmf(Y, c=c, likelihood=likelihood, **OPTIONS)
        np.testing.assert_array_equal(model.components_, fit.factors.T)
        np.testing.assert_array_equal(model.loadings_, fit.loadings)
        assert model.log_likelihood_ == fit.log_likelihood
        assert model.approximate_objective_ == (fit.objective if likelihood == "chebyshev" else None)
        assert (model.n_iter_, model.converged_, model.kkt_residual_) == (
            max(fit.n_iter, 1),  # scikit-learn asks for one at least
            fit.converged,
            fit.kkt_residual,
        )
        np.testing.assert_array_equal(model.history_["objective"], fit.history["objective"])
        again = Log1pNMF(c=c, **OPTIONS)
        np.testing.assert_array_equal(again.fit_transform(Y), again.loadings_)


class TestNewSamples:
    @pytest.mark.parametrize(("c", "l1"), [(1e-2, 0.0), (1.0, 1.0), (math.inf, 0.0)])
    def test_the_training_samples_have_their_loadings(self, c, l1):
        model = Log1pNMF(c=c, l1=l1, **{**OPTIONS, "tol": 1e-14, "max_iter": 20000}).fit(Y)
        assert model.converged_
        before = model.components_.copy()
        found = model.transform(sparse.csr_array(Y), prior=0)
        np.testing.assert_array_equal(model.components_, before)
        np.testing.assert_allclose(found, model.loadings_, rtol=1e-4, atol=1e-4 * model.loadings_.max())

    def test_are_measured_against_the_training_mean(self):
        model = Log1pNMF(c=math.inf, **OPTIONS).fit(Y)
        one = model.transform(Y[:1])
        together = model.transform(Y[:7])
        np.testing.assert_allclose(one[0], together[0], rtol=1e-9)
        one = model.transform(Y[:1], prior=0)
        doubled = model.transform(2 * Y[:1], prior=0)  # twice the counts, twice the size factor
        np.testing.assert_allclose(doubled, one, rtol=1e-4, atol=1e-8)

    def test_features_unseen_in_training_are_left_out(self):
        y = Y.copy()
        y[:, 4] = 0
        model = Log1pNMF(size_factors="none", **OPTIONS).fit(y)
        np.testing.assert_array_equal(model.components_[:, 4], 0.0)
        with_counts = y.copy()
        with_counts[:, 4] = 100
        np.testing.assert_allclose(model.transform(with_counts), model.transform(y), rtol=1e-9)
        assert model.score(with_counts) == pytest.approx(model.score(y), rel=1e-12)

    def test_means_and_samples_without_counts(self):
        model = Log1pNMF(c=0.5, **OPTIONS).fit(Y)
        np.testing.assert_array_equal(model.transform(np.zeros((2, 30))), 0.0)
        fit = model.fit_
        expected = 0.5 * np.expm1(fit.loadings @ fit.factors.T)
        np.testing.assert_allclose(model.inverse_transform(model.loadings_), expected, rtol=1e-9)
        np.testing.assert_allclose(
            model.inverse_transform(model.loadings_, fit.size_factors),
            fit.size_factors[:, None] * expected,
            rtol=1e-9,
        )

    @pytest.mark.parametrize("c", [1.0, math.inf])
    def test_score_is_the_exact_log_likelihood_per_entry(self, c):
        model = Log1pNMF(c=c, **OPTIONS).fit(Y[:40])
        new = Y[40:]
        sizes = new.sum(axis=1) / Y[:40].sum(axis=1).mean()
        sizes[sizes == 0] = 1.0
        problem = Problem(Counts.from_any(new), sizes, model.fit_.link)
        loadings, factors = model.transform(new, prior=0), model.components_.T / problem.link.alpha
        value = -negative_log_likelihood(problem, loadings, factors)
        assert model.score(new) == pytest.approx(value / new.size, rel=1e-9)


class TestNames:
    def test_are_remembered(self):
        for named in (Counts.from_any(frame()), frame()):
            model = Log1pNMF(**OPTIONS).fit(named)
            np.testing.assert_array_equal(model.feature_names_in_, NAMES)
        assert model.n_features_in_ == 30
        assert list(model.get_feature_names_out()) == ["log1pnmf0", "log1pnmf1", "log1pnmf2"]
        renamed = Log1pNMF.of(model.fit_).rename_factors({"k1": "rare"})
        assert list(renamed.get_feature_names_out()) == ["k0", "rare", "k2"]

    def test_features_may_come_in_any_order(self):
        model = Log1pNMF(**OPTIONS).fit(frame())
        shuffled = frame().iloc[:, rng.permutation(30)]
        np.testing.assert_array_equal(model.transform(shuffled), model.transform(frame()))
        assert model.score(shuffled) == model.score(frame())
        np.testing.assert_array_equal(
            model.transform(Counts.from_any(shuffled)), model.transform(Counts.from_any(frame()))
        )

    def test_what_is_missing_or_unknown_is_listed(self):
        model = Log1pNMF(**OPTIONS).fit(frame())
        with pytest.raises(ValueError, match=r"(?s)unseen at fit time:\n- other\n.*now missing:\n- gene2\n"):
            model.transform(frame().rename(columns={"gene2": "other"}))
        with pytest.raises(ValueError, match=r"now missing:\n(- gene\d+\n){10}- and 10 more\n.*in any order"):
            model.score(frame().iloc[:, :10])

    def test_names_that_occur_twice(self):
        with pytest.raises(ValueError, match=r"1 feature name that occurs more than once \(first 'gene1'\)"):
            Log1pNMF(**OPTIONS).fit(frame().rename(columns={"gene2": "gene1"}))
        names = np.where(NAMES == "gene2", "gene1", NAMES)
        counts = Counts(Counts.from_any(Y).by_row, feature_names=names)
        with pytest.warns(UserWarning, match=r"1 feature name occurs more than once \(first 'gene1'\)"):
            model = Log1pNMF(**OPTIONS).fit(counts)
        assert model.transform(counts).shape == (50, 3)
        with pytest.raises(ValueError, match=r"now missing:|unseen at fit time:\n- gene2"):
            model.transform(frame())
        with pytest.raises(ValueError, match=r"twice can only be used in the same order as in fit:\n- gene1"):
            model.transform(Counts(counts.by_row, feature_names=names[::-1]))

    def test_names_on_one_side_only(self):
        with pytest.warns(UserWarning, match="fitted without feature names"):
            Log1pNMF(**OPTIONS).fit(Y).transform(frame())
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            Log1pNMF(**OPTIONS).fit(frame()).transform(Y)


class TestStartFromAFit:
    def test_more_factors_start_where_fewer_ended(self):
        model = Log1pNMF(c=0.5, l1=1.0, **OPTIONS).fit(Y)
        before = model.fit_.objective
        model.set_params(n_components=4, init=model.fit_).fit(Y)
        assert model.history_["objective"][0] == pytest.approx(before, rel=1e-5)
        assert model.fit_.objective < before
        assert model.components_.shape == (4, 30)

    def test_fewer_factors_are_the_largest(self):
        stop = [lambda iteration: iteration.index == 2]
        model = Log1pNMF(likelihood="chebyshev", **OPTIONS, init="rank1").fit(Y, callbacks=stop)
        kept = model.loadings_[:, :2]
        model.set_params(n_components=2, init=model.fit_).fit(Y, callbacks=stop)
        assert model.components_.shape == (2, 30)
        for k in range(2):
            assert max(np.corrcoef(kept[:, k], model.loadings_.T)[0, 1:]) > 0.9

    def test_other_samples_start_from_the_factors(self):
        model = Log1pNMF(**OPTIONS).fit(Y[:40])
        expected = model.transform(Y, prior=0) @ model.components_
        model.set_params(max_iter=8, tol=1.0, init=model.fit_).fit(Y)
        assert model.loadings_.shape == (50, 3)
        np.testing.assert_allclose(model.loadings_ @ model.components_, expected, atol=0.3 * expected.max())

    def test_other_features_are_refused(self):
        model = Log1pNMF(**OPTIONS).fit(frame())
        model.set_params(init=model.fit_)
        with pytest.raises(ValueError, match=r"fit to start from has 30 features, but the counts have 10; "):
            model.fit(Y[:, :10])
        with pytest.raises(ValueError, match=r"\(column 0 was 'gene0', now is 'gene29'\); .* same order"):
            model.fit(frame().iloc[:, ::-1])


class TestAmongOthers:
    def test_clone(self):
        model = Log1pNMF(n_components=2, c=3.0, l1=0.5)
        assert clone(model).get_params() == model.get_params()
        assert repr(Log1pNMF(n_components=13, c=math.inf)) == "Log1pNMF(c=inf, n_components=13)"
        with pytest.raises(NotFittedError):
            model.transform(Y)

    def test_pickle_and_joblib(self, tmp_path):
        model = Log1pNMF(**OPTIONS).fit(frame())
        joblib.dump(model, tmp_path / "model.joblib")
        for again in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
            np.testing.assert_array_equal(again.transform(frame()), model.transform(frame()))
            assert again.summary() == model.summary()

    def test_pipeline(self):
        model = Log1pNMF(**OPTIONS)
        piped = make_pipeline(FunctionTransformer(sparse.csr_array), model)
        np.testing.assert_array_equal(piped.fit_transform(Y), Log1pNMF(**OPTIONS).fit_transform(Y))
        assert piped.score(Y) == model.score(Y)

    def test_pandas_output(self):
        model = Log1pNMF(**OPTIONS).set_output(transform="pandas")
        indexed = frame().set_index(np.array([f"cell{i}" for i in range(50)]))
        for out in (model.fit_transform(indexed), model.transform(indexed)):
            assert list(out.columns) == ["log1pnmf0", "log1pnmf1", "log1pnmf2"]
            assert list(out.index) == list(indexed.index)
        assert model.inverse_transform(out).shape == Y.shape

    def test_summary(self):
        model = Log1pNMF(c=1.0, l1=0.5, **OPTIONS).fit(frame())
        text = model.summary(n_top=3)
        assert "50 samples x 30 features, 3 factors, c = 1" in text
        for words in ("converged       yes", "last gain", "KKT residual", "exact log-likelihood", "l1 = 0.5"):
            assert words in text
        factors = text.split("Factors")[1].splitlines()[1:4]
        assert all(line.count("gene") <= 3 for line in factors)
        assert sum(line.count("gene") for line in factors) > 3
        assert "G7" in model.summary(n_top=30, feature_names=[f"G{j}" for j in range(30)])
        short = Log1pNMF(max_iter=2, **OPTIONS)
        with pytest.warns(Warning, match="not converged"):
            short.fit(Y)
        assert "still gaining" in short.summary()
        assert "not converged after max_iter=2" in short.summary()


@pytest.mark.parametrize(("c", "normalize"), [(1.0, "factor_sum"), (math.inf, "max")])
def test_everything_comes_back(c, normalize, tmp_path):
    table = frame().add_suffix(" ä")
    model = Log1pNMF.of(Log1pNMF(c=c, **OPTIONS).fit(table).fit_.normalized(normalize))
    model.save(tmp_path / "model")
    again = Log1pNMF.load(tmp_path / "model")
    np.testing.assert_equal(again.fit_.to_parts(), model.fit_.to_parts())
    assert again.summary() == model.summary()
    np.testing.assert_array_equal(again.transform(table), model.transform(table))
    assert again.score(table) == model.score(table)
    assert again.feature_names_in_.tolist() == table.columns.tolist()
    assert again.get_params() == model.get_params()
    assert (again.fit_.settings.engine, again.engine) == ("native", "auto")  # that of the fit may not be here
    model.fit_.save(tmp_path / "fit")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "fit").read_bytes()


def test_parameters_of_every_kind(tmp_path):
    sizes = np.linspace(0.5, 2.0, len(Y))
    given = {"size_factors": sizes, "init": (np.ones((50, 3)), rng.uniform(size=(30, 3)))}
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


OTHER = pd.DataFrame(rng.poisson(1.0, size=(15, 8)), columns=[f"h{j}" for j in range(8)])
QUICK = {**OPTIONS, "tol": 1e-4}


class StopError(Exception):
    pass


def fail(error):
    def work(*args, **options):
        raise error

    return work


STAGES = {
    "input": (ValueError, {}, -OTHER, None),
    "names": (TypeError, {}, OTHER.rename(columns={"h0": 0}), None),
    "start": (ValueError, {"init": (np.ones((2, 2)), np.ones((2, 2)))}, OTHER, None),
    "callback": (StopError, {}, OTHER, None),
    "Ctrl-C at the start": (KeyboardInterrupt, {}, OTHER, "half_step"),
    "memory, at the end": (MemoryError, {"likelihood": "chebyshev"}, OTHER, "loss"),
}
"""What is raised, parameters, counts, and where the engine fails."""


@pytest.mark.parametrize("stage", STAGES)
def test_a_failed_refit_changes_nothing(stage, tmp_path, monkeypatch):
    model = Log1pNMF(**QUICK).fit(frame())
    model.save(tmp_path / "before")
    loadings, fitted = model.transform(frame()), {k: v for k, v in vars(model).items() if k.endswith("_")}
    error, parameters, counts, method = STAGES[stage]
    if method is not None:
        monkeypatch.setattr(NativeEngine, method, fail(error()))
    with pytest.raises(error):
        model.set_params(**parameters).fit(counts, callbacks=[fail(error())] if error is StopError else ())
    monkeypatch.undo()
    model.set_params(**Log1pNMF(**QUICK).get_params())
    assert {k: v for k, v in vars(model).items() if k.endswith("_")}.keys() == fitted.keys()
    assert all(getattr(model, name) is value for name, value in fitted.items())
    np.testing.assert_array_equal(model.transform(frame()), loadings)
    model.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


def test_a_refit_leaves_nothing_of_the_fit_before():
    model = Log1pNMF(**QUICK).fit(frame()).fit(OTHER.to_numpy())
    fresh = Log1pNMF(**QUICK).fit(OTHER.to_numpy())
    assert vars(model).keys() == vars(fresh).keys()
    assert model.n_features_in_ == 8
    np.testing.assert_array_equal(model.components_, fresh.components_)


def test_a_failed_first_fit_leaves_an_unfitted_model():
    model = Log1pNMF(**QUICK)
    before = dict(vars(model))
    with pytest.raises(StopError):
        model.fit(frame(), callbacks=[fail(StopError())])
    assert vars(model) == before


def test_shown_loadings_and_components_are_a_start():
    options = {**QUICK, "likelihood": "exact"}
    model = Log1pNMF(**{**options, "tol": 1e-8}).fit(Y)
    for start in ((model.loadings_, model.components_), (model.loadings_, model.components_.T)):
        again = Log1pNMF(**options, init=start).fit(Y)
        assert again.n_iter_ <= 5
        assert again.log_likelihood_ == pytest.approx(model.log_likelihood_, rel=1e-6)


def test_factors_of_as_many_features_as_factors_are_features_by_factors():
    factors = rng.uniform(0.1, 1.0, size=(3, 3))
    np.testing.assert_array_equal(check_start((np.ones((4, 3)), factors), (4, 3), 3)[1], factors)
