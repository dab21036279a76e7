"""Counts larger than memory: seconds and memory per pass, against the in-memory engine; clusters; starts.

    python -m benchmarks.streaming make /tmp/big.h5ad --rows 400000
    python -m benchmarks.streaming passes /tmp/big.h5ad --rows 300000 --memory 2GB
    python -m benchmarks.streaming in-memory her2st_spatial.h5ad    # the file, streamed and in memory
    python -m benchmarks.streaming formats her2st_spatial.h5ad      # and from every kind of file
    python -m benchmarks.streaming growth /tmp/big.h5ad --figure docs/img/big-data-growth.png
    python -m benchmarks.streaming cluster /tmp/big.h5ad --rows 20000 --workers 1 2 4
    python -m benchmarks.streaming starts counts.h5ad

Every command prints one JSON line per measurement.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from log1pnmf._common.safe_files import parse_memory
from log1pnmf.counts import passes as survey_module
from log1pnmf.counts.chunks import CountSource, FileChunks, RowChunks, open_counts
from log1pnmf.counts.passes import survey
from log1pnmf.engines.native import NativeEngine
from log1pnmf.engines.streaming import StreamingEngine
from log1pnmf.fitting.settings import Settings
from log1pnmf.fitting.starts import find_start
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

from .streaming_rates import FORMATS, LINK, Passes, against_memory, random_point, write_format

DISTINCT = 10_000
GROWTH = (50_000, 100_000, 200_000, 400_000)


# ---------------------------------------------------------------- data


def blocks(n_rows: int, n_columns: int, *, per_row: int, rows_at_once: int = 5000, n_factors: int = 16):
    """Counts with structure: every row draws its counts from a mixture of a few factors.

    Rows come again, in another order, after `DISTINCT` of them: drawing more takes longer than fitting them.
    """
    drawn = list(drawn_blocks(min(n_rows, DISTINCT), n_columns, per_row, rows_at_once, n_factors))
    rng, start = np.random.default_rng(1), 0
    while start < n_rows:
        block = drawn[start // rows_at_once % len(drawn)]
        block = block[rng.permutation(block.shape[0])] if start >= DISTINCT else block
        yield block[: n_rows - start]
        start += block.shape[0]


def drawn_blocks(n_rows: int, n_columns: int, per_row: int, rows_at_once: int, n_factors: int):
    rng = np.random.default_rng(0)
    popularity = rng.lognormal(0.0, 1.5, n_columns)
    tables = []
    for _ in range(n_factors):
        factor = popularity * rng.lognormal(0.0, 1.0, n_columns)
        tables.append(np.cumsum(factor) / factor.sum())
    for start in range(0, n_rows, rows_at_once):
        n = min(rows_at_once, n_rows - start)
        depth = np.maximum(20, rng.lognormal(np.log(per_row), 0.35, n)).astype(np.int64)
        row = np.repeat(np.arange(n), depth)
        memberships = rng.dirichlet(np.full(n_factors, 0.2), n).cumsum(axis=1)
        factor = (rng.random(len(row))[:, None] > memberships[row]).sum(axis=1).clip(max=n_factors - 1)
        column = np.empty(len(row), dtype=np.int32)
        for k, table in enumerate(tables):
            mine = factor == k
            column[mine] = np.searchsorted(table, rng.random(int(mine.sum()))).clip(max=n_columns - 1)
        ones = np.ones(len(row), dtype=np.float32)
        yield sparse.csr_array(sparse.coo_array((ones, (row, column)), shape=(n, n_columns)))


def make(arguments: argparse.Namespace) -> None:
    import anndata
    import h5py

    started = time.perf_counter()
    shape = (arguments.rows, arguments.columns)
    parts = map(sparse.csr_matrix, blocks(*shape, per_row=arguments.per_row))
    with h5py.File(arguments.file, "w") as file:
        anndata.io.write_elem(file, "/", anndata.AnnData(shape=shape))
        anndata.io.write_elem(file, "X", next(parts))
        for part in parts:
            anndata.io.sparse_dataset(file["X"]).append(part)
        nnz = len(file["X/data"])
    say(what="make", rows=shape[0], columns=shape[1], nnz=nnz, seconds=time.perf_counter() - started)


class FirstRows(FileChunks):
    """The first rows of a file."""

    def __init__(self, path: str, limit: int, rows: int | None) -> None:
        super().__init__(path, "X", limit)
        if rows is not None:
            starts = np.cumsum([0, *(len(indptr) - 1 for indptr in self._indptr)])
            parts = zip(starts, self._indptr, strict=False)
            self._indptr = [indptr[: rows - start + 1] for start, indptr in parts if start < rows]
            RowChunks.__init__(self, (rows, self.shape[1]), len(self._indptr))


def source_of(arguments: argparse.Namespace, rows: int | None, client: object = None) -> CountSource:
    from log1pnmf.counts.chunks import _entries

    limit = arguments.chunk_entries or _entries(parse_memory(arguments.memory))
    return CountSource(FirstRows(arguments.file, limit, rows), client)


# ---------------------------------------------------------------- measuring


def say(**what: object) -> None:
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in what.items()}), flush=True)


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def passes(arguments: argparse.Namespace) -> None:
    """Plain passes over a file, from a random point settled once; memory of the whole process."""
    started = time.perf_counter()
    counts = survey(source_of(arguments, arguments.rows))
    say(what="survey", rows=counts.n_samples, nnz=counts.nnz, chunks=len(counts.bounds) - 1,
        seconds=time.perf_counter() - started, peak_gb=peak_gb())  # fmt: skip
    problem = Problem(counts, counts.size_factors("total"), LINK, quadratic(LINK))
    engine = StreamingEngine(problem, arguments.threads)
    started = time.perf_counter()
    if arguments.start == "sample":
        pair, _ = find_start(engine, np.random.RandomState(0), settings=Settings(n_components=arguments.k))
        loadings, factors = pair.loadings, pair.factors
    else:
        loadings, factors = random_point(*counts.shape, arguments.k)
    say(what="start", seconds=time.perf_counter() - started, peak_gb=peak_gb())
    timed = Passes(engine, loadings, factors)
    for _ in range(arguments.passes + arguments.warm_up):
        timed.iterate()
    say(what="pass", **timed.figures(arguments.warm_up), peak_gb=peak_gb())


def in_memory(arguments: argparse.Namespace) -> None:
    """Iterations of the native engine on data that fit, and streamed ones from the file."""
    matrix = matrix_of(arguments.file)[: arguments.rows]
    source = source_of(arguments, arguments.rows)
    for name, found in against_memory(
        matrix, {"streaming": source}, arguments.k, arguments.passes, arguments.threads
    ):
        say(what=name, **found)


def formats(arguments: argparse.Namespace) -> None:
    """The same counts in memory and streamed, from .h5ad and .zarr in every compression, in turns."""
    matrix = matrix_of(arguments.file)[: arguments.rows]
    with tempfile.TemporaryDirectory(prefix="streaming-") as folder:
        places = {kind: f"{folder}/{kind.replace(' ', '.')}" for kind in arguments.formats}
        for kind, place in places.items():
            write_format(place, matrix, kind)
        sources = {kind: open_counts(place, memory=arguments.memory) for kind, place in places.items()}
        for name, found in against_memory(matrix, sources, arguments.k, arguments.passes, arguments.threads):
            say(what=name, **found)


def matrix_of(path: str) -> sparse.csr_array:
    import anndata

    return sparse.csr_array(anndata.read_h5ad(path).X)


def measure(n_rows: int = 20_000, turns: int = 5) -> Iterator[dict[str, Any]]:
    """Simulated counts in memory, and streamed from .h5ad and .zarr in several chunks; one thread."""
    counts = sparse.csr_array(sparse.vstack(list(blocks(n_rows, 20_000, per_row=1330))))
    with tempfile.TemporaryDirectory(prefix="streaming-") as folder:
        places = [f"{folder}/counts.{kind}" for kind in ("h5ad", "zarr")]
        for place in places:
            write_format(place, counts, Path(place).suffix[1:])
        sources = {Path(place).suffix: open_counts(place, memory="600MB") for place in places}
        for name, found in against_memory(counts, sources, 16, turns, 1):
            yield {
                "counts": "in memory" if name == "native" else f"streamed from {name}",
                "CPU s per iteration": found["cpu_seconds"],
                "of the rate in memory, CPU": found["of_memory_cpu"],
                "of the rate in memory, wall": found["of_memory"],
            }


def growth(arguments: argparse.Namespace) -> None:
    """CPU seconds per pass over more and more rows, each in a process of its own; a figure of them."""
    found = []
    for rows in GROWTH:
        command = [sys.executable, "-m", "benchmarks.streaming", "passes", arguments.file]
        command += ["--rows", str(rows), "--memory", arguments.memory, "--passes", str(arguments.passes)]
        command += ["--warm-up", "0"]  # the same work for all: the first pass from the same kind of start
        command += ["--threads", str(arguments.threads)] if arguments.threads else []
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        found.append(json.loads(lines[-1]))
        say(**found[-1])
    if arguments.figure:
        draw_growth(found, arguments.figure)


def draw_growth(found: list[dict], path: str) -> None:
    import matplotlib.pyplot as plt

    rows, seconds = (np.array([one[name] for one in found]) for name in ("rows", "cpu_seconds"))
    slope = float(rows @ seconds / (rows @ rows))
    figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    axes.plot(
        [0, rows.max()], [0, slope * rows.max()], color="0.7", label=f"{slope * 1e5:.1f} s per 100,000 rows"
    )
    axes.plot(rows, seconds, "o", color="#0072B2", label="measured")
    axes.set(
        xlabel="rows (1,107 non-zeros each)", ylabel="CPU seconds per pass", xlim=(0, None), ylim=(0, None)
    )
    axes.set_xticks(rows, [f"{n // 1000}k" for n in rows])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def cluster(arguments: argparse.Namespace) -> None:
    """The same few iterations in one process and on clusters of single-thread workers."""
    from distributed import Client, LocalCluster

    from log1pnmf import fit_log1p_nmf

    def fit(source: CountSource) -> None:
        started = time.perf_counter()
        result = fit_log1p_nmf(
            source, arguments.k, likelihood="chebyshev", max_iter=arguments.passes, random_state=0, n_jobs=1
        )
        workers = 0 if source.client is None else len(source.client.scheduler_info()["workers"])
        say(what="cluster", workers=workers, objective=f"{result.objective:.15g}", chunks=len(source.chunks),
            seconds=time.perf_counter() - started)  # fmt: skip

    import warnings

    warnings.simplefilter("ignore")
    fit(source_of(arguments, arguments.rows))
    for n in arguments.workers:
        with (
            LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address=None) as local,
            Client(local) as client,
        ):
            fit(source_of(arguments, arguments.rows, client))


def starts(arguments: argparse.Namespace) -> None:
    """Objective after every pass, from a sample fitted in memory and from the rank-one start of all rows."""
    import anndata

    from log1pnmf.fitting.solver import Extrapolation, alternate
    from log1pnmf.fitting.starts import initialize

    survey_module.SAMPLE_ROWS = arguments.sample
    matrix = anndata.read_h5ad(arguments.file).X
    counts = survey(open_counts(matrix))
    sizes, zeros = counts.size_factors("total"), quadratic(LINK)
    engine = StreamingEngine(Problem(counts, sizes, LINK, zeros), arguments.threads)
    for name in ("sample", "rank1"):
        rng = np.random.RandomState(0)
        if name == "sample":
            pair, _ = find_start(engine, rng, settings=Settings(n_components=arguments.k))
            loadings, factors = pair.loadings, pair.factors
        else:
            whole = Problem(survey_module.Counts.from_any(matrix), sizes, LINK, zeros)
            loadings, factors = initialize(NativeEngine(whole, arguments.threads), arguments.k, "rank1", rng)
        for iteration in alternate(
            engine,
            loadings,
            factors,
            extrapolation=Extrapolation(),
            max_iter=arguments.passes,
        ):
            say(what=name, iteration=iteration.index, objective=iteration.objective, beta=iteration.beta)


COMMANDS = {
    "make": make,
    "passes": passes,
    "in-memory": in_memory,
    "formats": formats,
    "growth": growth,
    "cluster": cluster,
    "starts": starts,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("file")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--columns", type=int, default=20_000)
    parser.add_argument("--per-row", type=int, default=1330, help="counts of a typical row")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--chunk-entries", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--start", choices=("random", "sample"), default="random")
    parser.add_argument("--sample", type=int, default=1000)
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--figure")
    parser.add_argument("-k", type=int, default=16)
    arguments = parser.parse_args()
    arguments.file = str(Path(arguments.file))
    COMMANDS[arguments.command](arguments)


if __name__ == "__main__":
    main()
