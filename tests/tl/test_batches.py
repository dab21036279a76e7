"""Batches of AnnData: named by a column of obs, kept in uns."""

import anndata
import numpy as np
import pytest

import log1pnmf as lp

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def data():
    rng = np.random.default_rng(0)
    counts = rng.poisson(4.0, (60, 12)).astype(np.float32)
    counts[:30, :3] *= 3
    adata = anndata.AnnData(counts)
    adata.obs["donor"] = np.repeat(["d1", "d2"], 30)
    return adata


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
