"""Leiden clusters of loadings, by resolution: ``python -m studies.clusters``; needs scanpy and leidenalg.

All sorted blood cells: default fits at several c and K, then scanpy's neighbours and Leiden clusters of the
loadings and of the shares with their defaults, and the same of principal components; k-means with as many
clusters as there are types. The table has the number of clusters and the adjusted Rand index with the sorted
types; for the readings without clusters, see `studies.others`.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata
import scanpy as sc
from benchmarks.data import DATA, FILES
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

import log1pnmf as lp

RESOLUTIONS = (0.05, 0.1, 0.3, 1.0)
K_MEANS = "k-means"


def representations(adata: anndata.AnnData, n_components: list[int]) -> Iterator[tuple[str, str]]:
    """Add loadings and principal components to the cells; yield what they are called, and their key."""
    for K in n_components:
        for c in (1.0, math.inf):
            key = f"K={K} c={c:g}"
            lp.tl.log1p_nmf(adata, K, c=c, random_state=0, n_jobs=1, key_added=key)
            yield f"loadings, K = {K}, c = {c:g}", key
            yield f"shares, K = {K}, c = {c:g}", f"{key}_shares"
    logs = adata.copy()
    sc.pp.normalize_total(logs)
    sc.pp.log1p(logs)
    sc.pp.highly_variable_genes(logs)
    sc.pp.pca(logs)
    adata.obsm["X_pca"] = logs.obsm["X_pca"]
    yield "PCA of 50 dimensions", "X_pca"


def measure(adata: anndata.AnnData, label: str, n_components: list[int]) -> Iterator[dict[str, Any]]:
    """Cluster every representation at every resolution; a row for each representation."""
    for name, key in representations(adata, n_components):
        sc.pp.neighbors(adata, use_rep=key)
        row: dict[str, Any] = {"cells by": name}
        types = adata.obs[label].to_numpy(str)
        for resolution in RESOLUTIONS:
            sc.tl.leiden(adata, resolution=resolution)
            found = adata.obs["leiden"]
            ari = adjusted_rand_score(types, found.to_numpy(str))
            row[f"resolution {resolution:g}"] = f"{found.nunique()} ({ari:.2f})"
        means = KMeans(len(set(types)), n_init=10, random_state=0).fit_predict(adata.obsm[key])
        row[K_MEANS] = f"{adjusted_rand_score(types, means):.2f}"
        yield row


def main() -> None:
    """Print a Markdown table: clusters, and their adjusted Rand index in brackets."""
    parser = argparse.ArgumentParser(prog="python -m studies.clusters", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("-k", type=int, nargs="+", default=[5, 6, 8])
    given = parser.parse_args()
    head = ["cells by", *(f"resolution {one:g}" for one in RESOLUTIONS), K_MEANS]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adata = anndata.read_h5ad(given.data / f"{FILES['pbmc']}.h5ad")
        for row in measure(adata, "subpop", given.k):
            print(f"| {' | '.join(row.values())} |", flush=True)


if __name__ == "__main__":
    main()
