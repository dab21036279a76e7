"""Checkpoints: a fit on its way as one file, from which it goes on with the same bits."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np

from .arrays import on_host
from .counts import Counts
from .initialize import Random
from .persist import StrPath, check_writable, read_archive, write_archive
from .randomness import check_known, random_from_parts
from .runs import Progress, Run
from .settings import Settings
from .solver.callbacks import History
from .solver.iteration import Iteration, Pair, State
from .sparse_rows import pieces
from .streaming.survey import ChunkedCounts

__all__ = ["Keeper", "Loaded", "fingerprint", "load_checkpoint"]

Parts: TypeAlias = tuple[dict[str, np.ndarray], dict[str, Any]]

KIND = "checkpoint"
NO_MATTER = ("n_jobs",)
"""Settings that do not change any bit of the fit."""


# ---------------------------------------------------------------- writing


class Keeper:
    """Writes the progress of a fit to a file every few seconds, and what is left to write when it is closed.

    A write that fails for want of space and the like is a warning: the fit goes on, and what was written
    before stays.

    Parameters
    ----------
    path : str or PathLike
    every : float
        Seconds between two writes at least; 0 writes after every iteration.
    """

    def __init__(self, path: StrPath, every: float) -> None:
        check_writable(path, "checkpoint")
        self._path, self._every = path, every
        self._identity: Mapping[str, Any] = {}
        self._started = self._written = time.perf_counter()
        self._unwritten: Progress | None = None

    def begin(self, identity: Mapping[str, Any], rng: Random, started: float) -> None:
        """Take note of what the fit is.

        Parameters
        ----------
        identity : dict
            From `fingerprint`.
        rng : Generator or RandomState
            The one the fit uses.
        started : float
            When it started, in seconds of `time.perf_counter`; earlier by what a resumed fit had taken.
        """
        check_known(rng)
        self._identity, self._started = identity, started

    def __call__(self, progress: Progress) -> None:
        """Take note of an iteration."""
        self._unwritten = progress
        if time.perf_counter() - self._written >= self._every:
            self.close()

    def close(self) -> None:
        """Write what has not been written."""
        progress = self._unwritten
        if progress is None:
            return
        arrays, metadata = _progress_parts(progress)
        metadata["identity"] = self._identity
        metadata["seconds"] = time.perf_counter() - self._started
        try:
            write_archive(self._path, arrays, metadata)
        except OSError as error:
            warnings.warn(
                f"checkpoint could not be written ({error}); the fit goes on", RuntimeWarning, stacklevel=2
            )
        else:
            self._unwritten = None
        self._written = time.perf_counter()


def _progress_parts(progress: Progress) -> Parts:
    state = progress.last.state
    assert state is not None
    arrays = {
        "updated.loadings": state.updated.loadings,
        "updated.factors": state.updated.factors,
        "previous.loadings": state.previous.loadings,
        "previous.factors": state.previous.factors,
    }
    metadata: dict[str, Any] = {
        "kind": KIND,
        "restart": progress.restart,
        "phase": progress.phase,
        "stopping": progress.stopping,
        "all_met": progress.all_met,
        "random": progress.random,
        "state": {"index": state.index, "objective": state.objective, "schedule": state.schedule},
    }
    runs = {"current": (progress.last, progress.history)}
    if progress.best is not None:
        runs["best"] = (progress.best.last, progress.best.history)
        named = ("reason", "all_met", "phase")
        metadata["best_run"] = {name: getattr(progress.best, name) for name in named}
    for name, (last, history) in runs.items():
        arrays.update({f"{name}.loadings": last.loadings, f"{name}.factors": last.factors})
        arrays.update({f"{name}.history.{column}": values for column, values in history.table().items()})
        metadata[name] = {key: getattr(last, key) for key in PLAIN}
    return {name: on_host(array) for name, array in arrays.items()}, metadata


PLAIN = [field.name for field in fields(Iteration) if field.name not in ("loadings", "factors", "state")]
"""What an iteration has beside its arrays."""


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, eq=False)
class Loaded:
    """A checkpoint that was read.

    Parameters
    ----------
    path : str or PathLike
        Where it is.
    identity : dict
        `fingerprint` of the fit it belongs to.
    progress : Progress
    rng : Generator or RandomState
        In the state it had.
    seconds : float
        What the fit had taken.
    """

    path: StrPath
    identity: Mapping[str, Any]
    progress: Progress
    rng: Random
    seconds: float

    def check_same(self, here: Mapping[str, Any]) -> None:
        """Refuse to go on with another fit, and say in what it is another.

        Parameters
        ----------
        here : dict
            `fingerprint` of the fit that is asked for.
        """
        different = [
            f"{name} ({group}) is {self.identity[group].get(name)!r} there and {value!r} here"
            for group in ("data", "settings")
            for name, value in here[group].items()
            if self.identity[group].get(name) != value
        ]
        if different:
            raise ValueError(
                f"resume: {self.path} is the checkpoint of another fit: {'; '.join(different)}. "
                "Pass what that one was given, or leave out resume to start anew"
            )


def load_checkpoint(path: StrPath) -> Loaded:
    """Read a checkpoint.

    Parameters
    ----------
    path : str or PathLike

    Returns
    -------
    Loaded

    Raises
    ------
    FileNotFoundError
        Where there is no such file.
    ValueError
        For files that are damaged, of a newer format or not checkpoints.
    """
    try:
        arrays, metadata = read_archive(path, kind=KIND)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"resume is {path}, but there is no such file; leave it out to start anew"
        ) from None
    try:
        identity = {group: dict(metadata["identity"][group]) for group in ("data", "settings")}
        rng = random_from_parts(metadata["random"])
        return Loaded(path, identity, _progress_from_parts(arrays, metadata), rng, float(metadata["seconds"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} holds a checkpoint that is not whole ({error!r}); start anew without resume"
        ) from error


def _progress_from_parts(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Progress:
    def run(name: str, state: State | None) -> tuple[Iteration, History]:
        prefix = f"{name}.history."
        table = {key.removeprefix(prefix): column for key, column in arrays.items() if key.startswith(prefix)}
        values: dict[str, Any] = {key: metadata[name][key] for key in PLAIN}
        values.update({side: arrays[f"{name}.{side}"] for side in ("loadings", "factors")})
        return Iteration(**values, state=state), History(table)

    saved, schedule = metadata["state"], metadata["state"]["schedule"]
    state = State(
        index=saved["index"],
        objective=saved["objective"],
        updated=Pair(arrays["updated.loadings"], arrays["updated.factors"]),
        previous=Pair(arrays["previous.loadings"], arrays["previous.factors"]),
        schedule=None if schedule is None else tuple(schedule),
    )
    last, history = run("current", state)
    in_a_row, restarted = metadata["stopping"]
    return Progress(
        restart=metadata["restart"],
        phase=metadata["phase"],
        last=last,
        stopping=(in_a_row, restarted),
        history=history,
        all_met=metadata["all_met"],
        random=metadata["random"],
        best=Run(*run("best", None), **metadata["best_run"]) if "best" in metadata else None,
    )


# ---------------------------------------------------------------- the same fit


def fingerprint(settings: Settings, counts: Counts, sizes: np.ndarray, random_state: Any) -> dict[str, Any]:
    """Describe data and settings of a fit, by which its checkpoint is recognised.

    Parameters
    ----------
    settings : Settings
    counts : Counts
    sizes : ndarray of shape (n,)
        Size factors.
    random_state : int, RandomState, Generator or None
        As the user gave it; only whole numbers can be compared.

    Returns
    -------
    dict of str to dict
        "data" and "settings".
    """
    if isinstance(counts, ChunkedCounts):
        checksum = counts.checksum()
    else:
        rows = counts.by_row
        checksum = _checksum((rows.indptr, rows.indices, rows.values))
    data = {
        "shape": list(counts.shape),
        "number of non-zeros": counts.nnz,
        "total": counts.total,
        "checksum": checksum,
    }
    own = {name: value for name, value in settings.as_dict().items() if name not in NO_MATTER}
    own["interval"] = None if settings.interval is None else [float(end) for end in settings.interval]
    if own["size_factors"] == "given":
        own["size_factors"] = f"given, with checksum {_checksum([sizes])}"
    if own["init"] == "given":
        own["init"] = f"given, with checksum {_checksum(settings.init)}"
    own["random_state"] = int(random_state) if isinstance(random_state, Integral) else "not a number"
    return {"data": data, "settings": own}


def _checksum(arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(array.dtype.str.encode())
        for piece in pieces(np.ascontiguousarray(array).reshape(-1)):
            digest.update(piece.data)
    return digest.hexdigest()
