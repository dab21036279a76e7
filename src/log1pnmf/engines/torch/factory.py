"""Factories of the PyTorch engine; they do not import PyTorch until it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import sparse

from log1pnmf._common.optional import require
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine, Factory, RowSolver
from log1pnmf.model.negative_binomial import NegativeBinomial
from log1pnmf.model.noise import Noise
from log1pnmf.model.problem import Problem

from .loading import begin_loading, driver

__all__ = ["TorchFactory"]

LEAST_WORK_FOR_A_GPU = 2e7
"""Non-zeros times factors from which "auto" takes a graphics card."""
SINGLE_ROW = 2.0**20
"""Total count of a sample up to which rounding errors of its log-likelihood stay below about 1 in float32."""
DOUBLE_ROW = 2.0**36
"""The same in float64, for rounding errors of 1e-3: the sums of ``y log(em)`` and of its constant cancel."""


class TorchFactory(Factory):
    """Makes PyTorch engines of one precision; of double precision where counts are too large for float32."""

    row_solvers = ("newton",)
    takes_batches = True

    def __init__(self, name: str, precision: Literal["float32", "float64"]) -> None:
        self.name, self.precision = name, precision

    def __call__(self, problem: Problem, n_threads: int | None = None, *, verbose: int = 0) -> Engine:
        """Make an engine for a problem."""
        module = require("log1pnmf.engines.torch.engine", package="torch", purpose=f"engine={self.name!r}")
        precision = self.precision if _single_is_enough(problem.counts) else "float64"
        engine: Engine = module.TorchEngine(problem, precision=precision)
        return engine

    def begin_loading(self, counts: Any, *, asked: bool) -> Callable[[], object] | None:
        """Begin for sparse matrices; under "auto" for those that are large enough for a card that is here."""
        if not sparse.issparse(counts):  # checking others may run code of other packages
            return None
        large = counts.nnz >= LEAST_WORK_FOR_A_GPU and find_spec("torch") is not None
        return begin_loading() if asked or (large and _has_driver()) else None

    def lacks_noise(self, noise: Noise, row_solver: RowSolver) -> str | None:
        """Take negative binomial noise as well."""
        return None if isinstance(noise, NegativeBinomial) else super().lacks_noise(noise, row_solver)

    def refuses(self, counts: Counts) -> str | None:
        """Say that counts are in chunks, or so large that their log-likelihood would be lost in rounding."""
        why = super().refuses(counts)
        if why is None and (most := _largest_total(counts)) > DOUBLE_ROW:
            return (
                f"a sample has {most:.3g} counts, and above {DOUBLE_ROW:.0e} double precision loses digits "
                "of its log-likelihood; use engine='native', with the counts in host memory"
            )
        return why

    def suits(self, counts: Counts, n_components: int, row_solver: str) -> bool:
        """Whether the counts are on a device, or there is a CUDA card and enough to do."""
        if not counts.in_memory:
            return False
        entries: Any = counts.by_row.indices
        if not isinstance(entries, np.ndarray):
            return True
        enough = counts.nnz * n_components >= LEAST_WORK_FOR_A_GPU
        able = self.lacks(row_solver) is None and self.refuses(counts) is None
        return enough and able and has_card()


def _single_is_enough(counts: Counts) -> bool:
    """Whether rounding errors of float32 are below about 1e-6 of the log-likelihood, and 1 in every sample.

    They are about 1e-6 of the root of the sum of squares of the counts. The log-likelihood is about the
    number of counts that are not zero, or more. A few large counts would hide what the others gain.
    """
    largest, limit = _largest_total(counts), float(counts.nnz) ** 2
    return largest <= SINGLE_ROW and (largest * counts.total <= limit or counts.sum_of_squares <= limit)


def _largest_total(counts: Counts) -> float:
    """Largest total count of a sample."""
    return float(np.max(counts.row_sums, initial=0.0))


def has_card() -> bool:
    """Whether PyTorch is installed and finds a CUDA card.

    It is not asked where there is no driver: loading it takes seconds.
    """
    if find_spec("torch") is None or not ("torch" in sys.modules or _has_driver()):
        return False
    import torch

    return bool(torch.cuda.is_available())


def _has_driver() -> bool:
    """Whether the driver of a card is here: Nvidia's library, or AMD's device."""
    return Path("/dev/kfd").exists() or driver() is not None
