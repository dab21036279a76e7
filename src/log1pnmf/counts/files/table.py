"""Counts with the names, labels and history that came with them in a file."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.untrusted import TEXT, BadFileError, Budget
from log1pnmf._common.words import plural
from log1pnmf.counts.counts import Counts

__all__ = ["BadFileError", "CountTable", "Fractions", "RawTable", "checked"]

Names = NDArray[np.object_]
Fractions = Literal["refuse", "allow"]
ENTRY = 40
"""Bytes that an entry takes while it is checked and compressed, besides those that were read."""
SAMPLE_OR_FEATURE = 64
"""Bytes that a row or column takes, also an empty one."""


@dataclass(frozen=True, eq=False)
class RawTable:
    """What a reader found in a file, before anything was checked.

    Parameters
    ----------
    matrix : array or sparse matrix
        Samples x features.
    sample_columns : dict of str to ndarray
        Labels of the samples.
    notes : tuple of str
        What the reader decided by itself.
    hint : str
        What to do where the values turn out not to be counts.
    """

    matrix: Any
    sample_names: Sequence[Any] | None = None
    feature_names: Sequence[Any] | None = None
    sample_columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    hint: str = "pass raw counts"

    def transposed(self) -> RawTable:
        """Exchange samples and features; labels of samples would be labels of features and are dropped."""
        dropped = sorted(self.sample_columns)
        note = (f"transposed: columns {', '.join(dropped)} were dropped",) if dropped else ()
        return RawTable(
            self.matrix.T,
            self.feature_names,
            self.sample_names,
            notes=(*self.notes, *note),
            hint=self.hint,
        )


@dataclass(frozen=True, eq=False)
class CountTable:
    """Checked counts, samples x features, and what a file says about them.

    Parameters
    ----------
    counts : Counts
        With `sample_names` and `feature_names` where the file has them.
    sample_columns : dict of str to ndarray
        Labels of the samples (the columns of AnnData's obs).
    source : str
        Where it comes from.
    format : str
        How it was stored there.
    notes : tuple of str
        What was decided while reading; always worth showing.

    Examples
    --------
    >>> table = CountTable(Counts.from_any([[1, 0], [2, 5]]))
    >>> table.shape, table.sample_names is None
    ((2, 2), True)
    """

    counts: Counts
    sample_columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    source: str = ""
    format: str = ""
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and features."""
        return self.counts.shape

    @property
    def sample_names(self) -> Names | None:
        """Names of the samples, where there are any."""
        return self.counts.sample_names

    @property
    def feature_names(self) -> Names | None:
        """Names of the features, where there are any."""
        return self.counts.feature_names

    @property
    def fraction(self) -> float:
        """Part of the entries that are not zero."""
        n, m = self.shape
        return self.counts.nnz / (n * m)

    def labels(self, column: str) -> np.ndarray:
        """Labels of the samples, by the name of their column.

        Parameters
        ----------
        column : str
            Name of the column.

        Returns
        -------
        ndarray

        Raises
        ------
        BadFileError
            Where there is no such column; it names those that are there.
        """
        if column not in self.sample_columns:
            known = ", ".join(map(repr, self.sample_columns)) or "none"
            raise BadFileError(
                f"{self.source} has no sample column {column!r}; choose one of those there: {known}"
            )
        return self.sample_columns[column]


def checked(
    raw: RawTable,
    *,
    source: str,
    format: str,  # noqa: A002
    budget: Budget,
    fractions: Fractions = "refuse",
) -> CountTable:
    """Check what a reader found.

    Parameters
    ----------
    source, format : str
        Where it was found.
    budget : Budget
        Memory that the file may take.
    fractions : {"refuse", "allow"}
        What to do with values that are not whole numbers; "allow" makes them a note.

    Raises
    ------
    BadFileError
    """
    if fractions not in ("refuse", "allow"):
        raise ValueError(f"fractions must be 'refuse' or 'allow', got {fractions!r}")
    shape: tuple[int, ...] = getattr(raw.matrix, "shape", ())
    if len(shape) != 2:
        raise BadFileError(f"{source} must hold a table with rows and columns, got an array of shape {shape}")
    if 0 in shape:
        raise BadFileError(
            f"{source} is empty: {shape[0]} samples x {shape[1]} features; use a file with counts"
        )
    # Before memory is set aside for as many rows and columns as the file says there are.
    budget.charge(SAMPLE_OR_FEATURE * sum(shape))
    budget.charge(ENTRY * _entries(raw.matrix))
    samples = _names(raw.sample_names, shape[0], f"{source}: samples", budget)
    features = _names(raw.feature_names, shape[1], f"{source}: features", budget)
    notes = list(raw.notes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            counts = Counts.from_any(raw.matrix)
        except (TypeError, ValueError) as error:
            raise BadFileError(f"{source}: {error} ({raw.hint})") from error
    for warning in caught:
        if fractions == "refuse":
            what = str(warning.message).split(";")[0]
            raise BadFileError(
                f"{source}: {what}: it looks normalised or log-transformed, not counted; {raw.hint}, "
                "or allow fractions (--allow-fractions) where they are expected counts"
            )
        notes.append(str(warning.message))
    _check_unique(features, source)
    notes += _twice(samples)
    named = Counts(counts.by_row, counts._columns, samples, features)
    return CountTable(named, dict(raw.sample_columns), source, format, tuple(notes))


def _entries(matrix: Any) -> int:
    """Entries that are stored, or that are not zero."""
    if isinstance(matrix, np.ndarray):
        return int(np.count_nonzero(matrix)) if matrix.dtype.kind in "biufc" else matrix.size
    return int(matrix.data.size) if sparse.issparse(matrix) else math.prod(matrix.shape)


def _names(given: Sequence[Any] | None, n: int, what: str, budget: Budget) -> Names | None:
    if given is None:
        return None
    budget.charge(TEXT * len(given))
    if len(given) != n:
        raise BadFileError(f"{what} are {n}, but there are {len(given)} names; the file is incomplete")
    return np.array([str(name) for name in given], dtype=object)


def _check_unique(names: Names | None, source: str) -> None:
    twice = _repeated(names)
    if twice:
        raise BadFileError(
            f"{source} has {plural(len(twice), 'feature name that occurs', 'feature names that occur')} "
            f"more than once (first {twice[0]!r}); make them unique (AnnData: adata.var_names_make_unique())"
        )


def _twice(names: Names | None) -> list[str]:
    twice = _repeated(names)
    if not twice:
        return []
    return [
        f"{plural(len(twice), 'sample name occurs', 'sample names occur')} more than once "
        f"(first {twice[0]!r}); samples stay in the order of the file"
    ]


def _repeated(names: Names | None) -> list[str]:
    return [] if names is None else [name for name, n in Counter(names.tolist()).items() if n > 1]
