"""Real data: cells of a human pancreas, and the manual pages of SciPy."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import resources

import numpy as np
import scipy
from scipy import sparse


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


# ---------- a real collection of texts that everybody has: SciPy's manual pages

PARTS = (
    "fft",
    "integrate",
    "interpolate",
    "linalg",
    "ndimage",
    "optimize",
    "signal",
    "sparse",
    "spatial",
    "special",
    "stats",
)
FEWEST_WORDS = 50


@dataclass(frozen=True, eq=False)
class ManualPages:
    """Texts with their names and labels.

    Parameters
    ----------
    texts : list of str
        Text of every page.
    names : list of str
        Name of the function that each is about, "stats.norm".
    parts : list of str
        Part of SciPy it belongs to, "stats".
    """

    texts: list[str]
    names: list[str]
    parts: list[str]


def manual_pages() -> ManualPages:
    """Read the manual pages of the installed SciPy, without their examples.

    Returns
    -------
    ManualPages
        Those of 50 words or more. Another version of SciPy has other ones: SciPy 1.17 has about 1,250.

    Examples
    --------
    >>> pages = manual_pages()
    >>> pages.parts[pages.names.index("stats.norm")]
    'stats'
    """
    texts, names, parts = [], [], []
    for part in PARTS:
        module = getattr(scipy, part)
        for name in sorted(module.__all__):
            text = (inspect.getdoc(getattr(module, name)) or "").split("\nExamples\n---")[0]
            if len(text.split()) >= FEWEST_WORDS:
                texts.append(text)
                names.append(f"{part}.{name}")
                parts.append(part)
    return ManualPages(texts, names, parts)
