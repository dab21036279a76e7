"""Tables of counts to files: `write_table`."""

from __future__ import annotations

import csv
import gzip
import io
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
import scipy
from scipy import sparse

from log1pnmf._common.archive import ENDING, StrPath, building, handled
from log1pnmf._common.checks import require
from log1pnmf._common.safe_files import BadFileError

from .read import COLUMN, EXPRESSION, element_io, format_of
from .text import CountTable, safe_cell

WRITABLE = (".h5ad", ".zarr", ".mtx", ".mtx.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".npz", ".npy")
ROWS_AT_ONCE = 256


def write_table(table: CountTable, path: StrPath, *, force: bool = False) -> tuple[str, ...]:
    """Write a table of counts in the format of the name's ending; return what the format cannot store.

    A name without an ending is a folder as 10x writes it.
    """
    kind = format_of(path) if Path(path).suffix else "10x folder"
    if kind not in WRITERS:
        raise BadFileError(f"{os.fspath(path)}: {kind} is only read, not written; use {', '.join(WRITABLE)}")
    with building(path, force=force) as temporary:
        WRITERS[kind](table, temporary)
    lost = []
    if kind in ("mtx", "npy") and (table.sample_names is not None or table.feature_names is not None):
        lost.append(f"names are not kept in a .{kind} file; a 10x folder (a name without ending) keeps them")
    if kind in ("mtx", "npy", "10x folder", "csv", "tsv") and table.sample_columns:
        names = ", ".join(table.sample_columns)
        lost.append(f"labels of the samples are not kept: {names}; .h5ad, .zarr and .npz keep them")
    return tuple(lost)


def whole_numbers(matrix: sparse.csr_array) -> sparse.csr_array:
    """Turn counts into integers where they are whole; int32 where that holds them."""
    values = matrix.data
    largest = float(values.max(initial=0.0))
    if largest >= 2**53 or not (values == np.rint(values)).all():
        return matrix
    return matrix.astype(np.int32 if largest < 2**31 else np.int64)


def _write_npz(table: CountTable, path: Path) -> None:
    matrix = whole_numbers(table.counts.to_scipy())
    arrays: dict[str, Any] = {"format": np.array(b"csr"), "shape": np.array(matrix.shape)}
    arrays |= {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
    names = {"sample_names": table.sample_names, "feature_names": table.feature_names}
    arrays |= {name: given.astype(np.str_) for name, given in names.items() if given is not None}
    arrays |= {COLUMN + name: values for name, values in sample_labels(table).items()}
    np.savez_compressed(path, **arrays)


def _write_npy(table: CountTable, path: Path) -> None:
    values = whole_numbers(table.counts.to_scipy()).toarray()
    with _bytes(path) as file:  # NumPy's error has no reason for the failure
        np.lib.format.write_array_header_2_0(file, np.lib.format.header_data_from_array_1_0(values))
        file.write(values.data)


def _write_folder(table: CountTable, path: Path) -> None:
    path.mkdir()
    n, m = table.shape
    features, samples = numbered(table.feature_names, m), numbered(table.sample_names, n)
    with _bytes(path / "matrix.mtx.gz") as file:
        write_market(whole_numbers(table.counts.to_scipy()).T, file)
    for file_name, names in (("barcodes.tsv.gz", samples), ("features.tsv.gz", features)):
        with _text(path / file_name) as file:
            for name in names:
                if any(mark in name for mark in "\t\n\r"):
                    raise BadFileError(f"{name!r} cannot be a name in a 10x folder: it has a tab or line end")
                file.write(f"{name}\n" if names is samples else f"{name}\t{name}\t{EXPRESSION}\n")


def write_market(matrix: Any, file: Any) -> None:
    """Write a sparse matrix as MatrixMarket, with all digits."""
    entries = sparse.coo_array(matrix)
    if entries.dtype.kind == "f":  # of float32 SciPy 1.17 writes NUL bytes, at which its reader crashes
        entries = entries.astype(np.float64)
    scipy.io.mmwrite(file, entries, precision=17, symmetry="general")


def _write_mtx(table: CountTable, path: Path) -> None:
    with _bytes(path) as file:
        write_market(whole_numbers(table.counts.to_scipy()), file)


def _write_text(table: CountTable, path: Path) -> None:
    n, m = table.shape
    matrix = whole_numbers(table.counts.to_scipy())
    blocks = (matrix[start : start + ROWS_AT_ONCE].toarray() for start in range(0, n, ROWS_AT_ONCE))
    rows = (row.tolist() for block in blocks for row in block)
    delimiter = "\t" if path.name.removesuffix(".gz").endswith((".tsv", ".txt")) else ","
    names = numbered(table.sample_names, n)
    write_csv(path, names, [("", *numbered(table.feature_names, m))], rows=rows, delimiter=delimiter)


def write_csv(
    path: Path,
    names: Sequence[str],
    headers: Sequence[Sequence[str]],
    *,
    rows: Iterator[Sequence[Any]],
    delimiter: str = ",",
) -> None:
    """Write a table of text, row by row; numbers have all their digits, and no text is a formula."""
    with _text(path) as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerows(map(safe_cell, header) for header in headers)
        lines = ([name, *row] for name, row in zip(names, rows, strict=True))
        writer.writerows(map(safe_cell, line) for line in lines)


def to_anndata(table: CountTable) -> Any:
    """Return an AnnData object of a table: counts in X, labels in obs."""
    n, m = table.shape
    names = numbered(table.sample_names, n), numbered(table.feature_names, m)
    adata = annotated(*names, table.sample_columns)
    matrix = table.counts.to_scipy()
    adata.X = sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
    return adata


def annotated(samples: list[str], features: list[str], columns: Mapping[str, np.ndarray]) -> Any:
    """Return AnnData with names and labels, but without X."""
    anndata = require("anndata", purpose="writing AnnData files")
    pandas = require("pandas", purpose="writing AnnData files")
    labels = {
        name: values if np.asarray(values).dtype.kind in "biuf" else pandas.Categorical(values)
        for name, values in columns.items()
    }
    return anndata.AnnData(obs=pandas.DataFrame(labels, index=samples), var=pandas.DataFrame(index=features))


def sample_labels(table: CountTable) -> dict[str, np.ndarray]:
    """Columns of labels as numbers or text."""
    arrays = map(np.asarray, table.sample_columns.values())
    columns = (one if one.dtype.kind in "biuf" else one.astype(np.str_) for one in arrays)
    return dict(zip(table.sample_columns, columns, strict=True))


def numbered(names: Sequence[str] | np.ndarray | None, n: int) -> list[str]:
    """Names, or numbers where there are none."""
    return [str(i) for i in range(n)] if names is None else [str(name) for name in names]


@contextmanager
def _bytes(path: Path) -> Iterator[Any]:
    if not path.name.endswith(".gz"):
        with open(path, "wb") as file:
            yield file
    else:
        # No name and no time of day inside: the same content is the same file.
        with open(path, "wb") as outer, gzip.GzipFile("", "wb", 6, outer, mtime=0) as inner:
            yield inner


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    with _bytes(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        yield text
        text.flush()
        text.detach()


WRITERS: dict[str, Callable[[CountTable, Path], None]] = {
    "npz": _write_npz,
    "npy": _write_npy,
    "mtx": _write_mtx,
    "10x folder": _write_folder,
    "csv": _write_text,
    "tsv": _write_text,
    "h5ad": lambda table, path: write_anndata(to_anndata(table), path),
    "zarr": lambda table, path: write_anndata(to_anndata(table), path),
}


# ---------- AnnData in files; HDF5 files survive a full disk


def write_anndata(adata: Any, path: Path) -> None:
    """Write AnnData to a new .h5ad file or, for any other ending, .zarr folder."""
    if path.name.endswith(".h5ad"):
        with _created_hdf5(path) as file:
            _write_annotated(file, adata)
    else:  # version 2 of the layout is what every AnnData reads
        zarr = require("zarr", purpose="writing .zarr folders")
        _write_annotated(zarr.open_group(str(path), mode="w", zarr_format=2), adata)


def _write_annotated(store: Any, adata: Any) -> None:
    """Write AnnData to an open store, without the mark of "no raw" that older versions cannot read."""
    element_io().write_elem(store, "/", adata)
    if adata.raw is None and "raw" in store:
        del store["raw"]


class Sink:
    """A file whose writes never raise: it keeps the first error and ignores all later writes.

    HDF5 crashes the process if a write fails while it closes a file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: BaseException | None = None

    def write(self, data: Any) -> int:
        """Write all bytes; a file without a buffer may take only some at once."""
        left = memoryview(data)
        while left.nbytes and self.error is None:
            try:
                left = left[self._file.write(left) :]
            except OSError as error:
                self.error = error
        return len(data)

    def truncate(self, size: int) -> int:
        """Set the length."""
        try:
            self._file.truncate(size)
        except OSError as error:
            self.error = self.error or error
        return size

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def readinto(self, buffer: Any) -> int:
        """Read bytes into memory; zeros where nothing is."""
        view = memoryview(buffer)
        n: int = self._file.readinto(view)  # type: ignore[attr-defined]
        view[n:] = bytes(len(view) - n)
        return len(view)

    def __getattr__(self, name: str) -> Any:
        """Return what else a file has: seek and tell."""
        return getattr(self._file, name)


@contextmanager
def _created_hdf5(path: Path) -> Iterator[Any]:
    """Open a new HDF5 file; where it cannot be written to the end, there is one OSError."""
    h5py = require("h5py", package="anndata", purpose="writing .h5ad files")
    with open(path, "w+b", buffering=0) as file:
        sink = Sink(file)

        def interrupt(number: int, frame: Any) -> None:
            sink.error = sink.error or KeyboardInterrupt()  # raised when HDF5, which it would crash, is done

        ending = [number for number in (signal.SIGINT, *ENDING) if callable(signal.getsignal(number))]
        try:
            with handled(ending, interrupt), h5py.File(sink, "w") as store:
                yield store
        except Exception:
            if sink.error is None:
                raise
        if isinstance(sink.error, OSError):  # the error of HDF5 is only a consequence of it
            raise OSError(sink.error.errno, sink.error.strerror, str(path)) from None
        if sink.error is not None:
            raise sink.error
