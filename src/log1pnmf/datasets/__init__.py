"""Small data sets that are at hand everywhere: real cells and texts, and data whose truth is known."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from itertools import product

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
        # steps between the columns of a row; the first is from column zero
        running = np.concatenate(([0], np.cumsum(steps, dtype=np.int32)), dtype=np.int32)
        columns = running[1:] - np.repeat(running[indptr[:-1]], lengths)
        parts = (stored["values"].astype(np.int32), columns, indptr)
        return Dataset(
            counts=sparse.csr_matrix(parts, shape=tuple(stored["shape"].tolist())),
            sample_labels=stored["label_names"][stored["label_codes"]],
            feature_names=np.array(stored["feature_names"].item().decode("ascii").split("\n")),
            description=(folder / "NOTICE").read_text(encoding="utf-8"),
        )


# ---------- a real collection of texts that everybody has: SciPy's manual pages

PARTS = "fft integrate interpolate linalg ndimage optimize signal sparse spatial special stats"
FEWEST_WORDS = 50


@dataclass(frozen=True, eq=False)
class ManualPages:
    """Pages: their `texts`, the `names` of what they are about ("stats.norm"), and `parts` ("stats")."""

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
    for part in PARTS.split():
        module = getattr(scipy, part)
        for name in sorted(module.__all__):
            text = (inspect.getdoc(getattr(module, name)) or "").split("\nExamples\n---")[0]
            if len(text.split()) >= FEWEST_WORDS:
                texts.append(text)
                names.append(f"{part}.{name}")
                parts.append(part)
    return ManualPages(texts, names, parts)


# ---------- data with a known truth, made up for a tutorial: cells of several donors

# condition and chip of every donor: chips cross the conditions, donors do not
DONORS = {
    "d1": ("control", "chip 1"),
    "d2": ("control", "chip 1"),
    "d3": ("control", "chip 2"),
    "d4": ("interferon", "chip 1"),
    "d5": ("interferon", "chip 2"),
    "d6": ("interferon", "chip 2"),
}
ANSWERS = np.array([0.03, 0.10, 0.06, 0.5, 1.0, 0.7])  # of the donors to interferon; controls have a little

# genes that answer to interferon, and the counts that an answer of 1 adds to a cell of average size
ANSWERING = "B2M IFITM3 STAT1 IFITM1 IFI27 IFITM2 CD74 IFIT3 BST2 ISG20 PARP14 RSAD2"
ADDED = (80.0, 32.0, 24.0, 20.0, 20.0, 16.0, 16.0, 14.0, 12.0, 10.0, 8.0, 8.0)
RESPONSE = dict(zip(ANSWERING.split(), ADDED, strict=True))
TYPES, MOST_CELLS, MOST_GENES = 6, 80, 500  # the most frequent types, cells of each, genes with most counts
CHIP_SPREAD, DONOR_SPREAD = 0.5, 0.15  # standard deviation of the logarithm of what they do to a gene


@dataclass(frozen=True, eq=False)
class Donors:
    """Counts of cells (rows) of several donors, and what was made up.

    `counts` has the genes `feature_names`; `cell_type`, `donor`, `condition` and `chip` label the cells;
    `answer` is how strongly each responds to interferon, and `response` lists the genes that respond.
    """

    counts: sparse.csr_matrix
    feature_names: np.ndarray
    cell_type: np.ndarray
    donor: np.ndarray
    condition: np.ndarray
    chip: np.ndarray
    answer: np.ndarray
    response: list[str]


def made_up_donors(*, seed: int = 0) -> Donors:
    """Share out the cells of `pancreas` among six made-up donors, three of them treated with interferon.

    Every donor has the cell types in parts of its own. Cells of treated donors have more counts of twelve
    genes. Then counts are lost: each chip, and less so each donor, captures some genes better than others.

    Parameters
    ----------
    seed : int
        Seed of the random numbers.

    Examples
    --------
    >>> data = made_up_donors()
    >>> data.counts.shape
    (480, 509)
    >>> print(*sorted(set(data.donor)), *sorted(set(data.condition)))
    d1 d2 d3 d4 d5 d6 control interferon
    """
    rng = np.random.default_rng(seed)
    counts, cell_type, genes = _some_cells(rng)
    types, codes = np.unique(cell_type, return_inverse=True)
    parts = rng.dirichlet(np.full(len(DONORS), 8.0), size=len(types))
    donor = np.array([rng.choice(len(DONORS), p=parts[code]) for code in codes])
    names = np.array(list(DONORS))[donor]
    condition, chip = (np.array([DONORS[name][what] for name in names]) for what in (0, 1))

    answer = ANSWERS[donor] * rng.gamma(4.0, 0.25, len(donor))
    more = np.array([RESPONSE.get(gene, 0.0) for gene in genes])
    size = counts.sum(axis=1)
    counts = counts + rng.poisson(np.outer(answer * size / size.mean(), more))
    on_chips = np.exp(rng.normal(0.0, CHIP_SPREAD, (2, len(genes))))[(chip == "chip 2").astype(int)]
    in_donors = np.exp(rng.normal(0.0, DONOR_SPREAD, (len(DONORS), len(genes))))[donor]
    captured = on_chips * in_donors
    counts = rng.binomial(counts, captured / captured.max(axis=0))
    matrix, response = sparse.csr_matrix(counts.astype(np.int32)), list(RESPONSE)
    return Donors(matrix, genes, cell_type, names, condition, chip, answer, response)


def _some_cells(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return counts, cell types and gene names of some cells of every frequent type."""
    data = pancreas()
    types, sizes = np.unique(data.sample_labels, return_counts=True)
    frequent = types[np.argsort(-sizes)[:TYPES]]
    of_types = (np.flatnonzero(data.sample_labels == one) for one in frequent)
    cells = np.sort(np.concatenate([rng.permutation(where)[:MOST_CELLS] for where in of_types]))
    totals = np.asarray(data.counts.sum(axis=0)).ravel()
    largest = np.argsort(-totals, kind="stable")[:MOST_GENES]
    genes = np.union1d(largest, np.flatnonzero(np.isin(data.feature_names, list(RESPONSE))))
    return data.counts[cells][:, genes].toarray(), data.sample_labels[cells], data.feature_names[genes]


# ---------- data with a known truth, made up for a tutorial: tumours with mutational processes

EXCHANGES = ("C>A", "C>G", "C>T", "T>A", "T>C", "T>G")

# how much each process prefers a channel
PROCESSES: dict[str, Callable[[str], float]] = {
    "C>T before G": lambda channel: 40.0 if channel.endswith("[C>T]G") else 0.3,
    "C>A anywhere": lambda channel: 6.0 if "[C>A]" in channel else 0.4,
    "C>T and C>G after T": lambda channel: 20.0 if channel.startswith(("T[C>T]", "T[C>G]")) else 0.2,
    "a little of everything": lambda channel: 1.0,
}


@dataclass(frozen=True, eq=False)
class Tumours:
    """Counts of mutations, and the processes that left them.

    `counts` are single base substitutions of each tumour (rows), by the 96 `channels` such as "A[C>T]G";
    `signatures` (processes x channels, rows sum to one) is what each of the `processes` prefers, and
    `mutations` (tumours x processes) how many each is expected to have left.
    """

    counts: np.ndarray
    channels: list[str]
    processes: list[str]
    signatures: np.ndarray
    mutations: np.ndarray


def made_up_tumours(n_tumours: int = 200, *, seed: int = 0) -> Tumours:
    """Simulate tumours whose mutations come from four processes, a third of them absent in each.

    Parameters
    ----------
    n_tumours : int
        Number of tumours.
    seed : int
        Seed of the random numbers.

    Examples
    --------
    >>> tumours = made_up_tumours(50)
    >>> tumours.counts.shape, tumours.channels[0], len(tumours.processes)
    ((50, 96), 'A[C>A]A', 4)
    """
    channels = [f"{before}[{change}]{after}" for change, before, after in product(EXCHANGES, "ACGT", "ACGT")]
    signatures = np.array([[weight(channel) for channel in channels] for weight in PROCESSES.values()])
    signatures *= np.random.default_rng(7).gamma(4.0, 0.25, size=signatures.shape)  # none is quite regular
    signatures /= signatures.sum(axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    mutations = rng.lognormal(6.0, 1.0, size=(n_tumours, len(signatures)))
    mutations *= rng.uniform(size=mutations.shape) < 2 / 3
    mutations[:, -1] += 50.0
    return Tumours(rng.poisson(mutations @ signatures), channels, list(PROCESSES), signatures, mutations)
