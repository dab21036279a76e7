"""Iterations streamed from files against those in memory, in turns; used by `benchmarks.streaming`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from log1pnmf.counts.chunks import CountSource
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.passes import survey
from log1pnmf.engines.native import NativeEngine
from log1pnmf.engines.streaming import StreamingEngine
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

LINK = ShiftedLog(1.0)
SETTLING, WARM_UP = 8, 2


def random_point(n: int, m: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.uniform(0.1, 1.0, (n, k)) * 0.2, rng.uniform(0.1, 1.0, (m, k)) * 0.2


class Passes:
    """Plain iterations of an engine from a point, both half-steps each; wall and CPU seconds of every one.

    CPU seconds are those of all threads, and say more than wall time on a machine that others use as well.
    """

    def __init__(self, engine: Any, loadings: Any, factors: Any) -> None:
        self.engine, self.at = engine, (loadings, factors)
        self.how = {"with_loss": False}  # as in a fit
        self.seconds: list[tuple[float, float]] = []

    def iterate(self) -> None:
        engine, problem, (loadings, factors) = self.engine, self.engine.problem, self.at
        wall, cpu = time.perf_counter(), time.process_time()
        loadings = engine.half_step(problem.loadings_side, loadings, factors, **self.how).values
        factors = engine.half_step(problem.factors_side, factors, loadings).values
        self.seconds.append((time.perf_counter() - wall, time.process_time() - cpu))
        self.at = loadings, factors

    def figures(self, warm_up: int = 1, typical: Any = min) -> dict:
        """Give those of the quickest iteration, or of a typical one, after some that are not counted."""
        wall, cpu = (float(typical(times)) for times in zip(*self.seconds[warm_up:], strict=True))
        counts = self.engine.problem.counts
        return {
            "rows": counts.n_samples,
            "nnz": counts.nnz,
            "seconds": wall,
            "cpu_seconds": cpu,
            "million_nnz_per_s": counts.nnz / wall / 1e6,
            "million_nnz_per_cpu_s": counts.nnz / cpu / 1e6,
        }


def against_memory(
    matrix: sparse.csr_array, sources: dict[str, CountSource], k: int, n_passes: int, threads: int | None
) -> Iterator[tuple[str, dict]]:
    """Give figures of the native engine, then of the streaming one for every source of the same counts.

    All begin where the native engine has settled, because it does more in its first iterations. They take
    turns, one iteration each, so that other work on the machine meets all of them. The first turns are not
    counted: in the second one the chunks are packed into a temporary file. Figures are medians, ratios
    medians over the turns.
    """
    counts = Counts.from_any(matrix)
    sizes, zeros = counts.size_factors("total"), quadratic(LINK)
    native = NativeEngine(Problem(counts, sizes, LINK, zeros), threads)
    settling = Passes(native, *random_point(*counts.shape, k))
    for _ in range(SETTLING):
        settling.iterate()
    runs = {"native": Passes(native, *settling.at)}
    for name, source in sources.items():
        engine = StreamingEngine(Problem(survey(source), sizes, LINK, zeros), threads)
        runs[name] = Passes(engine, *settling.at)
    for _ in range(n_passes + WARM_UP):
        for run in runs.values():
            run.iterate()
    for name, run in runs.items():
        pairs = np.array(runs["native"].seconds[WARM_UP:]) / np.array(run.seconds[WARM_UP:])
        wall, cpu = (float(one) for one in np.median(pairs, axis=0))
        yield name, run.figures(WARM_UP, np.median) | {"of_memory": wall, "of_memory_cpu": cpu}


FORMATS = ("h5ad", "lzf h5ad", "gzip h5ad", "zarr", "raw zarr", "blosc zarr", "gzip zarr")


def write_format(path: str, matrix: sparse.csr_array, kind: str) -> None:
    """Write counts with AnnData; zarr's own compression is zstd, and h5ad has none."""
    import anndata
    from zarr.codecs import BloscCodec, GzipCodec

    counts, (how, _, which) = anndata.AnnData(sparse.csr_matrix(matrix)), kind.rpartition(" ")
    if which == "h5ad":
        counts.write_h5ad(path, compression=how or None)
        return
    codecs = {"raw": None, "blosc": BloscCodec(), "gzip": GzipCodec(level=4)}
    anndata.settings.zarr_write_format = 3
    counts.write_zarr(path)
    if how:
        import zarr

        group = zarr.open_group(path, mode="r+")["X"]
        for name in ("data", "indices"):
            values = group[name][:]
            group.create_array(name, data=values, chunks=(1 << 20,), compressors=codecs[how], overwrite=True)
