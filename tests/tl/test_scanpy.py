"""Results are what scanpy expects of a representation."""

import numpy as np
import pytest

import log1pnmf as lp

pytest.importorskip("scanpy")


@pytest.mark.parametrize("bundled", [lp.datasets.pancreas, lp.datasets.made_up_donors])
def test_bundled_cells_are_what_scanpy_takes(bundled):
    import anndata
    import scanpy as sc

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
    import matplotlib as mpl

    mpl.use("Agg")
    import scanpy as sc

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
