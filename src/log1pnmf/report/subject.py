"""What a report is about: fits and what the user says of their data, checked once at the door."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.analysis.arrange import MISSING, Groups, as_numbers
from log1pnmf.analysis.decomposition import Decomposition, obs_column
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.as_fit import as_fit
from log1pnmf.fitting.fit import Fit

from .words import keep_together

__all__ = ["MOST_GROUPS", "Subject", "fold_groups", "quarters"]

Array = NDArray[np.float64]
Names = NDArray[np.object_]

MOST_GROUPS = 40
"""Groups that are shown; the smallest beyond these are put together."""

CUT = "its groups are four ranges with as many samples each"
"""What is said of numbers that were given as groups."""


@dataclass(frozen=True, eq=False)
class Subject:
    """Fits of one data set, with names and labels; make one with `Subject.of`.

    Parameters
    ----------
    fits : tuple of Fit
        To the same samples and features.
    shown : tuple of Decomposition
        The same, as they are shown.
    counts : Counts or None
        What they were fitted to, where it was given.
    title : str
    sample_names : ndarray of str
    groups : Groups or None
        Of the samples.
    group_name : str
        What the groups are.
    n_groups : int
        How many there were before small ones were put together.
    source, command : str or None
        Where the data come from; what was typed.
    filters, notes : tuple of str
        What was left out of the data; anything else to be said.
    date : str
        When it was made.
    n_jobs : int, optional
        Threads.
    """

    fits: tuple[Fit, ...]
    shown: tuple[Decomposition, ...]
    counts: Counts | None
    title: str
    sample_names: Names
    groups: Groups | None
    group_name: str
    n_groups: int
    source: str | None
    command: str | None
    filters: tuple[str, ...]
    notes: tuple[str, ...]
    date: str
    n_jobs: int | None = None

    @classmethod
    def of(
        cls,
        fits: Any,
        *,
        counts: Any = None,
        title: str | None = None,
        sample_names: Any = None,
        feature_names: Any = None,
        groupby: Any = None,
        group_name: str | None = None,
        source: str | None = None,
        command: str | None = None,
        filters: Sequence[str] = (),
        notes: Sequence[str] = (),
        date: str | None = None,
        n_jobs: int | None = None,
    ) -> Subject:
        """Check what `log1pnmf.report.write_report` was given; its parameters are explained there."""
        given = _fits(fits)
        n, m = given[0].data.n_samples, given[0].data.n_features
        checked = None if counts is None else Counts.from_any(counts)
        if checked is not None and checked.shape != (n, m):
            raise ValueError(
                f"counts has shape {checked.shape}, but the fits are of {(n, m)}; "
                "pass the counts they were fitted to"
            )
        if feature_names is None and checked is not None:
            feature_names = checked.feature_names
        if sample_names is None and checked is not None:
            sample_names = checked.sample_names
        if sample_names is None and given[0].sample_names is None:
            sample_names = [f"sample {i}" for i in range(n)]
        shown = tuple(
            Decomposition.of(fit, feature_names=feature_names, sample_names=sample_names) for fit in given
        )
        groups = obs_column(fits, groupby) if isinstance(groupby, str) else groupby
        if isinstance(groupby, str) and group_name is None:
            group_name = groupby
        scale = None if groups is None else as_numbers(groups)
        if scale is not None:
            groups = quarters(scale)
            notes = [*_texts("notes", notes), f"{group_name or 'group'} holds numbers: {CUT}."]
        grouped = None if groups is None else Groups.of(groups)
        if grouped is not None and len(grouped) != n:
            raise ValueError(f"groupby must have one label for each of the {n} samples, got {len(grouped)}")
        names = shown[0].sample_names
        assert names is not None  # they were just given
        return cls(
            fits=given,
            shown=shown,
            counts=checked,
            title=str(title or "Factors of a count matrix"),
            sample_names=names,
            groups=None if grouped is None else fold_groups(grouped, MOST_GROUPS),
            group_name=str(group_name or "group"),
            n_groups=0 if grouped is None else len(grouped.names),
            source=source,
            command=command,
            filters=_texts("filters", filters),
            notes=_texts("notes", notes),
            date=str(date or datetime.date.today().isoformat()),
            n_jobs=n_jobs,
        )

    @property
    def compared(self) -> tuple[int, int] | None:
        """Positions of the first fits with finite c and with c = inf, where there are both."""
        finite = [i for i, one in enumerate(self.shown) if math.isfinite(one.c)]
        additive = [i for i, one in enumerate(self.shown) if math.isinf(one.c)]
        return (finite[0], additive[0]) if finite and additive else None

    @property
    def labels(self) -> list[str]:
        """Name of every fit: its c, and its number of factors where that tells fits apart."""
        labels = [one.name for one in self.shown]
        if len(set(labels)) < len(labels):
            labels = [f"{one.name}, K = {one.n_components}" for one in self.shown]
        if len(set(labels)) < len(labels):
            labels = [f"{label} (fit {i})" for i, label in enumerate(labels, start=1)]
        return [keep_together(label) for label in labels]


def fold_groups(groups: Groups, most: int) -> Groups:
    """Put the smallest groups together where there are too many to be shown.

    Parameters
    ----------
    groups : Groups
    most : int
        Groups of the result at most.

    Returns
    -------
    Groups
        The largest in their order, then the one of all others.

    Examples
    --------
    >>> folded = fold_groups(Groups.of(["a", "b", "b", "c", "d", "d"]), 3)
    >>> folded.names, folded.codes.tolist()
    (('b', 'd', '2 other groups'), [2, 0, 0, 2, 1, 1])
    """
    if len(groups.names) <= most:
        return groups
    kept = np.sort(np.argsort(-groups.sizes, kind="stable")[: most - 1])
    position = np.full(len(groups.names), most - 1, dtype=np.intp)
    position[kept] = np.arange(most - 1)
    names = [groups.names[code] for code in kept]
    return Groups(position[groups.codes], (*names, f"{len(groups.names) - len(kept)} other groups"))


def quarters(values: Array) -> Groups:
    """Cut numbers into four ranges that hold as many samples each.

    Parameters
    ----------
    values : ndarray of shape (n,)
        NaN where a number is missing.

    Returns
    -------
    Groups
        Named by their ends, smallest first.

    Examples
    --------
    >>> quarters(np.arange(100.0)).names
    ('0 to 24.8', '24.8 to 49.5', '49.5 to 74.2', '74.2 to 99')
    """
    ends = np.quantile(values[~np.isnan(values)], np.linspace(0.0, 1.0, 5))
    names = [*(f"{low:.3g} to {high:.3g}" for low, high in pairwise(ends.tolist())), MISSING]
    codes = np.where(np.isnan(values), 4, np.searchsorted(ends[1:-1], values, side="right"))
    used, packed = np.unique(codes, return_inverse=True)
    return Groups(packed.astype(np.intp), tuple(names[code] for code in used))


def _fits(given: Any) -> tuple[Fit, ...]:
    several = given if isinstance(given, list | tuple) else (given,)
    if not several:
        raise ValueError("there are no fits: pass at least one")
    fits = tuple(as_fit(one) for one in several)
    shapes = {(fit.data.n_samples, fit.data.n_features) for fit in fits}
    if len(shapes) > 1:
        raise ValueError(f"fits must be of the same data, got shapes {sorted(shapes)}")
    return fits


def _texts(what: str, values: Any) -> tuple[str, ...]:
    if isinstance(values, str):
        raise TypeError(f"{what} must be a sequence of strings, got one string; pass [{values!r}]")
    return tuple(str(value) for value in values)
