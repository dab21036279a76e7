"""Counts in ``adata.raw``."""

import anndata
import numpy as np
import pytest

from log1pnmf import tl
from log1pnmf.counts import read_table


@pytest.fixture
def adata():
    """X is normalised and has fewer features, in another order, than raw."""
    counts = np.random.default_rng(0).poisson(2.0, (40, 12)).astype(np.float32)
    whole = anndata.AnnData(counts)
    whole.var_names = [f"g{j}" for j in range(12)]
    part = whole[:, ["g7", "g2", "g5", "g0", "g9"]].copy()
    part.raw = whole
    part.X = np.log1p(part.X)
    return part


@pytest.mark.filterwarnings("ignore:no markers are named:UserWarning")  # few samples
def test_the_features_of_the_object_are_found_in_raw(adata):
    expected = anndata.AnnData(adata.raw[:, adata.var_names].X.copy())
    expected.var_names = adata.var_names
    for one, where in ((adata, {"layer": "raw"}), (expected, {})):
        tl.log1p_nmf(one, 2, tol=1e-3, n_jobs=1, **where)
    np.testing.assert_array_equal(adata.varm["log1p_nmf"], expected.varm["log1p_nmf"])
    assert adata.uns["log1p_nmf"]["layer"] == "raw"
    tl.markers(adata)  # finds the same counts again
    assert "log1p_nmf_markers" in adata.uns
    del adata.raw
    with pytest.raises(KeyError, match=r"adata.raw is empty"):
        tl.log1p_nmf(adata, 2, layer="raw")


def test_log_normalised_values_are_refused_with_the_places_of_counts(adata, tmp_path):
    """The same in Python and in the shell; a place that is named is taken as it is, with a warning."""
    adata.layers["spliced"] = np.rint(adata.X)
    with pytest.raises(ValueError, match=r"not whole numbers: .*\(adata has: 'spliced', 'raw' .*layer='X'"):
        tl.log1p_nmf(adata, 2)
    adata.write_h5ad(tmp_path / "x.h5ad")
    with pytest.raises(ValueError, match=r"not counted; choose another layer with --layer \(raw, spliced\)"):
        read_table(tmp_path / "x.h5ad")
    with pytest.warns(UserWarning, match="non-integer"):
        tl.log1p_nmf(adata, 2, tol=1e-3, layer="X")
    assert adata.uns["log1p_nmf"]["layer"] == "X"
    with pytest.warns(UserWarning, match="non-integer"):
        tl.markers(adata)
