"""What a selection returns: a table of held-out log-likelihoods, two choices, and what the data say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.archive import StrPath, read_archive, write_archive
from log1pnmf._common.checks import plural
from log1pnmf.fitting.fit import Fit, c_name
from log1pnmf.fitting.settings import Settings

from .grid import Grid, Job, ScoredFit, Setting, stability_with_error

STABLE = 0.9
"""Stability from which fits with different seeds have the same factors."""

CLEARLY_LESS = 0.1
"""Loss of stability from fewer factors to more that counts, where it is beyond two standard errors too."""

SHORT = {"n_components": "K", "c": "c", "l1": "l1", "noise": "noise"}


@dataclass(frozen=True)
class Judgement:
    """What a comparison of settings says.

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


def judge(summary: Mapping[str, Any], *, holdout: str = "counts", note: str | None = None) -> Judgement:
    """Judge a table of settings.

    >>> table = {"c": [1.0] * 3, "n_components": [2, 3, 4], "l1": [0.0] * 3}
    >>> table |= {"difference": [-90.0, 0.0, -40.0], "se_difference": [9.0, 0.0, 8.0]}
    >>> print(judge(table))
    Suggested: c=1, K=3.
    K = 3 predicts held-out counts best; K = 4 is 5.0 standard errors behind.
    """
    table = _Table(summary)
    verdicts = [_verdict(table, name, holdout) for name in SHORT if len(np.unique(table.columns[name])) > 1]
    contradiction, about_stability = _stability(table)
    reasons = tuple(verdict.reason for verdict in verdicts) + about_stability
    reasons += () if note is None else (note,)
    unsaid = [SHORT[verdict.name] for verdict in verdicts if verdict.open]
    tied = [SHORT[verdict.name] for verdict in verdicts if verdict.tied]
    if unsaid:
        where = "is at the end" if len(unsaid) == 1 else "are at the ends"
        headline = f"The data do not decide {_and(unsaid)}: the best {where} of the values tried."
    elif contradiction:
        headline = "The data do not decide: likelihood and stability contradict each other."
    elif tied:
        headline = (
            f"Suggested: {table.simplest}, the simplest; the data do not decide which {_and(tied)} is best."
        )
    else:
        headline = f"Suggested: {table.simplest}."
    chosen = None if unsaid or contradiction else table.simplest
    return Judgement(table.simplest, chosen, chosen is not None and not tied, headline, reasons)


class _Table:
    """The settings with what is known about each, as arrays."""

    def __init__(self, summary: Mapping[str, Any]) -> None:
        self.columns: dict[str, NDArray[Any]] = {
            name: np.asarray(summary[name], dtype=str if name == "noise" else np.float64) for name in summary
        }
        self.columns.setdefault("noise", np.full(len(self.columns["c"]), Settings.noise))
        difference, error = self.columns["difference"], self.columns["se_difference"]
        self.difference, self.error = difference, error
        self.best = int(np.argmax(difference))
        # without an error (one sample) there is only the best
        self.near = difference >= -np.nan_to_num(error)
        near = [self.setting(row) for row in np.flatnonzero(self.near)]
        self.simplest = min(near, key=lambda one: one.complexity)

    def setting(self, row: Any) -> Setting:
        c, number, l1, noise = (self.columns[name][row] for name in ("c", "n_components", "l1", "noise"))
        return Setting(float(c), int(number), float(l1), str(noise))

    def behind(self, rows: NDArray[np.bool_]) -> tuple[int, float]:
        """Return the best of some rows, and how many standard errors it is behind the best of all."""
        row = int(np.flatnonzero(rows)[np.argmax(self.difference[rows])])
        error = self.error[row]
        return row, -self.difference[row] / error if error > 0.0 else math.inf


@dataclass(frozen=True)
class _Verdict:
    """What is said about one parameter."""

    name: str
    reason: str
    open: bool = False
    tied: bool = False


def _verdict(table: _Table, name: str, holdout: str) -> _Verdict:
    """Judge one parameter by the settings that predict as well as the best."""
    values, short = table.columns[name], SHORT[name]
    best, tried = values[table.best], np.unique(values)
    near = np.unique(values[table.near])
    what = f"held-out {holdout}"
    if name == "c" and holdout == "counts" and table.setting(table.best).noise == "nb":
        what = "training and held-out counts"
    if len(near) > 1:
        end = _end(name, best, tried)
        also = "" if end is None else f"; {_value(name, best)} is the {end} tried"
        reason = f"{short} = {_and([_value(name, one) for one in near])} predict {what} equally "
        return _Verdict(name, f"{reason}well, within one standard error{also}.", tied=True)
    end = _end(name, best, tried)
    if end is not None:
        more = {"largest": "larger", "smallest": "smaller"}[end]
        reason = f"{short} = {_value(name, best)} predicts best, the {end} tried: try {more} ones."
        poisson = bool((table.columns["noise"] == "poisson").all())
        if name == "n_components" and end == "largest" and holdout == "counts" and poisson:
            reason += " Overdispersed counts have the same effect: compare noise='nb' as well."
        return _Verdict(name, reason, open=True)
    row, errors = table.behind(values != best)
    reason = f"{short} = {_value(name, best)} predicts {what} best; "
    behind = f"{errors:,.1f} standard errors" if math.isfinite(errors) else "far"
    return _Verdict(name, f"{reason}{short} = {_value(name, values[row])} is {behind} behind.")


def _end(name: str, best: Any, tried: NDArray[Any]) -> str | None:
    """Describe at which end of the values tried the best one is; some ends are those of what is possible."""
    if name == "noise":
        return None
    natural = {"n_components": 1.0, "c": math.inf, "l1": 0.0}[name]
    if best == natural:
        return None
    return "largest" if best == tried[-1] else "smallest" if best == tried[0] else None


def _stability(table: _Table) -> tuple[bool, tuple[str, ...]]:
    """Return whether other seeds find the same factors, and whether fewer factors are clearly more stable."""
    chosen, columns = table.simplest, table.columns
    if "stability" not in columns or chosen.n_components == 1:
        return False, ()
    same = (columns["c"] == chosen.c) & (columns["l1"] == chosen.l1) & (columns["noise"] == chosen.noise)
    (row,) = np.flatnonzero(same & (columns["n_components"] == chosen.n_components))
    stable, error = columns["stability"], np.nan_to_num(columns["se_stability"])
    here = stable[row]
    if np.isnan(here):
        return False, ()
    if here >= STABLE:
        return False, (f"Fits with other seeds find the same factors (stability {here:.2f}).",)
    fewer = same & (columns["n_components"] > 1) & (columns["n_components"] < chosen.n_components)
    margin = np.maximum(CLEARLY_LESS, 2.0 * np.hypot(error, error[row]))
    more_stable = fewer & (stable - here > margin)
    text = f"Some factors change with the seed (stability {here:.2f} at K = "
    if not more_stable.any():
        return False, (f"{text}{chosen.n_components}): compare several, or raise n_init.",)
    other = int(np.flatnonzero(more_stable)[-1])
    text += f"{chosen.n_components}, {stable[other]:.2f} at K = {int(columns['n_components'][other])})."
    return True, (f"{text} Use fewer factors to interpret them, more to predict.",)


def _value(name: str, value: Any) -> str:
    if name == "noise":
        return str(value)
    return c_name(value) if name == "c" else f"{value:g}"


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


Array = NDArray[np.float64]

KIND = "selection"
NUMBERS = ("n_iter", "converged", "seconds")


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """Held-out log-likelihood of every setting of a grid.

    Make one with `log1pnmf.analysis.select.select`.

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
    Raw scores of two settings rise and fall together from fold to fold and from sample to sample: a sample
    with many counts has a low log-likelihood under both. Their standard errors are therefore much too large
    to compare settings with. What is compared is the *difference* to the best setting on the same counts.
    Its standard error is that of a sum over samples, ``sqrt(n / (n - 1) * sum_i (d_i - mean(d))**2)``, where
    ``d_i`` is sample i's difference, averaged over folds: test parts of different samples are independent,
    and there are many more samples than folds (three folds leave two degrees of freedom). `se_folds` is
    the spread between folds.

    **Values of c with negative binomial noise.** Most of the scatter of a dispersed count is in both of its
    parts. Given the training part, the test part says little about the mean, and so about c. Values of c with
    the same number of factors have the same number of parameters, so the training counts may be compared
    directly: the score of a setting is lowered by the difference between the training log-likelihoods of the
    c that fits best and its own. That c keeps its score, so numbers of factors and kinds
    of noise are compared by held-out counts alone. Fitted size factors are parameters that c = inf does not
    have; then it is compared with the others by held-out counts alone.
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
        found = {(record.setting, record.fold): record for record in records}
        n_folds = int(about["n_folds"])
        whole = [one for one in grid if all((one, fold) in found for fold in range(n_folds))]
        if not whole:
            raise ValueError("no setting has been fitted in every fold yet; continue with resume=")
        rows = [[found[setting, fold] for fold in range(n_folds)] for setting in whole]
        n_seeds = int(about.get("n_seeds", 0))
        unknown = np.full((n_seeds, n_seeds), np.nan)
        held, fitted = (
            np.array([[getattr(record, name) for record in row] for row in rows])
            for name in ("by_sample", "fitted")
        )
        return cls(
            settings=tuple(whole),
            scores=held - _lost(fitted, [_alike(setting, about) for setting in whole]),
            numbers={
                name: np.array([[getattr(record, name) for record in row] for row in rows])
                for name in NUMBERS
            },
            about=dict(about),
            agreement=np.array([agreements.get(setting, unknown) for setting in whole]),
        )

    @property
    def is_whole(self) -> bool:
        """Whether all requested settings are present, with their stability if requested."""
        grid = self.about["grid"]
        missing = bool(self.about["n_seeds"]) and bool(np.isnan(self.summary["stability"]).any())
        return len(self.settings) == math.prod(map(len, grid.values())) and not missing

    @property
    def table(self) -> dict[str, np.ndarray]:
        """One row per setting and fold; ``pandas.DataFrame(table)`` shows it.

        Columns: `c`, `n_components`, `l1`, `noise`, `fold`, `log_likelihood` (exact, of the test part; see
        `scores`), `n_iter`, `converged`, `seconds` (CPU).
        """
        n_folds = self.scores.shape[1]
        columns = {name: np.repeat(values, n_folds) for name, values in self._settings_columns().items()}
        columns["fold"] = np.tile(np.arange(n_folds), len(self.settings))
        columns["log_likelihood"] = self.scores.sum(axis=2).ravel()
        return {**columns, **{name: values.ravel() for name, values in self.numbers.items()}}

    @cached_property
    def summary(self) -> dict[str, np.ndarray]:
        """One row per setting; ``pandas.DataFrame(summary)`` shows it.

        Columns: `c`, `n_components`, `l1`, `noise`; `log_likelihood`, mean over folds, and its raw standard
        error `se` over folds (NaN for one fold); `difference` to the best setting, its standard error
        `se_difference` over samples and `se_folds` over folds; `within_one_se` of the best; `stability` over
        seeds (1: all fits have the same factors) and its standard error `se_stability`, NaN where unknown.
        """
        by_fold = self.scores.sum(axis=2)
        means = by_fold.mean(axis=1)
        best = int(np.argmax(means))
        by_sample = self.scores.mean(axis=1)
        spread = _standard_error_of_sum(by_sample - by_sample[best])
        difference = means - means[best]
        return {
            **self._settings_columns(),
            "log_likelihood": means,
            "se": _standard_error_of_mean(by_fold),
            "difference": difference,
            "se_difference": spread,
            "se_folds": _standard_error_of_mean(by_fold - by_fold[best]),
            "within_one_se": difference >= -spread,
            **dict(zip(("stability", "se_stability"), self._stability(), strict=True)),
        }

    def _stability(self) -> tuple[Array, Array]:
        known = np.array([stability_with_error(between) for between in self.agreement])
        return known[:, 0], known[:, 1]

    def _settings_columns(self) -> dict[str, np.ndarray]:
        return {
            name: np.array([getattr(setting, name) for setting in self.settings])
            for name in ("c", "n_components", "l1", "noise")
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
        within = self.summary["within_one_se"]
        near = [setting for setting, is_near in zip(self.settings, within, strict=True) if is_near]
        return min(near, key=lambda setting: setting.complexity)

    @property
    def judgement(self) -> Judgement:
        """What the data say about every parameter, with the reasons."""
        return judge(self.summary, holdout=self.about["holdout"], note=self.about.get("note"))

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
    def load(cls, path: StrPath) -> Selection:
        """Read what `select(..., resume=path)` wrote, finished or not.

        Parameters
        ----------
        path : str or PathLike
            File that `save` or ``resume=`` wrote.

        Returns
        -------
        Selection
        """
        records, agreements, _, about = read_records(path)
        return cls.of(Grid.of(**about["grid"]), records, about, agreements)


def write_records(
    path: StrPath,
    records: Sequence[ScoredFit],
    agreements: Mapping[Setting, Array],
    fits: Mapping[Job, Fit],
    about: Mapping[str, Any],
) -> None:
    """Write everything done so far, atomically, with the fits that others start from or are compared with."""
    plain = [
        {"fold": r.fold, **r.setting.parameters} | {name: getattr(r, name) for name in NUMBERS}
        for r in records
    ]
    arrays = {
        "by_sample": np.array([record.by_sample for record in records]),
        "fitted": np.array([record.fitted for record in records]),
        "agreement": np.array(list(agreements.values())),
    }
    seeds = [setting.parameters for setting in agreements]
    kept = []
    for number, (job, fit) in enumerate(fits.items()):
        own, metadata = fit.to_parts()
        arrays |= {f"{number}.{name}": array for name, array in own.items()}
        kept.append({"part": job.part, "setting": job.setting.parameters, "seed": job.seed, "fit": metadata})
    write_archive(
        path, arrays, {"kind": KIND, "about": about, "records": plain, "seeds": seeds, "fits": kept}
    )


def read_records(
    path: StrPath,
) -> tuple[list[ScoredFit], dict[Setting, Array], dict[Job, Fit], dict[str, Any]]:
    """Read what `write_records` wrote."""
    arrays, metadata = read_archive(path, kind=KIND)
    try:
        records = [
            ScoredFit(
                fold=one["fold"],
                setting=Setting(one["c"], one["n_components"], one["l1"], one["noise"]),
                by_sample=by_sample,
                fitted=fitted,
                **{name: one[name] for name in NUMBERS},
            )
            for one, by_sample, fitted in zip(
                metadata["records"], arrays["by_sample"], arrays["fitted"], strict=True
            )
        ]
        agreements = {
            Setting(**one): between
            for one, between in zip(metadata["seeds"], arrays["agreement"], strict=True)
        }
        fits = {}
        for number, one in enumerate(metadata["fits"]):
            start = f"{number}."
            own = {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}
            job = Job(one["part"], Setting(**one["setting"]), one["seed"])
            fits[job] = Fit.from_parts(own, one["fit"])
        return records, agreements, fits, dict(metadata["about"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds a selection that is incomplete ({error!r}); start again") from error


def _alike(setting: Setting, about: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return settings with as many parameters from others; size factors are fitted at finite c only."""
    sized = about.get("settings", {}).get("size_factors") == "fit" and math.isfinite(setting.c)
    return setting.n_components, setting.l1, setting.noise, sized


def _lost(fitted: Array, groups: Sequence[tuple[Any, ...]]) -> Array:
    """Return how much less likely the fitted counts are than with the best setting of the same group."""
    lost = np.empty_like(fitted)
    for group in set(groups):
        own = [row for row, other in enumerate(groups) if other == group]
        best = fitted[own].sum(axis=2).argmax(axis=0)
        lost[own] = np.take_along_axis(fitted[own], best[None, :, None], axis=0) - fitted[own]
    return lost


def _standard_error_of_mean(values: Array) -> Array:
    n = values.shape[1]
    return values.std(axis=1, ddof=1) / math.sqrt(n) if n > 1 else np.full(len(values), np.nan)


def _standard_error_of_sum(values: Array) -> Array:
    n = values.shape[1]
    return values.std(axis=1, ddof=1) * math.sqrt(n) if n > 1 else np.full(len(values), np.nan)
