"""Factories of the PyTorch engine; they do not import PyTorch until it is needed."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import sparse

from log1pnmf._common.checks import require
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine, Factory, RowSolver
from log1pnmf.model.noise import NegativeBinomial, Noise
from log1pnmf.model.problem import Problem

# ---------- pyTorch, the card and Triton need seconds to be ready


def driver() -> ctypes.CDLL | None:
    """Return the library of the driver that PyTorch would load; None where there is none."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def begin_loading() -> Callable[[], object]:
    """Begin to load PyTorch, to start the card, and to prepare Triton."""
    loaded = threading.Event()
    if "torch" in sys.modules:
        loaded.set()
    else:
        threading.Thread(target=_load, args=(loaded,)).start()
        threading.Thread(target=start_card).start()
    return loaded.wait


def _load(loaded: threading.Event) -> None:
    """Import PyTorch, and let Triton find out which compiled kernels are its own; errors come up in use."""
    with contextlib.suppress(Exception):
        try:
            import torch
        finally:
            loaded.set()
        if torch.cuda.is_available():
            from triton.runtime.cache import triton_key

            triton_key()  # reads its own files for 0.4 s, and remembers the result


def start_card() -> None:
    """Make the context of the first card, which PyTorch will use; this needs no Python."""
    cuda, card, context = driver(), ctypes.c_int(), ctypes.c_void_p()
    if cuda is not None and cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(card), 0) == 0:
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), card)


# ---------- factories of the PyTorch engine; they do not import PyTorch until it is needed

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
        """Return why counts cannot be fitted: in chunks, or too large for single precision."""
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
