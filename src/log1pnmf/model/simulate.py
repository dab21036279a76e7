"""Counts drawn from the model, with loadings and factors as in the paper's simulations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.checks import check_number, check_whole, one_for_each

from .noise import NegativeBinomial, ShiftedLog

__all__ = ["Simulated", "simulate"]

Array = NDArray[np.float64]

BLOCK_ROWS = 256  # rows that share a stream of random numbers; a change of it changes what a seed means
DENSITY_ENTRIES = 2e6  # entries from which the expected density is computed, about
FINEST = 1e-7  # how closely the scale for a density is searched, relative to it
LARGEST_SCALE = 1e6  # from which on the factors, none of which is larger than allowed, hardly grow

# Mean count at which the exponential parts end, for one factor and size factor 1. The exponential of a
# product of exponentials has no mean: without an end, large matrices would hold counts beyond any integer.
LARGEST_MEAN = 1e4


class Mixture(NamedTuple):
    """Law of the entries of loadings and factors: uniform, or exponential with a rate for every factor."""

    uniform: tuple[float, float]  # bounds of the uniform part
    rates: tuple[float, float]  # bounds of the rates of the exponential part, which are uniform


P_UNIFORM = 0.9  # probability of the uniform part
MIXTURES = {
    1e-3: Mixture((0.35, 1.43), (1.2, 5.0)),
    1.0: Mixture((0.0, 0.16), (1.25, 10.0)),
    math.inf: Mixture((0.0, 0.1), (0.15, 5.0)),
}
"""The paper's constants, which give about 95% zeros with five factors."""


@dataclass(frozen=True, eq=False)
class Simulated:
    """Counts, and the truth behind them.

    Parameters
    ----------
    counts : scipy.sparse.csr_array of int32
        Samples x features.
    loadings, factors : ndarray of shape (n, K) and (m, K)
        On the link scale.
    size_factors : ndarray of shape (n,)
        Size factor of every sample.
    c : float
        Shift of the link.
    dispersion : ndarray of shape (m,)
        0 is Poisson.
    batch : ndarray of int, shape (n,)
        Batch of every sample; 0 for all where there is one only.
    batch_effects : ndarray of shape (batches, m)
        By what rates of a feature are multiplied in a batch; their geometric mean over the batches is 1.
    """

    counts: sparse.csr_array
    loadings: Array
    factors: Array
    size_factors: Array
    c: float
    dispersion: Array
    batch: NDArray[np.int64]
    batch_effects: Array


def simulate(
    n_samples: int,
    n_features: int,
    n_components: int,
    *,
    c: float = 1.0,
    density: float | None = None,
    size_spread: float = 0.0,
    dispersion: Any = 0.0,
    batches: int = 1,
    batch_spread: float = 0.5,
    random_state: int = 0,
) -> Simulated:
    """Draw counts from the model, with loadings and factors as in the paper's simulations.

    Parameters
    ----------
    n_samples, n_features, n_components : int
        Numbers of samples, features and factors.
    c : float
        Shift of the link, may be inf. Loadings and factors follow the law that the paper has for the nearest
        c: 1e-3 up to 0.03, 1 up to 30, inf above.
    density : float, optional
        Expected part of entries that are not zero, between 0 and 1, reached by scaling the factors; by
        default that of the paper's constants, about 0.05 with five factors.
    size_spread : float
        Standard deviation of the logarithm of the size factors; 0: all are 1.
    dispersion : float or array of shape (m,)
        Counts have the variance ``mean + dispersion * mean**2`` (negative binomial); 0 is Poisson.
    batches : int
        Number of batches, of which every sample is in one at random; 1 is none.
    batch_spread : float
        Standard deviation of the logarithms of their effects: in every batch, the rates of every feature are
        multiplied by a number with a log-normal law. `density` is that without effects.
    random_state : int
        Seed.

    Examples
    --------
    >>> drawn = simulate(500, 300, 5, c=1.0, density=0.1)
    >>> drawn.counts.shape, round(drawn.counts.nnz / (500 * 300), 2)
    ((500, 300), 0.1)
    """
    sizes = {"n_samples": n_samples, "n_features": n_features, "n_components": n_components}
    for name, number in {**sizes, "batches": batches}.items():
        check_whole(name, number, least=1)
    check_whole("random_state", random_state, least=0)
    check_number("size_spread", size_spread)
    check_number("batch_spread", batch_spread)
    if density is not None and not 0.0 < density < 1.0:
        raise ValueError(f"density must be between 0 and 1, got {density}")
    link, phi = ShiftedLog(c), one_for_each("dispersion", dispersion, n_features)
    mixture = MIXTURES[1e-3 if c <= 10**-1.5 else 1.0 if c <= 10**1.5 else math.inf]
    largest = math.sqrt(float(link.link(LARGEST_MEAN)))  # two of them have the largest mean

    def stream(*which: int) -> np.random.Generator:
        return np.random.default_rng([random_state, *which])

    loadings, size_factors, streams = np.empty((n_samples, n_components)), np.empty(n_samples), []
    rates = stream(0).uniform(*mixture.rates, size=n_components)
    for number, first in enumerate(range(0, n_samples, BLOCK_ROWS)):
        rng, rows = stream(1, number), slice(first, min(first + BLOCK_ROWS, n_samples))
        loadings[rows] = _entries(rng, rows.stop - first, rates, mixture, largest)(1.0)
        logs = size_spread * rng.standard_normal(rows.stop - first)
        size_factors[rows] = np.exp(logs - 0.5 * size_spread**2)  # their mean is 1
        streams.append((rows, rng))
    rng = stream(2)
    rates = rng.uniform(*mixture.rates, size=n_components)
    factors_at, scale = _entries(rng, n_features, rates, mixture, largest), 1.0
    if density is not None:
        blocks = np.arange(n_samples) // BLOCK_ROWS
        wanted = max(1, math.ceil(DENSITY_ENTRIES / (BLOCK_ROWS * n_features)))
        chosen = np.unique(np.linspace(0, blocks[-1], wanted).astype(int))
        step = max(1, int(len(chosen) * BLOCK_ROWS * n_features / DENSITY_ENTRIES))
        some, noise = np.flatnonzero(np.isin(blocks, chosen))[::step], NegativeBinomial(phi)

        def expected(scale: float) -> float:
            means = size_factors[some, None] * link.inverse(loadings[some] @ factors_at(scale).T)
            return float(-np.expm1(-noise.loss(np.zeros(()), means)).mean())

        scale = _scale_for_density(expected, density)
    factors = factors_at(scale)
    batch = stream(3).integers(0, batches, n_samples)
    logs = batch_spread * stream(4).standard_normal((batches, n_features))
    effects, varied, parts = np.exp(logs - logs.mean(axis=0)), np.flatnonzero(phi), []
    for rows, rng in streams:
        mean = size_factors[rows, None] * link.inverse(loadings[rows] @ factors.T)
        if batches > 1:
            mean *= effects[batch[rows]]
        if varied.size:  # a Poisson count whose mean has a gamma law is negative binomial
            mean[:, varied] *= rng.gamma(1.0 / phi[varied], phi[varied], (len(mean), len(varied)))
        parts.append(draw_poisson(mean, rng))
    counts = sparse.vstack(parts, format="csr")
    return Simulated(counts, loadings, factors, size_factors, link.c, phi, batch, effects)


def _entries(
    rng: np.random.Generator, n: int, rates: Array, mixture: Mixture, largest: float
) -> Callable[[float], Array]:
    """Draw n rows; return what gives them times a scale, none above `largest`."""
    shape = (n, len(rates))
    (low, high), from_uniform, quantiles = mixture.uniform, rng.random(shape) < P_UNIFORM, rng.random(shape)

    def at(scale: float) -> Array:
        even = np.minimum(scale * (low + (high - low) * quantiles), largest)
        heavy = -np.log1p(quantiles * np.expm1(-rates / scale * largest)) / (rates / scale)
        return np.where(from_uniform, even, heavy)

    return at


def _scale_for_density(expected: Callable[[float], float], density: float) -> float:
    """Find by bisection the scale of the factors whose expected density is the one asked for."""
    highest = expected(LARGEST_SCALE)
    if highest < density:
        raise ValueError(
            f"density must be at most about {highest:.2g} with these loadings, got {density}: larger "
            f"factors would have mean counts above {LARGEST_MEAN:g}; use more factors or samples, or a "
            "lower density"
        )
    low = high = 1.0
    while expected(high) < density:
        low, high = high, 2.0 * high
    while expected(low) > density:
        low, high = 0.5 * low, low
    while high - low > FINEST * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if expected(middle) < density else (low, middle)
    return high


def draw_poisson(mean: Array, rng: np.random.Generator) -> sparse.csr_array:
    """Draw a sparse matrix of independent Poisson counts.

    Where few counts are expected it draws their total and then the entry that each belongs to, which is the
    same law and costs little more than the counts themselves.
    """
    if not np.isfinite(mean).all() or mean.max(initial=0.0) >= 2**31:
        raise ValueError("mean counts must be below 2**31; use a lower density or a smaller size_spread")
    running = np.cumsum(mean, axis=None)
    if running[-1] > 0.5 * mean.size:
        return sparse.csr_array(rng.poisson(mean).astype(np.int32))
    total = rng.poisson(running[-1])
    places = np.searchsorted(running, np.sort(rng.random(total)) * running[-1], side="right")
    flat, values = np.unique(np.minimum(places, mean.size - 1), return_counts=True)
    indptr = np.searchsorted(flat, np.arange(len(mean) + 1) * mean.shape[1])
    parts = (values.astype(np.int32), (flat % mean.shape[1]).astype(np.int32), indptr)
    return sparse.csr_array(parts, shape=mean.shape)
