"""What the data say about c, K, penalty and noise: one judgement for all faces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.fitting.keys import c_name
from log1pnmf.fitting.settings import Settings

from .grid import Setting

__all__ = ["Judgement", "judge"]

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

    Parameters
    ----------
    summary : mapping of str to array
        Columns as in `log1pnmf.analysis.Selection.summary`.
    holdout : {"counts", "samples"}
        What was held out.
    note : str, optional
        One more reason.

    Returns
    -------
    Judgement

    Examples
    --------
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
        """Give the best of some rows, and how many standard errors it is behind the best of all."""
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
    """Say at which end of the values tried the best one is; some ends are those of what is possible."""
    if name == "noise":
        return None
    natural = {"n_components": 1.0, "c": math.inf, "l1": 0.0}[name]
    if best == natural:
        return None
    return "largest" if best == tried[-1] else "smallest" if best == tried[0] else None


def _stability(table: _Table) -> tuple[bool, tuple[str, ...]]:
    """Say whether other seeds find the same factors, and whether fewer factors are clearly more stable."""
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
