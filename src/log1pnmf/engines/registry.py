"""Engines by name."""

from __future__ import annotations

from log1pnmf.engines.base import Engine
from log1pnmf.engines.native import NativeEngine
from log1pnmf.engines.reference import ReferenceEngine
from log1pnmf.problem import Problem

__all__ = ["ENGINES", "check_engine", "make_engine"]

ENGINES = ("auto", "native", "reference")


def check_engine(name: str) -> None:
    """Refuse a name that is not one of `ENGINES`."""
    if name not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}, got {name!r}")


def make_engine(name: str, problem: Problem, n_threads: int | None = None) -> Engine:
    """Make the engine of that name.

    Parameters
    ----------
    name : {"auto", "native", "reference"}
        "auto" is "native", the compiled one; "reference" is plain NumPy, for comparison on small data.
    problem : Problem
    n_threads : int, optional
        Threads of the native engine, all cores by default; the reference engine has one.

    Returns
    -------
    Engine
    """
    check_engine(name)
    return ReferenceEngine(problem) if name == "reference" else NativeEngine(problem, n_threads)
