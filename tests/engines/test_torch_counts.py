"""Counts on a device: brought there, gone with those of the host; on a card with ``-m gpu``."""

import gc
import math
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from log1pnmf import fit_log1p_nmf  # noqa: E402
from log1pnmf.counts.counts import Counts  # noqa: E402
from log1pnmf.engines.torch import rows as torch_rows  # noqa: E402
from log1pnmf.engines.torch.engine import TorchEngine  # noqa: E402
from log1pnmf.engines.torch.rows import TensorCounts  # noqa: E402
from log1pnmf.model.noise import ShiftedLog  # noqa: E402
from log1pnmf.model.problem import Problem  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
N, M = 30, 50


def example(n_components=3):
    """One feature has no counts."""
    rng = np.random.default_rng(0)
    loadings, factors = (rng.uniform(0.2, 0.8, (size, n_components)) for size in (N, M))
    y = rng.poisson(np.expm1(loadings @ factors.T))
    y[:, M // 2], y[:, 0] = 0, 1
    return Problem(Counts.from_any(y), np.ones(N), ShiftedLog(1.0)), loadings, factors


def test_counts_leave_the_device_with_their_rows():
    problem, loadings, factors = example()
    before = len(torch_rows._UPLOADED_ROWS)
    TorchEngine(problem, "cpu").collect_zeros(loadings, factors, np.ones(M))
    assert len(torch_rows._UPLOADED_ROWS) == before + 1
    del problem
    gc.collect()
    assert len(torch_rows._UPLOADED_ROWS) == before


def test_counts_are_uploaded_once_and_leave_with_those_of_the_host():
    counts = example()[0].counts
    uploaded, before = TensorCounts.uploaded(counts, torch.device("cpu")), len(torch_rows._UPLOADED)
    assert TensorCounts.uploaded(counts, torch.device("cpu")) is uploaded
    assert uploaded.on_host() is counts
    assert (uploaded.by_column.to_host().to_scipy() != counts.by_column.to_scipy()).nnz == 0
    assert uploaded.n_empty_columns == counts.n_empty_columns == 1
    assert uploaded.log_factorial == pytest.approx(counts.log_factorial, rel=1e-12)
    del counts
    gc.collect()
    assert len(torch_rows._UPLOADED) == before - 1
    assert uploaded.on_host().shape == (N, M)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [{}, {"noise": "nb"}, {"size_factors": "fit"}, {"batch": np.repeat([0, 1], 30)}, {"c": math.inf}],
    ids=lambda one: next(iter(one), "exact"),
)
def test_a_fit_of_uploaded_counts_is_that_of_the_host(options, monkeypatch):
    Y = np.random.default_rng(0).poisson(0.7, size=(60, 40)) + np.eye(60, 40, dtype=int)
    options = {"engine": "torch", "max_iter": 8, "init": "nndsvd"} | options
    uploaded = _quiet(Y, 2, **options)
    monkeypatch.setattr(TorchEngine, "_uploads", lambda self, counts: False)
    plain = _quiet(Y, 2, **options)
    assert uploaded.objective == pytest.approx(plain.objective, rel=1e-9)
    np.testing.assert_allclose(uploaded.factors, plain.factors, atol=1e-6 * plain.factors.max())
    assert uploaded.data == plain.data


def _quiet(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_log1p_nmf(*args, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["strided", "sparse_csr", "sparse_csc", "sparse_coo"])
@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
def test_counts_on_a_device_are_copied_to_the_host(device, layout):
    y = example()[0].counts.to_scipy().toarray()
    given = torch.tensor(y, device=device)
    given = given if layout == "strided" else given.to_sparse(layout=getattr(torch, layout))
    counts = Counts.from_any(given)
    np.testing.assert_array_equal(counts.to_scipy().toarray(), y)
    fits = [fit_log1p_nmf(data, 2, likelihood="chebyshev") for data in (given, y)]
    np.testing.assert_array_equal(fits[0].factors, fits[1].factors)
