"""``log1pnmf fit --engine streaming``."""

import anndata
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from log1pnmf import Fit, fit_log1p_nmf


@pytest.fixture
def file(matrix, tmp_path):
    obs = pd.DataFrame({"type": ["a", "b"] * 101 + ["a"]}, index=[f"s{i}" for i in range(203)])
    adata = anndata.AnnData(
        sparse.csr_matrix(matrix), obs=obs, var=pd.DataFrame(index=[f"g{j}" for j in range(60)])
    )
    adata.write_h5ad(tmp_path / "counts.h5ad")
    return tmp_path / "counts.h5ad"


def test_fit_from_disk(call, file, matrix, tmp_path):
    options = ["-k", 3, "--jobs", 1, "--no-report", "--groupby", "type", "--max-memory", "1GB"]
    options += ["--engine", "streaming", "--set", "tol=1e-5", "--set", "likelihood=chebyshev"]
    done = call("fit", file, "-o", tmp_path / "out", *options)
    assert done.code == 0, done.err
    assert "203 samples x 60 features" in done.out
    assert "1 chunks" in done.out
    fit = Fit.load(next((tmp_path / "out").rglob("*.npz")))
    assert fit.settings.engine == "streaming"
    assert fit.sample_names.tolist() == [f"s{i}" for i in range(203)]
    assert fit.feature_names[0] == "g0"
    assert fit.loadings.shape == (203, 3)
    expected = fit_log1p_nmf(matrix, 3, likelihood="chebyshev", tol=1e-5, engine="streaming")
    np.testing.assert_allclose(fit.objective, expected.objective, rtol=1e-12)


def test_what_does_not_stream_is_refused(call, file, tmp_path):
    streaming = ["-k", 3, "-o", tmp_path / "out", "--engine", "streaming"]
    for wrong, word in (
        (["--min-samples", 3], "cannot filter or transpose"),
        (["--write-h5ad", tmp_path / "x.h5ad"], "would load all counts"),
        (["--max-memory", "much"], "memory must be a size"),
        (["--mask-var", "used"], "cannot filter or transpose"),
    ):
        done = call("fit", file, *streaming, *wrong)
        assert done.code != 0
        assert word in " ".join(done.err.replace("│", " ").split())


def test_the_address_of_a_cluster_is_an_engine(call, file, tmp_path, monkeypatch):
    plans = []
    monkeypatch.setattr("log1pnmf.cli.fit.carry_out", lambda plan: plans.append(plan) or 0)
    assert call("fit", file, "-k", 3, "-o", tmp_path / "out", "--engine", "tcp://host:8786").code == 0
    assert (plans[0].scheduler, plans[0].parameters["engine"]) == ("tcp://host:8786", "streaming")
