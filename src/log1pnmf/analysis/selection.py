"""The result of a selection: a table of held-out log-likelihoods, two choices, and a judgement."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common import archive
from log1pnmf._common.checks import joined, plural
from log1pnmf.fitting.fit import Fit, c_name
from log1pnmf.model.problem import Array

from .grid import Grid, Job, ScoredFit, Setting
from .stability import score_with_error

Table: TypeAlias = dict[str, NDArray[Any]]

KIND = "selection"
NUMBERS = ("n_iter", "converged", "seconds", "smallest_share")

STABLE = 0.9  # stability from which fits with different seeds have the same factors
FEW = 6  # numbers of factors that are tried one after the other; of more, steps are doubled
CLEARLY_LESS = 0.1  # loss of stability that counts, where it is beyond two standard errors too

SHORT = {"n_components": "K", "c": "c", "l1": "l1", "noise": "noise"}


@dataclass(frozen=True)
class Judgement:
    """The conclusion of a comparison of settings.

    Parameters
    ----------
    simplest : Setting
        The simplest setting within one standard error of the best.
    setting : Setting or None
        The suggested setting: the simplest one, or None where the data do not decide, because the best is at
        the end of the values tried, or stability contradicts.
    clear : bool
        Whether it stands alone: no other value of any parameter is within one standard error.
    headline : str
        The same in one sentence.
    reasons : tuple of str
        One sentence for each parameter of which several values were compared, and one about stability.
    """

    simplest: Setting
    setting: Setting | None
    clear: bool
    headline: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((self.headline, *self.reasons))


def judge(summary: Mapping[str, Any], *, holdout: str = "counts", notes: Sequence[str] = ()) -> Judgement:
    """Judge a table of settings."""
    table: Table = {
        name: np.asarray(values, dtype=str if name == "noise" else np.float64)
        for name, values in summary.items()
    }
    # without an error (one sample) there is only the best
    near = table["difference"] >= -np.nan_to_num(table["se_difference"])
    rows = zip(*(table[name][near].tolist() for name in ("c", "n_components", "l1", "noise")), strict=True)
    simplest = min((Setting(c, int(k), l1, noise) for c, k, l1, noise in rows), key=lambda s: s.complexity)
    compared = [name for name in SHORT if len(np.unique(table[name])) > 1]
    verdicts = [_verdict(table, name, near, holdout) for name in compared]
    contradiction, about_stability = _stability(table, simplest)
    reasons = (*(reason for _, reason in verdicts), *about_stability, *notes)
    unsaid, tied = (
        [SHORT[name] for name, (state, _) in zip(compared, verdicts, strict=True) if state == wanted]
        for wanted in ("open", "tied")
    )
    if unsaid:
        where = "is at the end" if len(unsaid) == 1 else "are at the ends"
        headline = f"The data do not decide {joined(unsaid)}: the best {where} of the values tried."
    elif contradiction:
        headline = "The data do not decide: likelihood and stability contradict each other."
    elif tied:
        headline = (
            f"Suggested: {simplest}, the simplest; the data do not decide which {joined(tied)} is best."
        )
    else:
        headline = f"Suggested: {simplest}."
    chosen = None if unsaid or contradiction else simplest
    return Judgement(simplest, chosen, chosen is not None and not tied, headline, reasons)


def _verdict(table: Table, name: str, near: NDArray[np.bool_], holdout: str) -> tuple[str, str]:
    """Return whether a parameter is "clear", "tied" or "open" (at the end of the values tried), and why."""
    values, short, difference = table[name], SHORT[name], table["difference"]
    row = int(np.argmax(difference))
    best, tried, close = values[row], np.unique(values), np.unique(values[near])
    end = None  # of the values tried, unless it is that of what is possible
    if name != "noise" and best != {"n_components": 1.0, "c": math.inf, "l1": 0.0}[name]:
        end = "largest" if best == tried[-1] else "smallest" if best == tried[0] else None
    what = f"held-out {holdout}"
    if name == "c" and holdout == "counts" and table["noise"][row] == "nb":
        what = "training and held-out counts"
    if len(close) > 1:
        also = "" if end is None else f"; {_value(name, best)} is the {end} tried"
        reason = f"{short} = {joined([_value(name, one) for one in close])} predict {what} equally well, "
        return "tied", f"{reason}within one standard error{also}."
    if end is not None:
        growing = name == "n_components" and end == "largest"
        advice = "" if growing else ": try larger ones" if end == "largest" else ": try smaller ones"
        reason = f"{short} = {_value(name, best)} predicts best, the {end} tried{advice}."
        flexible = growing or (name == "c" and end == "smallest")
        if flexible and holdout == "counts" and (table["noise"] == "poisson").all():
            reason += " Overdispersed counts have the same effect: compare noise='nb' as well."
        return "open", reason + _beyond_prediction(table, row) if growing else reason
    second = int(np.argmax(np.where(values != best, difference, -math.inf)))
    error = table["se_difference"][second]
    behind = f"{-difference[second] / error:,.1f} standard errors" if error > 0.0 else "far"
    reason = f"{short} = {_value(name, best)} predicts {what} best; "
    return "clear", f"{reason}{short} = {_value(name, values[second])} is {behind} behind."


def _beyond_prediction(table: Table, best: int) -> str:
    """Return what helps to choose K where more factors predict better and better."""
    text = " If larger ones predict still better, choose K by how stable and how large the factors are"
    if "smallest_share" not in table or np.isnan(table["stability"][best]):
        return f"{text}: n_seeds=3 measures it."
    same = np.all([table[name] == table[name][best] for name in ("c", "l1", "noise")], axis=0)
    stable = np.flatnonzero(same & (table["n_components"] > 1) & (table["stability"] >= STABLE))
    shown = [
        f"K = {table['n_components'][row]:g} has stability {table['stability'][row]:.2f}, and its smallest "
        f"factor carries {table['smallest_share'][row]:.1%} of the signal"
        for row in dict.fromkeys([*stable[-1:], best])
    ]
    return f"{text}: {'; '.join(shown)}."


def _stability(table: Table, chosen: Setting) -> tuple[bool, list[str]]:
    """Return whether fewer factors are clearly more stable, and whether other seeds find the same factors."""
    if "stability" not in table or chosen.n_components == 1:
        return False, []
    same = (table["c"] == chosen.c) & (table["l1"] == chosen.l1) & (table["noise"] == chosen.noise)
    number, stable, error = table["n_components"], table["stability"], np.nan_to_num(table["se_stability"])
    (row,) = np.flatnonzero(same & (number == chosen.n_components))
    here = stable[row]
    if np.isnan(here):
        return False, []
    if here >= STABLE:
        return False, [f"Fits with other seeds find the same factors (stability {here:.2f})."]
    margin = np.maximum(CLEARLY_LESS, 2.0 * np.hypot(error, error[row]))
    more_stable = same & (number > 1) & (number < chosen.n_components) & (stable - here > margin)
    text = f"Some factors change with the seed (stability {here:.2f} at K = {chosen.n_components}"
    if not more_stable.any():
        return False, [f"{text}): compare several, or raise n_init."]
    other = int(np.flatnonzero(more_stable)[-1])
    text = f"{text}, {stable[other]:.2f} at K = {int(number[other])})."
    return True, [f"{text} Use fewer factors to interpret them, more to predict."]


def _value(name: str, value: Any) -> str:
    if name == "noise":
        return str(value)
    return c_name(value) if name == "c" else f"{value:g}"


# ---------- the scores of all settings


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """Held-out log-likelihood of every setting of a grid; `log1pnmf.select` makes it, see the example there.

    Parameters
    ----------
    settings : tuple of Setting
        Settings that were fitted in every fold.
    scores : ndarray of shape (settings, folds, samples)
        Held-out log-likelihood; 0 for samples that are not in a fold. With negative binomial noise and counts
        held out, less what a value of c loses on the training counts; see Notes.
    numbers : dict of str to ndarray of shape (settings, folds)
        `n_iter`, `converged` and `seconds` (CPU) of the fits.
    about : dict
        What was requested: data, options, seed.
    agreement : ndarray of shape (settings, seeds, seeds)
        Mean similarity of the matched factors of fits with different seeds; NaN where they were not fitted.

    Notes
    -----
    Settings are compared by the *difference* to the best one on the same counts, with the standard error of a
    sum over samples, ``sqrt(n / (n - 1) * sum_i (d_i - mean(d))**2)``, where ``d_i`` is sample i's mean
    difference over folds; `se_folds` is the spread between folds.

    With negative binomial noise, held-out counts contain little information about c. Values of c with the
    same number of parameters are compared by training log-likelihoods: the score of a setting is lowered by
    what its c loses against the c that fits best.

    Examples
    --------
    >>> from log1pnmf import datasets, select
    >>> counts = datasets.pancreas().counts[:100, :200]
    >>> found = select(counts, [1, 2, 3], noise="poisson", n_folds=2, n_seeds=0)
    >>> print(found.best, found.judgement.headline, sep=": ")
    c=1, K=3: The data do not decide K: the best is at the end of the values tried.
    """

    settings: tuple[Setting, ...]
    scores: Array
    numbers: Mapping[str, np.ndarray]
    about: Mapping[str, Any]
    agreement: Array

    @classmethod
    def of(
        cls,
        grid: Grid,
        records: Sequence[ScoredFit],
        about: Mapping[str, Any],
        agreements: Mapping[Setting, Array] = {},
    ) -> Selection:
        """Put records together; settings that miss a fold are left out."""
        n_folds, n_seeds = int(about["n_folds"]), int(about.get("n_seeds", 0))
        whole = in_every_fold(grid, records, n_folds)
        if not whole:
            raise ValueError("no setting has been fitted in every fold yet; continue with resume=")
        found = {(record.setting, record.fold): record for record in records}
        rows = [[found[setting, fold] for fold in range(n_folds)] for setting in whole]
        columns = {
            name: np.array([[getattr(record, name) for record in row] for row in rows])
            for name in ("by_sample", "fitted", *NUMBERS)
        }
        alone, unknown = (np.full((n_seeds, n_seeds), value) for value in (1.0, np.nan))
        known = {one: alone for one in whole if one.n_components == 1} | dict(agreements)  # no other optimum
        held, fitted = columns.pop("by_sample"), columns.pop("fitted")
        return cls(
            settings=tuple(whole),
            scores=held - _lost(fitted, whole, about),
            numbers=columns,
            about=dict(about),
            agreement=np.array([known.get(one, unknown) for one in whole]),
        )

    @property
    def is_whole(self) -> bool:
        """Whether everything was fitted that the search for the best setting needs."""
        grid, tried = Grid.of(**self.about["grid"]), tuple({one.n_components for one in self.settings})
        rows = [self.settings.index(one) for one in self.to_compare]
        whole = len(self.settings) == len(replace(grid, n_components=tried))
        return whole and not np.isnan(self.agreement[rows]).any() and not next_numbers(grid, self.summary)

    @property
    def not_tried(self) -> list[int]:
        """Numbers of factors to choose from that the search has left out."""
        tried = {one.n_components for one in self.settings}
        return [number for number in self.about["grid"]["n_components"] if number not in tried]

    @property
    def to_compare(self) -> list[Setting]:
        """Settings whose stability helps to choose: the best, the simplest, and the next smaller K.

        Where the best K is the largest to choose from, all that are smaller.
        """
        chosen = set[Setting]()
        for one in (self.best, self.one_se):
            line = [other for other in self.settings if replace(other, n_components=one.n_components) == one]
            last = line.index(one)
            first = 0 if one.n_components == self.about["grid"]["n_components"][-1] else max(0, last - 1)
            chosen.update(line[first : last + 1])
        return [one for one in self.settings if one in chosen and one.n_components > 1]

    @cached_property
    def summary(self) -> dict[str, np.ndarray]:
        """One row per setting; ``pandas.DataFrame(summary)`` shows it.

        Columns: `c`, `n_components`, `l1`, `noise`; `log_likelihood`, mean over folds, and its raw standard
        error `se` over folds (NaN for one fold); `difference` to the best setting, its standard error
        `se_difference` over samples and `se_folds` over folds; `within_one_se` of the best; `stability` over
        seeds (1: all fits have the same factors) and its standard error `se_stability`, NaN where unknown;
        `smallest_share` of the signal that a factor carries, mean over folds.
        """
        by_fold, by_sample = self.scores.sum(axis=2), self.scores.mean(axis=1)
        means, n_folds, n_samples = by_fold.mean(axis=1), self.scores.shape[1], self.scores.shape[2]
        best = int(np.argmax(means))
        spread = _deviation(by_sample - by_sample[best]) * math.sqrt(n_samples)
        difference = means - means[best]
        stable = np.array([score_with_error(between) for between in self.agreement])
        columns = ("c", "n_components", "l1", "noise")
        return {
            **{name: np.array([getattr(one, name) for one in self.settings]) for name in columns},
            "log_likelihood": means,
            "se": _deviation(by_fold) / math.sqrt(n_folds),
            "difference": difference,
            "se_difference": spread,
            "se_folds": _deviation(by_fold - by_fold[best]) / math.sqrt(n_folds),
            "within_one_se": difference >= -spread,
            "stability": stable[:, 0],
            "se_stability": stable[:, 1],
            "smallest_share": self.numbers["smallest_share"].mean(axis=1),
        }

    @property
    def best(self) -> Setting:
        """The setting with the highest held-out log-likelihood."""
        return self.settings[int(np.argmax(self.summary["log_likelihood"]))]

    @property
    def one_se(self) -> Setting:
        """The simplest setting that is within one standard error of the best.

        Simplest: fewest factors; among those, the largest penalty; then the largest c; then Poisson noise.
        """
        return judge(self.summary).simplest

    @property
    def judgement(self) -> Judgement:
        """The conclusion for every parameter, with the reasons."""
        notes = list(self.about.get("notes", ()))
        if self.not_tried:
            notes.append(f"Not tried: K = {joined([*map(str, self.not_tried)])}.")
        n_samples, of_all = self.scores.shape[2], self.about["n_samples"]
        if n_samples < of_all:
            notes.append(f"Fitted to {n_samples:,} random samples of {of_all:,}: rare factors need them all.")
        return judge(self.summary, holdout=self.about["holdout"], notes=notes)

    def __repr__(self) -> str:
        return f"<Selection among {plural(len(self.settings), 'setting')}, best {self.best}>"

    def __str__(self) -> str:
        highest = self.summary["log_likelihood"].max()
        lines = [
            f"{plural(len(self.settings), 'setting')}, {plural(self.scores.shape[1], 'fold')}, "
            f"{self.about['holdout']} held out",
            f"best: {self.best} (held-out log-likelihood {highest:,.0f} per fold)",
            f"simplest within one standard error: {self.one_se}",
        ]
        lines += [self.judgement.headline, *self.judgement.reasons]
        missed = int(np.count_nonzero(~self.numbers["converged"]))
        if missed:
            n_fits = self.numbers["converged"].size
            lines.append(f"{missed} of {n_fits} fits have not converged: raise max_iter")
        return "\n".join(lines)

    @classmethod
    def load(cls, path: archive.StrPath) -> Selection:
        """Read what `select(..., resume=path)` wrote, finished or not."""
        done = read_done(path)
        return cls.of(Grid.of(**done.about["grid"]), done.records, done.about, done.agreements)


def next_numbers(grid: Grid, summary: Mapping[str, np.ndarray] | None) -> list[int]:
    """Return the numbers of factors to fit next, given the table of those that were fitted; [] at the end.

    They grow until two in a row predict worse than the best by more than two standard errors. Then the gaps
    around the best and below the simplest within one standard error are halved.
    """
    values = grid.n_components
    if summary is None:
        return [values[0]]
    number, difference, error = (summary[name] for name in ("n_components", "difference", "se_difference"))
    best, tried = number[np.argmax(difference)], np.unique(number)

    def within(errors: float) -> list[bool]:
        close = difference >= -errors * np.nan_to_num(error)
        return [bool(close[number == one].any()) for one in tried]

    near, fallen = within(1.0), [not close for close in within(2.0)]
    gaps = [
        [value for value in values if below < value < above]
        for k, (below, above) in enumerate(pairwise(tried))
        if best in (below, above) or k + 1 == near.index(True)
    ]
    halves = [gap[len(gap) // 2] for gap in gaps if gap]
    larger = [value for value in values if value > tried[-1]]
    if not larger or sum(fallen[-2:]) == 2 or (fallen[-1] and halves):
        return halves
    doubled = [value for value in larger if value <= 2 * tried[-1]]
    return doubled[-1:] if doubled and len(values) > FEW else larger[:1]


def in_every_fold(grid: Grid, records: Sequence[ScoredFit], n_folds: int) -> list[Setting]:
    """Return the settings that were fitted in every fold."""
    done = {(record.setting, record.fold) for record in records}
    return [one for one in grid if all((one, fold) in done for fold in range(n_folds))]


def _lost(fitted: Array, settings: Sequence[Setting], about: Mapping[str, Any]) -> Array:
    """Return how much less likely the fitted counts are than with the best c and as many parameters."""
    fits_sizes = about.get("settings", {}).get("size_factors") == "fit"  # at finite c only
    groups = [(one.n_components, one.l1, one.noise, fits_sizes and math.isfinite(one.c)) for one in settings]
    lost = np.empty_like(fitted)
    for group in set(groups):
        own = [row for row, other in enumerate(groups) if other == group]
        best = fitted[own].sum(axis=2).argmax(axis=0)
        lost[own] = np.take_along_axis(fitted[own], best[None, :, None], axis=0) - fitted[own]
    return lost


def _deviation(values: Array) -> Array:
    return values.std(axis=1, ddof=1) if values.shape[1] > 1 else np.full(len(values), np.nan)


# ---------- what is done, in a file


@dataclass(eq=False)
class Done:
    """The part of a selection that is done."""

    records: list[ScoredFit]
    agreements: dict[Setting, Array]  # similarity of fits with different seeds
    fits: dict[Job, Fit]  # that others start from, or are compared with
    about: dict[str, Any]


def write_done(path: archive.StrPath, done: Done) -> None:
    """Write everything done so far, atomically."""
    parts: dict[str, list[Any]] = {
        "records": done.records,
        "agreements": [{"setting": one, "between": between} for one, between in done.agreements.items()],
        "fits": [{**job._asdict(), "fit": fit} for job, fit in done.fits.items()],
    }
    tree = {
        name: archive.to_tree({str(k): one for k, one in enumerate(part)}) for name, part in parts.items()
    }
    archive.write_archive(path, *archive.split_arrays({"kind": KIND, "about": done.about, **tree}))


def read_done(path: archive.StrPath) -> Done:
    """Read what `write_done` wrote."""
    arrays, metadata = archive.read_archive(path, kind=KIND)
    with archive.making_whole(f"{os.fspath(path)} holds a selection", "start again"):
        tree = archive.join_arrays(arrays, metadata)
        records, agreements, fits = (tree[name].values() for name in ("records", "agreements", "fits"))
        jobs = [Job(one["part"], archive.from_tree(Setting, one["setting"]), one["seed"]) for one in fits]
        return Done(
            [archive.from_tree(ScoredFit, one) for one in records],
            {archive.from_tree(Setting, one["setting"]): one["between"] for one in agreements},
            {job: Fit.from_parts({}, one["fit"]) for job, one in zip(jobs, fits, strict=True)},
            tree["about"],
        )
