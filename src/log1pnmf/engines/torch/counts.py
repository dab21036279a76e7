"""Counts that are on a device already, as sparse matrices of PyTorch or CuPy: they stay there."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from scipy import sparse

from log1pnmf._common.arrays import on_host
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.sparse_rows import Pattern, SparseRows
from log1pnmf.counts.tally import Tally

__all__ = ["TensorCounts", "TensorPattern", "TensorRows", "read_only", "to_device"]

COPIED_ENTRIES = 1 << 27
"""Entries that are copied to a device at a time."""


@dataclass(frozen=True, eq=False)
class TensorRows:
    """`log1pnmf.counts.sparse_rows.SparseRows` of tensors; where rows begin stays on the host."""

    shape: tuple[int, int]
    indptr: np.ndarray
    indices: Any
    values: Any

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return int(self.indptr[-1])

    def row_sums(self) -> np.ndarray:
        """Sum of every row, added up in float64."""
        lengths = torch.as_tensor(np.diff(self.indptr), device=self.values.device)
        sums = torch.segment_reduce(self.values.double(), "sum", lengths=lengths, unsafe=True)
        return on_host(sums)

    def transpose(self) -> TensorRows:
        """Compressed columns, sorted on the device."""
        indptr, row, order = _transposed(self.shape, self.indptr, self.indices)
        return TensorRows(self.shape[::-1], indptr, row, self.values[order])

    entry_blocks = SparseRows.entry_blocks

    def to_dense(self, block: slice) -> np.ndarray:
        """Give some rows as a dense array on the host."""
        first, last = (int(end) for end in self.indptr[[block.start, min(block.stop, self.shape[0])]])
        indptr = self.indptr[block.start : block.stop + 1] - first
        shape, entries = (len(indptr) - 1, self.shape[1]), slice(first, last)
        some = SparseRows(shape, indptr, on_host(self.indices[entries]), on_host(self.values[entries]))
        return some.to_dense(slice(0, len(indptr) - 1))

    def to_host(self) -> SparseRows:
        """Copy to the host."""
        return SparseRows(self.shape, self.indptr, on_host(self.indices), on_host(self.values))


class TensorPattern(Pattern):
    """`log1pnmf.counts.sparse_rows.Pattern` whose entries are on a device, and on the host when asked for."""

    def __init__(self, shape: tuple[int, int], indptr: np.ndarray, tensor: Any) -> None:
        for name, value in (("shape", shape), ("indptr", indptr), ("tensor", tensor)):
            object.__setattr__(self, name, value)

    tensor: Any

    @cached_property
    def indices(self) -> np.ndarray:
        """Column of each entry, copied to the host."""
        return on_host(self.tensor)

    def transpose(self) -> TensorPattern:
        """Exchange rows and columns, sorted on the device."""
        indptr, row, _ = _transposed(self.shape, self.indptr, self.tensor)
        return TensorPattern(self.shape[::-1], indptr, row)


def _transposed(shape: tuple[int, int], indptr: np.ndarray, indices: Any) -> tuple[np.ndarray, Any, Any]:
    """Where columns begin, the row of each of their entries, and its place before."""
    order = torch.sort(indices, stable=True).indices
    lengths = torch.as_tensor(np.diff(indptr), device=indices.device)
    numbers = torch.arange(shape[0], dtype=torch.int32, device=indices.device)
    row = torch.repeat_interleave(numbers, lengths)
    counts = torch.bincount(indices, minlength=shape[1])
    begin = np.concatenate(([0], np.cumsum(on_host(counts)))).astype(np.int64)
    return begin, row[order], order


class TensorCounts(Counts):
    """Counts on a device. Make them with `TensorCounts.from_device` or `TensorCounts.uploaded`."""

    @classmethod
    def recognises(cls, X: Any) -> bool:
        """Whether X is a sparse matrix of PyTorch or CuPy."""
        kind = type(X)
        if kind.__module__.startswith("cupyx.scipy.sparse"):
            return True
        return isinstance(X, torch.Tensor) and X.layout != torch.strided

    @classmethod
    def from_device(cls, X: Any) -> TensorCounts:
        """Check counts where they are.

        Parameters
        ----------
        X : torch sparse tensor (any layout) or CuPy sparse matrix
            Samples x features.
        """
        if isinstance(X, torch.Tensor):
            if X.layout == torch.sparse_coo:
                X = X.coalesce()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
                X = X.to_sparse_csr()
            indptr, indices, values = X.crow_indices(), X.col_indices(), X.values()
        else:
            X = X.tocsr()
            X.sum_duplicates()
            indptr, indices, values = (torch.as_tensor(part) for part in (X.indptr, X.indices, X.data))
        shape = (int(X.shape[0]), int(X.shape[1]))
        if 0 in shape:
            raise ValueError(f"counts must have samples and features, got shape {shape}")
        if values.dtype != torch.float64:
            values = values.float()
        _check(values)
        if bool((values == 0).any()):
            raise ValueError(
                "counts on a device must not have stored zeros; remove these, or pass counts in host memory"
            )
        rows = TensorRows(shape, on_host(indptr).astype(np.int64), indices.int(), values)
        return cls(rows)  # type: ignore[arg-type]

    @classmethod
    def uploaded(cls, counts: Counts, device: Any) -> TensorCounts:
        """Copy counts to a device once, for as long as they live; there they are transposed much faster."""
        copies = _UPLOADED.setdefault(counts, {})
        if str(device) not in copies:
            rows = counts.by_row
            indices = to_device(rows.indices, device, torch.int32)
            values = to_device(rows.values, device, torch.float32)
            there: Any = TensorRows(rows.shape, rows.indptr, indices, values)
            copies[str(device)] = cls(there, None, counts.sample_names, counts.feature_names)
            copies[str(device)].__dict__["_origin"] = ref(counts)
        return copies[str(device)]

    @cached_property
    def n_empty_columns(self) -> int:
        """Number of features without any count."""
        return int(np.count_nonzero(np.diff(self.by_column.indptr) == 0))

    @cached_property
    def sum_of_squares(self) -> float:
        """Sum over all entries of y**2."""
        values: Any = self.by_row.values
        return sum(float(piece.double().square().sum()) for piece in values.split(1 << 26))

    @cached_property
    def log_factorial(self) -> float:
        """Sum over all entries of log(y!)."""
        values: Any = self.by_row.values
        total = torch.zeros((), dtype=torch.float64, device=values.device)
        for piece in values.split(1 << 26):
            total += torch.lgamma(piece.double() + 1.0).sum()
        return float(total)

    @cached_property
    def _host(self) -> SparseRows:
        rows: Any = self.by_row
        return rows.to_host()

    @cached_property
    def stirling(self) -> float:
        """Sum over the counts of log(y!) - y log(y) + y."""
        return self.on_host().stirling

    @cached_property
    def tally(self) -> Tally:
        """How often every feature has every count."""
        return self.on_host().tally

    def on_host(self) -> Counts:
        """Give the counts that were uploaded, or a copy on the host."""
        origin = self._origin()
        return self._copy if origin is None else origin

    @staticmethod
    def _origin() -> Counts | None:
        return None

    @cached_property
    def _copy(self) -> Counts:
        return Counts(self._host, None, self.sample_names, self.feature_names)

    def to_scipy(self) -> sparse.csr_array:
        """Copy to the host as a SciPy CSR array."""
        return self._host.to_scipy()


_UPLOADED: WeakKeyDictionary[Counts, dict[str, TensorCounts]] = WeakKeyDictionary()
"""Leaves with the counts, so nothing in it may hold them."""


def to_device(array: Any, device: Any, dtype: Any) -> Any:
    """Copy an array to a device, as a tensor of some type."""
    if isinstance(array, torch.Tensor):
        return array.to(device=device, dtype=dtype)
    if device.type == "cpu":
        return torch.from_numpy(array.astype(np.dtype(str(dtype).removeprefix("torch.")), copy=True))
    out = torch.empty(len(array), dtype=dtype, device=device)
    for at in range(0, len(array), COPIED_ENTRIES):  # no second copy of the whole where types differ
        piece = read_only(np.ascontiguousarray(array[at : at + COPIED_ENTRIES]))
        out[at : at + len(piece)].copy_(piece)
    return out


def read_only(array: np.ndarray) -> Any:
    """Give an array of the host as a tensor that shares its memory, and must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def _check(values: Any) -> None:
    bad = ~(torch.isfinite(values) & (values >= 0))
    if bool(bad.any()):
        first = int(torch.nonzero(bad)[0, 0])
        raise ValueError(
            f"counts has {int(bad.sum())} entries that are negative or not finite "
            f"(first {float(values[first])}); pass raw counts, not log-transformed or scaled values"
        )
