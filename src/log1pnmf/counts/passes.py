"""Passes over counts in chunks, in this process or on a `dask.distributed` cluster.

Workers keep no state of the fit: a task gets its chunk, the loadings where it starts and the factors, and
returns loadings and sums. A task that was lost with its worker is run again elsewhere, with the same result.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from operator import add, itemgetter
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.arrays import Rows
from log1pnmf._common.checks import require

from .chunks import CountSource, DaskChunks, OnChunk, PackedChunks, is_streamed, open_counts
from .compress import SparseRows, canonical_rows, checksum_of, compress_sparse
from .counts import Counts, Tally

# ---------- the interface of a task that a pass runs on every chunk; callers implement it

Array = NDArray[np.float64]

Labels: TypeAlias = NDArray[np.int32] | None  # number of the batch of every sample, where there are batches
Receive: TypeAlias = Callable[[int, Any], None]  # called with the number of a chunk and what the task found


class Part(NamedTuple):
    """What belongs to the rows of one chunk, beside their counts."""

    sizes: Array
    labels: Labels
    start: Array  # loadings
    bounds: Any  # of the loadings


class ChunkTask(Protocol):
    """Work on one chunk; it is sent to workers, so it holds all it needs."""

    def no_sums(self) -> Any:
        """Return sums over no chunks, to which others can be added with ``+``."""
        ...

    def __call__(self, counts: Counts, part: Part, *, into: Any) -> Any:
        """Work on the rows of one chunk; loadings are on the eta scale."""
        ...


# ---------- the survey, a first pass over counts in chunks

SAMPLE_ROWS = 8192  # rows that are kept in memory, for the start of a fit
NOT_IN_MEMORY = (
    "counts are in chunks, but this needs them in memory: pass all or some of the rows as a matrix"
)


class ChunkSurvey(NamedTuple):
    """Totals of one chunk, from the first pass."""

    column_nnz: NDArray[np.int64]
    column_sums: Array
    row_nnz: NDArray[np.int64]
    row_sums: Array
    row_digests: NDArray[np.uint64]  # (rows,): see `row_digests`
    sample: sparse.csr_array  # the rows that are kept
    # see `log1pnmf.counts.Counts`
    log_factorial: float
    stirling: float


def sampled_rows(n_samples: int) -> NDArray[np.int64]:
    """Choose the rows that are kept; always the same ones of as many samples."""
    size = min(n_samples, SAMPLE_ROWS)
    return np.sort(np.random.default_rng(0).choice(n_samples, size, replace=False, shuffle=False))


def survey_chunk(raw: Any, kept: NDArray[np.int64]) -> ChunkSurvey:
    """Return the totals of a chunk, after a check of its values."""
    counts = Counts.from_any(raw) if raw.shape[0] else chunk_counts(raw)
    column_nnz, column_sums = np.zeros(counts.n_features, dtype=np.int64), np.zeros(counts.n_features)
    rows = counts.by_row
    for start in range(0, rows.nnz, 1 << 22):
        part = slice(start, start + (1 << 22))
        column_nnz += np.bincount(rows.indices[part], minlength=counts.n_features)
        column_sums += np.bincount(rows.indices[part], rows.values[part], minlength=counts.n_features)
    return ChunkSurvey(
        column_nnz,
        column_sums,
        np.diff(rows.indptr),
        counts.row_sums,
        row_digests(rows),
        counts.to_scipy()[kept],
        counts.log_factorial,
        counts.stirling,
    )


def row_digests(rows: SparseRows) -> NDArray[np.uint64]:
    """Hash every row; the hash depends on all entries of the row and on no other row."""
    bounds, digests = rows.indptr.tolist(), np.zeros(rows.shape[0], dtype=np.uint64)
    for i, part in enumerate(map(slice, bounds[:-1], bounds[1:])):
        entries = rows.indices[part].tobytes() + rows.values[part].astype(np.float64).tobytes()
        digests[i] = int.from_bytes(hashlib.blake2b(entries, digest_size=8).digest(), "little")
    return digests


def chunk_counts(raw: Any) -> Counts:
    """Compress a chunk that was checked before; quicker than `Counts.from_any`, and without its warnings."""
    matrix = raw if sparse.issparse(raw) and raw.format == "csr" else sparse.csr_array(raw)
    rows = canonical_rows(matrix, whole=False)
    return Counts(compress_sparse(matrix)[0] if rows is None else rows)


class RowTotals(SparseRows):
    """Rows without their entries: how many there are, and their sum."""

    def __init__(self, shape: tuple[int, int], lengths: NDArray[np.int64], sums: Array) -> None:
        indptr = np.concatenate(([0], np.cumsum(lengths)))
        self.__dict__.update(shape=shape, indptr=indptr, sums=sums)

    @property
    def indices(self) -> np.ndarray:
        """Refuse: entries are in the chunks."""
        raise TypeError(NOT_IN_MEMORY)

    values = indices

    def row_sums(self) -> Array:
        """Sum of every row."""
        sums: Array = self.__dict__["sums"]
        return sums


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkedCounts(Counts):
    """Counts in chunks of rows, after a first pass: totals here, entries in the chunks."""

    source: CountSource
    bounds: NDArray[np.int64]  # (chunks + 1,): first row of each chunk, and the number of rows
    # see `log1pnmf.counts.Counts`
    log_factorial: float
    stirling: float
    sample: Counts  # some rows, in memory
    sample_index: NDArray[np.int64]  # which ones
    row_digests: NDArray[np.uint64]  # (n,): see `row_digests`
    in_memory: ClassVar[bool] = False
    known: dict[str, Any] = field(default_factory=dict)  # what later passes found, or keep for the next one

    @classmethod
    def gather(cls, source: CountSource, surveys: Iterable[ChunkSurvey]) -> ChunkedCounts:
        """Return the counts of chunks that were surveyed in their order."""
        n, m = source.shape
        column_nnz, column_sums = np.zeros(m, dtype=np.int64), np.zeros(m)
        bounds, others = [0], []
        for one in surveys:
            if len(one.column_sums) != m:
                raise ValueError(f"chunk {len(bounds) - 1} has {len(one.column_sums)} columns, expected {m}")
            column_nnz += one.column_nnz
            column_sums += one.column_sums
            others.append(one[2:])
            bounds.append(bounds[-1] + len(one.row_sums))
            if source.on_chunk is not None:
                source.on_chunk(len(bounds) - 1, len(source.chunks))
        if bounds[-1] != n:
            raise ValueError(f"chunks have {bounds[-1]} rows together, but shape has {n}")
        row_nnz, row_sums, digests, sample, log_factorials, stirlings = zip(*others, strict=True)
        index = sampled_rows(n)
        kept = replace(
            Counts.from_any(sparse.vstack(sample, format="csr")),
            sample_names=None if source.sample_names is None else source.sample_names[index],
            feature_names=source.feature_names,
        )
        return cls(
            RowTotals((n, m), np.concatenate(row_nnz), np.concatenate(row_sums)),
            RowTotals((m, n), column_nnz, column_sums),
            source.sample_names,
            source.feature_names,
            source=source,
            bounds=np.array(bounds, dtype=np.int64),
            log_factorial=math.fsum(log_factorials),
            stirling=math.fsum(stirlings),
            sample=kept,
            sample_index=index,
            row_digests=np.concatenate(digests),
        )

    @property
    def runner(self) -> Runner:
        """What runs tasks on the chunks."""
        runner: Runner = self.known.setdefault("runner", runner_of(self.source))
        return runner

    @cached_property
    def tally(self) -> Tally:
        """How often every feature has every count; a pass over the chunks."""
        ones, on_chunk = np.ones(self.n_samples), self.source.on_chunk
        return reduce(Tally.plus, self.runner.run(_TallyTask(), self, ones, on_chunk=on_chunk))

    def group_sums(self, labels: NDArray[np.int32], n_groups: int, weights: Array | None = None) -> Array:
        """Sum up the counts in groups of samples, and the weights of samples in which a feature is not zero.

        2 x groups x features; a pass over the chunks, unless the last call was for the same.
        """
        known: Any = self.known.get("groups")
        same = known is not None and np.array_equal(known[0], labels)
        if not same or not (weights is None or np.array_equal(known[1], weights)):
            own = np.ones(self.n_samples) if weights is None else weights
            task, on_chunk = _GroupTask((n_groups, self.n_features)), self.source.on_chunk
            found = self.runner.run(task, self, own, labels=labels, on_chunk=on_chunk)
            known = self.known["groups"] = labels, own, found
        return cast(Array, known[2])

    def part_in_memory(self, most: int | None = None) -> tuple[Counts, NDArray[np.int64]]:
        """Return samples that were kept from the first pass; see `Counts.part_in_memory`."""
        part, place = self.sample.part_in_memory(most)
        return part, self.sample_index[place]

    def to_scipy(self) -> sparse.csr_array:
        """Refuse: the counts are not in memory."""
        raise TypeError(NOT_IN_MEMORY)

    def checksum(self) -> str:
        """Return a text that differs between counts, whatever the chunks."""
        return checksum_of((self.by_row.indptr, self.row_digests))


# ---------- passes over the chunks

T = TypeVar("T")


class Runner:
    """Passes over all chunks in this process; the next chunk is read while the last one is worked on."""

    def __init__(self, source: CountSource) -> None:
        self._source = source

    def survey(self) -> Iterator[ChunkSurvey]:
        """Yield the totals of every chunk, in their order."""
        kept, first = sampled_rows(self._source.shape[0]), 0
        for raw in self.ahead():
            last = first + raw.shape[0]
            yield survey_chunk(raw, kept[(kept >= first) & (kept < last)] - first)
            first = last

    def run(
        self,
        task: ChunkTask,
        counts: ChunkedCounts,
        sizes: Array,
        *,
        start: Rows | None = None,
        labels: Labels = None,
        bounds: Any = None,
        take: Receive | None = None,
        on_chunk: OnChunk | None = None,
    ) -> Any:
        """Run a task on every chunk and return its sums; `take` gets what it finds in each."""
        n_chunks, done = len(counts.bounds) - 1, itertools.count(1)

        def part(index: int) -> Part:
            first, last = counts.bounds[index : index + 2]
            rows = slice(first, last)
            loadings = np.zeros((last - first, 0)) if start is None else start.read(first, last)
            own = None if bounds is None else bounds.of_rows(rows)
            return Part(sizes[rows], None if labels is None else labels[rows], loadings, own)

        def receive(index: int, found: Any) -> None:
            if take is not None:
                take(index, found)
            if on_chunk is not None:
                on_chunk(next(done), n_chunks)

        return self._run(task, counts, part, receive)

    def _run(
        self, task: ChunkTask, counts: ChunkedCounts, part: Callable[[int], Part], receive: Receive
    ) -> Any:
        sums = task.no_sums()
        for index, chunk in enumerate(_ahead(self._sorted(counts))):
            receive(index, task(chunk, part(index), into=sums))
        return sums

    def ahead(self) -> Iterator[Any]:
        """Yield chunks as they are in the source, each read while the caller has the one before."""
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


# ---------- passes on a dask.distributed cluster

HELD_SHARE = 0.5  # part of the workers' memory that chunks may take; else they are read anew in every pass


class ClusterRunner(Runner):
    """Runs one task per chunk; the workers add up the sums pair by pair, always the same pairs."""

    def __init__(self, source: CountSource) -> None:
        super().__init__(source)
        require("distributed", purpose="a cluster")
        self._client, self._chunks = source.client, source.chunks
        self._held: list[Any] | None = None

    def survey(self) -> Iterator[ChunkSurvey]:
        """Yield the totals of every chunk, in their order."""
        submit, raw = partial(self._client.submit, pure=False), self._submitted()
        lengths = self._client.gather([submit(lambda chunk: int(chunk.shape[0]), one) for one in raw])
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        sampled = sampled_rows(self._chunks.shape[0])
        kept = np.split(sampled, np.searchsorted(sampled, bounds[1:]))
        given = zip(raw, kept, bounds, strict=False)
        seen = [submit(survey_chunk, one, rows - first) for one, rows, first in given]
        for one in seen:
            yield one.result()

    def _run(
        self, task: ChunkTask, counts: ChunkedCounts, part: Callable[[int], Part], receive: Receive
    ) -> Any:
        from dask import config as dask_config
        from distributed import as_completed

        client = self._client
        # A task instead of scattered data: those could not be computed again when their worker dies.
        with dask_config.set({"distributed.admin.large-graph-warning-threshold": "4GB"}):
            everywhere = client.submit(lambda given: given, task, pure=False, retries=3)
        done = [
            client.submit(_worked, everywhere, chunk, part(i), pure=False, retries=3)
            for i, chunk in enumerate(self._hold(counts))
        ]
        loadings = [client.submit(itemgetter(0), one, pure=False) for one in done]
        parts = [client.submit(itemgetter(1), one, pure=False) for one in done]
        while len(parts) > 1:  # pair by pair: the order depends on the number of parts and on nothing else
            pairs = zip(parts[::2], parts[1::2], strict=False)
            sums = [client.submit(add, *pair, pure=False) for pair in pairs]
            parts = sums + parts[2 * len(sums) :]
        del done
        number = {future.key: i for i, future in enumerate(loadings)}
        for future in as_completed(loadings):
            receive(number[future.key], future.result())
            future.release()
        return parts[0].result()

    def _submitted(self) -> list[Any]:
        """Chunks as tasks that have not run, or futures."""
        if isinstance(self._chunks, DaskChunks):
            return list(self._client.compute(self._chunks.delayed(), retries=3))
        ones = [self._chunks.only(index) for index in range(len(self._chunks))]
        return [self._client.submit(one, pure=False, retries=3) for one in ones]

    def _hold(self, counts: ChunkedCounts) -> Sequence[Any]:
        """Chunks as futures that stay on the workers where there is room; else as tasks that read them."""
        if self._held is not None:
            return self._held
        raw = self._submitted()
        chunks = [self._client.submit(chunk_counts, one, pure=False, retries=3) for one in raw]
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        room = sum(worker["memory_limit"] or np.inf for worker in workers)
        if 16 * counts.nnz <= HELD_SHARE * room:
            self._held = chunks
        return chunks


def _worked(task: ChunkTask, counts: Counts, part: Part) -> tuple[Any, Any]:
    """Return what a task finds in a chunk, and its sums."""
    sums = task.no_sums()
    return task(counts, part, into=sums), sums


def _ahead(made: Iterator[T]) -> Iterator[T]:
    """Return what an iterator makes, each in a thread while the caller has the one before."""
    end: Any = object()
    with ThreadPoolExecutor(1, "log1pnmf-reader") as reader:
        coming = reader.submit(next, made, end)
        while (one := coming.result()) is not end:
            coming = reader.submit(next, made, end)
            yield one
            del one


def runner_of(source: CountSource) -> Runner:
    """Choose the runner for the chunks of a source."""
    return Runner(source) if source.client is None else ClusterRunner(source)


def survey(source: CountSource) -> ChunkedCounts:
    """Return the counts of a source after a first pass over its chunks."""
    return ChunkedCounts.gather(source, runner_of(source).survey())


@dataclass(frozen=True)
class _TallyTask:
    """Tallies a chunk; the sum is a list of tallies."""

    def no_sums(self) -> list[Tally]:
        return []

    def __call__(self, counts: Counts, part: Part, *, into: list[Tally]) -> None:
        into[:] = [reduce(Tally.plus, into, counts.tally)]


@dataclass(frozen=True)
class _GroupTask:
    """Sums up a chunk over groups of samples."""

    shape: tuple[int, int]

    def no_sums(self) -> Array:
        return np.zeros((2, *self.shape))

    def __call__(self, counts: Counts, part: Part, *, into: Array) -> None:
        rows = counts.by_row
        assert part.labels is not None
        place = np.repeat(part.labels, np.diff(rows.indptr)).astype(np.int64) * self.shape[1] + rows.indices
        for k, values in enumerate((rows.values, np.repeat(part.sizes, np.diff(rows.indptr)))):
            into[k] += np.bincount(place, values, into[k].size).reshape(self.shape)


# ---------- counts of any kind, part by part


def parts_of(X: Any) -> Iterator[tuple[int, Any]]:
    """Yield counts, chunk by chunk where they are in chunks, with the number of the first sample."""
    source = source_of(X)
    if source is None:
        yield 0, X
        return
    first = 0
    for done, raw in enumerate(Runner(source).ahead(), start=1):
        if raw.shape[0]:
            yield first, replace(Counts.from_any(raw), feature_names=source.feature_names)
        first += raw.shape[0]
        if source.on_chunk is not None:
            source.on_chunk(done, len(source.chunks))


def source_of(X: Any) -> CountSource | None:
    """Where the chunks come from; None for counts in memory."""
    if isinstance(X, CountSource):
        return X
    if isinstance(X, ChunkedCounts):
        return X.source
    return open_counts(X) if is_streamed(X) else None
