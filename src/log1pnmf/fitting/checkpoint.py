"""Checkpoints: the state of a running fit in one file, from which it resumes with the same bits."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

import numpy as np

from log1pnmf._common.archive import (
    StrPath,
    archive_kind,
    check_numbers,
    check_value,
    check_writable,
    making_whole,
    read_archive,
    write_archive,
)
from log1pnmf._common.arrays import on_host
from log1pnmf._common.checks import Random, check_choice, check_known, random_from_parts, warn
from log1pnmf.counts.compress import checksum_of
from log1pnmf.counts.counts import Counts
from log1pnmf.model.batches import Batches
from log1pnmf.model.problem import Likelihood

from .callbacks import History
from .fit import Changed, Stopped
from .runs import Progress, Run
from .settings import GIVEN, LIKELIHOODS, Settings
from .solver import Iteration, Pair, State
from .starts import Start

Parts: TypeAlias = tuple[dict[str, np.ndarray], dict[str, Any]]

KIND = "checkpoint"
COUNTED = ("n_components", "n_init", "max_iter")
SECONDS_BETWEEN = 30.0
"""Between two writes of a checkpoint."""


# ---------------------------------------------------------------- writing


class CheckpointWriter:
    """Writes a checkpoint every few seconds, and the last state when it is closed.

    A write that fails for want of space and the like is a warning: the fit goes on, and what was written
    before stays.
    """

    def __init__(self, path: StrPath) -> None:
        check_checkpoint(path)
        self._path = path
        self._identity: Mapping[str, Any] = {}
        self._started = self._written = time.perf_counter()
        self._unwritten: Progress | None = None

    def begin(self, identity: Mapping[str, Any], rng: Random, started: float) -> None:
        """Take note of what the fit is."""
        check_known(rng)
        self._identity, self._started = identity, started

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
        arrays, metadata = _progress_parts(progress)
        metadata["identity"] = self._identity
        metadata["seconds"] = time.perf_counter() - self._started
        try:
            check_checkpoint(self._path)  # something else may have been put there meanwhile
            write_archive(self._path, arrays, metadata)
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


def _progress_parts(progress: Progress) -> Parts:
    state = progress.last.state
    assert state is not None
    pairs = {"updated": state.updated, "previous": state.previous}
    arrays = {
        f"{name}.{part}": array for name, pair in pairs.items() for part, array in pair.arrays().items()
    }
    metadata: dict[str, Any] = {
        "kind": KIND,
        "restart": progress.restart,
        "start": progress.start,
        "stopping": progress.stopping,
        "random": progress.random,
        "state": {"index": state.index, "objective": state.objective, "schedule": state.schedule},
    }
    runs: dict[str, Progress | Run] = {"current": progress}
    if progress.best is not None:
        runs["best"] = progress.best
        named = ("stopped", "errors", "start")
        metadata["best_run"] = {name: getattr(progress.best, name) for name in named}
    for name, one in runs.items():
        last, changed = one.last, one.changed.arrays()
        arrays.update({f"{name}.loadings": last.loadings, f"{name}.factors": last.factors})
        arrays.update({f"{name}.history.{column}": values for column, values in one.history.table().items()})
        arrays.update({f"{name}.{part}": array for part, array in changed.items()})
        metadata[name] = {key: getattr(last, key) for key in PLAIN}
    return {name: on_host(array) for name, array in arrays.items()}, metadata


PLAIN: dict[str, type] = {
    "index": int,
    "loss": float,
    "objective": float,
    "relative_change": float,
    "kkt_residual": float,
    "beta": float,
    "seconds": float,
    "restarted": bool,
    "n_rejected": int,
    "likelihood": str,
}
"""What an iteration has beside its arrays."""


# ---------------------------------------------------------------- reading


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
        identity = {group: dict(metadata["identity"][group]) for group in ("data", "settings")}
        check_value("seconds", metadata["seconds"], float)
        progress = _progress_from_parts(arrays, metadata)
        _check(progress, identity)
        rng = random_from_parts(metadata["random"])
        return Loaded(path, identity, progress, rng, float(metadata["seconds"]))


def _check(progress: Progress, identity: Mapping[str, Any]) -> None:
    """Refuse progress that contradicts the fit it claims to belong to; only a forged file holds that."""
    settings, (n, m) = identity["settings"], identity["data"]["shape"]
    check_choice("likelihood", settings["likelihood"], LIKELIHOODS[1:])
    for name, value in (("rows", n), ("columns", m), *((one, settings[one]) for one in COUNTED)):
        check_value(name, value, int)
    k, last, state = settings["n_components"], progress.last, progress.last.state
    assert state is not None  # it was just made
    pairs: dict[str, Iteration | Pair] = {
        "current": last,
        "updated": state.updated,
        "previous": state.previous,
    }
    runs: list[Progress | Run] = [progress]
    if progress.best is not None:
        pairs["best"] = progress.best.last
        runs.append(progress.best)
        check_choice("best_run.stopped", progress.best.stopped, get_args(Stopped))
        check_value("best_run.start", progress.best.start, str)
        for error in progress.best.errors or ():
            check_value("best_run.errors", error, float)
    for name, pair in pairs.items():
        check_numbers(f"{name}.loadings", pair.loadings, (n, k))
        check_numbers(f"{name}.factors", pair.factors, (m, k))
        if pair.effects is not None:
            own = np.asarray(progress.changed.effects)
            check_numbers(f"{name}.effects", pair.effects, own.shape, positive=True)
    for one in runs:
        iteration = one.last
        History.check(one.history.table())
        noise = one.changed.noise
        if (noise.name == "poisson") != (settings["noise"] == "poisson"):
            raise ValueError(f"{noise.name} noise is not that of the settings")
        fitted = settings["size_factors"] == "fit" and np.isfinite(settings["c"])
        if fitted != (one.changed.size_factors is not None):
            raise ValueError("size factors are not those of the settings")
        for name, kind in PLAIN.items():
            check_value(name, getattr(iteration, name), kind)
        check_choice("likelihood", iteration.likelihood, get_args(Likelihood))
        if (iteration.likelihood == "adaptive") != (one.changed.zeros is not None):
            raise ValueError(f"an iteration that is {iteration.likelihood} does not fit its zeros")
    check_value("restart", progress.restart, int)
    if progress.restart >= settings["n_init"] or (progress.best is None) != (progress.restart == 0):
        raise ValueError(f"start {progress.restart} of {settings['n_init']} cannot be")
    _check_state(progress, state, extrapolates=settings["row_solver"] == "newton")


def _check_state(progress: Progress, state: State, *, extrapolates: bool) -> None:
    """Refuse a state from which the solver cannot resume."""
    check_value("start", progress.start, str)
    check_value("stopping", progress.stopping[0], int)
    check_value("stopping", progress.stopping[1], bool)
    check_value("state.index", state.index, int)
    check_value("state.objective", state.objective, float)
    if (state.schedule is not None) != extrapolates:
        raise ValueError("the schedule of the extrapolation does not fit the settings")
    schedule = () if state.schedule is None else state.schedule
    for value in schedule:
        check_value("schedule", value, float)
    if len(schedule) not in (0, 4) or not np.isfinite([*schedule, state.objective]).all():
        raise ValueError("the state of the solver must be finite numbers")


def _progress_from_parts(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Progress:
    def changed(name: str) -> Changed:
        own = {
            part.removeprefix(f"{name}."): array for part, array in arrays.items() if part.startswith(name)
        }
        return Changed.from_arrays(own, (len(own["factors"]), len(own["loadings"])))

    def best() -> Run:
        found = metadata["best_run"]
        errors = found["errors"]
        if errors is not None:
            signed, absolute = errors
            errors = (signed, absolute)
        return Run(*run("best", None), found["stopped"], changed("best"), errors, found["start"])

    def run(name: str, state: State | None) -> tuple[Iteration, History]:
        prefix = f"{name}.history."
        table = {key.removeprefix(prefix): column for key, column in arrays.items() if key.startswith(prefix)}
        values: dict[str, Any] = {key: metadata[name][key] for key in PLAIN}
        values.update({side: arrays[f"{name}.{side}"] for side in ("loadings", "factors")})
        return Iteration(**values, state=state), History(table)

    def pair(name: str) -> Pair:
        return Pair(arrays[f"{name}.loadings"], arrays[f"{name}.factors"], arrays.get(f"{name}.effects"))

    saved, schedule = metadata["state"], metadata["state"]["schedule"]
    state = State(
        index=saved["index"],
        objective=saved["objective"],
        updated=pair("updated"),
        previous=pair("previous"),
        schedule=None if schedule is None else tuple(schedule),
    )
    last, history = run("current", state)
    in_a_row, restarted = metadata["stopping"]
    return Progress(
        restart=metadata["restart"],
        last=last,
        stopping=(in_a_row, restarted),
        history=history,
        changed=changed("current"),
        random=metadata["random"],
        best=best() if "best" in metadata else None,
        start=metadata["start"],
    )


# ---------------------------------------------------------------- the same fit


def fingerprint(
    settings: Settings,
    counts: Counts,
    sizes: np.ndarray,
    start: Start,
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
    own = settings.as_dict()
    if settings.size_factors == GIVEN:
        own["size_factors"] = f"given, with checksum {checksum_of([sizes])}"
    if settings.dispersion == GIVEN:
        own["dispersion"] = f"given, with checksum {checksum_of([np.asarray(dispersion, dtype=np.float64)])}"
    own["batch"] = "none"
    if batches is not None:
        own["batch"] = f"{batches.n_batches}, with checksum {checksum_of([batches.labels])}"
    if start.arrays is not None:
        own["init"] = f"given, with checksum {checksum_of(start.arrays)}"
    if settings.random_state is None:
        own["random_state"] = "not a number"
    return {"data": data, "settings": own}
