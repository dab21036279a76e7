"""New samples under the factors of a fit: size factors, loadings, log-likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.arrays import RowFile
from log1pnmf._common.checks import check_one_each, convergence_warning, warn
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.features import align_features, select_features
from log1pnmf.counts.passes import parts_of, source_of
from log1pnmf.engines.base import Engine
from log1pnmf.engines.registry import as_counts, for_parts, make_engine
from log1pnmf.model.batches import Batches
from log1pnmf.model.problem import KINDS, Bounds, Problem, SizePrior
from log1pnmf.model.size_factors import WEIGHT, resized
from log1pnmf.model.zeros import Quadratic

from .fit import Fit, scale_of
from .fixed_factors import known_columns
from .solver import solve_loadings

Array = NDArray[np.float64]

MOST_RESIZED, RESIZED_TOL = 50, 1e-9
"""Steps in which size factors of new samples are fitted at most, and the gain per count that ends them."""


def counts_of(fit: Fit, X: Any, *, same_samples: bool = True) -> Counts:
    """Check counts that are held against a fit, and bring their features into its order."""
    counts = align_features(as_counts(X), fit.feature_names, len(fit.factors))
    if same_samples and counts.n_samples != len(fit.loadings):
        raise ValueError(
            f"the fit is of {len(fit.loadings)} samples, got counts of {counts.n_samples}; "
            "pass the counts it was fitted to"
        )
    return counts


def project(
    fit: Fit,
    X: Any,
    size_factors: Any = None,
    *,
    batch: Any = None,
    engine: Any = "auto",
    n_jobs: int | None = None,
    fixed_loadings: Any = None,
) -> Array:
    """Find the loadings of samples; the factors stay as they are."""
    source, found = source_of(X), np.zeros((0, fit.n_components))
    file = None if source is None else RowFile((source.shape[0], fit.n_components), folder=source.folder)
    whole = X if source is None else source
    if source is not None and fixed_loadings is not None:
        fixed_loadings, _ = known_columns("fixed_loadings", fixed_loadings, source.shape[0])
    for first, samples in _in_parts(fit, whole, size_factors, batch, engine=engine, n_jobs=n_jobs):
        own = fixed_loadings
        if source is not None and own is not None:
            own = own[first : first + samples.counts.n_samples]
        found = replace(samples, fixed_loadings=own).solved()
        if file is not None:
            file.write(first, found)
    return found if file is None else file.rows().to_array()


def score(
    fit: Fit,
    X: Any,
    size_factors: Any = None,
    *,
    batch: Any = None,
    engine: Any = "auto",
    n_jobs: int | None = None,
) -> float:
    """Mean exact log-likelihood per entry of samples, with the loadings that `project` finds."""
    found = [
        (samples.log_likelihood(samples.solved()), samples.n_entries)
        for _, samples in _in_parts(fit, X, size_factors, batch, engine=engine, n_jobs=n_jobs)
    ]
    n_entries = sum(n for _, n in found)
    if not n_entries:
        raise ValueError("there is no entry to score: no feature of the fit has a factor that is not zero")
    return math.fsum(one for one, _ in found) / n_entries


def _in_parts(
    fit: Fit, X: Any, size_factors: Any, batch: Any, **how: Any
) -> Iterator[tuple[int, NewSamples]]:
    """All samples, or chunk by chunk where they are not in memory, with the number of the first one."""
    source, given = source_of(X), None
    if source is not None and size_factors is not None and not isinstance(size_factors, str):
        given = np.asarray(size_factors)
        check_one_each("size_factors", given, source.shape[0], "number")
    for first, part in parts_of(X if source is None else source):
        counts = counts_of(fit, part, same_samples=False)
        rows = slice(first, first + counts.n_samples)
        own = size_factors if given is None else given[rows]
        here = batch if batch is None or source is None else np.asarray(batch, dtype=object)[rows]
        batches = new_batches(fit, here, counts.n_samples)
        yield first, new_samples(fit, counts, own, batches=batches, **how)


def new_samples(fit: Fit, counts: Counts, size_factors: Any = None, **options: Any) -> NewSamples:
    """Hold samples in memory against a fit, with size factors of that kind; see `new_size_factors`."""
    made = NewSamples(fit, counts, new_size_factors(fit, counts, size_factors), **options)
    return made.sized() if fits_new_sizes(fit, size_factors) else made


def fits_new_sizes(fit: Fit, kind: Any = None) -> bool:
    """Whether size factors of new samples are to be fitted."""
    kind = fit.settings.size_factors if kind is None else kind
    return isinstance(kind, str) and kind == "fit" and not fit.link.is_identity


@dataclass(frozen=True, eq=False)
class NewSamples:
    """Samples held against the factors of a fit, which stay as they are.

    Features that are zero in every factor had no count in training; they say nothing about the loadings, no
    loadings give them a count, and they are left out of everything here.
    """

    fit: Fit
    counts: Counts  # features as in training
    size_factors: Array  # (n,): see `new_size_factors`
    engine: Any = field(default="auto")  # "streaming" is "native" here
    n_jobs: int | None = None  # number of threads
    batches: Batches | None = None  # of these samples
    fixed_loadings: Any = None  # of factors whose loadings were known when the model was fitted
    # weight of an exponential prior of the loadings. With 1, their mean is that of the training samples; it
    # keeps the loadings of samples with few counts from running away
    pull: float = 0.0

    def sized(self, depth: float = 1.0) -> NewSamples:
        """Fit the size factors as well, beginning with those there are."""
        loadings, factors = self.solve()[0] / self._scale, self._factors(self._bounded)
        common = np.full(self.counts.n_samples, depth * self.fit.size_factors.mean())
        problem = replace(self._problem(None), size_prior=SizePrior(common, WEIGHT))
        for _ in range(MOST_RESIZED):
            found = resized(problem, loadings, factors, bounds=self._bounds, free=True)
            loadings, problem = found.loadings, replace(problem, size_factors=found.size_factors)
            if found.gain <= RESIZED_TOL * max(1.0, self.counts.total):
                break
        return replace(self, size_factors=problem.size_factors)

    def solve(self) -> tuple[Array, bool]:
        """Find the loadings.

        Every zero count is visited, unless the fit was approximate, and loadings are bounded as there.
        """
        fit, settings = self._bounded, self.fit.settings
        typical, bounds = fit.loadings.mean(axis=0), self._bounds
        start = np.tile(np.maximum(typical, 1e-3 * typical.max()), (self.counts.n_samples, 1))
        loadings, converged = solve_loadings(
            self._engine(settings.zeros),
            bounds.clip(start),
            self._factors(fit),
            bounds=bounds,
            row_solver=settings.row_solver,
        )
        return loadings * self._scale, converged

    def solved(self) -> Array:
        """Find the loadings, and warn where they have not converged."""
        loadings, converged = self.solve()
        if not converged:
            warn(
                "some loadings have not converged; a feature may have counts far beyond those of the "
                "training data",
                convergence_warning(),
            )
        return loadings

    def log_likelihood(self, loadings: Array) -> float:
        """Exact log-likelihood of all entries, at loadings on the scale of the fit."""
        return -self._engine(None).loss(loadings, self._factors(self.fit))

    @property
    def n_entries(self) -> int:
        """Entries of features that have a part in the model."""
        return self.counts.n_samples * len(self._used)

    @cached_property
    def _bounded(self) -> Fit:
        """The fit on the scale on which its loadings are bounded by 1, if they are."""
        return self.fit.normalized("max")

    @property
    def _scale(self) -> Array | float:
        """What brings loadings back to the scale of the fit."""
        if self._bounded is self.fit:
            return 1.0
        return scale_of(self.fit.loadings, self.fit.factors, "max", self.fit.kinds)

    @property
    def _known_bounds(self) -> Bounds:
        """Bounds of the loadings; those that were known of other samples are free here, unless given."""
        fit, settings, given = self.fit, self.fit.settings, self.fixed_loadings
        if fit.factor_kinds is None:
            if given is not None:
                raise ValueError("fixed_loadings: no loadings were known when the model was fitted")
            return settings.constraint.loadings
        kinds = np.array(fit.kinds)
        n_fixed = int(np.isin(kinds, KINDS[:2]).sum())
        soft = (kinds == "mask") & (settings.mask_penalty < math.inf)
        bounded = soft if settings.l1 == 0.0 else ~np.isin(kinds, ("loadings", "factors"))
        upper = np.where(bounded, 1.0, math.inf)
        if given is None:
            return Bounds(upper=upper)
        names = self.counts.sample_names
        known, _ = known_columns("fixed_loadings", given, self.counts.n_samples, names)
        if known.shape[1] != n_fixed:
            raise ValueError(
                f"fixed_loadings must have {n_fixed} columns, as in the fit; got {known.shape[1]}"
            )
        whole = np.full((len(known), fit.n_components), np.nan)
        whole[:, :n_fixed] = known
        return Bounds(np.nan_to_num(whole), np.where(np.isnan(whole), upper, whole))

    @cached_property
    def _used(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.fit.factors.any(axis=1))

    def _factors(self, fit: Fit) -> Array:
        return fit.factors[self._used] / fit.link.alpha

    @property
    def _bounds(self) -> Bounds:
        """Bounds and prior of loadings on the bounded scale."""
        bounds, typical = self._known_bounds, self._bounded.loadings.mean(axis=0)
        if self.pull == 0.0:
            return bounds
        return replace(bounds, penalty=self.pull / np.where(typical > 0.0, typical, np.inf))

    def _engine(self, zeros: Quadratic | None) -> Engine:
        return make_engine(for_parts(self.engine), self._problem(zeros), self.n_jobs)

    def _problem(self, zeros: Quadratic | None) -> Problem:
        used = self._used
        counts = self.counts if len(used) == self.counts.n_features else select_features(self.counts, used)
        noise = self.fit.noise.of_features(used)
        batches = None if self.batches is None else self.batches.of_features(used)
        return Problem(counts, self.size_factors, self.fit.link, zeros, noise, batches)


def new_batches(fit: Fit, batch: Any, n_samples: int) -> Batches | None:
    """Effects of batches on new samples; None where no sample is of a batch that the fit knows."""
    if batch is None:
        return None
    if fit.batches is None:
        raise ValueError("batch is given, but the fit has no batches; leave it out, or fit with batch=...")
    return fit.batches.for_samples(batch, n_samples)


def new_size_factors(fit: Fit, counts: Counts, kind: Any = None) -> Array:
    """Size factors of new samples, on the scale of the training data.

    `kind`: none: as the fit had them. "total" divides by the mean total count of the training samples;
    samples without counts have 1. "fit" begins with the same, see `NewSamples.sized`.
    """
    if kind is None:
        kind = fit.settings.size_factors
        if kind == "given":
            raise ValueError(
                "size_factors are needed: the model was fitted with an array of them, and new samples need "
                "their own; pass size_factors=..."
            )
    if isinstance(kind, str) and kind in ("total", "fit"):
        return np.where(counts.row_sums > 0, counts.row_sums / fit.data.mean_total, 1.0)
    return counts.size_factors(kind)
