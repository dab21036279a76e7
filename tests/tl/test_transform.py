"""Loadings of other samples."""

import anndata
import numpy as np
import pytest

import log1pnmf as lp
from log1pnmf import Log1pNMF

FAST = {"tol": 1e-4, "n_jobs": 1}


@pytest.fixture(scope="module")
def reference(cells):
    old = cells[:80].copy()
    lp.tl.log1p_nmf(old, 3, c=1.0, **FAST)
    return old


@pytest.fixture
def new(cells):
    return cells[80:].copy()


@pytest.fixture(scope="module")
def expected(cells):
    frame = cells.to_df()
    return Log1pNMF(3, random_state=0, **FAST).fit(frame.iloc[:80]).transform(frame.iloc[80:])


def assert_expected(adata, expected):
    np.testing.assert_allclose(adata.obsm["X_log1p_nmf"], expected, atol=1e-6)


def test_result_is_that_of_the_model(reference, new, expected, tmp_path):
    assert lp.tl.transform(new, reference) is None
    assert_expected(new, expected)
    reference.write_h5ad(tmp_path / "reference.h5ad")
    read = anndata.read_h5ad(tmp_path / "reference.h5ad")
    for ref in (read, reference[:30].copy()):  # which has lost samples
        assert_expected(lp.tl.transform(new, ref, copy=True), expected)


def test_from_whatever_holds_a_fit(cells, new, expected, tmp_path):
    model = Log1pNMF(3, random_state=0, **FAST).fit(cells.to_df().iloc[:80])
    model.save(tmp_path / "fit.npz")
    for ref in (model, model.fit_, tmp_path / "fit.npz"):
        copy = lp.tl.transform(new, ref, copy=True)
        np.testing.assert_array_equal(copy.obsm["X_log1p_nmf"], expected)
    assert not new.obsm


def test_features_are_matched_by_name(reference, new, expected):
    more = anndata.concat([new[:, ::-1], anndata.AnnData(new.X[:, :5], new.obs)], axis=1)
    lp.tl.transform(more, reference)
    assert_expected(more, expected)
    with pytest.raises(ValueError, match=r"2 of the 600 .* not in adata \(first '.* refit on the features"):
        lp.tl.transform(new[:, 2:].copy(), reference)


def test_model_without_names_wants_as_many_features(cells, new):
    model = Log1pNMF(2, random_state=0, **FAST).fit(cells.X[:80])
    lp.tl.transform(new, model)
    np.testing.assert_array_equal(new.obsm["X_log1p_nmf"], model.transform(cells.X[80:]))
    with pytest.raises(ValueError, match="have 599 features, but the fit has 600"):
        lp.tl.transform(new[:, 1:].copy(), model)


def test_key_and_size_factors(cells, new):
    old, sizes = cells[:80].copy(), np.linspace(0.5, 2, 120)
    lp.tl.log1p_nmf(old, 2, key_added="mine", size_factors=sizes[:80], **FAST)
    with pytest.raises(ValueError, match="size_factors are needed"):
        lp.tl.transform(new, old, key="mine")
    lp.tl.transform(new, old, key="mine", size_factors=sizes[80:])
    model = Log1pNMF.of(old, key="mine")
    again = model.transform(new.to_df(), size_factors=sizes[80:])
    np.testing.assert_array_equal(new.obsm["mine"], again)


def test_ref_has_to_hold_a_fit(new):
    with pytest.raises(KeyError, match="run log1pnmf"):
        lp.tl.transform(new, new)
    with pytest.raises(TypeError, match=r"expected a Fit, .* an AnnData or a file with a fit, got int"):
        lp.tl.transform(new, 3)
    with pytest.raises(FileNotFoundError, match=r"fit\.npz"):
        lp.tl.transform(new, "fit.npz")


NOT_UNIQUE = "ignore:Variable names are not unique:UserWarning"


@pytest.mark.filterwarnings(NOT_UNIQUE)
def test_features_that_occur_twice_are_refused_in_another_order(reference, new):
    names = new.var_names.to_list()
    twice = anndata.concat([new, new[:, :1]], axis=1)
    with pytest.raises(
        ValueError, match=f"1 of the 600 features of the fit occur twice in adata .first '{names[0]}'"
    ):
        lp.tl.transform(twice, reference)


@pytest.mark.filterwarnings(NOT_UNIQUE)
def test_names_that_occur_twice_in_the_fit_are_fine_in_the_same_order_only(cells):
    adata = cells[:80].copy()
    adata.var_names = [f"gene{j // 2}" for j in range(adata.n_vars)]
    with pytest.warns(UserWarning, match=r"300 feature names occur more than once \(first 'gene0'\)"):
        lp.tl.log1p_nmf(adata, 2, **FAST)
    unique = adata[:20].copy()
    unique.var_names_make_unique()
    with pytest.raises(ValueError, match=r"300 of the 600 features of the fit occur twice in the fit itself"):
        lp.tl.transform(unique, lp.as_fit(adata))
    new = adata[:20].copy()
    lp.tl.transform(new, adata)
    np.testing.assert_allclose(new.obsm["X_log1p_nmf"], adata.obsm["X_log1p_nmf"][:20], atol=0.05)
