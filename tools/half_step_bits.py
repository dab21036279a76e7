"""Hash the half-steps of the compiled core, before and after a change that must not change any bit.

Every kernel of this machine, 1 to 20 factors, both links, exact and approximate zeros, both row solvers, with
and without penalty and bound, starts close to the optimum and far from it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np

from log1pnmf._core import runnable_kernels
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine, RowSums
from log1pnmf.model.constraint import Constraint
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

FORMS = [(0.01, None), (1.0, None), (1.0, "chebyshev"), (100.0, "taylor"), (math.inf, None)]


def main() -> None:
    """Print one hash for every kernel, form and row solver."""
    for kernel in runnable_kernels():
        for c, kind in FORMS:
            for row_solver in ("newton", "coordinate"):
                found = hashlib.sha256()
                for array in half_steps(kernel, c, kind, row_solver):
                    found.update(np.ascontiguousarray(array).tobytes())
                print(f"{kernel:9} c={c:<6} {kind or 'exact':10} {row_solver:11} {found.hexdigest()[:16]}")


def half_steps(kernel: str, c: float, kind: str | None, row_solver: str) -> Iterator[np.ndarray]:
    """Give what the half-steps of one form find, for 1 to 20 factors."""
    for K in range(1, 21):
        rng = np.random.default_rng(K)
        problem, loadings, factors = example(rng, c, kind, K)
        engine = NativeEngine(problem, 1, kernel)
        for away in (1.0, 1e-3):
            for l1 in (0.0, 0.5):
                constraint = Constraint.sparse_factors(l1, K)
                start = constraint.loadings.clip(loadings * away)
                for side, rows, design, bounds in (
                    (problem.loadings_side, start, factors, constraint.loadings),
                    (problem.factors_side, factors * away, start, constraint.factors),
                ):
                    step = engine.half_step(side, rows, design, bounds=bounds, row_solver=row_solver)
                    yield from (step.values, step.gradient, np.array([step.loss, step.predicted_decrease]))
                    sums = RowSums.zeros(len(rows), K)
                    engine.add_statistics(side, rows, design, into=sums)
                    yield from (sums.loss, sums.gradient, sums.hessian)


def example(
    rng: np.random.Generator, c: float, kind: str | None, K: int
) -> tuple[Problem, np.ndarray, np.ndarray]:
    """Make counts from a model, with an empty row, an empty column and one row that is dense."""
    n, m, link = 12, 600, ShiftedLog(c)
    loadings, factors = rng.uniform(0.0, 1.0, (n, K)), rng.gamma(0.5, 1.0, (m, K))
    factors *= (0.3 if link.is_identity else math.log1p(0.3 / c)) / (loadings @ factors.T).mean()
    sizes = rng.uniform(0.5, 2.0, size=n)
    sizes[0] *= 50.0
    means = np.minimum(sizes[:, None] * link.mean(loadings @ factors.T), 1e4)
    y = rng.poisson(means).astype(np.float64)
    y[n // 2], y[:, m // 2] = 0.0, 0.0
    zeros = None if kind is None else quadratic(link, kind)
    return Problem(Counts.from_any(y), sizes, link, zeros), loadings + 0.01, factors + 1e-4


if __name__ == "__main__":
    main()
