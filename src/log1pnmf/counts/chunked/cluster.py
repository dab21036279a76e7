"""Passes on a `dask.distributed` cluster.

Workers keep no state of the fit: a task gets its chunk, the loadings where it starts and the factors, and
gives loadings and sums back. A task that was lost with its worker is run again elsewhere; the result is the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.optional import require
from log1pnmf._common.rows import Rows

from .chunks import DaskChunks
from .opening import CountSource
from .survey import ChunkedCounts, ChunkSurvey, chunk_counts, sampled_rows, survey_chunk
from .tasks import ChunkTask, Labels, Receive, Sums

__all__ = ["ClusterRunner"]

HELD_SHARE = 0.5
"""Part of the workers' memory that chunks may take; where they need more they are read anew in every pass."""


class ClusterRunner:
    """Runs one task per chunk; the workers add up the sums pair by pair, always the same pairs.

    Parameters
    ----------
    source : CountSource
        With a client.
    """

    def __init__(self, source: CountSource) -> None:
        require("distributed", purpose="a cluster")
        self._client, self._chunks = source.client, source.chunks
        self._held: list[Any] | None = None

    def survey(self) -> Iterator[ChunkSurvey]:
        """Look at every chunk for the first time, in their order."""
        client, n = self._client, len(self._chunks)
        raw = self._raw()
        lengths = client.gather([client.submit(_n_rows, one, pure=False) for one in raw])
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        kept = sampled_rows(self._chunks.shape[0])
        seen = [
            client.submit(
                survey_chunk,
                raw[i],
                kept[(kept >= bounds[i]) & (kept < bounds[i + 1])] - bounds[i],
                pure=False,
            )
            for i in range(n)
        ]
        for one in seen:
            yield one.result()

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
        """Run a task on every chunk; see `log1pnmf.counts.chunked.runners.Runner.run`."""
        from dask import config as dask_config
        from distributed import as_completed

        client, bounds = self._client, counts.bounds
        held = self._hold(counts)
        # A task instead of scattered data: those could not be computed again when their worker dies.
        with dask_config.set({"distributed.admin.large-graph-warning-threshold": "4GB"}):
            everywhere = client.submit(_itself, task, pure=False, retries=3)
        done = []
        for i, chunk in enumerate(held):
            rows = slice(bounds[i], bounds[i + 1])
            begin = start.read(rows.start, rows.stop)
            own = None if labels is None else labels[rows]
            given = (everywhere, chunk, sizes[rows], own, begin)
            done.append(client.submit(_task, *given, pure=False, retries=3))
        loadings = [client.submit(_part, one, 0, pure=False) for one in done]
        total = _tree([client.submit(_part, one, 1, pure=False) for one in done], client)
        del done
        number = {future.key: i for i, future in enumerate(loadings)}
        for future in as_completed(loadings):
            receive(number[future.key], future.result())
            future.release()
        sums: Sums = total.result()
        return sums

    def _raw(self) -> list[Any]:
        """Chunks as tasks that have not run, or futures."""
        if isinstance(self._chunks, DaskChunks):
            return list(self._client.compute(self._chunks.delayed(), retries=3))
        ones = [self._chunks.only(index) for index in range(len(self._chunks))]
        return [self._client.submit(_read, one, pure=False, retries=3) for one in ones]

    def _hold(self, counts: ChunkedCounts) -> Sequence[Any]:
        """Chunks as futures that stay on the workers where there is room; else as tasks that read them."""
        if self._held is not None:
            return self._held
        raw = self._raw()
        chunks = [self._client.submit(chunk_counts, one, pure=False, retries=3) for one in raw]
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        room = sum(worker["memory_limit"] or np.inf for worker in workers)
        if 16 * counts.nnz <= HELD_SHARE * room:
            self._held = chunks
        return chunks


def _n_rows(raw: Any) -> int:
    return int(raw.shape[0])


def _itself(task: ChunkTask) -> ChunkTask:
    return task


def _read(one: Callable[[], Any]) -> Any:
    return one()


def _task(task: ChunkTask, counts: Any, sizes: Any, labels: Labels, start: Any) -> tuple[Any, Sums]:
    sums = task.no_sums()
    return task(counts, sizes, labels, start=start, into=sums), sums


def _part(result: tuple[Any, Sums], which: int) -> Any:
    return result[which]


def _tree(parts: list[Any], client: Any) -> Any:
    """Add up pair by pair: the order depends on the number of parts and on nothing else."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [client.submit(_added, *pair, pure=False) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


def _added(first: Sums, second: Sums) -> Sums:
    return first.plus(second)
