"""What users type, timed: ``python -m benchmarks.defaults``.

The default call of log1pnmf at c = 1 and at c = inf, a single start ("rank1") at both, scikit-learn's NMF
with the Poisson loss, its LDA and, for texts, its NMF of tf-idf: nothing is set but the number of factors,
the seed and one thread. CPU seconds are of the whole call, the search for a start included; imports and
reading are not. All programs get the same matrix. On a machine with a card, ``CUDA_VISIBLE_DEVICES= `` keeps
log1pnmf from using it.

The log-likelihood is that of the training counts under independent Poisson noise; that of LDA is computed
from its expected topics, with every document's own total. LDA and NMF have the means of c = inf, c = 1 has
others: the gap is to the highest log-likelihood of the same means, in this run or in ``best_known.json``,
relative to it.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from joblib import Parallel, delayed
from scipy import sparse
from sklearn.decomposition import NMF, LatentDirichletAllocation
from sklearn.feature_extraction.text import TfidfTransformer
from threadpoolctl import threadpool_limits

from log1pnmf import Log1pNMF
from log1pnmf.fitting import starts

from .data import DATA, ROOT, Folder
from .measuring import Clock, Task
from .table import as_markdown

N_COMPONENTS = {
    "pcawg": 10,
    "mcf7": 3,
    "bbc": 10,
    "ap": 10,
    "pbmc": 6,
    "baron": 9,
    "newsgroups": 20,
    "kang": 13,
    "her2st": 10,
}
TEXTS = ("bbc", "ap", "newsgroups")
TITLES = {"pbmc": "blood cells", "baron": "pancreas cells", "bbc": "news articles"}
BEST_KNOWN = Path(__file__).with_name("best_known.json")
WITHIN = 2e-4  # gap that counts as the best known optimum

Means = tuple[np.ndarray, np.ndarray]
Row = dict[str, Any]


def ours(matrix: sparse.csr_array, n_components: int, seed: int, *, c: float, init: str) -> Row:
    searches: list[float] = []

    def timed(*args: Any, **kwargs: Any) -> Any:
        clock, found = Clock(), search(*args, **kwargs)
        searches.append(clock.read()[0])
        return found

    search = starts.search
    with patch.object(starts, "search", timed):
        model = Log1pNMF(n_components, c=c, init=init, random_state=seed, n_jobs=1).fit(matrix)
    return {
        "log-likelihood": model.log_likelihood_,
        "iterations": model.n_iter_,
        "ended": model.fit_.stopped,
        "search s": sum(searches),
    }


def nmf(matrix: sparse.csr_array, n_components: int, seed: int) -> Row:
    model = NMF(n_components, beta_loss="kullback-leibler", solver="mu", random_state=seed)
    loadings = model.fit_transform(matrix)
    ended = "converged" if model.n_iter_ < model.max_iter else "max_iter"
    return {"means": (loadings, model.components_), "iterations": model.n_iter_, "ended": ended}


def lda(matrix: sparse.csr_array, n_components: int, seed: int) -> Row:
    model = LatentDirichletAllocation(n_components, random_state=seed)
    topics = model.fit_transform(matrix)
    words = model.components_ / model.components_.sum(axis=1, keepdims=True)
    totals = np.asarray(matrix.sum(axis=1)).reshape(-1, 1)
    return {"means": (totals * topics, words), "iterations": model.n_iter_, "ended": "max_iter"}


def tfidf(matrix: sparse.csr_array, n_components: int, seed: int) -> Row:
    model = NMF(n_components, random_state=seed).fit(TfidfTransformer().fit_transform(matrix))
    return {
        "iterations": model.n_iter_,
        "ended": "converged" if model.n_iter_ < model.max_iter else "max_iter",
    }


PROGRAMS: dict[str, Callable[[sparse.csr_array, int, int], Row]] = {
    "log1pnmf, c = 1": partial(ours, c=1.0, init="auto"),
    "log1pnmf, c = 1, single start": partial(ours, c=1.0, init="rank1"),
    "log1pnmf, c = inf": partial(ours, c=math.inf, init="auto"),
    "log1pnmf, c = inf, single start": partial(ours, c=math.inf, init="rank1"),
    "scikit-learn NMF, Poisson loss": nmf,
    "scikit-learn LDA": lda,
    "scikit-learn NMF of tf-idf": tfidf,
}


def measure(folder: Folder, data: str, program: str, seed: int) -> Row:
    """Fit one program to one data set."""
    matrix = folder.matrix(data)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it did not converge is in the table
        clock = Clock()
        found = PROGRAMS[program](matrix, N_COMPONENTS[data], seed)
        cpu, _ = clock.read()
    if (means := found.pop("means", None)) is not None:
        loadings, factors = (np.asarray(part, dtype=np.float64) for part in means)
        task = Task(folder.counts(data), math.inf, size_factors="none", n_jobs=1)
        found["log-likelihood"] = -task.engine().loss(loadings, np.ascontiguousarray(factors.T))
    title = f"{TITLES.get(data, data)}, {matrix.shape[0]:,} x {matrix.shape[1]:,}, K = {N_COMPONENTS[data]}"
    return {"data": data, "title": title, "program": program, "seed": seed, "CPU s": cpu, **found}


def add_gaps(rows: Sequence[Row]) -> None:
    """Give every row its gap to the best known; where a run found better, the file follows."""
    rows = [row for row in rows if "log-likelihood" in row]
    best = json.loads(BEST_KNOWN.read_text()) if BEST_KNOWN.exists() else {}
    keys = [f"{row['data']}, c = {'1' if 'c = 1' in row['program'] else 'inf'}" for row in rows]
    for key, row in zip(keys, rows, strict=True):
        best[key] = max(best.get(key, -math.inf), row["log-likelihood"])
    for key, row in zip(keys, rows, strict=True):
        row["gap"] = (best[key] - row["log-likelihood"]) / abs(best[key])
    BEST_KNOWN.write_text(json.dumps(dict(sorted(best.items())), indent=1) + "\n")


def summed_up(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each data set and program, with means over seeds and the worst gap."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["title"], row["program"]), []).append(row)
    table = []
    for (title, program), group in groups.items():
        cpu, search = (np.mean([row.get(name, math.nan) for row in group]) for name in ("CPU s", "search s"))
        table.append(
            {
                "data": title,
                "program": program,
                "CPU s": float(cpu),
                "search / fit": float(search / (cpu - search)) if search > 0.0 else None,
            }
        )
        if "gap" in group[0]:
            table[-1] |= {
                "log-likelihood": float(np.mean([row["log-likelihood"] for row in group])),
                "largest gap, %": 100.0 * max(row["gap"] for row in group),
                f"gap <= {WITHIN:.2%}": f"{sum(row['gap'] <= WITHIN for row in group)} of {len(group)}",
            }
    return table


def side_by_side(table: Sequence[Row]) -> list[Row]:
    """Return a row for each data set, a column for each program: CPU seconds, log-likelihood in thousands."""
    lines: dict[str, Row] = {}
    for row in table:
        likelihood = f", {row['log-likelihood'] / 1e3:,.1f}" if "log-likelihood" in row else ""
        line = lines.setdefault(row["data"], {"data": row["data"]})
        line[row["program"]] = f"{row['CPU s']:.1f} s{likelihood}"
    return list(lines.values())


def main() -> None:
    """Print a table of all data sets, and keep the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.defaults", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument(
        "--sets", nargs="+", choices=list(N_COMPONENTS), default=list(N_COMPONENTS), metavar="NAME"
    )
    parser.add_argument(
        "--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS), metavar="NAME"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time, each with one thread")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-out" / "defaults.json")
    given = parser.parse_args()
    tasks = product(reversed(given.sets), given.programs, range(given.seeds))  # the dearest first
    folder = Folder(given.data)
    tasks = (task for task in tasks if task[0] in TEXTS or PROGRAMS[task[1]] is not tfidf)
    jobs = Parallel(given.jobs, batch_size=1, return_as="generator_unordered")
    rows = []
    given.json.parent.mkdir(parents=True, exist_ok=True)
    for row in jobs(delayed(measure)(folder, *task) for task in tasks):
        rows.append(row)
        given.json.write_text(json.dumps(rows, indent=1))
    rows.sort(key=lambda row: (given.sets.index(row["data"]), given.programs.index(row["program"])))
    add_gaps(rows)
    given.json.write_text(json.dumps(rows, indent=1))
    print(as_markdown(summed_up(rows)), as_markdown(side_by_side(summed_up(rows))), sep="\n")


if __name__ == "__main__":
    main()
