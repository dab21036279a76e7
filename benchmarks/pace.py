"""What one iteration costs: PBMC in every form, and a simulated atlas.

python -m benchmarks.pace            # PBMC of ../shared/data, and a tenth of the atlas (10,000 x 20,000)
python -m benchmarks.pace --full     # the whole atlas: 100,000 x 20,000, 1e8 non-zeros; 5 GB of memory
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.data import Folder
from benchmarks.table import as_text
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.renewal import AdaptiveRenewal
from log1pnmf.fitting.solver.alternate import alternate
from log1pnmf.fitting.solver.iteration import Pair
from log1pnmf.fitting.starts import initialize
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

N_FEATURES, DENSITY = 20_000, 0.05


def atlas(n_samples: int, n_components: int) -> tuple[Counts, Pair]:
    """Simulate counts of which one in twenty is not zero, with what they were drawn from."""
    rng = np.random.default_rng(0)
    loadings = rng.gamma(0.3, 1.0, (n_samples, n_components))
    factors = 0.3 * rng.gamma(0.2, 1.0, (N_FEATURES, n_components)) * rng.gamma(0.5, 1.0, (N_FEATURES, 1))
    scale, rows = 0.0, []
    for begin in range(0, n_samples, 1000):
        means = np.expm1(np.minimum(loadings[begin : begin + 1000] @ factors.T, 5.0))
        if not rows:
            sizes = np.geomspace(1e-4, 10.0, 60)
            filled = [np.mean(-np.expm1(-size * means[:100])) for size in sizes]
            scale = float(np.interp(DENSITY, filled, sizes))
        rows.append(sparse.csr_array(rng.poisson(scale * means).astype(np.float32)))
    counts = Counts.from_any(sparse.vstack(rows).tocsr())
    return counts, Pair(loadings + 1e-3, factors + 1e-4)


def seconds(engine: NativeEngine, at: Pair, repeats: int = 5) -> float:
    """CPU seconds of an iteration as the solver makes it; the median of some."""
    problem, took = engine.problem, []
    for _ in range(repeats):
        began = time.process_time()
        step = engine.half_step(problem.loadings_side, at.loadings, at.factors, with_loss=False)
        engine.half_step(problem.factors_side, at.factors, step.values)
        took.append(time.process_time() - began)
    return statistics.median(took)


def measure(folder: Folder, full: bool = False) -> Iterator[dict[str, Any]]:
    """Give CPU seconds of an iteration on one thread: PBMC near an optimum, the atlas at its truth."""
    link, counts = ShiftedLog(1.0), folder.counts("pbmc")
    sizes = counts.size_factors("total")
    engines = {
        "approximate": NativeEngine(Problem(counts, sizes, link, quadratic(link, "chebyshev", None)), 1),
        "exact": NativeEngine(Problem(counts, sizes, link), 1),
    }
    start = initialize(engines["approximate"], 6, "rank1", np.random.default_rng(0))
    *_, last = alternate(engines["approximate"], *start, max_iter=15)
    at = Pair(last.loadings, last.factors)
    renewal = AdaptiveRenewal(lambda one: NativeEngine(one, 1), 1e-4)
    exact = engines["exact"]
    chosen = renewal.chosen(exact, at, exact.loss(at.loadings, at.factors))
    assert isinstance(chosen, NativeEngine)
    for form, engine in {"adaptive": chosen, **engines}.items():
        took = seconds(engine, at)
        yield _row("pbmc", counts, 6, form, took, entries=form == "exact")
    counts, at = atlas(100_000 if full else 10_000, 16)
    problem = Problem(counts, np.ones(counts.shape[0]), link, quadratic(link, "chebyshev", None))
    yield _row("atlas", counts, 16, "approximate", seconds(NativeEngine(problem, 1), at), entries=False)


def _row(
    data: str, counts: Counts, n_components: int, form: str, took: float, *, entries: bool
) -> dict[str, Any]:
    visited = counts.shape[0] * counts.shape[1] if entries else counts.nnz
    return {
        "data": data,
        "non-zeros": counts.nnz,
        "K": n_components,
        "form": form,
        "CPU s": took,
        "ns per entry and side": 1e9 * took / (2 * visited),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pace", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the whole atlas")
    print(as_text("One iteration at c = 1, one thread", measure(Folder(), parser.parse_args().full)))
