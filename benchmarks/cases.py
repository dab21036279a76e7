"""What `benchmarks.compare` measures, each case in a process of its own: CPU seconds, and what came out."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

Found = tuple[dict[str, float], float]
"""CPU seconds by name, and a number that two versions should agree on."""


def _timed(work: Callable[[], float]) -> Found:
    began = time.process_time()
    value = work()
    return {"": time.process_time() - began}, value


def _fit(**settings: Any) -> Found:
    import sklearn.utils.extmath  # noqa: F401  (loaded by the first fit otherwise)

    from log1pnmf import datasets, fit_log1p_nmf

    warnings.simplefilter("ignore")
    counts = datasets.pancreas().counts

    def fit() -> float:
        done = fit_log1p_nmf(counts, 6, random_state=0, tol=1e-15, n_jobs=1, **settings)
        return float(done.log_likelihood)

    return _timed(fit)


def _checking() -> Found:
    from log1pnmf import datasets
    from log1pnmf.counts.counts import Counts

    matrix = datasets.pancreas().counts
    return _timed(lambda: sum(Counts.from_any(matrix.copy()).nnz for _ in range(20)))


def _importing() -> Found:
    import numpy as np
    import sklearn.base
    import sklearn.utils.extmath  # noqa: F401

    def bring() -> float:
        import log1pnmf  # noqa: F401

        return float(np.pi)

    return _timed(bring)


def _pace(data: str, likelihood: str) -> Found:
    from benchmarks import pace
    from benchmarks.data import Folder

    if data == "pbmc":
        found = pace.pace(Folder().counts("pbmc"), 6, likelihood)
    else:
        found = pace.pace(pace.simulated(pace.ATLAS, 16, 0.05), 16, likelihood)
    return {"iterations 1 to 10": found.early, "settled": found.late}, found.log_likelihood


def _reference() -> Found:
    """From the reference's start to the objective of its 500 iterations."""
    from benchmarks import from_reference
    from benchmarks.data import Folder

    _, trace, _ = from_reference.newton_to_goal(Folder(), from_reference.GOALS[1].case)
    return {"": trace.last.cpu}, trace.last.log_likelihood


def _default() -> Found:
    from benchmarks.pace import measure_default

    (row,) = measure_default()
    return {"": row["CPU s"], "start": row["of which the start"]}, row["log-likelihood"]


def _streaming() -> Found:
    from benchmarks.streaming import measure

    rows = list(measure(10_000))
    return {row["counts"]: row["CPU s per iteration"] for row in rows}, float(len(rows))


SHORT: dict[str, Callable[[], Found]] = {
    "bundled: c = 1, approximate, 15 iterations": lambda: _fit(c=1.0, likelihood="chebyshev", max_iter=15),
    "bundled: c = inf, 15 iterations": lambda: _fit(c=float("inf"), max_iter=15),
    "bundled: c = 1, exact, 2 iterations": lambda: _fit(c=1.0, likelihood="exact", max_iter=2),
    "checking and compressing counts": _checking,
    "import": _importing,
}
LONG: dict[str, Callable[[], Found]] = {
    "pbmc approximate": lambda: _pace("pbmc", "chebyshev"),
    "pbmc adaptive": lambda: _pace("pbmc", "adaptive"),
    "pbmc exact": lambda: _pace("pbmc", "exact"),
    "atlas approximate": lambda: _pace("atlas", "chebyshev"),
    "pbmc from the reference's start": _reference,
    "default call": _default,
    "streaming": _streaming,
}
"""PBMC of ../shared/data and simulated counts; they take minutes."""
CASES = SHORT | LONG
