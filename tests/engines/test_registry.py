"""Engines by name, and what each supports."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from log1pnmf import fit_log1p_nmf
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.registry import ENGINES, as_counts, check_memory, make_engine, resolve_engine, supports
from log1pnmf.model.noise import NegativeBinomial, ShiftedLog
from log1pnmf.model.problem import Problem

Y = np.random.default_rng(0).poisson(1.5, size=(12, 9)).astype(float)


def problem_of(counts):
    return Problem(counts, counts.size_factors("none"), ShiftedLog(1.0))


@pytest.mark.parametrize("name", ENGINES[1:])
def test_every_engine_refuses_what_it_cannot_do(name):
    problem = problem_of(as_counts(Y, name))
    dispersed = replace(problem, noise=NegativeBinomial(0.5))
    for one in (problem, dispersed):
        assert supports(name, one, "newton") is None
    assert supports(name, dispersed, "coordinate") is not None
    assert (supports(name, problem, "coordinate") is None) == (name == "native")


@pytest.mark.parametrize("name", ["native", "torch"])
def test_counts_in_chunks_are_for_the_streaming_engine(name):
    counts = as_counts(Y, "streaming")
    with pytest.raises(ValueError, match="needs counts in memory, but these are in chunks"):
        make_engine(name, problem_of(counts))
    assert resolve_engine("auto", counts, 2) == "streaming"
    assert resolve_engine("auto", Counts.from_any(Y), 2, "coordinate") == "native"
    assert resolve_engine("streaming", Counts.from_any(Y), 2) == "native"  # a part of chunks in memory


def test_very_many_factors_are_warned_about_before_any_work():
    counts = Counts.from_any(np.eye(4))
    with pytest.warns(UserWarning, match="n_components=4000 needs about 1.7 GB .* each of 2 threads"):
        check_memory("native", counts, 4000, 2)
    check_memory("native", counts, 64, 2)  # no warning


def test_an_installation_of_pytorch_that_is_broken_is_one_error(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libsomething is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(ImportError, match=r"needs torch: pip install torch \(libsomething is missing\)"):
        fit_log1p_nmf([[1, 2], [3, 4]], 1, engine="torch")
