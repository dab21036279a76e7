"""``log1pnmf fit``, ``sweep`` and ``consensus``: from a file of counts to the folder of a run."""

from __future__ import annotations

import datetime
import math
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer

from log1pnmf._common.archive import building, check_place, from_tree, to_tree
from log1pnmf._common.checks import Passes, plural, require, versions
from log1pnmf._common.safe_files import BadFileError, MemoryLimit, open_store, parse_memory, readable
from log1pnmf.analysis.batches import confounded_groups
from log1pnmf.analysis.metrics import deviance_explained, measures
from log1pnmf.analysis.stability import along_path, fits_along
from log1pnmf.analysis.stability import consensus as find_consensus
from log1pnmf.cli import options as common
from log1pnmf.counts.chunks import DEFAULT_MEMORY, open_counts
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.features import select_features
from log1pnmf.counts.passes import survey
from log1pnmf.counts.read import Filtered, format_of, read_columns, read_whole
from log1pnmf.counts.text import CountTable
from log1pnmf.counts.write import to_anndata, write_anndata
from log1pnmf.fitting.callbacks import TimeLimit
from log1pnmf.fitting.fit import Fit, Keys, c_name, sweep_key
from log1pnmf.fitting.fit_counts import fit_log1p_nmf
from log1pnmf.fitting.new_features import extend_features
from log1pnmf.fitting.settings import LARGEST_EXACT, Settings
from log1pnmf.fitting.summary import factors_in_words
from log1pnmf.tl.tools import ChosenCounts, write_fit

from .console import KEPT, Screen, noted, one_line, unbroken
from .options import Reading, SolverOptions, batches_of, describe, read_filtered, unfolded, with_tables
from .run_folder import REPORT, RunRecord, RunWriter, Source, claimed_for_run, write_picture

# ---------- counts that stay where they are: fit --engine streaming


def read_streamed(path: Path, reading: Reading, scheduler: str | None, screen: Screen) -> Filtered:
    """Pass over all counts once and leave them on disk; `scheduler` is the address of a Dask cluster."""
    kind = format_of(path)
    if kind not in ("h5ad", "zarr"):
        raise BadFileError(f"--engine streaming reads .h5ad and .zarr, got {path}; use log1pnmf convert")
    filters = reading.min_samples, reading.min_counts, reading.min_features, reading.mask_var
    if reading.transpose or any(filters):
        raise BadFileError("--engine streaming cannot filter or transpose; log1pnmf convert does that first")
    source = open_counts(
        path,
        layer=reading.layer,
        memory=reading.max_memory or DEFAULT_MEMORY,
        client=scheduler,
        on_chunk=Passes(),
        max_memory=reading.max_memory,
    )
    with readable(path, kind), open_store(path, MemoryLimit(path, reading.max_memory)) as store:
        listed, labels = read_columns(store)
    names = np.array([str(name) for name in listed], dtype=object)
    table = CountTable(replace(survey(source), sample_names=names), labels, str(path), kind)
    if reading.gene_symbols is not None:
        table = reading.with_symbols(table, reading.gene_symbols)
    screen.say((path.name, "bold"), f": {describe(table)} ({kind}, {len(source.chunks)} chunks)")
    return Filtered(table, np.arange(table.shape[0]), np.arange(table.shape[1]), ())


# ---------- results written into AnnData, for those who go on with scanpy


def write_annotated_fits(fits: Sequence[Fit], filtered: Filtered, options: RunOptions) -> None:
    """Write fits as `log1pnmf.tl` does: one under the usual keys, several under those of a sweep."""
    assert options.write_h5ad is not None
    adata = _annotated(filtered, options.reading)
    fractions = options.reading.allow_fractions
    selection = ChosenCounts(filtered.table.counts, np.arange(adata.n_vars), None, fractions)
    for fit in fits:
        write_fit(adata, Keys() if len(fits) == 1 else Keys(sweep_key(fit.c)), fit, selection)
    with building(options.write_h5ad, force=options.force) as temporary:
        write_anndata(adata, temporary)


def _annotated(filtered: Filtered, reading: Reading) -> Any:
    """Take the object in the file where it has the same samples and features, else one with the counts."""
    table = filtered.table
    if table.format in ("h5ad", "zarr"):
        source = Path(table.source)
        whole = read_whole(source, MemoryLimit(source, reading.max_memory))
        renamed = reading.gene_symbols is not None and reading.layer != "raw"
        samples, features = filtered.kept_samples, filtered.kept_features
        names = [] if table.feature_names is None else list(table.feature_names)
        if samples.max() < whole.n_obs and features.max() < whole.n_vars:
            part = whole[samples, features]
            if renamed or part.var_names.tolist() == names:
                return part.copy()
    return to_anndata(table)


# ---------- the report of a run, from what is in memory or in its folder


def report_fits(
    path: Path,
    fits: Sequence[Fit],
    *,
    record: RunRecord,
    labels: np.ndarray | None,
    counts: Counts | None = None,
    title: str | None = None,
) -> None:
    """Write the report of a run."""
    require("jinja2", purpose="the report")
    from log1pnmf.report.document import write_report

    source = Path(record.source.path)
    write_report(
        path,
        fits,
        title=title or source.name.split(".")[0].replace("_", " "),
        groupby=labels,
        group_name=None if labels is None else record.groupby,
        source=source.name,
        command=record.command,
        filters=record.filters,
        notes=record.notes,
        counts=counts,
    )


def counts_again(record: RunRecord) -> tuple[Counts | None, str]:
    """Read the counts of a run again, where they are as they were; otherwise return why not."""
    source = Path(record.source.path)
    if not source.exists():
        return None, f"{source} is not there any more"
    if Source.of(source) != record.source:
        return None, f"{source} has changed since the fit"
    try:
        # The memory limit is not taken from the folder, which may come from someone else.
        reading = replace(from_tree(Reading, record.reading, "reading"), max_memory=None)
        table = reading.filtered(reading.table(source, fractions=reading.allow_fractions)).table
    except (ValueError, TypeError, OSError, ImportError) as error:
        return None, one_line(error)
    if table.shape != record.shape:
        return None, f"{source} has changed since the fit"
    return table.counts, ""


# ---------- from a file of counts to the folder of a run: what fit and sweep share

FAILED = 1
N_TOP = 6  # features printed for each factor


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options that fit and sweep share."""

    noise: common.Noise = Settings.noise
    batch: common.Batch = None
    reading: Reading
    solver: SolverOptions
    time_limit: common.TimeLimit = None
    output: common.Folder
    groupby: common.GroupBy = None
    report: common.Report = True
    write_h5ad: common.WriteH5ad = None
    json: common.Json = False
    force: common.Force = False


@dataclass(frozen=True)
class RunPlan:
    """What a user asked a command for."""

    file: Path
    options: RunOptions
    c: list[float]
    parameters: Mapping[str, Any]  # of the fits, without c
    along: bool = False  # whether each fit starts from the one before
    consensus: bool = False  # whether there are several numbers of factors, or a fit for each group
    scheduler: str | None = None  # address of the Dask cluster of a streaming fit
    resume: Path | None = None  # checkpoint to go on from


def carry_out(plan: RunPlan) -> int:
    """Read, fit, write and report what was done."""
    options, screen = plan.options, Screen(json=plan.options.json)
    target = options.write_h5ad
    if target is not None:
        if target.suffix not in (".h5ad", ".zarr"):
            raise ValueError(f"--write-h5ad must end with .h5ad or .zarr, got {target}")
        check_place(target, force=options.force)
    if plan.resume is not None and not plan.resume.exists():
        raise FileNotFoundError(f"--resume {plan.resume} does not exist; leave it out for a new fit")
    with claimed_for_run(options.output, force=options.force) as folder:
        if plan.parameters.get("engine") == "streaming":
            filtered = read_streamed(plan.file, options.reading, plan.scheduler, screen)
        else:
            filtered = read_filtered(plan.file, options.reading, screen)
        for column in (options.groupby, options.batch):
            if column is not None:
                filtered.table.labels(column)
        done = RunWriter(folder, filtered.table, _record(plan, filtered))
        try:
            _fit_all(plan, filtered, screen, done)
        except Exception:
            if done.fits:
                kept = ", ".join(c_name(fit.c) for fit in done.fits)
                screen.say(("kept ", "green"), (str(options.output), "bold"), f" with c = {kept}")
            raise
        if not done.fits:
            raise KeyboardInterrupt
        try:
            problems = _after_the_fits(plan, filtered, screen, done)
            _tell(options, screen, done, problems)
        except KeyboardInterrupt:
            screen.error(f"interrupted: the fits are in {options.output}")
            return KEPT
    screen.result({"output": str(options.output), **to_tree(done.record)})
    if done.interrupted:
        return KEPT
    return FAILED if problems else 0


def _after_the_fits(plan: RunPlan, filtered: Filtered, screen: Screen, done: RunWriter) -> dict[str, str]:
    """Write what can be made again from the fits, the report last; return the error of each that failed."""
    options, table, target = plan.options, filtered.table, plan.options.write_h5ad
    steps: dict[str, Callable[[], None]] = {}
    if target is not None:
        steps[str(target)] = partial(write_annotated_fits, done.fits, filtered, options)
    if done.consensus is not None:
        picture = "consensus.png"
        steps[picture] = partial(write_picture, done.path / picture, "consensus", done.consensus)
    if options.report and not done.interrupted:
        labels = None if options.groupby is None else table.labels(options.groupby)
        given: Any = {"record": done.record, "labels": labels, "counts": table.counts}
        steps[REPORT] = partial(report_fits, done.path / REPORT, done.fits, **given)
    problems = screen.attempt(steps)
    if options.report and done.interrupted:
        problems[REPORT] = "interrupted"
    done.interrupted = done.interrupted or "interrupted" in problems.values()
    return problems


# ---------------------------------------------------------------- fitting


def _fit_all(plan: RunPlan, filtered: Filtered, screen: Screen, done: RunWriter) -> None:
    """Fit, and write every fit as soon as it is done."""
    options, width = plan.options, max(len(c_name(c)) for c in plan.c)
    limit: TimeLimit | None = None
    parameters = {
        **with_tables(plan.parameters),
        "callbacks": (lambda iteration: limit is not None and limit(iteration),),
    }
    if options.batch is not None:
        parameters["batch"] = batches_of(done.table, options.batch)
    (counts, chosen), path = _fitted_part(plan, filtered), along_path(plan.c) if plan.along else plan.c
    along = fits_along(counts, c=plan.c, **parameters) if plan.along else None
    try:
        for number, c in enumerate(path, start=1):
            limit = None if options.time_limit is None else TimeLimit(options.time_limit)
            with noted() as warned:
                if along is not None:
                    fit = next(along)
                elif plan.consensus:
                    labels = None if options.groupby is None else done.table.labels(options.groupby)
                    done.consensus = find_consensus(counts, c=c, groupby=labels, **parameters)
                    fit = done.consensus.final
                else:
                    fit = fit_log1p_nmf(counts, c=c, resume=plan.resume, **parameters)
                done.interrupted = fit.stopped == "interrupted"
                likelihood = fit.log_likelihood
                if chosen is not None:
                    jobs = plan.parameters["n_jobs"]
                    with unbroken(done):
                        fit = extend_features(fit, done.table.counts, features=chosen, n_jobs=jobs)
                row = _measures(fit, done, plan.parameters["n_jobs"])
                done.keep(fit, row)
                done.finished = number == len(path) and not done.interrupted
                with unbroken(done):
                    done.write()
            _tell_fit(fit, likelihood, row["deviance_explained"], screen, width=width)
            _tell_more(plan, fit, done, warned, screen)
            if done.interrupted:
                return
    except KeyboardInterrupt:
        done.interrupted = True
        if done.fits:
            with unbroken(done):
                done.write()


def _tell_more(plan: RunPlan, fit: Fit, done: RunWriter, warned: list[str], screen: Screen) -> None:
    """Print the factors of a fit, and what is to be noted."""
    if not plan.along:
        for line in factors_in_words(fit, N_TOP):
            screen.say(line)
    if done.consensus is not None:
        found = done.consensus
        outliers = plural(np.sum(found.members["consensus"] == ""), "outlier")
        screen.say(f"Factors that came back in {len(found.fits)} fits ({outliers} left out)")
        table, columns = found.table(), ("factor", "n_fits", "n_components", "groups")
        for factor, n_fits, numbers, groups in zip(*(table[name] for name in columns), strict=True):
            screen.say(f"  {factor:>3}  {n_fits:>3} fits, K = {numbers}, in {groups}")
    if plan.options.groupby is not None:
        warned = warned + confounded_groups(fit, done.table.labels(plan.options.groupby))
    # not what was printed with the data, and no warning that is a message as well
    messages = [one_line(message) for message in fit.messages]
    screen.notes(text for text in messages if "without any count" not in text)
    screen.notes(text for text in warned if not text.startswith(tuple(messages)))


def _fitted_part(plan: RunPlan, filtered: Filtered) -> tuple[Counts, Any]:
    """Return the counts to fit, and where their features are if all others are added afterwards."""
    counts, reading = filtered.table.counts, plan.options.reading
    if reading.mask_var is None or not reading.mask_var.endswith(common.ALL):
        return counts, None
    if plan.parameters.keys() & {"fixed_factors", "mask"}:
        raise ValueError("features cannot be added to fixed_factors or a mask; leave out +all of --mask-var")
    chosen = reading.chosen(filtered)
    names = None if counts.feature_names is None else counts.feature_names[chosen]
    return replace(select_features(counts, chosen), feature_names=names), chosen


def _measures(fit: Fit, done: RunWriter, n_jobs: int | None) -> dict[str, Any]:
    """Return numbers of a fit; where Ctrl-C is pressed meanwhile, only what takes no time."""
    counts, explained = done.table.counts, math.nan
    quick = fit.link.is_identity or math.prod(counts.shape) <= LARGEST_EXACT
    if quick and counts.in_memory and not done.interrupted:
        try:
            explained = deviance_explained(fit, counts, n_jobs=n_jobs)
        except KeyboardInterrupt:
            done.interrupted = True
    with unbroken(done):
        more = {"kkt_residual": fit.kkt_residual, "likelihood": fit.settings.likelihood}
        return measures(fit, math.nan if fit.log_likelihood is None else fit.log_likelihood, explained) | more


# ---------------------------------------------------------------- telling


def _tell_fit(fit: Fit, value: float | None, explained: float, screen: Screen, *, width: int) -> None:
    """Print the log-likelihood of what was fitted, the deviance it explains and how it ended."""
    if fit.converged:
        state = ("converged", "green")
    elif fit.stopped == "callback":
        state = ("stopped by --time-limit", "yellow")
    else:
        state = ("not converged", "yellow")
    likelihood = "not computed" if value is None else f"{value:,.0f}"
    likelihood += " (fitted features)" if fit.fitted_features is not None else ""
    screen.say(
        (f"c = {c_name(fit.c):<{width}}", "bold"),
        f"  log-likelihood {likelihood}",
        "" if math.isnan(explained) else f", deviance explained {explained:.1%}",
        ", ",
        state,
        f" after {fit.n_iter} iterations ({fit.seconds:.1f} s)",
    )


def _tell(options: RunOptions, screen: Screen, done: RunWriter, problems: Mapping[str, str]) -> None:
    place, target = options.output, options.write_h5ad
    if done.interrupted:
        screen.say(("interrupted: ", "yellow"), "the fit so far is kept")
    screen.wrote(place, f" ({plural(len(done.fits), 'model')}, tables, run.json)")
    if target is not None and str(target) not in problems:
        screen.wrote(target)
    if options.report and REPORT not in problems:
        screen.say("open ", (str(place / REPORT), "bold"))
    which = f" -c {c_name(done.fits[0].c)}" if len(done.fits) > 1 else ""
    screen.say("then:")
    screen.say(f"  log1pnmf markers {place}{which}")
    screen.say(f"  log1pnmf info {place}")
    screen.say(f"  log1pnmf transform {place} NEW_FILE{which} -o loadings.csv")
    for name, why in problems.items():
        again = f"; log1pnmf report {place} makes it" if name == REPORT else ""
        screen.error(f"{name} was not written: {why}. The fits are in {place}{again}")


def _record(plan: RunPlan, filtered: Filtered) -> RunRecord:
    table = filtered.table
    return RunRecord(
        command=shlex.join(["log1pnmf", *sys.argv[1:]]),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        versions={**versions(), "platform": platform.platform()},
        source=Source.of(plan.file),
        source_format=table.format,
        reading=to_tree(plan.options.reading),
        shape=table.shape,
        sample_columns=tuple(table.sample_columns),
        categories={
            name: tuple(labels.categories)
            for name, labels in table.sample_columns.items()  # not of names, such as barcodes
            if 2 * len(getattr(labels, "categories", labels)) <= len(labels)
        },
        filters=tuple(filtered.report),
        notes=tuple(table.notes),
        groupby=plan.options.groupby,
        batch=plan.options.batch,
        parameters={**common.DEFAULTS, **plan.parameters},
    )


@unfolded
def fit(
    *,
    file: common.CountFile,
    components: common.Components,
    c: common.Shifts = common.DEFAULT_C,
    options: RunOptions,
    engine: common.Engine = Settings.engine,
    checkpoint: common.Checkpoint = None,
    resume: common.Resume = None,
) -> int:
    """Fit the model to a file of counts.

    Writes models, tables and a report to a folder, and prints the top features of each factor.

    Ctrl-C keeps the fit so far. Without a terminal, progress is a line every 30 seconds.
    """
    values, memory = common.parse_c(c), options.reading.max_memory
    if len(values) > 1 and (checkpoint is not None or resume is not None):
        raise typer.BadParameter("--checkpoint and --resume are for one fit: give one c")
    if memory is not None:
        parse_memory(memory)
    scheduler = engine if "://" in engine else None
    engine = engine if scheduler is None else "streaming"
    if options.write_h5ad is not None and engine == "streaming":
        raise typer.BadParameter("--write-h5ad would load all counts: the folder has the loadings as tables")
    more = {} if checkpoint is None else {"checkpoint": str(checkpoint)}
    parameters = options.solver.parameters(components, noise=options.noise, engine=engine, **more)
    return carry_out(RunPlan(file, options, values, parameters, scheduler=scheduler, resume=resume))


PATH = ["0.001,0.01,0.1,1,10,100,1000,inf"]


@unfolded
def sweep(
    *, file: common.CountFile, components: common.Components, c: common.Shifts = PATH, options: RunOptions
) -> int:
    """Fit the model at several c and compare the fits.

    Each fit starts from its neighbour, first with rising, then with falling c. sweep.csv compares them.
    """
    values = common.parse_c(c)
    if len(values) < 2:
        raise typer.BadParameter("a sweep needs at least two values of c; for one use log1pnmf fit")
    parameters = options.solver.parameters(components, noise=options.noise)
    return carry_out(RunPlan(file, options, values, parameters, along=True))


@unfolded
def consensus(
    *,
    file: common.CountFile,
    components: common.Numbers,
    c: common.Shifts = common.DEFAULT_C,
    options: RunOptions,
) -> int:
    """Find the factors that come back over numbers of factors and donors.

    Fits each K, and with --groupby each group on its own; consensus.csv has where each factor came back.
    """
    numbers, values = common.parse_numbers(components), common.parse_c(c)
    if len(values) > 1 or options.time_limit is not None:
        raise typer.BadParameter("a consensus takes one c, and no --time-limit (--set max_iter=N limits it)")
    parameters = options.solver.parameters(max(numbers), noise=options.noise) | {"n_components": numbers}
    return carry_out(RunPlan(file, options, values, parameters, consensus=True))
