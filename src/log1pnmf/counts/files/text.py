"""Tables as text: .csv and .tsv, with or without names."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from scipy import sparse

from log1pnmf._common.untrusted import BadFileError, Budget, open_packed, read_number

from .cells import plain_cell
from .table import RawTable

__all__ = ["cost", "open_text", "read_text", "rows_of"]

DELIMITERS = ",;\t"
INDEX_HEADERS = frozenset(
    [
        "index",
        "id",
        "ids",
        "name",
        "names",
        "sample",
        "samples",
        "cell",
        "cells",
        "barcode",
        "barcodes",
        "gene",
        "genes",
        "feature",
        "features",
        "rownames",
        "cell_id",
        "sample_id",
        "gene_id",
        "document",
        "doc",
    ]
) | {"", "unnamed: 0"}
"""First cells of a header under which there are names, even where they are numbers."""

LARGEST_CELL = 1 << 20
LOOKED_AT = 50
"""Lines from which the layout is told."""
CHARACTER = 40
"""Bytes that a character of a line can take while the line is taken apart: cells of two take most."""
ROWS = 4096
"""Rows that are put together at a time."""
ROW, ENTRY = 32, 24
"""Bytes that a row and an entry of it take, until all are in one matrix."""


def open_text(path: Path, budget: Budget) -> TextIO:
    """Open a text file, packed with gzip or not; a mark of byte order is skipped."""
    return io.TextIOWrapper(open_packed(path, budget), encoding="utf-8-sig", newline="")


def cost(row: Sequence[str]) -> int:
    """Bytes that a row of cells takes where it is kept."""
    return 64 + sys.getsizeof(row) + sum(map(sys.getsizeof, row))


def rows_of(file: TextIO, budget: Budget, *, first: str = "", **layout: Any) -> Iterator[list[str]]:
    """Go through the rows that are not empty; a row that takes too much is refused before it is taken apart.

    Parameters
    ----------
    first : str
        A line that was taken from the file before.
    **layout
        For `csv.reader`.
    """
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        line = first or _line(file, budget)
        while line:
            read += len(line)
            budget.check(CHARACTER * read)
            yield line
            line = _line(file, budget)

    csv.field_size_limit(LARGEST_CELL)
    for row in csv.reader(lines(), **layout):
        read = 0
        if row:
            yield row


def _line(file: TextIO, budget: Budget) -> str:
    """Read the next line, or as much of it as is certain to be refused."""
    return file.readline(max(2, budget.left // CHARACTER + 2))


def read_text(path: Path, budget: Budget) -> RawTable:
    """Read a table of numbers, and tell by itself where names are.

    The first line holds the names of the features where one of its cells is not a number; the first column
    those of the samples where one of its cells is not, or where its header says so. Columns without a single
    number are labels of the samples.
    """
    with open_text(path, budget) as file:
        try:
            return _parse(path, file, budget)
        except UnicodeDecodeError as error:
            raise BadFileError(f"{path} is not text in UTF-8 ({error}); save it as such") from error
        except csv.Error as error:
            raise BadFileError(
                f"{path} is not a table of text ({error}); is it another kind of file?"
            ) from error


def _parse(path: Path, file: TextIO, budget: Budget) -> RawTable:
    while (first := _line(file, budget)) and not first.strip():
        pass
    if "\0" in first:
        raise BadFileError(f"{path} holds binary data, not text; is it another kind of file?")
    rows = rows_of(file, budget, first=first, delimiter=_delimiter(path, first))
    head = []
    for _, row in zip(range(LOOKED_AT), rows, strict=False):
        budget.charge(cost(row))
        head.append(row)
    if not head:
        raise BadFileError(f"{path} is empty; use a file with counts")
    layout = _Layout(path, head)
    return layout.read(chain(head[layout.header :], rows), budget)


def _delimiter(path: Path, line: str) -> str:
    if path.name.removesuffix(".gz").lower().endswith(".csv"):
        return max(DELIMITERS, key=line.count)
    return "\t" if "\t" in line or ("," not in line and " " not in line) else max(", ", key=line.count)


class _Entries:
    """Rows of numbers, kept sparse and in large pieces: many small arrays would take far more memory."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._lengths = [np.zeros(1, dtype=np.int64)]
        self._pieces = [(np.zeros(0, dtype=np.int32), np.zeros(0))]
        self._rows: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, values: np.ndarray) -> None:
        """Keep a row."""
        filled = np.flatnonzero(values)  # NaN is not zero: it is found later
        self._budget.charge(ROW + ENTRY * len(filled))
        self._rows.append((filled.astype(np.int32), values[filled]))
        if len(self._rows) == ROWS:
            self._join()

    def _join(self) -> None:
        if self._rows:
            self._lengths.append(np.array([len(filled) for filled, _ in self._rows], dtype=np.int64))
            self._pieces.append(_concatenated(self._rows))
            self._rows.clear()

    def matrix(self, n_columns: int) -> sparse.csr_array:
        """Put all rows together."""
        self._join()
        indices, values = _concatenated(self._pieces)
        indptr = np.cumsum(np.concatenate(self._lengths))
        return sparse.csr_array((values, indices, indptr), shape=(len(indptr) - 1, n_columns))


def _concatenated(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    indices, values = zip(*parts, strict=True)
    return np.concatenate(indices), np.concatenate(values)


class _Layout:
    """Where the names, labels and counts of a table are."""

    def __init__(self, path: Path, head: Sequence[Sequence[str]]) -> None:
        self.path = path
        body = head[1:]
        width = len(body[0]) if body else len(head[0])
        shifted = bool(body) and len(head[0]) == width - 1  # as R writes tables: no cell above the row names
        names = [plain_cell(cell) for cell in (["", *head[0]] if shifted else head[0])]
        self.header = int(shifted or _is_header(head[0], body))
        looked = body if self.header else head
        self.index = int(
            any(not _is_number(row[0]) for row in looked if row)
            or bool(self.header and names[0].strip().lower() in INDEX_HEADERS)
        )
        self.width = width
        self.names = names if self.header else None
        texts = [
            j
            for j in range(self.index, width)
            if looked and all(len(row) > j and not _is_number(row[j]) for row in looked)
        ]
        self.labels = texts if self.header else []
        self.columns = [j for j in range(self.index, width) if j not in self.labels]
        if self.header and len(names) != width:
            raise BadFileError(
                f"{path} has {len(names)} names in its first line, but {width} cells in the next; "
                "the file is incomplete, or has another delimiter"
            )

    def read(self, rows: Iterator[Sequence[str]], budget: Budget) -> RawTable:
        samples: list[str] = []
        labels: list[list[str]] = [[] for _ in self.labels]
        entries = _Entries(budget)
        together = self.columns == list(range(self.index, self.width))
        for number, row in enumerate(rows, start=1 + self.header):
            if len(row) != self.width:
                raise BadFileError(
                    f"{self.path} has {len(row)} cells in row {number}, but {self.width} in the first; "
                    "the file is incomplete"
                )
            try:
                cells = row[self.index :] if together else [row[j] for j in self.columns]
                values = np.fromiter(map(float, cells), np.float64, len(cells))
                if "_" in "".join(cells):  # Python reads 1_1 as 11
                    raise ValueError
            except ValueError:
                raise BadFileError(self._not_a_number(number, row)) from None
            entries.add(values)
            kept = [plain_cell(cell) for cell in (*row[: self.index], *(row[j] for j in self.labels))]
            budget.charge(cost(kept))
            samples += kept[: self.index]
            for label, cell in zip(labels, kept[self.index :], strict=True):
                label.append(cell)
        return RawTable(
            entries.matrix(len(self.columns)),
            samples if self.index else None,
            [self.names[j] for j in self.columns] if self.names else None,
            {self._label(j): budget.text(label) for j, label in zip(self.labels, labels, strict=True)},
            self._notes(),
        )

    def _label(self, j: int) -> str:
        assert self.names is not None  # there are no labels without a header
        return self.names[j]

    def _not_a_number(self, number: int, row: Sequence[str]) -> str:
        j = next(j for j in self.columns if not _is_number(row[j]))
        where = f" ({self.names[j]})" if self.names else ""
        return (
            f"{self.path} has {row[j]!r} in row {number}, column {j + 1}{where}, which is not a number; "
            "correct it, or write 0 where nothing was counted"
        )

    def _notes(self) -> tuple[str, ...]:
        notes = [
            f"first line read as {'feature names' if self.header else 'counts: there are no feature names'}",
            f"first column read as {'sample names' if self.index else 'counts: there are no sample names'}",
        ]
        if self.labels:
            notes.append(f"read as labels, not counts: {', '.join(self._label(j) for j in self.labels)}")
        return tuple(notes)


def _is_header(line: Sequence[str], body: Sequence[Sequence[str]]) -> bool:
    """Tell names of features from counts: words beyond the first cell, which may be the name of a sample."""
    if not all(map(_is_number, line[1:])):
        return True
    if _is_number(line[0]):
        return False
    return line[0].strip().lower() in INDEX_HEADERS or all(_is_number(row[0]) for row in body)


def _is_number(cell: str) -> bool:
    try:
        read_number(cell)
    except ValueError:
        return False
    return True
