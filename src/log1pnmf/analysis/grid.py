"""What `select` fits: settings in the order of their starts, folds of the counts, and single fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import Random, check_choice, check_number, check_whole
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import folds, training_size_factors
from log1pnmf.fitting.fit import Fit, c_name, factor_shares
from log1pnmf.fitting.fit_counts import fit_counts
from log1pnmf.fitting.settings import NOISES, Settings
from log1pnmf.model.dispersion import FIRST_DISPERSION
from log1pnmf.model.noise import Array, ShiftedLog

from .heldout import heldout_features, heldout_log_likelihood, training_by_sample

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
        noise = noise.tolist() if isinstance(noise, np.ndarray) else noise  # one name, or a list of names
        names = [noise] if isinstance(noise, str) or not isinstance(noise, Iterable) else list(noise)
        for name in names or [noise]:
            check_choice("noise", name, NOISES, otherwise="several of them")
        return cls(
            shifts[::-1],
            tuple(sorted(set(map(int, numbers)))),
            tuple(sorted(set(map(float, penalties)), reverse=True)),
            tuple(name for name in NOISES if name != "auto" and (name in names or "auto" in names)),
        )

    def __iter__(self) -> Iterator[Setting]:
        """Yield all settings in the order of a table: by noise, number of factors, c and l1, all upwards."""
        for noise, number, c, l1 in product(self.noise, self.n_components, self.c[::-1], self.l1[::-1]):
            yield Setting(c, number, l1, noise)

    def __len__(self) -> int:
        return len(self.n_components) * len(self.c) * len(self.l1) * len(self.noise)

    def before(self, setting: Setting, tried: Iterable[int]) -> Setting | None:
        """Return the setting whose fit a fit starts from, among these numbers of factors; None at first."""
        for name in ("l1", "c", "noise"):
            values = getattr(self, name)
            number = values.index(getattr(setting, name))
            if number:
                return replace(setting, **{name: values[number - 1]})
        fewer = [number for number in tried if number < setting.n_components]
        return replace(setting, n_components=max(fewer)) if fewer else None

    def place(self, setting: Setting) -> list[int]:
        """Return numbers that identify a setting."""
        names = ("n_components", "c", "l1", "noise")
        *place, noise = (getattr(self, name).index(getattr(setting, name)) for name in names)
        return [*place, SECOND_NOISE + noise] if noise else place


def ascending_shifts(c: Any) -> tuple[float, ...]:
    """Return the different values of c in ascending order, of a single one or of a sequence."""
    return tuple(sorted({ShiftedLog(value).c for value in several("c", c)}))


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


# ---------- what is fitted in a fold and how a fit is judged: held-out counts, or held-out samples

Holdout: TypeAlias = Literal["counts", "samples"]
HOLDOUTS: tuple[str, ...] = get_args(Holdout)


@dataclass(frozen=True, eq=False)
class Part:
    """Counts to fit: all of them, or those that are not held out."""

    number: int  # which fold; for all counts the number of folds
    train: Counts
    size_factors: Array  # of the training samples, such that c means what it means in the whole data
    batch: NDArray[np.object_] | None = None  # of the training samples
    penalty_scale: float = 1.0  # share of the whole data's log-likelihood that is fitted
    # of a fit, for every sample of the data: held-out log-likelihood (0 for samples that are not held out),
    # and that of the training counts where values of c are compared by it (otherwise 0)
    scores: Callable[[Fit], tuple[Array, Array]] | None = None


def make_folds(
    counts: Counts,
    n_folds: int,
    *,
    holdout: str,
    test_fraction: float,
    size_factors: Any,
    seed: int,
    batch: NDArray[np.object_] | None = None,
) -> list[Part]:
    """Split the data `n_folds` times."""
    rng, made = np.random.default_rng([seed, 0]), list[Part]()
    if holdout == "counts":
        for train, test in folds(counts, n_folds, test_fraction=test_fraction, random_state=rng):
            sizes = training_size_factors(train, test_fraction, size_factors)
            scores = partial(_score_counts, train=train, test=test, test_fraction=test_fraction)
            made.append(Part(len(made), train, sizes, batch, 1.0 - test_fraction, scores))
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
            batch=None if batch is None else batch[rows],
        )
        here = None if batch is None else batch[others]
        made.append(Part(len(made), train, sizes[others], here, len(others) / len(everyone), scores))
    return made


def _score_counts(fit: Fit, *, train: Counts, test: Counts, test_fraction: float) -> tuple[Array, Array]:
    """Score a share of all counts; the training part was seen with the exposure that is left."""
    held = heldout_log_likelihood(fit, train, test, test_fraction=test_fraction)
    # given dispersed training counts, the others hardly depend on c
    return held, np.zeros(len(held)) if fit.dispersion is None else training_by_sample(fit, train)


def _score_samples(
    fit: Fit, *, test: Counts, rows: NDArray[np.intp], batch: NDArray[np.object_] | None, **how: Any
) -> tuple[Array, Array]:
    """Score some features of the samples in these rows; their other features give the loadings."""
    batches = None if fit.batches is None else fit.batches.for_samples(batch, len(rows))
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
    smallest_share: float  # of the signal that a factor carries


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
        return self._fit(setting, self._random(setting, number), init="random")

    def scored(self, setting: Setting, before: Fit | None) -> tuple[Fit, ScoredFit]:
        """Return the best fit to the training part, from `before` and from fresh starts, and its scores."""
        started, rng, fits = time.thread_time(), self._random(setting), list[Fit]()
        if before is not None:
            fits.append(self._fit(setting, rng, before))
        if self.n_starts > len(fits):
            fits.append(self._fit(setting, rng, n_init=self.n_starts - len(fits)))
        fit = min(fits, key=lambda one: one.objective)
        assert self.part.scores is not None  # only folds are scored
        by_sample, fitted = self.part.scores(fit)
        how = fit.n_iter, fit.converged, time.thread_time() - started
        smallest = float(factor_shares(fit.loadings, fit.factors).min())
        return fit, ScoredFit(self.part.number, setting, by_sample, *how, fitted, smallest)

    def _random(self, setting: Setting, *number: int) -> Random:
        return np.random.default_rng([self.seed, 1, self.part.number, *self.grid.place(setting), *number])

    def _fit(self, setting: Setting, rng: Random, before: Fit | None = None, **changes: Any) -> Fit:
        part, own = self.part, {**setting.parameters, **changes}
        own["l1"] *= part.penalty_scale
        fit = fit_counts(
            part.train,
            replace(self.settings.with_noise(own.pop("noise")), **own),
            size_factors=part.size_factors,
            dispersion=FIRST_DISPERSION,  # every fit finds its own
            batch=part.batch,
            init=before,
            random_state=rng,
            n_jobs=1,
            verbose=0,
            callbacks=[lambda iteration: self.stopped()],
        )
        if self.stopped():
            raise Interrupted
        return fit
