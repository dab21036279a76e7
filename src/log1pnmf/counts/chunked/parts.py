"""Counts of any kind, part by part: all at once where they are in memory, otherwise chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .opening import CountSource, is_streamed, open_counts
from .runners import each_chunk
from .survey import ChunkedCounts

__all__ = ["parts_of", "source_of"]


def parts_of(X: Any) -> Iterator[tuple[int, Any]]:
    """Give counts with the number of the first sample; chunks without samples are left out."""
    source = source_of(X)
    if source is None:
        yield 0, X
        return
    first = 0
    for chunk in each_chunk(source):
        if chunk.n_samples:
            yield first, chunk
        first += chunk.n_samples


def source_of(X: Any) -> CountSource | None:
    """Where the chunks come from; None for counts in memory."""
    if isinstance(X, CountSource):
        return X
    if isinstance(X, ChunkedCounts):
        return X.source
    return open_counts(X) if is_streamed(X) else None
