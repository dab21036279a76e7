"""How many threads the compiled core uses."""

from __future__ import annotations

import os
from numbers import Integral

import numpy as np

from log1pnmf._core import after_fork, max_threads

__all__ = ["effective_threads"]

MOST_JOBS = 4096
"""Threads that may be asked for."""

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=after_fork)


def effective_threads(n_jobs: int | None) -> int:
    """Turn `n_jobs` into a number of threads.

    Parameters
    ----------
    n_jobs : int or None
        As in scikit-learn: None and -1 are all cores this process may use, fewer where ``OMP_NUM_THREADS`` or
        threadpoolctl say so; -2 is all but one of them, and so on. A positive number is taken as it is, up to
        four for every processor (64 at least): more only cost memory.

    Returns
    -------
    int
        1 in a forked process.
    """
    if n_jobs is not None and not _is_integer(n_jobs):
        raise TypeError(f"n_jobs must be a whole number or None, got {n_jobs!r}; pass -1 for all cores")
    if n_jobs == 0:
        raise ValueError("n_jobs must not be 0; pass -1 for all cores, -2 for all but one, or None")
    if n_jobs is not None and n_jobs > MOST_JOBS:
        raise ValueError(f"n_jobs must be at most {MOST_JOBS}, got {n_jobs}; pass -1 for all cores")
    if n_jobs is None or n_jobs < 0:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, min(cores, max_threads()) + 1 + (-1 if n_jobs is None else int(n_jobs)))
    return min(int(n_jobs), max(64, 4 * (os.cpu_count() or 1)))


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool | np.bool_)
