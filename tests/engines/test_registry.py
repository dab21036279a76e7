"""Engines by name, and what each supports."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from log1pnmf import fit_log1p_nmf
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.engines.registry import as_counts, make_engine, resolve_engine
from log1pnmf.model.batches import Batches
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem

Y = np.random.default_rng(0).poisson(1.5, size=(12, 9)).astype(float)


def problem_of(counts):
    return Problem(counts, counts.size_factors("none"), ShiftedLog(1.0))


def test_only_the_native_engine_has_the_coordinate_solver_and_without_batches():
    problem = problem_of(Counts.from_any(Y))
    assert isinstance(make_engine("native", problem, row_solver="coordinate"), NativeEngine)
    in_batches = replace(problem, batches=Batches.of(["a", "b"] * 6, Y.shape, 1.0))
    with pytest.raises(ValueError, match="row_solver='coordinate' has no batches; use 'newton'"):
        make_engine("native", in_batches, row_solver="coordinate")
    with pytest.raises(ValueError, match="it has row_solver='newton' only, got 'coordinate'"):
        make_engine("streaming", problem_of(as_counts(Y, "streaming")), row_solver="coordinate")


@pytest.mark.parametrize("name", ["native", "torch"])
def test_counts_in_chunks_are_for_the_streaming_engine(name):
    counts = as_counts(Y, "streaming")
    with pytest.raises(ValueError, match="needs counts in memory, but these are in chunks"):
        make_engine(name, problem_of(counts))
    assert resolve_engine("auto", counts, 2) == "streaming"
    assert resolve_engine("auto", Counts.from_any(Y), 2, "coordinate") == "native"
    assert resolve_engine("streaming", Counts.from_any(Y), 2) == "native"  # a part of chunks in memory


def test_an_installation_of_pytorch_that_is_broken_is_one_error(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libsomething is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(ImportError, match=r"needs torch: pip install torch \(libsomething is missing\)"):
        fit_log1p_nmf([[1, 2], [3, 4]], 1, engine="torch")
