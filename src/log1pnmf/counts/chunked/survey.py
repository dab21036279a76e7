"""The survey, a first pass over counts in chunks: it collects what a fit needs to know of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf.counts.compress import canonical_rows, compress_sparse
from log1pnmf.counts.counts import Counts, SparseRows
from log1pnmf.counts.sparse_rows import CHUNK, checksum_of, row_blocks
from log1pnmf.counts.tally import Tally

from .opening import CountSource

__all__ = [
    "ChunkSurvey",
    "ChunkedCounts",
    "GroupSums",
    "Grouping",
    "chunk_counts",
    "row_digests",
    "sampled_rows",
    "survey_chunk",
]

SAMPLE_ROWS = 8192
"""Rows that are kept in memory, for the start of a fit."""

NOT_IN_MEMORY = (
    "counts are in chunks, but this needs them in memory: pass all or some of the rows as a matrix"
)


@dataclass(frozen=True, eq=False)
class ChunkSurvey:
    """What is known of one chunk after the first look.

    Parameters
    ----------
    log_factorial, stirling : float
        See `log1pnmf.counts.Counts`.
    sample : SparseRows
        The rows that are kept.
    row_digests : ndarray of uint64, shape (rows,)
        See `row_digests`.
    """

    row_nnz: NDArray[np.int64]
    row_sums: NDArray[np.float64]
    column_nnz: NDArray[np.int64]
    column_sums: NDArray[np.float64]
    log_factorial: float
    stirling: float
    sample: SparseRows
    row_digests: NDArray[np.uint64]


def sampled_rows(n_samples: int) -> NDArray[np.int64]:
    """Choose the rows that are kept; always the same ones of as many samples."""
    rows = np.random.default_rng(0).choice(
        n_samples, min(n_samples, SAMPLE_ROWS), replace=False, shuffle=False
    )
    return np.sort(rows)


def survey_chunk(raw: Any, kept: NDArray[np.int64]) -> ChunkSurvey:
    """Check a chunk and look at it.

    Parameters
    ----------
    raw : matrix or array
        As the source gave it.
    kept : ndarray of int
        Rows of the chunk to keep.
    """
    counts = Counts.from_any(raw) if raw.shape[0] else chunk_counts(raw)
    column_nnz, column_sums = np.zeros(counts.n_features, dtype=np.int64), np.zeros(counts.n_features)
    rows = counts.by_row
    for start in range(0, rows.nnz, 1 << 22):
        part = slice(start, start + (1 << 22))
        column_nnz += np.bincount(rows.indices[part], minlength=counts.n_features)
        column_sums += np.bincount(rows.indices[part], rows.values[part], minlength=counts.n_features)
    sample = Counts.from_any(counts.to_scipy()[kept]).by_row if len(kept) else _no_rows(counts)
    return ChunkSurvey(
        np.diff(rows.indptr),
        counts.row_sums,
        column_nnz,
        column_sums,
        counts.log_factorial,
        counts.stirling,
        sample,
        row_digests(rows),
    )


def row_digests(rows: SparseRows) -> NDArray[np.uint64]:
    """Hash every row; the hash depends on all entries of the row and on no other row.

    Examples
    --------
    >>> one, other = (Counts.from_any(y).by_row for y in ([[1, 2], [2, 1]], [[2, 1], [2, 1]]))
    >>> (row_digests(one) == row_digests(other)).tolist()
    [False, True]
    """
    digests = np.zeros(rows.shape[0], dtype=np.uint64)
    for start, stop in row_blocks(rows.indptr, CHUNK):
        bounds = rows.indptr[start : stop + 1]
        part = slice(bounds[0], bounds[-1])
        entries = rows.values[part].astype(np.float64).view(np.uint64)
        entries ^= _mixed(rows.indices[part].astype(np.uint64))
        running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_mixed(entries), dtype=np.uint64)))
        digests[start:stop] = np.diff(running[bounds - bounds[0]])  # modulo 2**64, as all of it
    return digests


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit of a word over all of its bits, one to one: SplitMix64 (Steele and others, 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    return words ^ (words >> np.uint64(31))


def _no_rows(counts: Counts) -> SparseRows:
    rows = counts.by_row
    return SparseRows((0, counts.n_features), np.zeros(1, np.int64), rows.indices[:0], rows.values[:0])


def chunk_counts(raw: Any) -> Counts:
    """Compress a chunk that was checked before; quicker than `Counts.from_any`, and without its warnings."""
    matrix = raw if sparse.issparse(raw) and raw.format == "csr" else sparse.csr_array(raw)
    rows = canonical_rows(matrix, whole=False)
    return Counts(compress_sparse(matrix)[0] if rows is None else rows)


@dataclass(eq=False)
class GroupSums:
    """Sums over groups of samples.

    Parameters
    ----------
    totals : ndarray of shape (groups, m)
        Of the counts.
    weights : ndarray of shape (groups, m)
        Of the weights of those samples in which the feature is not zero.
    """

    totals: NDArray[np.float64]
    weights: NDArray[np.float64]

    def plus(self, other: GroupSums) -> GroupSums:
        """Give new sums over the samples of both."""
        return GroupSums(self.totals + other.totals, self.weights + other.weights)


class RowTotals(SparseRows):
    """Rows without their entries: how many there are, and their sum.

    Parameters
    ----------
    lengths : ndarray of int64, shape (rows,)
        Number of entries of every row.
    sums : ndarray of shape (rows,)
        Their sum.
    """

    def __init__(self, shape: tuple[int, int], lengths: NDArray[np.int64], sums: NDArray[np.float64]) -> None:
        indptr = np.concatenate(([0], np.cumsum(lengths)))
        for name, value in (("shape", shape), ("indptr", indptr), ("_sums", sums)):
            object.__setattr__(self, name, value)

    @property
    def indices(self) -> np.ndarray:
        """Refuse: entries are in the chunks."""
        raise TypeError(NOT_IN_MEMORY)

    @property
    def values(self) -> np.ndarray:
        """Refuse: entries are in the chunks."""
        raise TypeError(NOT_IN_MEMORY)

    def row_sums(self) -> NDArray[np.float64]:
        """Sum of every row."""
        sums: NDArray[np.float64] = object.__getattribute__(self, "_sums")
        return sums


Grouping: TypeAlias = Callable[["ChunkedCounts", NDArray[np.int32], int, NDArray[np.float64]], GroupSums]
"""Sums up counts over groups: number of the group and weight of every sample, and how many groups."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkedCounts(Counts):
    """Counts in chunks of rows that have been looked at once: totals here, entries in the chunks.

    Parameters
    ----------
    bounds : ndarray of int64, shape (chunks + 1,)
        First row of each chunk, and the number of rows.
    factorials, stirlings : float
        See `log1pnmf.counts.Counts.log_factorial` and `stirling`.
    sample : Counts
        Some rows, in memory.
    sample_index : ndarray of int64
        Which ones.
    row_digests : ndarray of uint64, shape (n,)
        See `row_digests`.
    tallying, grouping : callable
        Tally these counts, and sum them up over groups, in another pass.
    known : dict
        What later passes found, or keep for the next one.
    """

    source: CountSource
    bounds: NDArray[np.int64]
    factorials: float
    stirlings: float
    sample: Counts
    sample_index: NDArray[np.int64]
    row_digests: NDArray[np.uint64]
    tallying: Callable[[ChunkedCounts], Tally]
    grouping: Grouping
    known: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def gather(
        cls,
        source: CountSource,
        surveys: Iterable[ChunkSurvey],
        tallying: Callable[[ChunkedCounts], Tally],
        grouping: Grouping,
    ) -> ChunkedCounts:
        """Put together what was seen of the chunks, in their order."""
        n, m = source.shape
        column_nnz, column_sums = np.zeros(m, dtype=np.int64), np.zeros(m)
        bounds, lengths, sums, sample, digests = [0], [], [], [], []
        logs, stirlings = [], []
        for one in surveys:
            if len(one.column_sums) != m:
                raise ValueError(f"chunk {len(bounds) - 1} has {len(one.column_sums)} columns, expected {m}")
            bounds.append(bounds[-1] + len(one.row_sums))
            lengths.append(one.row_nnz)
            sums.append(one.row_sums)
            logs.append(one.log_factorial)
            stirlings.append(one.stirling)
            digests.append(one.row_digests)
            column_nnz += one.column_nnz
            column_sums += one.column_sums
            sample.append(one.sample.to_scipy())
            if source.on_chunk is not None:
                source.on_chunk(len(bounds) - 1, len(source.chunks))
        if bounds[-1] != n:
            raise ValueError(f"chunks have {bounds[-1]} rows together, but shape says {n}")
        index = sampled_rows(n)
        kept = replace(
            Counts.from_any(sparse.vstack(sample, format="csr")),
            sample_names=None if source.sample_names is None else source.sample_names[index],
            feature_names=source.feature_names,
        )
        return cls(
            RowTotals((n, m), np.concatenate(lengths), np.concatenate(sums)),
            RowTotals((m, n), column_nnz, column_sums),
            source.sample_names,
            source.feature_names,
            source=source,
            bounds=np.array(bounds, dtype=np.int64),
            factorials=math.fsum(logs),
            stirlings=math.fsum(stirlings),
            sample=kept,
            sample_index=index,
            row_digests=np.concatenate(digests),
            tallying=tallying,
            grouping=grouping,
        )

    @cached_property
    def n_empty_columns(self) -> int:
        """Number of features without any count."""
        return int(np.count_nonzero(np.diff(self.by_column.indptr) == 0))

    @cached_property
    def log_factorial(self) -> float:
        """Sum over all entries of log(y!), the constant of the Poisson log-likelihood."""
        return self.factorials

    @property
    def in_memory(self) -> bool:
        """They are in chunks."""
        return False

    @cached_property
    def stirling(self) -> float:
        """Sum over the counts of log(y!) - y log(y) + y."""
        return self.stirlings

    @cached_property
    def tally(self) -> Tally:
        """How often every feature has every count; a pass over the chunks."""
        return self.tallying(self)

    def group_sums(
        self, labels: NDArray[np.int32], n_groups: int, weights: NDArray[np.float64] | None = None
    ) -> GroupSums:
        """Sum up over groups of samples; a pass over the chunks, unless the last call was for the same.

        Parameters
        ----------
        weights : ndarray of shape (n,), optional
            Where only the totals are needed, those of the last call will do.
        """
        known: Any = self.known.get("groups")
        same = known is not None and np.array_equal(known[0], labels)
        if not same or not (weights is None or np.array_equal(known[1], weights)):
            own = np.ones(self.n_samples) if weights is None else weights
            known = self.known["groups"] = labels, own, self.grouping(self, labels, n_groups, own)
        sums: GroupSums = known[2]
        return sums

    @cached_property
    def column_sums(self) -> NDArray[np.float64]:
        """Total count of every feature."""
        return self.by_column.row_sums()

    def part_in_memory(self, most: int | None = None) -> tuple[Counts, NDArray[np.int64]]:
        """Give samples that were kept from the first look; see `Counts.part_in_memory`."""
        part, place = self.sample.part_in_memory(most)
        return part, self.sample_index[place]

    def to_scipy(self) -> sparse.csr_array:
        """Refuse: the counts are not in memory."""
        raise TypeError(NOT_IN_MEMORY)

    def checksum(self) -> str:
        """Tell these counts from others, whatever the chunks."""
        return checksum_of((self.by_row.indptr, self.row_digests))
