"""Anything that holds counts on disk, in chunks or on a cluster becomes a `CountSource`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from log1pnmf._common.gate import Store, open_store
from log1pnmf._common.gate.names import texts
from log1pnmf._common.untrusted import BadFileError, Budget, check_regular

from .chunks import DaskChunks, FileChunks, GivenChunks, RowChunks, SlicedChunks

__all__ = ["CountSource", "OnChunk", "is_streamed", "open_counts", "parse_memory"]

OnChunk: TypeAlias = Callable[[int, int], None]

DEFAULT_MEMORY = "2GB"
BYTES_PER_ENTRY = 56
"""Of a chunk, while it is worked on and the next one is read: raw, compressed by rows and by columns."""
FIXED_BYTES = 3e8
"""Taken by Python, its packages and the factors' statistics."""
LARGEST_CHUNK = 1 << 24
"""Entries beyond which larger chunks gain nothing."""
SMALLEST_CHUNK = 1 << 16
SAMPLE_OR_FEATURE = 64
"""Bytes that a row or column takes, also an empty one."""


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
    limit = _entries(parse_memory(memory))
    samples, features = _names(source)
    if isinstance(source, str | os.PathLike):
        chunks, features = _from_path(os.fspath(source), layer, limit, max_memory)
    elif _is_anndata(source):
        chunks = _from_anndata(source, layer, limit, max_memory)
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


def parse_memory(memory: str | float) -> float:
    """Bytes from "4GB", "500 MB", "1.5GiB" or a number.

    Examples
    --------
    >>> parse_memory("4GB"), parse_memory("1 MiB")
    (4000000000.0, 1048576.0)
    """
    units = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(i?)b?\s*", memory.lower())
        if match and match[1].count(".") <= 1 and match[1] != ".":
            step = units[match[2]]
            size = float(match[1]) * (1024.0 ** round(np.log10(step) / 3) if match[3] else step)
            if size > 0:
                return size
    elif not isinstance(memory, bool) and float(memory) > 0:
        return float(memory)
    raise ValueError(f"memory must be a size like '4GB' or a number of bytes, got {memory!r}")


def _entries(memory: float) -> int:
    """Entries of a chunk for which a fit stays within the memory."""
    return int(np.clip((memory - FIXED_BYTES) / BYTES_PER_ENTRY, SMALLEST_CHUNK, LARGEST_CHUNK))


def _is_dask(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "dask" and hasattr(source, "to_delayed")


def _is_anndata(source: Any) -> bool:
    return all(hasattr(source, name) for name in ("obs_names", "var_names", "layers", "X"))


def _names(source: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    if not _is_anndata(source):
        return None, None
    names = (np.asarray(getattr(source, side), dtype=object) for side in ("obs_names", "var_names"))
    samples, features = names
    return samples, features


def _from_path(
    path: str, layer: str | None, limit: int, max_memory: str | float | None
) -> tuple[RowChunks, np.ndarray | None]:
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    check_regular(path)
    budget = Budget(path, None if max_memory is None else parse_memory(max_memory))
    try:
        store = open_store(path, budget)
        name = "X" if layer is None else f"layers/{layer}"
        if name in store:
            return _rows(path, store, name, limit), _feature_names(store)
        have = ", ".join(["X", *store.members("layers")])
    except (BadFileError, ImportError, PermissionError):
        raise
    except Exception as error:  # h5py and zarr raise whatever they meet
        raise BadFileError(
            f"{path} is damaged or holds no AnnData ({error}); get another copy of it"
        ) from error
    raise KeyError(f"{path} has no {name}; it has {have}")


def _feature_names(store: Store) -> np.ndarray | None:
    if "var" not in store:
        return None
    var = store.node("var")
    index = texts(var[texts(var.attrs.get("_index", "_index"))[0]][:])
    return np.array(index, dtype=object)


def _rows(path: str, store: Store, name: str, limit: int) -> RowChunks:
    """Chunks of a matrix in a file; what it says of its size is checked, because nothing else limits it."""
    matrix = store.node(name, whole=False)
    kind = str(matrix.attrs.get("encoding-type", "array"))
    if kind == "csr_matrix":
        store.node(f"{name}/indptr")
        chunks = FileChunks(path, name, limit)
        store.budget.check(BYTES_PER_ENTRY * chunks.largest)
        store.budget.charge(SAMPLE_OR_FEATURE * sum(chunks.shape))
        return chunks
    if kind == "csc_matrix":
        raise BadFileError(
            f"{name} in {path} is stored by columns (CSC), but chunks of rows are needed; write it again as "
            "CSR: adata.X = adata.X.tocsr()"
        )
    if len(getattr(matrix, "shape", ())) == 2:
        store.budget.charge(SAMPLE_OR_FEATURE * sum(map(int, matrix.shape)))
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
    if _gives_rows(source):
        return SlicedChunks(source, np.arange(shape[0] + 1, dtype=np.int64) * int(shape[1]), limit)
    if hasattr(source, "__len__") and (hasattr(source, "__getitem__") or isinstance(source, Iterable)):
        return GivenChunks(source, shape)
    raise TypeError(f"counts of type {type(source).__name__} can be neither sliced nor iterated in chunks")


def _gives_rows(source: Any) -> bool:
    """Whether slices are rows of numbers, as those of arrays in memory and on disk: these have a dtype."""
    return hasattr(source, "dtype") and hasattr(source, "__getitem__")


def _client(client: Any, chunks: RowChunks) -> Any:
    if isinstance(client, str):
        from log1pnmf._common.optional import require

        return require("distributed", purpose="a cluster").Client(client)
    if client is None and isinstance(chunks, DaskChunks):
        try:
            from distributed import get_client

            return get_client()
        except (ImportError, ValueError):
            return None
    return client
