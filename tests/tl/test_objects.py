"""Objects move: every form of AnnData works, or one line says what to do."""

from types import SimpleNamespace

import anndata
import matplotlib.pyplot as plt
import numpy as np
import pytest

import log1pnmf as lp

FAST = {"tol": 1e-3, "n_jobs": 1, "init": "nndsvd"}


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    means = 8.0 * rng.dirichlet([0.4] * 3, 60) @ rng.gamma(0.4, 1.0, (3, 20)) + 0.1
    adata = anndata.AnnData(rng.poisson(means).astype(np.float32))
    adata.obs_names, adata.var_names = [f"s{i}" for i in range(60)], [f"g{j}" for j in range(20)]
    adata.obs["condition"], adata.obs["donor"] = np.tile(["a", "b"], 30), [f"d{i % 6}" for i in range(60)]
    adata.obsm["X_umap"] = rng.normal(size=(60, 2))
    lp.tl.log1p_nmf(adata, 2, **FAST)
    return adata


def concatenated(adata, **merged):
    return anndata.concat([adata[:30], adata[30:]], **merged)


def with_raw(adata):
    other = adata.copy()
    other.raw = adata
    other.X = np.log1p(other.X)
    return other


def written(adata, tmp_path, kind):
    path = tmp_path / f"cells.{kind}"
    if kind == "zarr":
        adata.write_zarr(path)
        return anndata.read_zarr(path)
    adata.write_h5ad(path)
    return anndata.read_h5ad(path, backed="r")


def in_mudata(**modalities):
    mudata = pytest.importorskip("mudata")
    mudata.set_options(pull_on_update=False)
    return mudata.MuData(modalities)


FORMS = {
    "view": lambda adata, _: adata[10:50],
    "subset": lambda adata, _: adata[10:50].copy(),
    "reordered": lambda adata, _: adata[::-1, ::-1].copy(),
    "concatenated": lambda adata, _: concatenated(adata, merge="same", uns_merge="same"),
    "raw": lambda adata, _: with_raw(adata),
    "backed": lambda adata, path: written(adata, path, "h5ad"),
    "zarr": lambda adata, path: written(adata, path, "zarr"),
    "MuData": lambda adata, _: in_mudata(rna=adata.copy(), prog=lp.tl.programs(adata))["rna"],
}


@pytest.mark.filterwarnings("ignore:no markers are named:UserWarning")  # few samples
@pytest.mark.filterwarnings("ignore:Writing zarr v2 data:UserWarning")
@pytest.mark.parametrize("form", FORMS)
def test_tools_and_plots_take_every_form(fitted, form, tmp_path):
    """Loadings are those of the samples, and nothing is written into the object it came from."""
    adata, layer = FORMS[form](fitted, tmp_path), "raw" if form == "raw" else None
    before = fitted.uns["log1p_nmf"]["factor_names"].tolist()
    rows = [fitted.obs_names.get_loc(name) for name in adata.obs_names]
    np.testing.assert_array_equal(lp.as_fit(adata).loadings, lp.as_fit(fitted).loadings[rows])
    lp.tl.rename_factors(adata, {"k1": "new"})
    lp.tl.markers(adata, layer=layer, n_jobs=1)
    lp.tl.usage(adata, "condition", replicate="donor")
    lp.pl.usage(adata)
    lp.pl.structure(adata, groupby="condition")
    lp.pl.embedding(adata, basis="umap")
    lp.pl.top_features(adata)
    plt.close("all")
    assert lp.tl.programs(adata).var_names.tolist() == ["k0", "new"]
    lp.tl.log1p_nmf(adata, 2, layer=layer, key_added="again", mask_var="variable:10", **FAST)
    lp.tl.extend_features(adata, key="again", n_jobs=1)
    lp.tl.transform(fitted[:20].copy(), adata, n_jobs=1)
    lp.tl.transform(adata, fitted, layer=layer, n_jobs=1)
    assert adata.obsm["X_log1p_nmf"].shape == (len(rows), 2)
    assert fitted.uns["log1p_nmf"]["factor_names"].tolist() == before
    assert "again" not in fitted.uns
    if getattr(adata, "isbacked", False):
        adata.file.close()


@pytest.mark.filterwarnings("ignore:no markers are named:UserWarning")
def test_features_go_by_their_symbols(fitted):
    """A feature without a symbol of its own keeps its name."""
    adata = fitted.copy()
    adata.var["symbol"] = [None, "TWICE", "TWICE", *(f"S{j}" for j in range(3, 20))]
    symbols = ["g0", "g1", "g2", *adata.var["symbol"][3:]]
    lp.tl.log1p_nmf(adata, 2, mask_var=np.arange(20) > 1, **FAST)
    lp.tl.markers(adata, gene_symbols="symbol", n_top=None, n_jobs=1)
    table = adata.uns["log1p_nmf_markers"]["table"]
    assert dict(zip(table["feature"], table["symbol"], strict=True)) == dict(
        zip(adata.var_names[2:], symbols[2:], strict=True)
    )
    assert lp.as_fit(adata, gene_symbols="symbol").feature_names.tolist() == symbols[2:]
    listed = lp.analysis.top_features(adata, 1, gene_symbols="symbol")["feature"].tolist()
    summary = lp.Log1pNMF.of(adata, gene_symbols="symbol").summary(n_top=1)
    assert all(name in symbols and name in summary for name in listed)
    named = lp.analysis.suggest_names(adata, {"set": symbols[3:11]}, gene_symbols="symbol")
    assert named.equals(lp.analysis.suggest_names(adata, {"set": symbols[3:11]}, feature_names=symbols[2:]))
    with pytest.raises(ValueError, match="the source is a Fit"):
        lp.as_fit(lp.as_fit(adata), gene_symbols="symbol")


@pytest.mark.filterwarnings("ignore:no markers are named:UserWarning")
def test_counts_that_were_normalised_after_the_fit_are_no_counts(fitted):
    adata = with_raw(fitted)
    for find in (lp.tl.markers, lp.tl.evidence, lp.tl.extend_features):
        with pytest.raises(ValueError, match=r"pass layer= with the counts \(adata has: 'raw'"):
            find(adata)
    adata.layers["counts"] = fitted.X
    lp.tl.markers(adata, n_jobs=1)
    expected = lp.tl.markers(fitted, n_jobs=1, copy=True)
    assert adata.uns["log1p_nmf_markers"]["table"].equals(expected.uns["log1p_nmf_markers"]["table"])
    for call in (lambda: lp.tl.log1p_nmf(adata, 2, layer="X", **FAST), lambda: lp.tl.markers(adata)):
        with pytest.warns(UserWarning, match="non-integer values"):  # fractions on purpose
            call()


@pytest.mark.filterwarnings("ignore:no markers are named:UserWarning")
def test_what_does_not_work_has_advice(fitted, tmp_path):
    mdata, raw = SimpleNamespace(mod={"rna": fitted}, obsm={}, varm={}, uns={}), with_raw(fitted).raw
    backed = written(fitted, tmp_path, "h5ad")
    new = lp.tl.transform(fitted[:30], fitted, n_jobs=1, copy=True)
    mixed = anndata.concat([fitted[30:], new], merge="same", uns_merge="same")
    for source, error, advice in (
        (mdata, TypeError, r"modalities, such as mdata\['rna'\]"),
        (raw, TypeError, r"pass adata itself, with layer='raw'"),
        (concatenated(fitted), KeyError, r"log1pnmf\.tl\.transform with the object that was fitted"),
        (mixed, ValueError, r"concatenated, use log1pnmf\.tl\.transform with the one that was fitted"),
        (fitted[:, :15].copy(), ValueError, "take the model from the object as it was before"),
        (fitted[:0].copy(), ValueError, "adata has no samples"),
        (backed[:40], ValueError, r"pass adata\.to_memory\(\), or copy=True"),
    ):
        for call in (lp.tl.markers, lambda adata: lp.tl.usage(adata, "condition"), lp.tl.programs):
            if not (call is lp.tl.programs and source is not mdata and source is not raw):
                with pytest.raises(error, match=advice):
                    call(source)
    for source in (mdata, raw):
        with pytest.raises(TypeError, match="pass "):
            lp.pl.structure(source)
    with pytest.raises(ValueError, match=r"pass layer= with the counts \(adata has: 'raw'"):
        lp.tl.transform(with_raw(fitted), fitted)
    backed.file.close()
    pytest.importorskip("xarray")
    lazy = anndata.experimental.read_lazy(tmp_path / "cells.h5ad")
    with pytest.raises(ValueError, match=r"read lazily, .* pass adata\.to_memory\(\)"):
        lp.tl.markers(lazy)
    lp.tl.markers(lazy.to_memory(), n_jobs=1)


def test_programmes_have_the_layout_of_the_evaluators(fitted, tmp_path):
    fit, found = lp.as_fit(fitted), lp.tl.programs(fitted)
    np.testing.assert_array_equal(found.X, fit.loadings)
    np.testing.assert_array_equal(found.varm["loadings"], fit.factors.T)
    assert found.uns["var_names"].tolist() == fitted.var_names.tolist()
    assert found.var_names.tolist() == fit.factor_names
    assert found.obs.equals(fitted.obs)
    found.write_h5ad(tmp_path / "p.h5ad")
    assert anndata.read_h5ad(tmp_path / "p.h5ad").uns["var_names"].tolist() == fitted.var_names.tolist()
    plain = lp.tl.programs(lp.fit_log1p_nmf(fitted.X, 2, **FAST))
    assert plain.uns["var_names"][:2].tolist() == plain.obs_names[:2].tolist() == ["0", "1"]
    in_mudata(rna=fitted.copy(), prog=found).write(tmp_path / "m.h5mu")
    back = pytest.importorskip("mudata").read(tmp_path / "m.h5mu")["prog"]
    np.testing.assert_array_equal(back.varm["loadings"], fit.factors.T)
