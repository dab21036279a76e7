"""Arrays in memory, on a device or on disk: the operations in which they differ, in one place.

The solver is written in the operators and methods all kinds share, so that one loop serves every engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .rows import Rows

__all__ = ["column_max", "like", "on_host"]


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
    """Bring `values` to where `array` lives, in its element type; NumPy arrays stay as they are."""
    values = np.asarray(values)
    return values if isinstance(array, np.ndarray | Rows) else array.new_tensor(values)


def column_max(array: Any) -> NDArray[np.float64]:
    """Largest entry of every column, on the host."""
    return on_host(array.max(axis=0) if isinstance(array, np.ndarray | Rows) else array.amax(dim=0))
