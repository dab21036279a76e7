"""The HDF5 files of 10x Genomics: Cell Ranger 3 and later, and 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from log1pnmf._common.gate import Store
from log1pnmf._common.untrusted import BadFileError, Budget

from .annotated import opened
from .market import tenx_table
from .table import RawTable

__all__ = ["read_tenx_h5"]

PARTS = ("data", "indices", "indptr", "shape", "barcodes")


def read_tenx_h5(path: Path, genome: str | None, budget: Budget) -> RawTable:
    """Read a feature-barcode matrix; cells become rows.

    Parameters
    ----------
    genome : str, optional
        Which one, in a file of Cell Ranger 2 with several.
    """
    with opened(path, budget) as store:
        name = _place(path, store, genome)
        missing = [part for part in PARTS if f"{name}/{part}" not in store]
        if missing:
            raise BadFileError(f"{path} is not a 10x file: {', '.join(missing)} missing in {name}")
        group = store.node(name)
        n_features, n_cells = (int(n) for n in group["shape"][:])
        parts = (group["data"][:], group["indices"][:], group["indptr"][:])
        if len(parts[2]) != n_cells + 1:
            raise BadFileError(f"{path} is damaged: {len(parts[2])} column starts for {n_cells} cells")
        counts = sparse.csr_array(parts, shape=(n_cells, n_features))
        counts.check_format(full_check=True)  # indices out of range would crash SciPy
        kinds = None
        if "features" in group:
            features = group["features"]
            identifiers, named = _strings(features["id"]), _strings(features["name"])
            kinds = _strings(features["feature_type"]) if "feature_type" in features else None
        else:
            identifiers, named = _strings(group["genes"]), _strings(group["gene_names"])
        barcodes = _strings(group["barcodes"])
    return tenx_table(counts, barcodes, identifiers, named=named, kinds=kinds)


def _place(path: Path, store: Store, genome: str | None) -> str:
    """Find the matrix: in one place since Cell Ranger 3, one for each genome before."""
    if "matrix" in store:
        if genome is not None:
            raise BadFileError(f"{path} has one matrix for all genomes; leave layer {genome!r} out")
        return "matrix"
    genomes = [name for name in store.members("/") if f"{name}/barcodes" in store]
    if genome is not None and genome not in genomes:
        raise BadFileError(f"{path} has no genome {genome!r}; choose one of {', '.join(genomes) or 'none'}")
    if genome is None and len(genomes) != 1:
        there = ", ".join(genomes) or "no matrix at all; for AnnData name it .h5ad"
        raise BadFileError(f"{path} should hold one matrix of 10x, got {there}; choose with layer (--layer)")
    return genome or genomes[0]


def _strings(dataset: Any) -> list[str]:
    return [str(one, "utf-8") if isinstance(one, bytes) else str(one) for one in np.asarray(dataset[:])]
