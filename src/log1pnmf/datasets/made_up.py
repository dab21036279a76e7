"""Data with a known truth, made up for a tutorial: tumours with mutational processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

__all__ = ["Tumours", "made_up_tumours"]

EXCHANGES = ("C>A", "C>G", "C>T", "T>A", "T>C", "T>G")

PROCESSES: dict[str, Callable[[str], float]] = {
    "C>T before G": lambda channel: 40.0 if channel.endswith("[C>T]G") else 0.3,
    "C>A anywhere": lambda channel: 6.0 if "[C>A]" in channel else 0.4,
    "C>T and C>G after T": lambda channel: 20.0 if channel.startswith(("T[C>T]", "T[C>G]")) else 0.2,
    "a little of everything": lambda channel: 1.0,
}
"""How much each process prefers a channel."""


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
    """Simulate tumours whose mutations come from four processes, a third of them absent in each.

    Parameters
    ----------
    n_tumours : int
        Number of tumours.
    seed : int
        Seed of the random numbers.

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
