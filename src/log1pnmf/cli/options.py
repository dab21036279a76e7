"""Options of the commands, how their values are read, and the counts they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import typer
from numpy.typing import NDArray

from log1pnmf._common.archive import check_place
from log1pnmf._common.checks import plural, require
from log1pnmf._common.safe_files import BadFileError, MemoryLimit
from log1pnmf.analysis import groups
from log1pnmf.counts.features import n_variable, own_symbols, variable_features
from log1pnmf.counts.read import Filtered, filter_table, read_sets, read_table, read_var
from log1pnmf.counts.text import CountTable
from log1pnmf.counts.write import numbered
from log1pnmf.fitting.fit import c_name
from log1pnmf.fitting.fit_counts import KNOWN, SETTINGS, checked
from log1pnmf.fitting.settings import Settings
from log1pnmf.model.noise import ShiftedLog

from .console import Screen
from .run_folder import write_columns

# ---------- options that several commands share, by the panel of --help that shows them


def _option(panel: str, metavar: str | None, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


argument = partial(typer.Argument, show_default=False)
model, data, run, output = (partial(_option, panel) for panel in ("Model", "Input", "Computing", "Output"))

FORMATS = ".h5ad, .zarr, 10x .h5 or folder, .mtx(.gz), .csv/.tsv(.gz), .npz, .npy; or a folder of .txt files"
CountFile = Annotated[Path, argument(metavar="FILE", help=f"Counts: {FORMATS}.")]
RunOrModel = Annotated[Path, argument(metavar="RUN", help="Folder of a run, or a model (.npz).")]
RunPlace = Annotated[Path, argument(metavar="RUN", help="Folder of a run.")]

Components = Annotated[int, model("K", "Number of factors.", "-k", "--components")]
Numbers = Annotated[str, model("K,K...", "Numbers of factors, such as 1-6,8,10.", "-k", "--components")]
SHIFT = "Shift of the link: factors multiply at small c and add up at inf. Separate several by commas."
Shifts = Annotated[list[str], model("C", SHIFT, "-c", "--shift")]
KIND = "Distribution of the counts: poisson, nb (negative binomial)"
HELD_OUT = "for overdispersed counts, or auto: the one that predicts held-out counts better."
Noise = Annotated[str, model("KIND", f"{KIND} {HELD_OUT}")]
Batch = Annotated[str | None, model("COLUMN", "Column with the batch of each sample: donor, chip, section.")]
OTHERS = (
    "Any other parameter of Log1pNMF, such as likelihood=exact, size_factors=none, l1=auto, max_iter=200, "
    "tol=1e-6, init=random or n_init=5; known factors from tables, fixed_loadings=FILE and "
    "fixed_factors=FILE, and from gene sets, mask=GMT. May be repeated."
)
Set = Annotated[list[str] | None, model("NAME=VALUE", OTHERS)]

LAYER = "X, or 'counts' if X has none"
Layer = Annotated[
    str | None, data("NAME", "AnnData layer with the counts; also 'X' or 'raw'.", show_default=LAYER)
]
Transpose = Annotated[bool, data(None, "Rows of the file are features, not samples.", "--transpose")]
AllowFractions = Annotated[bool, data(None, "Accept values that are not whole numbers.", "--allow-fractions")]
MinSamples = Annotated[int, data("N", "Remove features that occur in fewer samples.")]
MinCounts = Annotated[float, data("N", "Remove samples with a lower total count.")]
MinFeatures = Annotated[int, data("N", "Remove samples with fewer features.")]
MEMORY = "Memory that reading may use, such as 8GB; a streaming fit works in it."
FREE = "what is free, at most 200 times the file; 2GB for a streaming fit"
MaxMemory = Annotated[str | None, data("SIZE", MEMORY, show_default=FREE)]
Text = Annotated[str | None, data("COLUMN", "Column of a .csv or .tsv with texts; their words are counted.")]
StopWords = Annotated[
    str | None,
    data("WORDS", "Words to ignore: english, or a file with one word per line.", show_default="none"),
]
GeneSymbols = Annotated[
    str | None, data("COLUMN", "Column of AnnData's var that names the features, such as gene symbols.")
]
MASK = (
    "Features to use: variable:2000 for the 2,000 that vary most, or a column of AnnData's var, such as "
    "highly_variable. With +all, the others are added after the fit."
)
MaskVar = Annotated[str | None, data("FEATURES[+all]", MASK)]

ENGINES = (
    "auto, native, torch (GPU), or streaming: counts stay on disk. The address of a Dask cluster, such as "
    "tcp://host:8786, streams there."
)
Engine = Annotated[str, run("NAME", ENGINES)]
Seed = Annotated[int, run("N", "Random seed.")]
Jobs = Annotated[int | None, run("N", "Number of threads.", show_default="all cores")]
MaxSamples = Annotated[int | None, run("N", "Use only N random samples.", show_default="all")]
TimeLimit = Annotated[float | None, run("SECONDS", "Stop each fit after this time and keep the result.")]
Checkpoint = Annotated[Path | None, run("PATH", "Save the fit's state here every 30 seconds and at the end.")]
Resume = Annotated[Path | None, run("PATH", "Continue from a checkpoint, with the same file and options.")]

Folder = Annotated[Path, output("FOLDER", "New folder for the results.", "-o", "--output")]
TableFile = Annotated[Path | None, output("PATH", "Also write the table, as .csv or .tsv.", "-o", "--output")]
GroupBy = Annotated[str | None, output("COLUMN", "Column with labels of the samples, for the report.")]
Report = Annotated[bool, output(None, "Write report.html.")]
WriteH5ad = Annotated[Path | None, output("PATH", "Also write AnnData with the results.")]
Json = Annotated[bool, output(None, "Print the result as JSON, everything else to stderr.", "--json")]
Force = Annotated[bool, output(None, "Overwrite existing output.", "--force")]

DEFAULT_C = [c_name(Settings.c)]
ALL = "+all"  # after the name of a mask: the features outside of it are added to the fit
LARGEST_NUMBER = 10_000  # largest accepted number of factors; catches typing errors


def parse_c(values: Sequence[str]) -> list[float]:
    """Read the different values of c, several in one text with commas between.

    >>> parse_c(["0.001,1", "inf", "1.0"])
    [0.001, 1.0, inf]
    """
    numbers: list[float] = []
    for text in (part.strip() for value in values for part in value.split(",")):
        try:
            numbers.append(ShiftedLog(float(text)).c)
        except ValueError:
            raise typer.BadParameter(f"c must be positive or inf, got {text!r}") from None
    return list(dict.fromkeys(numbers))


WHICH = "Model to use, if the run has several c."
WhichModel = Annotated[
    float | None, model("C", WHICH, "-c", "--shift", parser=lambda text: parse_c([text])[0])
]


def parse_numbers(text: str) -> list[int]:
    """Read numbers of factors: several with commas between, and ranges.

    >>> parse_numbers("2-5,8,3")
    [2, 3, 4, 5, 8]
    """
    numbers: list[int] = []
    for part in (part.strip() for part in text.split(",")):
        if not (found := re.fullmatch("([0-9]+)(?:-([0-9]+))?", part)):
            raise typer.BadParameter(f"numbers of factors are given as in 2-6,8,10, got {part!r}")
        low, high = int(found[1]), int(found[2] or found[1])
        if not 1 <= low <= high <= LARGEST_NUMBER:
            raise typer.BadParameter(f"numbers of factors must be at least 1 and rise, got {part!r}")
        numbers += range(low, high + 1)
    return list(dict.fromkeys(numbers))


# ---------- parameters of a fit

WITH_OPTIONS = ("n_components", "c", "noise", "engine", "random_state")
SETTABLE = tuple(name for name in (*SETTINGS, *KNOWN) if name not in WITH_OPTIONS)
DEFAULTS = {name: getattr(Settings, name) for name in SETTABLE if name not in KNOWN}


def parse_settings(given: Sequence[str]) -> dict[str, Any]:
    """Read parameters of a fit, each as a text NAME=VALUE; what is known of factors stays the name of a file.

    >>> parse_settings(["init=random", "n_init=5", "tol=1e-5", "mask=sets.gmt"])
    {'init': 'random', 'n_init': 5, 'tol': 1e-05, 'mask': 'sets.gmt'}
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or name not in SETTABLE:
            raise typer.BadParameter(f"--set takes NAME=VALUE with one of {', '.join(SETTABLE)}, got {text}")
        kind: Any = type(getattr(Settings, name, ""))
        try:
            found[name] = value if text == "l1=auto" else kind(value)
        except ValueError:
            what = "whole number" if kind is int else "number"
            raise typer.BadParameter(f"{name} must be a {what}, got {value!r}") from None
    return found


def with_tables(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of a fit with the files of what is known read."""
    readers = {"fixed_loadings": _frame, "fixed_factors": _frame, "mask": read_sets}
    return {name: readers[name](value) if name in readers else value for name, value in parameters.items()}


def _frame(path: str) -> Any:
    """Read a table of numbers that are not negative, with its names."""
    table = read_table(path, fractions="allow")
    columns = table.feature_names
    if columns is None:
        raise BadFileError(f"{path} has no header: the first line has to name the factors")
    pandas = require("pandas", purpose="tables of what is known")
    names = np.arange(table.shape[0]) if table.sample_names is None else table.sample_names
    return pandas.DataFrame(table.counts.to_scipy().toarray().astype(float), index=names, columns=columns)


@dataclass(frozen=True)
class SolverOptions:
    """Options of every command that fits models."""

    set: Set = None
    seed: Seed = 0
    jobs: Jobs = None

    def parameters(self, n_components: int, **more: Any) -> dict[str, Any]:
        """Return parameters of a fit by their names in the library, checked before any file is read."""
        parameters = {"n_components": n_components, **more, **parse_settings(self.set or ())}
        parameters |= {"random_state": self.seed, "n_jobs": self.jobs}
        checked(**{name: value for name, value in parameters.items() if name not in KNOWN})
        return parameters


# ---------- options that belong together: fields of a dataclass, which commands take as one parameter


def unfolded(command: Callable[..., int]) -> Callable[..., int]:
    """Show the fields of parameters that are dataclasses as options, and make the dataclasses of them."""
    hints = get_type_hints(command, include_extras=True)
    shown: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        shown += _options(kind) if is_dataclass(kind) else [parameter.replace(annotation=kind)]

    @wraps(command)
    def run(**given: Any) -> int:
        made = {name: _made(kind, given) for name, kind in hints.items() if is_dataclass(kind)}
        return command(**given, **made)

    run.__signature__ = Signature(shown, return_annotation=int)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in shown}
    return run


def _options(kind: Any) -> list[Parameter]:
    """Return the fields of a dataclass, and of dataclasses in it, as parameters."""
    shown: list[Parameter] = []
    for one in fields(kind):
        inner = get_type_hints(kind, include_extras=True)[one.name]
        default = Parameter.empty if one.default is MISSING else one.default
        here = Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=inner)
        shown += _options(inner) if is_dataclass(inner) else [here]
    return shown


def _made(kind: Any, given: dict[str, Any]) -> Any:
    """Return a dataclass made of the options that are its own, which are taken out of those given."""
    hints = get_type_hints(kind)
    return kind(
        **{
            one.name: _made(hints[one.name], given) if is_dataclass(hints[one.name]) else given.pop(one.name)
            for one in fields(kind)
        }
    )


# ---------- counts from a file for a command: read and filtered, with messages


@dataclass(frozen=True)
class OpenOptions:
    """What a file holds, and where."""

    layer: Layer = None
    transpose: Transpose = False
    max_memory: MaxMemory = None
    text: Text = None
    gene_symbols: GeneSymbols = None
    stop_words: StopWords = None

    def table(self, path: Path, *, fractions: bool) -> CountTable:
        """Read a file."""
        names = ("layer", "transpose", "max_memory", "text", "stop_words")
        how: Any = {name: getattr(self, name) for name in names}
        table = read_table(path, fractions="allow" if fractions else "refuse", **how)
        return table if self.gene_symbols is None else self.with_symbols(table, self.gene_symbols)

    def with_symbols(self, table: CountTable, column: str) -> CountTable:
        """Name features by their symbols; those without one of their own keep their names."""
        symbols = self._of_features(table, "--gene-symbols", column).astype(str)
        names = own_symbols(symbols, numbered(table.feature_names, len(symbols)))
        notes, n_kept = table.notes, int((names != np.char.strip(symbols)).sum())
        if n_kept:
            kept = plural(n_kept, "feature keeps its name", "features keep their names")
            notes = (*notes, f"{kept}: no symbol, or one that occurs more than once")
        return replace(table, counts=replace(table.counts, feature_names=names), notes=notes)

    def _of_features(self, table: CountTable, option: str, column: str) -> np.ndarray:
        path = Path(table.source)
        if table.format not in ("h5ad", "zarr") or self.transpose:
            raise BadFileError(
                f"{option} names a column of var of an AnnData file, not transposed; got {path}"
            )
        return read_var(path, column, self.layer, MemoryLimit(path, self.max_memory))


@dataclass(frozen=True)
class Reading(OpenOptions):
    """How a file is read and what is left out; see `log1pnmf.counts.read_table` and `filter_table`."""

    allow_fractions: AllowFractions = False
    min_samples: MinSamples = 0
    min_counts: MinCounts = 0
    min_features: MinFeatures = 0
    mask_var: MaskVar = None

    def filtered(self, table: CountTable) -> Filtered:
        """Leave out what is to be left out."""
        how: Any = {name: getattr(self, name) for name in ("min_samples", "min_counts", "min_features")}
        left = filter_table(table, **how)
        if self.mask_var is None or self.mask_var.endswith(ALL):
            return left
        mask = np.isin(np.arange(table.shape[1]), left.kept_features[self.chosen(left)])
        return filter_table(table, mask_var=mask, **how)

    def chosen(self, left: Filtered) -> NDArray[np.intp]:
        """Return which of the features that the other filters left --mask-var chooses."""
        name = (self.mask_var or "").removesuffix(ALL)
        if (n := n_variable(name, "--mask-var")) is not None:
            return variable_features(left.table.counts, n)
        mask = self._of_features(left.table, "--mask-var", name)
        if mask.dtype != bool:
            raise BadFileError(
                f"--mask-var: {name!r} must be true or false for each feature, got {str(mask[0])!r}"
            )
        chosen = np.flatnonzero(mask[left.kept_features])
        if not len(chosen):
            raise BadFileError(f"--mask-var: {name!r} is true for none of the features; choose another")
        return chosen


def read_filtered(path: Path, reading: Reading, screen: Screen) -> Filtered:
    """Read and filter counts, and print what was done."""
    table = reading.table(path, fractions=reading.allow_fractions)
    screen.say((path.name, "bold"), f": {describe(table)} ({table.format})")
    screen.notes(table.notes)
    filtered = reading.filtered(table)
    screen.notes(filtered.report, kind="filter")
    if filtered.table.shape != table.shape:
        screen.notes([f"left: {describe(filtered.table)}"], kind="filter")
    kinds = zip(filtered.table.counts.n_empty, ("sample", "feature"), strict=True)
    empty = [plural(n, what) for n, what in kinds if n]
    if empty:
        screen.notes([f"{' and '.join(empty)} without any count: zero in the result"])
    return filtered


def describe(table: CountTable) -> str:
    """Describe in words how large a table is."""
    (n, m), counts = table.shape, table.counts
    return f"{n:,} samples x {m:,} features, {table.fraction:.1%} not zero, {counts.total:,.0f} counts"


def batches_of(table: CountTable, column: str | None) -> Any:
    """Return the batch of each sample, None where it is missing; None without a column."""
    if column is None:
        return None
    labels: Any = table.labels(column).astype(object)
    labels[np.isin(labels.astype(str), ("", groups.MISSING))] = None
    return labels


# ---------- a table about a fit, printed and perhaps written

TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of commands that print a table about a fit."""

    c: WhichModel = None
    output: TableFile = None
    json: Json = False
    force: Force = False

    def screen(self) -> Screen:
        """Refuse a place for the table before anything is computed, and return where to print."""
        if self.output is not None:
            check_table(self.output, force=self.force)
        return Screen(json=self.json)

    def write(self, screen: Screen, table: Mapping[str, Any], **more: Any) -> None:
        """Write the columns of a table, the names of its rows first, where that was asked for."""
        if self.output is not None:
            write_columns(self.output, table, force=self.force)
            screen.wrote(self.output)
        screen.result({name: np.asarray(column).tolist() for name, column in table.items()} | more)


def check_table(path: Path, *, force: bool) -> None:
    """Refuse a place for a table."""
    if not path.name.endswith(TABLES):
        raise typer.BadParameter(f"-o must end with .csv, .tsv or the same with .gz, got {path}")
    check_place(path, force=force)
