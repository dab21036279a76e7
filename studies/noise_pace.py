"""What an iteration costs with Poisson and with negative binomial noise, and what choosing its zeros costs.

python -m studies.noise_pace            # PBMC, K=6, one thread
python -m studies.noise_pace kang 13    # other data, and K

Dispersions are those of a negative binomial fit. Iterations are those of fits that have settled: with each
noise, 15 iterations from the end of that fit come before. The two kinds of noise take turns. The data are in
../shared/data.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from benchmarks.data import Folder
from benchmarks.table import as_markdown

from log1pnmf import fit_log1p_nmf
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting.runs import AdaptiveUpdate
from log1pnmf.fitting.solver import Extrapolation, Point, alternate
from log1pnmf.model.dispersion import update_dispersions
from log1pnmf.model.noise import POISSON, NegativeBinomial, Noise
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import AdaptiveZeros

SETTLED = 15


def timed(work: Callable[[], Any], *, repeats: int = 3) -> float:
    """CPU seconds of the quickest of some runs."""
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def prepared(problem: Problem, at: Point) -> tuple[dict[str, Any], Callable[[], None]]:
    """Choose zeros at a point, say what that costs, and give an iteration of a settled fit."""
    engine, chosen = NativeEngine(problem, 1), NativeEngine(problem, 1)
    row: dict[str, Any] = {}
    if not (problem.link.is_identity and problem.noise is POISSON):
        loss = engine.loss(at.loadings, at.factors)
        renewal = AdaptiveUpdate(1e-4)
        row["exact loss ms"] = 1e3 * timed(lambda: engine.loss(at.loadings, at.factors))
        row["choosing zeros ms"] = 1e3 * timed(lambda: renewal.chosen(engine, at, loss))
        chosen = NativeEngine(renewal.chosen(engine, at, loss), 1)
        zeros = chosen.problem.zeros
        if isinstance(zeros, AdaptiveZeros):
            row["visited zeros / non-zeros"] = zeros.stored.nnz / problem.counts.nnz
    if isinstance(problem.noise, NegativeBinomial):
        row["dispersions ms"] = 1e3 * timed(lambda: dispersions(engine, at), repeats=1)
    *_, last = alternate(
        chosen, at.loadings, at.factors, extrapolation=Extrapolation(), max_iter=SETTLED, residuals=False
    )

    def iteration() -> None:
        sides = chosen.problem
        step = chosen.half_step(sides.loadings_side, last.loadings, last.factors, with_loss=False)
        chosen.half_step(sides.factors_side, last.factors, step.values)

    return row, iteration


def dispersions(engine: NativeEngine, at: Point) -> None:
    """Find the dispersions for the first time."""
    means = engine.mean_spectrum(at.loadings, at.factors)
    update_dispersions(engine.problem.counts, at.factors, means)


def measure(folder: Folder, data: str = "pbmc", n_components: int = 6) -> Iterator[dict[str, Any]]:
    """Give a row for every link and noise: CPU milliseconds on one thread, and times Poisson's iteration."""
    counts = folder.counts(data)
    for c in (1.0, math.inf):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            how: dict[str, Any] = {"c": c, "noise": "nb", "init": "rank1", "max_iter": 20, "n_jobs": 1}
            fit = fit_log1p_nmf(counts, n_components, **how)
        at = Point(fit.loadings, fit.factors / fit.link.alpha)
        noises: tuple[Noise, ...] = (POISSON, NegativeBinomial(fit.dispersion))
        ready = [prepared(Problem(counts, fit.size_factors, fit.link, noise=noise), at) for noise in noises]
        took = np.array([[timed(iteration, repeats=1) for _, iteration in ready] for _ in range(9)]).min(
            axis=0
        )
        for noise, (row, _), own in zip(noises, ready, took, strict=True):
            yield {
                "c": c,
                "noise": noise.name,
                "iteration ms": 1e3 * own,
                **row,
                "times Poisson": own / took[0],
            }


if __name__ == "__main__":
    name, K = sys.argv[1:] or ("pbmc", "6")
    print(as_markdown(measure(Folder(), name, int(K))))
