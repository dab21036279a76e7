"""Small AnnData objects of the bundled cells."""

import anndata
import pytest

from log1pnmf.datasets import pancreas


@pytest.fixture(scope="session")
def cells():
    """120 cells of the bundled data, genes with at least one count there; do not change it."""
    data = pancreas()
    chosen = slice(0, 1920, 16)
    adata = anndata.AnnData(data.counts[chosen])
    adata.var_names = data.feature_names
    adata.obs_names = [f"cell{i}" for i in range(adata.n_obs)]
    adata.obs["label"] = data.sample_labels[chosen]
    seen = adata.X.getnnz(axis=0) > 0
    return adata[:, seen][:, :600].copy()


@pytest.fixture
def adata(cells):
    """The same, to be written to."""
    return cells.copy()
