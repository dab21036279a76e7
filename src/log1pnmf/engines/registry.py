"""Engines by name."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from log1pnmf._common.checks import check_choice
from log1pnmf._common.optional import require
from log1pnmf.counts.chunked.opening import is_streamed, open_counts
from log1pnmf.counts.chunked.runners import survey
from log1pnmf.counts.chunked.survey import ChunkedCounts
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.streaming.engine import StreamingEngine
from log1pnmf.engines.streaming.progress import PassBar
from log1pnmf.model.problem import Problem

from .base import Engine, RowSolver
from .native import NativeEngine
from .reference import ReferenceEngine

__all__ = [
    "ENGINES",
    "NEWTON_ONLY",
    "EngineFactory",
    "as_counts",
    "check_engine",
    "check_memory",
    "is_factory",
    "make_engine",
    "resolve_engine",
]

NEWTON_ONLY = ("torch", "torch-float64", "streaming")
"""Engines without the coordinate solver."""
ENGINES = ("auto", "native", "reference", *NEWTON_ONLY)

LEAST_WORK_FOR_A_GPU = 2e7
"""Non-zeros times factors from which "auto" takes a graphics card."""

MATRICES, SQUARES = 6, 13
"""Copies of loadings and factors in the solver; K x K matrices of a thread, sums in 8 lanes among them."""


class EngineFactory(Protocol):
    """Makes engines of one kind: what `engine=` takes beside the names."""

    def supports(self, problem: Problem, row_solver: RowSolver) -> str | None:
        """Say why it cannot fit a problem with a row solver; None where it can."""
        ...

    def __call__(self, problem: Problem, n_threads: int | None, *, verbose: int = 0) -> Engine:
        """Make an engine for a problem."""
        ...


def is_factory(engine: object) -> bool:
    """Whether an argument is a factory of engines, not a name."""
    return callable(engine) and hasattr(engine, "supports")


def check_engine(name: str, row_solver: str = "newton") -> None:
    """Refuse a name that is not one of `ENGINES`, or an engine without that row solver."""
    check_choice("engine", name, ENGINES)
    if name in NEWTON_ONLY and row_solver != "newton":
        raise ValueError(
            f"engine={name!r} has row_solver='newton' only, got {row_solver!r}; "
            "use engine='native' for the paper's solver"
        )


def as_counts(counts: Any, engine: str | EngineFactory = "auto") -> Counts:
    """Check counts where they are: in memory, on a device (PyTorch, CuPy), in chunks on disk or a cluster.

    Parameters
    ----------
    counts : array, sparse matrix, data frame, Counts, or what `log1pnmf.open_counts` takes
    engine : str
        "streaming" takes any counts in chunks; otherwise only those that are not in memory are.

    Returns
    -------
    Counts
        `log1pnmf.counts.chunked.survey.ChunkedCounts` where they are in chunks.
    """
    if isinstance(counts, ChunkedCounts):
        return counts
    if engine == "streaming" or is_streamed(counts):
        source = open_counts(counts.to_scipy() if isinstance(counts, Counts) else counts)
        return survey(source)
    if type(counts).__module__.partition(".")[0] in ("torch", "cupyx"):
        tensors = require("log1pnmf.engines.torch.counts", extra="gpu", purpose="counts on a device")
        if tensors.TensorCounts.recognises(counts):
            return tensors.TensorCounts.from_device(counts)
    return Counts.from_any(counts)


def resolve_engine(
    name: str | EngineFactory, counts: Counts, n_components: int, row_solver: str = "newton"
) -> str:
    """Decide what "auto" stands for.

    Parameters
    ----------
    name : str or EngineFactory
        One of `ENGINES`; returned as it is unless it is "auto". A factory is "given".
    counts : Counts
        Counts that are on a device stay there.
    n_components : int
    row_solver : {"newton", "coordinate"}

    Returns
    -------
    str
        "torch" on a CUDA card where there is one and enough to do, otherwise "native".
    """
    if not isinstance(name, str):
        return "given"
    check_engine(name)
    if isinstance(counts, ChunkedCounts) and name not in ("auto", "streaming"):
        raise ValueError(
            f"engine={name!r} needs counts in memory, but these are in chunks; use engine='streaming'"
        )
    if isinstance(counts, ChunkedCounts):
        return "streaming"
    if name != "auto":
        return name
    entries: Any = counts.by_row.indices
    if not isinstance(entries, np.ndarray):
        return "torch"
    large = counts.nnz * n_components >= LEAST_WORK_FOR_A_GPU
    return "torch" if large and row_solver == "newton" and _has_card() else "native"


def make_engine(
    name: str | EngineFactory, problem: Problem, n_threads: int | None = None, *, verbose: int = 0
) -> Engine:
    """Make the engine of that name.

    Parameters
    ----------
    name : {"auto", "native", "reference", "torch", "torch-float64", "streaming"} or EngineFactory
        "native" is the compiled one; "reference" is plain NumPy, for comparison on small data; "torch" is
        for a CUDA card, in single precision where that is enough, and "torch-float64" in double precision
        throughout; "auto" is what suits a few looks at the data (for a whole fit, see `resolve_engine`).
    problem : Problem
    n_threads : int, optional
        Threads of the native engine, all cores by default.
    verbose : int
        1 shows the progress of every pass of the streaming engine.

    Returns
    -------
    Engine
    """
    if not isinstance(name, str):
        why = name.supports(problem, "newton")
        if why is not None:
            raise ValueError(f"engine={name!r} cannot fit this: {why}")
        return name(problem, n_threads, verbose=verbose)
    name = resolve_engine(name, problem.counts, n_components=0)
    if name == "streaming":
        return StreamingEngine(problem, n_threads, PassBar() if verbose else None)
    if name == "reference":
        return ReferenceEngine(problem)
    if name == "native":
        return NativeEngine(problem, n_threads)
    torch = require("log1pnmf.engines.torch.engine", extra="gpu", purpose=f"engine={name!r}")
    return torch.TorchEngine(problem, precision="float64" if name == "torch-float64" else "float32")


def check_memory(name: str, counts: Counts, n_components: int, n_threads: int) -> None:
    """Refuse a number of factors whose K x K matrices this machine cannot hold, before any work.

    Parameters
    ----------
    name : str
        Of the engine, "auto" resolved.
    counts : Counts
    n_components, n_threads : int
    """
    square, (n, m) = 8.0 * n_components**2, counts.shape
    needed = 8.0 * n_components * (n + m) * MATRICES + square * SQUARES * n_threads
    if name == "streaming":  # a triangle for every feature, of the sums and of a chunk
        needed += square * m
    memory = _physical_memory()
    if memory is not None and needed > memory:
        raise ValueError(
            f"n_components={n_components} needs about {needed / 1e9:,.1f} GB of memory for matrices of "
            f"{n_components} x {n_components} numbers ({n_threads} threads) and the factors of {n} x {m} "
            f"counts, but this machine has {memory / 1e9:,.1f} GB; use fewer factors, or n_jobs=1"
        )


def _physical_memory() -> float | None:
    """Bytes of this machine; None where it does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return None


def _has_card() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())
