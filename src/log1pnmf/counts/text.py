"""Tables as text (.csv and .tsv, with or without names), and texts whose words are counted."""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import re
import warnings
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.checks import plural, require
from log1pnmf._common.safe_files import TEXT, BadFileError, MemoryLimit, open_packed

from .counts import Counts
from .features import repeated

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


def in_categories(labels: np.ndarray, order: Iterable[str]) -> Any:
    """Return labels as a pandas Categorical with categories in this order, others, such as "NA", last."""
    pandas = require("pandas", purpose="labels in an order")
    return pandas.Categorical(labels, list(dict.fromkeys([*order, *np.unique(labels).tolist()])))


Names = NDArray[np.object_]
Fractions = Literal["refuse", "allow"]
ENTRY = 24  # bytes that an entry takes while it is checked and compressed, besides those that were read
SAMPLE_OR_FEATURE = 64  # bytes that a row or column takes, also an empty one


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
        dropped = ", ".join(sorted(self.sample_columns))
        note = (f"transposed: columns {dropped} were dropped",) if dropped else ()
        return RawTable(
            self.matrix.T, self.feature_names, self.sample_names, notes=(*self.notes, *note), hint=self.hint
        )


@dataclass(frozen=True, eq=False)
class CountTable:
    """Checked counts, samples x features, and what else their file contains.

    Parameters
    ----------
    counts : Counts
        With `sample_names` and `feature_names` where the file has them.
    sample_columns : dict of str to array
        Labels of the samples (the columns of AnnData's obs); categories are a pandas Categorical.
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
    sample_columns: Mapping[str, Any] = field(default_factory=dict)
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

    def labels(self, column: str) -> Any:
        """Labels of the samples, by the name of their column.

        Parameters
        ----------
        column : str
            Name of the column.

        Raises
        ------
        BadFileError
            Where there is no such column; it names those that are there.
        """
        if column not in self.sample_columns:
            known = ", ".join(map(repr, self.sample_columns)) or "none"
            raise BadFileError(f"{self.source} has no sample column {column!r}; choose one of: {known}")
        return self.sample_columns[column]


def checked(raw: RawTable, *, source: str, kind: str, limit: MemoryLimit, fractions: Fractions) -> CountTable:
    """Return a table of counts, after a check of what a reader found."""
    if fractions not in ("refuse", "allow"):
        raise ValueError(f"fractions must be 'refuse' or 'allow', got {fractions!r}")
    shape: tuple[int, ...] = getattr(raw.matrix, "shape", ())
    if len(shape) != 2:
        raise BadFileError(f"{source} must hold a table with rows and columns, got an array of shape {shape}")
    if 0 in shape:
        raise BadFileError(
            f"{source} is empty: {shape[0]} samples x {shape[1]} features; use a file with counts"
        )
    # before memory is allocated for as many rows and columns as the file announces
    limit.check(SAMPLE_OR_FEATURE * sum(shape) + ENTRY * _n_entries(raw.matrix))
    samples = _names(raw.sample_names, shape[0], f"{source}: samples")
    features = _names(raw.feature_names, shape[1], f"{source}: features")
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
                f"{source}: {what}: it seems normalised or log-transformed, not counted; {raw.hint}, "
                "or allow fractions (--allow-fractions) where they are expected counts"
            )
        notes.append(str(warning.message))
    if features is not None and (twice := repeated(features)):
        raise BadFileError(
            f"{source} has {plural(len(twice), 'feature name that occurs', 'feature names that occur')} "
            f"more than once (first {twice[0]!r}); make them unique (AnnData: adata.var_names_make_unique())"
        )
    if samples is not None and (twice := repeated(samples)):
        notes.append(
            f"{plural(len(twice), 'sample name occurs', 'sample names occur')} more than once "
            f"(first {twice[0]!r}); samples stay in the order of the file"
        )
    named = replace(counts, sample_names=samples, feature_names=features)
    return CountTable(named, raw.sample_columns, source, kind, tuple(notes))


def _n_entries(matrix: Any) -> int:
    """Return how many entries are stored, or are not zero."""
    if isinstance(matrix, np.ndarray):
        return int(np.count_nonzero(matrix)) if matrix.dtype.kind in "biufc" else matrix.size
    return int(matrix.data.size) if sparse.issparse(matrix) else math.prod(matrix.shape)


def _names(given: Sequence[Any] | None, n: int, what: str) -> Names | None:
    if given is None:
        return None
    if len(given) != n:
        raise BadFileError(f"{what} are {n}, but there are {len(given)} names; the file is incomplete")
    return np.array([str(name) for name in given], dtype=object)


# ---------- tables as text: .csv and .tsv, with or without names

# first cell of a header under which there are names, even where they are numbers
INDEX_HEADER = re.compile(
    r"|unnamed: 0|index|ids?|names?|samples?|cells?|barcodes?|genes?|features?|rownames|doc(ument)?"
    r"|(cell|sample|gene)_id",
    re.IGNORECASE,
)
LARGEST_CELL = 1 << 20
HEAD = 50  # rows from which the layout is found
CHARACTER = 60  # bytes that a character takes while a line is split or words are counted, at most


@contextmanager
def text_file(path: Path, limit: MemoryLimit) -> Iterator[TextIO]:
    """Open a text file, packed with gzip or not; a mark of byte order is skipped, other files are refused."""
    try:
        with io.TextIOWrapper(open_packed(path, limit), encoding="utf-8-sig", newline="") as file:
            yield file
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadFileError(f"{path} is not text in UTF-8 ({error}); save it as such") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadFileError(f"{path} is damaged ({error}); get another copy of it") from error


def rows_of(
    path: Path,
    limit: MemoryLimit,
    *,
    keep: float = 0,
    delimiter: str | None = None,
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL,
) -> Iterator[list[str]]:
    """Yield the rows that are not empty, of which the first `keep` must fit in memory together."""
    read = 0

    def counted(lines: Iterable[str]) -> Iterator[str]:
        nonlocal read
        for line in lines:
            read += len(line)
            limit.check(CHARACTER * read)
            yield line

    csv.field_size_limit(LARGEST_CELL)
    with text_file(path, limit) as file:
        longest = limit.size // CHARACTER + 2  # longer lines are certain to be refused
        lines = counted(iter(partial(file.readline, longest), ""))
        first = next((line for line in lines if line.strip()), "")
        if "\0" in first:
            raise BadFileError(f"{path} holds binary data, not text; is it another kind of file?")
        given = csv.reader(
            chain([first], lines), delimiter=delimiter or _delimiter(path, first), quoting=quoting
        )
        for number, row in enumerate(given):
            read = read if number < keep else 0
            if row:
                yield row


def _delimiter(path: Path, line: str) -> str:
    if path.name.removesuffix(".gz").lower().endswith(".csv"):
        return max(",;\t", key=line.count)
    return "\t" if "\t" in line or not set(",; ") & set(line) else max(",; ", key=line.count)


def read_text(path: Path, limit: MemoryLimit) -> RawTable:
    """Read a table of numbers, and find out where names are.

    The first line holds the names of the features where one of its cells is not a number; the first column
    those of the samples where one of its cells is not, or where its header has such a name. Columns without a
    single number are labels of the samples.
    """
    rows = rows_of(path, limit, keep=HEAD)
    head = list(islice(rows, HEAD))
    if not head:
        raise BadFileError(f"{path} is empty; use a file with counts")
    layout = _Layout(path, head)
    return layout.read(chain(head[layout.header :], rows), limit)


class _Layout:
    """Where the names, labels and counts of a table are."""

    def __init__(self, path: Path, head: Sequence[Sequence[str]]) -> None:
        self.path = path
        body = head[1:]
        self.width = width = len(body[0]) if body else len(head[0])
        shifted = bool(body) and len(head[0]) == width - 1  # as R writes tables: no cell above the row names
        names = [plain_cell(cell) for cell in (["", *head[0]] if shifted else head[0])]
        self.header = int(shifted or _is_header(head[0], body))
        self.names = names if self.header else None
        if self.header and len(names) != width:
            raise BadFileError(
                f"{path} has {len(names)} names in its first line, but {width} cells in the next; "
                "the file is incomplete, or has another delimiter"
            )
        named = bool(self.header and INDEX_HEADER.fullmatch(names[0].strip()))
        self.index = int(named or not all(_is_number(row[0]) for row in (body if self.header else head)))
        self.labels = [
            j
            for j in range(self.index, width)
            if body and self.header and not any(len(row) <= j or _is_number(row[j]) for row in body)
        ]
        self.columns = [j for j in range(self.index, width) if j not in self.labels]

    def read(self, rows: Iterable[Sequence[str]], limit: MemoryLimit) -> RawTable:
        texts: dict[int, list[str]] = {j: [] for j in (*range(self.index), *self.labels)}
        indices, values, indptr = array("i"), array("d"), array("q", [0])
        size = 0
        for number, row in enumerate(rows, start=1 + self.header):
            if len(row) != self.width:
                raise BadFileError(
                    f"{self.path} has {len(row)} cells in row {number}, but {self.width} in the first; "
                    "the file is incomplete"
                )
            cells = [row[j] for j in self.columns] if self.labels else row[self.index :]
            try:
                numbers = np.fromiter(map(float, cells), np.float64, len(cells))
                if "_" in "".join(cells):  # Python reads 1_1 as 11
                    raise ValueError
            except ValueError:
                raise BadFileError(self._not_a_number(number, row)) from None
            filled = np.flatnonzero(numbers)  # NaN is not zero: it is found later
            indices.frombytes(filled.astype(np.int32).tobytes())
            values.frombytes(numbers[filled].tobytes())
            indptr.append(len(indices))
            for j, column in texts.items():
                column.append(plain_cell(row[j]))
                size += TEXT + len(row[j])
            limit.check(size + 8 * len(indptr) + 24 * len(indices))
        matrix = sparse.csr_array(
            (np.frombuffer(values), np.frombuffer(indices, np.int32), np.frombuffer(indptr, np.int64)),
            shape=(len(indptr) - 1, len(self.columns)),
        )
        names = self.names or []
        return RawTable(
            matrix,
            texts[0] if self.index else None,
            [names[j] for j in self.columns] if names else None,
            {names[j]: limit.text_array(texts[j]) for j in self.labels},
            self._notes(),
        )

    def _not_a_number(self, number: int, row: Sequence[str]) -> str:
        j = next(j for j in self.columns if not _is_number(row[j]))
        where = f" ({self.names[j]})" if self.names else ""
        return (
            f"{self.path} has {row[j]!r} in row {number}, column {j + 1}{where}, which is not a number; "
            "correct it, or write 0 where nothing was counted"
        )

    def _notes(self) -> tuple[str, ...]:
        read_as = (
            f"first line read as {'feature names' if self.header else 'counts: there are no feature names'}",
            f"first column read as {'sample names' if self.index else 'counts: there are no sample names'}",
        )
        labels = ", ".join(self.names[j] for j in self.labels) if self.names else ""
        return (*read_as, f"read as labels, not counts: {labels}") if labels else read_as


def _is_header(line: Sequence[str], body: Sequence[Sequence[str]]) -> bool:
    """Return whether a line has names of features, not counts: words beyond the first cell."""
    if not all(map(_is_number, line[1:])):
        return True
    if _is_number(line[0]):
        return False
    return bool(INDEX_HEADER.fullmatch(line[0].strip())) or all(_is_number(row[0]) for row in body)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python's own way of writing 1_000


# ---------- words counted in texts: a folder of .txt files, or a column of a table

TEXT_FORMATS = ("texts", "column of texts")


def holds_texts(folder: Path) -> bool:
    """Return whether a folder, or a folder in it, has .txt files, and the folder is not one of 10x."""
    return not any(folder.glob("*.mtx*")) and next(_files(folder), None) is not None


def read_folder(folder: Path, stop_words: str | None, limit: MemoryLimit) -> RawTable:
    """Count the words of all .txt files of a folder; names of folders in it are labels."""
    files, texts = sorted(_files(folder)), []
    for path in files:
        texts.append(_content(path, limit))
        limit.claim(CHARACTER * len(texts[-1]))
    names = [re.sub(r"\.txt(\.gz)?$", "", path.relative_to(folder).as_posix(), flags=re.I) for path in files]
    folders = [path.parent.relative_to(folder).as_posix() for path in files]
    labels = {"folder": limit.text_array(folders)} if set(folders) != {"."} else {}
    return replace(_count_words(folder, texts, stop_words), sample_names=names, sample_columns=labels)


def read_column(path: Path, column: str, stop_words: str | None, limit: MemoryLimit) -> RawTable:
    """Count the words in a column of a table; the other columns are labels, or names of the documents."""
    table = [[plain_cell(cell) for cell in row] for row in rows_of(path, limit, keep=math.inf)]
    if len(table) < 2:
        raise BadFileError(f"{path} has no rows below its first line; use a table with a column of texts")
    header, *rows = table
    if column not in header:
        raise BadFileError(f"{path} has no column {column!r}; choose one of those there: {', '.join(header)}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise BadFileError(
                f"{path} has {len(row)} cells in row {number}, but {len(header)} in the first; texts with a "
                "comma or a line break need quotation marks around them"
            )
    columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
    texts = columns.pop(column)
    names = columns.pop(header[0], None) if INDEX_HEADER.fullmatch(header[0].strip()) else None
    labels = {name: limit.text_array(values) for name, values in columns.items()}
    return replace(_count_words(path, texts, stop_words), sample_names=names, sample_columns=labels)


def _count_words(path: Path, texts: Sequence[str], stop_words: str | None) -> RawTable:
    """Count words with scikit-learn's CountVectorizer."""
    from sklearn.feature_extraction.text import CountVectorizer  # only texts need it

    left_out: list[str] | str | None = stop_words
    if stop_words not in (None, "english"):
        listed = Path(stop_words)
        if not listed.is_file():
            raise BadFileError(
                f"stop words must be 'english' or a file with one word in a line, got {stop_words!r}"
            )
        lines = _content(listed, MemoryLimit(listed)).splitlines()
        left_out = [line.strip().lower() for line in lines if line.strip()]
    counter = CountVectorizer(stop_words=left_out)
    try:
        matrix = counter.fit_transform(texts)
    except ValueError as error:
        raise BadFileError(
            f"{path} has no words that are counted ({error}); is it the right folder or column?"
        ) from error
    note = "words of two or more letters or digits, in lower case, as CountVectorizer counts them"
    note += f", without stop words ({stop_words})" if stop_words else ""
    return RawTable(matrix, feature_names=counter.get_feature_names_out().tolist(), notes=(note,))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the texts of a folder; hidden ones are left out."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.lower().endswith((".txt", ".txt.gz")) and not name.startswith("."):
                yield Path(place) / name


def _content(path: Path, limit: MemoryLimit) -> str:
    with text_file(path, limit) as file:
        return file.read()
