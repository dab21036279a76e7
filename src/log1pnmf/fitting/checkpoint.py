"""Checkpoints: the state of a running fit in one file, from which it resumes with the same bits."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from log1pnmf._common.archive import (
    StrPath,
    archive_kind,
    check_numbers,
    check_value,
    check_writable,
    from_tree,
    join_arrays,
    making_whole,
    read_archive,
    split_arrays,
    to_tree,
    write_archive,
)
from log1pnmf._common.checks import Random, check_choice, check_known, random_from_parts, warn
from log1pnmf.counts.compress import checksum_of
from log1pnmf.counts.counts import Counts
from log1pnmf.model.batches import Batches

from .runs import Progress, Run
from .settings import GIVEN, LIKELIHOODS, Settings
from .solver import History, Iteration, Point

KIND = "checkpoint"
COUNTED = ("n_components", "n_init", "max_iter")
SECONDS_BETWEEN = 30.0
"""Between two writes of a checkpoint."""


class CheckpointWriter:
    """Writes a checkpoint every few seconds, and the last state when it is closed.

    A write that fails for want of space and the like is a warning: the fit goes on, and what was written
    before stays.
    """

    def __init__(self, path: StrPath, identity: Mapping[str, Any], rng: Random, started: float) -> None:
        check_known(rng)
        self._path, self._identity, self._started = path, identity, started
        self._written = time.perf_counter()
        self._unwritten: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Take note of an iteration."""
        self._unwritten = progress
        if time.perf_counter() - self._written >= SECONDS_BETWEEN:
            self.close()

    def close(self) -> None:
        """Write what has not been written."""
        progress = self._unwritten
        if progress is None:
            return
        seconds = time.perf_counter() - self._started
        about = {"kind": KIND, "identity": self._identity, "seconds": seconds}
        try:
            check_checkpoint(self._path)  # something else may have been put there meanwhile
            write_archive(self._path, *split_arrays({**about, **to_tree(progress)}))
        except OSError as error:
            warn(f"checkpoint could not be written ({error}); the fit goes on", RuntimeWarning)
        else:
            self._unwritten = None
        self._written = time.perf_counter()


def check_checkpoint(path: StrPath) -> None:
    """Refuse a place where a checkpoint cannot be, and one where something else is."""
    check_writable(path, "checkpoint")
    if os.path.exists(path) and archive_kind(path) != KIND:
        raise FileExistsError(
            f"checkpoint is {os.fspath(path)}, but the file there is not a checkpoint and would be lost; "
            "choose another name, or remove the file"
        )


@dataclass(frozen=True, eq=False)
class Loaded:
    """A checkpoint that was read."""

    path: StrPath  # where it is
    identity: Mapping[str, Any]  # `fingerprint` of the fit it belongs to
    progress: Progress
    rng: Random  # in the state it had
    seconds: float  # what the fit had taken

    def check_same(self, here: Mapping[str, Any]) -> None:
        """Refuse to resume another fit, and say how it differs."""
        different = [
            f"{name} ({group}) is {self.identity[group].get(name)!r} there and {value!r} here"
            for group in ("data", "settings")
            for name, value in here[group].items()
            if self.identity[group].get(name) != value
        ]
        if different:
            raise ValueError(
                f"resume: {self.path} is the checkpoint of another fit: {'; '.join(different)}. "
                "Pass what that one was given, or leave out resume to start again"
            )


def load_checkpoint(path: StrPath) -> Loaded:
    """Read a checkpoint."""
    try:
        arrays, metadata = read_archive(path, kind=KIND)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"resume is {path}, but there is no such file; leave it out to start again"
        ) from None
    with making_whole(f"{path} holds a checkpoint", "start again without resume"):
        tree = join_arrays(arrays, metadata)
        identity = {group: dict(tree["identity"][group]) for group in ("data", "settings")}
        check_value("seconds", tree["seconds"], float)
        progress = from_tree(Progress, {field.name: tree[field.name] for field in fields(Progress)})
        _check(progress, identity)
        return Loaded(path, identity, progress, random_from_parts(progress.random), tree["seconds"])


def _check(progress: Progress, identity: Mapping[str, Any]) -> None:
    """Refuse progress that contradicts the fit it claims to belong to; only a forged file holds that."""
    settings, (n, m) = identity["settings"], identity["data"]["shape"]
    check_choice("likelihood", settings["likelihood"], LIKELIHOODS[1:])
    for name, value in (("rows", n), ("columns", m), *((one, settings[one]) for one in COUNTED)):
        check_value(name, value, int)
    k, last, best = settings["n_components"], progress.last, progress.best
    if last.updated is None or last.previous is None:
        raise ValueError("the state of the solver is missing")
    points: list[Iteration | Point] = [last, last.updated, last.previous]
    points += [] if best is None else [best.last]
    for point in points:
        check_numbers("loadings", point.loadings, (n, k))
        check_numbers("factors", point.factors, (m, k))
        if point.effects is not None:
            own = np.asarray(progress.changed.effects)
            check_numbers("effects", point.effects, own.shape, positive=True)
    runs: list[Progress | Run] = [progress, *([] if best is None else [best])]
    for one in runs:
        History.check(one.history)
        one.changed.check((n, m))
        if (one.changed.noise is None) != (settings["noise"] == "poisson"):
            raise ValueError("the noise is not that of the settings")
        fitted = settings["size_factors"] == "fit" and np.isfinite(settings["c"])
        if fitted != (one.changed.size_factors is not None):
            raise ValueError("size factors are not those of the settings")
        if (one.last.likelihood == "adaptive") != (one.changed.zeros is not None):
            raise ValueError(f"an iteration that is {one.last.likelihood} does not fit its zeros")
    if progress.restart >= settings["n_init"] or (best is None) != (progress.restart == 0):
        raise ValueError(f"start {progress.restart} of {settings['n_init']} cannot be")
    if (last.schedule is not None) != (settings["row_solver"] == "newton"):
        raise ValueError("the schedule of the extrapolation does not fit the settings")
    schedule = () if last.schedule is None else astuple(last.schedule)
    if not np.isfinite([*schedule, last.objective]).all():
        raise ValueError("the state of the solver must be finite numbers")


# ---------------------------------------------------------------- the same fit


def fingerprint(
    settings: Settings,
    counts: Counts,
    sizes: np.ndarray,
    start: Any = None,
    dispersion: Any = None,
    *,
    batches: Batches | None = None,
) -> dict[str, Any]:
    """Describe the data and settings of a fit; a checkpoint is resumed only if they are the same."""
    data = {
        "shape": list(counts.shape),
        "number of non-zeros": counts.nnz,
        "total": counts.total,
        "checksum": counts.checksum(),
    }
    own = to_tree(settings)
    if settings.size_factors == GIVEN:
        own["size_factors"] = f"given, with checksum {checksum_of([sizes])}"
    if settings.dispersion == GIVEN:
        own["dispersion"] = f"given, with checksum {checksum_of([np.asarray(dispersion, dtype=np.float64)])}"
    own["batch"] = "none"
    if batches is not None:
        own["batch"] = f"{batches.n_batches}, with checksum {checksum_of([batches.labels])}"
    if isinstance(start, tuple):
        own["init"] = f"given, with checksum {checksum_of(start)}"
    if settings.random_state is None:
        own["random_state"] = "not a number"
    return {"data": data, "settings": own}
