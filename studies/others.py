"""This package beside others, at the same number of factors: ``python -m studies.others``.

Three data sets, some samples and features of each. Every program is fitted to the same four fifths of the
counts (binomial thinning) with one thread, from up to three seeds (fewer where fits are slow). What others
need is installed in environments of their own, which are named here:
``--python cnmf=/some/venv/bin/python``; a program that is not installed gets a row that says so.

CPU seconds and the held-out Poisson log-likelihood (as the gain over one factor) are medians over the seeds.
Memory is what the first fit adds at its peak to the interpreter with its imports. Labels and coherence are
those of seed 0. The scores are those of `studies.others_scores`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.data import DATA, FILES, ROOT
from scipy import sparse

from log1pnmf.counts.counts import Counts
from log1pnmf.counts.read import read_table
from log1pnmf.counts.splitting import split_counts
from studies.paper.cell_types import name_cell_types

from . import others_scores as scores
from .others_worker import METHODS, RESULT

WORKER = Path(__file__).with_name("others_worker.py")
TEST = 0.2
FOR_TEXTS = ("tomotopy", "gensim")
HEAD = (
    "program",
    "CPU s",
    "added MB",
    "held-out gain",
    "ARI, strongest factor",
    "ARI, not shared",
    "ARI, k-means",
    "labels predicted",
    "stability",
    "NPMI",
)


@dataclass(frozen=True)
class Part:
    """Some of a data set: samples, features, factors, and the column of the labels."""

    name: str
    n_samples: int
    n_features: int
    n_components: int
    label: str = "label"
    texts: bool = False


PARTS = (
    Part("bbc", 1000, 1500, 6, texts=True),
    Part("pbmc", 600, 1000, 6, label="subpop"),
    Part("kang", 600, 1000, 8),
)


@dataclass(frozen=True, eq=False)
class Split:
    """Counts to fit and to predict, labels of the samples, and what was not taken (documents)."""

    train: Counts
    test: Counts
    labels: np.ndarray
    rest: Counts


def take(part: Part, data: Path) -> Split:
    """Take random samples and their most frequent features, and thin the counts."""
    table = read_table(data / f"{FILES[part.name]}.h5ad", max_memory="8GB")
    labels = np.asarray(table.labels(part.label)).astype(str)
    whole = table.counts.to_scipy()
    if part.name == "kang":  # treated and untreated cells of every type
        types = name_cell_types(sparse.csr_matrix(whole), np.asarray(table.feature_names), labels)
        labels = np.char.add(np.char.add(types, " "), labels)
    order = np.random.default_rng(0).permutation(len(labels))
    rows, others = np.sort(order[: part.n_samples]), np.sort(order[part.n_samples :])
    totals = np.asarray(whole[rows].sum(axis=0)).ravel()
    frequent = np.sort(np.argsort(-totals, kind="stable")[: part.n_features])
    train, test = split_counts(Counts.from_any(whole[rows][:, frequent]), TEST, random_state=0)
    return Split(train, test, labels[rows], Counts.from_any(whole[others[:2000]][:, frequent]))


def fit(python: str, jobs: list[dict[str, Any]], folder: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Let an interpreter do jobs; the number of each and what was said, as soon as it is done."""
    one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    child = [python, str(WORKER), str(folder / "jobs.json")]
    with subprocess.Popen(child, env=os.environ | one, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith(RESULT):
                found = json.loads(line.removeprefix(RESULT))
                yield found["job"], found["said"]


def measure(part: Part, split: Split, method: str, said: list[dict[str, Any]], target: str) -> dict[str, Any]:
    """Score the results of one program on one data set; a row of the table."""
    row: dict[str, Any] = {"data": part.name, "program": METHODS[method][0]}
    runs = [run for run in said if "failed" not in run]
    if not runs:
        return row | said[0]
    sums = split.train.row_sums, split.train.by_column.row_sums()
    one_factor = scores.heldout(np.outer(sums[0], sums[1] / sums[1].sum()), split.train, split.test, TEST)
    loadings = []
    for run in runs:
        with np.load(f"{target}-{run['seed']}.npz") as found:
            loadings.append(found["loadings"])
            run["gain"] = scores.heldout(found["means"], split.train, split.test, TEST) - one_factor
            if run is runs[0]:
                weights = found["weights"]
    row |= {"version": runs[0]["version"], "runs": runs, "memory": runs[0]["memory"]}
    row |= {name: float(np.median([run[name] for run in runs])) for name in ("cpu", "gain")}
    row |= {
        "ari": scores.strongest(loadings[0], split.labels),
        "dominant": scores.dominant(loadings[0], weights, split.labels),
        "clustered": scores.clustered(loadings[0], split.labels),
        "predicted": scores.predicted(loadings[0], split.labels),
        "stability": scores.stability(loadings) if len(loadings) > 1 else np.nan,
        "npmi": scores.coherent(weights, split.rest) if part.texts and (weights >= 0).all() else np.nan,
    }
    return row


def rows(
    parts: dict[str, tuple[Part, Split]],
    methods: Sequence[str],
    pythons: dict[str, str],
    done: Container[tuple[str, str]] = (),
) -> Iterator[dict[str, Any]]:
    """Measure programs on all data sets, in the order given; neighbours share an interpreter."""
    with tempfile.TemporaryDirectory() as name:
        folder, jobs = Path(name), []
        for part, split in parts.values():
            sparse.save_npz(folder / f"{part.name}.npz", sparse.csr_matrix(split.train.to_scipy()))
        for method, (part, _) in product(methods, parts.values()):
            shown, distribution, _ = METHODS[method]
            if (part.name, shown) in done or (distribution in FOR_TEXTS and not part.texts):
                continue
            job = {"method": method, "part": part.name, "n_components": part.n_components}
            job |= {"source": f"{folder / part.name}.npz", "target": f"{folder / part.name}-{method}"}
            jobs.append(job | {"python": pythons.get(distribution, sys.executable), "number": len(jobs)})
        for python, some in groupby(jobs, key=lambda job: job["python"]):
            for number, said in fit(python, list(some), folder):
                job = jobs[number]
                yield measure(*parts[job["part"]], job["method"], said, job["target"])


def as_line(row: dict[str, Any], texts: bool) -> str:
    """Write a row of a Markdown table."""
    if "failed" in row:
        cells = [row["program"], row["failed"]]
        return f"| {' | '.join(cells + [''] * (len(HEAD) - 2 - (not texts)))} |"
    gain = "–" if np.isnan(row["gain"]) else f"{row['gain']:,.0f}"
    cells = [row["program"], f"{row['cpu']:.1f}", f"{row['memory']:.0f}", gain]
    for name in ("ari", "dominant", "clustered", "predicted", "stability", *(["npmi"] if texts else [])):
        cells.append("–" if np.isnan(row[name]) else f"{row[name]:.2f}")
    return f"| {' | '.join(cells)} |"


def as_table(part: Part, found: list[dict[str, Any]]) -> str:
    """Write a table of one data set; the last row of a program counts."""
    head = HEAD if part.texts else HEAD[:-1]
    size = f"{part.n_samples:,} x {part.n_features:,}, K = {part.n_components}"
    lines = [f"### {part.name}: {size}", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    last = {row["program"]: as_line(row, part.texts) for row in found}
    return "\n".join([*lines, *(last[shown] for shown, _, _ in METHODS.values() if shown in last)])


def main() -> None:
    """Print a table for each data set, and keep the rows."""
    parser = argparse.ArgumentParser(prog="python -m studies.others", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--sets", nargs="+", choices=[part.name for part in PARTS], metavar="NAME")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="NAME")
    parser.add_argument("--python", nargs="+", default=[], metavar="DISTRIBUTION=INTERPRETER")
    parser.add_argument("--quick", action="store_true", help="150 samples and 200 features: does it run?")
    parser.add_argument(
        "--json",
        type=Path,
        default=ROOT / "bench-out" / "others.jsonl",
        help="rows are added; those there are not measured again",
    )
    parser.add_argument("--show", action="store_true", help="print the rows in that file, measure nothing")
    given = parser.parse_args()
    small = {"n_samples": 150, "n_features": 200, "n_components": 3} if given.quick else {}
    chosen = [replace(part, **small) for part in PARTS if not given.sets or part.name in given.sets]
    if not given.show:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        parts = {part.name: (part, take(part, given.data)) for part in chosen}
        pythons = dict(pair.split("=", 1) for pair in given.python)
        done = {(row["data"], row["program"]) for row in read(given.json) if "failed" not in row}
        with given.json.open("a") as file:
            for row in rows(parts, given.methods, pythons, done):
                file.write(json.dumps(row) + "\n")
                file.flush()
    found = read(given.json)
    print("\n\n".join(as_table(part, [row for row in found if row["data"] == part.name]) for part in chosen))


def read(path: Path) -> list[dict[str, Any]]:
    """Rows that are there already."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
