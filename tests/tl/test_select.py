"""`tl.select` and its picture."""

import anndata
import numpy as np
import pytest
from matplotlib.figure import Figure

import log1pnmf as lp

QUICK = {"n_folds": 2, "n_seeds": 2, "tol": 1e-4, "size_factors": "none", "n_jobs": 1}


@pytest.fixture(scope="module")
def adata(three_groups):
    adata = anndata.AnnData(np.log1p(three_groups), layers={"counts": three_groups})
    adata.var["used"] = np.arange(30) % 5 > 0
    lp.tl.select(adata, [1, 2, 3, 4], c=float("inf"), layer="counts", mask_var="used", **QUICK)
    return adata


def test_results_are_those_of_select_and_small(adata, tmp_path):
    about = adata.uns["log1p_nmf_select"]
    found = lp.select(adata.layers["counts"][:, adata.var["used"]], [1, 2, 3, 4], float("inf"), **QUICK)
    for name, column in found.summary.items():
        np.testing.assert_array_equal(about["table"][name], column)
    assert about["suggested"] == found.judgement.setting.parameters
    assert about["suggested"]["n_components"] == 3
    assert about["judgement"] == str(found.judgement)
    adata.write_h5ad(tmp_path / "adata.h5ad")
    again = anndata.read_h5ad(tmp_path / "adata.h5ad").uns["log1p_nmf_select"]
    assert again["judgement"] == about["judgement"]
    assert lp.pl.select(anndata.read_h5ad(tmp_path / "adata.h5ad"), figure=Figure()).axes


def test_the_picture_shows_likelihood_stability_and_the_judgement(adata):
    above, below = lp.pl.select(adata, figure=Figure()).axes
    table = adata.uns["log1p_nmf_select"]["table"]
    np.testing.assert_array_equal(above.containers[0].lines[0].get_ydata(), table["difference"])
    np.testing.assert_array_equal(below.containers[0].lines[0].get_ydata(), table["stability"])
    headline = adata.uns["log1p_nmf_select"]["judgement"].splitlines()[0]
    assert " ".join(above.get_title(loc="left").split()) == headline
    star, ring = (points.get_offsets()[0][0] for points in above.collections[-2:])
    assert star == table["n_components"].to_numpy()[np.argmax(table["difference"])]
    assert ring == 3.0


def test_c_is_the_axis_where_there_is_one_number_of_factors(adata):
    found = lp.select(adata.layers["counts"], 2, [0.1, float("inf")], **{**QUICK, "n_seeds": 0})
    (ax,) = lp.pl.select(found, figure=Figure()).axes  # without seeds there is no stability
    assert ax.get_xlabel() == "c"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.1", "∞"]
    np.testing.assert_allclose(ax.containers[0].lines[0].get_ydata(), found.summary["difference"])
    with pytest.raises(ValueError, match="over must be one of"):
        lp.pl.select(found, over="K")


def test_key_and_copy(adata):
    bare = anndata.AnnData(adata.layers["counts"])
    kept = lp.tl.select(bare, [1, 2], key_added="mine", copy=True, **QUICK)
    assert list(bare.uns) == []
    assert list(kept.uns) == ["mine_select"]
    assert lp.pl.select(kept, key="mine", figure=Figure()).axes
    with pytest.raises(KeyError, match="which log1pnmf"):
        lp.pl.select(kept, figure=Figure())
    with pytest.raises(TypeError, match="must be an AnnData"):
        lp.tl.select(adata.layers["counts"], [1, 2])
    other = anndata.AnnData(np.log1p(bare.X), layers={"mine": bare.X})  # variable features are of the layer
    lp.tl.select(other, [1, 2], layer="mine", mask_var="variable:20", **QUICK)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_batches_are_a_column_of_obs(adata):
    counts = adata.layers["counts"]
    batched = anndata.AnnData(counts)
    batched.obs["donor"] = np.resize(["d1", "d2"], len(counts))
    quick = {**QUICK, "n_seeds": 0, "init": "nndsvd", "max_iter": 10}
    lp.tl.select(batched, [1, 2], batch_key="donor", **quick)
    found = lp.select(counts, [1, 2], 1.0, batch=batched.obs["donor"], **quick)
    mine = batched.uns["log1p_nmf_select"]["table"]["log_likelihood"]
    np.testing.assert_array_equal(mine, found.summary["log_likelihood"])
    assert mine.iloc[0] != lp.select(counts, [1, 2], 1.0, **quick).summary["log_likelihood"][0]
    with pytest.raises(KeyError, match=r"batch_key: .*obs has no column 'chip'"):
        lp.tl.select(batched, [1, 2], batch_key="chip")
