"""Counts from a file for a command: read, filtered, and said what was done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, get_type_hints

from log1pnmf._common.checks import plural
from log1pnmf.cli import options as common
from log1pnmf.counts.read import Filtered, filter_table, read_table
from log1pnmf.counts.text import CountTable
from log1pnmf.fitting.fit_counts import Request
from log1pnmf.fitting.settings import Settings

from .console import Screen

# ---------- options that belong together: fields of a dataclass, which commands take as one parameter

LIBRARY_NAMES = {"seed": "random_state", "jobs": "n_jobs"}
"""Options that go by other names in the library."""


@dataclass(frozen=True)
class SolverOptions:
    """Options of every command that fits models."""

    likelihood: common.Likelihood = Settings.likelihood
    size_factors: common.SizeFactors = Settings.size_factors
    l1: common.L1 = Settings.l1
    seed: common.Seed = 0
    max_iter: common.MaxIter = Settings.max_iter
    tol: common.Tol = Settings.tol
    jobs: common.Jobs = Request.n_jobs
    others: common.Others = None

    def parameters(self, n_components: int, **more: Any) -> dict[str, Any]:
        """Return checked parameters of a fit, by their names in the library."""
        own = {LIBRARY_NAMES.get(name, name): value for name, value in vars(self).items() if name != "others"}
        own |= common.parse_others(self.others or ())
        return common.checked_parameters(n_components=n_components, **own, **more)


@dataclass(frozen=True)
class FitOptions(SolverOptions):
    """Options of commands that fit one model for every c."""

    noise: common.Noise = Settings.noise


def unfolded(command: Callable[..., int]) -> Callable[..., int]:
    """Show the fields of parameters that are dataclasses as options, and put them together for the command.

    >>> @dataclass
    ... class Size:
    ...     width: int = 1
    ...     height: int = 2
    >>> def area(*, size: Size, times: int = 1) -> int:
    ...     return times * size.width * size.height
    >>> area.__annotations__ = {"size": Size, "times": int}
    >>> signature(unfolded(area))
    <Signature (*, width: int = 1, height: int = 2, times: int = 1) -> int>
    >>> unfolded(area)(width=3, height=4, times=1)
    12
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    shown: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        if not is_dataclass(kind):
            shown.append(parameter.replace(annotation=kind))
            continue
        groups[parameter.name], own = kind, get_type_hints(kind, include_extras=True)
        shown += [
            Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=own[one.name])
            for one in fields(kind)
        ]

    @wraps(command)
    def run(**given: Any) -> int:
        for name, kind in groups.items():
            given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
        return command(**given)

    run.__signature__ = Signature(shown, return_annotation=int)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in shown}
    return run


# ---------- counts from a file for a command: read, filtered, and said what was done


@dataclass(frozen=True)
class Reading:
    """How a file is to be read and what is left out of it."""

    layer: common.Layer = None
    transpose: common.Transpose = False
    allow_fractions: common.AllowFractions = False
    min_samples: common.MinSamples = 0
    min_counts: common.MinCounts = 0
    min_features: common.MinFeatures = 0
    # see `log1pnmf.counts.read.read_table` and `log1pnmf.counts.read.filter_table`
    max_memory: common.MaxMemory = None
    text: common.Text = None
    stop_words: common.StopWords = None

    def table(self, path: Path) -> CountTable:
        """Read a file."""
        fractions = "allow" if self.allow_fractions else "refuse"
        return read_table(
            path,
            layer=self.layer,
            transpose=self.transpose,
            fractions=fractions,  # type: ignore[arg-type]
            max_memory=self.max_memory,
            text=self.text,
            stop_words=self.stop_words,
        )

    def filtered(self, table: CountTable) -> Filtered:
        """Leave out what is to be left out."""
        return filter_table(
            table, min_samples=self.min_samples, min_counts=self.min_counts, min_features=self.min_features
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the options by name."""
        return asdict(self)


def read_filtered(path: Path, reading: Reading, screen: Screen) -> Filtered:
    """Read and filter, and say so."""
    table = reading.table(path)
    screen.say((path.name, "bold"), f": {describe(table)} ({table.format})")
    screen.notes(table.notes)
    filtered = reading.filtered(table)
    screen.notes(filtered.report, kind="filter")
    if filtered.table.shape != table.shape:
        screen.notes([f"left: {describe(filtered.table)}"], kind="filter")
    empty = _empty(filtered.table)
    if empty:
        screen.notes([f"{empty} without any count: zero in the result"])
    return filtered


def describe(table: CountTable) -> str:
    """Describe in words how large a table is."""
    (n, m), counts = table.shape, table.counts
    return f"{n:,} samples x {m:,} features, {table.fraction:.1%} not zero, {counts.total:,.0f} counts"


def _empty(table: CountTable) -> str:
    parts = ((table.counts.n_empty_rows, "sample"), (table.counts.n_empty_columns, "feature"))
    return " and ".join(plural(n, what) for n, what in parts if n)
