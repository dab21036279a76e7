"""What ``l1="auto"`` changes: ``python -m studies.penalty --jobs 16``.

Parts of data sets (600 samples, 1,500 features at most). A tenth of the counts is held out, apart from those
that the choice itself holds out, and scored by the fits without a penalty and with the chosen one: the
difference with its standard error over samples, the mean correlation between factors, the part of their
entries that is zero, and, where samples have labels, how well clusters by shares agree with them (k-means
with as many clusters as labels; adjusted Rand index).
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.data import DATA, FILES, Folder, smaller
from benchmarks.table import as_markdown
from joblib import Parallel, delayed
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from log1pnmf import fit_log1p_nmf, shares
from log1pnmf.analysis import heldout_log_likelihood
from log1pnmf.counts import split_counts, training_size_factors
from log1pnmf.fitting.fit import Fit

SETS = {"pbmc": 7, "baron": 9, "kang": 8, "her2st": 8, "bbc": 8, "ap": 8, "pcawg": 8}
LABELS = {"pbmc": "celltype", "baron": "label", "her2st": "label", "bbc": "label", "pcawg": "label"}
SHIFTS, NOISES = (0.1, 1.0, math.inf), ("poisson", "nb")
SAMPLES, ENTRIES, TEST = 600, 9e5, 0.1


def alike(fit: Fit) -> float:
    """Return the mean correlation between two factors."""
    return float(np.corrcoef(fit.factors.T)[np.triu_indices(fit.n_components, 1)].mean())


def found_again(fit: Fit, labels: np.ndarray | None) -> float:
    """Return how well clusters by shares agree with labels."""
    if labels is None:
        return math.nan
    clusters = KMeans(len(np.unique(labels)), n_init=20, random_state=0).fit_predict(shares(fit))
    return float(adjusted_rand_score(labels, clusters))


def labels_of(folder: Folder, data: str) -> np.ndarray | None:
    """Return the labels of the samples that `smaller` takes."""
    if data not in LABELS:
        return None
    import anndata

    labels = anndata.read_h5ad(folder.data / f"{FILES[data]}.h5ad").obs[LABELS[data]].to_numpy(str)
    return labels[np.sort(np.random.default_rng(0).permutation(len(labels))[:SAMPLES])]


def measure(folder: Folder, data: str, c: float, noise: str) -> dict[str, Any]:
    counts = smaller(folder.counts(data), SAMPLES, ENTRIES)
    train, test = split_counts(counts, TEST, random_state=1)
    how: dict[str, Any] = {"c": c, "noise": noise, "size_factors": training_size_factors(train, TEST)}
    fits = [fit_log1p_nmf(train, SETS[data], l1=l1, n_jobs=1, **how) for l1 in (0.0, "auto")]
    before, after = (heldout_log_likelihood(fit, train, test, test_fraction=TEST) for fit in fits)
    gains, labels = after - before, labels_of(folder, data)
    agreement = [found_again(fit, labels) for fit in fits]
    return {
        "data": data,
        "c": f"{c:g}",
        "noise": noise,
        "l1": fits[1].settings.l1,
        "held-out gain": float(gains.sum()),
        "standard error": float(gains.std() * math.sqrt(len(gains))),
        "correlation before": alike(fits[0]),
        "after": alike(fits[1]),
        "zeros before": float((fits[0].factors == 0.0).mean()),
        "zeros after": float((fits[1].factors == 0.0).mean()),
        "ARI before": agreement[0],
        "ARI after": agreement[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.penalty", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), metavar="NAME")
    parser.add_argument("-c", type=float, nargs="+", default=list(SHIFTS))
    parser.add_argument("--noise", nargs="+", choices=NOISES, default=list(NOISES))
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    folder, tasks = Folder(given.data), itertools.product(given.sets, given.c, given.noise)
    run = Parallel(given.jobs, batch_size=1, return_as="generator_unordered")
    rows = []
    for row in run(delayed(measure)(folder, *task) for task in tasks):
        print(row, file=sys.stderr, flush=True)  # not lost where the time is up
        rows.append(row)
    print(as_markdown(sorted(rows, key=lambda row: (row["data"], float(row["c"]), row["noise"]))))


if __name__ == "__main__":
    main()
