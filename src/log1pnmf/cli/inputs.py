"""Counts from a file for a command: read, filtered, and said what was done."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from log1pnmf._common.words import plural
from log1pnmf.counts.files import CountTable, Filtered, filter_table, read_table

from . import options as common
from .console import Screen

__all__ = ["Reading", "describe", "read_filtered"]


@dataclass(frozen=True)
class Reading:
    """How a file is to be read and what is left out of it.

    Parameters
    ----------
    max_memory, text, stop_words : str, optional
        See `log1pnmf.counts.files.read_table` and `log1pnmf.counts.files.filter_table`.
    """

    layer: common.Layer = None
    transpose: common.Transpose = False
    allow_fractions: common.AllowFractions = False
    min_samples: common.MinSamples = 0
    min_counts: common.MinCounts = 0
    min_features: common.MinFeatures = 0
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
        """Give the options by name."""
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
    """Say in words how large a table is."""
    (n, m), counts = table.shape, table.counts
    return f"{n:,} samples x {m:,} features, {table.fraction:.1%} not zero, {counts.total:,.0f} counts"


def _empty(table: CountTable) -> str:
    parts = ((table.counts.n_empty_rows, "sample"), (table.counts.n_empty_columns, "feature"))
    return " and ".join(plural(n, what) for n, what in parts if n)
