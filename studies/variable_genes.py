"""All genes, or variable genes first? ``python -m studies.variable_genes [--jobs 6]``

Default fits to all genes and to variable ones, to which all others are then added given the loadings
(`extend_features`). Compared are CPU seconds, the adjusted Rand index of each cell's dominant factor (without
the baseline) with its label, and how many factors are about the state of a cell as such: at least five of
their first ten genes are ribosomal or mitochondrial (RPL, RPS, MT-). Mean of three seeds.
"""

from __future__ import annotations

import argparse
import re
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.data import DATA, FILES
from benchmarks.measuring import Clock
from sklearn.metrics import adjusted_rand_score

from log1pnmf import dominant_factor, extend_features, fit_log1p_nmf
from log1pnmf.analysis import top_features
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.features import select_features, variable_features

SETS = {
    "pancreas, 1,937 x 16,016, K = 9": ("baron", "label", 9),
    "blood, 3,774 x 16,791, K = 7": ("pbmc", "subpop", 7),
}
NUMBERS = (None, 5000, 2000, 500)
SEEDS = range(3)
GENERAL = re.compile(r"RP[LS]\d|MT-", re.IGNORECASE)


def measure(name: str, n: int | None, seed: int, folder: Path) -> tuple[float, float, int]:
    """CPU seconds, adjusted Rand index, and number of factors of ribosomal or mitochondrial genes."""
    import anndata

    warnings.simplefilter("ignore")
    file, column, K = SETS[name]
    adata: Any = anndata.read_h5ad(folder / f"{FILES[file]}.h5ad")
    var = getattr(adata, "var", {})
    names = np.asarray(var.get("symbol", adata.var_names)).astype(str)
    counts, clock = Counts.from_any(adata.X), Clock()
    if n is None:
        fit = fit_log1p_nmf(counts, K, random_state=seed, n_jobs=1, verbose=0)
    else:
        chosen = variable_features(counts, n)
        part = fit_log1p_nmf(select_features(counts, chosen), K, random_state=seed, n_jobs=1, verbose=0)
        fit = extend_features(part, counts, features=chosen, n_jobs=1)
    seconds = clock.read()[0]
    table = top_features(fit, 10, feature_names=names)
    general = table["feature"].map(lambda gene: bool(GENERAL.match(gene))).groupby(table["factor"]).sum()
    ari = adjusted_rand_score(np.asarray(adata.obs[column]).astype(str), np.asarray(dominant_factor(fit)))
    return seconds, float(ari), int((general >= 5).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--jobs", type=int, default=1, help="processes [1]")
    given = parser.parse_args()
    print("| data | genes fitted | CPU s | ARI | ribosomal or mitochondrial factors |\n|---|---|---|---|---|")
    with ProcessPoolExecutor(given.jobs) as pool:
        runs = {
            (name, n): [pool.submit(measure, name, n, seed, given.data) for seed in SEEDS]
            for name in SETS
            for n in NUMBERS
        }
        for (name, n), found in runs.items():
            seconds, ari, general = np.mean([one.result() for one in found], axis=0)
            genes = "all" if n is None else f"{n:,}, then all"
            print(f"| {name} | {genes} | {seconds:.0f} | {ari:.2f} | {general:.1f} |", flush=True)


if __name__ == "__main__":
    main()
