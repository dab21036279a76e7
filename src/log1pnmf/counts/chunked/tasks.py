"""The interface of a task that a pass runs on every chunk; callers implement it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.counts import Counts

__all__ = ["ChunkTask", "Labels", "Receive", "Sums"]

Array = NDArray[np.float64]

Labels: TypeAlias = NDArray[np.int32] | None
"""Number of the batch of every sample, where there are batches."""

Receive: TypeAlias = Callable[[int, Any], None]
"""Called with the number of a chunk and what the task found there."""


class Sums(Protocol):
    """What a task adds up over all chunks."""

    def plus(self, other: Any) -> Any:
        """Give new sums over the chunks of both."""
        ...


class ChunkTask(Protocol):
    """Work on one chunk; it is sent to workers, so it holds all it needs."""

    def no_sums(self) -> Any:
        """Make sums over no chunks."""
        ...

    def __call__(self, counts: Counts, sizes: Array, labels: Labels, *, start: Array, into: Any) -> Any:
        """Work on the rows of one chunk.

        Parameters
        ----------
        counts : Counts
            The chunk.
        sizes : ndarray of shape (rows,)
            Size factors.
        labels : ndarray of int32, shape (rows,), or None
            Number of the batch of every sample, where there are batches.
        start : ndarray of shape (rows, K)
            Loadings.
        into : Sums
            The chunk's part is added, in place.

        Returns
        -------
        object
            What is found about the rows; handed to `Receive`.
        """
        ...
