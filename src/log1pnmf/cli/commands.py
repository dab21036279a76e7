"""Commands about counts, runs and models, from `info` and `convert` to `markers` and `usage`; the demo."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray

from log1pnmf._common.archive import archive_kind, building, check_place, to_tree
from log1pnmf._common.checks import check_whole, plural
from log1pnmf._common.safe_files import BadFileError
from log1pnmf.analysis.evidence import evidence as find_evidence
from log1pnmf.analysis.groups import MISSING
from log1pnmf.analysis.markers import markers as find_markers
from log1pnmf.analysis.usage import Usage
from log1pnmf.analysis.usage import usage as compare_groups
from log1pnmf.cli import options as common
from log1pnmf.counts.counts import Counts, holds_counts
from log1pnmf.counts.features import match_names, select_features
from log1pnmf.counts.text import TEXT_FORMATS, CountTable
from log1pnmf.counts.write import numbered, write_anndata, write_table
from log1pnmf.datasets import Dataset, pancreas
from log1pnmf.fitting.fit import Fit, c_name
from log1pnmf.fitting.fit_counts import fit_log1p_nmf
from log1pnmf.fitting.new_samples import of_new_samples, project
from log1pnmf.fitting.summary import summarize
from log1pnmf.tl.tools import programs

from .console import Screen, noted
from .exchange import read_r_list, write_r_list
from .fit import N_TOP, RunOptions, RunPlan, carry_out, counts_again, report_fits
from .options import OpenOptions, Reading, SolverOptions, TableOptions, check_table, describe, unfolded
from .run_folder import REPORT, RunFolder, fit_in, is_run, write_columns, write_factor_tables, write_rows

# ---------- findings about a fit: a table, printed and perhaps written

OtherSamples = Annotated[
    Path | None,
    common.argument(
        metavar="FILE",
        help="Counts of other samples: some of those fitted, or new ones, whose loadings are estimated; also "
        "those fitted, if their file has moved.",
    ),
]


@unfolded
def evidence(
    *,
    run: common.RunPlace,
    seeds: Annotated[int, common.run("N", "Number of fits from other random starts.")] = 3,
    bootstrap: Annotated[int, common.run("N", "Number of fits to samples drawn with replacement.")] = 5,
    max_samples: common.MaxSamples = None,
    jobs: common.Jobs = None,
    options: TableOptions,
) -> int:
    """Test whether each factor is real.

    Measures what the fit loses without it, and how often it comes back from other starts and samples.
    """
    screen, folder = options.screen(), RunFolder.open(run)
    found = find_evidence(
        folder.fit(options.c),
        _counts(folder),
        n_seeds=seeds,
        n_bootstrap=bootstrap,
        max_samples=max_samples,
        n_jobs=jobs,
        verbose=int(not options.json),
    )
    if not options.json:
        screen.lines(found.summary())
    options.write(screen, found.table(), judgement=found.judgement())
    return 0


def _counts(folder: RunFolder) -> Counts:
    counts, why = counts_again(folder.record)
    if counts is None:
        raise BadFileError(f"the counts of {folder.path} are needed, but cannot be read again: {why}")
    return counts


@unfolded
def markers(
    *,
    run: common.RunOrModel,
    file: OtherSamples = None,
    opening: OpenOptions,
    top: Annotated[
        int, common.output("N", "Significant features of each factor in the table, at most.")
    ] = 100,
    split: Annotated[
        bool, common.run(None, "Find loadings from one half of the counts, and test on the other.", "--split")
    ] = False,
    max_samples: common.MaxSamples = None,
    jobs: common.Jobs = None,
    options: TableOptions,
) -> int:
    """Test which features rise with each factor.

    Prints how many do, with an adjusted p-value of at most 0.05, and the first of them.
    """
    screen = options.screen()
    check_whole("--top", top, least=1)
    fit = fit_in(run, options.c)
    if file is not None:
        fit, counts, _ = _of_file(fit, opening.table(file, fractions=True), screen)
    elif run.is_file():
        raise typer.BadParameter(f"a model needs its counts: log1pnmf markers {run} FILE")
    else:
        counts = _counts(RunFolder.open(run))
    with noted() as warned:
        found = find_markers(fit, counts, split=split, max_samples=max_samples, n_jobs=jobs)
    screen.notes(warned)
    if not options.json:
        widest = max(6, *map(len, found.factor_names))
        screen.say((f"{'factor':>{widest}}  {'significant':>11}  first features", "bold"))
        for k, name in enumerate(found.factor_names):
            number = f"{found.n_rising[k]:,}" if not np.isnan(found.p[:, k]).all() else "not tested"
            screen.say(f"{name:>{widest}}  {number:>11}  {', '.join(found.top(k, N_TOP)) or '(none)'}")
    options.write(screen, found.table(top))
    return 0


def _of_file(fit: Fit, table: CountTable, screen: Screen) -> tuple[Fit, Counts, NDArray[np.intp]]:
    """Return the fit of samples in a file, fitted ones by name or new ones, their counts, and their rows."""
    here, fitted = table.sample_names, fit.sample_names
    if here is None or fitted is None:
        rows, other = np.arange(table.shape[0]), table.shape[0] != len(fit.loadings)
    else:
        rows, absent, twice = match_names(fitted.tolist(), here.tolist())
        other = bool(absent or twice)
    if other:
        fit, counts = of_new_samples(fit, table.counts)
        screen.notes([fit.messages[0]])
        return fit, counts, np.arange(table.shape[0])
    order = np.argsort(rows)  # that of the fit
    counts = Counts.from_any(table.counts.to_scipy()[order])
    if len(rows) < len(fit.loadings):
        screen.notes([why := f"these are {len(rows):,} samples of the fit"])
        part = fit.of_rows(np.sort(rows))
        fit = part.of_samples(part.loadings, part.size_factors, part.batches, why)
    return fit, replace(counts, feature_names=table.feature_names), order


@unfolded
def usage(
    *,
    run: common.RunPlace,
    file: OtherSamples = None,
    opening: OpenOptions,
    groupby: Annotated[
        str,
        common.data("COLUMN", "Column with the condition of each sample, or a number, which has a slope."),
    ],
    replicate: Annotated[
        str | None, common.data("COLUMN", "Column with the donor, animal or patient, to compare these.")
    ] = None,
    samples_are_replicates: Annotated[
        bool, common.data(None, "Every sample is a replicate, as in bulk data.", "--samples-are-replicates")
    ] = False,
    reference: Annotated[
        str | None, common.data("GROUP", "Group to compare the others with.", show_default="the first")
    ] = None,
    within: Annotated[
        str | None, common.data("COLUMN", "Compare within each label of this column, such as cell types.")
    ] = None,
    interaction: Annotated[
        bool,
        common.data(None, "With --within: test how differences deviate from the others.", "--interaction"),
    ] = False,
    relative_to: Annotated[
        str, common.data("FACTORS", "Factors (with commas) that changes are relative to, or none.")
    ] = "auto",
    covariate: Annotated[
        list[str] | None, common.data("COLUMN", "Covariate to adjust for; can be repeated.")
    ] = None,
    as_groups: Annotated[
        bool, common.data(None, "Numbers in the column of --groupby are names of groups.", "--as-groups")
    ] = False,
    options: TableOptions,
) -> int:
    """Compare how much groups use each factor.

    Donors, animals or patients are the replicates.
    """
    screen = options.screen()
    if replicate is not None and samples_are_replicates:
        raise typer.BadParameter("--replicate and --samples-are-replicates contradict each other; choose one")
    if interaction and within is None:
        raise typer.BadParameter("--interaction needs --within, the column with the cell type of samples")
    folder = RunFolder.open(run)
    order: Any = slice(None)
    columns: Any = folder.labels
    fit = folder.fit(options.c)
    if file is not None:
        other = opening.table(file, fractions=True)
        for column in filter(None, (groupby, replicate, within, *(covariate or ()))):
            other.labels(column)  # what is not there is refused before loadings are estimated
        (fit, _, order), columns = _of_file(fit, other, screen), other.labels

    def labels(column: str | None) -> Any:
        return None if column is None else columns(column)[order]

    with noted() as warned:
        found = compare_groups(
            fit,
            labels(groupby) if as_groups else _numbers(labels(groupby)),
            replicate=samples_are_replicates or labels(replicate),
            reference=reference,
            within=labels(within),
            interaction=interaction,
            relative_to={"auto": "auto", "none": None}.get(relative_to, relative_to.split(",")),
            covariates={name: _numbers(labels(name)) for name in covariate or ()} or None,
            numeric=False if as_groups else None,
        )
    # with the options of this command in place of the parameters of the function
    warned = [text.replace("replicate=True", "--samples-are-replicates") for text in warned]
    screen.notes(text.replace("replicate=", "--replicate") for text in warned)
    table = found.table()
    if found.reference is None:
        table["group"][:] = groupby
    if not options.json:
        _show(found, dict(table), groupby, screen)
    options.write(screen, table)
    return 0


def _numbers(labels: np.ndarray) -> Any:
    """Return labels as numbers where all that are there are numbers; not categories, as in Python."""
    if hasattr(labels, "categories"):
        return labels
    try:
        return np.where(np.isin(labels, ("", MISSING)), "nan", labels).astype(np.float64)
    except ValueError:
        return labels


def _show(found: Usage, table: dict[str, Any], groupby: str, screen: Screen) -> None:
    units = "replicates" if found.replicated else "samples"
    if found.within is not None:
        table["group"] = table["within"] + ": " + table["group"]
    against = f"slope on {groupby}" if found.reference is None else f"difference to {found.reference}"
    screen.say((f"{against}, {len(found.means):,} {units}", "bold"))
    what, digits = ("slope", ".3g") if found.reference is None else ("difference", ".3f")
    screen.say(f"{'factor':>10}  {'group':<16}{what:>10}  {'95% interval':<18}{'adjusted p':>10}")
    columns = ("factor", "group", what, "lower", "upper", "adjusted_p")
    for factor, group, value, low, high, adjusted in zip(*(table[name] for name in columns), strict=True):
        interval = f"{low:{digits}} to {high:{digits}}"
        screen.say(f"{factor:>10}  {group:<16}{value:>10{digits}}  {interval:<18}{adjusted:>10.2g}")
    screen.say(found.against)


# ---------- a file of counts, a run or a model, described

MOST_LABELS = 8
# parts of a fit in the JSON that describes it
FACTS = ("c", "n_components", "log_likelihood", "n_iter", "converged", "kkt_residual", "seconds", "messages")


@unfolded
def info(
    *,
    path: Annotated[
        Path, common.argument(metavar="PATH", help="Counts, the folder of a run, or a model (.npz).")
    ],
    opening: OpenOptions,
    json: common.Json = False,
) -> int:
    """Describe a file of counts, a run or a model."""
    screen = Screen(json=json)
    if is_run(path):
        _about_run(RunFolder.open(path), screen)
    elif archive_kind(path) is not None:
        fit = Fit.load(path)
        if not json:
            screen.lines(summarize(fit))
        sizes = {"c_name": c_name(fit.c), "n_samples": len(fit.loadings), "n_features": len(fit.factors)}
        screen.result(sizes | {name: getattr(fit, name) for name in FACTS})
    else:
        _about_counts(opening.table(path, fractions=True), screen)
    return 0


def _number(value: float) -> str:
    """All digits before the point, six in all where they are fewer."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.{max(6, len(f'{value:.0f}') + 1)}g}"


def _about_counts(table: CountTable, screen: Screen) -> None:
    counts, values = table.counts, table.counts.by_row.values
    facts: dict[str, Any] = {
        "path": table.source,
        "format": table.format,
        "n_samples": table.shape[0],
        "n_features": table.shape[1],
        "nnz": counts.nnz,
        "density": table.fraction,
        "total": counts.total,
        "max": float(values.max(initial=0.0)),
        "integer": holds_counts(values),
        "totals": np.quantile(counts.row_sums, [0.0, 0.5, 1.0]).tolist(),
        "empty_samples": counts.n_empty[0],
        "empty_features": counts.n_empty[1],
        "labels": {name: _levels(column) for name, column in table.sample_columns.items()},
        "notes": list(table.notes),
    }
    if not screen.json:
        screen.say((table.source, "bold"), f" ({table.format}): {describe(table)}")
        kind = "whole numbers" if facts["integer"] else "NOT all whole numbers"
        rows = {
            "values": f"{kind}, up to {_number(facts['max'])}",
            "per sample": "{} counts at least, {} in the middle, {} at most".format(
                *map(_number, facts["totals"])
            ),
            "empty": f"{facts['empty_samples']:,} samples, {facts['empty_features']:,} features",
            "samples": _some(table.sample_names),
            "features": _some(table.feature_names),
        }
        for name, text in rows.items():
            screen.say((f"  {name:<12}", "cyan"), text)
        for name, levels in facts["labels"].items():
            screen.say((f"  label {name}: ", "cyan"), levels)
        screen.notes(table.notes)
    screen.result(facts)


def _levels(column: np.ndarray) -> str:
    levels, often = np.unique(column, return_counts=True)
    if len(levels) > MOST_LABELS:
        return f"{len(levels):,} different values"
    return ", ".join(f"{level} ({n:,})" for level, n in zip(levels, often, strict=True))


def _some(names: np.ndarray | None) -> str:
    if names is None:
        return "without names"
    return ", ".join(map(str, names[:4])) + (", ..." if len(names) > 4 else "")


def _about_run(run: RunFolder, screen: Screen) -> None:
    record = run.record
    if not screen.json:
        n, m = record.shape
        screen.say((str(run.path), "bold"), f": {record.command}")
        screen.say(("  data    ", "cyan"), f"{record.source.path} ({n:,} x {m:,})")
        screen.notes(record.filters, kind="filter")
        screen.notes(record.notes)
        if not record.finished:
            screen.notes(["some fits are missing: the run is not finished, or it ended early"])
        for fit in run.fits:
            screen.say("")
            screen.lines(summarize(fit))
    screen.result(to_tree(record))


# ---------- the folder of a run changed


def rename(
    *,
    run: common.RunPlace,
    names: Annotated[
        list[str],
        common.argument(metavar="FACTOR=NAME...", help="Old and new names: k1=interferon k2='cell cycle'."),
    ],
    c: common.WhichModel = None,
) -> int:
    """Rename factors in the model and its tables.

    Run `log1pnmf report` afterwards to update the report.
    """
    screen, folder = Screen(), RunFolder.open(run)
    for text in names:
        if "=" not in text:
            raise typer.BadParameter(f"names are given as k1=NAME, got {text!r}")
    fit = folder.fit(c).renamed(dict(text.split("=", 1) for text in names))
    name = f"c={c_name(fit.c)}"
    if f"models/{name}.npz" not in folder.record.models:
        raise BadFileError(f"{folder.path} has no models/{name}.npz: it is damaged; run the command again")
    fit.save(folder.path / "models" / f"{name}.npz")
    features = numbered(fit.feature_names, len(fit.factors))
    write_factor_tables(folder.path, name, fit, folder.samples["sample"].tolist(), features)
    if (folder.path / "consensus.csv").exists():  # its rows are the factors, in their order
        table = folder.columns("consensus.csv", factor=np.str_)
        write_columns(folder.path / "consensus.csv", {**table, "factor": fit.factor_names})
        screen.notes(["consensus.png has the names that factors had before"])
    screen.say(("renamed", "green"), f": {', '.join(fit.factor_names)}")
    screen.say(f"log1pnmf report {run} writes the report again")
    return 0


def report(
    *,
    run: common.RunPlace,
    output: Annotated[
        Path | None,
        common.output("PATH", "HTML file.", "-o", "--output", show_default="report.html in the folder"),
    ] = None,
    groupby: common.GroupBy = None,
    title: Annotated[str | None, common.output(None, "Title.", show_default="name of the data")] = None,
) -> int:
    """Write the report of a run, one HTML file."""
    screen, folder = Screen(), RunFolder.open(run)
    record = replace(folder.record, groupby=groupby or folder.record.groupby)
    labels = folder.labels(record.groupby)
    path = output or folder.path / REPORT
    counts, why = counts_again(folder.record)
    if why:
        screen.notes([f"the report is written without the counts: {why}"])
    report_fits(path, folder.fits, record=record, labels=labels, counts=counts, title=title)
    screen.wrote(path)
    return 0


# ---------- new samples, and other formats


@unfolded
def transform(
    *,
    run: common.RunOrModel,
    file: common.CountFile,
    output: Annotated[
        Path, common.output("PATH", "File for the loadings: .csv or .tsv, also with .gz.", "-o", "--output")
    ],
    c: common.WhichModel = None,
    missing: Annotated[
        Literal["unmeasured", "zero"],
        common.data(None, "Features of the model that the file lacks: not measured, or counted zero times."),
    ] = "unmeasured",
    prior: Annotated[
        float | None,
        common.data(None, "Counts that the mean training sample is worth.", show_default="estimated"),
    ] = None,
    batch: common.Batch = None,
    opening: OpenOptions,
    allow_fractions: common.AllowFractions = False,
    json: common.Json = False,
    force: common.Force = False,
) -> int:
    """Estimate the loadings of new samples.

    The factors are those of a fit. Features are matched by name; those that both have are used.
    """
    screen = Screen(json=json)
    check_table(output, force=force)
    fit = fit_in(run, c)
    table = opening.table(file, fractions=allow_fractions)
    screen.say((file.name, "bold"), f": {describe(table)} ({table.format})")
    if table.format in TEXT_FORMATS:  # words that no new text has were counted: zero times
        missing = "zero"
    counts, notes = align(table, fit, zero=missing == "zero")
    own: Any = {"batch": common.batches_of(table, batch), "shared": True}
    with noted() as warned:
        found = project(fit, counts, prior="auto" if prior is None else prior, **own)
    loadings = found.loadings
    notes += [*found.notes, *warned]
    screen.notes([*table.notes, *notes])
    n, k = loadings.shape
    names = numbered(table.sample_names, n)
    rows = (row.tolist() for row in loadings)
    write_rows(output, ["sample", *fit.factor_names], names, rows=rows, force=force)
    screen.wrote(output, f" ({n:,} samples x {k} factors, c = {c_name(fit.c)})")
    screen.result({"output": str(output), "c": fit.c, "shape": [n, k], "notes": notes})
    return 0


def align(table: CountTable, fit: Fit, *, zero: bool) -> tuple[Counts, list[str]]:
    """Check that the features of a table and of a fit go together; `zero` fills in those that are missing."""
    fitted, given = fit.feature_names, table.feature_names
    if fitted is None or given is None:
        if table.shape[1] != len(fit.factors):
            raise BadFileError(
                f"{table.source} has {table.shape[1]} features, but the model {len(fit.factors)}; "
                "without names on both sides they must be the same"
            )
        return table.counts, ["no feature names on both sides: columns were matched by their order"]
    chosen, absent, _ = match_names(list(given), list(fitted))
    if len(absent) == len(fitted):
        raise BadFileError(
            f"{table.source} has none of the model's features (first {fitted[0]!r}, here {given[0]!r}); "
            "are they named in the same way? --gene-symbols names those of AnnData by a column of var, "
            "--transpose exchanges rows and columns"
        )
    extra = len(given) - (len(fitted) - len(absent))
    notes = [f"{extra:,} features are not in the model and were ignored"] if extra else []
    if not absent or not zero:
        return table.counts, notes
    notes.append(f"{len(absent):,} features of the model are not in the file and were set to zero")
    return replace(select_features(table.counts, chosen), feature_names=fitted), notes


@unfolded
def convert(
    *,
    source: Annotated[
        Path,
        common.argument(
            metavar="FROM", help="Counts, the folder of a run, a model (.npz), or a folder with a fit of R."
        ),
    ],
    target: Annotated[
        Path,
        common.argument(
            metavar="TO",
            help="Counts: the ending is the format, none a 10x folder. A fit: .npz, a folder for R, or .h5ad "
            "with gene programmes for evaluation.",
        ),
    ],
    opening: OpenOptions,
    allow_fractions: common.AllowFractions = False,
    c: common.WhichModel = None,
    counts: Annotated[Path | None, common.data("FILE", "Counts to write with a fit for R.")] = None,
    force: common.Force = False,
) -> int:
    """Convert counts between formats, or a fit for R.

    Fits are converted to and from the R package log1pNMF, and to AnnData of gene programmes.
    """
    screen = Screen()
    check_place(target, force=force)
    if is_run(source) or archive_kind(source) is not None:
        fit = fit_in(source, c)
        if target.suffix in (".h5ad", ".zarr"):
            _write_programs(fit, source, target, force=force)
            screen.wrote(target, f" ({plural(fit.n_components, 'gene programme')})")
            return 0
        data = None if counts is None else opening.table(counts, fractions=allow_fractions).counts
        write_r_list(fit, target, counts=data, force=force)
        screen.wrote(target, f" (LL, FF, s, cc = {c_name(fit.c)} for R)")
        return 0
    if all((source / part).exists() for part in ("LL.csv", "FF.csv")):
        _from_r(source, target, screen, force=force)
    else:
        table = opening.table(source, fractions=allow_fractions)
        screen.say((source.name, "bold"), f": {describe(table)} ({table.format})")
        screen.notes([*table.notes, *write_table(table, target, force=force)])
    screen.wrote(target)
    return 0


def _write_programs(fit: Fit, source: Path, target: Path, *, force: bool) -> None:
    """Write the factors of a fit as gene programmes, with the labels of samples where it is of a run."""
    found = programs(fit)
    if is_run(source):
        folder = RunFolder.open(source)
        for column in folder.record.sample_columns:
            found.obs[column] = folder.labels(column)
    with building(target, force=force) as temporary:
        write_anndata(found, temporary)


def _from_r(source: Path, target: Path, screen: Screen, *, force: bool) -> None:
    listed = read_r_list(source)
    if "counts" not in listed:
        raise BadFileError(f"{source} has no counts.mtx, and a model needs the counts; write it in R as well")
    if target.suffix == ".npz":
        with noted():  # the fit stops where R's is, before the first update
            fit = fit_log1p_nmf(**listed, likelihood="exact", callbacks=(lambda _: True,))
        with building(target, force=force) as temporary:
            fit.save(temporary)
        screen.say(
            f"c = {c_name(fit.c)}, log-likelihood {fit.log_likelihood:,.0f} as in R, not fitted further"
        )
        return
    screen.notes(["only the counts are converted: a fit becomes a model, .npz"])
    table = CountTable(listed["counts"], source=str(source), format="R list")
    screen.notes(write_table(table, target, force=force))


# ---------- the bundled data at c = 1 and c = inf, as a user would fit them

DemoFolder = Annotated[Path, common.output("FOLDER", "Folder for counts and results.", "-o", "--output")]


def demo(*, output: DemoFolder = Path("demo-out")) -> int:
    """Fit the bundled pancreas data and write a report.

    Human cells, 9 factors, c = 1 and c = inf. The counts are written to a file and fitted as by log1pnmf fit.
    """
    return run_demo(output, pancreas())


def run_demo(folder: Path, data: Dataset, *settings: str) -> int:
    """Write a data set to a file, and fit it with these settings, NAME=VALUE."""
    folder.mkdir(parents=True, exist_ok=True)
    file, cells = folder / "pancreas.npz", np.array([f"cell {i}" for i in range(len(data.sample_labels))])
    names: Any = {"sample_names": cells, "feature_names": data.feature_names}
    counts = replace(Counts.from_any(data.counts), **names)
    write_table(CountTable(counts, {"cell type": data.sample_labels}), file, force=True)
    shared: Any = {"reading": Reading(), "solver": SolverOptions(list(settings)), "groupby": "cell type"}
    options = RunOptions(**shared, output=folder / "run", force=True)
    parameters = options.solver.parameters(9, noise=options.noise)
    return carry_out(RunPlan(file, options, [1.0, math.inf], parameters))
