"""Factors that come back over numbers of factors and donors, through every face."""

import anndata
import numpy as np
import pytest
from matplotlib.figure import Figure

from log1pnmf import as_fit, fit_log1p_nmf, pl, tl
from log1pnmf.analysis import consensus
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.cli import main
from log1pnmf.cli.run_folder import RunFolder
from log1pnmf.model.noise import ShiftedLog

QUICK = {"tol": 1e-5, "n_jobs": 1, "verbose": 0}
FAST = {"init": "nndsvd", "tol": 1e-3, "n_jobs": 1}


@pytest.fixture(scope="module")
def cells():
    """Three donors share three factors, and donor c has one of its own: counts, donors, factors."""
    rng = np.random.default_rng(0)
    factors = np.minimum(3.0 * rng.gamma(0.5, size=(60, 4)), 5.0)
    donor, loadings = np.repeat(list("abc"), 60), rng.dirichlet(np.full(4, 0.3), size=180)
    loadings[donor != "c", 3] = 0.0
    return rng.poisson(ShiftedLog(1.0).inverse(loadings @ factors.T)), donor, factors


@pytest.fixture(scope="module")
def found(cells):
    return consensus(cells[0], [4, 5], groupby=cells[1], **QUICK)


@pytest.fixture
def adata(cells):
    return anndata.AnnData(cells[0][::3].astype(np.float32), obs={"donor": cells[1][::3]})


def test_shared_factors_come_back_in_all_donors_and_the_own_one_in_one(cells, found):
    match = match_factors(cells[2], found.final.factors)
    assert match.similarity.min() > 0.98
    table = {name: column[match.pairs[:, 1]].tolist() for name, column in found.table().items()}
    assert table["groups"] == ["a, b, c", "a, b, c", "a, b, c", "c"]
    assert table["n_groups"] == [3, 3, 3, 1]
    assert table["n_fits"] == [6, 6, 6, 2]
    assert set(table["n_components"]) == {"4, 5"}
    assert min(table["similarity_final"]) > 0.98
    assert match_factors(cells[2], found.factors).pairs.tolist() == match.pairs.tolist()
    assert found.similarity.shape == (27, 27)
    assert (found.members["consensus"] == "").sum() == 27 - found.table()["n_fits"].sum()


def test_the_final_fit_is_as_good_as_a_default_fit(cells, found):
    default = fit_log1p_nmf(cells[0], found.final.n_components, **QUICK)
    assert found.final.log_likelihood > default.log_likelihood - 1e-3 * abs(default.log_likelihood)
    assert found.final.converged


def test_numbers_of_factors_alone_batches_and_missing_labels(cells):
    y, donor, _ = cells
    found = consensus(y[:60], [3, 4], batch=donor[:60], noise="nb", **FAST)
    assert set(found.table()["groups"]) == {"all"}
    assert found.table()["n_components"].tolist()[:1] == ["3, 4"]
    labels = np.array([*donor[:110], *[None] * 65, *"xxxxx"], dtype=object)
    with pytest.warns(UserWarning, match=r"only in the final fit are .*: x \(5\), NA \(65\)"):
        found = consensus(y, 6, groupby=labels, least=0.3, **FAST)
    assert list(found.fits) == [("a", 6), ("b", 6)]
    assert len(found.final.loadings) == len(y)
    sizes = np.concatenate([fit.size_factors for fit in found.fits.values()])
    np.testing.assert_allclose(sizes, y[:110].sum(axis=1) / y.sum(axis=1).mean())


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"n_components": 2}, ValueError, "needs several fits"),
        ({"groupby": ["a"]}, ValueError, "groupby must have one label for each of the 20 samples"),
        ({"min_fits": 3}, ValueError, "no factor comes back in 3 fits"),
        ({"init": (np.ones((20, 2)),) * 2}, ValueError, "init must be a name"),
        ({"mask": {"a": [0]}}, TypeError, "mask is not an option of a consensus"),
    ],
)
def test_refused(cells, given, error, words):
    with pytest.raises(error, match=words):
        consensus(cells[0][:20], **{"n_components": [1, 2], **FAST, **given})


def test_annotated_data_hold_the_final_fit_and_the_tables(adata, tmp_path):
    tl.consensus(adata, [3, 4], groupby="donor", **FAST)
    direct = consensus(adata.X, [3, 4], groupby=adata.obs["donor"], **FAST)
    np.testing.assert_array_equal(as_fit(adata).loadings, direct.final.loadings)
    tl.rename_factors(adata, {"k0": "first"})
    adata.write_h5ad(tmp_path / "a.h5ad")
    about = anndata.read_h5ad(tmp_path / "a.h5ad").uns["log1p_nmf_consensus"]
    assert about["table"]["n_fits"].tolist() == direct.table()["n_fits"].tolist()
    assert about["table"]["factor"].tolist()[0] == "first"
    assert "first" in set(about["members"]["consensus"])
    tl.log1p_nmf(adata, 2, **FAST)
    assert "log1p_nmf_consensus" not in adata.uns  # it was of another fit


def test_the_picture_frames_each_factor_of_the_final_fit(found, adata):
    tl.consensus(adata, [3, 4], **FAST)
    for source, fit, groups in ((found, found.final, "abc"), (adata, as_fit(adata), ["K = 3", "K = 4"])):
        figure = pl.consensus(source, figure=Figure(layout="constrained"))
        right = figure.axes[2]
        assert sorted(label.get_text() for label in right.get_yticklabels()) == sorted(fit.factor_names)
        assert len(right.patches) == fit.n_components
        assert [text.get_text() for text in figure.legends[0].get_texts()] == list(groups)


def test_the_command_writes_a_run_with_table_and_picture(adata, tmp_path, capsys):
    adata.write_h5ad(tmp_path / "y.h5ad")
    quick = ["--set", "tol=1e-3", "--set", "init=nndsvd", "--jobs", "1", "--no-report"]
    call = ["consensus", str(tmp_path / "y.h5ad"), "-k", "3,4", "--groupby", "donor", *quick]
    assert main([*call, "-o", str(tmp_path / "out")]) == 0
    assert "fits, K = 3, 4, in a, b, c" in capsys.readouterr().out
    direct = consensus(adata.X, [3, 4], groupby=adata.obs["donor"], **FAST)
    np.testing.assert_array_equal(RunFolder.open(tmp_path / "out").fit().factors, direct.final.factors)
    header, *rows = (tmp_path / "out" / "consensus.csv").read_text().splitlines()
    assert header.startswith("factor,n_fits,n_groups,groups,n_components,similarity")
    assert len(rows) == direct.final.n_components
    assert (tmp_path / "out" / "consensus.png").stat().st_size > 1000
    assert main(["rename", str(tmp_path / "out"), "k1=new, name"]) == 0
    assert "consensus.png has the names that factors had before" in capsys.readouterr().out
    renamed = (tmp_path / "out" / "consensus.csv").read_text().splitlines()
    assert renamed == [header, rows[0], rows[1].replace("k1,", '"new, name",', 1), *rows[2:]]
    assert main([*call, "-c", "1,2", "-o", str(tmp_path / "other")]) == 2
    assert "takes one c" in capsys.readouterr().err
