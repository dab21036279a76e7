"""Golden fits: what was computed once is computed still, through every face.

``python -m tools.fingerprints --write`` writes tests/golden.json anew; the commit says why a figure changed.
"""

import json

import anndata
import numpy as np
import pytest
from tools.fingerprints import GOLDEN, fits, made_up_counts

import log1pnmf as lp
from log1pnmf.cli import main

EXPECTED = json.loads(GOLDEN.read_text())


@pytest.mark.filterwarnings("ignore")
def test_golden_fits():
    found = {name: model.log_likelihood_ for name, model in fits(only=EXPECTED)}
    assert found == pytest.approx(EXPECTED, rel=1e-8)


def test_the_same_bits_through_every_face(tmp_path):
    counts = made_up_counts()
    by_function = lp.fit_log1p_nmf(counts, 3)
    by_estimator = lp.Log1pNMF(3).fit(counts).fit_
    adata = anndata.AnnData(counts.astype(np.float32))
    adata.write_h5ad(tmp_path / "counts.h5ad")
    lp.tl.log1p_nmf(adata, 3)
    assert main(["fit", str(tmp_path / "counts.h5ad"), "-k", "3", "-o", str(tmp_path / "out")]) == 0
    by_shell = [lp.Fit.load(path) for path in (tmp_path / "out").rglob("*.npz")]
    for fit in (by_estimator, lp.as_fit(adata), *by_shell):
        assert np.array_equal(fit.loadings, by_function.loadings)
        assert np.array_equal(fit.factors, by_function.factors)
    assert len(by_shell) == 1
