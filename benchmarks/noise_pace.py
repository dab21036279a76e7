"""What an iteration costs with Poisson and with negative binomial noise, and what choosing its zeros costs.

python -m benchmarks.noise_pace      # PBMC of ../shared/data, K=6, one thread; the figures of docs/kernel.md
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.data import Folder
from log1pnmf import fit_log1p_nmf
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.renewal import AdaptiveRenewal
from log1pnmf.fitting.solver.iteration import Pair
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


def pace(problem: Problem, at: Pair) -> str:
    """Choose zeros at a point, and time an iteration from there."""
    engine, chosen, text = NativeEngine(problem, 1), NativeEngine(problem, 1), "all zeros as they are"
    if not (problem.link.is_identity and problem.noise is POISSON):
        loss = engine.loss(at.loadings, at.factors)
        renewal = AdaptiveRenewal(lambda one: NativeEngine(one, 1), 1e-4)
        looking = timed(lambda: engine.loss(at.loadings, at.factors))
        choosing = timed(lambda: renewal.chosen(engine, at, loss))
        chosen = renewal.chosen(engine, at, loss)
        zeros = chosen.problem.zeros
        visited = zeros.stored.nnz / problem.counts.nnz if isinstance(zeros, AdaptiveZeros) else math.inf
        text = f"exact loss {looking:.2f}, choosing {choosing:.2f}, visited zeros / non-zeros {visited:.2f}"

    def iteration() -> None:
        sides = chosen.problem
        step = chosen.half_step(sides.loadings_side, at.loadings, at.factors)
        chosen.half_step(sides.factors_side, at.factors, step.values)

    return f"iteration {timed(iteration):.3f}; {text}"


def main() -> None:
    warnings.simplefilter("ignore")
    counts, rng = Folder().counts("pbmc"), np.random.default_rng(0)
    for c in (1.0, math.inf):
        fit = fit_log1p_nmf(counts, 6, c=c, max_iter=15, n_jobs=1)
        at = Pair(fit.loadings, fit.factors / fit.link.alpha)
        noises: tuple[Noise, ...] = (POISSON, NegativeBinomial(rng.gamma(1.0, 0.3, len(fit.factors))))
        for noise in noises:
            problem = Problem(counts, fit.size_factors, fit.link, noise=noise)
            print(f"c={c:g}, {noise.name}, CPU s: {pace(problem, at)}", flush=True)


if __name__ == "__main__":
    main()
