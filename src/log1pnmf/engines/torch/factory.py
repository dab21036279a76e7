"""Factories of the PyTorch engine; they do not import PyTorch until it is needed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from log1pnmf._common.optional import require
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine, Factory
from log1pnmf.model.problem import Problem

__all__ = ["TorchFactory"]

LEAST_WORK_FOR_A_GPU = 2e7
"""Non-zeros times factors from which "auto" takes a graphics card."""


class TorchFactory(Factory):
    """Makes PyTorch engines of one precision."""

    row_solvers = ("newton",)

    def __init__(self, name: str, precision: Literal["float32", "float64"]) -> None:
        self.name, self.precision = name, precision

    def __call__(self, problem: Problem, n_threads: int | None = None, *, verbose: int = 0) -> Engine:
        """Make an engine for a problem."""
        module = require("log1pnmf.engines.torch.engine", extra="gpu", purpose=f"engine={self.name!r}")
        engine: Engine = module.TorchEngine(problem, precision=self.precision)
        return engine

    def suits(self, counts: Counts, n_components: int, row_solver: str) -> bool:
        """Whether the counts are on a device, or there is a CUDA card and enough to do."""
        if not counts.in_memory:
            return False
        entries: Any = counts.by_row.indices
        if not isinstance(entries, np.ndarray):
            return True
        large = counts.nnz * n_components >= LEAST_WORK_FOR_A_GPU
        return large and self.lacks(row_solver) is None and has_card()


def has_card() -> bool:
    """Whether PyTorch is installed and finds a CUDA card."""
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())
