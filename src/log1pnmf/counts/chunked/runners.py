"""Passes over the chunks: in this process, which reads ahead, or on the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.rows import Rows
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.tally import Tally

from .cluster import ClusterRunner
from .opening import CountSource
from .packed import PackedChunks
from .survey import ChunkedCounts, ChunkSurvey, GroupSums, chunk_counts, sampled_rows, survey_chunk
from .tasks import ChunkTask, Labels, Receive, Sums

__all__ = ["LocalRunner", "Runner", "each_chunk", "runner_of", "survey"]

T = TypeVar("T")


class Runner(Protocol):
    """Goes through all chunks once."""

    def survey(self) -> Iterator[ChunkSurvey]:
        """Look at every chunk for the first time, in their order."""
        ...

    def run(
        self,
        task: ChunkTask,
        counts: ChunkedCounts,
        sizes: NDArray[np.float64],
        *,
        start: Rows,
        receive: Receive,
        labels: Labels = None,
    ) -> Sums:
        """Run a task on every chunk.

        Parameters
        ----------
        sizes : ndarray of shape (n,)
            Size factors.
        start : Rows
            Loadings.
        receive : callable
            Called with every chunk's number and result, in any order.
        labels : ndarray of int32, shape (n,), optional
            Number of the batch of every sample.

        Returns
        -------
        Sums
            Added up in a fixed order.
        """
        ...


class LocalRunner:
    """One chunk after the other; the next one is made ready while the last one is worked on."""

    def __init__(self, source: CountSource) -> None:
        self._source = source

    def survey(self) -> Iterator[ChunkSurvey]:
        """Look at every chunk for the first time, in their order."""
        kept, first = sampled_rows(self._source.shape[0]), 0
        for raw in self.ahead():
            last = first + raw.shape[0]
            yield survey_chunk(raw, kept[(kept >= first) & (kept < last)] - first)
            first = last

    def run(
        self,
        task: ChunkTask,
        counts: ChunkedCounts,
        sizes: NDArray[np.float64],
        *,
        start: Rows,
        receive: Receive,
        labels: Labels = None,
    ) -> Sums:
        """Run a task on every chunk; see `Runner.run`."""
        sums = task.no_sums()
        for index, chunk in enumerate(_ahead(self._sorted(counts))):
            first, last = counts.bounds[index : index + 2]
            begin = start.read(first, last)
            own = None if labels is None else labels[first:last]
            receive(index, task(chunk, sizes[first:last], own, start=begin, into=sums))
        return sums

    def ahead(self) -> Iterator[Any]:
        """Chunks as the source gives them, each read while the caller has the one before."""
        return _ahead(self._raw())

    def _raw(self) -> Iterator[Any]:
        chunks: Any = self._source.chunks
        return iter(chunks) if hasattr(chunks, "__iter__") else map(chunks.read, range(len(chunks)))

    def _sorted(self, counts: ChunkedCounts) -> Iterator[Counts]:
        """Chunks by rows and by columns. From the second pass on they are packed, if there is room."""
        again = "packed" in counts.known
        packed = counts.known.setdefault("packed", None)
        if again and packed is None:
            source, n_chunks = self._source, len(counts.bounds) - 1
            packed = PackedChunks.where_it_fits(counts.shape, counts.nnz, n_chunks, source.folder)
            counts.known["packed"] = packed
        if packed is not None and packed.complete:
            yield from map(packed.read, range(len(counts.bounds) - 1))
            return
        for index, raw in enumerate(self._raw()):
            chunk = chunk_counts(raw)
            assert chunk.by_column.nnz == chunk.nnz
            if packed is not None:
                packed.add(index, chunk)
            yield chunk


def _ahead(made: Iterator[T]) -> Iterator[T]:
    """Give what an iterator makes, each in a thread while the caller has the one before."""
    end: Any = object()
    with ThreadPoolExecutor(1, "log1pnmf-reader") as reader:
        coming = reader.submit(next, made, end)
        while (one := coming.result()) is not end:
            coming = reader.submit(next, made, end)
            yield one
            del one


def each_chunk(source: CountSource) -> Iterator[Counts]:
    """Go through the chunks of a source in this process, checked and with the names of the features."""
    for done, raw in enumerate(LocalRunner(source).ahead(), start=1):
        counts = Counts.from_any(raw) if raw.shape[0] else chunk_counts(raw)
        yield replace(counts, feature_names=source.feature_names)
        if source.on_chunk is not None:
            source.on_chunk(done, len(source.chunks))


def runner_of(source: CountSource) -> Runner:
    """Choose the runner for the chunks of a source."""
    return LocalRunner(source) if source.client is None else ClusterRunner(source)


def survey(source: CountSource) -> ChunkedCounts:
    """Take the first look at a source."""
    return ChunkedCounts.gather(source, runner_of(source).survey(), _tally, _grouped)


@dataclass(eq=False)
class _Tallied:
    """The tally of the chunks seen so far."""

    tally: Tally

    def plus(self, other: _Tallied) -> _Tallied:
        return _Tallied(self.tally.plus(other.tally))


@dataclass(frozen=True)
class _TallyTask:
    """Tallies a chunk."""

    n_features: int

    def no_sums(self) -> _Tallied:
        return _Tallied(Tally.none(self.n_features))

    def __call__(self, counts: Counts, sizes: Any, labels: Labels, *, start: Any, into: _Tallied) -> None:
        into.tally = into.tally.plus(counts.tally)


@dataclass(frozen=True)
class _GroupTask:
    """Sums up a chunk over groups of samples."""

    shape: tuple[int, int]

    def no_sums(self) -> GroupSums:
        return GroupSums(np.zeros(self.shape), np.zeros(self.shape))

    def __call__(self, counts: Counts, sizes: Any, labels: Labels, *, start: Any, into: GroupSums) -> None:
        rows = counts.by_row
        assert labels is not None
        place = np.repeat(labels, np.diff(rows.indptr)).astype(np.int64) * self.shape[1] + rows.indices
        weights = np.repeat(sizes, np.diff(rows.indptr))
        size = into.totals.size
        into.totals += np.bincount(place, rows.values, size).reshape(self.shape)
        into.weights += np.bincount(place, weights, size).reshape(self.shape)


def _tally(counts: ChunkedCounts) -> Tally:
    """Tally counts in a pass over their chunks."""
    found: Any = _looked_at(counts, _TallyTask(counts.n_features), np.ones(counts.n_samples))
    return found.tally


def _grouped(counts: ChunkedCounts, labels: Any, n_groups: int, weights: Any) -> GroupSums:
    """Sum counts up over groups of samples in a pass over their chunks."""
    found: Any = _looked_at(counts, _GroupTask((n_groups, counts.n_features)), weights, labels)
    return found


def _looked_at(counts: ChunkedCounts, task: ChunkTask, sizes: Any, labels: Labels = None) -> Sums:
    """Run a task that needs no loadings."""
    source, done = counts.source, iter(range(1, len(counts.bounds)))
    no_loadings = Rows((counts.n_samples, 0), lambda first, last: np.zeros((last - first, 0)), source.folder)

    def receive(index: int, result: Any) -> None:
        if source.on_chunk is not None:
            source.on_chunk(next(done), len(counts.bounds) - 1)

    run = runner_of(source).run
    return run(task, counts, sizes, start=no_loadings, receive=receive, labels=labels)
