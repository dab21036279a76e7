"""Counts that stay where they are: `fit --engine streaming`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from log1pnmf._common.untrusted import Budget
from log1pnmf.counts.chunked.opening import open_counts, parse_memory
from log1pnmf.counts.chunked.runners import survey
from log1pnmf.counts.files import CountTable, Filtered
from log1pnmf.counts.files.annotated import opened, read_columns
from log1pnmf.counts.files.read import format_of
from log1pnmf.counts.files.table import BadFileError

from .console import Screen
from .inputs import Reading, describe
from .progress import Watch

__all__ = ["Streaming", "read_streamed"]


@dataclass(frozen=True)
class Streaming:
    """Where and in how much memory to work.

    Parameters
    ----------
    memory : str
        As in "4GB".
    scheduler : str, optional
        Address of a Dask scheduler; None: this process.
    """

    memory: str
    scheduler: str | None = None


def read_streamed(
    path: Path, reading: Reading, streaming: Streaming, *, screen: Screen, watch: Watch
) -> Filtered:
    """Look at all counts once and leave them on disk.

    Parameters
    ----------
    path : Path
        .h5ad or .zarr.
    reading : Reading
        Nothing can be left out.
    watch : Watch
        Shown the chunks, now and in the fits to come.
    """
    kind = format_of(path)
    if kind not in ("h5ad", "zarr"):
        raise BadFileError(
            f"--engine streaming reads .h5ad and .zarr, got {path}; write one with log1pnmf convert"
        )
    if reading.transpose or reading.min_samples or reading.min_counts or reading.min_features:
        raise BadFileError(
            "--engine streaming cannot filter or transpose; do that first with log1pnmf convert"
        )
    source = open_counts(
        path,
        layer=reading.layer,
        memory=streaming.memory,
        client=streaming.scheduler,
        on_chunk=watch.on_chunk,
        max_memory=reading.max_memory,
    )
    with watch.looking():
        counts = survey(source)
    names, labels = _obs(path, reading)
    table = CountTable(replace(counts, sample_names=names), labels, str(path), kind)
    screen.say((path.name, "bold"), f": {describe(table)} ({kind}, {len(source.chunks)} chunks)")
    return Filtered(table, np.arange(table.shape[0]), np.arange(table.shape[1]), ())


def _obs(path: Path, reading: Reading) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read names and labels of the samples."""
    budget = Budget(path, None if reading.max_memory is None else parse_memory(reading.max_memory))
    try:
        with opened(path, budget) as store:
            names, labels = read_columns(store)
    except (BadFileError, ImportError, PermissionError):
        raise
    except Exception as error:  # AnnData raises whatever it meets
        raise BadFileError(f"{path}: obs cannot be read ({error}); the file is damaged") from error
    return np.array([str(name) for name in names], dtype=object), labels
