"""What the estimator refuses: one type of error each, words that help, and nothing done before."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse
from sklearn.exceptions import NotFittedError

from log1pnmf import Log1pNMF

rng = np.random.default_rng(0)
Y = rng.poisson(2.0, size=(12, 7))
GOOD = {"n_components": 2, "tol": 1e-4, "random_state": 0, "n_jobs": 1}


def started(*args):
    raise AssertionError("the fit has started")


NO_FIT = {**GOOD, "init": started}
"""Parameters with which any work is an error."""


PARAMETERS = [
    *[({"n_components": k}, ValueError, f"n_components must be at least 1, got {k}") for k in (0, -1)],
    *[({"n_components": k}, TypeError, f"must be a whole number, got {k!r}") for k in (2.5, "a", None, True)],
    *[({"c": c}, ValueError, rf"c must be positive or inf, got {float(c)}") for c in (0, -1, np.nan)],
    *[({"c": c}, TypeError, rf"c must be a number \(positive or inf\), got {c!r}") for c in ("x", None)],
    ({"likelihood": "exakt"}, ValueError, "one of 'auto', 'adaptive', 'exact', 'chebyshev', 'taylor', got"),
    ({"likelihood": np.ones(2)}, ValueError, "one of 'auto', .*got"),
    ({"engine": "gpu"}, ValueError, "one of 'auto', 'native', 'torch', 'streaming', got 'gpu'"),
    ({"row_solver": "lbfgs"}, ValueError, "row_solver must be one of 'newton', 'coordinate', got 'lbfgs'"),
    ({"max_iter": 0}, ValueError, "max_iter must be at least 1, got 0"),
    ({"max_iter": 10.0}, TypeError, "max_iter must be a whole number, got 10.0"),
    *[({"tol": t}, ValueError, f"finite and not negative, got {t}") for t in (-0.001, np.nan, np.inf)],
    ({"tol": "small"}, TypeError, "tol must be a number, got 'small'"),
    *[({"l1": one}, ValueError, f"l1 must be finite and not negative, got {one}") for one in (-1, np.inf)],
    ({"l1": "x"}, ValueError, "l1 must be one of 'auto' or a number, got 'x'"),
    ({"n_init": 0}, ValueError, "n_init must be at least 1, got 0"),
    ({"n_init": 2, "init": (np.ones((12, 2)), np.ones((7, 2)))}, ValueError, "n_init must be 1 with a given"),
    ({"n_jobs": 0}, ValueError, "n_jobs must not be 0; pass -1 for all cores"),
    ({"n_jobs": "all"}, TypeError, "n_jobs must be a whole number or None, got 'all'; pass -1"),
    *[({"random_state": s}, ValueError, f"None, a whole number .*, got {s!r}") for s in ("x", -1)],
    ({"verbose": -1}, ValueError, "verbose must be at least 0, got -1"),
    ({"size_factors": None}, ValueError, "size_factors must be one of 'total', .* or an array, got None"),
    ({"init": "nndsvda"}, ValueError, "got 'nndsvda'; did you mean 'nndsvd'"),
    ({"size_factors": "sum"}, ValueError, "must be one of 'total', 'fit', 'none' or an array, got 'sum'"),
    *[
        ({"init": one}, ValueError, f"'auto', 'rank1', 'random', 'nndsvd',? (or )?.loadings.*, got {said}")
        for one, said in ((None, None), ("svd", "'svd'"), (7, "int"), ([np.ones((12, 2))], "list"))
    ],
    ({"init": (np.ones((11, 2)), np.ones((7, 2)))}, ValueError, r"loadings must have shape \(12, 2\), got"),
    ({"init": (np.ones((12, 2)), np.ones((2, 6)))}, ValueError, r"\(7, 2\) or \(2, 7\), got \(2, 6\)"),
    ({"init": (np.ones((12, 2)), -np.ones((7, 2)))}, ValueError, "init factors must be .* got -1.0 at row 0"),
    ({"init": ("abc", np.ones((7, 2)))}, ValueError, "init loadings must be numbers, got str"),
]


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        ({"callbacks": 5}, TypeError, "callbacks must be a sequence of callables, got 5; pass a list"),
        ({"callbacks": ["stop"]}, TypeError, "callbacks must be a sequence of callables, got .*'stop'"),
        ({"checkpoint": 3}, TypeError, "checkpoint must be the path of a file, got 3"),
        ({"checkpoint": "nowhere/file"}, FileNotFoundError, r"checkpoint is .* no folder .*: make it"),
    ],
)
def test_what_belongs_to_one_run(run, error, message):
    with pytest.raises(error, match=message):
        Log1pNMF(**NO_FIT).fit(Y, **run)


@pytest.mark.parametrize(("given", "error", "message"), PARAMETERS, ids=str)
def test_parameters(given, error, message):
    with pytest.raises(error, match=message) as caught:
        Log1pNMF(**{**NO_FIT, **given}).fit(Y)
    assert caught.type is error


ASKED = {"transform": (Y,), "inverse_transform": (np.ones((1, 2)),), "score": (Y,), "summary": ()}
ASKED |= {"top_features": (), "save": ("nowhere.npz",), "get_feature_names_out": ()}


def test_before_fit_and_with_other_features():
    for name, arguments in ASKED.items():
        with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
            getattr(Log1pNMF(), name)(*arguments)
    model = Log1pNMF(**GOOD).fit(Y)
    for ask in (model.transform, model.score):
        with pytest.raises(ValueError, match="X has 5 features, but Log1pNMF is expecting 7 features"):
            ask(Y[:, :5])


@pytest.mark.parametrize(
    ("loadings", "sizes", "message"),
    [
        (np.ones((3, 5)), None, r"loadings must have 2 columns, one for each factor, got shape \(3, 5\)"),
        (-np.ones((3, 2)), None, "loadings must be finite and not negative, got -1.0 at row 0, column 0"),
        (np.full((3, 2), np.nan), None, "loadings contains NaN"),
        (np.ma.masked_array(np.ones((3, 2)), mask=np.eye(3, 2)), None, "loadings has .* masked"),
        (np.ones((3, 2)), np.ones(4), r"each of the 3 samples; got shape \(4,\)"),
        (np.ones((3, 2)), ["a", "b", "c"], "size_factors must be numbers, one for each of the 3 samples"),
    ],
)
def test_means_of_what(loadings, sizes, message):
    model = Log1pNMF(**GOOD).fit(Y)
    with pytest.raises(ValueError, match=message):
        model.inverse_transform(loadings, sizes)


numbers = st.one_of(
    st.integers(0, 5), st.sampled_from([-1, 0.5, np.nan, np.inf, 1e300, 1e100, 2**40, -np.inf, 1e-300])
)
matrices = st.one_of(
    hnp.arrays(np.int64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.integers(0, 9)),
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=numbers),
    hnp.arrays(
        st.sampled_from([np.int8, np.float32, np.bool_, np.complex128, "U2", object, "M8[s]"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    ),
    st.lists(st.lists(st.one_of(numbers, st.text(max_size=2), st.none()), max_size=3), max_size=3),
    st.sampled_from([None, 3, "counts", {}, pd.DataFrame(), pd.DataFrame(Y), sparse.coo_array(Y), Y[:, :0]]),
)
whole = st.one_of(st.integers(-2, 4), st.sampled_from([2.0, None, "a", True, np.int64(2)]))
real = st.one_of(st.floats(), st.sampled_from([1.0, np.inf, 0, None, "x", 1e-5, np.float32(2)]))
text = st.sampled_from(["auto", "exact", "adaptive", "chebyshev", "none", "max", "x", "", None, 3])
VALUES = {
    "n_components": whole,
    "c": real,
    "likelihood": text,
    "size_factors": st.one_of(text, hnp.arrays(np.float64, st.integers(0, 6), elements=numbers)),
    "init": st.sampled_from(["rank1", "random", "nndsvd", "x", None, (1, 2), (Y, Y)]),
    "n_init": whole,
    "l1": real,
    "row_solver": st.sampled_from(["newton", "coordinate", "x"]),
    "max_iter": st.one_of(st.integers(-1, 6), st.just(2.5)),
    "tol": real,
    "n_jobs": st.sampled_from([None, 1, 0, -1, "a"]),
    "engine": st.sampled_from(["auto", "native", "x"]),
    "random_state": st.sampled_from([0, None, "x", -1, np.random.default_rng(0)]),
}


@st.composite
def a_few_parameters(draw):
    """Draw at most three: with more of them, hardly any fit would be left."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=3, unique=True))
    return {name: draw(VALUES[name]) for name in names}


@given(X=matrices, parameters=a_few_parameters())
@settings(max_examples=60)
def test_anything_is_fitted_or_refused(X, parameters):
    model = Log1pNMF(**{"max_iter": 4, "n_jobs": 1, **parameters})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(X)
        except (ValueError, TypeError):
            event("refused")
            return
        event("fitted")
        loadings = model.transform(X, size_factors="none")
    for values in (model.components_, model.loadings_, loadings):
        assert np.isfinite(values).all()
        assert (values >= 0).all()


legal = st.one_of(st.integers(0, 5), st.sampled_from([0.5, 1e100, 2**40, 1e-300]))
new_samples = st.one_of(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 3), st.just(7)), elements=legal), matrices
)


@given(X=new_samples, c=st.sampled_from([1e-3, 1.0, np.inf]), likelihood=st.sampled_from(["auto", "exact"]))
def test_any_new_samples_are_solved_or_refused(X, c, likelihood):
    model = Log1pNMF(**GOOD, c=c, likelihood=likelihood).fit(Y)
    before = model.components_.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loadings, score = model.transform(X), model.score(X)
        except (ValueError, TypeError):
            event("refused")
            return
        event("solved")
    np.testing.assert_array_equal(model.components_, before)
    assert np.isfinite(loadings).all()
    assert (loadings >= 0).all()
    assert not np.isnan(score)
