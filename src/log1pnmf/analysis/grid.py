"""What `select` fits: settings in the order of their starts, folds of the counts, and single fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
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
from log1pnmf.fitting.runs import Run, Runs, Start, first_problem
from log1pnmf.fitting.settings import NOISES, Settings
from log1pnmf.fitting.starts import continued_start, find_start
from log1pnmf.model.batch_effects import first_effects
from log1pnmf.model.batches import Batches
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem

from .heldout import heldout_features, heldout_log_likelihood, training_by_sample

Array = NDArray[np.float64]

# ---------- what is compared: settings, and the order in which they are fitted

SECOND_NOISE = 1000  # marks settings with another noise than the first; fewer values of l1 are compared


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
    """All combinations of c, number of factors, penalty and noise, each in the order of the fits."""

    c: tuple[float, ...]  # largest first: the cheapest, and the next smaller one starts from it
    n_components: tuple[int, ...]  # smallest first: factors are added
    l1: tuple[float, ...] = (0.0,)  # largest first: factors fill up as the penalty falls
    noise: tuple[str, ...] = (Settings.noise,)  # poisson first, which costs least

    @classmethod
    def of(cls, c: Any, n_components: Any, l1: Any = 0.0, noise: Any = Settings.noise) -> Grid:
        """Check the values, each a number or a sequence of numbers in any order; names of noise."""
        shifts = ascending_shifts(c)
        numbers, penalties = several("n_components", n_components), several("l1", l1)
        for number in numbers:
            check_whole("n_components", number, least=1)
        for penalty in penalties:
            check_number("l1", penalty)
        names = [noise] if isinstance(noise, str) or not isinstance(noise, Iterable) else list(noise)
        for name in names:
            check_choice("noise", name, NOISES, otherwise="several of them")
        if not names or len(set(names)) < len(names):
            raise ValueError(f"noise must hold different names, at least one, got {noise!r}")
        return cls(
            shifts[::-1],
            _ascending("n_components", map(int, numbers)),
            _ascending("l1", map(float, penalties))[::-1],
            tuple(name for name in NOISES if name != "auto" and (name in names or "auto" in names)),
        )

    def __iter__(self) -> Iterator[Setting]:
        """Yield all settings in the order of a table: by noise, number of factors, c and l1, all upwards."""
        for noise, number, c, l1 in product(self.noise, self.n_components, self.c[::-1], self.l1[::-1]):
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
        names = ("n_components", "c", "l1", "noise")
        *place, noise = (getattr(self, name).index(getattr(setting, name)) for name in names)
        return [*place, SECOND_NOISE + noise] if noise else place


def ascending_shifts(c: Any) -> tuple[float, ...]:
    """Return values of c in ascending order, of a single one or of a sequence of different ones."""
    return _ascending("c", (ShiftedLog(value).c for value in several("c", c)))


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


def _ascending(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    ordered = sorted(values)
    for one, other in pairwise(ordered):
        if one == other:
            raise ValueError(f"{name} must hold different numbers, got {one:g} twice")
    return tuple(ordered)


# ---------- what is fitted in a fold and how a fit is judged: held-out counts, or held-out samples

HOLDOUTS = ("counts", "samples")


@dataclass(frozen=True, eq=False)
class Part:
    """Counts to fit: all of them, or those that are not held out."""

    number: int  # which fold; for all counts the number of folds
    train: Counts
    size_factors: Array  # of the training samples, such that c means what it means in the whole data
    batches: Batches | None = None  # of the training samples; a fit begins with their effects
    penalty_scale: float = 1.0  # share of the whole data's log-likelihood that is fitted
    # of a fit, for every sample of the data: held-out log-likelihood (0 for samples that are not held out),
    # and that of the training counts where it tells values of c apart (otherwise 0)
    scores: Callable[[Fit], tuple[Array, Array]] | None = None


def part_of(number: int, train: Counts, sizes: Array, batches: Batches | None, **more: Any) -> Part:
    """Return counts to fit, with the effects of batches that a fit begins with."""
    first = None if batches is None else first_effects(batches, train, sizes)
    return Part(number, train, sizes, first, **more)


def make_folds(
    counts: Counts,
    n_folds: int,
    *,
    holdout: str,
    test_fraction: float,
    size_factors: Any,
    seed: int,
    batches: Batches | None = None,
) -> list[Part]:
    """Split the data `n_folds` times."""
    rng, made = np.random.default_rng([seed, 0]), list[Part]()
    if holdout == "counts":
        for train, test in folds(counts, n_folds, test_fraction=test_fraction, random_state=rng):
            sizes = training_size_factors(train, test_fraction, size_factors)
            scores = partial(_score_counts, train=train, test=test, test_fraction=test_fraction)
            own = {"penalty_scale": 1.0 - test_fraction, "scores": scores}
            made.append(part_of(len(made), train, sizes, batches, **own))
        return made
    sizes, everyone = counts.size_factors(size_factors), np.arange(counts.n_samples)
    by_total = isinstance(size_factors, str) and size_factors in ("total", "fit")
    n_scored = max(1, round(test_fraction * counts.n_features))
    for chosen in np.array_split(rng.permutation(counts.n_samples), n_folds):
        rows, others = np.sort(chosen), np.setdiff1d(everyone, chosen)
        train, test = (Counts.from_any(counts.to_scipy()[which]) for which in (others, rows))
        scores = partial(
            _score_samples,
            totals=train.by_column.row_sums(),
            test=test,
            rows=rows,
            scored=np.sort(rng.permutation(counts.n_features)[:n_scored]),
            size_factors=None if by_total else sizes[rows],
            batches=None if batches is None else batches.of_samples(rows),
        )
        own = {"penalty_scale": len(others) / len(everyone), "scores": scores}
        here = None if batches is None else batches.of_samples(others)
        made.append(part_of(len(made), train, sizes[others], here, **own))
    return made


def _score_counts(fit: Fit, *, train: Counts, test: Counts, test_fraction: float) -> tuple[Array, Array]:
    """Score a share of all counts; the training part was seen with the exposure that is left."""
    held = heldout_log_likelihood(fit, train, test, test_fraction=test_fraction)
    # given dispersed training counts, the others hardly depend on c
    return held, np.zeros(len(held)) if fit.dispersion is None else training_by_sample(fit, train)


def _score_samples(
    fit: Fit, *, test: Counts, rows: NDArray[np.intp], batches: Batches | None, **how: Any
) -> tuple[Array, Array]:
    """Score some features of the samples in these rows; their other features give the loadings."""
    if batches is not None and fit.batches is not None:
        batches = replace(batches, effects=fit.batches.effects, known={})  # those of the training samples
    held, fitted = np.zeros((2, len(rows) + len(fit.loadings)))
    held[rows] = heldout_features(fit, new=test, batches=batches, **how)
    return held, fitted


# ---------- fits to one part


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
    by_sample: Array  # (n,): held-out log-likelihood of every sample of the data, see `Part.scores`
    n_iter: int  # iterations of the fit that was kept
    converged: bool
    seconds: float  # CPU seconds of the thread, all starts and the scoring included
    fitted: Array  # (n,): log-likelihood of the training counts of every sample, see `Part.scores`


@dataclass(frozen=True, eq=False)
class Fitter:
    """Fits settings of a grid to one part of the data."""

    part: Part
    grid: Grid
    settings: Settings  # of all fits; c, number of factors, penalty and start are replaced
    seed: int  # random numbers of a fit depend on this, the part and the setting, and on nothing else
    n_starts: int
    stopped: Callable[[], bool]  # true when the user has interrupted

    def from_seed(self, setting: Setting, number: int) -> Fit:
        """Return the fit of a setting from the random start with this number."""
        settings = replace(self._settings(setting), init="random")
        run = self._run(settings, self._fresh(settings), self._random(setting, number))
        return run.as_fit(settings, self._problem(settings))

    def scored(self, setting: Setting, before: Fit | None) -> tuple[Fit, ScoredFit]:
        """Return the fit of a setting with the best training objective, and its scores.

        The first of `n_starts` starts is where the fit before it ended, if there is one.
        """
        started, rng, settings = time.thread_time(), self._random(setting), self._settings(setting)
        starts: list[Start] = []
        if before is not None:
            given = continued_start(before, self._problem(settings), settings.n_components, rng)
            starts.append(partial(find_start, settings=settings, given=given))
        starts += [self._fresh(settings, number) for number in range(self.n_starts - len(starts))]
        runs = (self._run(settings, start, rng, None if k else before) for k, start in enumerate(starts))
        best = min(runs, key=lambda run: run.objective)
        fit = best.as_fit(settings, self._problem(settings))
        assert self.part.scores is not None  # only folds are scored
        by_sample, fitted = self.part.scores(fit)
        seconds, met = time.thread_time() - started, best.stopped == "converged"
        return fit, ScoredFit(self.part.number, setting, by_sample, best.last.index, met, seconds, fitted)

    def _settings(self, setting: Setting) -> Settings:
        """Return the settings of a fit to this part."""
        l1 = self.part.penalty_scale * setting.l1
        settings = replace(self.settings, c=setting.c, n_components=setting.n_components, l1=l1)
        return settings.with_noise(setting.noise).resolved(self.settings.engine, self.part.train)

    def _random(self, setting: Setting, *number: int) -> Random:
        return np.random.default_rng([self.seed, 1, self.part.number, *self.grid.place(setting), *number])

    def _problem(self, settings: Settings, before: Fit | None = None) -> Problem:
        """Return the problem of a fit; fitted size factors begin with those of the fit before."""
        part = self.part
        return first_problem(settings, part.train, part.size_factors, part.batches, before=before)

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
            callbacks=[lambda iteration: self.stopped()],
        ).best()
        if self.stopped():
            raise Interrupted
        return run
