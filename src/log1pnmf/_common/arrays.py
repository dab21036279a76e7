"""Arrays in memory, on a device or on disk: the operations in which they differ, in one place.

The solver is written in the operators and methods all kinds share, so that one loop serves every engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .rows import Rows

__all__ = ["column_max", "column_means", "like", "on_host"]


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


def column_means(*arrays: Any) -> list[NDArray[np.float64]]:
    """Mean of every column of some arrays of one kind and as many columns, on the host."""
    means = [array.mean(axis=0) for array in arrays]
    if isinstance(means[0], np.ndarray):
        return means
    together = means[0].new_empty((len(means), len(means[0])))  # one copy from the device
    for row, mean in zip(together, means, strict=True):
        row[:] = mean
    return list(on_host(together))


def column_max(array: Any) -> NDArray[np.float64]:
    """Largest entry of every column, on the host."""
    return on_host(array.max(axis=0) if isinstance(array, np.ndarray | Rows) else array.amax(dim=0))
