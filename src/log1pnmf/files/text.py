"""Tables as text: .csv and .tsv, with or without names."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np
from scipy import sparse

from log1pnmf.untrusted import BadFileError, open_packed

from .cells import plain_cell
from .table import RawTable

__all__ = ["open_text", "read_text"]

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


def open_text(path: Path) -> TextIO:
    """Open a text file, packed with gzip or not; a mark of byte order is skipped."""
    return io.TextIOWrapper(open_packed(path), encoding="utf-8-sig", newline="")


def read_text(path: Path) -> RawTable:
    """Read a table of numbers, and tell by itself where names are.

    The first line holds the names of the features where one of its cells is not a number; the first column
    those of the samples where one of its cells is not, or where its header says so. Columns without a single
    number are labels of the samples.
    """
    with open_text(path) as file:
        try:
            return _parse(path, file)
        except UnicodeDecodeError as error:
            raise BadFileError(f"{path} is not text in UTF-8 ({error}); save it as such") from error
        except csv.Error as error:
            raise BadFileError(
                f"{path} is not a table of text ({error}); is it another kind of file?"
            ) from error


def _parse(path: Path, file: TextIO) -> RawTable:
    csv.field_size_limit(LARGEST_CELL)
    first = next((line for line in file if line.strip()), "")
    if "\0" in first:
        raise BadFileError(f"{path} holds binary data, not text; is it another kind of file?")
    delimiter = _delimiter(path, first)
    rows = (row for row in csv.reader(chain([first], file), delimiter=delimiter) if row)
    head = [row for _, row in zip(range(LOOKED_AT), rows, strict=False)]
    if not head:
        raise BadFileError(f"{path} is empty; use a file with counts")
    layout = _Layout(path, head)
    return layout.read(chain(head[layout.header :], rows))


def _delimiter(path: Path, line: str) -> str:
    if path.name.removesuffix(".gz").lower().endswith(".csv"):
        return max(DELIMITERS, key=line.count)
    return "\t" if "\t" in line or ("," not in line and " " not in line) else max(", ", key=line.count)


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
                "the file is not whole, or has another delimiter"
            )

    def read(self, rows: Iterator[Sequence[str]]) -> RawTable:
        samples: list[str] = []
        labels: list[list[str]] = [[] for _ in self.labels]
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        together = self.columns == list(range(self.index, self.width))
        for number, row in enumerate(rows, start=1 + self.header):
            if len(row) != self.width:
                raise BadFileError(
                    f"{self.path} has {len(row)} cells in row {number}, but {self.width} in the first; "
                    "the file is not whole"
                )
            try:
                cells = row[self.index :] if together else [row[j] for j in self.columns]
                values = np.fromiter(map(float, cells), np.float64, len(cells))
            except ValueError:
                raise BadFileError(self._not_a_number(number, row)) from None
            filled = np.flatnonzero(values)  # NaN is not zero: it is found later
            parts.append((filled.astype(np.int32), values[filled]))
            if self.index:
                samples.append(plain_cell(row[0]))
            for label, j in zip(labels, self.labels, strict=True):
                label.append(plain_cell(row[j]))
        return RawTable(
            self._matrix(parts),
            samples if self.index else None,
            [self.names[j] for j in self.columns] if self.names else None,
            {self._label(j): np.array(label) for j, label in zip(self.labels, labels, strict=True)},
            self._notes(),
        )

    def _matrix(self, parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> sparse.csr_array:
        indptr = np.cumsum([0, *(len(filled) for filled, _ in parts)], dtype=np.int64)
        shape = (len(parts), len(self.columns))
        if not parts:
            return sparse.csr_array(shape)
        indices, values = (np.concatenate(both) for both in zip(*parts, strict=True))
        return sparse.csr_array((values, indices, indptr), shape=shape)

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
        float(cell)
    except ValueError:
        return False
    return True
