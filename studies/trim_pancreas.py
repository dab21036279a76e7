"""Make src/log1pnmf/datasets/pancreas.npz from the full human pancreas matrix.

    python studies/trim_pancreas.py ../shared/data/baron_human_pancreas.h5ad

Needs the `anndata` extra. Every cell stays. Of the genes seen in at least MIN_CELLS cells, those stay whose
Pearson residuals (against independence of cell and gene, negative binomial with overdispersion 1/THETA)
vary most, and for every cell type the genes with the largest mean residual in it.
Counts are kept as they are; genes keep their order.
"""

import argparse
from pathlib import Path

import anndata
import numpy as np
from scipy import sparse

MIN_CELLS = 5
THETA = 100.0
N_VARIABLE = 2400
N_MARKERS = 30
TARGET = Path(__file__).parents[1] / "src" / "log1pnmf" / "datasets" / "pancreas.npz"


def pearson_residuals(counts: np.ndarray) -> np.ndarray:
    """Residuals of every count from cell total x gene total / total, clipped at the root of the cells."""
    mean = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    limit = np.sqrt(counts.shape[0])
    return np.clip((counts - mean) / np.sqrt(mean + mean**2 / THETA), -limit, limit)


def informative_genes(counts: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Sorted positions of the genes that stay."""
    seen = np.flatnonzero((counts > 0).sum(axis=0) >= MIN_CELLS)
    residuals = pearson_residuals(counts[:, seen].astype(np.float64))
    kept = set(seen[np.argsort(-residuals.var(axis=0), kind="stable")[:N_VARIABLE]])
    for label in np.unique(labels):
        in_type = residuals[labels == label].mean(axis=0)
        kept.update(seen[np.argsort(-in_type, kind="stable")[:N_MARKERS]])
    return np.array(sorted(kept))


def compact(counts: sparse.csr_array) -> dict[str, np.ndarray]:
    """Small integers that compress well: entries per row, steps between columns, counts."""
    lengths = np.diff(counts.indptr)
    steps = np.diff(counts.indices, prepend=0)
    starts = counts.indptr[:-1][lengths > 0]
    steps[starts] = counts.indices[starts]
    arrays = {"row_lengths": lengths, "column_steps": steps, "values": counts.data}
    for name, array in arrays.items():
        arrays[name] = array.astype(np.uint16)
        if not np.array_equal(arrays[name], array):
            raise ValueError(f"{name} does not fit into 16 bits")
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="baron_human_pancreas.h5ad")
    parser.add_argument("--target", type=Path, default=TARGET)
    arguments = parser.parse_args()
    full = anndata.read_h5ad(arguments.source)
    labels = full.obs["label"].to_numpy().astype(str)
    genes = informative_genes(full.X.toarray(), labels)
    counts = sparse.csr_array(full.X[:, genes].astype(np.int32))
    counts.sum_duplicates()
    counts.eliminate_zeros()
    types, label_codes = np.unique(labels, return_inverse=True)
    np.savez_compressed(
        arguments.target,
        **compact(counts),
        shape=np.array(counts.shape, dtype=np.int32),
        feature_names="\n".join(full.var_names[genes]).encode("ascii"),
        label_names=types,
        label_codes=label_codes.astype(np.uint8),
    )
    size = arguments.target.stat().st_size
    print(f"{arguments.target}: {counts.shape[0]} x {counts.shape[1]}, {counts.nnz} non-zeros, {size} bytes")


if __name__ == "__main__":
    main()
