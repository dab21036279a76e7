"""Engines by name, and which one suits."""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from scipy import sparse

from log1pnmf._common.checks import Passes, check_choice, require
from log1pnmf.counts.chunks import is_streamed, open_counts
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.passes import survey
from log1pnmf.model.problem import Problem

from .base import Engine, RowSolver
from .native import NativeEngine
from .streaming import StreamingEngine

LEAST_WORK_FOR_A_GPU = 2e7  # non-zeros times factors from which "auto" takes a graphics card
MOST_FACTORS_ON_A_GPU = 128  # of a fit on a graphics card: registers of a processor hold the Hessian of a row
SINGLE_ROW = 2.0**20
"""Total count of a sample up to which rounding errors of its log-likelihood stay below about 1 in float32."""
MATRICES, SQUARES = 6, 13
"""Copies of loadings and factors in the solver; K x K matrices of a thread, sums in 8 lanes among them."""


EngineKind: TypeAlias = Literal["auto", "native", "torch", "streaming"]
ENGINES: tuple[str, ...] = get_args(EngineKind)


def as_counts(counts: Any, engine: str = "native") -> Counts:
    """Check counts where they are: in memory, or in chunks on disk or a cluster."""
    plain = isinstance(counts, np.ndarray) or sparse.issparse(counts)
    if isinstance(counts, Counts) and (engine != "streaming" or not counts.in_memory):
        return counts
    if engine == "streaming" or (not plain and is_streamed(counts)):
        return survey(open_counts(counts.to_scipy() if isinstance(counts, Counts) else counts))
    return Counts.from_any(counts)


def resolve_engine(name: str, counts: Counts, n_components: int, row_solver: RowSolver = "newton") -> str:
    """Return the engine that "auto" stands for; parts of chunks that are in memory have the native one."""
    check_choice("engine", name, ENGINES)
    if name == "torch":
        _check_card(n_components)
    if name == "streaming" and counts.in_memory:
        return "native"
    if name != "auto":
        return name
    if not counts.in_memory:
        return "streaming"
    if counts.on_device:
        return "torch"
    suits = row_solver == "newton" and n_components <= MOST_FACTORS_ON_A_GPU
    enough = counts.nnz * n_components >= LEAST_WORK_FOR_A_GPU
    return "torch" if suits and enough and has_card() else "native"


def _check_card(n_components: int) -> None:
    """Refuse engine="torch" where nothing runs its kernels: a card, or Triton's interpreter in tests."""
    torch, triton = require("torch", purpose="engine='torch'"), require("triton", purpose="engine='torch'")
    why = None
    if not (torch.cuda.is_available() or triton.knobs.runtime.interpret):
        why = "it needs a CUDA GPU, but PyTorch finds none"
    elif n_components > MOST_FACTORS_ON_A_GPU:
        why = f"it takes at most {MOST_FACTORS_ON_A_GPU} factors, got n_components={n_components}"
    if why is not None:
        raise ValueError(f"engine='torch' cannot be used here: {why}; use engine='native'")


def make_engine(
    name: str,
    problem: Problem,
    n_threads: int | None = None,
    *,
    n_components: int = 0,
    row_solver: RowSolver = "newton",
    after: float | None = None,
) -> Engine:
    """Return the engine of that name, if it can fit the problem.

    `name`: "native" is the compiled one; "torch" is for a CUDA card, in single precision where that is
    enough; "auto" is what suits a fit with so many factors, without their number a few evaluations.
    `after`: seconds until passes over chunks show their progress; None: never.
    """
    name = resolve_engine(name, problem.counts, n_components, row_solver)
    why = None
    if row_solver != "newton" and name != "native":
        why = f"it has row_solver='newton' only, got {row_solver!r}; use engine='native'"
    elif row_solver != "newton" and problem.batches is not None:
        why = f"row_solver={row_solver!r} has no batches; use 'newton'"
    elif not problem.counts.in_memory and name != "streaming":
        why = "it needs counts in memory, but these are in chunks; use engine='streaming'"
    if why is not None:
        raise ValueError(f"engine={name!r} cannot be used here: {why}")
    if name == "streaming":
        return StreamingEngine(problem, n_threads, None if after is None else Passes(after))
    if name == "torch":
        from log1pnmf.engines.torch.engine import TorchEngine

        return TorchEngine(problem, precision="float32" if _single_is_enough(problem.counts) else "float64")
    return NativeEngine(problem, n_threads)


def _single_is_enough(counts: Counts) -> bool:
    """Return whether float32 loses less than about 1e-6 of the log-likelihood, and 1 of every sample.

    Rounding errors are about 1e-6 of the root of the sum of squares of the counts. The log-likelihood is
    about the number of counts that are not zero, or more. A few large counts would hide what others gain.
    """
    largest, limit = float(np.max(counts.row_sums, initial=0.0)), float(counts.nnz) ** 2
    return largest <= SINGLE_ROW and (largest * counts.total <= limit or counts.sum_of_squares <= limit)


def has_card() -> bool:
    """Return whether PyTorch finds a CUDA card and Triton is there; without a driver none is even loaded."""
    if find_spec("torch") is None or find_spec("triton") is None:
        return False
    if not ("torch" in sys.modules or _has_driver()):
        return False
    import torch

    return bool(torch.cuda.is_available())


def _has_driver() -> bool:
    """Return whether the driver of a card is here: AMD's device, or Nvidia's library."""
    if Path("/dev/kfd").exists():
        return True
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def check_memory(name: str, counts: Counts, n_components: int, n_threads: int) -> None:
    """Refuse a number of factors whose K x K matrices this machine cannot hold, before any work."""
    square, (n, m) = 8.0 * n_components**2, counts.shape
    needed = 8.0 * n_components * (n + m) * MATRICES + square * SQUARES * n_threads
    if name == "streaming":  # lower triangles of Hessians of every feature: of the sums and of one chunk
        needed += square * m
    try:
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # the system does not report it
        memory = np.inf
    if needed > memory:
        raise ValueError(
            f"n_components={n_components} needs about {needed / 1e9:,.1f} GB of memory for matrices of "
            f"{n_components} x {n_components} numbers ({n_threads} threads) and the factors of {n} x {m} "
            f"counts, but this machine has {memory / 1e9:,.1f} GB; use fewer factors, or n_jobs=1"
        )
