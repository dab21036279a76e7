"""One door for every kind of file: `read_table`."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

from log1pnmf._common.atomic import StrPath
from log1pnmf._common.untrusted import Budget, check_regular
from log1pnmf.counts.chunked.opening import parse_memory

from .annotated import read_anndata
from .arrays import read_npy, read_npz
from .documents import Words, holds_texts, read_column, read_folder
from .market import read_market, read_market_folder
from .table import BadFileError, CountTable, Fractions, RawTable, checked
from .tenx import read_tenx_h5
from .text import read_text

__all__ = ["ENDINGS", "format_of", "read_table"]

ENDINGS = {
    ".h5ad": "h5ad",
    ".zarr": "zarr",
    ".h5": "10x h5",
    ".mtx": "mtx",
    ".mtx.gz": "mtx",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "tsv",
    ".tsv.gz": "tsv",
    ".txt": "tsv",
    ".txt.gz": "tsv",
    ".npz": "npz",
    ".npy": "npy",
}
WITH_LAYERS = ("h5ad", "zarr", "10x h5")

READERS: dict[str, Callable[[Path, Budget], RawTable]] = {
    "mtx": read_market,
    "10x folder": read_market_folder,
    "csv": read_text,
    "tsv": read_text,
    "npz": read_npz,
    "npy": read_npy,
}


def format_of(path: StrPath) -> str:
    """Tell the format of a file from its name; a folder is a .zarr, one of .txt files, or a 10x folder.

    Raises
    ------
    BadFileError
        For unknown endings.

    Examples
    --------
    >>> format_of("counts.csv.gz")
    'csv'
    """
    place = Path(path)
    name = place.name.lower()
    for ending in sorted(ENDINGS, key=len, reverse=True):
        if name.endswith(ending) and name != ending:
            return ENDINGS[ending]
    if place.is_dir():
        return "zarr" if _is_zarr(place) else "texts" if holds_texts(place) else "10x folder"
    known = ", ".join(ENDINGS)
    raise BadFileError(
        f"{os.fspath(path)} has no ending that is known; use one of {known}, a 10x folder or a folder of "
        "texts (.txt)"
    )


def read_table(
    path: StrPath,
    *,
    layer: str | None = None,
    transpose: bool = False,
    fractions: Fractions = "refuse",
    max_memory: str | float | None = None,
    text: str | None = None,
    stop_words: str | None = None,
) -> CountTable:
    r"""Read a table of counts, samples x features, from a file of any known kind.

    Parameters
    ----------
    path : str or PathLike
        .h5ad, .zarr (AnnData), .h5 (10x), a folder with matrix.mtx (10x), .mtx, .csv, .tsv, .txt, .npz, .npy;
        text and .mtx also with .gz. 10x files are features x samples and are transposed. A folder of .txt
        files is a set of documents, whose words are counted; subfolders are labels ("folder").
    layer : str, optional
        AnnData: layer, "X" or "raw"; by default X, or layers["counts"] if X does not hold counts (a note says
        so). 10x .h5 with several genomes: the genome.
    transpose : bool
        Whether rows of the file are features.
    fractions : {"refuse", "allow"}
        What to do with values that are not whole numbers.
    max_memory : str or float, optional
        Memory that reading may use, such as "8GB" or a number of bytes. The default, 1 GiB or 200 times the
        size of the file, protects against malicious files; raise it only for files that you trust.
    text : str, optional
        Column of a .csv or .tsv with texts, one document per row, whose words are counted. The other columns
        are labels; a first column such as "id" or "name" contains the names of the documents.
    stop_words : str, optional
        Words to ignore in texts: "english", or a file with one word per line.

    Returns
    -------
    CountTable

    Raises
    ------
    FileNotFoundError
    BadFileError
        If the file is damaged, empty or does not contain counts. The message says what is wrong, where, and
        what to do.

    Examples
    --------
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "counts.csv")
    >>> with open(path, "w") as file:
    ...     _ = file.write("cell,a,b\nx,1,0\ny,2,5\n")
    >>> table = read_table(path)
    >>> table.shape, table.feature_names.tolist(), table.sample_names.tolist()
    ((2, 2), ['a', 'b'], ['x', 'y'])
    """
    place, name = Path(path), os.fspath(path)
    if not place.exists():
        raise FileNotFoundError(f"{name} does not exist; check the path (working folder: {Path.cwd()})")
    check_regular(place)
    kind = _kind(place, text, stop_words)
    if layer is not None and kind not in WITH_LAYERS:
        raise BadFileError(f"{name} is a {kind} file, which has no layers; leave layer {layer!r} out")
    _check_kind(place, kind)
    budget = Budget(place, None if max_memory is None else parse_memory(max_memory))
    try:
        raw = _read(place, kind, layer, Words(text, stop_words), budget)
    except (BadFileError, ImportError, PermissionError):
        raise
    except (EOFError, zlib.error, OSError, MemoryError) as error:
        raise BadFileError(
            f"{name} is truncated or damaged ({_short(error)}); get another copy of it"
        ) from error
    except Exception as error:  # readers of other packages raise whatever they meet
        raise BadFileError(f"{name} is not a {kind} file that can be read ({_short(error)})") from error
    raw = raw.transposed() if transpose else raw
    return checked(raw, source=name, format=kind, fractions=fractions, budget=budget)


def _kind(place: Path, text: str | None, stop_words: str | None) -> str:
    """Tell the format of a file, in which a column may hold texts."""
    kind = format_of(place)
    if text is not None and kind in ("csv", "tsv"):
        return "column of texts"
    if text is not None and kind != "texts":
        raise BadFileError(f"{place} is a {kind} file; a column of texts (--text) is one of a .csv or .tsv")
    if stop_words is not None and kind != "texts":
        raise BadFileError(f"{place} is a {kind} file; stop words are for texts (--text names their column)")
    return kind


def _read(place: Path, kind: str, layer: str | None, words: Words, budget: Budget) -> RawTable:
    if kind == "texts":
        return read_folder(place, words, budget)
    if kind == "column of texts":
        return read_column(place, words, budget)
    if kind in ("h5ad", "zarr"):
        return read_anndata(place, layer, budget)
    if kind == "10x h5":
        return read_tenx_h5(place, layer, budget)
    return READERS[kind](place, budget)


def _check_kind(place: Path, kind: str) -> None:
    folder = kind in ("zarr", "10x folder", "texts")
    if place.is_dir() and not folder:
        raise BadFileError(f"{place} is a folder, but a {kind} file was expected; name the file inside")
    if place.is_file() and kind == "zarr":
        raise BadFileError(f"{place} is a file, but .zarr is a folder; unpack it first")
    if place.is_file() and place.stat().st_size == 0:
        raise BadFileError(f"{place} is empty (0 bytes); get another copy of it")


def _is_zarr(place: Path) -> bool:
    return any((place / name).exists() for name in (".zgroup", "zarr.json"))


def _short(error: BaseException) -> str:
    """First line of what another package has to say."""
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0]
    return line if len(line) <= 200 else f"{line[:197]}..."
