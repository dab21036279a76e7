"""Words counted in texts: a folder of .txt files, or a column of a table."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from log1pnmf._common.untrusted import BadFileError, Budget, check_regular, open_packed

from .cells import plain_cell
from .table import RawTable
from .text import INDEX_HEADERS, cost, open_text, rows_of

__all__ = ["TEXT_FORMATS", "Words", "holds_texts", "read_column", "read_folder"]

TEXT_FORMATS = ("texts", "column of texts")
ENDINGS = (".txt", ".txt.gz")
CHARACTER = 60
"""Bytes that a character of a text can take while its words are counted; most take far less."""


@dataclass(frozen=True)
class Words:
    """How words are counted: scikit-learn's CountVectorizer.

    Parameters
    ----------
    column : str, optional
        Column of a table with the texts.
    stop_words : str, optional
        "english": those that scikit-learn knows; otherwise a file with one word in a line.
    """

    column: str | None = None
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

        budget.charge(CHARACTER * sum(map(len, texts)))
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
    """Count the words of all .txt files of a folder; names of folders in it are labels.

    Parameters
    ----------
    words : Words
        Without a column.
    """
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
            first = file.readline(max(2, budget.left // CHARACTER))
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
