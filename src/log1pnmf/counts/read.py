"""One door for every kind of file: `read_table`."""

from __future__ import annotations

import csv
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common import safe_files
from log1pnmf._common.archive import StrPath
from log1pnmf._common.checks import check_number, check_whole, require
from log1pnmf._common.safe_files import BadFileError, MemoryLimit, Store, check_regular, open_store, readable

from .compress import SparseRows
from .counts import Counts, holds_counts
from .features import repeated
from .text import (
    CountTable,
    Fractions,
    RawTable,
    checked,
    holds_texts,
    in_categories,
    read_column,
    read_folder,
    read_text,
    rows_of,
)

# ---------- NumPy's own files: .npy and .npz, never with pickle

MATRICES = ("counts", "X", "matrix", "Y", "data", "arr_0")  # names of the counts among several arrays
COLUMN = "sample_columns."  # what the names of labels begin with


def read_npy(path: Path, limit: MemoryLimit) -> RawTable:
    """Read an array."""
    with open(path, "rb") as file:
        safe_files.npy_header(file, path.stat().st_size, str(path))
        limit.check(path.stat().st_size)
        file.seek(0)
        return RawTable(np.load(file, allow_pickle=False))


def read_npz(path: Path, limit: MemoryLimit) -> RawTable:
    """Read a sparse matrix of SciPy's `save_npz`, or the counts among several arrays."""
    # Opened here, because NumPy leaves a file open that is damaged.
    with open(path, "rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise BadFileError(f"{path} holds one array, not several; name it .npy")
        safe_files.check_npz(file, path, limit)
        with np.load(file, allow_pickle=False) as stored:
            return _from_archive(path, file, stored)


def _from_archive(path: Path, file: BinaryIO, stored: Mapping[str, Any]) -> RawTable:
    names = list(stored)
    if "metadata" in names:
        raise BadFileError(f"{path} is a model or checkpoint of log1pnmf, not a table of counts")
    notes: tuple[str, ...] = ()
    if "format" in names:
        file.seek(0)
        matrix = sparse.load_npz(file)
        if hasattr(matrix, "check_format"):  # indices out of range would crash SciPy
            matrix.check_format(full_check=True)
    else:
        tables = [name for name in names if stored[name].ndim == 2]
        chosen = [name for name in MATRICES if name in tables] or tables
        if len(tables) != 1 and chosen is tables:
            there = ", ".join(f"{name} {stored[name].shape}" for name in names) or "nothing"
            raise BadFileError(f"{path} must hold one table of counts, or one called 'counts'; got {there}")
        matrix = stored[chosen[0]]
        notes = (f"counts read from array {chosen[0]!r}",)
    columns = {one.removeprefix(COLUMN): stored[one] for one in names if one.startswith(COLUMN)}
    samples, features = (
        stored[name].tolist() if name in names else None for name in ("sample_names", "feature_names")
    )
    return RawTable(matrix, samples, features, columns, notes)


# ---------- AnnData on disk: .h5ad and .zarr. Only what is asked for is read

COUNTS = "counts"
CELL = 64  # bytes that a label takes while it becomes text, besides the text itself


def element_io() -> Any:
    """Find the module of AnnData with `read_elem` and `write_elem`, which has moved between versions."""
    anndata = require("anndata", purpose="reading and writing AnnData")
    if hasattr(anndata, "io") and hasattr(anndata.io, "read_elem"):
        return anndata.io
    return require("anndata.experimental", purpose="reading and writing AnnData")


def read_anndata(path: Path, layer: str | None, limit: MemoryLimit) -> RawTable:
    """Read the layer asked for (without one, X or the layer "counts"), names and obs."""
    read = element_io().read_elem
    notes: tuple[str, ...] = ()
    with open_store(path, limit) as store:
        if "obs" not in store or "var" not in store:
            raise BadFileError(f"{path} holds no AnnData: obs or var is missing; is it another kind of file?")
        layers, raw = store.members("layers"), ["raw"] if "raw/X" in store else []
        place = f"layers/{layer}" if layer in layers else "raw/X" if layer in raw else "X"
        if layer not in (None, "X", *layers, *raw):
            known = ", ".join([*layers, "X", *raw])
            raise BadFileError(f"{path} has no layer {layer!r}; choose one of {known}")
        matrix = read(store.node(place)) if place in store else None
        if layer is None and COUNTS in layers and (matrix is None or not holds_counts(matrix)):
            why = "there is no X" if matrix is None else "X does not hold counts"
            notes = (f"{why}: layer {COUNTS!r} was used",)
            matrix = read(store.node(f"layers/{COUNTS}"))
        if matrix is None:
            there = ", ".join(layers) or "there are none"
            raise BadFileError(f"{path} has no X; choose a layer with --layer ({there})")
        names, columns = read_columns(store)
        var = read(store.node("raw/var" if place == "raw/X" else "var"))
    others = ", ".join(one for one in (*raw, *layers) if one != layer)
    hint = f"choose another layer with --layer ({others})" if others else "pass raw counts"
    return RawTable(matrix, names, var.index.tolist(), columns, notes, hint)


def read_columns(store: Store) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Read the names of the samples and the columns of obs."""
    obs = element_io().read_elem(store.node("obs"))
    store.limit.check(CELL * obs.size)
    return obs.index.tolist(), {str(name): _labels(obs[name], store.limit) for name in obs.columns}


def read_var(path: Path, column: str, layer: str | None, limit: MemoryLimit) -> np.ndarray:
    """Return a column of var, one value for each feature of the layer."""
    with open_store(path, limit) as store:
        raw = layer == "raw" and layer not in store.members("layers")
        var = element_io().read_elem(store.node("raw/var" if raw else "var"))
    if column not in var:
        known = ", ".join(map(repr, var.columns)) or "none"
        raise BadFileError(f"{path} has no feature column {column!r}; choose one of those there: {known}")
    return np.asarray(_labels(var[column], limit))


def _labels(series: Any, limit: MemoryLimit) -> Any:
    """Return labels as numbers, text or categories of text in their order; missing text is "NA"."""
    missing = series.isna()
    if series.dtype.kind in "biuf" and (isinstance(series.dtype, np.dtype) or not missing.any()):
        return series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", None))
    values = zip(series.astype(object), missing, strict=True)
    labels = limit.text_array(["NA" if none else str(one) for one, none in values])
    if not hasattr(series, "cat"):
        return labels
    return in_categories(labels, map(str, series.cat.remove_unused_categories().cat.categories))


def read_whole(path: Path, limit: MemoryLimit) -> Any:
    """Read everything that is in an AnnData file; all of it is checked before."""
    anndata = require("anndata", purpose="reading AnnData")
    with open_store(path, limit) as store:
        group = store.node("/")
        return anndata.read_zarr(group) if path.is_dir() else anndata.read_h5ad(path)


# ---------- MatrixMarket files: .mtx, and the folders of 10x with names beside them

EXPRESSION = "Gene Expression"
MATRIX = ("matrix.mtx", "matrix.mtx.gz")
BARCODES = ("barcodes.tsv", "barcodes.tsv.gz")
FEATURES = ("features.tsv", "features.tsv.gz", "genes.tsv", "genes.tsv.gz")


def read_market(path: Path, limit: MemoryLimit) -> RawTable:
    """Read a matrix; one of 10x, with its names beside it, as the folder it is in."""
    if path.name.endswith(MATRIX) and _beside(path, FEATURES) and _beside(path, BARCODES):
        return read_market_folder(path.parent, limit, path)
    notes = ("a .mtx file has no names; rows were read as samples",)
    return RawTable(safe_files.market_matrix(path, limit), notes=notes)


def read_market_folder(folder: Path, limit: MemoryLimit, matrix: Path | None = None) -> RawTable:
    """Read matrix, barcodes and features (or genes) of 10x, and turn them: they are features x cells."""
    if matrix is None:
        found = sorted(path for path in folder.iterdir() if path.name.endswith(MATRIX))
        if len(found) != 1:
            there = "several: " + ", ".join(path.name for path in found) if found else "none"
            raise BadFileError(
                f"{folder} must hold one matrix.mtx or matrix.mtx.gz (with barcodes.tsv and features.tsv), "
                f"got {there}; name the file itself, or another folder"
            )
        matrix = found[0]
    features, barcodes = _beside(matrix, FEATURES), _beside(matrix, BARCODES)
    if features is None or barcodes is None:
        missing = "features.tsv or genes.tsv" if features is None else "barcodes.tsv"
        raise BadFileError(f"{folder} has {matrix.name}, but no {missing} beside it; put it there")
    counts, rows = safe_files.market_matrix(matrix, limit), _table(features, limit)
    names = [row[0] for row in _table(barcodes, limit)]
    if counts.shape != (len(rows), len(names)):
        raise BadFileError(
            f"{matrix} has shape {counts.shape}, but there are {len(rows)} features in {features.name} and "
            f"{len(names)} barcodes in {barcodes.name}; the files do not belong together"
        )
    identifiers = [row[0] for row in rows]
    symbols = [row[1] if len(row) > 1 else row[0] for row in rows]
    kinds = [row[2] for row in rows] if all(len(row) > 2 for row in rows) else None
    return tenx_table(counts.T, names, identifiers, symbols=symbols, kinds=kinds)


def tenx_table(
    counts: Any,
    barcodes: list[str],
    identifiers: Sequence[str],
    *,
    symbols: Sequence[str],
    kinds: Sequence[str] | None,
) -> RawTable:
    """Put a table of 10x together: gene expression where there is more than that, symbols made unique."""
    twice = repeated(symbols)
    shared, notes = set(twice), []
    names = [
        f"{name} ({identifier})" if name in shared else name
        for identifier, name in zip(identifiers, symbols, strict=True)
    ]
    if twice:
        notes = [f"symbols of several genes carry the gene's identifier: {len(twice)} (first {twice[0]!r})"]
    if kinds is not None and len(set(kinds)) > 1 and EXPRESSION in kinds:
        keep = [j for j, kind in enumerate(kinds) if kind == EXPRESSION]
        others = Counter(kind for kind in kinds if kind != EXPRESSION)
        left_out = ", ".join(f"{n:,} x {kind}" for kind, n in others.items())
        notes.append(f"only features of type {EXPRESSION!r} were read; left out: {left_out}")
        counts, names = counts.tocsc()[:, keep], [names[j] for j in keep]
    return RawTable(counts, barcodes, names, notes=tuple(notes))


def _beside(matrix: Path, names: Sequence[str]) -> Path | None:
    """Return the first of these files that is there, with the prefix that the matrix has."""
    prefix = matrix.name.removesuffix(".gz").removesuffix("matrix.mtx")
    places = (matrix.with_name(prefix + name) for name in names)
    return next((place for place in places if place.exists()), None)


def _table(path: Path, limit: MemoryLimit) -> list[list[str]]:
    return list(rows_of(path, limit, keep=math.inf, delimiter="\t", quoting=csv.QUOTE_NONE))


# ---------- the HDF5 files of 10x Genomics: Cell Ranger 3 and later, and 2

PARTS = ("data", "indices", "indptr", "shape", "barcodes")


def read_tenx_h5(path: Path, genome: str | None, limit: MemoryLimit) -> RawTable:
    """Read a feature-barcode matrix; cells become rows."""
    with open_store(path, limit) as store:
        name = _place(path, store, genome)
        missing = [part for part in PARTS if f"{name}/{part}" not in store]
        if missing:
            raise BadFileError(f"{path} is not a 10x file: {', '.join(missing)} missing in {name}")
        group = store.node(name)
        n_features, n_cells = (int(n) for n in group["shape"][:])
        parts = (group["data"][:], group["indices"][:], group["indptr"][:])
        if len(parts[2]) != n_cells + 1:
            raise BadFileError(f"{path} is damaged: {len(parts[2])} column starts for {n_cells} cells")
        counts = sparse.csr_array(parts, shape=(n_cells, n_features))
        counts.check_format(full_check=True)  # indices out of range would crash SciPy
        kinds = None
        if "features" in group:
            features = group["features"]
            identifiers, symbols = _strings(features["id"]), _strings(features["name"])
            kinds = _strings(features["feature_type"]) if "feature_type" in features else None
        else:
            identifiers, symbols = _strings(group["genes"]), _strings(group["gene_names"])
        barcodes = _strings(group["barcodes"])
    return tenx_table(counts, barcodes, identifiers, symbols=symbols, kinds=kinds)


def _place(path: Path, store: Store, genome: str | None) -> str:
    """Find the matrix: in one place since Cell Ranger 3, one for each genome before."""
    if "matrix" in store:
        if genome is not None:
            raise BadFileError(f"{path} has one matrix for all genomes; leave layer {genome!r} out")
        return "matrix"
    genomes = [name for name in store.members("/") if f"{name}/barcodes" in store]
    if genome is not None and genome not in genomes:
        raise BadFileError(f"{path} has no genome {genome!r}; choose one of {', '.join(genomes) or 'none'}")
    if genome is None and len(genomes) != 1:
        there = ", ".join(genomes) or "no matrix at all; for AnnData name it .h5ad"
        raise BadFileError(f"{path} should hold one matrix of 10x, got {there}; choose with layer (--layer)")
    return genome or genomes[0]


def _strings(dataset: Any) -> list[str]:
    return [str(one, "utf-8") if isinstance(one, bytes) else str(one) for one in np.asarray(dataset[:])]


def read_sets(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    r"""Read sets of features from a GMT file: name, description and features, with tabs between.

    Parameters
    ----------
    path : str or PathLike
        GMT file, may be compressed with gzip.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "sets.gmt")
    >>> with open(path, "w") as file:
    ...     _ = file.write("cycle\tfrom a book\tMKI67\tTOP2A\n")
    >>> read_sets(path)
    {'cycle': ['MKI67', 'TOP2A']}
    """
    sets: dict[str, list[str]] = {}
    for row in rows_of(Path(path), MemoryLimit(path), delimiter="\t"):
        name, members = row[0].strip(), [one.strip() for one in row[2:] if one.strip()]
        if not name or not members or name in sets:
            what = "is there twice" if name in sets else "has no name or no features"
            raise BadFileError(
                f"{path}: set {name!r} {what}; every line is a name, a description and features, "
                "with tabs between"
            )
        sets[name] = members
    if not sets:
        raise BadFileError(f"{path} has no sets; a line is a name, a description and features")
    return sets


# ---------- filters that leave out samples and features with few counts, and report what they removed


@dataclass(frozen=True, eq=False)
class Filtered:
    """What filters left, and what they took."""

    table: CountTable  # what is left
    # where it was in the table before
    kept_samples: NDArray[np.intp]
    kept_features: NDArray[np.intp]
    report: tuple[str, ...]  # one line for each filter that was asked for, also where it removed nothing


def filter_table(
    table: CountTable,
    *,
    min_samples: int = 0,
    min_counts: float = 0,
    min_features: int = 0,
    mask_var: np.ndarray | None = None,
) -> Filtered:
    """Remove samples with few counts, then features outside of a mask or in few of the remaining samples."""
    check_whole("min_samples", min_samples, least=0)
    check_whole("min_features", min_features, least=0)
    check_number("min_counts", min_counts)
    matrix, (n, m) = table.counts.to_scipy(), table.shape
    report, keep = [], np.ones(n, dtype=bool)
    totals, seen = table.counts.row_sums, np.diff(matrix.indptr)
    for least, values, what in ((min_counts, totals, "counts"), (min_features, seen, "features")):
        if least:
            gone = keep & (values < least)
            keep &= ~gone
            report.append(f"samples with fewer than {least:g} {what}: {gone.sum():,} of {n:,} removed")
    samples = np.flatnonzero(keep)
    left = matrix if len(samples) == n else matrix[samples]
    stays = np.ones(m, dtype=bool) if mask_var is None else mask_var
    if mask_var is not None:
        report.append(f"features outside of the mask: {m - stays.sum():,} of {m:,} removed")
    if min_samples:
        often = np.bincount(left.indices, minlength=m) >= min_samples
        gone_features = (stays & ~often).sum()
        stays = stays & often
        report.append(f"features in fewer than {min_samples} samples: {gone_features:,} of {m:,} removed")
    features = np.flatnonzero(stays)
    if not len(samples) or not len(features):
        raise BadFileError(
            f"{table.source or 'table'}: filters left nothing ({'; '.join(report)}); lower them"
        )
    if len(samples) < n or len(features) < m:
        names, feature_names = table.sample_names, table.feature_names
        counts = Counts(
            SparseRows.from_scipy(left if len(features) == m else left[:, features]),
            sample_names=None if names is None else names[samples],
            feature_names=None if feature_names is None else feature_names[features],
        )
        columns = {name: values[samples] for name, values in table.sample_columns.items()}
        table = replace(table, counts=counts, sample_columns=columns)
    return Filtered(table, samples, features, tuple(report))


# ---------- one door for every kind of file: read_table

TEXTS = {".mtx": "mtx", ".csv": "csv", ".tsv": "tsv", ".txt": "tsv"}
ENDINGS = {".h5ad": "h5ad", ".zarr": "zarr", ".h5": "10x h5"}
ENDINGS |= {ending + packed: kind for ending, kind in TEXTS.items() for packed in ("", ".gz")}
ENDINGS |= {".npz": "npz", ".npy": "npy"}

READERS: dict[str, Callable[[Path, MemoryLimit], RawTable]] = {
    "mtx": read_market,
    "10x folder": read_market_folder,
    "csv": read_text,
    "tsv": read_text,
    "npz": read_npz,
    "npy": read_npy,
}


def format_of(path: StrPath) -> str:
    """Return the format of a file from its name; a folder is a .zarr, one of .txt files, or a 10x folder."""
    place = Path(path)
    name = place.name.lower()
    for ending in sorted(ENDINGS, key=len, reverse=True):
        if name.endswith(ending) and name != ending:
            return ENDINGS[ending]
    if place.is_dir():
        zarr = any((place / name).exists() for name in (".zgroup", "zarr.json"))
        return "zarr" if zarr else "texts" if holds_texts(place) else "10x folder"
    raise BadFileError(
        f"{os.fspath(path)} has no ending that is known; use one of {', '.join(ENDINGS)}, a 10x folder or a "
        "folder of texts (.txt)"
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
        AnnData: layer, "X" or "raw"; by default X, or layers["counts"] if X does not hold counts (with a
        note). 10x .h5 with several genomes: the genome.
    transpose : bool
        Whether rows of the file are features.
    fractions : {"refuse", "allow"}
        What to do with values that are not whole numbers.
    max_memory : str or float, optional
        Memory that reading may use, such as "8GB" or a number of bytes. The default protects against
        malicious files: what is free, and at most 1 GiB or 200 times the size of the file. Raise it only for
        files that you trust.
    text : str, optional
        Column of a .csv or .tsv with texts, one document per row, whose words are counted. The other columns
        are labels; a first column such as "id" or "name" contains the names of the documents.
    stop_words : str, optional
        Words to ignore in texts: "english", or a file with one word per line.

    Raises
    ------
    FileNotFoundError
    BadFileError
        If the file is damaged, empty or does not contain counts. The message states what is wrong, where, and
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
    kind = _kind(place, layer, text, stop_words)
    limit = MemoryLimit(place, max_memory)
    with readable(place, kind):
        if kind == "texts":
            raw = read_folder(place, stop_words, limit)
        elif text is not None:
            raw = read_column(place, text, stop_words, limit)
        elif kind in ("h5ad", "zarr"):
            raw = read_anndata(place, layer, limit)
        elif kind == "10x h5":
            raw = read_tenx_h5(place, layer, limit)
        else:
            raw = READERS[kind](place, limit)
    raw = raw.transposed() if transpose else raw
    return checked(raw, source=name, kind=kind, fractions=fractions, limit=limit)


def _kind(place: Path, layer: str | None, text: str | None, stop_words: str | None) -> str:
    """Return the format of a file, which must go with what is asked for and with what is there."""
    kind = format_of(place)
    if text is not None and kind == "texts":
        raise BadFileError(f"{place} is a folder of texts, which has no columns; leave --text {text} out")
    if text is not None and kind not in ("csv", "tsv"):
        raise BadFileError(f"{place} is a {kind} file; a column of texts (--text) is one of a .csv or .tsv")
    if text is None and stop_words is not None and kind != "texts":
        raise BadFileError(f"{place} is a {kind} file; stop words are for texts (--text names their column)")
    kind = kind if text is None else "column of texts"
    if layer is not None and kind not in ("h5ad", "zarr", "10x h5"):
        raise BadFileError(f"{place} is a {kind} file, which has no layers; leave layer {layer!r} out")
    if place.is_dir() and kind not in ("zarr", "10x folder", "texts"):
        raise BadFileError(f"{place} is a folder, but a {kind} file was expected; name the file inside")
    if place.is_file() and kind == "zarr":
        raise BadFileError(f"{place} is a file, but .zarr is a folder; unpack it first")
    if place.is_file() and place.stat().st_size == 0:
        raise BadFileError(f"{place} is empty (0 bytes); get another copy of it")
    return kind
