"""Counts drawn from the model, block of rows by block of rows, so that they may be larger than memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.checks import check_number, check_whole, one_for_each

from .noise import NegativeBinomial, ShiftedLog

__all__ = ["MIXTURES", "Mixture", "Simulated", "Simulation", "mixture_for", "simulate"]

Array = NDArray[np.float64]

BLOCK_ROWS = 256  # rows that share a stream of random numbers; a change of it changes what a seed means
DENSITY_ENTRIES = 2e6  # entries from which the expected density is computed, about
FINEST = 1e-7  # how closely the scale for a density is searched, relative to it
LARGEST_SCALE = 1e6  # from which on the factors, none of which is larger than allowed, hardly grow

# Mean count at which the exponential parts end, for one factor and size factor 1. The exponential of a
# product of exponentials has no mean: without an end, large matrices would hold counts beyond any integer.
LARGEST_MEAN = 1e4


# ---------- the law of loadings and factors in the paper's simulations


@dataclass(frozen=True)
class Mixture:
    """Law of the entries of loadings and factors, as in the paper's simulations.

    An entry is uniform with probability `p_uniform`, and otherwise exponential with a rate that is drawn,
    uniformly, for every factor.

    Parameters
    ----------
    uniform : (float, float)
        Bounds of the uniform part.
    rates : (float, float)
        Bounds of the rates of the exponential part.
    p_uniform : float
    """

    uniform: tuple[float, float]
    rates: tuple[float, float]
    p_uniform: float = 0.9

    def draw_rates(self, rng: np.random.Generator, n_components: int) -> Array:
        """Draw a rate for each of `n_components` factors from `rng`."""
        return rng.uniform(*self.rates, size=n_components)

    def draw(self, rng: np.random.Generator, n: int, rates: Array) -> Entries:
        """Draw n rows of entries with these `rates` from `rng`."""
        shape = (n, len(rates))
        return Entries(self, rng.random(shape) < self.p_uniform, rng.random(shape), rates)


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of loadings or factors, to be had at any scale."""

    mixture: Mixture
    from_uniform: NDArray[np.bool_]  # (n, K): which part each is from
    quantiles: Array  # (n, K): where in that part
    rates: Array

    def at(self, scale: float, largest: float) -> Array:
        """Return entries times `scale`, none above `largest`: the exponential part ends there."""
        low, high = self.mixture.uniform
        even = np.minimum(scale * (low + (high - low) * self.quantiles), largest)
        rates = self.rates / scale
        heavy = -np.log1p(self.quantiles * np.expm1(-rates * largest)) / rates
        return np.where(self.from_uniform, even, heavy)


MIXTURES = {
    1e-3: Mixture((0.35, 1.43), (1.2, 5.0)),
    1.0: Mixture((0.0, 0.16), (1.25, 10.0)),
    math.inf: Mixture((0.0, 0.1), (0.15, 5.0)),
}
"""The paper's constants, which give about 95% zeros with five factors."""


def mixture_for(c: float) -> Mixture:
    """Choose the paper's constants for the nearest c it has: 1e-3 up to 0.03, 1 up to 30, inf above.

    Examples
    --------
    >>> mixture_for(10.0) is MIXTURES[1.0], mixture_for(1e4) is MIXTURES[math.inf]
    (True, True)
    """
    if c <= 10**-1.5:
        return MIXTURES[1e-3]
    return MIXTURES[1.0] if c <= 10**1.5 else MIXTURES[math.inf]


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


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulation whose loadings and counts are drawn when needed.

    Parameters
    ----------
    n_samples, n_features, n_components : int
        Numbers of samples, features and factors.
    c : float
        Shift of the link, may be inf.
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
        Seed. Factors, and every block of 256 rows, have a stream of random numbers of their own.
    """

    n_samples: int
    n_features: int
    n_components: int
    _: KW_ONLY
    c: float = 1.0
    density: float | None = None
    size_spread: float = 0.0
    dispersion: Any = 0.0
    batches: int = 1
    batch_spread: float = 0.5
    random_state: int = 0

    def __post_init__(self) -> None:
        for name in ("n_samples", "n_features", "n_components", "batches"):
            check_whole(name, getattr(self, name), least=1)
        check_whole("random_state", self.random_state, least=0)
        check_number("size_spread", self.size_spread)
        check_number("batch_spread", self.batch_spread)
        ShiftedLog(self.c)
        if self.density is not None and not 0.0 < self.density < 1.0:
            raise ValueError(f"density must be between 0 and 1, got {self.density}")
        object.__setattr__(self, "dispersion", one_for_each("dispersion", self.dispersion, self.n_features))
        _ = self.factors  # refuses a density that cannot be reached

    @cached_property
    def factors(self) -> Array:
        """Factors, features x K, on the link scale."""
        mixture, rng = mixture_for(self.c), self._stream(2)
        entries = mixture.draw(rng, self.n_features, mixture.draw_rates(rng, self.n_components))
        scale = 1.0 if self.density is None else self._scale_for_density(entries, self.density)
        return entries.at(scale, self._largest)

    def loadings(self) -> Array:
        """Draw the loadings of all samples."""
        return np.concatenate([self._block(number)[0] for number in range(self._n_blocks)])

    def size_factors(self) -> Array:
        """Draw the size factors of all samples."""
        return np.concatenate([self._block(number)[1] for number in range(self._n_blocks)])

    def batch(self) -> NDArray[np.int64]:
        """Draw the batch of every sample."""
        return self._stream(3).integers(0, self.batches, self.n_samples)

    def batch_effects(self) -> Array:
        """Draw the effects of batches on features, batches x features."""
        logs = self.batch_spread * self._stream(4).standard_normal((self.batches, self.n_features))
        effects: Array = np.exp(logs - logs.mean(axis=0))
        return effects

    def chunks(self, chunk_size: int) -> Iterator[sparse.csr_array]:
        """Draw counts in blocks of rows.

        Parameters
        ----------
        chunk_size : int
            Rows in each but the last. It changes no count.

        Yields
        ------
        scipy.sparse.csr_array of int32
        """
        check_whole("chunk_size", chunk_size, least=1)
        waiting, ready = [], 0
        for number in range(self._n_blocks):
            waiting.append(self._counts(number))
            ready += waiting[-1].shape[0]
            last = number == self._n_blocks - 1
            if ready >= chunk_size or last:
                rows = sparse.vstack(waiting, format="csr")
                stop = ready if last else ready - ready % chunk_size
                for start in range(0, stop, chunk_size):
                    yield rows[start : min(start + chunk_size, stop)]
                waiting, ready = [rows[stop:]], ready - stop

    # ---------------------------------------------------------------- inside

    @property
    def _n_blocks(self) -> int:
        return -(-self.n_samples // BLOCK_ROWS)

    def _stream(self, *which: int) -> np.random.Generator:
        return np.random.default_rng([self.random_state, *which])

    def _block(self, number: int) -> tuple[Array, Array, np.random.Generator]:
        """Draw loadings and size factors of a block of rows; the generator goes on to its counts."""
        mixture = mixture_for(self.c)
        rates = mixture.draw_rates(self._stream(0), self.n_components)
        rng = self._stream(1, number)
        n = min(BLOCK_ROWS, self.n_samples - number * BLOCK_ROWS)
        loadings = mixture.draw(rng, n, rates).at(1.0, self._largest)
        # The mean of such numbers is 1.
        sizes = np.exp(self.size_spread * rng.standard_normal(n) - 0.5 * self.size_spread**2)
        return loadings, sizes, rng

    def _counts(self, number: int) -> sparse.csr_array:
        loadings, sizes, rng = self._block(number)
        mean = sizes[:, None] * ShiftedLog(self.c).inverse(loadings @ self.factors.T)
        if self.batches > 1:
            first = number * BLOCK_ROWS
            mean *= self.batch_effects()[self.batch()[first : first + len(mean)]]
        varied = np.flatnonzero(self.dispersion)
        if varied.size:  # a Poisson count whose mean has a gamma law is negative binomial
            phi = self.dispersion[varied]
            mean[:, varied] *= rng.gamma(1.0 / phi, phi, (len(mean), len(varied)))
        return draw_poisson(mean, rng)

    def _scale_for_density(self, factors: Entries, density: float) -> float:
        """Find by bisection the scale of the factors whose expected density is the one asked for."""
        wanted = max(1, math.ceil(DENSITY_ENTRIES / (BLOCK_ROWS * self.n_features)))
        chosen = np.unique(np.linspace(0, self._n_blocks - 1, wanted).astype(int))
        blocks = [self._block(int(number))[:2] for number in chosen]
        step = max(1, int(len(blocks) * BLOCK_ROWS * self.n_features / DENSITY_ENTRIES))
        loadings = np.concatenate([loadings for loadings, _ in blocks])[::step]
        sizes = np.concatenate([sizes for _, sizes in blocks])[::step, None]
        link, noise, none = ShiftedLog(self.c), NegativeBinomial(self.dispersion), np.zeros(())

        def expected(scale: float) -> float:
            rates = link.inverse(loadings @ factors.at(scale, self._largest).T)
            return float(-np.expm1(-noise.loss(none, sizes * rates)).mean())

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

    @property
    def _largest(self) -> float:
        """Largest entry of loadings and factors: two of them have the largest mean."""
        return math.sqrt(float(ShiftedLog(self.c).link(LARGEST_MEAN)))


def simulate(n_samples: int, n_features: int, n_components: int, **options: Any) -> Simulated:
    """Draw counts from the model, with loadings and factors as in the paper's simulations.

    ``Simulation(...).chunks(rows)`` draws the same counts in blocks of rows, for matrices larger than memory.

    Parameters
    ----------
    n_samples, n_features, n_components : int
        Numbers of samples, features and factors.
    **options
        c, density, size_spread, dispersion, batches, batch_spread, random_state: see `Simulation`.

    Returns
    -------
    Simulated

    Examples
    --------
    >>> drawn = simulate(500, 300, 5, c=1.0, density=0.1)
    >>> drawn.counts.shape, round(drawn.counts.nnz / (500 * 300), 2)
    ((500, 300), 0.1)
    """
    simulation = Simulation(n_samples, n_features, n_components, **options)
    (counts,) = simulation.chunks(n_samples)
    return Simulated(
        counts,
        simulation.loadings(),
        simulation.factors,
        simulation.size_factors(),
        float(simulation.c),
        simulation.dispersion,
        simulation.batch(),
        simulation.batch_effects(),
    )


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
