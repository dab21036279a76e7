"""What is no matrix of counts: the message says what to do instead."""

import pathlib
import types
import warnings

import anndata
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.pipeline import make_pipeline

import log1pnmf as lp
from log1pnmf import Log1pNMF, open_counts

Y = np.random.default_rng(0).poisson(2.0, size=(12, 7))
GOOD = {"n_components": 2, "tol": 1e-4, "random_state": 0, "n_jobs": 1}


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (None, "counts is None; pass a matrix"),
        ("x.h5ad", r"the path 'x.h5ad'; pass .*open_counts\(path\).*`log1pnmf fit`"),
        (pathlib.Path("x.csv"), r"the path 'x.csv'; pass log1pnmf.counts.read_table\(path\).counts"),
        (pd.Series(["a text", "another"]), r"got texts; count their words first.*CountVectorizer"),
        (anndata.AnnData(Y), r"AnnData object; use log1pnmf.tl.*log1p_nmf.*adata.X or adata.layers"),
    ],
)
def test_everything_that_takes_counts_says_what_to_do(counts, message):
    model = Log1pNMF(**GOOD).fit(Y)
    for ask in (
        Log1pNMF(**GOOD).fit,
        model.transform,
        model.score,
        model.markers,
        lambda wrong: lp.select(wrong, 2, 1.0),
        lambda wrong: lp.fit_log1p_nmf(wrong, 2),
    ):
        with pytest.raises(TypeError, match=message):
            ask(counts)


def test_every_face_refuses_counts_that_are_all_zero():
    for ask in (
        Log1pNMF(**GOOD).fit,
        lambda zeros: lp.fit_log1p_nmf(zeros, 2),
        lambda zeros: Log1pNMF(2, engine="streaming").fit(open_counts(zeros)),
        lambda zeros: lp.sweep(zeros, 2, [1.0]),
        lambda zeros: lp.select(zeros, 2, 1.0),
        lambda zeros: lp.tl.log1p_nmf(anndata.AnnData(zeros), 2),
    ):
        with pytest.raises(ValueError, match=r"counts are all zero \(shape \(12, 7\)\): pass data"):
            ask(np.zeros((12, 7)))


def test_every_face_warns_of_more_factors_than_the_counts_determine():
    for ask in (
        lambda counts, k: Log1pNMF(k).fit(counts),
        lp.fit_log1p_nmf,
        lambda counts, k: lp.sweep(counts, k, [1.0]),
        lambda counts, k: lp.select(counts, k, [1.0]),
        lambda counts, k: lp.tl.log1p_nmf(anndata.AnnData(counts), k),
    ):
        with pytest.warns(UserWarning, match=r"n_components=4 is larger than .* use at most 3"):
            ask(Y[:, :3], 4)


def test_a_model_as_start_is_told_where_its_fit_is():
    model = Log1pNMF(**GOOD).fit(Y)
    with pytest.raises(ValueError, match=r"got Log1pNMF; pass its fit, model.fit_"):
        Log1pNMF(init=model, **GOOD).fit(Y)
    assert Log1pNMF(init=model.fit_, **GOOD).fit(Y).converged_


def test_a_file_of_anndata_is_no_file_of_a_fit(tmp_path):
    path = tmp_path / "x.h5ad"
    adata = anndata.AnnData(sparse.csr_matrix(Y))
    lp.tl.log1p_nmf(adata, 2)
    adata.write_h5ad(path)
    with pytest.raises(ValueError, match=r"is a file of AnnData; read it first.*anndata.read_h5ad\(path\)"):
        lp.as_fit(path)
    np.testing.assert_array_equal(lp.as_fit(anndata.read_h5ad(path)).factors, lp.as_fit(adata).factors)


@pytest.mark.parametrize(
    "ask",
    [
        lambda y: make_pipeline(Log1pNMF(**GOOD)).fit_transform(y),
        lambda y: lp.fit_log1p_nmf(y, 2, max_iter=1),
        lambda y: lp.sweep(y, 8, [1.0, 2.0], max_iter=1),
        lambda y: lp.tl.log1p_nmf(anndata.AnnData(y), 2, max_iter=1, layer="X"),
        lambda y: lp.analysis.log_likelihood(lp.fit_log1p_nmf(y, 2, tol=1e-4), y),
    ],
)
def test_warnings_point_at_the_users_line(ask):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ask(0.5 * Y)
    assert caught
    assert {warning.filename for warning in caught} == {__file__}


class Table:
    """What a pyarrow table looks like from outside: `columns` are its contents."""

    __module__ = "pyarrow.lib"

    def __init__(self, frame):
        self.frame, self.shape = frame, frame.shape
        self.columns = [types.SimpleNamespace(data=frame[name]) for name in frame]

    def to_pandas(self):
        return self.frame


def test_a_pyarrow_table_is_a_data_frame():
    frame = pd.DataFrame(Y, columns=list("abcdefg"))
    model, same = Log1pNMF(**GOOD).fit(Table(frame)), Log1pNMF(**GOOD).fit(frame)
    np.testing.assert_array_equal(model.components_, same.components_)
    assert model.feature_names_in_.tolist() == list("abcdefg")
    backwards = Table(frame.iloc[:, ::-1])
    np.testing.assert_array_equal(model.transform(backwards), same.transform(frame))


def masked(*places):
    values = np.ma.masked_array(Y, mask=np.zeros(Y.shape, dtype=bool))
    for place in places:
        values[place] = np.ma.masked
    return values


def test_masked_entries_are_refused():
    entries = sparse.csr_array(Y)
    entries.data = np.ma.masked_array(entries.data, mask=np.arange(entries.nnz) == 3)
    model = Log1pNMF(**GOOD).fit(masked())  # a mask that hides nothing does not matter
    np.testing.assert_array_equal(model.components_, Log1pNMF(**GOOD).fit(Y).components_)
    for counts in (masked((3, 4)), list(masked((3, 4))), entries, open_counts(masked((3, 4)))):
        for ask in (Log1pNMF(**GOOD).fit, model.transform):
            with pytest.raises(ValueError, match=r"counts has 1 masked entry.*drop or fill them first"):
                ask(counts)
    with pytest.raises(ValueError, match="counts has 2 masked entries"):
        Log1pNMF(**GOOD).fit(masked((3, 4), (0, 0)))
    sizes = np.ma.masked_array(np.ones(12), mask=np.arange(12) == 5)
    with pytest.raises(ValueError, match="size_factors has 1 masked entry"):
        Log1pNMF(**GOOD, size_factors=sizes).fit(Y)
    start = np.ma.masked_array(np.ones((12, 2)), mask=np.eye(12, 2))
    with pytest.raises(ValueError, match="init loadings has 2 masked entries"):
        Log1pNMF(**GOOD, init=(start, np.ones((7, 2)))).fit(Y)


@pytest.mark.parametrize("dtype", ["Int64", object])
def test_missing_values_of_pandas_are_refused(dtype):
    frame = pd.DataFrame({"a": pd.array([1, pd.NA], dtype=dtype), "b": [1, 2]})
    with pytest.raises(ValueError, match="drop or fill missing entries first"):
        Log1pNMF(**GOOD).fit(frame)


def test_the_training_data_need_no_names(tmp_path):
    names = list("abcdefg")
    model = Log1pNMF(**GOOD).fit(pd.DataFrame(Y, columns=names))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.markers(Y, feature_names=names).feature_names.tolist() == names
        lp.analysis.diagnose(model, Y)
        assert lp.analysis.log_likelihood(model, Y) == pytest.approx(model.log_likelihood_)
        model.report(tmp_path / "report.html", counts=Y, feature_names=names)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.transform(Y)
