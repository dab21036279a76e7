"""Findings about a fit in AnnData: the library's tables, in files, under new names, until the next fit."""

import anndata
import numpy as np
import pytest
from matplotlib.figure import Figure

import log1pnmf as lp
from log1pnmf.analysis import evidence, markers, usage
from log1pnmf.pl.canvas import fit_to_draw

FAST = {"init": "nndsvd", "tol": 1e-4, "n_jobs": 1}
FEW = {"n_seeds": 1, "n_bootstrap": 1, "n_jobs": 1}
FINDINGS = {
    "markers": (
        lambda adata, **key: lp.tl.markers(adata, n_top=None, **key),
        lambda fit, adata: markers(fit, adata.layers["counts"]),
        lambda adata, **key: lp.pl.volcano(adata, 1, ax=Figure().subplots(), **key),
    ),
    "usage": (
        lambda adata, **key: lp.tl.usage(adata, "condition", replicate="donor", **key),
        lambda fit, adata: usage(fit, adata.obs["condition"], replicate=adata.obs["donor"]),
        lambda adata, **key: lp.pl.usage(adata, figure=Figure(), **key),
    ),
    "evidence": (
        lambda adata, **key: lp.tl.evidence(adata, **FEW, **key),
        lambda fit, adata: evidence(fit, adata.layers["counts"], **FEW),
        None,
    ),
}
"""How a tool finds it, what the library finds, and its plot."""


@pytest.mark.parametrize("key", [None, "programmes"])
@pytest.mark.parametrize("what", FINDINGS)
def test_tables_are_those_of_the_library_with_the_names_of_factors_until_the_next_fit(tmp_path, what, key):
    find, directly, draw = FINDINGS[what]
    own = (np.arange(60)[:, None] % 2 == 0) == (np.arange(16) < 8)
    adata = anndata.AnnData(np.random.default_rng(0).poisson(np.where(own, 6.0, 0.5)).astype(np.float32))
    adata.obs["donor"] = [f"d{i // 10}" for i in range(60)]
    adata.obs["condition"] = np.repeat(["a", "b"], 30)
    adata.layers["counts"] = adata.X.copy()
    lp.tl.log1p_nmf(adata, 2, layer="counts", key_added=key, obs_keys=True, **FAST)
    adata.X = np.log1p(adata.X)  # the layer of the fit is used again
    find(adata, key=key)
    expected = directly(lp.as_fit(adata, key=key), adata).table()
    lp.tl.rename_factors(adata, {"k1": "last"}, key=key)
    adata.write_h5ad(tmp_path / "a.h5ad")
    back = anndata.read_h5ad(tmp_path / "a.h5ad")
    assert lp.as_fit(back, key=key).factor_names == ["k0", "last"]
    assert fit_to_draw(back, key=key).factor_names == ["k0", "last"]
    before = "" if key is None else "programmes_"
    assert [name for name in back.obs if name.startswith(before)][-2:] == [f"{before}k0", f"{before}last"]
    table = back.uns[f"{key or 'log1p_nmf'}_{what}"]["table"]
    for name, column in expected.items():
        renamed = np.where(column == "k1", "last", column) if name == "factor" else column
        np.testing.assert_array_equal(table[name], renamed, err_msg=name)
    if draw is not None:
        draw(back, key=key)
        with pytest.raises(KeyError, match=f"other_{what}"):
            draw(back, key="other")
    lp.tl.log1p_nmf(back, 2, c=10.0, layer="counts", key_added=key, **FAST)
    assert not [name for name in back.uns if name.endswith(what)]
