"""Tables as text: .csv and .tsv, with or without names."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.checks import plural
from log1pnmf._common.safe_files import TEXT, BadFileError, Budget, check_regular, open_packed, read_number

from .counts import Counts

# ---------- text in cells of tables that spreadsheets would take for a formula and run

FORMULA = re.compile(r"'*[=+\-@\t\r]")
MARK = "'"


def safe_cell(value: Any) -> Any:
    """Put a mark before text that begins like a formula; numbers, also as text, stay as they are.

    >>> safe_cell("=1+1"), safe_cell("-3.5"), safe_cell(-3.5), safe_cell("CD4+")
    ("'=1+1", '-3.5', -3.5, 'CD4+')
    """
    if not isinstance(value, str) or not FORMULA.match(value):
        return value
    try:
        float(value)
    except ValueError:
        return MARK + value
    return value


def plain_cell(cell: str) -> str:
    """Take the mark away again.

    >>> [plain_cell(safe_cell(text)) for text in ("=1+1", "'=1+1", "5'-end")]
    ['=1+1', "'=1+1", "5'-end"]
    """
    return cell[1:] if cell.startswith(MARK) and FORMULA.match(cell) else cell


# ---------- counts with the names, labels and history that came with them in a file

Names = NDArray[np.object_]
Fractions = Literal["refuse", "allow"]
ENTRY = 40
"""Bytes that an entry takes while it is checked and compressed, besides those that were read."""
SAMPLE_OR_FEATURE = 64
"""Bytes that a row or column takes, also an empty one."""


@dataclass(frozen=True, eq=False)
class RawTable:
    """What a reader found in a file, before anything was checked."""

    matrix: Any  # samples x features
    sample_names: Sequence[Any] | None = None
    feature_names: Sequence[Any] | None = None
    sample_columns: Mapping[str, np.ndarray] = field(default_factory=dict)  # labels of the samples
    notes: tuple[str, ...] = ()  # what the reader decided by itself
    hint: str = "pass raw counts"  # what to do where the values turn out not to be counts

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
    """Check what a reader found."""
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


# ---------- tables as text: .csv and .tsv, with or without names

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
ROW, ENTRY_OF_TEXT = 32, 24
"""Bytes that a row and an entry of it take, until all are in one matrix."""


def open_text(path: Path, budget: Budget) -> TextIO:
    """Open a text file, packed with gzip or not; a mark of byte order is skipped."""
    return io.TextIOWrapper(open_packed(path, budget), encoding="utf-8-sig", newline="")


def cost(row: Sequence[str]) -> int:
    """Bytes that a row of cells takes where it is kept."""
    return 64 + sys.getsizeof(row) + sum(map(sys.getsizeof, row))


def rows_of(file: TextIO, budget: Budget, *, first: str = "", **layout: Any) -> Iterator[list[str]]:
    """Yield the rows that are not empty; one that needs too much memory is refused first."""
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
        self._budget.charge(ROW + ENTRY_OF_TEXT * len(filled))
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
    """Return names of features apart from counts: words beyond the first cell of a row."""
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


# ---------- words counted in texts: a folder of .txt files, or a column of a table

TEXT_FORMATS = ("texts", "column of texts")
ENDINGS = (".txt", ".txt.gz")
CHARACTER_OF_DOCUMENT = 60
"""Bytes that a character of a text can take while its words are counted; most take far less."""


@dataclass(frozen=True)
class Words:
    """How words are counted: scikit-learn's CountVectorizer."""

    column: str | None = None  # column of a table with the texts
    # "english": those that scikit-learn knows; otherwise a file with one word in a line
    stop_words: str | None = None

    def table(
        self,
        texts: Sequence[str],
        names: Sequence[str] | None,
        labels: dict[str, np.ndarray],
        source: Path,
        budget: Budget,
    ) -> RawTable:
        """Count the words of texts."""
        from sklearn.feature_extraction.text import CountVectorizer  # only texts need it

        budget.charge(CHARACTER_OF_DOCUMENT * sum(map(len, texts)))
        counter = CountVectorizer(stop_words=self._stop_words())
        try:
            matrix = counter.fit_transform(texts)
        except ValueError as error:
            raise BadFileError(
                f"{source} has no words that are counted ({error}); is it the right folder or column?"
            ) from error
        left_out = f", without stop words ({self.stop_words})" if self.stop_words else ""
        note = (
            f"words of two or more letters or digits, in lower case, as CountVectorizer counts them{left_out}"
        )
        return RawTable(matrix, names, counter.get_feature_names_out().tolist(), labels, (note,))

    def _stop_words(self) -> list[str] | str | None:
        if self.stop_words is None or self.stop_words == "english":
            return self.stop_words
        path = Path(self.stop_words)
        if not path.is_file():
            raise BadFileError(
                f"stop words must be 'english' or a file with one word in a line, got {self.stop_words!r}"
            )
        return [line.strip().lower() for line in _decoded(path, Budget(path)).splitlines() if line.strip()]


def holds_texts(folder: Path) -> bool:
    """Whether a folder, or a folder in it, has .txt files, and the folder is not one of 10x."""
    return not any(folder.glob("*.mtx*")) and next(_files(folder), None) is not None


def read_folder(folder: Path, words: Words, budget: Budget) -> RawTable:
    """Count the words of all .txt files of a folder; names of folders in it are labels."""
    if words.column is not None:
        raise BadFileError(
            f"{folder} is a folder of texts, which has no columns; leave --text {words.column} out"
        )
    files = sorted(_files(folder))
    texts = []
    for path in files:
        check_regular(path)
        texts.append(_decoded(path, budget))
    names = [_name(path, folder) for path in files]
    folders = [path.parent.relative_to(folder).as_posix() for path in files]
    labels = {"folder": budget.text(folders)} if set(folders) != {"."} else {}
    return words.table(texts, names, labels, folder, budget)


def read_column(path: Path, words: Words, budget: Budget) -> RawTable:
    """Count the words in a column of a table; the other columns are labels, or names of the documents."""
    with open_text(path, budget) as file:
        try:
            first = file.readline(max(2, budget.left // CHARACTER_OF_DOCUMENT))
            delimiter = max(",;\t", key=first.count)
            kept = _kept(rows_of(file, budget, first=first, delimiter=delimiter), budget)
        except (UnicodeDecodeError, csv.Error) as error:
            raise BadFileError(
                f"{path} is not a table of text in UTF-8 ({error}); save it as such"
            ) from error
    if len(kept) < 2:
        raise BadFileError(f"{path} has no rows below its first line; use a table with a column of texts")
    header, *rows = kept
    if words.column not in header:
        raise BadFileError(
            f"{path} has no column {words.column!r}; choose one of those there: {', '.join(header)}"
        )
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise BadFileError(
                f"{path} has {len(row)} cells in row {number}, but {len(header)} in the first; texts with a "
                "comma or a line break need quotation marks around them"
            )
    columns = {name: [row[j] for row in rows] for j, name in enumerate(header)}
    texts = columns.pop(words.column or "")
    index = header[0] if header[0].strip().lower() in INDEX_HEADERS and header[0] in columns else None
    names = columns.pop(index) if index is not None else None
    labels = {name: budget.text(values) for name, values in columns.items()}
    return words.table(texts, names, labels, path, budget)


def _kept(rows: Iterator[list[str]], budget: Budget) -> list[list[str]]:
    """Keep rows of cells."""
    kept = []
    for row in rows:
        budget.charge(cost(row))
        kept.append([plain_cell(cell) for cell in row])
    return kept


def _files(folder: Path) -> Iterator[Path]:
    """Go through the texts of a folder; hidden ones are not looked at."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield Path(place) / name


def _name(path: Path, folder: Path) -> str:
    name = path.relative_to(folder).as_posix()
    return name[: -len(next(ending for ending in reversed(ENDINGS) if name.lower().endswith(ending)))]


def _decoded(path: Path, budget: Budget) -> str:
    with open_packed(path, budget) as file:
        content = file.read(budget.left + 1)
    budget.charge(len(content))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFileError(f"{path} is not text in UTF-8 ({error}); save it as such") from error
