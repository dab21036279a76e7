"""Fits to AnnData: which counts are used, and what is written."""

import logging

import anndata
import numpy as np
import pytest

import log1pnmf as lp
from log1pnmf import Log1pNMF, tl
from log1pnmf.counts import read_table

FAST = {"tol": 1e-4, "n_jobs": 1, "init": "nndsvd"}


@pytest.fixture(scope="module")
def expected(cells):
    return Log1pNMF(3, c=1.0, random_state=0, **FAST).fit(cells.X)


def loadings(adata):
    return adata.obsm["X_log1p_nmf"]


def test_result_is_that_of_the_estimator(adata, expected):
    assert lp.tl.log1p_nmf(adata, 3, **FAST) is None
    np.testing.assert_array_equal(loadings(adata), expected.loadings_)
    np.testing.assert_array_equal(adata.varm["log1p_nmf"], expected.components_.T)
    about = adata.uns["log1p_nmf"]
    assert (about["c"], about["n_components"], about["converged"], about["layer"]) == (1.0, 3, True, "X")
    assert about["log_likelihood"] == expected.log_likelihood_
    assert about["kkt_residual"] == expected.kkt_residual_
    np.testing.assert_array_equal(about["size_factors"], expected.fit_.size_factors)
    np.testing.assert_array_equal(about["history"]["loss"], expected.history_["loss"])
    assert about["versions"]["log1pnmf"] == lp.__version__


def test_copy_leaves_the_original_alone(adata):
    copy = lp.tl.log1p_nmf(adata, 2, copy=True, **FAST)
    assert not adata.obsm
    assert not adata.varm
    assert not adata.uns
    assert loadings(copy).shape == (adata.n_obs, 2)
    lp.tl.log1p_nmf(adata, 2, key_added="programmes", **FAST)
    assert list(adata.obsm) == ["programmes", "programmes_shares"]
    assert [list(adata.varm), list(adata.uns)] == [["programmes"]] * 2


def test_other_things_and_bad_keys_are_refused(cells):
    with pytest.raises(TypeError, match="must be an AnnData object, got csr_"):
        lp.tl.log1p_nmf(cells.X, 2)
    with pytest.raises(TypeError, match=r"got str; read the file first, with anndata.read_h5ad"):
        lp.tl.log1p_nmf("cells.h5ad", 2)
    for key, error, words in (("a/b", ValueError, "without '/'"), (3, TypeError, "int")):
        with pytest.raises(error, match=words):
            lp.tl.log1p_nmf(cells, 2, key_added=key)


def test_counts_layer_is_used_and_said_where_x_is_not_counts(adata, expected, caplog):
    adata.layers["counts"] = adata.X.copy()
    adata.X = adata.X.log1p()
    lp.tl.log1p_nmf(adata, 3, **FAST)
    np.testing.assert_array_equal(loadings(adata), expected.loadings_)
    assert adata.uns["log1p_nmf"]["layer"] == "counts"
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, "adata.X does not hold counts: layers['counts'] is used")
    ]


def test_x_is_used_where_it_holds_counts(adata, expected, caplog):
    adata.layers["counts"] = 2 * adata.X
    adata.var["highly_variable"] = np.arange(adata.n_vars) < 20  # used only where it is asked for
    lp.tl.log1p_nmf(adata, 3, **FAST)
    np.testing.assert_array_equal(loadings(adata), expected.loadings_)
    assert adata.uns["log1p_nmf"]["layer"] == "X"
    assert not caplog.records


def test_layer_asked_for_is_used(adata, expected):
    adata.layers["raw"] = adata.X.copy()
    adata.X = None
    lp.tl.log1p_nmf(adata, 3, layer="raw", **FAST)
    np.testing.assert_array_equal(loadings(adata), expected.loadings_)
    with pytest.raises(KeyError, match="no layer 'other'; it has: 'raw'"):
        lp.tl.log1p_nmf(adata, 3, layer="other")
    with pytest.raises(ValueError, match=r"adata\.X is empty; pass layer="):
        lp.tl.log1p_nmf(adata, 3)


def test_mask_var_fits_only_those_features(adata):
    mask = np.arange(adata.n_vars) % 3 == 0
    adata.var["chosen"] = mask
    part = Log1pNMF(2, random_state=0, **FAST).fit(adata.X[:, mask])
    lp.tl.log1p_nmf(adata, 2, mask_var="chosen", **FAST)
    by_name = adata.varm["log1p_nmf"]
    np.testing.assert_array_equal(by_name[mask], part.components_.T)
    assert not by_name[~mask].any()
    lp.tl.log1p_nmf(adata, 2, mask_var=mask, key_added="by_array", **FAST)
    np.testing.assert_array_equal(adata.varm["by_array"], by_name)


@pytest.mark.parametrize(
    ("mask", "error", "words"),
    [
        ("nothing", KeyError, "no column 'nothing'; it has: 'number'"),
        ("number", ValueError, r"adata\.var\['number'\] must be True or False for each .*, got 0"),
        ("gaps", ValueError, r"adata\.var\['gaps'\] must be .*, got <NA>"),
        ("variable:abc", ValueError, r"mask_var: 'variable:abc' must end with a whole number > 0"),
        (np.ones(3, dtype=bool), ValueError, r"mask_var must be .* got an array of shape \(3,\)"),
        (np.zeros(600, dtype=bool), ValueError, "leaves no feature"),
    ],
)
def test_bad_masks_are_refused_and_nothing_is_written(adata, mask, error, words):
    adata.var["number"] = np.arange(adata.n_vars)
    adata.var["gaps"] = (adata.var["number"] > 3).astype("boolean").where(adata.var["number"] > 0)
    with pytest.raises(error, match=words):
        lp.tl.log1p_nmf(adata, 2, mask_var=mask)
    assert not adata.obsm


@pytest.mark.parametrize(("storage", "mask"), [("csr", "even"), ("csc", None), ("dense", "even")])
def test_data_in_a_file_are_read_in_blocks(adata, tmp_path, monkeypatch, storage, mask):
    adata.X = {"csr": adata.X.tocsr, "csc": adata.X.tocsc, "dense": adata.X.toarray}[storage]()
    adata.var["even"] = np.arange(adata.n_vars) % 2 == 0
    adata.write_h5ad(tmp_path / "cells.h5ad")
    monkeypatch.setattr("log1pnmf.tl.tools.BLOCK_ENTRIES", 7 * adata.n_vars)  # seven samples at a time
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    lp.tl.log1p_nmf(backed, 2, mask_var=mask, **FAST)
    lp.tl.log1p_nmf(adata, 2, mask_var=mask, **FAST)
    assert backed.isbacked
    np.testing.assert_array_equal(loadings(backed), loadings(adata))
    assert not lp.tl.log1p_nmf(backed, 2, mask_var=mask, copy=True, key_added="copy", **FAST).isbacked
    assert "copy" not in backed.obsm
    with pytest.raises(ValueError, match=r"view of data in a file.*to_memory"):
        lp.tl.log1p_nmf(backed[:50], 2, **FAST)
    assert loadings(lp.tl.log1p_nmf(backed[:50], 2, copy=True, **FAST)).shape == (50, 2)
    backed.file.close()


def test_sweep_keeps_every_fit_and_a_table(adata):
    lp.tl.sweep(adata, 2, [np.inf, 1, 0.1], **FAST)
    table = adata.uns["log1p_nmf_sweep"]
    keys = ["log1p_nmf_c=0.1", "log1p_nmf_c=1", "log1p_nmf_c=inf"]
    assert table["key"].tolist() == keys
    assert table["c"].tolist() == [0.1, 1.0, np.inf]
    for key, likelihood in zip(keys, table["log_likelihood"], strict=True):
        assert adata.uns[key]["log_likelihood"] == likelihood
        assert adata.obsm[key].shape == (adata.n_obs, 2)
    assert lp.as_fit(adata, key="log1p_nmf_c=0.1").c == 0.1


def test_all_features_are_added_to_a_fit_of_some(cells, caplog):
    adata = cells.copy()
    adata.var["variable"] = np.arange(adata.n_vars) % 2 == 0
    lp.tl.log1p_nmf(adata, 2, mask_var="variable:20", key_added="few", tol=1e-4)
    assert len(lp.as_fit(adata, key="few").factors) == 20
    lp.tl.log1p_nmf(adata, 2, mask_var="variable", tol=1e-4)
    lp.tl.extend_features(adata)
    some, every = lp.as_fit(adata), lp.as_fit(adata, key="log1p_nmf_all")
    assert (some.loadings == every.loadings).all()
    assert (every.factors[::2] == some.factors).all()
    assert every.factors[1::2].any(axis=1).mean() > 0.9
    assert "300 features were fitted, and 300 were added" in every.messages[0]
    assert len(lp.analysis.markers(every, adata.X, n_jobs=1).feature_names) == 600
    lp.tl.extend_features(adata, key="log1p_nmf_all")
    assert "nothing to add: the fit has all 600 features" in caplog.text
    new = cells[:30].copy()
    for key in (None, "log1p_nmf_all"):  # uses the fitted ones
        lp.tl.transform(new, adata, key=key)
        assert lp.as_fit(new, key=key).feature_names.tolist() == some.feature_names.tolist()
    np.testing.assert_allclose(new.obsm["log1p_nmf_all"], new.obsm["X_log1p_nmf"], rtol=1e-9)


# ---------- batches


def data():
    counts = np.random.default_rng(0).poisson(4.0, (60, 12)).astype(np.float32)
    counts[:30, :3] *= 3
    adata = anndata.AnnData(counts)
    adata.obs["donor"] = np.repeat(["d1", "d2"], 30)
    return adata


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_batches_come_from_a_column_and_come_back_and_other_samples_name_theirs(tmp_path):
    adata = data()
    lp.tl.log1p_nmf(adata, 1, batch_key="donor", max_iter=10)
    fit = lp.as_fit(adata)
    assert fit.batches.names == ("d1", "d2")
    assert fit.batches.effects[0, :3].min() > fit.batches.effects[1, :3].max()
    adata.write_h5ad(tmp_path / "adata.h5ad")
    again = lp.as_fit(anndata.read_h5ad(tmp_path / "adata.h5ad"))
    assert (again.batches.effects == fit.batches.effects).all()
    assert (again.batches.labels == fit.batches.labels).all()
    new = data()[:5].copy()
    lp.tl.transform(new, adata, batch_key="donor")
    plain = lp.tl.transform(new, adata, copy=True)
    assert np.abs(new.obsm["X_log1p_nmf"] - plain.obsm["X_log1p_nmf"]).max() > 1e-3


# ---------- counts in adata.raw


@pytest.fixture
def with_raw():
    """X is normalised and has fewer features, in another order, than raw."""
    whole = anndata.AnnData(np.random.default_rng(0).poisson(2.0, (40, 12)).astype(np.float32))
    whole.var_names = [f"g{j}" for j in range(12)]
    part = whole[:, ["g7", "g2", "g5", "g0", "g9"]].copy()
    part.raw = whole
    part.X = np.log1p(part.X)
    return part


@pytest.mark.filterwarnings("ignore:no markers are named:UserWarning")  # few samples
def test_the_features_of_the_object_are_found_in_raw(with_raw):
    expected = anndata.AnnData(with_raw.raw[:, with_raw.var_names].X.copy())
    expected.var_names = with_raw.var_names
    for one, where in ((with_raw, {"layer": "raw"}), (expected, {})):
        tl.log1p_nmf(one, 2, tol=1e-3, n_jobs=1, **where)
    np.testing.assert_array_equal(with_raw.varm["log1p_nmf"], expected.varm["log1p_nmf"])
    assert with_raw.uns["log1p_nmf"]["layer"] == "raw"
    tl.markers(with_raw)  # finds the same counts again
    assert "log1p_nmf_markers" in with_raw.uns
    del with_raw.raw
    with pytest.raises(KeyError, match=r"adata.raw is empty"):
        tl.log1p_nmf(with_raw, 2, layer="raw")


def test_log_normalised_values_are_refused_with_the_places_of_counts(with_raw, tmp_path):
    """The same in Python and in the shell; a place that is named is taken as it is, with a warning."""
    with_raw.layers["spliced"] = np.rint(with_raw.X)
    with pytest.raises(ValueError, match=r"not whole numbers: .*\(adata has: 'spliced', 'raw' .*layer='X'"):
        tl.log1p_nmf(with_raw, 2)
    with_raw.write_h5ad(tmp_path / "x.h5ad")
    with pytest.raises(ValueError, match=r"not counted; choose another layer with --layer \(raw, spliced\)"):
        read_table(tmp_path / "x.h5ad")
    with pytest.warns(UserWarning, match="non-integer"):
        tl.log1p_nmf(with_raw, 2, tol=1e-3, layer="X")
    assert with_raw.uns["log1p_nmf"]["layer"] == "X"
    with pytest.warns(UserWarning, match="non-integer"):
        tl.markers(with_raw)


@pytest.mark.parametrize("bundled", [lp.datasets.pancreas, lp.datasets.made_up_donors])
def test_bundled_cells_are_what_scanpy_takes(bundled):
    sc = pytest.importorskip("scanpy")
    adata = anndata.AnnData(bundled().counts[:50].astype(np.float32))
    # scanpy's own code for the default needs numba, which is off in tests; this excludes nothing
    sc.pp.normalize_total(adata, target_sum=100.0, exclude_highly_expressed=True, max_fraction=1.0)
    sc.pp.log1p(adata)
    np.testing.assert_allclose(np.expm1(adata.X.toarray()).sum(axis=1), 100.0, rtol=1e-5)


@pytest.mark.filterwarnings(
    "ignore:Changing the sparsity structure:scipy.sparse.SparseEfficiencyWarning",
    "ignore:The set_bad function:PendingDeprecationWarning",
)
@pytest.mark.parametrize("rep", ["X_log1p_nmf", "X_log1p_nmf_shares"])
def test_neighbors_and_embedding(adata, rep):
    """Neighbours by loadings or shares are mostly of the same cell type, and the plot shows the loadings."""
    pytest.importorskip("matplotlib").use("Agg")
    sc = pytest.importorskip("scanpy")
    lp.tl.log1p_nmf(adata, 4, c=np.inf, tol=1e-5, n_jobs=1)
    np.testing.assert_allclose(adata.obsm["X_log1p_nmf_shares"], lp.shares(adata))
    sc.pp.neighbors(adata, use_rep=rep, n_neighbors=6, transformer="sklearn", random_state=0)
    label = adata.obs["label"].to_numpy()
    i, j = adata.obsp["connectivities"].nonzero()
    assert len(i) >= 5 * adata.n_obs  # the graph is symmetric
    assert (label[i] == label[j]).mean() > 2 * (label[:, None] == label).mean()
    axes = sc.pl.embedding(adata, "X_log1p_nmf", color="label", components="1,2", show=False)
    shown = np.vstack([part.get_offsets() for part in axes.collections])
    points = np.asarray(shown[~np.isnan(shown).any(axis=1)])
    assert {tuple(point) for point in points} == {tuple(row) for row in adata.obsm["X_log1p_nmf"][:, :2]}
