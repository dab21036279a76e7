"""Checkpoints: the state of a running fit in one file, from which it resumes with the same bits."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from log1pnmf._common import archive
from log1pnmf._common.archive import StrPath, check_numbers, check_value, to_tree
from log1pnmf._common.checks import Random, check_choice, check_known, random_from_parts, warn
from log1pnmf.counts.compress import checksum_of
from log1pnmf.counts.counts import Counts

from .runs import Progress, Run
from .settings import GIVEN, LIKELIHOODS, Settings
from .solver import History, Iteration, Point

KIND = "checkpoint"
COUNTED = ("n_components", "n_init", "max_iter")
SECONDS_BETWEEN = 30.0  # between two writes of a checkpoint


class CheckpointWriter:
    """Writes a checkpoint every few seconds, and the last state when it is closed."""

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
            archive.write_archive(self._path, *archive.split_arrays({**about, **to_tree(progress)}))
        except OSError as error:  # no space, for instance; what was written before stays
            warn(f"checkpoint could not be written ({error}); the fit goes on", RuntimeWarning)
        else:
            self._unwritten = None
        self._written = time.perf_counter()


def check_checkpoint(path: StrPath) -> None:
    """Refuse a place where a checkpoint cannot be, and one where something else is."""
    archive.check_writable(path, "checkpoint")
    if os.path.exists(path) and archive.archive_kind(path) != KIND:
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
        """Refuse to resume another fit, with the differences."""
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
        arrays, metadata = archive.read_archive(path, kind=KIND)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"resume is {path}, but there is no such file; leave it out to start again"
        ) from None
    with archive.making_whole(f"{path} holds a checkpoint", "start again without resume"):
        tree = archive.join_arrays(arrays, metadata)
        identity = {group: dict(tree["identity"][group]) for group in ("data", "settings")}
        check_value("seconds", tree["seconds"], float)
        progress = archive.from_tree(Progress, {field.name: tree[field.name] for field in fields(Progress)})
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
            check_numbers("effects", point.effects, (len(np.asarray(last.effects)), m), positive=True)
    runs: list[Progress | Run] = [progress, *([] if best is None else [best])]
    for run in runs:
        History.check(run.history)
        _check_parameters(run.last, settings, (n, m))
    if progress.restart >= settings["n_init"] or (best is None) != (progress.restart == 0):
        raise ValueError(f"start {progress.restart} of {settings['n_init']} cannot be")
    if (last.schedule is not None) != (settings["row_solver"] == "newton"):
        raise ValueError("the schedule of the extrapolation does not fit the settings")
    schedule = () if last.schedule is None else astuple(last.schedule)
    if not np.isfinite([*schedule, last.objective]).all():
        raise ValueError("the state of the solver must be finite numbers")


def _check_parameters(at: Iteration, settings: Mapping[str, Any], shape: tuple[int, int]) -> None:
    """Refuse parameters of the model that do not go with the settings, n samples and m features."""
    (n, m), zeros = shape, at.zeros
    check_numbers("size_factors", at.size_factors, (n,), positive=True)
    for name, there, wanted in (
        ("effects", at.effects, settings["batch"] != "none"),
        ("noise", at.noise, settings["noise"] != "poisson"),
        ("zeros", zeros, at.likelihood == "adaptive"),
    ):
        if (there is not None) != wanted:
            raise ValueError(f"{name} of the last iteration are not those of the settings")
    if at.noise is not None:
        prior = at.noise.prior
        check_numbers("dispersion", at.noise.dispersion, (m,), positive=prior is not None)
        if prior is not None:
            check_numbers("centre", np.abs(prior.centre), (m,))
            check_numbers("freedom", prior.freedom, (m,))
            check_numbers("level", prior.level, (m,))
            if not prior.spread > 0.0 or math.isinf(1.0 / prior.spread):
                raise ValueError(f"spread must be positive, got {prior.spread}")
    if zeros is None:
        return
    quartic = zeros.a4 is not None and at.noise is None
    check_numbers("quadratics", np.abs(zeros.quadratics), (m, 3 + quartic + 2 * (at.noise is not None)))
    convex, concave = zeros.quadratics[:, 2 : 3 + quartic], zeros.quadratics[:, 4:]
    if (convex < 0.0).any() or (concave > 0.0).any():
        raise ValueError("the quadratics of zeros have coefficients of the wrong sign")
    check_numbers("exposure of zeros", zeros.exposure, (m, 2))
    check_numbers("caps of zeros", zeros.caps, (m,))
    check_numbers("error of zeros", np.array(zeros.error), ())
    # the compiled core would read beyond its arrays
    indptr, indices, shape = zeros.stored.indptr, zeros.stored.indices, zeros.stored.shape
    if indptr.dtype != np.int64 or indptr.shape != (m + 1,) or indices.dtype != np.int32 or indices.ndim != 1:
        raise ValueError("the zeros to evaluate have the wrong type or shape")
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any() or shape[0] != m:
        raise ValueError("the zeros to evaluate do not fit together")
    if shape[1] not in (0, n) or (len(indices) and not (indices.min() >= 0 and indices.max() < n)):
        raise ValueError(f"a zero to evaluate is beyond the {n} samples")


# ---------------------------------------------------------------- the same fit


def fingerprint(settings: Settings, counts: Counts, **given: Any) -> dict[str, Any]:
    """Describe data, settings and `given` arrays; a checkpoint is resumed only if they are the same."""
    data = {
        "shape": list(counts.shape),
        "number of non-zeros": counts.nnz,
        "total": counts.total,
        "checksum": counts.checksum(),
    }
    own = to_tree(settings)
    for name, arrays in given.items():
        if own.get(name, GIVEN) == GIVEN:
            own[name] = "none" if arrays is None else f"given, with checksum {checksum_of(arrays)}"
    if settings.random_state is None:
        own["random_state"] = "not a number"
    return {"data": data, "settings": own}
