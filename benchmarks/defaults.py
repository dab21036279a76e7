"""What users type, timed: ``python -m benchmarks.defaults``.

The default call of log1pnmf at c = 1 and at c = inf, of scikit-learn's NMF with the Poisson loss, of its LDA
and, for texts, of its NMF of tf-idf: nothing is set but the number of factors, the seed and one thread. CPU
seconds are of the whole call, the search for a start included; imports and reading are not. All programs get
the same matrix.

The log-likelihood is that of the training counts under independent Poisson noise; that of LDA is computed
from its expected topics, with every document's own total. LDA and NMF at c = inf have the same means, c = 1
has others, so likelihoods compare how far fits came only between programs with the same model.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.decomposition import NMF, LatentDirichletAllocation
from sklearn.feature_extraction.text import TfidfTransformer
from threadpoolctl import threadpool_limits

from log1pnmf import Log1pNMF

from .data import DATA, FILES, ROOT, Folder
from .measuring import Clock, Task
from .table import as_markdown

N_COMPONENTS = {"pbmc": 6, "baron": 9, "bbc": 10}
TITLES = {
    "pbmc": "blood cells, {} x {} genes",
    "baron": "pancreas cells, {} x {} genes",
    "bbc": "news articles, {} x {} words",
}
TEXTS = ("bbc", "ap", "newsgroups")


class Fitted(NamedTuple):
    """Loadings and factors whose product are the means, or the log-likelihood (None: the model has none)."""

    means: tuple[np.ndarray, np.ndarray] | float | None
    n_iter: int
    ended: str


def ours(c: float) -> Callable[[sparse.csr_array, int], Fitted]:
    def fit(counts: sparse.csr_array, n_components: int) -> Fitted:
        model = Log1pNMF(n_components, c=c, random_state=0, n_jobs=1).fit(counts)
        return Fitted(model.log_likelihood_, model.n_iter_, model.fit_.stopped)

    return fit


def nmf(counts: sparse.csr_array, n_components: int) -> Fitted:
    model = NMF(n_components, beta_loss="kullback-leibler", solver="mu", random_state=0)
    loadings = model.fit_transform(counts)
    ended = "converged" if model.n_iter_ < model.max_iter else "max_iter"
    return Fitted((loadings, model.components_), model.n_iter_, ended)


def lda(counts: sparse.csr_array, n_components: int) -> Fitted:
    model = LatentDirichletAllocation(n_components, random_state=0)
    topics = model.fit_transform(counts)
    words = model.components_ / model.components_.sum(axis=1, keepdims=True)
    totals = np.asarray(counts.sum(axis=1)).reshape(-1, 1)
    return Fitted((totals * topics, words), model.n_iter_, "max_iter")


def tfidf(counts: sparse.csr_array, n_components: int) -> Fitted:
    model = NMF(n_components, random_state=0)
    model.fit(TfidfTransformer().fit_transform(counts))
    return Fitted(None, model.n_iter_, "converged" if model.n_iter_ < model.max_iter else "max_iter")


PROGRAMS: dict[str, Callable[[sparse.csr_array, int], Fitted]] = {
    "log1pnmf, c = 1": ours(1.0),
    "log1pnmf, c = inf": ours(math.inf),
    "scikit-learn NMF, Poisson loss": nmf,
    "scikit-learn LDA": lda,
    "scikit-learn NMF of tf-idf": tfidf,
}


def measure(folder: Folder, data: str, n_components: int) -> Iterator[dict[str, Any]]:
    """Fit every program to one data set; a row for each."""
    matrix = folder.matrix(data)
    title = TITLES.get(data, f"{data}, {{}} x {{}}").format(*(f"{n:,}" for n in matrix.shape))
    for program, fit in PROGRAMS.items():
        if fit is tfidf and data not in TEXTS:
            continue
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it did not converge is in the table
            clock = Clock()
            found = fit(matrix, n_components)
            cpu, _ = clock.read()
        likelihood = found.means
        if isinstance(likelihood, tuple):
            loadings, factors = (np.asarray(part, dtype=np.float64) for part in likelihood)
            task = Task(folder.counts(data), math.inf, size_factors="none", n_jobs=1)
            likelihood = -task.engine().loss(loadings, np.ascontiguousarray(factors.T))
        yield {
            "data": f"{title}, K = {n_components}",
            "program": program,
            "CPU s": cpu,
            "log-likelihood": likelihood,
            "iterations": found.n_iter,
            "ended": found.ended,
        }


def _cell(row: dict[str, Any]) -> str:
    likelihood = row["log-likelihood"]
    return f"{row['CPU s']:.1f} s" + ("" if likelihood is None else f", {likelihood / 1e3:,.1f}")


def main() -> None:
    """Print CPU seconds and log-likelihoods in thousands, a line for each data set, and keep the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.defaults", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--sets", nargs="+", choices=list(FILES), default=list(N_COMPONENTS), metavar="NAME")
    parser.add_argument("-k", type=int, help="number of factors; needed for other data sets than the usual")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-out" / "defaults.json")
    given = parser.parse_args()
    if given.k is None and (unknown := set(given.sets) - set(N_COMPONENTS)):
        parser.error(f"pass -k for {', '.join(sorted(unknown))}")
    folder, rows, lines = Folder(given.data), [], []
    for data in given.sets:
        found = list(measure(folder, data, given.k or N_COMPONENTS[data]))
        lines.append({"data": found[0]["data"], **{row["program"]: _cell(row) for row in found}})
        rows += found
    print(as_markdown(lines))
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
