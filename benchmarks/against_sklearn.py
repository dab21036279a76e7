"""c = inf: CPU seconds to the likelihood that scikit-learn's multiplicative updates reach."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.decomposition import NMF
from sklearn.decomposition._nmf import _initialize_nmf
from threadpoolctl import threadpool_limits

from .data import Folder
from .measuring import Clock, Task, follow

N_COMPONENTS = 6


def measure(folder: Folder, quick: bool = False, full: bool = False) -> Iterator[dict[str, Any]]:
    n_iter = 20 if quick else 200
    for data in ("pbmc", "kang") if full else ("pbmc",):
        yield from _on(folder, data, n_iter)


def _on(folder: Folder, data: str, n_iter: int) -> Iterator[dict[str, Any]]:
    counts = folder.counts(data)
    task = Task(counts, math.inf, size_factors="none")
    matrix = counts.to_scipy().astype(np.float64)
    # One thread: its sparse products have no more, and idle BLAS threads would only add to its CPU time.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clock = Clock()
        W0, H0 = _initialize_nmf(matrix, N_COMPONENTS, init="nndsvda", random_state=0)
        start_cpu, _ = clock.read()
        model = NMF(
            N_COMPONENTS,
            init="custom",
            beta_loss="kullback-leibler",
            solver="mu",
            max_iter=n_iter,
            tol=0.0,
            random_state=0,
        )
        clock = Clock()
        W = model.fit_transform(matrix, W=W0.copy(), H=H0.copy())
        cpu, _ = clock.read()
    reached = -task.engine().loss(W, np.ascontiguousarray(model.components_.T))
    yield {
        "data": data,
        "program": "scikit-learn",
        "iterations": n_iter,
        "start CPU s": start_cpu,
        "CPU s after it": cpu,
        "in all": start_cpu + cpu,
    }
    for name in ("from the same start", '`init="nndsvd"`'):
        clock = Clock()
        start = task.make_start(N_COMPONENTS, "nndsvd") if "init" in name else (W0, H0.T.copy())
        own_start = clock.read()[0] if "init" in name else start_cpu
        at = follow(task, start, until=reached, max_iter=300, cpu_limit=60.0).reached(reached)
        yield {
            "data": data,
            "program": f"log1pnmf, {name}",
            "iterations": at.iteration if at else "not reached",
            "start CPU s": own_start,
            "CPU s after it": at.cpu if at else None,
            "in all": own_start + at.cpu if at else None,
            "scikit-learn / log1pnmf, in all": f"{(start_cpu + cpu) / (own_start + at.cpu):.0f}"
            if at
            else None,
        }
