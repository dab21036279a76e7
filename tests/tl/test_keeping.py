"""What is written comes back from files, with our package and without it."""

import subprocess
import sys
import warnings

import anndata
import numpy as np
import pytest
from tests.fuzz.damage import strange

import log1pnmf as lp
from log1pnmf import Log1pNMF

FAST = {"tol": 1e-4, "n_jobs": 1, "init": "nndsvd"}


@pytest.fixture(scope="module")
def fitted(cells):
    """With an awkward fit under the usual key, and one under a key of its own."""
    adata = cells.copy()
    adata.var["even"] = np.arange(adata.n_vars) % 2 == 0
    lp.tl.log1p_nmf(adata, 3, mask_var="even", likelihood="taylor", **FAST)
    start = np.random.default_rng(0)
    own = (start.uniform(0.1, 1, (adata.n_obs, 2)), start.uniform(0.1, 1, (adata.n_vars, 2)))
    given = FAST | {"init": own, "size_factors": start.uniform(0.5, 2, adata.n_obs)}
    lp.tl.log1p_nmf(adata, 2, c=np.inf, key_added="given", random_state=None, **given)
    lp.tl.sweep(adata, 2, [np.inf], **FAST)
    return adata


@pytest.fixture(scope="module", params=["h5ad", "zarr"])
def back(fitted, tmp_path_factory, request):
    """The same, written and read."""
    path = tmp_path_factory.mktemp("files") / f"cells.{request.param}"
    if request.param == "h5ad":
        fitted.write_h5ad(path)
        return anndata.read_h5ad(path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Writing zarr v2 data", UserWarning)
        fitted.write_zarr(path)
    return anndata.read_zarr(path)


def test_files_open_without_this_package(fitted, tmp_path):
    fitted.write_h5ad(tmp_path / "cells.h5ad")
    code = f"""
import sys
sys.modules["log1pnmf"] = None  # importing it fails
import anndata
adata = anndata.read_h5ad({str(tmp_path / "cells.h5ad")!r})
about = adata.uns["log1p_nmf"]
print(adata.obsm["X_log1p_nmf"].sum().hex(), about["c"], about["converged"], len(about["history"]["loss"]))
print(list(adata.uns["log1p_nmf_sweep"]["c"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    about = fitted.uns["log1p_nmf"]
    first, second = done.stdout.splitlines()
    total = fitted.obsm["X_log1p_nmf"].sum().hex()
    assert first == f"{total} 1.0 True {len(about['history']['loss'])}"
    assert second == "[inf]"


def assert_same_model(a, b):
    np.testing.assert_array_equal(a.loadings_, b.loadings_)
    np.testing.assert_array_equal(a.components_, b.components_)
    np.testing.assert_allclose(a.fit_.loadings, b.fit_.loadings, rtol=1e-14)
    np.testing.assert_allclose(a.fit_.factors, b.fit_.factors, rtol=1e-14)
    assert a.fit_.settings == b.fit_.settings
    assert a.fit_.messages == b.fit_.messages
    assert a.certificate_ == b.certificate_
    assert a.summary() == b.summary()
    for name, column in a.history_.items():
        if name != "seconds":
            np.testing.assert_array_equal(column, b.history_[name])
        assert column.dtype == b.history_[name].dtype
    np.testing.assert_equal(a.get_params(), {**b.get_params(), "n_jobs": None})  # no threads in files


def test_model_from_a_file_is_the_one_that_was_fitted(fitted, back, cells):
    first = Log1pNMF(3, likelihood="taylor", random_state=0, **FAST).fit(cells.to_df().iloc[:, ::2])
    again = Log1pNMF.of(back)
    again.fit_ = type(first.fit_)(**{**vars(again.fit_), "seconds": first.fit_.seconds})
    assert_same_model(again, first)
    given = Log1pNMF.of(back, key="given")
    assert_same_model(given, Log1pNMF.of(fitted, key="given"))
    assert given.c == np.inf
    assert given.fit_.settings.init == "given"
    new = cells.to_df().iloc[:15, ::2]
    np.testing.assert_allclose(again.transform(new), first.transform(new), atol=1e-6 * first.loadings_.max())


def test_model_finds_its_features_wherever_they_are(fitted, cells):
    assert_same_model(Log1pNMF.of(fitted[:, ::-1].copy()), Log1pNMF.of(fitted))
    with pytest.raises(ValueError, match=r"299 of the 300 features .*as it was before"):
        Log1pNMF.of(fitted[:, :2].copy())
    with pytest.raises(KeyError, match=r"adata\.uns has no 'log1p_nmf' \(it has: none\); run"):
        Log1pNMF.of(cells)


def test_model_says_which_features_were_renamed(fitted):
    some, all_of_them = fitted.copy(), fitted.copy()
    names = list(fitted.var_names)
    some.var_names = [*names[:4], "new", *names[5:]]
    with pytest.raises(ValueError, match=rf"1 of the 300 features .*first '{names[4]}'.*rename"):
        Log1pNMF.of(some)
    all_of_them.var_names = [f"id {j}" for j in range(fitted.n_vars)]
    with pytest.raises(ValueError, match=r"600 of the 600 features of the fit are not in adata"):
        lp.tl.markers(all_of_them, key="given")
    with pytest.raises(ValueError, match=r"none of the features of the fit by a name .* gene_symbols="):
        lp.tl.transform(all_of_them, Log1pNMF.of(fitted))


@pytest.mark.filterwarnings("ignore")
def test_what_a_stranger_wrote_is_used_or_refused(cells):
    adata = cells[:30, :20].copy()
    lp.tl.log1p_nmf(adata, 2, max_iter=200, **FAST)
    outcomes, table = set(), adata.to_df()
    for _, about in strange(adata.uns["log1p_nmf"], 9):
        adata.uns["log1p_nmf"] = about
        try:
            model = Log1pNMF.of(adata)
            model.summary()
            model.transform(table, size_factors="none")
        except ValueError:
            outcomes.add("refused")
        else:
            outcomes.add("used")
            assert (model.n_jobs, model.engine) == (None, "auto")
    assert outcomes == {"used", "refused"}
