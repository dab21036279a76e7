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
        again = lp.tl.transform(new, ref, copy=True)
        np.testing.assert_allclose(again.obsm["X_log1p_nmf"], expected, atol=2e-3)  # the prior is of 30


def test_from_whatever_holds_a_fit(cells, new, expected, tmp_path):
    model = Log1pNMF(3, random_state=0, **FAST).fit(cells.to_df().iloc[:80])
    model.save(tmp_path / "fit.npz")
    for ref in (model, model.fit_, tmp_path / "fit.npz"):
        np.testing.assert_array_equal(lp.tl.transform(new, ref, copy=True).obsm["X_log1p_nmf"], expected)
    assert not new.obsm
    with pytest.raises(KeyError, match="run log1pnmf"):
        lp.tl.transform(new, new)
    with pytest.raises(TypeError, match=r"expected a Fit, .* an AnnData or a file with a fit, got int"):
        lp.tl.transform(new, 3)


def test_features_are_matched_by_name(reference, new, expected):
    more = anndata.concat([new[:, ::-1], anndata.AnnData(new.X[:, :5], new.obs)], axis=1)
    lp.tl.transform(more, reference)
    assert_expected(more, expected)


def test_features_that_are_missing_were_not_observed(reference, new, expected, caplog):
    caplog.set_level("INFO", "log1pnmf")
    few = new[:, 2:].copy()
    few.var = few.var.assign(symbol=few.var_names)
    few.var_names = [f"ENSG{j}" for j in range(598)]
    with pytest.raises(
        ValueError, match=r"adata has none of the features of the fit by a name .* gene_symbols="
    ):
        lp.tl.transform(few, reference)
    named = reference.copy()  # the reference has the column, the new samples have the names
    named.var["ensembl"] = ["", "ENSG0", *few.var_names]
    own = few.copy()
    lp.tl.transform(own, named, gene_symbols="ensembl")
    np.testing.assert_allclose(own.obsm["X_log1p_nmf"], expected, atol=0.05)
    assert lp.as_fit(own).feature_names.tolist() == few.var_names[1:].tolist()  # two share ENSG0
    lp.tl.transform(few, reference, gene_symbols="symbol")
    np.testing.assert_allclose(few.obsm["X_log1p_nmf"], expected, atol=0.05)
    assert "598 of 600 features of the fit are shared" in caplog.text
    assert "a held-out tenth of the counts is predicted better than by one factor" in caplog.text
    fit = lp.as_fit(few)
    assert (fit.factors == lp.as_fit(reference).factors[2:]).all()
    assert any("598 of 600" in message for message in fit.messages)
    half = new[:, np.argsort(-lp.as_fit(reference).factors[:, 1])[60:]].copy()
    with pytest.warns(
        UserWarning, match=r"540 of 600 .*; below 80% are .*k1 \d+%.*: their loadings are less"
    ):
        lp.tl.transform(half, reference)
    with pytest.raises(ValueError, match=r"2 of 600 .* at least 20% are needed"):
        lp.tl.transform(new[:, :2].copy(), reference)


@pytest.mark.filterwarnings("ignore:300 of 600 features:UserWarning")
def test_size_factors_are_on_the_scale_of_all_features(reference, new):
    whole, part = new.copy(), new[:, ::2].copy()
    for adata in (whole, part):
        lp.tl.transform(adata, reference)
    sizes = [lp.as_fit(adata).size_factors for adata in (whole, part)]
    assert np.median(sizes[1] / sizes[0]) == pytest.approx(1.0, abs=0.1)


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
    np.testing.assert_array_equal(
        new.obsm["mine"], Log1pNMF.of(old, key="mine").transform(new.to_df(), size_factors=sizes[80:])
    )


NOT_UNIQUE = "ignore:Variable names are not unique:UserWarning"


@pytest.mark.filterwarnings(NOT_UNIQUE)
def test_features_that_occur_twice_are_left_out_in_another_order(reference, new):
    names = new.var_names.to_list()
    twice = anndata.concat([new, new[:, :1]], axis=1)
    lp.tl.transform(twice, reference)
    assert lp.as_fit(twice).feature_names.tolist() == names[1:]


@pytest.mark.filterwarnings(NOT_UNIQUE)
def test_names_that_occur_twice_in_the_fit_are_fine_in_the_same_order_only(cells):
    adata = cells[:80].copy()
    adata.var_names = [f"gene{j // 2}" for j in range(adata.n_vars)]
    with pytest.warns(UserWarning, match=r"300 feature names occur more than once \(first 'gene0'\)"):
        lp.tl.log1p_nmf(adata, 2, **FAST)
    unique = adata[:20].copy()
    unique.var_names_make_unique()
    with pytest.raises(ValueError, match=r"none of the features of the fit by a name that occurs once"):
        lp.tl.transform(unique, lp.as_fit(adata))
    new = adata[:20].copy()
    lp.tl.transform(new, adata)
    np.testing.assert_allclose(new.obsm["X_log1p_nmf"], adata.obsm["X_log1p_nmf"][:20], atol=0.05)
