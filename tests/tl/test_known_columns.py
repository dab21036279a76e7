"""Columns of obs and gene sets as known structure, kept in AnnData and in files."""

import anndata
import numpy as np
import pytest

import log1pnmf as lp

N, M = 24, 15


@pytest.fixture
def adata():
    counts = np.random.default_rng(0).poisson(2.0, (N, M))  # the same in any order of the tests
    made = anndata.AnnData(counts.astype(np.float32))
    made.var_names = [f"g{j}" for j in range(M)]
    made.obs["everyone"] = 1.0
    made.obs["treated"] = np.arange(N) % 2 == 0
    made.obs["type"] = np.array(["b", "a", "c"])[np.arange(N) % 3]
    return made


def test_numbers_and_labels_of_samples_become_loadings(adata, tmp_path):
    sets = {"early": ["g1", "g2", "nowhere"]}
    lp.tl.log1p_nmf(
        adata, 7, fixed_loadings=["everyone", "treated", "type"], mask=sets, init="nndsvd", n_jobs=1
    )
    fit = lp.as_fit(adata)
    assert fit.factor_names == ["everyone", "treated", "type=a", "type=b", "type=c", "early", "k6"]
    assert np.array_equal(fit.loadings[:, 1], adata.obs["treated"].to_numpy(dtype=float))
    assert np.array_equal(fit.loadings[:, 3], (adata.obs["type"] == "b").to_numpy(dtype=float))
    assert not np.delete(fit.factors[:, 5], [1, 2]).any()
    adata.write_h5ad(tmp_path / "kept.h5ad")
    turned = anndata.read_h5ad(tmp_path / "kept.h5ad")[:, ::-1].copy()
    again = lp.as_fit(turned)
    assert again.kinds == fit.kinds
    assert np.array_equal(again.mask, fit.mask)
    lp.tl.log1p_nmf(turned, 2, init="nndsvd", n_jobs=1)
    assert lp.as_fit(turned).factor_kinds is None
    with pytest.raises(KeyError, match="obs has no column 'dose'; it has: 'everyone'"):
        lp.tl.log1p_nmf(adata, 3, fixed_loadings=["dose"])


def test_every_list_and_plot_marks_what_was_known(adata, tmp_path):
    """Known factors come first, under their names, and are told from free ones; files keep that."""
    pytest.importorskip("matplotlib").use("Agg")
    known = {"fixed_loadings": "treated", "mask": {"early": ["g1", "g2"]}, "mask_penalty": 2.0}
    lp.tl.log1p_nmf(adata, 3, **known, init="nndsvd")
    adata.write_h5ad(tmp_path / "kept.h5ad")
    kept = anndata.read_h5ad(tmp_path / "kept.h5ad")
    marked = ["treated (known)", "early (known)", "k2"]
    legend = lp.pl.structure(kept, "type").get_legend()
    assert [text.get_text() for text in legend.get_texts()] == marked[::-1]
    assert [text.get_text() for text in lp.pl.loadings_by_group(kept, "type").get_xticklabels()] == marked
    assert [ax.get_title(loc="left") for ax in lp.pl.top_features(kept, n_top=2).axes] == marked
    summary = lp.Log1pNMF.of(kept).summary()
    assert all(f"{name}  " in summary for name in marked)
    assert "known           loadings of treated; features of early (penalty on others 2)" in summary
    page = lp.report.write_report(tmp_path / "report.html", kept, counts=kept.X).read_text()
    assert page.count('<b class="known">') == 2
    assert "known loadings</b>" in page
    assert "treated (known)</button>" in page
    assert "known features</b>" in page
    lp.tl.rename_factors(kept, {"treated": "drug"})
    assert lp.as_fit(kept).factor_labels == ["drug (known)", *marked[1:]]


def test_a_background_takes_what_is_in_every_droplet():
    """Two kinds of cells and ambient counts: the factor made from empty droplets finds the ambient part."""
    rng = np.random.default_rng(1)
    ambient = rng.dirichlet(np.ones(40))
    kinds = rng.dirichlet(np.full(40, 0.2), size=2)
    part = rng.uniform(0.1, 0.5, 80)
    rates = part[:, None] * ambient + (1 - part)[:, None] * kinds[np.arange(80) % 2]
    cells, empty = rng.poisson(3000 * rates), rng.poisson(30 * np.tile(ambient, (400, 1)))
    profile = lp.background(np.r_[cells, empty], c=np.inf, which="empty")
    fit = lp.fit_log1p_nmf(cells, 3, c=np.inf, fixed_factors={"ambient": profile}, n_jobs=1)
    assert fit.factor_names[0] == "ambient"
    found = fit.loadings[:, 0] * profile.sum() / (fit.loadings @ fit.factors.sum(axis=0))
    assert np.corrcoef(found, part)[0, 1] > 0.9
    with pytest.raises(ValueError, match="no sample has between 1 and 5 counts"):
        lp.background(cells, which="empty", most_counts=5)
