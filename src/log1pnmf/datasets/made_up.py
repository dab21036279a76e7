"""Data with a known truth, made up for tutorials: texts about themes, tumours with mutational processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

__all__ = ["THEMES", "Tumours", "made_up_texts", "made_up_tumours"]

THEMES = {
    "kitchen": "flour butter oven dough sugar yeast bread recipe salt pan knead bake crust whisk",
    "garden": "soil seed tomato compost prune rose bee root spade leaf bloom hedge rain mulch",
    "railway": "train platform signal track driver carriage station ticket timetable tunnel bridge rail",
    "music": "violin chord rhythm melody concert orchestra tempo piano singer tune drum audience",
    "sailing": "mast harbour wind rope anchor tide deck sail wave compass keel crew",
}
"""Words of each theme."""

EVERYDAY = "morning people little time good today new long work hand begin find"
FRAME = "then the {} and the {} came, while we kept the {} near a {} for one more {}."

EXCHANGES = ("C>A", "C>G", "C>T", "T>A", "T>C", "T>G")

PROCESSES: dict[str, Callable[[str], float]] = {
    "C>T before G": lambda channel: 40.0 if channel.endswith("[C>T]G") else 0.3,
    "C>A anywhere": lambda channel: 6.0 if "[C>A]" in channel else 0.4,
    "C>T and C>G after T": lambda channel: 20.0 if channel.startswith(("T[C>T]", "T[C>G]")) else 0.2,
    "a little of everything": lambda channel: 1.0,
}
"""How much each process prefers a channel."""


def made_up_texts(n_texts: int = 150, *, seed: int = 0) -> tuple[list[str], list[str]]:
    """Make up short texts, each about one or two of five themes.

    Parameters
    ----------
    n_texts : int
    seed : int

    Returns
    -------
    texts : list of str
    themes : list of str
        What each is about, "kitchen" or "kitchen + music".

    Examples
    --------
    >>> texts, themes = made_up_texts(3)
    >>> themes[0], texts[0][:21]
    ('railway + sailing', 'then the wind and the')
    """
    rng = np.random.default_rng(seed)
    names = list(THEMES)
    texts, labels = [], []
    for _ in range(n_texts):
        chosen = rng.choice(names, size=rng.integers(1, 3), replace=False)
        words = " ".join(THEMES[name] for name in chosen).split() * 2 + EVERYDAY.split()
        sentences = [FRAME.format(*rng.choice(words, size=5)) for _ in range(rng.integers(6, 15))]
        texts.append(" ".join(sentences))
        labels.append(" + ".join(sorted(chosen)))
    return texts, labels


@dataclass(frozen=True, eq=False)
class Tumours:
    """Counts of mutations, and the processes that left them.

    Parameters
    ----------
    counts : ndarray of int, shape (n, 96)
        Single base substitutions of each tumour, by channel.
    channels : list of str
        Base before, exchange, base after: "A[C>T]G".
    processes : list of str
        What each process does.
    signatures : ndarray of shape (4, 96)
        Which channels each process prefers; rows sum to one.
    mutations : ndarray of shape (n, 4)
        Expected number of mutations that each process left in each tumour.
    """

    counts: np.ndarray
    channels: list[str]
    processes: list[str]
    signatures: np.ndarray
    mutations: np.ndarray


def made_up_tumours(n_tumours: int = 200, *, seed: int = 0) -> Tumours:
    """Make up tumours whose mutations come from four processes, a third of them absent in each.

    Parameters
    ----------
    n_tumours : int
    seed : int

    Returns
    -------
    Tumours

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
