"""Where chunks of rows come from: files, arrays that can be sliced, sequences, Dask arrays."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common import safe_files
from log1pnmf._common.arrays import RowFile
from log1pnmf._common.checks import require

from .compress import SparseRows, is_indptr, narrow_indptr, row_blocks
from .counts import Counts


class RowChunks:
    """Rows of a matrix in chunks, which can be read repeatedly and in any order."""

    def __init__(self, shape: Any, n_chunks: int) -> None:
        self.shape = (int(shape[0]), int(shape[1]))
        self._n_chunks = n_chunks

    def __len__(self) -> int:
        return self._n_chunks

    def read(self, index: int) -> Any:
        """Return a chunk: a SciPy matrix or an array, of all columns."""
        raise NotImplementedError

    def only(self, index: int) -> Callable[[], Any]:
        """Return an object that reads only this chunk and can be sent to a worker."""
        return partial(self.read, index)


class SlicedChunks(RowChunks):
    """Slices of rows of a matrix, an array in a file, or a memory map."""

    def __init__(self, matrix: Any, indptr: NDArray[Any], limit: int) -> None:
        self._matrix, self._ranges = matrix, list(row_blocks(indptr, limit))
        super().__init__(matrix.shape, len(self._ranges))

    def read(self, index: int) -> Any:
        """Return a chunk."""
        start, stop = self._ranges[index]
        return self._matrix[start:stop]

    def only(self, index: int) -> Callable[[], Any]:
        """Return the chunk itself: it is in memory, or in an array that is open here only."""
        chunk = self.read(index)
        return lambda: chunk


class FileChunks(RowChunks):
    """Chunks of a CSR matrix in a checked AnnData file, h5ad or zarr; workers open it themselves."""

    def __init__(self, path: str, name: str, limit: int) -> None:
        self._path, self._name = os.path.abspath(path), name
        self._group = group = open_group(self._path)[name]
        shape = tuple(map(int, group.attrs["shape"]))
        indptr = _checked_indptr(f"{path}: {name}", group, shape)
        # of each chunk only, so that what is sent to workers is small
        self._indptr = [indptr[start : stop + 1] for start, stop in row_blocks(indptr, limit)]
        self.largest = max((int(part[-1] - part[0]) for part in self._indptr), default=0)  # entries
        super().__init__(shape, len(self._indptr))

    def read(self, index: int) -> sparse.csr_array:
        """Read a chunk."""
        return _rows_of(self._group, self._indptr[index], self.shape[1])

    def only(self, index: int) -> Callable[[], sparse.csr_array]:
        """Return what opens the file and reads this chunk."""
        return partial(_read_rows, self._path, self._name, self._indptr[index], self.shape[1])


def _checked_indptr(where: str, group: Any, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Where the rows of a CSR matrix begin; it must go with its shape and its entries."""
    indptr = group["indptr"][:].astype(np.int64)
    lengths = {int(group[part].shape[0]) for part in ("data", "indices")}
    if not is_indptr(indptr, shape[0]) or lengths != {int(indptr[-1])} or shape[1] < 0:
        raise safe_files.BadFileError(
            f"{where} is not a valid sparse matrix of shape {shape}: its parts contradict each other; the "
            "file is damaged, get another copy of it"
        )
    return indptr


def _rows_of(group: Any, indptr: NDArray[np.int64], n_columns: int) -> sparse.csr_array:
    """Rows of a CSR matrix in a file, from their part of its `indptr`."""
    part = slice(int(indptr[0]), int(indptr[-1]))
    parts = group["data"][part], group["indices"][part], narrow_indptr(indptr)
    return sparse.csr_array(parts, shape=(len(indptr) - 1, n_columns))


def _read_rows(path: str, name: str, indptr: NDArray[np.int64], n_columns: int) -> sparse.csr_array:
    store = open_group(path)
    with store if hasattr(store, "close") else nullcontext():
        return _rows_of(store[name], indptr, n_columns)


def open_group(path: str) -> Any:
    """Open an h5ad file or a zarr store for reading, checked before by `safe_files`."""
    if os.path.isdir(path):
        return safe_files.open_zarr(path)
    return require("h5py", package="anndata", purpose="reading h5ad files").File(path, "r")


class GivenChunks(RowChunks):
    """Chunks that the user has: ``chunks[i]``, or gone through one after the other."""

    def __init__(self, chunks: Any, shape: tuple[int, int]) -> None:
        super().__init__(shape, len(chunks))
        self._chunks = chunks

    def read(self, index: int) -> Any:
        """Return a chunk."""
        if not hasattr(self._chunks, "__getitem__"):
            raise TypeError(
                "chunks must be indexed to be used on a cluster, got an object that can only be iterated "
                f"({type(self._chunks).__name__}); give it __getitem__"
            )
        return self._chunks[index]

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._chunks, Iterable):
            return iter(self._chunks)
        return (self._chunks[index] for index in range(len(self)))


class DaskChunks(RowChunks):
    """The row chunks of a Dask array."""

    def __init__(self, array: Any) -> None:
        if array.ndim != 2 or any(np.isnan(size) for size in array.shape):
            raise ValueError(
                f"counts must have two dimensions of known size, got a Dask array of shape {array.shape}; "
                "call compute_chunk_sizes() first"
            )
        self._array = array if array.numblocks[1] == 1 else array.rechunk({1: -1})
        super().__init__(array.shape, int(self._array.numblocks[0]))

    def read(self, index: int) -> Any:
        """Compute a chunk, here and now."""
        return self._array.blocks[index].compute(scheduler="synchronous")

    def delayed(self) -> list[Any]:
        """Return the chunks as tasks that have not run."""
        return [block[0] for block in self._array.to_delayed()]


# ---------- anything that holds counts on disk, in chunks or on a cluster becomes a CountSource

OnChunk: TypeAlias = Callable[[int, int], None]

DEFAULT_MEMORY = "2GB"
BYTES_PER_ENTRY = 56  # of a chunk in work while the next one is read: raw, by rows and by columns
FIXED_BYTES = 3e8  # taken by Python, its packages and the factors' statistics
SMALLEST_CHUNK, LARGEST_CHUNK = 1 << 16, 1 << 24  # entries; larger chunks gain nothing
SAMPLE_OR_FEATURE = 64  # bytes that a row or column takes, also an empty one


@dataclass(frozen=True, eq=False)
class CountSource:
    """Counts in chunks of rows, and where they are to be worked on. Made by `open_counts`.

    Parameters
    ----------
    chunks : RowChunks
        Chunks of rows.
    client : dask.distributed.Client, optional
        Cluster whose workers do the work; None for this process.
    folder : str, optional
        Folder for temporary files with loadings and sorted chunks.
    sample_names, feature_names : ndarray of str, optional
        Names of samples and features.
    on_chunk : callable, optional
        Called after each chunk of a pass, with the number of finished chunks and the total.
    """

    chunks: RowChunks
    client: Any = None
    folder: str | None = None
    sample_names: np.ndarray | None = None
    feature_names: np.ndarray | None = None
    on_chunk: OnChunk | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and features."""
        return self.chunks.shape


def open_counts(
    source: Any,
    *,
    layer: str | None = None,
    memory: str | float = DEFAULT_MEMORY,
    client: Any = None,
    folder: str | None = None,
    on_chunk: OnChunk | None = None,
    max_memory: str | float | None = None,
) -> CountSource:
    """Open counts that need not fit in memory; only their shape is read now.

    Parameters
    ----------
    source : path, AnnData, dask.array, matrix or sequence of chunks
        Path of an h5ad file or zarr store with a CSR matrix; a backed, lazy or ordinary AnnData object; a
        `dask.array` with chunks of rows, sparse or dense; anything with ``shape`` and ``source[start:stop]``
        (h5py and zarr arrays, memory maps, matrices); or an object with ``shape``, ``len()`` and either
        ``source[i]`` or iteration, whose parts are chunks of rows.
    layer : str, optional
        Layer of an AnnData object or file; `X` by default.
    memory : str or number
        Memory that the fit may use, such as "4GB" or a number of bytes; it sets the size of chunks. Chunks
        that you pass keep their size.
    client : dask.distributed.Client, str or None
        Cluster to work on, or the address of its scheduler. For a Dask array the default is the current
        client.
    folder : str, optional
        Folder for temporary files, on a disk with room for about five times the loadings; by default that of
        the system. Where it has room for 10 more bytes per non-zero, later passes are quicker.
    on_chunk : callable, optional
        Called after each chunk of a pass, with the number of finished chunks and the total; for your own
        progress bars (``verbose=1`` shows one).
    max_memory : str or number, optional
        Memory that the names and the largest chunk of a file may use; see `log1pnmf.counts.read_table`.

    Returns
    -------
    CountSource
        A source for `log1pnmf.fit_log1p_nmf`, or for `fit` and `transform` of `log1pnmf.Log1pNMF`.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> source = open_counts(pancreas().counts, memory="1GB")
    >>> source.shape, len(source.chunks)
    ((1937, 2425), 1)
    """
    if isinstance(source, CountSource):
        return source
    limit = _entries(safe_files.parse_memory(memory))
    samples = features = None
    if isinstance(source, str | os.PathLike):
        chunks, features = _from_path(os.fspath(source), layer, limit, max_memory)
    elif _is_anndata(source):
        chunks = _from_anndata(source, layer, limit, max_memory)
        samples, features = (np.asarray(one, dtype=object) for one in (source.obs_names, source.var_names))
    elif layer is not None:
        raise ValueError(f"layer={layer!r} is for AnnData, but counts are a {type(source).__name__}")
    else:
        chunks = _from_object(source, limit)
    return CountSource(chunks, _client(client, chunks), folder, samples, features, on_chunk)


def is_streamed(source: Any) -> bool:
    """Whether counts are of a kind that is not in memory, so that "auto" means the streaming engine."""
    if isinstance(source, CountSource) or _is_dask(source):
        return True
    return _is_anndata(source) and (bool(getattr(source, "isbacked", False)) or _is_dask(source.X))


def _entries(memory: float) -> int:
    """Entries of a chunk for which a fit stays within the memory."""
    return int(np.clip((memory - FIXED_BYTES) / BYTES_PER_ENTRY, SMALLEST_CHUNK, LARGEST_CHUNK))


def _is_dask(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "dask" and hasattr(source, "to_delayed")


def _is_anndata(source: Any) -> bool:
    return all(hasattr(source, name) for name in ("obs_names", "var_names", "layers", "X"))


def _from_path(
    path: str, layer: str | None, limit: int, max_memory: str | float | None
) -> tuple[RowChunks, np.ndarray | None]:
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    safe_files.check_regular(path)
    with safe_files.readable(path, "h5ad or zarr"):
        store = safe_files.open_store(path, safe_files.MemoryLimit(path, max_memory))
        name = "X" if layer is None else f"layers/{layer}"
        if name in store:
            chunks, features = _rows(path, store, name, limit), None
            if "var" in store:
                var = store.node("var")
                (index,) = safe_files.texts(var.attrs.get("_index", "_index"))
                features = np.array(safe_files.texts(var[index][:]), dtype=object)
            return chunks, features
        have = ", ".join(["X", *store.members("layers")])
    raise KeyError(f"{path} has no {name}; it has {have}")


def _rows(path: str, store: safe_files.Store, name: str, limit: int) -> RowChunks:
    """Return chunks of a matrix in a file, after a check of its declared size."""
    matrix = store.node(name, whole=False)
    kind = str(matrix.attrs.get("encoding-type", "array"))
    if kind == "csr_matrix":
        store.node(f"{name}/indptr")
        chunks = FileChunks(path, name, limit)
        store.limit.check(BYTES_PER_ENTRY * chunks.largest + SAMPLE_OR_FEATURE * sum(chunks.shape))
        return chunks
    if kind == "csc_matrix":
        raise safe_files.BadFileError(
            f"{name} in {path} is stored by columns (CSC), but chunks of rows are needed; write it again as "
            "CSR: adata.X = adata.X.tocsr()"
        )
    if len(getattr(matrix, "shape", ())) == 2:
        store.limit.check(SAMPLE_OR_FEATURE * sum(map(int, matrix.shape)))
    return _from_object(matrix, limit)


def _from_anndata(source: Any, layer: str | None, limit: int, max_memory: str | float | None) -> RowChunks:
    if layer is not None and layer not in source.layers:
        raise KeyError(f"there is no layer {layer!r}; there are {', '.join(source.layers) or 'none'}")
    if layer is None and getattr(source, "isbacked", False) and not source.is_view:
        return _from_path(os.fspath(source.filename), None, limit, max_memory)[0]
    return _from_object(source.X if layer is None else source.layers[layer], limit)


def _from_object(source: Any, limit: int) -> RowChunks:
    if _is_dask(source):
        return DaskChunks(source)
    shape = getattr(source, "shape", None)
    if shape is None or len(shape) != 2:
        raise TypeError(
            "counts must be a path, AnnData, Dask array, something with shape (n, m) that gives rows when "
            f"sliced, or chunks with such a shape; got {type(source).__name__}"
        )
    if sparse.issparse(source):
        matrix = sparse.csr_array(source)
        return SlicedChunks(matrix, matrix.indptr.astype(np.int64), limit)
    if hasattr(source, "dtype") and hasattr(source, "__getitem__"):  # an array: slices are rows of numbers
        return SlicedChunks(source, np.arange(shape[0] + 1, dtype=np.int64) * int(shape[1]), limit)
    if hasattr(source, "__len__") and (hasattr(source, "__getitem__") or isinstance(source, Iterable)):
        return GivenChunks(source, shape)
    raise TypeError(f"counts of type {type(source).__name__} can be neither sliced nor iterated in chunks")


def _client(client: Any, chunks: RowChunks) -> Any:
    if isinstance(client, str):
        return require("distributed", purpose="a cluster").Client(client)
    if client is None and isinstance(chunks, DaskChunks):
        try:
            from distributed import get_client

            return get_client()
        except (ImportError, ValueError):
            return None
    return client


# ---------- chunks that were checked and sorted, packed into a temporary file

MOST_BYTES = 24  # that an entry takes, by rows and by columns
LIKELY_BYTES = 10  # with counts below 65,536; 6 with counts below 256, where a chunk has few rows and columns
MOST_OF_DISK = 0.5  # part of the free space of a disk that the file may take


class PackedChunks:
    """Chunks of counts, by rows and by columns, in an unnamed temporary file."""

    def __init__(self, shape: tuple[int, int], nnz: int, n_chunks: int, folder: str | None) -> None:
        pointers = 8 * (shape[0] + n_chunks * (shape[1] + 2))
        self._file: RowFile | None = RowFile((MOST_BYTES * nnz + pointers, 1), np.uint8, folder)
        self._n_chunks, self._end = n_chunks, 0
        # shape of each chunk, and of its six arrays: first byte, last byte, type in the file and in memory
        self._chunks: list[tuple[tuple[int, int], list[tuple[int, int, Any, Any]]]] = []
        self._lock = threading.Lock()
        # memory of chunks that nobody has any more; the system would clear new memory first, for 6% of a pass
        self._spare: list[list[bytearray]] = [[] for _ in range(6)]

    @classmethod
    def where_it_fits(
        cls, shape: tuple[int, int], nnz: int, n_chunks: int, folder: str | None
    ) -> PackedChunks | None:
        """Return a file without chunks; None where the disk is too small."""
        try:
            free = shutil.disk_usage(folder or tempfile.gettempdir()).free
            fits = LIKELY_BYTES * nnz <= MOST_OF_DISK * free
            return cls(shape, nnz, n_chunks, folder) if fits else None
        except OSError:  # some disks allow no file of that size
            return None

    @property
    def complete(self) -> bool:
        """Whether all chunks are there."""
        return self._file is not None and len(self._chunks) == self._n_chunks

    def add(self, index: int, counts: Counts) -> None:
        """Put the next chunk into the file; nothing happens where it is there, or the disk is full."""
        with self._lock:
            if self._file is None or index != len(self._chunks):
                return
            places = []
            try:
                for side in (counts.by_row, counts.by_column):
                    for array in (side.indptr, side.indices, side.values):
                        packed, begin = _narrowed(array), self._end
                        self._file.write(begin, packed.view(np.uint8)[:, None])
                        self._end += packed.nbytes
                        places.append((begin, self._end, packed.dtype, array.dtype))
            except OSError:
                self._file = None
                return
            self._chunks.append((counts.shape, places))

    def read(self, index: int) -> Counts:
        """Return a chunk."""
        assert self._file is not None
        shape, places = self._chunks[index]
        arrays = []
        for (begin, end, packed, wide), spare in zip(places, self._spare, strict=True):
            found = self._file.read(begin, end).reshape(-1).view(packed)
            memory = spare.pop() if spare else bytearray()
            if len(memory) < len(found) * wide.itemsize:
                memory = bytearray(len(found) * wide.itemsize)
            array = np.ndarray(len(found), wide, memory)
            weakref.finalize(array, spare.append, memory)
            array[:] = found
            arrays.append(array)
        return Counts(SparseRows(shape, *arrays[:3]), SparseRows(shape[::-1], *arrays[3:]))


def _narrowed(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the narrowest type that holds each of its numbers."""
    for narrow in (np.uint8, np.uint16):
        if np.max(array, initial=0) <= np.iinfo(narrow).max:
            packed = array.astype(narrow)
            if np.array_equal(packed, array):
                return packed
    return np.ascontiguousarray(array)
