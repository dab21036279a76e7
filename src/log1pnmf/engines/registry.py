"""Engines by name, and which one suits."""

from __future__ import annotations

import os
from typing import Any

from log1pnmf._common.checks import check_choice, require, warn
from log1pnmf.counts.chunks import is_streamed, open_counts
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.passes import survey
from log1pnmf.model.constraint import FREE, Constraint
from log1pnmf.model.noise import POISSON, Noise
from log1pnmf.model.problem import Problem

from .base import Engine, EngineFactory, Factory, RowSolver
from .native import NativeFactory
from .reference import ReferenceFactory
from .streaming import StreamingFactory
from .torch.factory import TorchFactory

FACTORIES: dict[str, Factory] = {
    factory.name: factory
    for factory in (
        NativeFactory(),
        ReferenceFactory(),
        TorchFactory("torch", "float32"),
        TorchFactory("torch-float64", "float64"),
        StreamingFactory(),
    )
}
ENGINES = ("auto", *FACTORIES)
PREFERRED = ("streaming", "torch", "native")
"""The engines "auto" chooses from: the first that suits."""

MUCH = 1 << 30
"""Bytes of K x K matrices of a thread from which a fit warns."""
MATRICES, SQUARES = 6, 13
"""Copies of loadings and factors in the solver; K x K matrices of a thread, sums in 8 lanes among them."""


def is_factory(engine: object) -> bool:
    """Whether an argument is a factory of engines, not a name."""
    return callable(engine) and hasattr(engine, "supports")


def check_engine(name: str, row_solver: str = "newton") -> None:
    """Refuse a name that is not one of `ENGINES`, or an engine without that row solver."""
    check_choice("engine", name, ENGINES, otherwise="a factory of engines")
    why = None if name == "auto" else FACTORIES[name].lacks(row_solver)
    if why is not None:
        raise ValueError(f"engine={name!r} cannot be used here: {why}")


def as_counts(counts: Any, engine: str | EngineFactory = "native") -> Counts:
    """Check counts where they are: in memory, on a device (PyTorch, CuPy), in chunks on disk or a cluster."""
    if isinstance(counts, Counts) and not counts.in_memory:
        return counts
    if _takes_chunks(engine) or is_streamed(counts):
        source = open_counts(counts.to_scipy() if isinstance(counts, Counts) else counts)
        return survey(source)
    if type(counts).__module__.partition(".")[0] in ("torch", "cupyx"):
        tensors = require("log1pnmf.engines.torch.rows", package="torch", purpose="counts on a device")
        if tensors.TensorCounts.recognises(counts):
            return tensors.TensorCounts.from_device(counts)
    asked = FACTORIES.get(engine) if isinstance(engine, str) else None
    factory = FACTORIES["torch"] if engine == "auto" else asked
    ready = None if factory is None else factory.begin_loading(counts, asked=asked is not None)
    checked = Counts.from_any(counts)
    if ready is not None:
        _ = checked.row_sums  # every fit needs them, and they are remembered
        ready()
    return checked


def for_parts(engine: str | EngineFactory) -> str | EngineFactory:
    """Return the engine for parts of counts that are taken into memory one after the other."""
    return "native" if _takes_chunks(engine) else engine


def _takes_chunks(engine: str | EngineFactory) -> bool:
    factory = FACTORIES.get(engine) if isinstance(engine, str) else engine
    return bool(getattr(factory, "takes_chunks", False))


def resolve_engine(
    name: str | EngineFactory,
    counts: Counts,
    n_components: int,
    row_solver: RowSolver = "newton",
    *,
    noise: Noise = POISSON,
    batched: bool = False,
) -> str:
    """Decide what "auto" stands for."""
    if not isinstance(name, str):
        return "given"
    check_engine(name)
    if name != "auto":
        return name
    suited = [one for one in PREFERRED if FACTORIES[one].suits(counts, n_components, row_solver)]
    able = [one for one in suited if FACTORIES[one].lacks_noise(noise, row_solver) is None]
    if batched:
        able = [one for one in able if FACTORIES[one].lacks_batches(row_solver) is None]
    return (able or (["reference"] if counts.in_memory else suited))[0]


def make_engine(
    name: str | EngineFactory,
    problem: Problem,
    n_threads: int | None = None,
    *,
    row_solver: RowSolver = "newton",
    constraint: Constraint = FREE,
    verbose: int = 0,
) -> Engine:
    """Make the engine of that name, after asking whether it can fit the problem.

    `name`: "native" is the compiled one; "reference" is plain NumPy, for comparison on small data; "torch" is
    for a CUDA card, in single precision where that is enough, and "torch-float64" in double precision
    throughout; "auto" is what suits a few evaluations (for a whole fit, see `resolve_engine`).
    """
    factory: EngineFactory
    if isinstance(name, str):
        batched = problem.batches is not None
        noise, counts = problem.noise, problem.counts
        factory = FACTORIES[resolve_engine(name, counts, 0, row_solver, noise=noise, batched=batched)]
    else:
        factory = name
    why = factory.supports(problem, row_solver, constraint)
    if why is not None:
        raise ValueError(f"engine={factory.name!r} cannot be used here: {why}")
    return factory(problem, n_threads, verbose=verbose)


def check_memory(name: str, counts: Counts, n_components: int, n_threads: int) -> None:
    """Refuse a number of factors whose K x K matrices this machine cannot hold, before any work."""
    square, (n, m) = 8.0 * n_components**2, counts.shape
    needed = 8.0 * n_components * (n + m) * MATRICES + square * SQUARES * n_threads
    if name in FACTORIES:
        needed += FACTORIES[name].extra_memory(m, n_components)
    memory = _physical_memory()
    if memory is not None and needed > memory:
        raise ValueError(
            f"n_components={n_components} needs about {needed / 1e9:,.1f} GB of memory for matrices of "
            f"{n_components} x {n_components} numbers ({n_threads} threads) and the factors of {n} x {m} "
            f"counts, but this machine has {memory / 1e9:,.1f} GB; use fewer factors, or n_jobs=1"
        )
    if square * SQUARES > MUCH:
        warn(
            f"n_components={n_components} needs about {square * SQUARES / 1e9:,.1f} GB of memory for each of "
            f"{n_threads} threads, and a long time for every row, whose matrix of {n_components} x "
            f"{n_components} numbers is solved; use fewer factors",
            UserWarning,
        )


def _physical_memory() -> float | None:
    """Bytes of this machine; None where it does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return None
