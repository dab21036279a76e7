"""From a file of counts to the folder of a run: what `fit` and `sweep` share."""

from __future__ import annotations

import datetime
import math
import os
import platform
import re
import secrets
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.archive import StrPath, building, check_place, claimed, remove, replacing
from log1pnmf._common.checks import plural, require, versions
from log1pnmf._common.progress import Passes, is_live
from log1pnmf._common.safe_files import BadFileError, MemoryLimit
from log1pnmf.analysis.batches import confounded_groups
from log1pnmf.analysis.metrics import deviance_explained, factor_correlation, hoyer
from log1pnmf.analysis.sweep import along_path, fits_along
from log1pnmf.counts.chunks import open_counts
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.passes import survey
from log1pnmf.counts.read import (
    Filtered,
    created_store,
    format_of,
    opened,
    read_columns,
    read_whole,
    write_annotated,
)
from log1pnmf.counts.text import CountTable
from log1pnmf.counts.write import numbered, sample_labels, to_anndata, write_csv
from log1pnmf.fitting.callbacks import TimeLimit
from log1pnmf.fitting.checkpoint import check_checkpoint
from log1pnmf.fitting.fit import Fit, Keys, c_name, sweep_key
from log1pnmf.fitting.fit_counts import fit_log1p_nmf
from log1pnmf.fitting.settings import LARGEST_EXACT
from log1pnmf.tl.inputs import ChosenCounts, write_fit

from .console import KEPT, Screen, explain, one_line, unbroken, write_columns
from .inputs import Reading, describe, read_filtered
from .options import NOTHING_KNOWN, KnownFiles
from .run_folder import FORMAT, FORMAT_VERSION, OWN, RECORD, REPORT, is_run, json_text, source_record

# ---------- a run written to its folder, fit by fit: what is written once stays

PARTS = re.compile(r"run\.json|models|samples\.csv|sweep\.csv|report\.html|(loadings|factors)_c=[^/]+\.csv")
"""What a run leaves in its folder."""


@contextmanager
def writing_run(path: StrPath, *, force: bool = False) -> Iterator[RunWriter]:
    """Take a folder for a run, before any work; it is given back, and removed where nothing was written."""
    with claimed(path) as place:
        if any(place.iterdir()):
            if not force:
                raise FileExistsError(
                    f"{os.fspath(path)} already exists; choose another name or replace it (--force)"
                )
            if not is_run(place):
                raise FileExistsError(f"{place} exists and is not the folder of a run; it is not replaced")
        yield RunWriter(place)


class RunWriter:
    """Writes a run fit by fit: what is written once stays, whatever happens later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: dict[str, Fit] = {}

    def write(
        self,
        fits: Sequence[Fit],
        table: CountTable,
        *,
        record: Mapping[str, Any],
        measures: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    ) -> None:
        """Write what is new: fits first, then run.json, which names them, then the tables."""
        files = {f"c={c_name(fit.c)}": fit for fit in fits}
        if len(files) != len(fits):
            raise ValueError("fits must have different c, one file each")
        new = {name: fit for name, fit in files.items() if self._written.get(name) is not fit}
        names = [f"models/{name}.npz" for name in files]
        complete = {**_frame(table), "models": names, **record}
        if self._written:
            self._save(new, complete)
        else:
            with _earlier_aside(self.path):
                (self.path / "models").mkdir()
                _write_samples(self.path / "samples.csv", table, fits[0].size_factors)
                self._save(new, complete)
        n, m = table.shape
        samples, features = numbered(table.sample_names, n), numbered(table.feature_names, m)
        for name, fit in new.items():
            write_factor_tables(self.path, name, fit, samples, features)
        if measures is not None:
            shifts = [c_name(c) for c in measures["c"]]
            write_columns(self.path / "sweep.csv", {**measures, "c": shifts})

    def _save(self, new: Mapping[str, Fit], complete: Mapping[str, Any]) -> None:
        for name, fit in new.items():
            fit.save(self.path / "models" / f"{name}.npz")
        with replacing(self.path / RECORD) as file:
            file.write(f"{json_text(complete)}\n".encode())
        self._written.update(new)


def write_run(
    path: StrPath,
    fits: Sequence[Fit],
    table: CountTable,
    *,
    record: Mapping[str, Any],
    measures: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    force: bool = False,
) -> None:
    """Write the folder of a run in one go; see `RunWriter.write`."""
    with writing_run(path, force=force) as run:
        run.write(fits, table, record=record, measures=measures)


@contextmanager
def _earlier_aside(folder: Path) -> Iterator[None]:
    """Put an earlier run aside; if all goes well it is removed, if not it comes back."""
    aside, moved = folder / f".{secrets.token_hex(8)}.old", False
    try:
        aside.mkdir()
        _move_parts(folder, aside)
        moved = True
        yield
    except BaseException:
        for part in _parts(folder) if moved else []:
            remove(part)
        _move_parts(aside, folder)
        raise
    finally:
        remove(aside)


def _move_parts(source: Path, target: Path) -> None:
    for part in _parts(source) if source.exists() else []:
        os.rename(part, target / part.name)


def _parts(folder: Path) -> list[Path]:
    """Files and folders of a run; whatever else lies in its folder is not ours."""
    return [path for path in folder.iterdir() if PARTS.fullmatch(path.name)]


def _frame(table: CountTable) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": {**versions(), "platform": platform.platform()},
        "shape": list(table.shape),
        "sample_columns": list(table.sample_columns),
    }


def write_factor_tables(
    folder: Path, name: str, fit: Fit, samples: Sequence[str], features: Sequence[str]
) -> None:
    """Write loadings and factors of a fit as tables, with the names of its factors."""
    _write_factors(folder / f"loadings_{name}.csv", ["sample", *fit.factor_names], samples, fit.loadings)
    _write_factors(folder / f"factors_{name}.csv", ["feature", *fit.factor_names], features, fit.factors)


def _write_factors(path: Path, header: Sequence[str], names: Sequence[str], values: np.ndarray) -> None:
    with building(path, force=True) as temporary:
        write_csv(temporary, names, [list(header)], rows=(row.tolist() for row in values))


def _write_samples(path: Path, table: CountTable, sizes: np.ndarray) -> None:
    labels = sample_labels(table)
    columns = [sizes.tolist(), *(values.tolist() for values in labels.values())]
    names = numbered(table.sample_names, table.shape[0])
    write_csv(path, names, [[*OWN, *_other_names(list(labels))]], rows=zip(*columns, strict=True))


def _other_names(labels: Sequence[str]) -> list[str]:
    """Names for columns of labels that are not those of our own columns."""
    names = []
    for label in labels:
        name = label
        while name in OWN or (name != label and name in labels):
            name += "_label"
        names.append(name)
    return names


# ---------- counts that stay where they are: fit --engine streaming


@dataclass(frozen=True)
class Streaming:
    """Where and in how much memory to work."""

    memory: str  # as in "4GB"
    scheduler: str | None = None  # address of a Dask scheduler; None: this process


def read_streamed(path: Path, reading: Reading, streaming: Streaming, *, screen: Screen) -> Filtered:
    """Look at all counts once and leave them on disk."""
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
        on_chunk=Passes(),
        max_memory=reading.max_memory,
    )
    counts = survey(source)
    names, labels = _obs(path, reading)
    table = CountTable(replace(counts, sample_names=names), labels, str(path), kind)
    screen.say((path.name, "bold"), f": {describe(table)} ({kind}, {len(source.chunks)} chunks)")
    return Filtered(table, np.arange(table.shape[0]), np.arange(table.shape[1]), ())


def _obs(path: Path, reading: Reading) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read names and labels of the samples."""
    try:
        with opened(path, MemoryLimit(path, reading.max_memory)) as store:
            names, labels = read_columns(store)
    except (BadFileError, ImportError, PermissionError):
        raise
    except Exception as error:  # AnnData raises whatever it meets
        raise BadFileError(f"{path}: obs cannot be read ({error}); the file is damaged") from error
    return np.array([str(name) for name in names], dtype=object), labels


# ---------- results written into AnnData, for those who go on with scanpy


def write_annotated_fits(
    path: Path,
    fits: Sequence[Fit],
    filtered: Filtered,
    *,
    source: Path,
    force: bool = False,
    max_memory: str | None = None,
) -> None:
    """Write fits as `log1pnmf.tl` does: one under the usual keys, several under those of a sweep."""
    adata = _annotated(filtered, source, MemoryLimit(source, max_memory))
    selection = ChosenCounts(filtered.table.counts, np.arange(adata.n_vars), None)
    for fit in fits:
        keys = Keys() if len(fits) == 1 else Keys(sweep_key(fit.c))
        write_fit(adata, keys, fit, selection)
    with building(path, force=force) as temporary, created_store(temporary) as store:
        write_annotated(store, adata)


def _annotated(filtered: Filtered, source: Path, limit: MemoryLimit) -> Any:
    """Take the object in the file where it has the same samples and features, else one with the counts."""
    table = filtered.table
    if table.format in ("h5ad", "zarr"):
        whole = read_whole(source, limit)
        samples, features = filtered.kept_samples, filtered.kept_features
        names = [] if table.feature_names is None else list(table.feature_names)
        if samples.max() < whole.n_obs and features.max() < whole.n_vars:
            part = whole[samples, features]
            if part.var_names.tolist() == names:
                return part.copy()
    return to_anndata(table)


# ---------- the report of a run, from what is in memory or in its folder


def report_fits(
    path: Path,
    fits: Sequence[Fit],
    *,
    record: Mapping[str, Any],
    labels: np.ndarray | None,
    counts: Counts | None = None,
    title: str | None = None,
) -> None:
    """Write the report of a run."""
    require("jinja2", purpose="the report")
    from log1pnmf.report.document import write_report

    source = Path(record["source"]["path"])
    write_report(
        path,
        fits,
        title=title or source.name.split(".")[0].replace("_", " "),
        groupby=labels,
        group_name=record["groupby"] if labels is not None else None,
        source=source.name,
        command=record["command"],
        filters=record["filters"],
        notes=record["notes"],
        counts=counts,
    )


def counts_again(record: Any) -> tuple[Counts | None, str]:
    """Read the counts of a run again, where they are as they were."""
    source = Path(record["source"]["path"])
    if not source.exists():
        return None, f"{source} is not there any more"
    if {**source_record(source), "format": record["source"]["format"]} != record["source"]:
        return None, f"{source} has changed since the fit"
    try:
        # The memory limit is not taken from the folder, which may come from someone else.
        reading = Reading(**{**record["reading"], "max_memory": None})
        table = reading.filtered(reading.table(source)).table
    except (ValueError, TypeError, OSError, ImportError) as error:
        return None, one_line(error)
    if list(table.shape) != record["shape"]:
        return None, f"{source} has changed since the fit"
    return table.counts, ""


# ---------- from a file of counts to the folder of a run: what fit and sweep share

FAILED = 1


@dataclass(frozen=True)
class RunPlan:
    """What a user asked a command for."""

    # counts, and the folder for the results
    file: Path
    output: Path
    reading: Reading
    c: list[float]
    parameters: Mapping[str, Any]  # of the fits, without c; see `log1pnmf.fitting.fit_counts.Request`
    along: bool = False  # whether each fit starts from the one before
    groupby: str | None = None  # column of labels, for the report
    batch: str | None = None  # column of batches
    time_limit: float | None = None  # seconds for each fit
    resume: Path | None = None  # checkpoint to go on from
    report: bool = True
    force: bool = False
    write_h5ad: Path | None = None  # where to write AnnData with the results
    streaming: Streaming | None = None  # counts stay on disk
    known: KnownFiles = NOTHING_KNOWN  # what is known of some factors


@dataclass
class _Done:
    """What has come out so far, in memory and in the folder."""

    run: RunWriter
    table: CountTable
    asked: Mapping[str, Any]
    fits: list[Fit] = field(default_factory=list)
    measures: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    finished: bool = False

    @property
    def record(self) -> dict[str, Any]:
        """What goes to run.json."""
        state = {"finished": self.finished, "interrupted": self.interrupted}
        return {**self.asked, **state, "fits": self.measures}

    def keep(self, fit: Fit, measures: dict[str, Any]) -> None:
        """Take a fit; of two at the same c the better one."""
        for place, other in enumerate(self.fits):
            if other.c == fit.c:
                if fit.objective < other.objective:
                    self.fits[place], self.measures[place] = fit, measures
                return
        self.fits.append(fit)
        self.measures.append(measures)

    def write(self) -> None:
        """Bring the folder up to date; Ctrl-C waits until that is done."""
        columns = {name: [row[name] for row in self.measures] for name in self.measures[0]}
        with unbroken() as pressed:
            self.run.write(
                self.fits,
                self.table,
                record=self.record,
                measures=columns if len(self.fits) > 1 else None,
            )
        self.interrupted = self.interrupted or bool(pressed)

    def words(self) -> str:
        """Describe which fits there are."""
        return f"c = {', '.join(c_name(fit.c) for fit in self.fits)}"


def carry_out(plan: RunPlan, screen: Screen) -> int:
    """Read, fit, write and report what was done."""
    _check_places(plan)
    with writing_run(plan.output, force=plan.force) as run:
        if plan.streaming is None:
            filtered = read_filtered(plan.file, plan.reading, screen)
        else:
            filtered = read_streamed(plan.file, plan.reading, plan.streaming, screen=screen)
        if plan.groupby is not None:
            filtered.table.labels(plan.groupby)
        if plan.batch is not None:
            filtered.table.labels(plan.batch)
        done = _Done(run, filtered.table, _record(plan, filtered))
        try:
            _fit_all(plan, screen, done)
        except Exception:
            if done.fits:
                screen.say(("kept ", "green"), (str(plan.output), "bold"), f" with {done.words()}")
            raise
        if not done.fits:
            raise KeyboardInterrupt
        try:
            problems = _after_the_fits(plan, filtered, screen, done)
            _tell(plan, screen, done, problems)
        except KeyboardInterrupt:
            screen.error(f"interrupted: the fits are in {plan.output}")
            return KEPT
    screen.result({"output": str(plan.output), **done.record})
    if done.interrupted:
        return KEPT
    return FAILED if problems else 0


def _after_the_fits(plan: RunPlan, filtered: Filtered, screen: Screen, done: _Done) -> dict[str, str]:
    """Write what can be made again from the fits, the report last; return the error of each that failed."""
    steps: dict[str, Callable[[], None]] = {}
    if plan.write_h5ad is not None:
        target, source, force = plan.write_h5ad, plan.file, plan.force
        memory = plan.reading.max_memory
        steps[str(target)] = lambda: write_annotated_fits(
            target, done.fits, filtered, source=source, force=force, max_memory=memory
        )
    if plan.report:
        labels = None if plan.groupby is None else filtered.table.labels(plan.groupby)
        path = done.run.path / REPORT
        steps[REPORT] = lambda: report_fits(
            path, done.fits, record=done.record, labels=labels, counts=filtered.table.counts
        )
    problems: dict[str, str] = {}
    for name, step in steps.items():
        if done.interrupted and name == REPORT:
            problems[name] = "interrupted"
            break
        try:
            with screen.busy(f"writing {name}"):
                step()
        except KeyboardInterrupt:
            done.interrupted = True
            problems[name] = "interrupted"
        except Exception as error:  # a fit that took hours is kept, whatever happens to its picture
            problems[name] = explain(error)
    return problems


def _check_places(plan: RunPlan) -> None:
    """Refuse what cannot be written, before the data are read."""
    if plan.write_h5ad is not None:
        if plan.write_h5ad.suffix not in (".h5ad", ".zarr"):
            raise ValueError(f"--write-h5ad must end with .h5ad or .zarr, got {plan.write_h5ad}")
        check_place(plan.write_h5ad, force=plan.force)
    if plan.resume is not None and not plan.resume.exists():
        raise FileNotFoundError(f"--resume {plan.resume} does not exist; leave it out for a new fit")
    if "checkpoint" in plan.parameters:
        check_checkpoint(plan.parameters["checkpoint"])


# ---------------------------------------------------------------- fitting


def _fit_all(plan: RunPlan, screen: Screen, done: _Done) -> None:
    """Fit, and write every fit as soon as it is done."""
    width = max(len(c_name(c)) for c in plan.c)
    limit: TimeLimit | None = None
    parameters = {
        **plan.parameters,
        **plan.known.parameters(),
        "callbacks": (lambda iteration: limit is not None and limit(iteration),),
        "verbose": int(is_live()),
    }
    if plan.batch is not None:
        parameters["batch"] = done.table.labels(plan.batch)
    fits = _fits(plan, done.table.counts, parameters)
    path = along_path(plan.c) if plan.along else plan.c
    try:
        for number in range(1, len(path) + 1):
            limit = None if plan.time_limit is None else TimeLimit(plan.time_limit)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                fit = next(fits)
                done.interrupted = fit.stopped == "interrupted"
                fit, row = _examined(fit, done, plan.parameters["n_jobs"])
                done.keep(fit, row)
                done.finished = number == len(path) and not done.interrupted
                done.write()
            _tell_fit(fit, row, screen, width=width)
            notes = [one_line(warning.message) for warning in caught]
            if plan.groupby is not None:
                notes += confounded_groups(fit, done.table.labels(plan.groupby))
            screen.notes(_notes(fit, notes))
            if done.interrupted:
                return
    except KeyboardInterrupt:
        done.interrupted = True
        if done.fits:
            done.write()


def _examined(fit: Fit, done: _Done, n_jobs: int | None) -> tuple[Fit, dict[str, Any]]:
    """Measure a fit; where Ctrl-C is pressed meanwhile, only what takes no time."""
    counts = done.table.counts
    if not done.interrupted:
        try:
            explained, quick = math.nan, fit.link.is_identity or math.prod(counts.shape) <= LARGEST_EXACT
            if quick and counts.in_memory:
                explained = deviance_explained(fit, counts, n_jobs=n_jobs)
            return fit, _measures(fit, explained)
        except KeyboardInterrupt:
            done.interrupted = True
    return fit, _measures(fit, math.nan)


def _fits(plan: RunPlan, counts: Counts, parameters: Mapping[str, Any]) -> Iterator[Fit]:
    if plan.along:
        yield from fits_along(counts, c=plan.c, **parameters)
        return
    for c in plan.c:
        yield fit_log1p_nmf(counts, c=c, resume=plan.resume, **parameters)


def _notes(fit: Fit, warned: Sequence[str]) -> list[str]:
    """Return messages and warnings of a fit, without those that were printed with the data."""
    messages = [one_line(message) for message in fit.messages]
    told = [message for message in messages if "without any count" not in message]
    return told + [text for text in warned if not any(text.startswith(message) for message in messages)]


def _measures(fit: Fit, explained: float) -> dict[str, Any]:
    """Numbers of a fit, for tables, JSON and the screen."""
    return {
        "c": fit.c,
        "log_likelihood": math.nan if fit.log_likelihood is None else fit.log_likelihood,
        "deviance_explained": explained,
        "factor_correlation": factor_correlation(fit.factors),
        "sparsity_loadings": float(hoyer(fit.loadings).mean()),
        "sparsity_factors": float(hoyer(fit.factors).mean()),
        "n_iter": fit.n_iter,
        "converged": fit.converged,
        "kkt_residual": fit.kkt_residual,
        "seconds": fit.seconds,
        "likelihood": fit.settings.likelihood,
    }


# ---------------------------------------------------------------- telling


def _tell_fit(fit: Fit, row: Mapping[str, Any], screen: Screen, *, width: int) -> None:
    if fit.converged:
        state = ("converged", "green")
    elif fit.stopped == "callback":
        state = ("stopped by --time-limit", "yellow")
    else:
        state = ("not converged", "yellow")
    value = row["log_likelihood"]
    likelihood = "not computed" if math.isnan(value) else f"{value:,.0f}"
    explained = row["deviance_explained"]
    screen.say(
        (f"c = {c_name(fit.c):<{width}}", "bold"),
        f"  log-likelihood {likelihood}",
        "" if math.isnan(explained) else f", deviance explained {explained:.1%}",
        ", ",
        state,
        f" after {fit.n_iter} iterations ({fit.seconds:.1f} s), KKT residual {fit.kkt_residual:.0e}, "
        f"likelihood {fit.settings.likelihood}",
    )


def _tell(plan: RunPlan, screen: Screen, done: _Done, problems: Mapping[str, str]) -> None:
    place = plan.output
    if done.interrupted:
        screen.say(("interrupted: ", "yellow"), "the fit so far is kept")
    screen.say(
        ("wrote ", "green"),
        (str(place), "bold"),
        f" ({plural(len(done.fits), 'model')}, tables, run.json)",
    )
    if plan.write_h5ad is not None and str(plan.write_h5ad) not in problems:
        screen.say(("wrote ", "green"), (str(plan.write_h5ad), "bold"))
    if plan.report and REPORT not in problems:
        screen.say("look at ", (str(place / REPORT), "bold"))
    which = f" -c {c_name(done.fits[0].c)}" if len(done.fits) > 1 else ""
    screen.say("then:")
    screen.say(f"  log1pnmf info {place}")
    screen.say(f"  log1pnmf transform {place} NEW_FILE{which} -o loadings.csv")
    for name, why in problems.items():
        again = f"; log1pnmf report {place} makes it" if name == REPORT else ""
        screen.error(f"{name} was not written: {why}. The fits are in {place}{again}")


def _record(plan: RunPlan, filtered: Filtered) -> dict[str, Any]:
    return {
        "command": shlex.join(["log1pnmf", *sys.argv[1:]]),
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "source": {**source_record(plan.file), "format": filtered.table.format},
        "reading": plan.reading.as_dict(),
        "filters": list(filtered.report),
        "notes": list(filtered.table.notes),
        "groupby": plan.groupby,
        "batch": plan.batch,
        "parameters": dict(plan.parameters),
        "known": plan.known.as_dict(),
    }
