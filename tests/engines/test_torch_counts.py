"""Counts on a device: brought there, gone with those of the host; on a card with ``-m gpu``."""

import gc
import math
import warnings
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from log1pnmf import fit_log1p_nmf  # noqa: E402
from log1pnmf._common.arrays import on_host  # noqa: E402
from log1pnmf.counts.counts import Counts  # noqa: E402
from log1pnmf.engines.torch import rows as torch_rows  # noqa: E402
from log1pnmf.engines.torch.engine import TorchEngine  # noqa: E402
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


@pytest.mark.parametrize("device", DEVICES)
def test_counts_are_uploaded_once_and_leave_with_the_engine(device, monkeypatch):
    monkeypatch.setattr(torch_rows, "SORTED_ENTRIES", 100)
    problem, loadings, factors = example()
    engine = TorchEngine(problem, device)
    engine.collect_zeros(loadings, factors, np.ones(M))
    counts, uploaded = problem.counts, engine.problem.counts
    assert engine.with_problem(problem).problem.counts is uploaded
    columns, expected = uploaded.by_column, counts.by_column
    for name in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(on_host(getattr(columns, name)), getattr(expected, name))
    np.testing.assert_allclose(columns.row_sums(), expected.row_sums())
    for name in ("indptr", "values", "times"):
        np.testing.assert_array_equal(getattr(uploaded.tally, name), getattr(counts.tally, name))
    assert uploaded.n_empty_columns == counts.n_empty_columns == 1
    assert uploaded.log_factorial == pytest.approx(counts.log_factorial, rel=1e-12)
    assert uploaded.on_host().by_row is counts.by_row
    left = weakref.ref(uploaded.there)
    del uploaded, engine, columns
    gc.collect()
    assert left() is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [{}, {"noise": "nb"}, {"size_factors": "fit"}, {"batch": np.repeat([0, 1], 30)}, {"c": math.inf}],
    ids=lambda one: next(iter(one), "exact"),
)
def test_a_fit_of_counts_larger_than_the_card_is_the_same(options, monkeypatch):
    Y = np.random.default_rng(0).poisson(0.7, size=(60, 40)) + np.eye(60, 40, dtype=int)
    options = {"engine": "torch", "max_iter": 8, "init": "nndsvd"} | options
    uploaded = _quiet(Y, 2, **options)
    monkeypatch.setattr(torch_rows, "fits", lambda size, device: False)
    streamed = _quiet(Y, 2, **options)
    assert uploaded.objective == pytest.approx(streamed.objective, rel=1e-9)
    np.testing.assert_allclose(uploaded.factors, streamed.factors, atol=1e-6 * streamed.factors.max())
    assert uploaded.data == streamed.data
    assert [sum("in blocks" in one for one in fit.messages) for fit in (uploaded, streamed)] == [0, 1]


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
