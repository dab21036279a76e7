"""From a file of counts to the folder of a run: what `fit` and `sweep` share."""

from __future__ import annotations

import datetime
import math
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from log1pnmf._common.atomic import check_place
from log1pnmf._common.words import plural
from log1pnmf.analysis.batches import confounded_groups
from log1pnmf.analysis.metrics import deviance_explained, factor_correlation, hoyer
from log1pnmf.analysis.sweep import along_path, fits_along
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.files import CountTable, Filtered
from log1pnmf.fitting.certificate import LARGEST_CERTIFIED, certify
from log1pnmf.fitting.checkpoint import check_checkpoint
from log1pnmf.fitting.driver import POOR_APPROXIMATION, fit_log1p_nmf
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.keys import c_name

from .annotate import write_annotated_fits
from .console import Screen, explain, one_line
from .inputs import Reading, read_filtered
from .known import NOTHING_KNOWN, KnownFiles
from .progress import Watch
from .reporting import report_fits
from .run_folder import REPORT, source_record
from .run_writer import RunWriter, writing_run
from .signals import KEPT, unbroken
from .streamed import Streaming, read_streamed

__all__ = ["RunPlan", "carry_out"]

FAILED = 1


@dataclass(frozen=True)
class RunPlan:
    """What a user asked a command for.

    Parameters
    ----------
    file, output : Path
        Counts, and the folder for the results.
    parameters : dict
        Of the fits, without c; see `log1pnmf.fitting.request.Request`.
    along : bool
        Whether each fit starts from the one before.
    groupby : str, optional
        Column of labels, for the report.
    batch : str, optional
        Column of batches.
    time_limit : float, optional
        Seconds for each fit.
    resume : Path, optional
        Checkpoint to go on from.
    write_h5ad : Path, optional
        Where to write AnnData with the results.
    streaming : Streaming, optional
        Counts stay on disk.
    known : KnownFiles
        What is known of some factors.
    """

    file: Path
    output: Path
    reading: Reading
    c: list[float]
    parameters: Mapping[str, Any]
    along: bool = False
    groupby: str | None = None
    batch: str | None = None
    time_limit: float | None = None
    resume: Path | None = None
    report: bool = True
    force: bool = False
    write_h5ad: Path | None = None
    streaming: Streaming | None = None
    known: KnownFiles = NOTHING_KNOWN


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
        """Bring the folder up to date, whoever presses Ctrl-C."""
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
        """Say which fits there are."""
        return f"c = {', '.join(c_name(fit.c) for fit in self.fits)}"


def carry_out(plan: RunPlan, screen: Screen) -> int:
    """Read, fit, write and tell.

    Returns
    -------
    int
        Exit code.
    """
    _check_places(plan)
    with writing_run(plan.output, force=plan.force) as run:
        watch = Watch(
            screen.errors,
            max_iter=plan.parameters["max_iter"],
            tol=plan.parameters["tol"],
            time_limit=plan.time_limit,
        )
        if plan.streaming is None:
            filtered = read_filtered(plan.file, plan.reading, screen)
        else:
            filtered = read_streamed(plan.file, plan.reading, plan.streaming, screen=screen, watch=watch)
        if plan.groupby is not None:
            filtered.table.labels(plan.groupby)
        if plan.batch is not None:
            filtered.table.labels(plan.batch)
        done = _Done(run, filtered.table, _record(plan, filtered))
        try:
            _fit_all(plan, watch, screen, done)
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
    """Write what can be made again from the fits, the report last; gives what went wrong with what."""
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


def _fit_all(plan: RunPlan, watch: Watch, screen: Screen, done: _Done) -> None:
    """Fit, and write every fit as soon as it is there."""
    width = max(len(c_name(c)) for c in plan.c)
    parameters = {**plan.parameters, "callbacks": (watch,)} | plan.known.parameters()
    if plan.batch is not None:
        parameters["batch"] = done.table.labels(plan.batch)
    fits = _fits(plan, done.table.counts, parameters)
    path = along_path(plan.c) if plan.along else plan.c
    try:
        for number, c in enumerate(path, start=1):
            with warnings.catch_warnings(record=True) as caught, watch.showing(f"c = {c_name(c)}"):
                warnings.simplefilter("always")
                fit = next(fits)
                done.interrupted = fit.stopped == "interrupted"
                fit, row = _examined(fit, done, plan.parameters["n_jobs"])
                done.keep(fit, row)
                done.finished = number == len(path) and not done.interrupted
                done.write()
            _tell_fit(fit, row, screen, width=width, by_clock=watch.stopped_by_clock)
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
    """Certify and measure a fit; where Ctrl-C is pressed meanwhile, only what takes no time."""
    counts = done.table.counts
    if not done.interrupted:
        try:
            certificate = certify(fit, counts, engine=fit.settings.engine, n_jobs=n_jobs)
            explained, quick = math.nan, fit.link.is_identity or math.prod(counts.shape) <= LARGEST_CERTIFIED
            if quick and counts.in_memory:
                explained = deviance_explained(fit, counts, n_jobs=n_jobs)
            fit = replace(fit, certificate=certificate)
            return fit, _measures(fit, explained)
        except KeyboardInterrupt:
            done.interrupted = True
    return fit, _measures(fit, math.nan)


def _fits(plan: RunPlan, counts: Counts, parameters: Mapping[str, Any]) -> Iterator[Fit]:
    if plan.along:
        yield from fits_along(counts, plan.c, **parameters)
        return
    for c in plan.c:
        yield fit_log1p_nmf(counts, c=c, resume=plan.resume, **parameters)


def _notes(fit: Fit, warned: Sequence[str]) -> list[str]:
    """Gather what is worth knowing about a fit; what is empty was told with the data."""
    messages = [one_line(message) for message in fit.messages]
    told = [message for message in messages if "without any count" not in message]
    certificate = fit.certificate
    if certificate is not None and not certificate.is_exact:
        told = [message for message in told if not message.startswith("the exact log-likelihood was not")]
        share = abs(certificate.gap / certificate.log_likelihood)
        told.append(
            f"the log-likelihood is estimated from {certificate.n_sampled:,} of {certificate.n_samples:,} "
            f"samples; the approximate one differs from it by {certificate.gap:,.0f}"
            + (f", {share:.0%} of it: use --likelihood adaptive" if share > POOR_APPROXIMATION else "")
        )
    return told + [text for text in warned if not any(text.startswith(message) for message in messages)]


def _measures(fit: Fit, explained: float) -> dict[str, Any]:
    """Numbers of a fit, for tables, JSON and the screen."""
    known = fit.certificate
    return {
        "c": fit.c,
        "log_likelihood": math.nan if known is None else known.log_likelihood,
        "log_likelihood_error": 0.0 if known is None else known.standard_error,
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


def _tell_fit(fit: Fit, row: Mapping[str, Any], screen: Screen, *, width: int, by_clock: bool) -> None:
    if fit.converged:
        state = ("converged", "green")
    elif by_clock:
        state = ("stopped by --time-limit", "yellow")
    else:
        state = ("not converged", "yellow")
    value, error = row["log_likelihood"], row["log_likelihood_error"]
    likelihood = "not computed" if math.isnan(value) else f"{value:,.0f}"
    if error > 0.0:
        likelihood = f"about {likelihood} (standard error {error:,.0f})"
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
