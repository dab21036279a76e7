"""What an iteration costs with Poisson and with negative binomial noise, and what choosing its zeros costs.

python -m benchmarks.noise_pace      # PBMC of ../shared/data, K=6, one thread; the figures of docs/kernel.md
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.data import Folder
from benchmarks.table import as_text
from log1pnmf import fit_log1p_nmf
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.renewal import AdaptiveRenewal
from log1pnmf.fitting.solver.iteration import Pair
from log1pnmf.model.dispersion import renewed
from log1pnmf.model.negative_binomial import NegativeBinomial
from log1pnmf.model.noise import POISSON, Noise
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import AdaptiveZeros


def timed(work: Callable[[], Any], *, repeats: int = 3) -> float:
    """CPU seconds of the quickest of some runs."""
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def pace(problem: Problem, at: Pair) -> dict[str, Any]:
    """Choose zeros at a point, and time an iteration from there, in milliseconds."""
    engine, chosen = NativeEngine(problem, 1), NativeEngine(problem, 1)
    row: dict[str, float] = {}
    if not (problem.link.is_identity and problem.noise is POISSON):
        loss = engine.loss(at.loadings, at.factors)
        renewal = AdaptiveRenewal(lambda one: NativeEngine(one, 1), 1e-4)
        row["exact loss ms"] = 1e3 * timed(lambda: engine.loss(at.loadings, at.factors))
        row["choosing zeros ms"] = 1e3 * timed(lambda: renewal.chosen(engine, at, loss))
        chosen = renewal.chosen(engine, at, loss)
        zeros = chosen.problem.zeros
        if isinstance(zeros, AdaptiveZeros):
            row["visited zeros / non-zeros"] = zeros.stored.nnz / problem.counts.nnz
    if isinstance(problem.noise, NegativeBinomial):
        row["dispersions ms"] = 1e3 * timed(lambda: dispersions(engine, at), repeats=1)

    def iteration() -> None:
        sides = chosen.problem
        step = chosen.half_step(sides.loadings_side, at.loadings, at.factors, with_loss=False)
        chosen.half_step(sides.factors_side, at.factors, step.values)

    return {"iteration ms": 1e3 * timed(iteration), **row}


def dispersions(engine: NativeEngine, at: Pair) -> None:
    """Find the dispersions for the first time."""
    means = engine.mean_spectrum(at.loadings, at.factors)
    renewed(engine.problem, at.loadings, at.factors, spectrum=means)


def measure(folder: Folder, n_components: int = 6) -> Iterator[dict[str, Any]]:
    """Give a row for every link and noise: CPU milliseconds on one thread, and times Poisson's iteration."""
    counts, rng = folder.counts("pbmc"), np.random.default_rng(0)
    for c in (1.0, math.inf):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = fit_log1p_nmf(counts, n_components, c=c, init="rank1", max_iter=15, n_jobs=1)
        at = Pair(fit.loadings, fit.factors / fit.link.alpha)
        noises: tuple[Noise, ...] = (POISSON, NegativeBinomial(rng.gamma(1.0, 0.3, len(fit.factors))))
        first = None
        for noise in noises:
            found = pace(Problem(counts, fit.size_factors, fit.link, noise=noise), at)
            first = found["iteration ms"] if first is None else first
            yield {"c": c, "noise": noise.name, **found, "times Poisson": found["iteration ms"] / first}


if __name__ == "__main__":
    print(as_text("PBMC, one thread, CPU", measure(Folder())))
