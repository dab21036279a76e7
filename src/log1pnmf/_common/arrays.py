"""Arrays in memory, on a device or on disk: the operations in which they differ, in one place.

The solver is written in the operators and methods all kinds share, so that one loop serves every engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from log1pnmf._core import extrapolate

from .rows import Rows

__all__ = ["column_max", "column_means", "column_sums", "extrapolated", "like", "on_host"]

ROWS_TOGETHER = 64
"""Rows that `column_sums` adds as one."""


def on_host(array: Any) -> NDArray[Any]:
    """Give a NumPy array: itself, a copy of a tensor from its device, or all of `log1pnmf._common.rows.Rows`.

    Examples
    --------
    >>> on_host(np.arange(3))
    array([0, 1, 2])
    """
    if isinstance(array, np.ndarray):
        return array
    return array.to_array() if isinstance(array, Rows) else array.detach().cpu().numpy()


def like(array: Any, values: ArrayLike) -> Any:
    """Bring `values` to where `array` lives, in its element type; NumPy arrays stay as they are.

    A single number can stay where it is, so it is not copied to a device.
    """
    values = np.asarray(values)
    if isinstance(array, np.ndarray | Rows):
        return values
    return array.new_tensor(values) if values.ndim else values.item()


def column_sums(array: Any) -> Any:
    """Sum of every column, where the array lives; the same as `array.sum(axis=0)` but for rounding.

    NumPy adds short rows one by one. So many of them are added as one long row first, ten times as quickly.
    """
    if not isinstance(array, np.ndarray) or array.ndim != 2 or not array.flags.c_contiguous:
        return array.sum(axis=0)
    n_rows, n_columns = array.shape
    whole = n_rows - n_rows % ROWS_TOGETHER
    long = array[:whole].reshape(-1, ROWS_TOGETHER * n_columns).sum(axis=0)
    return np.vstack([long.reshape(ROWS_TOGETHER, n_columns), array[whole:]]).sum(axis=0)


def column_means(*arrays: Any) -> list[NDArray[np.float64]]:
    """Mean of every column of some arrays of one kind and as many columns, on the host."""
    means = [column_sums(array) / array.shape[0] for array in arrays]
    if isinstance(means[0], np.ndarray):
        return means
    together = means[0].new_empty((len(means), len(means[0])))  # one copy from the device
    for row, mean in zip(together, means, strict=True):
        row[:] = mean
    return list(on_host(together))


def column_max(array: Any) -> NDArray[np.float64]:
    """Largest entry of every column, on the host."""
    return on_host(array.max(axis=0) if isinstance(array, np.ndarray | Rows) else array.amax(dim=0))


def extrapolated(to: Any, since: Any, by: float, least: float) -> Any:
    """Go beyond `to` by a multiple of the way since `since`; every entry keeps at least a part of `to`."""
    if not isinstance(to, np.ndarray):
        return (to + by * (to - since)).clip(min=least * to)
    if not isinstance(since, np.ndarray):
        raise TypeError(f"both points must be arrays of one kind, got ndarray and {type(since).__name__}")
    out = np.empty(to.shape)  # rows one after the other, whatever `to` has
    extrapolate(to, since, by, least, out)
    return out
