"""New samples under the factors of a fit: size factors, loadings, log-likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.arrays import RowFile
from log1pnmf._common.checks import check_number, check_one_each, convergence_warning, plural, warn
from log1pnmf.counts.compress import dense_blocks
from log1pnmf.counts.counts import Counts, holds_counts
from log1pnmf.counts.features import align_features, select_features, shared_features
from log1pnmf.counts.passes import parts_of, source_of
from log1pnmf.counts.splitting import split_counts
from log1pnmf.engines.base import Engine
from log1pnmf.engines.registry import as_counts, make_engine
from log1pnmf.model.batch_effects import mean_sums
from log1pnmf.model.batches import OTHER, STRENGTH, Batches
from log1pnmf.model.predict import BLOCK_ENTRIES, score_parts
from log1pnmf.model.problem import KINDS, Array, Bounds, Problem, SizePrior, bounds_of_loadings
from log1pnmf.model.size_factors import WEIGHT, resized
from log1pnmf.model.zeros import Quadratic

from .fit import Fit, factor_shares, or_one, sample_shares, scale_of
from .fixed_factors import known_columns
from .settings import constraint_of
from .solver import solve_side

MOST_RESIZED, RESIZED_TOL = 50, 1e-9
"""Steps in which size factors of new samples are fitted at most, and the gain per count that ends them."""

PRIOR = 2.0
"""Counts of the prior, as a multiple of those that the spread of the training loadings alone suggests
(`prior_counts`): factors share features, so a count has less information than a draw of one factor.
`studies.new_samples` has what is predicted with others."""

LOOKED_AT = 1000  # new samples that are enough to check predictions and to estimate effects of batches

CARRIED, LEAST_CARRIED = 0.8, 0.2
"""Part of a factor's signal in the features of new samples below which there is a warning; and of the signal
of all factors below which they are refused."""

HELD_OUT = 0.1  # part of the counts of new samples that is predicted from the others

LEAST_SAMPLES = 20  # new samples from which on predictions are checked, and effects of a batch are estimated

EFFECT_ROUNDS, EFFECT_TOL = 100, 1e-3
"""Rounds of loadings and effects of new batches at most, and the change of logarithms that ends them."""


def counts_of(fit: Fit, X: Any, *, same_samples: bool = True) -> Counts:
    """Check counts that are held against a fit, and bring their features into its order."""
    counts = align_features(as_counts(X), fit.feature_names, len(fit.factors))
    if same_samples and counts.n_samples != len(fit.loadings):
        raise ValueError(
            f"the fit is of {len(fit.loadings)} samples, got counts of {counts.n_samples}; "
            "pass the counts it was fitted to"
        )
    return counts


@dataclass(frozen=True, eq=False)
class Projected:
    """Loadings of new samples, with all that goes with them."""

    loadings: Array
    size_factors: Array
    batches: Batches | None  # with effects of `features`
    features: NDArray[np.intp]  # of the fit: those that the new samples have
    counts: Any  # of these features
    notes: tuple[str, ...]


def project(
    fit: Fit,
    X: Any,
    size_factors: Any = None,
    *,
    batch: Any = None,
    engine: Any = "auto",
    n_jobs: int | None = None,
    fixed_loadings: Any = None,
    prior: Any = "auto",
    shared: bool = False,
) -> Projected:
    """Find the loadings of samples; the factors stay as they are."""
    if fit.fitted_features is not None:  # those that were added do not decide about loadings
        fitted = np.flatnonzero(fit.fitted_features)
        if not shared or fit.feature_names is None or as_counts(X).feature_names is None:
            X = select_features(counts_of(fit, X, same_samples=False), fitted)
        given: Any = {"batch": batch, "engine": engine, "n_jobs": n_jobs, "fixed_loadings": fixed_loadings}
        part = project(of_features(fit, fitted), X, size_factors, prior=prior, shared=shared, **given)
        return replace(part, features=fitted[part.features])
    source = source_of(X)
    if prior != "auto":
        check_number("prior", prior)
    n_all = as_counts(X).n_samples if source is None else source.shape[0]
    file = None if source is None else RowFile((source.shape[0], fit.n_components), folder=source.folder)
    how = {"engine": engine, "n_jobs": n_jobs, "prior": None if prior == "auto" else float(prior)}
    sizes: list[Array] = []
    labels: list[NDArray[np.int32]] = []
    notes: tuple[str, ...] = ()
    for first, samples in _in_parts(fit, X, size_factors, batch, shared=shared, **how):
        n, here = samples.counts.n_samples, samples
        if fixed_loadings is not None:
            own = known_columns("fixed_loadings", fixed_loadings, n_all, samples.counts.sample_names)[0]
            here = replace(samples, fixed_loadings=own[first : first + n])
        if first == 0:
            here, notes = here.checked(adapt=prior == "auto")
            how["prior"] = here.prior
        loadings = replace(here, prior=how["prior"]).solved()
        if file is not None:
            file.write(first, loadings)
        sizes.append(here.size_factors)
        if here.batches is not None:
            labels.append(here.batches.labels)
    batches = here.batches and replace(here.batches, labels=np.concatenate(labels), known={})
    batches = batches and batches.of_features(here.features)
    found = loadings if file is None else file.rows().to_array()
    counts = here.counts if source is None else source
    return Projected(found, np.concatenate(sizes), batches, here.features, counts, notes)


def of_new_samples(
    fit: Fit, X: Any, loadings: Any = None, size_factors: Any = None, **how: Any
) -> tuple[Fit, Counts]:
    """Return a fit with other samples (`project` finds `loadings`) and their counts, of shared features."""
    counts, found = as_counts(X), project(fit, X, size_factors, shared=True, **how)
    values = found.loadings if loadings is None else as_loadings(fit, loadings)
    check_one_each("loadings", values[:, 0], counts.n_samples, "row")
    own = np.arange(len(fit.factors))
    if fit.feature_names is not None and counts.feature_names is not None:
        here, own = shared_features(list(counts.feature_names), list(fit.feature_names))
        counts = replace(select_features(counts, here), feature_names=fit.feature_names[own])
    # features that were added have no effects of new batches
    batches = found.batches if len(own) == len(found.features) else new_batches(fit, None, counts.n_samples)
    why = "; ".join((f"these are {counts.n_samples:,} samples that were not fitted", *found.notes))
    return of_features(fit, own).of_samples(values, found.size_factors, batches, why), counts


def as_loadings(fit: Fit, loadings: Any) -> Array:
    """Check loadings of other samples under the factors of a fit."""
    values = np.asarray(loadings, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != fit.n_components or not np.isfinite(values).all():
        raise ValueError(
            f"loadings must be a finite table of samples x {fit.n_components} factors, got shape "
            f"{values.shape}; pass what transform returns"
        )
    return values


def score(
    fit: Fit,
    X: Any,
    size_factors: Any = None,
    *,
    batch: Any = None,
    engine: Any = "auto",
    n_jobs: int | None = None,
) -> float:
    """Mean exact log-likelihood per entry of samples, at their most likely loadings."""
    how = {"engine": engine, "n_jobs": n_jobs, "prior": 0.0}
    found = [samples.score() for _, samples in _in_parts(fit, X, size_factors, batch, **how)]
    if not (n_entries := sum(n for _, n in found)):
        raise ValueError("there is no entry to score: no feature of the fit has a factor that is not zero")
    return math.fsum(one for one, _ in found) / n_entries


def _in_parts(
    fit: Fit, X: Any, size_factors: Any, batch: Any, *, shared: bool = False, **how: Any
) -> Iterator[tuple[int, NewSamples]]:
    """All samples, or chunk by chunk where they are not in memory, with the number of the first one."""
    source, given = source_of(X), None
    if source is not None and size_factors is not None and not isinstance(size_factors, str):
        given = np.asarray(size_factors)
        check_one_each("size_factors", given, source.shape[0], "number")
    for first, part in parts_of(X if source is None else source):
        counts, features = as_counts(part), None
        if shared and source is None and fit.feature_names is not None and counts.feature_names is not None:
            names = counts.feature_names
            here, features = shared_features(list(names), list(fit.feature_names))
            if not len(here):
                raise ValueError(
                    f"the samples have no fitted feature (first here {names[0]!r}, in the fit "
                    f"{fit.feature_names[0]!r}) by a name that occurs once in both; are they named alike? "
                    "(gene_symbols names those of AnnData by a column of var)"
                )
            counts = select_features(counts, here)
        else:
            counts = counts_of(fit, counts, same_samples=False)
        rows = slice(first, first + counts.n_samples)
        own = size_factors if given is None else given[rows]
        several = source is not None and batch is not None and not isinstance(batch, str)
        here = np.asarray(batch, dtype=object)[rows] if several else batch
        batches = new_batches(fit, here, counts.n_samples)
        samples = new_samples(fit, counts, own, batches=batches, features=features, **how)
        yield first, samples.with_effects() if source is None else samples


def new_samples(fit: Fit, counts: Counts, size_factors: Any = None, **options: Any) -> NewSamples:
    """Hold samples in memory against a fit, with size factors of that kind; see `new_size_factors`."""
    made = NewSamples(fit, counts, np.ones(counts.n_samples), **options)
    made = replace(made, size_factors=new_size_factors(fit, counts, size_factors, made.features))
    return made.sized() if fits_new_sizes(fit, size_factors) else made


def fits_new_sizes(fit: Fit, kind: Any = None) -> bool:
    """Whether size factors of new samples are to be fitted."""
    kind = fit.settings.size_factors if kind is None else kind
    return isinstance(kind, str) and kind == "fit" and not fit.link.is_identity


def mean_rates(fit: Fit) -> Array:
    """Return the mean rate of every feature over the samples of a fit: what one factor would predict."""
    rows = _evenly(len(fit.loadings))
    sizes, total = fit.size_factors[rows], np.zeros(len(fit.factors))
    plain = replace(fit.rates, batches=None)
    for block in dense_blocks((len(rows), len(total)), BLOCK_ENTRIES):
        total += plain.of_rows(rows[block]).sum(axis=0)
    return total / sizes.sum()


def observed_part(fit: Fit, features: Any) -> float:
    """Return which part of the counts of a mean training sample some features have; None is all of them."""
    if features is None or len(features) == len(fit.factors):
        return 1.0
    rates = mean_rates(fit)
    return float(rates[features].sum() / or_one(rates.sum())) or 1.0


def prior_counts(fit: Fit) -> float:
    """Return how many counts the mean training sample is worth as a prior of the loadings of a new one."""
    # some times the precision of the Dirichlet law whose shares vary as those of the training samples
    shares = sample_shares(fit.loadings, fit.factors)
    mean, variance = shares.mean(axis=0), float(shares.var(axis=0).sum())
    return PRIOR * max(float((mean * (1.0 - mean)).sum()) / variance - 1.0, 0.0) if variance > 0.0 else 0.0


def _evenly(n: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, n - 1, min(n, LOOKED_AT)).astype(np.intp))


@dataclass(frozen=True, eq=False)
class NewSamples:
    """Samples held against the factors of a fit, which stay as they are.

    Features that are zero in every factor had no count in training. They have no information on the loadings,
    no loadings give them a count, and they are left out of everything here, as are those that the new samples
    do not have.
    """

    fit: Fit
    counts: Counts  # of `features`
    size_factors: Array  # (n,): see `new_size_factors`
    engine: Any = "auto"  # "streaming" is "native" here
    n_jobs: int | None = None  # number of threads
    batches: Batches | None = None  # of these samples, effects of all features of the fit
    fixed_loadings: Any = None  # of factors whose loadings were known when the model was fitted
    features: Any = None  # numbers of the features of the fit that `counts` has; None: all
    # counts that the mean training sample is worth, which loadings are shrunk towards; None: `prior_counts`
    prior: float | None = None

    def __post_init__(self) -> None:
        if self.features is None:
            object.__setattr__(self, "features", np.arange(len(self.fit.factors)))
        if self.prior is None:
            whole = holds_counts(self.counts.by_row.values)
            object.__setattr__(self, "prior", prior_counts(self.fit) if whole else 0.0)

    @cached_property
    def carried(self) -> Array:
        """Part of the signal of each factor that the features carry."""
        every = self.fit.factors.sum(axis=0)
        return self.fit.factors[self.features].sum(axis=0) / or_one(every) + (every == 0.0)

    def shrunk(self, loadings: Array) -> Array:
        """Return the loadings with as much of the mean training sample as the prior is worth counts.

        At c = inf that is the mean of their posterior law. Where only a part of a factor's signal is
        observed, so many counts of a sample have information on it. Of dispersed counts ``y``, each is worth
        ``1 / (1 + phi y)``. A sample without counts has no size, and stays without loadings.
        """
        if not self.prior:
            return loadings
        rows, own = self.counts.by_row, self.fit.factors[self.features].any(axis=1)
        each = rows.values * own[rows.indices]
        if self.fit.dispersion is not None:
            each = each / (1.0 + self.fit.dispersion[self.features][rows.indices] * each)
        worth = np.bincount(np.repeat(np.arange(len(loadings)), np.diff(rows.indptr)), each, len(loadings))
        n = worth[:, None] * self.carried / observed_part(self.fit, self.features)
        mixed = (n * loadings + self.prior * self.fit.loadings.mean(axis=0)) / (n + self.prior)
        bounds, scale = self._known_bounds, self._scale
        return np.where(worth[:, None] > 0.0, bounds.clip(mixed / scale) * scale, loadings)

    def of_rows(self, rows: NDArray[np.intp]) -> NewSamples:
        """Return some of the samples."""
        fixed = self.fixed_loadings
        return replace(
            self,
            counts=Counts.from_any(self.counts.to_scipy()[rows]),
            size_factors=self.size_factors[rows],
            batches=None if self.batches is None else self.batches.of_samples(rows),
            fixed_loadings=None if fixed is None else fixed[rows],
        )

    def with_effects(self) -> NewSamples:
        """Estimate the effects of batches that the fit does not have, in turns with the loadings.

        Effects are pulled towards 1 as those of a fit are, and have no level of their own. Batches of few
        samples have no effects.
        """
        batches, known = self.batches, self.fit.batches
        if batches is None:
            return self
        new = np.bincount(batches.labels, minlength=batches.n_batches) >= LEAST_SAMPLES
        new[: 0 if known is None else known.n_batches] = False
        rows = np.flatnonzero(new[batches.labels])
        if not len(rows):
            return self
        rows = rows[_evenly(len(rows))]
        part, own_batches = replace(self.of_rows(rows), prior=0.0), batches.of_samples(rows)
        own, effects = self.features[self._used], batches.effects.copy()
        totals = own_batches.totals(part.counts)[:, self._used][new]
        weights = totals / np.maximum(totals.sum(axis=1, keepdims=True), 1.0)
        for _ in range(EFFECT_ROUNDS):
            loadings, before = part.solve()[0] / self._scale, effects[np.ix_(new, own)]
            expected = mean_sums(part._problem(None), loadings, self._factors(self._bounded))[new]
            logs = np.log((totals + batches.strength) / (expected + batches.strength))
            logs -= (weights * logs).sum(axis=1, keepdims=True)
            effects[np.ix_(new, own)] = np.exp(logs)
            part = replace(part, batches=replace(own_batches, effects=effects.copy()))
            if np.abs(logs - np.log(before)).max() <= EFFECT_TOL:
                break
        return replace(self, batches=replace(batches, effects=effects))

    def checked(self, *, adapt: bool) -> tuple[NewSamples, tuple[str, ...]]:
        """Describe how much is observed, and how a held-out tenth of the counts is predicted."""
        fit, notes = self.fit, self._described_features()
        known = 0 if fit.batches is None else fit.batches.n_batches
        sizes = np.bincount(() if self.batches is None else self.batches.labels)[known:]
        if n := int(((sizes > 0) & (sizes < LEAST_SAMPLES)).sum()):
            what = plural(n, "new batch has", "new batches have")
            notes = (*notes, f"{what} fewer than {LEAST_SAMPLES} samples, and so no effects")
        few = fit.n_components == 1 or self.counts.n_samples < LEAST_SAMPLES
        if few or not self.prior or not holds_counts(self.counts.by_row.values):
            return self, notes
        part = self.of_rows(_evenly(self.counts.n_samples))
        seen, unseen = split_counts(part.counts, HELD_OUT, random_state=0)
        held = replace(part, counts=seen, size_factors=(1.0 - HELD_OUT) * part.size_factors, prior=0.0)
        rates = replace(fit.rates, size_factors=held.size_factors, batches=part.batches)
        one = fit.link.link(mean_rates(fit))[:, None]

        def score(loadings: Array, factors: Array) -> Array:
            own = replace(rates, loadings=loadings, factors=factors).of_features(self.features)
            return score_parts(own, seen, unseen, test_fraction=HELD_OUT)

        loadings, flat, tried = held.solve()[0], score(np.ones((seen.n_samples, 1)), one), []
        # with `adapt`, the prior is raised while the mean training sample alone predicts better
        for prior in (self.prior, 10.0 * self.prior, 100.0 * self.prior)[: 3 if adapt else 1]:
            gains = score(replace(held, prior=prior).shrunk(loadings), fit.factors) - flat
            tried.append((float(gains.sum()), float(gains.std() * math.sqrt(len(gains))), prior))
            if tried[-1][0] >= 0.0:
                break
        gain, error, prior = max(tried)
        how = "about as well as" if abs(gain) < 2.0 * error else "better than" if gain > 0.0 else "worse than"
        text = (
            f"with a prior worth {prior:.3g} counts, a held-out tenth of the counts is predicted {how} by "
            f"one factor: {gain:+,.0f} log-likelihood (standard error {error:,.0f}"
            f"{'; these counts also chose the prior' if len(tried) > 1 else ''})"
        )
        if gain < -2.0 * error:
            warn(f"{text}; these samples are unlike those of the fit", UserWarning)
        return replace(self, prior=prior), (*notes, text)

    def _described_features(self) -> tuple[str, ...]:
        fit, n, m = self.fit, len(self.features), len(self.fit.factors)
        if n == m:
            return ()
        overall = float(factor_shares(fit.loadings, fit.factors) @ self.carried)
        few = sorted(zip(self.carried, fit.factor_names, strict=True))
        text = f"{n:,} of {m:,} features of the fit are shared, with {overall:.0%} of the signal"
        if overall < LEAST_CARRIED:
            raise ValueError(
                f"{text}; at least {LEAST_CARRIED:.0%} are needed. Are features named in the same way "
                "(Ensembl identifiers, symbols)? Otherwise refit on the features that both data have"
            )
        below = [f"{name} {part:.0%}" for part, name in few if part < CARRIED]
        if below:
            less = f"below {CARRIED:.0%} are {', '.join(below)}: their loadings are less certain"
            warn(f"{text}; {less}", UserWarning)
        return (f"{text} ({few[0][0]:.0%} of {few[0][1]}, the least, to {few[-1][0]:.0%} of {few[-1][1]})",)

    def sized(self, depth: float = 1.0) -> NewSamples:
        """Fit the size factors as well, beginning with those there are."""
        loadings, factors = replace(self, prior=0.0).solve()[0] / self._scale, self._factors(self._bounded)
        common = np.full(self.counts.n_samples, depth * self.fit.size_factors.mean())
        problem = replace(self._problem(None), size_prior=SizePrior(common, WEIGHT))
        for _ in range(MOST_RESIZED):
            found = resized(problem, loadings, factors, bounds=self._known_bounds, free=True)
            loadings, problem = found.loadings, replace(problem, size_factors=found.size_factors)
            if found.gain <= RESIZED_TOL * max(1.0, self.counts.total):
                break
        return replace(self, size_factors=problem.size_factors)

    def solve(self) -> tuple[Array, bool]:
        """Find the loadings, bounded as in the fit; all zeros are evaluated, unless it was approximate."""
        fit, settings = self._bounded, self.fit.settings
        typical, bounds = fit.loadings.mean(axis=0), self._known_bounds
        start = np.tile(np.maximum(typical, 1e-3 * typical.max()), (self.counts.n_samples, 1))
        engine = self._engine(settings.zeros)
        how: dict[str, Any] = {"bounds": bounds, "row_solver": settings.row_solver}
        loadings, converged = solve_side(engine, "loadings", bounds.clip(start), self._factors(fit), **how)
        return self.shrunk(loadings * self._scale), converged

    def solved(self) -> Array:
        """Find the loadings, and warn where they have not converged."""
        loadings, converged = self.solve()
        if not converged:
            text = "some loadings have not converged; a feature may have counts far beyond those of training"
            warn(text, convergence_warning())
        return loadings

    def score(self) -> tuple[float, int]:
        """Exact log-likelihood of the samples, and the number of entries that have a part in the model."""
        loss = self._engine(None).loss(self.solved(), self._factors(self.fit))
        return -loss, self.counts.n_samples * len(self._used)

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
            return constraint_of(settings).loadings
        kinds = np.array(fit.kinds)
        n_fixed = int(np.isin(kinds, KINDS[:2]).sum())
        if given is not None and given.shape[1] != n_fixed:
            raise ValueError(
                f"fixed_loadings must have {n_fixed} columns, as in the fit; got {given.shape[1]}"
            )
        return bounds_of_loadings(kinds, given, l1=settings.l1, mask_penalty=settings.mask_penalty)

    @cached_property
    def _used(self) -> NDArray[np.intp]:
        """Which columns of the counts have a part in the model."""
        return np.flatnonzero(self.fit.factors[self.features].any(axis=1))

    def _factors(self, fit: Fit) -> Array:
        return fit.factors[self.features[self._used]] / fit.link.alpha

    def _engine(self, zeros: Quadratic | None) -> Engine:
        return make_engine(self.engine, self._problem(zeros), self.n_jobs)

    def _problem(self, zeros: Quadratic | None) -> Problem:
        used = self._used
        counts = self.counts if len(used) == self.counts.n_features else select_features(self.counts, used)
        own = self.features[used]
        noise = self.fit.noise.of_features(own)
        batches = None if self.batches is None else self.batches.of_features(own)
        return Problem(counts, self.size_factors, self.fit.link, zeros, noise, batches)


def new_batches(fit: Fit, batch: Any, n_samples: int) -> Batches | None:
    """Return batches of new samples, from a label for each or one for all; unknown ones have effects of 1."""
    if isinstance(batch, Batches) or (batch is None and fit.batches is None):
        return batch
    known = fit.batches
    if known is None:
        known = Batches(np.zeros(0, dtype=np.int32), np.ones((0, len(fit.factors))), STRENGTH)
    labels = [batch or OTHER] * n_samples if batch is None or isinstance(batch, str) else batch
    return known.for_samples(labels, n_samples)


def new_size_factors(fit: Fit, counts: Counts, kind: Any = None, features: Any = None) -> Array:
    """Size factors of new samples, on the scale of the training data; None: of the kind that the fit had.

    Totals are divided by the mean total that the training samples have in `features`, those of `counts`.
    """
    if kind is None:
        kind = fit.settings.size_factors
        if kind == "given":
            raise ValueError(
                "size_factors are needed: the model was fitted with an array of them, and new samples need "
                "their own; pass size_factors=..."
            )
    if isinstance(kind, str) and kind in ("total", "fit"):
        mean_total = fit.data.mean_total * observed_part(fit, features)
        return np.where(counts.row_sums > 0, counts.row_sums / mean_total, 1.0)
    return counts.size_factors(kind)


def of_features(fit: Fit, features: NDArray[np.intp]) -> Fit:
    """Return a fit with some of its features only."""
    if len(features) == len(fit.factors):
        return fit
    own, fitted = fit.rates.of_features(features), fit.fitted_features
    known = fitted is not None and np.array_equal(features, np.flatnonzero(fitted))
    total = fit.data.fitted_total if known else fit.data.total * observed_part(fit, features)
    return replace(
        fit,
        factors=own.factors,
        dispersion=own.dispersion,
        batches=own.batches,
        data=replace(fit.data, n_features=len(features), total=total, fitted_total=total),
        feature_names=None if fit.feature_names is None else fit.feature_names[features],
        mask=None if fit.mask is None else fit.mask[features],
        fitted_features=None if fitted is None or fitted[features].all() else fitted[features],
    )
