"""What an iteration of a fit costs: PBMC in every form, a simulated atlas; and a whole default call.

python -m benchmarks.pace            # PBMC of ../shared/data, and a tenth of the atlas (10,000 x 20,000)
python -m benchmarks.pace --full     # the whole atlas: 100,000 x 20,000, 1e8 non-zeros; 5 GB of memory
python -m benchmarks.pace --default  # simulated counts of the size of a mouse marrow: a default call

Early iterations cost more than later ones: many steps are long, and have to be checked. So both are given.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import sklearn.utils.extmath  # noqa: F401  (loaded by the first fit otherwise, while the clock runs)
from scipy import sparse

from benchmarks.data import ROOT, Folder
from benchmarks.measuring import all_zeros_visited
from benchmarks.table import as_markdown
from log1pnmf import fit_log1p_nmf
from log1pnmf.counts.counts import Counts

EARLY, LATE = slice(1, 11), slice(33, 41)
"""Iterations whose mean is taken. An adaptive fit looks at its zeros after iterations 1, 3, 7 and 31."""
ATLAS, WHOLE_ATLAS, MARROW = (10_000, 20_000), (100_000, 20_000), (4_142, 16_106)


class Pace(NamedTuple):
    """CPU seconds of an iteration, and where the fit is after the last one."""

    early: float
    late: float
    log_likelihood: float


def simulated(shape: tuple[int, int], n_components: int, density: float) -> Counts:
    """Draw counts of which so many are not zero; kept in bench-out, because drawing takes a while."""
    place = ROOT / "bench-out" / f"simulated-{shape[0]}x{shape[1]}-{n_components}-{density}.npz"
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        sparse.save_npz(place, drawn(shape, n_components, density), compressed=False)
    return Counts.from_any(sparse.csr_array(sparse.load_npz(place)))


def drawn(shape: tuple[int, int], n_components: int, density: float) -> sparse.csr_array:
    rng, (n, m) = np.random.default_rng(0), shape
    loadings = rng.gamma(0.3, 1.0, (n, n_components))
    factors = 0.3 * rng.gamma(0.2, 1.0, (m, n_components)) * rng.gamma(0.5, 1.0, (m, 1))
    scale, rows = 0.0, []
    for begin in range(0, n, 1000):
        means = np.expm1(np.minimum(loadings[begin : begin + 1000] @ factors.T, 5.0))
        if not rows:
            sizes = np.geomspace(1e-4, 10.0, 60)
            filled = [np.mean(-np.expm1(-size * means[:100])) for size in sizes]
            scale = float(np.interp(density, filled, sizes))
        rows.append(sparse.csr_array(rng.poisson(scale * means).astype(np.float32)))
    return sparse.csr_array(sparse.vstack(rows))


def pace(counts: Counts, n_components: int, likelihood: str) -> Pace:
    """Fit on one thread from the rank-one start, and read the clock after every iteration."""
    read: list[float] = []
    with warnings.catch_warnings(), all_zeros_visited():
        warnings.simplefilter("ignore")
        fit = fit_log1p_nmf(
            counts,
            n_components,
            c=1.0,
            likelihood=likelihood,
            init="rank1",
            random_state=0,
            max_iter=LATE.stop,  # the last iteration only looks
            tol=1e-15,
            n_jobs=1,
            callbacks=[lambda _: read.append(time.process_time())],
        )
    took = [0.0, *np.diff(read)]
    late = took[LATE] or took[-8:]  # a fit may end before: nothing is left to gain
    return Pace(statistics.mean(took[EARLY]), statistics.mean(late), -float(fit.objective))


def measure(folder: Folder, full: bool = False) -> Iterator[dict[str, Any]]:
    """CPU milliseconds of an iteration on one thread, early and near convergence."""
    counts = folder.counts("pbmc")
    for form in ("chebyshev", "adaptive", "exact"):
        yield _row("pbmc", counts, 6, form)
    yield _row("atlas", simulated(WHOLE_ATLAS if full else ATLAS, 16, 0.05), 16, "chebyshev")


def _row(data: str, counts: Counts, n_components: int, form: str) -> dict[str, Any]:
    found = pace(counts, n_components, form)
    entries = f" ({math.prod(counts.shape) / 1e6:.0f}M entries)" if form == "exact" else ""
    return {
        "data": data,
        "non-zeros": f"{counts.nnz / 1e6:.1f}M{entries}",
        "K": n_components,
        "form": "approximate" if form == "chebyshev" else form,
        "iterations 1 to 10: CPU ms": f"{1e3 * found.early:,.0f}",
        "iterations 33 to 40: CPU ms": f"{1e3 * found.late:,.0f}",
    }


def measure_default() -> Iterator[dict[str, Any]]:
    """A default call but for c and the one thread: from nothing to converged."""
    counts = simulated(MARROW, 10, 0.1)
    read: list[float] = []
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fit_log1p_nmf(
            counts, 10, c=1.0, n_jobs=1, callbacks=[lambda _: read.append(time.process_time())]
        )
    yield {
        "data": f"simulated {counts.shape[0]:,} x {counts.shape[1]:,}, {counts.nnz:,} non-zeros",
        "K": 10,
        "CPU s": time.process_time() - began,
        "of which the start": read[0] - began,
        "iterations": fit.n_iter,
        "log-likelihood": fit.log_likelihood,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pace", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the whole atlas")
    parser.add_argument("--default", action="store_true", help="a default call instead")
    given = parser.parse_args()
    if given.default:
        print(as_markdown(measure_default()))
    else:
        print(as_markdown(measure(Folder(), given.full)))
