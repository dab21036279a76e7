"""Real cells: a part of a human pancreas."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import numpy as np
from scipy import sparse

__all__ = ["Dataset", "pancreas"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A count matrix with its labels.

    Parameters
    ----------
    counts : scipy.sparse.csr_matrix of int32
        Samples x features.
    sample_labels : ndarray of str
        What is known about each sample.
    feature_names : ndarray of str
        Name of each feature.
    description : str
        What it is, where it comes from and its licence.
    """

    counts: sparse.csr_matrix
    sample_labels: np.ndarray
    feature_names: np.ndarray
    description: str


def pancreas() -> Dataset:
    """Human pancreatic islet cells (Baron et al. 2016, donor 1): 1,937 cells of 14 types, 2,425 genes.

    The licence notice is in the file NOTICE beside the data, and in the result's description.

    Examples
    --------
    >>> data = pancreas()
    >>> data.counts.shape
    (1937, 2425)
    """
    folder = resources.files(__package__)
    with (folder / "pancreas.npz").open("rb") as file, np.load(file, allow_pickle=False) as stored:
        lengths, steps = stored["row_lengths"], stored["column_steps"]
        indptr = np.concatenate(([0], np.cumsum(lengths, dtype=np.int32)), dtype=np.int32)
        parts = (stored["values"].astype(np.int32), _columns(indptr, steps), indptr)
        return Dataset(
            counts=sparse.csr_matrix(parts, shape=tuple(stored["shape"].tolist())),
            sample_labels=stored["label_names"][stored["label_codes"]],
            feature_names=np.array(stored["feature_names"].item().decode("ascii").split("\n")),
            description=(folder / "NOTICE").read_text(encoding="utf-8"),
        )


def _columns(indptr: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Column indices from the steps between them; the first step of a row starts at column zero."""
    running = np.concatenate(([0], np.cumsum(steps, dtype=np.int32)), dtype=np.int32)
    return running[1:] - np.repeat(running[indptr[:-1]], np.diff(indptr))
