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
from log1pnmf.analysis.metrics import deviance_explained, factor_correlation, hoyer
from log1pnmf.analysis.sweep import along_path, fits_along
from log1pnmf.counts.chunked.survey import ChunkedCounts
from log1pnmf.counts.compress import plural
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.files import CountTable, Filtered
from log1pnmf.estimator import Log1pNMF
from log1pnmf.fitting.certificate import LARGEST_CERTIFIED
from log1pnmf.fitting.checkpoint import check_checkpoint
from log1pnmf.fitting.driver import POOR_APPROXIMATION

from .annotate import write_annotated_fits
from .console import Screen, explain, one_line
from .inputs import Reading, read_filtered
from .progress import Watch
from .reporting import report_models
from .run_folder import REPORT, c_name, source_record
from .run_writer import RunWriter, writing_run
from .signals import KEPT, unbroken
from .streamed import Streaming, read_streamed

__all__ = ["Request", "run_request"]

FAILED = 1


@dataclass(frozen=True)
class Request:
    """What a user asked for.

    Parameters
    ----------
    file, output : Path
        Counts, and the folder for the results.
    reading : Reading
    c : list of float
    parameters : dict
        Of `Log1pNMF`, without c.
    by_size : bool
        Whether zero counts may be approximated where there are very many.
    along : bool
        Whether each fit starts from the one before.
    label : str, optional
        Column of labels.
    time_limit : float, optional
        Seconds for each fit.
    resume : Path, optional
        Checkpoint to go on from.
    report, force : bool
    write_h5ad : Path, optional
        Where to write AnnData with the results.
    streaming : Streaming, optional
        Counts stay on disk.
    """

    file: Path
    output: Path
    reading: Reading
    c: list[float]
    parameters: Mapping[str, Any]
    by_size: bool = False
    along: bool = False
    label: str | None = None
    time_limit: float | None = None
    resume: Path | None = None
    report: bool = True
    force: bool = False
    write_h5ad: Path | None = None
    streaming: Streaming | None = None


@dataclass
class _Done:
    """What has come out so far, in memory and in the folder."""

    run: RunWriter
    table: CountTable
    asked: Mapping[str, Any]
    models: list[Log1pNMF] = field(default_factory=list)
    measures: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    finished: bool = False

    @property
    def record(self) -> dict[str, Any]:
        """What goes to run.json."""
        state = {"finished": self.finished, "interrupted": self.interrupted}
        return {**self.asked, **state, "fits": self.measures}

    def keep(self, model: Log1pNMF, measures: dict[str, Any]) -> None:
        """Take a fit; of two at the same c the better one."""
        for place, other in enumerate(self.models):
            if other.fit_.c == model.fit_.c:
                if model.fit_.objective < other.fit_.objective:
                    self.models[place], self.measures[place] = model, measures
                return
        self.models.append(model)
        self.measures.append(measures)

    def write(self) -> None:
        """Bring the folder up to date, whoever presses Ctrl-C."""
        columns = {name: [row[name] for row in self.measures] for name in self.measures[0]}
        with unbroken() as pressed:
            self.run.write(
                self.models,
                self.table,
                record=self.record,
                measures=columns if len(self.models) > 1 else None,
            )
        self.interrupted = self.interrupted or bool(pressed)

    def words(self) -> str:
        """Say which fits there are."""
        return f"c = {', '.join(c_name(model.fit_.c) for model in self.models)}"


def run_request(request: Request, screen: Screen) -> int:
    """Read, fit, write and tell.

    Parameters
    ----------
    request : Request
    screen : Screen

    Returns
    -------
    int
        Exit code.
    """
    _check_places(request)
    with writing_run(request.output, force=request.force) as run:
        watch = Watch(
            screen.errors,
            max_iter=request.parameters["max_iter"],
            tol=request.parameters["tol"],
            time_limit=request.time_limit,
        )
        if request.streaming is None:
            filtered = read_filtered(request.file, request.reading, screen)
        else:
            filtered = read_streamed(
                request.file, request.reading, request.streaming, screen=screen, watch=watch
            )
        if request.label is not None:
            filtered.table.labels(request.label)
        request = _for_size(request, filtered.table.shape, screen)
        done = _Done(run, filtered.table, _record(request, filtered))
        try:
            _fit_all(request, watch, screen, done)
        except Exception:
            if done.models:
                screen.say(("kept ", "green"), (str(request.output), "bold"), f" with {done.words()}")
            raise
        if not done.models:
            raise KeyboardInterrupt
        try:
            problems = _after_the_fits(request, filtered, screen, done)
            _tell(request, screen, done, problems)
        except KeyboardInterrupt:
            screen.error(f"interrupted: the fits are in {request.output}")
            return KEPT
    screen.result({"output": str(request.output), **done.record})
    if done.interrupted:
        return KEPT
    return FAILED if problems else 0


def _after_the_fits(request: Request, filtered: Filtered, screen: Screen, done: _Done) -> dict[str, str]:
    """Write what can be made again from the fits, the report last; gives what went wrong with what."""
    steps: dict[str, Callable[[], None]] = {}
    if request.write_h5ad is not None:
        target, source, force = request.write_h5ad, request.file, request.force
        memory = request.reading.max_memory
        steps[str(target)] = lambda: write_annotated_fits(
            target, [model.fit_ for model in done.models], filtered, source=source, force=force, max_memory=memory
        )
    if request.report:
        labels = None if request.label is None else filtered.table.labels(request.label)
        path = done.run.path / REPORT
        steps[REPORT] = lambda: report_models(
            path, done.models, record=done.record, names=filtered.table, labels=labels
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


def _for_size(request: Request, shape: tuple[int, int], screen: Screen) -> Request:
    """Approximate zero counts where there are too many to visit them all again and again, and say so."""
    entries = math.prod(shape)
    if not request.by_size or entries <= LARGEST_CERTIFIED:
        return request
    if any(1.0 <= c < math.inf for c in request.c):
        screen.notes(
            [
                f"{entries:,} entries: zero counts are approximated where c is 1 or more; "
                "--likelihood refined takes them exactly, which visits every entry in every iteration"
            ]
        )
    return replace(request, parameters={**request.parameters, "likelihood": "auto"})


def _check_places(request: Request) -> None:
    """Refuse what cannot be written, before the data are read."""
    if request.write_h5ad is not None:
        if request.write_h5ad.suffix not in (".h5ad", ".zarr"):
            raise ValueError(f"--write-h5ad must end with .h5ad or .zarr, got {request.write_h5ad}")
        check_place(request.write_h5ad, force=request.force)
    if request.resume is not None and not request.resume.exists():
        raise FileNotFoundError(f"--resume {request.resume} does not exist; leave it out for a new fit")
    if "checkpoint" in request.parameters:
        check_checkpoint(request.parameters["checkpoint"])


# ---------------------------------------------------------------- fitting


def _fit_all(request: Request, watch: Watch, screen: Screen, done: _Done) -> None:
    """Fit, and write every fit as soon as it is there."""
    width = max(len(c_name(c)) for c in request.c)
    fits = _fits(request, done.table.counts, {**request.parameters, "callbacks": (watch,)})
    path = along_path(request.c) if request.along else request.c
    try:
        for number, c in enumerate(path, start=1):
            with warnings.catch_warnings(record=True) as caught, watch.showing(f"c = {c_name(c)}"):
                warnings.simplefilter("always")
                model = next(fits)
                done.interrupted = _was_interrupted(model)
                row = _measured_or_not(model, done, request.parameters["n_jobs"])
                done.keep(model, row)
                done.finished = number == len(path) and not done.interrupted
                done.write()
            _tell_fit(model, row, screen, width=width, by_clock=watch.stopped_by_clock)
            screen.notes(_notes(model, [one_line(warning.message) for warning in caught]))
            if done.interrupted:
                return
    except KeyboardInterrupt:
        done.interrupted = True
        if done.models:
            done.write()


def _measured_or_not(model: Log1pNMF, done: _Done, n_jobs: int | None) -> dict[str, Any]:
    """Measure a fit; where Ctrl-C is pressed meanwhile, only what takes no time."""
    if not done.interrupted:
        try:
            return _measured(model, done.table.counts, n_jobs)
        except KeyboardInterrupt:
            done.interrupted = True
    return _measured(model, None, n_jobs)


def _fits(request: Request, counts: Counts, parameters: Mapping[str, Any]) -> Iterator[Log1pNMF]:
    options = dict(parameters)
    n_components = options.pop("n_components")
    if request.along:
        yield from fits_along(counts, request.c, n_components, **options)
        return
    for c in request.c:
        yield Log1pNMF(n_components, c=c, **options).fit(counts, resume=request.resume)


def _was_interrupted(model: Log1pNMF) -> bool:
    return any(message.startswith("interrupted") for message in model.fit_.messages)


def _notes(model: Log1pNMF, warned: Sequence[str]) -> list[str]:
    """Gather what is worth knowing about a fit; what is empty was told with the data."""
    messages = [one_line(message) for message in model.fit_.messages]
    told = [message for message in messages if "without any count" not in message]
    certificate = model.certificate_
    if certificate is not None and not certificate.is_exact:
        told = [message for message in told if not message.startswith("the exact log-likelihood was not")]
        share = abs(certificate.gap / certificate.log_likelihood)
        told.append(
            f"the log-likelihood is estimated from {certificate.n_sampled:,} of {certificate.n_samples:,} "
            f"samples; the approximate one differs from it by {certificate.gap:,.0f}"
            + (f", {share:.0%} of it: use --likelihood refined" if share > POOR_APPROXIMATION else "")
        )
    return told + [text for text in warned if not any(text.startswith(message) for message in messages)]


def _measured(model: Log1pNMF, counts: Counts | None, n_jobs: int | None) -> dict[str, Any]:
    """Numbers of a fit, for tables, JSON and the screen; without counts only those that it has itself."""
    fit = model.fit_
    explained, certificate = math.nan, None
    if counts is not None:
        quick = fit.link.is_identity or math.prod(counts.shape) <= LARGEST_CERTIFIED
        if quick and not isinstance(counts, ChunkedCounts):
            explained = deviance_explained(model, counts, n_jobs=n_jobs)
        certificate = model.certify(counts)
    known = fit.log_likelihood if certificate is None else certificate.log_likelihood
    return {
        "c": fit.c,
        "log_likelihood": math.nan if known is None else known,
        "log_likelihood_error": 0.0 if certificate is None else certificate.standard_error,
        "deviance_explained": explained,
        "factor_correlation": factor_correlation(fit.factors),
        "sparsity_loadings": float(hoyer(fit.loadings).mean()),
        "sparsity_factors": float(hoyer(fit.factors).mean()),
        "n_iter": fit.n_iter,
        "converged": fit.converged,
        "kkt_residual": fit.kkt_residual,
        "seconds": fit.seconds,
    }


# ---------------------------------------------------------------- telling


def _tell_fit(model: Log1pNMF, row: Mapping[str, Any], screen: Screen, *, width: int, by_clock: bool) -> None:
    fit = model.fit_
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
        f" after {fit.n_iter} iterations ({fit.seconds:.1f} s), KKT residual {fit.kkt_residual:.0e}",
    )


def _tell(request: Request, screen: Screen, done: _Done, problems: Mapping[str, str]) -> None:
    place = request.output
    if done.interrupted:
        screen.say(("interrupted: ", "yellow"), "the fit so far is kept")
    screen.say(
        ("wrote ", "green"),
        (str(place), "bold"),
        f" ({plural(len(done.models), 'model', 'models')}, tables, run.json)",
    )
    if request.write_h5ad is not None and str(request.write_h5ad) not in problems:
        screen.say(("wrote ", "green"), (str(request.write_h5ad), "bold"))
    if request.report and REPORT not in problems:
        screen.say("look at ", (str(place / REPORT), "bold"))
    screen.say(f"then: log1pnmf info {place} | log1pnmf transform {place} NEW_FILE -o loadings.csv")
    for name, why in problems.items():
        again = f"; log1pnmf report {place} makes it" if name == REPORT else ""
        screen.error(f"{name} was not written: {why}. The fits are in {place}{again}")


def _record(request: Request, filtered: Filtered) -> dict[str, Any]:
    return {
        "command": shlex.join(["log1pnmf", *sys.argv[1:]]),
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "source": {**source_record(request.file), "format": filtered.table.format},
        "reading": request.reading.as_dict(),
        "filters": list(filtered.report),
        "notes": list(filtered.table.notes),
        "label": request.label,
        "parameters": dict(request.parameters),
    }
