"""This package beside others, at the same number of factors: ``python -m benchmarks.others``.

Three data sets, some samples and features of each. Every method is fitted to the same four fifths of the
counts. Columns: CPU seconds of the fit; Poisson log-likelihood of the held-out fifth, as the gain over one
factor (means are mixed with a thousandth of a rank-one background, so that no count is impossible); agreement
of clusters of the loadings with the known labels (adjusted Rand index, normalised mutual information); mean
correlation of matched loadings over three seeds; NPMI coherence of the ten words with the largest weight.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import gammaln
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF, LatentDirichletAllocation
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from threadpoolctl import threadpool_limits

from log1pnmf import Log1pNMF
from log1pnmf.analysis.coherence import npmi
from log1pnmf.analysis.heldout import BACKGROUND
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.files import read_table
from log1pnmf.counts.splitting import split_counts

from .data import DATA, FILES

Array = NDArray[np.float64]

SETS = {"bbc": 5, "baron": 9, "kang": 8}
"""Number of factors; labels of the samples are in the column "label"."""
TEXTS = ("bbc",)
NOT_HERE = {"cnmf": "cNMF", "schpf": "scHPF", "glmpca": "GLM-PCA", "gensim": "gensim's LDA"}
TEST = 0.2


@dataclass(frozen=True, eq=False)
class Found:
    """Loadings (samples x K), weights of features (K x features), and means of the training counts."""

    loadings: Array
    weights: Array
    means: Array


Method = Callable[[sparse.csr_array, int, int], Found]


def log1p_nmf(c: float) -> Method:
    """Fit this package's model."""

    def fit(counts: sparse.csr_array, n_components: int, seed: int) -> Found:
        init = "auto" if seed == 0 else "random"
        model = Log1pNMF(n_components, c=c, init=init, random_state=seed, n_jobs=1).fit(counts)
        means = model.inverse_transform(model.loadings_, model.fit_.size_factors)
        return Found(model.loadings_, model.components_, means)

    return fit


def nmf(**options: object) -> Method:
    """Fit scikit-learn's NMF to counts."""

    def fit(counts: sparse.csr_array, n_components: int, seed: int) -> Found:
        start = "nndsvda" if seed == 0 else "random"
        model = NMF(n_components, init=start, random_state=seed, max_iter=1000, **options)
        loadings = model.fit_transform(sparse.csr_matrix(counts))
        return Found(loadings, model.components_, loadings @ model.components_)

    return fit


def nmf_of_logs(counts: sparse.csr_array, n_components: int, seed: int) -> Found:
    """Fit scikit-learn's NMF to ``log(1 + count / size factor)``, as is usual for single cells."""
    sizes = np.asarray(counts.sum(axis=1)).ravel()
    sizes = np.maximum(sizes, 1.0) / sizes.mean()
    logs = sparse.csr_matrix(sparse.diags_array(1.0 / sizes) @ counts)
    logs.data = np.log1p(logs.data)
    start = "nndsvda" if seed == 0 else "random"
    model = NMF(n_components, init=start, random_state=seed, max_iter=1000)
    loadings = model.fit_transform(logs)
    means = sizes[:, None] * np.expm1(np.minimum(loadings @ model.components_, 50.0))
    return Found(loadings, model.components_, means)


def lda(counts: sparse.csr_array, n_components: int, seed: int) -> Found:
    """Fit scikit-learn's LDA."""
    model = LatentDirichletAllocation(n_components, random_state=seed, max_iter=50, n_jobs=1)
    topics = model.fit_transform(sparse.csr_matrix(counts))
    words = model.components_ / model.components_.sum(axis=1, keepdims=True)
    totals = np.asarray(counts.sum(axis=1))
    return Found(topics, words, totals.reshape(-1, 1) * (topics @ words))


METHODS: dict[str, Method] = {
    "log1pnmf, c = 0.001": log1p_nmf(1e-3),
    "log1pnmf, c = 1": log1p_nmf(1.0),
    "log1pnmf, c = inf": log1p_nmf(np.inf),
    "scikit-learn NMF, KL": nmf(solver="mu", beta_loss="kullback-leibler"),
    "scikit-learn NMF, Frobenius": nmf(),
    "scikit-learn NMF of log(1 + x)": nmf_of_logs,
    "scikit-learn LDA": lda,
}


def heldout(means: Array, train: Counts, test: Counts) -> float:
    """Poisson log-likelihood of the test part, given means of the training part."""
    rows, columns = train.row_sums + 0.5, train.by_column.row_sums() + 0.5
    beside = np.outer(rows, columns / columns.sum())
    mean = TEST / (1.0 - TEST) * ((1.0 - BACKGROUND) * np.maximum(means, 0.0) + BACKGROUND * beside)
    y = test.to_scipy().toarray()
    return float(np.sum(y * np.log(mean) - mean - gammaln(y + 1.0)))


def clusters(loadings: Array, n_labels: int) -> NDArray[np.intp]:
    """Cluster samples by the shares of their loadings."""
    scaled = loadings / np.maximum(loadings.max(axis=0), 1e-300)
    shares = scaled / np.maximum(scaled.sum(axis=1, keepdims=True), 1e-300)
    return np.asarray(KMeans(n_labels, n_init=10, random_state=0).fit_predict(shares))


def some(name: str, data: Path, n_samples: int, n_features: int) -> tuple[Counts, np.ndarray]:
    """Take some random samples and their most frequent features, with the labels."""
    table = read_table(data / f"{FILES[name]}.h5ad", max_memory="8GB")
    rows = np.sort(np.random.default_rng(0).permutation(table.shape[0])[:n_samples])
    matrix = table.counts.to_scipy()[rows]
    frequent = np.sort(np.argsort(-np.asarray(matrix.sum(axis=0)).ravel(), kind="stable")[:n_features])
    matrix = matrix[:, frequent]
    filled = np.asarray(matrix.sum(axis=1)).ravel() > 0
    return Counts.from_any(matrix[filled]), np.asarray(table.labels("label"))[rows][filled]


def measure(name: str, counts: Counts, labels: np.ndarray, methods: Sequence[str]) -> list[list[str]]:
    """Measure all methods on one data set; rows of the table."""
    n_components = SETS[name]
    train, test = split_counts(counts, TEST, random_state=0)
    one = heldout(log1p_nmf(np.inf)(train.to_scipy(), 1, 0).means, train, test)
    rows = []
    for method in methods:
        started = time.process_time()
        found = METHODS[method](train.to_scipy(), n_components, 0)
        seconds = time.process_time() - started
        others = [METHODS[method](train.to_scipy(), n_components, seed).loadings for seed in (1, 2, 3)]
        pairs = [(others[a], others[b]) for a in range(3) for b in range(a)]
        stable = np.mean([match_factors(a, b).similarity.mean() for a, b in pairs])
        groups = clusters(found.loadings, len(np.unique(labels)))
        row = [
            method,
            f"{seconds:.1f}",
            f"{heldout(found.means, train, test) - one:,.0f}",
            f"{adjusted_rand_score(labels, groups):.2f}",
            f"{normalized_mutual_info_score(labels, groups):.2f}",
            f"{stable:.2f}",
        ]
        if name in TEXTS:
            first = np.argsort(-found.weights, axis=1)[:, :10]
            row.append(f"{np.mean([npmi(test, words) for words in first]):.2f}")
        rows.append(row)
        print(f"| {' | '.join(row)} |", flush=True)
    return rows


def main() -> None:
    """Print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--features", type=int, default=1000)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    given = parser.parse_args()
    missing = [shown for name, shown in NOT_HERE.items() if importlib.util.find_spec(name) is None]
    print(f"Not installed here, and not compared: {', '.join(missing) or 'none'}.")
    for name in given.sets:
        counts, labels = some(name, given.data, given.samples, given.features)
        n, m = counts.shape
        print(f"\n### {name} ({n} x {m}), K = {SETS[name]}, {len(np.unique(labels))} labels\n")
        head = ["method", "CPU s", "held-out gain", "ARI", "NMI", "stability"]
        head += ["NPMI"] if name in TEXTS else []
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            measure(name, counts, labels, list(METHODS))


if __name__ == "__main__":
    main()
