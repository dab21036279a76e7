"""What `select` fits: folds of the counts, settings in the order of their starts, and single fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import Random, check_choice, check_number, check_whole
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import folds, training_size_factors
from log1pnmf.engines.registry import make_engine
from log1pnmf.fitting.fit import Fit, c_name
from log1pnmf.fitting.race import find_start
from log1pnmf.fitting.runs import Run, Runs, Start
from log1pnmf.fitting.settings import NOISES, Settings
from log1pnmf.fitting.starts import continued_start
from log1pnmf.fitting.updates import first_noise, first_problem, update_of
from log1pnmf.model.batch_effects import first_effects
from log1pnmf.model.batches import Batches
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.problem import Problem

from .heldout import heldout_features, heldout_log_likelihood, training_by_sample

# ---------- what is fitted in a fold and how a fit is judged: held-out counts, or held-out samples

Array = NDArray[np.float64]

HOLDOUTS = ("counts", "samples")


@dataclass(frozen=True, eq=False, kw_only=True)
class Training:
    """Counts to fit: all of them, or those that are not held out."""

    number: int  # which fold; for all counts the number of folds
    train: Counts
    size_factors: Array  # of the training samples, such that c means what it means in the whole data
    batches: Batches | None = None  # of the training samples; a fit begins with their effects
    penalty_scale: float = 1.0  # share of the whole data's log-likelihood that is fitted


@dataclass(frozen=True, eq=False, kw_only=True)
class HeldOutCounts(Training):
    """A share of all counts is held out; the training part was seen with the exposure that is left."""

    test: Counts
    test_fraction: float

    def score(self, fit: Fit) -> Array:
        """Return the held-out log-likelihood of every sample."""
        return heldout_log_likelihood(fit, self.train, self.test, test_fraction=self.test_fraction)

    def fitted(self, fit: Fit) -> Array:
        """Return the log-likelihood of the training counts of every sample, where it tells values of c apart.

        With negative binomial noise only: given the training counts, the others hardly depend on c.
        """
        return np.zeros(len(fit.loadings)) if fit.dispersion is None else training_by_sample(fit, self.train)


@dataclass(frozen=True, eq=False, kw_only=True)
class HeldOutSamples(Training):
    """Some samples are held out; some of their features give the loadings, the others are scored."""

    new: Counts
    new_size_factors: Array | None
    rows: NDArray[np.intp]
    scored: NDArray[np.intp]
    n_samples: int
    new_batches: Batches | None = None

    def score(self, fit: Fit) -> Array:
        """Return the held-out log-likelihood of every sample of the data, 0 for those not held out."""
        scores, batches = np.zeros(self.n_samples), self.new_batches
        if batches is not None and fit.batches is not None:  # effects of training
            batches = replace(batches, effects=fit.batches.effects, known={})
        sizes = self.new_size_factors
        scores[self.rows] = heldout_features(
            fit, self.train, self.new, scored=self.scored, size_factors=sizes, batches=batches
        )
        return scores

    def fitted(self, fit: Fit) -> Array:
        """Return zeros: nothing of these samples was fitted."""
        return np.zeros(self.n_samples)


Fold = HeldOutCounts | HeldOutSamples


def make_folds(
    counts: Counts,
    n_folds: int,
    *,
    holdout: str,
    test_fraction: float,
    size_factors: Any,
    seed: int,
    batches: Batches | None = None,
) -> list[Fold]:
    """Split the data `n_folds` times."""
    rng = np.random.default_rng([seed, 0])
    made: list[Fold] = []
    if holdout == "counts":
        pairs = folds(counts, n_folds, test_fraction=test_fraction, random_state=rng)
        for k, (train, test) in enumerate(pairs):
            sizes = training_size_factors(train, test_fraction, size_factors)
            first = None if batches is None else first_effects(batches, train, sizes)
            made.append(
                HeldOutCounts(
                    number=k,
                    train=train,
                    size_factors=sizes,
                    batches=first,
                    penalty_scale=1.0 - test_fraction,
                    test=test,
                    test_fraction=test_fraction,
                )
            )
        return made
    full = counts.size_factors(size_factors)
    by_total = isinstance(size_factors, str) and size_factors in ("total", "fit")
    n_scored = max(1, round(test_fraction * counts.n_features))
    for k, part in enumerate(np.array_split(rng.permutation(counts.n_samples), n_folds)):
        rows = np.sort(part)
        others = np.setdiff1d(np.arange(counts.n_samples), rows)
        train, first = _samples(counts, others), None
        if batches is not None:
            first = first_effects(batches.of_samples(others), train, full[others])
        made.append(
            HeldOutSamples(
                number=k,
                train=train,
                size_factors=full[others],
                new=_samples(counts, rows),
                new_size_factors=None if by_total else full[rows],
                rows=rows,
                scored=np.sort(rng.permutation(counts.n_features)[:n_scored]),
                n_samples=counts.n_samples,
                penalty_scale=len(others) / counts.n_samples,
                batches=first,
                new_batches=None if batches is None else batches.of_samples(rows),
            )
        )
    return made


def _samples(counts: Counts, rows: NDArray[np.intp]) -> Counts:
    return Counts.from_any(counts.to_scipy()[rows])


# ---------- what is compared: settings, and the order in which they are fitted

SECOND_NOISE = 1000
"""Marks the place of settings with another noise than the first; fewer values of l1 are compared."""


@dataclass(frozen=True)
class Setting:
    """One model that is compared with others.

    Parameters
    ----------
    c : float
        Shift of the link.
    n_components : int
        Number of factors.
    l1 : float
        Penalty on the factors.
    noise : {"poisson", "nb"}
        Distribution of the counts.

    Examples
    --------
    >>> print(Setting(c=0.1, n_components=6, noise="nb"))
    c=0.1, K=6, noise=nb
    >>> Setting(c=1.0, n_components=3, l1=10.0).parameters
    {'c': 1.0, 'n_components': 3, 'l1': 10.0, 'noise': 'poisson'}
    """

    c: float
    n_components: int
    l1: float = 0.0
    noise: str = Settings.noise

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of `log1pnmf.Log1pNMF`, for a fit to the whole data."""
        return asdict(self)

    @property
    def complexity(self) -> tuple[float, float, float, bool]:
        """Smaller is simpler: fewer factors, a larger penalty, a larger c (nearer to adding up), Poisson."""
        return self.n_components, -self.l1, -self.c, self.noise != "poisson"

    def __str__(self) -> str:
        text = f"c={c_name(self.c)}, K={self.n_components}"
        text = text if self.l1 == 0.0 else f"{text}, l1={self.l1:g}"
        return text if self.noise == Settings.noise else f"{text}, noise={self.noise}"


@dataclass(frozen=True)
class Grid:
    """All combinations of c, number of factors, penalty and noise."""

    # largest first: fits at a large c are the cheapest, and those at the next smaller one start from them
    c: tuple[float, ...]
    n_components: tuple[int, ...]  # smallest first: factors are added
    l1: tuple[float, ...] = (0.0,)  # largest first: factors fill up as the penalty falls
    noise: tuple[str, ...] = (Settings.noise,)  # poisson first, which costs least

    @classmethod
    def of(cls, c: Any, n_components: Any, l1: Any = 0.0, noise: Any = Settings.noise) -> Grid:
        """Check the values, each a number or a sequence of numbers in any order; names of noise."""
        shifts = [ShiftedLog(value).c for value in several("c", c)]
        numbers = several("n_components", n_components)
        for number in numbers:
            check_whole("n_components", number, least=1)
        penalties = several("l1", l1)
        for penalty in penalties:
            check_number("l1", penalty)
        return cls(
            grid_values("c", shifts)[::-1],
            grid_values("n_components", map(int, numbers)),
            grid_values("l1", map(float, penalties))[::-1],
            _noises(noise),
        )

    def __iter__(self) -> Iterator[Setting]:
        """Yield all settings in the order of a table: by noise, number of factors, c and l1, all upwards."""
        for noise, number, c, l1 in product(
            self.noise, self.n_components, reversed(self.c), reversed(self.l1)
        ):
            yield Setting(c, number, l1, noise)

    def __len__(self) -> int:
        return len(self.n_components) * len(self.c) * len(self.l1) * len(self.noise)

    def before(self, setting: Setting) -> Setting | None:
        """Return the setting whose fit a fit starts from; None for the first of all."""
        for name in ("l1", "c", "noise", "n_components"):
            values = getattr(self, name)
            number = values.index(getattr(setting, name))
            if number:
                return replace(setting, **{name: values[number - 1]})
        return None

    def place(self, setting: Setting) -> list[int]:
        """Return numbers that tell a setting from all others."""
        found = [self.n_components.index(setting.n_components), self.c.index(setting.c)]
        found.append(self.l1.index(setting.l1))
        which = self.noise.index(setting.noise)
        return [*found, SECOND_NOISE + which] if which else found

    def as_dict(self) -> dict[str, list[Any]]:
        """Plain lists, to be saved."""
        return {name: list(values) for name, values in asdict(self).items()}


def _noises(noise: Any) -> tuple[str, ...]:
    """Check names of noise, Poisson first; "auto" compares all."""
    given = [noise] if isinstance(noise, str) or not isinstance(noise, Iterable) else list(noise)
    for one in given:
        check_choice("noise", one, NOISES, otherwise="several of them")
    if not given or len(set(given)) < len(given):
        raise ValueError(f"noise must hold different names, at least one, got {noise!r}")
    known = [one for one in NOISES if one != "auto"]
    return tuple(one for one in known if one in given or "auto" in given)


def several(name: str, values: Any) -> list[Any]:
    """Return a list of numbers, of a single one or of a sequence."""
    if isinstance(values, Real):
        return [values]
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a number or a sequence of numbers, got {values!r}")
    listed = list(values)
    if not listed:
        raise ValueError(f"{name} must hold at least one number, got none")
    return listed


def grid_values(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Return values in ascending order; refuse one that is there twice."""
    ordered = sorted(values)
    for one, other in pairwise(ordered):
        if one == other:
            raise ValueError(f"{name} must hold different numbers, got {one:g} twice")
    return tuple(ordered)


# ---------- fits to one fold


class Interrupted(Exception):  # noqa: N818, it is no error
    """The user has interrupted: fits under way are dropped."""


class Job(NamedTuple):
    """One fit: of a setting to a fold, or to all counts (the part after the last fold) with some seed."""

    part: int
    setting: Setting
    seed: int = 0


@dataclass(frozen=True, eq=False)
class ScoredFit:
    """One setting in one fold."""

    fold: int
    setting: Setting
    # (n,): held-out log-likelihood of every sample of the data; 0 for those that are not in this fold
    by_sample: Array
    n_iter: int  # iterations of the fit that was kept
    converged: bool
    seconds: float  # CPU seconds of the thread, all starts and the scoring included
    fitted: Array  # (n,): log-likelihood of what was fitted of every sample; 0 where it does not count


@dataclass(frozen=True, eq=False)
class Fitter:
    """Fits settings of a grid to all counts, or to the training part of a fold."""

    part: Training
    grid: Grid
    settings: Settings  # of all fits; c, number of factors, penalty and start are replaced
    seed: int  # random numbers of a fit depend on this, the part and the setting, and on nothing else
    stopped: Callable[[], bool]  # true when the user has interrupted

    def with_seed(self, setting: Setting, number: int) -> Fit:
        """Return the fit of a setting from the random start with this number."""
        settings = replace(self._settings(setting), init="random")
        run = self._run(settings, self._fresh(settings), self._random(setting, number))
        return run.as_fit(settings, run.changed.put_into(self._problem(settings)))

    def _settings(self, setting: Setting) -> Settings:
        """Return the settings of a fit to this part."""
        return (
            replace(
                self.settings,
                c=setting.c,
                n_components=setting.n_components,
                l1=self.part.penalty_scale * setting.l1,
            )
            .with_noise(setting.noise)
            .resolved(self.settings.engine, self.part.train)
        )

    def _random(self, setting: Setting, *number: int) -> Random:
        place = self.grid.place(setting)
        return np.random.default_rng([self.seed, 1, self.part.number, *place, *number])

    def _problem(self, settings: Settings, before: Fit | None = None) -> Problem:
        """Return the problem of a fit; fitted size factors begin with those of the fit before."""
        noise = first_noise(settings, self.part.train.n_features)
        own = self.part.size_factors, noise, self.part.batches
        problem = first_problem(settings, self.part.train, *own)
        if settings.fits_sizes and before is not None:
            return replace(problem, size_factors=before.size_factors)
        return problem

    def _fresh(self, settings: Settings, number: int = 0) -> Start:
        """Return what finds the start that the settings name."""
        return lambda engine, rng, _: find_start(engine, rng, number, settings=settings, n_jobs=1)

    def _run(self, settings: Settings, start: Start, rng: Random, before: Fit | None = None) -> Run:
        run = Runs(
            settings=replace(settings, n_init=1),
            engine=make_engine(settings.engine, self._problem(settings, before), 1),
            rng=rng,
            start=start,
            constraint=settings.constraint,
            update=update_of(settings, self.part.train, batched=self.part.batches is not None),
            callbacks=[lambda iteration: self.stopped()],
        ).best()
        if self.stopped():
            raise Interrupted
        return run


@dataclass(frozen=True, eq=False)
class PathFitter(Fitter):
    """Fits the settings of a grid to one fold, and scores them.

    Every fit has `n_starts` starts: its neighbour's end, where there is one, and fresh ones. The one with the
    best training objective is kept.
    """

    part: Fold
    n_starts: int = field(kw_only=True)

    def fit(self, setting: Setting, before: Fit | None) -> tuple[Fit, ScoredFit]:
        """Return the fit of a setting, started also from where the fit before it ended, and its scores."""
        started = time.thread_time()
        rng = self._random(setting)
        settings = self._settings(setting)
        starts: list[Start] = [] if before is None else [self._continued(settings, before, rng)]
        more = max(0 if before is not None else 1, self.n_starts - len(starts))
        starts += [self._fresh(settings, number) for number in range(more)]
        runs = (
            self._run(settings, start, rng, before if number == 0 else None)
            for number, start in enumerate(starts)
        )
        best = min(runs, key=lambda run: run.objective)
        fit = best.as_fit(settings, best.changed.put_into(self._problem(settings)))
        by_sample, fitted = self.part.score(fit), self.part.fitted(fit)
        seconds, met = time.thread_time() - started, best.stopped == "converged"
        return fit, ScoredFit(self.part.number, setting, by_sample, best.last.index, met, seconds, fitted)

    def _continued(self, settings: Settings, before: Fit, rng: Random) -> Start:
        start = continued_start(before, self._problem(settings), settings.n_components, rng)
        return partial(find_start, settings=settings, given=start)


def stability_with_error(between: Array) -> tuple[float, float]:
    """Mean similarity over all pairs of fits, and its standard error by leaving out one fit after the other.

    >>> value, error = stability_with_error(np.array([[1.0, 0.9, 0.5], [0.9, 1.0, 0.4], [0.5, 0.4, 1.0]]))
    >>> round(value, 3), round(error, 3)
    (0.6, 0.306)
    """
    n = len(between)
    if n < 2:
        return np.nan, np.nan
    mean = float(between[np.triu_indices(n, k=1)].mean())
    if n < 3:
        return mean, np.nan
    pairs = between - np.diag(np.diag(between))
    without = (pairs.sum() - 2.0 * pairs.sum(axis=0)) / ((n - 1) * (n - 2))
    return mean, float(np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2)))
