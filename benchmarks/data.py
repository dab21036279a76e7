"""Count matrices and reference starts, read from the folders beside the repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import sparse

from log1pnmf.counts.counts import Counts

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
REFERENCE = ROOT.parent / "shared" / "reference"
FILES = {
    "pbmc": "pbmc_facs",
    "kang": "kang_pbmc_ifnb_14k",
    "bbc": "bbc_news",
    "ap": "associated_press",
    "mcf7": "mcf7_bulk",
    "pcawg": "pcawg_sbs96",
    "baron": "baron_human_pancreas",
    "her2st": "her2st_spatial",
    "newsgroups": "newsgroups20",
}


def smaller(counts: Counts, most: int, entries: float) -> Counts:
    """Take `most` random samples, and so many of their most frequent features that `entries` are left.

    Parameters
    ----------
    entries : float
        Samples times features at most; inf takes all features that have a count.
    """
    matrix = counts.to_scipy()
    rows = np.sort(np.random.default_rng(0).permutation(matrix.shape[0])[:most])
    matrix = matrix[rows]
    totals = np.asarray(matrix.sum(axis=0)).ravel()
    n_features = int(min(entries / len(rows), (totals > 0).sum()))
    frequent = np.sort(np.argsort(-totals, kind="stable")[:n_features])
    matrix = matrix[:, frequent]
    return Counts.from_any(matrix[np.asarray(matrix.sum(axis=1)).ravel() > 0])


class MissingError(Exception):
    """A file that a measurement needs is not there; the measurement is left out."""


class Folder:
    """The data sets of one folder, each read once; where files are missing, `MissingError` says which."""

    def __init__(self, data: Path = DATA, reference: Path = REFERENCE) -> None:
        self.data, self.reference = data, reference
        self._read: dict[str, Counts] = {}

    def matrix(self, name: str) -> sparse.csr_array:
        """Counts as CSR with float32 values and int32 indices."""
        path = self.data / f"{FILES[name]}.h5ad"
        if not path.exists():
            raise MissingError(f"{path} is not there")
        import anndata

        matrix = anndata.read_h5ad(path).X
        return sparse.csr_array(
            (matrix.data.astype(np.float32), matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)),
            shape=matrix.shape,
        )

    def counts(self, name: str) -> Counts:
        if name not in self._read:
            counts = Counts.from_any(self.matrix(name))
            _ = counts.by_column, counts.log_factorial  # computed once, and no part of a fit's time
            self._read[name] = counts
        return self._read[name]

    def start(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Loadings and factors of a reference start; there c <= 1 or inf, so the link scale is eta."""
        path = self.reference / name
        if not path.exists():
            raise MissingError(f"{path} is not there")
        with np.load(path) as arrays:
            return arrays["loadings"], arrays["factors"]
