"""Zeros that are visited, stood in for by one quadratic, or both as it suits: likelihoods and CPU seconds.

    python -m studies.zeros fits         adaptive, approximate and exact fits of every data set
    python -m studies.zeros ratio        adaptive and approximate ones alone, at c = 1
    python -m studies.zeros pace         the same number of iterations of each, from the same start
    python -m studies.zeros tolerance    adaptive fits for several zeros_tol, and the figure of the page
    python -m studies.zeros large        a few iterations of large matrices
    python -m studies.zeros defaults     the default fit against the best of several starts
    python -m studies.zeros seeds        default fits that differ in the seed alone

Each does what is not yet in its result file and begins nothing after `--minutes`, so it can be called again
to go on. It prints its table as it is in the documentation. One thread. Large data sets are sampled
(`SAMPLES`), so that an exact fit takes less than a minute.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.data import DATA, ROOT, Folder, MissingError
from benchmarks.measuring import Clock, all_zeros_visited
from benchmarks.streaming import DISTINCT, blocks
from scipy import sparse

from log1pnmf import Log1pNMF, fit_log1p_nmf, open_counts
from log1pnmf.analysis.metrics import log_likelihood
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.registry import as_counts
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.solver import Iteration

from .zeros_tables import N_COMPONENTS, PACED, Record, draw, table_of

SAMPLES = {"ap": 1200, "pbmc": 1800, "baron": 1000, "kang": 1000, "her2st": 800, "newsgroups": 1000}
SHIFTS = (1.0, 0.1, 10.0)
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
TOLERANCE_DATA = ("baron", "pbmc")
SEEDS_DATA, N_SEEDS = ("ap", "bbc"), 10
RATIO_SEEDS = 5
STARTS = (("rank1", 1), ("nndsvd", 0), ("random", 0), ("random", 1))
SIMULATED = (100_000, 20_000, 1330)
LARGE_ITERATIONS = {"her2st": 8, "simulated": 4, "streamed": 6}
TOL = 1e-8
PACE = {"max_iter": 16, "tol": 0.0}


# ---------------------------------------------------------------- data


class Samples(Folder):
    """Data sets with so many samples that they can be fitted exactly; features without counts are dropped.

    Parameters
    ----------
    rows : int
        Samples of the streamed counts.
    """

    def __init__(self, data: Path, rows: int) -> None:
        super().__init__(data)
        self.rows = rows

    def matrix(self, name: str) -> sparse.csr_array:
        matrix = super().matrix(name)
        if name not in SAMPLES:
            return matrix
        rows = np.sort(np.random.default_rng(0).permutation(matrix.shape[0])[: SAMPLES[name]])
        part = matrix[rows]
        return part[:, np.unique(part.indices)]


class Repeated:
    """Chunks of simulated counts, drawn once, that come again and again: streamed counts without a file."""

    def __init__(self, shape: tuple[int, int], per_row: int) -> None:
        self.shape = shape
        self.drawn = list(blocks(min(shape[0], DISTINCT), shape[1], per_row=per_row))
        self.n_rows = self.drawn[0].shape[0]

    def __len__(self) -> int:
        return math.ceil(self.shape[0] / self.n_rows)

    def __getitem__(self, i: int) -> sparse.csr_array:
        return self.drawn[i % len(self.drawn)][: self.shape[0] - i * self.n_rows]


def _large(name: str, folder: Samples) -> Counts:
    if name == "her2st":
        return Folder(folder.data).counts(name)
    n, m, per_row = SIMULATED
    if name == "streamed":
        return as_counts(open_counts(Repeated((folder.rows, m), per_row)))
    return Counts.from_any(sparse.vstack(list(blocks(n, m, per_row=per_row)), format="csr"))


# ---------------------------------------------------------------- one fit


class Watch:
    """CPU seconds per iteration, renewals between them included; the start is not."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def __call__(self, iteration: Iteration) -> None:
        self.seen.append((iteration.index, time.process_time()))

    def per_iteration(self) -> float:
        (first, begin), (last, end) = self.seen[0], self.seen[-1]
        return (end - begin) / max(1, last - first)

    def between_renewals(self) -> float:
        """Median over iterations that no renewal came before or after."""
        steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(self.seen)]
        return float(np.median([seconds for index, seconds in steps if index == 1] or [math.nan]))


def _fitted(counts: Counts, n_components: int, **options: Any) -> tuple[Fit, Record]:
    """Fit from the rank-one start, unless told otherwise."""
    watch, clock = Watch(), Clock()
    settings = {"init": "rank1", "random_state": 0, "tol": TOL, "n_jobs": 1, "callbacks": [watch], **options}
    with warnings.catch_warnings(), all_zeros_visited():
        warnings.simplefilter("ignore")
        fit = fit_log1p_nmf(counts, n_components, **settings)
        cpu = clock.read()[0]
        found = fit.log_likelihood
        likelihood = log_likelihood(fit, counts, n_jobs=1) if found is None else found
    entries, nnz = math.prod(counts.shape), fit.data.nnz
    return fit, {
        "shape": list(counts.shape),
        "nnz": nnz,
        "taken": fit.settings.likelihood,
        "start": fit.settings.init,
        "log_likelihood": likelihood,
        "zeros_error": 0.0 if fit.certificate is None else fit.certificate.zeros_error,
        "visited": _visited(fit, entries - nnz),
        "iterations": fit.n_iter,
        "stopped": fit.stopped,
        "cpu": cpu,
        "cpu_iteration": watch.per_iteration(),
        "cpu_between": watch.between_renewals(),
    }


def _visited(fit: Fit, n_zeros: int) -> int | None:
    """How many zeros the last iterations visited; the fit says so in words."""
    if fit.settings.likelihood == "chebyshev":
        return 0
    said = re.search(r"(some|[\d,]+) zero counts were evaluated", " ".join(fit.messages))
    if said is None:
        return n_zeros
    return None if said[1] == "some" else int(said[1].replace(",", ""))  # streamed fits do not count them


# ---------------------------------------------------------------- what is measured

Job = tuple[Record, Callable[[], list[Record]]]


def _fits(folder: Samples) -> Iterator[Job]:
    """Three likelihoods from the same start, and exact iterations from where the adaptive fit ended."""

    def measure(data: str, c: float) -> list[Record]:
        counts, k = folder.counts(data), N_COMPONENTS[data]
        ends = {name: _fitted(counts, k, c=c, likelihood=name) for name in ("adaptive", "chebyshev", "exact")}
        further = _fitted(counts, k, c=c, likelihood="exact", init=ends["adaptive"][0])
        records = {name: record for name, (_, record) in ends.items()} | {"from adaptive": further[1]}
        return [{"data": data, "c": c, "fit": name} | record for name, record in records.items()]

    for c in SHIFTS:
        for data in N_COMPONENTS:
            yield {"data": data, "c": c}, lambda data=data, c=c: measure(data, c)


def _ratio(folder: Samples) -> Iterator[Job]:
    """What whole adaptive fits cost, against approximate ones, over seeds: numbers of iterations vary."""

    def measure(data: str, seed: int) -> list[Record]:
        counts, k = folder.counts(data), N_COMPONENTS[data]
        names = ("adaptive", "chebyshev")
        return [
            {"data": data, "seed": seed, "fit": name}
            | _fitted(counts, k, likelihood=name, random_state=seed)[1]
            for name in names
        ]

    for seed, data in itertools.product(range(RATIO_SEEDS), N_COMPONENTS):
        yield {"data": data, "seed": seed}, lambda data=data, seed=seed: measure(data, seed)


def _pace(folder: Samples) -> Iterator[Job]:
    """Cost of an iteration: as many of each likelihood, from the same start."""

    def measure(data: str, c: float) -> list[Record]:
        counts, k = folder.counts(data), N_COMPONENTS[data]
        names = ("adaptive", "chebyshev")
        return [
            {"data": data, "c": c, "fit": name} | _fitted(counts, k, c=c, likelihood=name, **PACE)[1]
            for name in names
        ]

    for c in PACED:
        for data in N_COMPONENTS:
            yield {"data": data, "c": c}, lambda data=data, c=c: measure(data, c)


def _tolerance(folder: Samples) -> Iterator[Job]:
    """Adaptive fits for several `zeros_tol`: how far from the exact fit, and what an iteration costs.

    All fits go on from the end of the approximate one, so that they end in the same optimum. What an
    iteration costs is measured from the rank-one start on.
    """

    def measure(data: str) -> list[Record]:
        counts, k = folder.counts(data), N_COMPONENTS[data]
        approximate, _ = _fitted(counts, k, likelihood="chebyshev")
        kinds: list[Record] = [{"likelihood": "adaptive", "zeros_tol": one} for one in TOLERANCES]
        kinds = [{"likelihood": "chebyshev"}, *kinds, {"likelihood": "exact"}]
        records = []
        for kind in kinds:
            _, record = _fitted(counts, k, init=approximate, **kind)
            cost = _fitted(counts, k, **kind, **PACE)[1]["cpu_iteration"]
            records.append(
                {"data": data, "fit": kind["likelihood"]} | kind | record | {"cpu_iteration": cost}
            )
        return records

    for data in TOLERANCE_DATA:
        yield {"data": data}, lambda data=data: measure(data)


def _large_fits(folder: Samples) -> Iterator[Job]:
    """A few iterations of large matrices."""
    kept: dict[str, Counts] = {}

    def measure(data: str, likelihood: str) -> list[Record]:
        if data not in kept:
            kept.clear()
            kept[data] = _large(data, folder)
        k, max_iter = N_COMPONENTS.get(data, 16), LARGE_ITERATIONS[data]
        _, record = _fitted(kept[data], k, likelihood=likelihood, init="random", max_iter=max_iter)
        return [{"data": data, "fit": likelihood} | record]

    for data in LARGE_ITERATIONS:
        for likelihood in ("chebyshev", "adaptive"):
            yield (
                {"data": data, "fit": likelihood},
                lambda data=data, likelihood=likelihood: measure(data, likelihood),
            )


def _defaults(folder: Samples) -> Iterator[Job]:
    """The fit of somebody who chooses nothing, and some others to compare it with."""

    def measure(data: str, name: str, chosen: Record) -> list[Record]:
        return [{"data": data, "fit": name} | _default_fit(folder, data, **chosen)]

    others = {f"{init}, seed {seed}": {"init": init, "random_state": seed} for init, seed in STARTS}
    for name, chosen in ({"default": {}} | others).items():
        for data in N_COMPONENTS:
            key = {"data": data, "fit": name}
            yield key, lambda data=data, name=name, chosen=chosen: measure(data, name, chosen)


def _seeds(folder: Samples) -> Iterator[Job]:
    """Default fits that differ in the seed alone."""
    for seed in range(N_SEEDS):
        for data in SEEDS_DATA:
            key = {"data": data, "seed": seed}
            yield key, lambda key=key: [key | _default_fit(folder, key["data"], random_state=key["seed"])]


def _default_fit(folder: Samples, data: str, **chosen: Any) -> Record:
    k = N_COMPONENTS[data]
    plain = {name: Log1pNMF(k).get_params()[name] for name in ("init", "random_state", "tol")}
    return _fitted(folder.counts(data), k, **(plain | chosen))[1]


# ---------------------------------------------------------------- the command

PARTS = {
    "fits": _fits,
    "ratio": _ratio,
    "pace": _pace,
    "tolerance": _tolerance,
    "large": _large_fits,
    "defaults": _defaults,
    "seeds": _seeds,
}


def _read(out: Path, part: str) -> list[Record]:
    path = out / f"zeros-{part}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m studies.zeros",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out")
    parser.add_argument("--minutes", type=float, default=30.0, help="begin nothing after this time")
    parser.add_argument("--rows", type=int, default=300_000, help="samples of streamed counts (large only)")
    parser.add_argument("--figure", type=Path, help="where to draw it (tolerance only)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    end = time.perf_counter() + 60 * arguments.minutes
    for key, measure in PARTS[arguments.part](Samples(arguments.data, arguments.rows)):
        done = any(key.items() <= record.items() for record in _read(arguments.out, arguments.part))
        if done or time.perf_counter() > end:
            continue
        try:
            records = measure()
        except MissingError as missing:
            print(f"skipped: {missing}")
            continue
        with (arguments.out / f"zeros-{arguments.part}.jsonl").open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        print(key, [round(record["cpu"], 1) for record in records], flush=True)
    print(table_of(arguments.part, _read(arguments.out, arguments.part), _read(arguments.out, "fits")))
    if arguments.figure is not None:
        draw(_read(arguments.out, "tolerance"), arguments.figure)


if __name__ == "__main__":
    main()
