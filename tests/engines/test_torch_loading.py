"""PyTorch is loaded in a thread while counts are checked."""

import ctypes
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import sparse

from log1pnmf.engines.registry import FACTORIES, as_counts
from log1pnmf.engines.torch import factory
from log1pnmf.engines.torch import factory as loading

torch = pytest.importorskip("torch")

BEGIN = """
import sys, threading
import numpy as np
from scipy import sparse
import log1pnmf
Y = sparse.csr_array(np.random.default_rng(0).poisson(2.0, (30, 20)).astype(float))
start = np.ones((30, 2)), np.linspace(0.5, 1.5, 40).reshape(20, 2)
"""
FIT = """
fit = log1pnmf.fit_log1p_nmf(Y, 2, init=start, max_iter=500, engine="torch-float64")
assert fit.converged
print(fit.loadings.tobytes().hex())
"""


def run(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )


def test_a_fit_has_the_same_bits_whoever_loads_pytorch():
    ahead, before = run(BEGIN + FIT), run(BEGIN + "import torch" + FIT)
    assert ahead.returncode == 0, ahead.stderr
    assert len(ahead.stdout) > 100
    assert ahead.stdout == before.stdout


def test_bad_counts_are_one_error_and_the_program_ends():
    done = run(BEGIN + "Y.data[3] = -1.0" + FIT)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "counts has 1 negative entry" in done.stderr.splitlines()[-1]


def test_an_installation_that_is_broken_is_one_error(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libsomething is missing')")
    done = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})" + BEGIN + FIT)
    assert done.returncode == 1
    assert "needs torch: pip install torch (libsomething is missing)" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("engine", "driver", "nnz", "begins"),
    [
        ("torch", False, 10, True),
        ("torch-float64", False, 10, True),
        ("auto", True, 1000, True),
        ("auto", True, 10, False),
        ("auto", False, 1000, False),
        ("native", True, 1000, False),
    ],
)
def test_it_begins_where_pytorch_will_be_used(engine, driver, nnz, begins, monkeypatch):
    begun = Mock()
    monkeypatch.setattr(factory, "begin_loading", begun)
    monkeypatch.setattr(factory, "_has_driver", lambda: driver)
    monkeypatch.setattr(factory, "LEAST_WORK_FOR_A_GPU", 1000)
    matrix = sparse.csr_array(np.ones((nnz // 10, 10)))
    assert as_counts(matrix, engine).nnz == nnz
    assert begun.call_count == begun.return_value.call_count == begins
    assert FACTORIES["torch"].begin_loading(np.ones((30, 40)), asked=True) is None


def test_the_card_is_started_where_there_is_one(monkeypatch):
    driver = Mock(**{"cuInit.return_value": 0, "cuDeviceGet.return_value": 0})
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    loading.start_card()
    assert driver.cuDevicePrimaryCtxRetain.call_count == 1
    driver.cuInit.return_value = 100  # no card
    loading.start_card()
    assert driver.cuDevicePrimaryCtxRetain.call_count == 1


def test_pytorch_that_is_loaded_is_not_waited_for():
    assert loading.begin_loading()() is True
