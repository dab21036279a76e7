"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from log1pnmf._common.checks import require
from log1pnmf._common.safe_files import BadFileError
from log1pnmf.counts.read import read_sets, read_table
from log1pnmf.fitting.fit import c_name
from log1pnmf.fitting.fit_counts import Request
from log1pnmf.fitting.settings import Settings
from log1pnmf.model.link import ShiftedLog

# ---------- what is known of factors, from the files that a user names


@dataclass(frozen=True)
class KnownFiles:
    """Files with what is known."""

    # tables: a row for every sample, or for every feature, and a column for every factor
    loadings: Path | None = None
    factors: Path | None = None
    mask: Path | None = None  # sets of features, as GMT

    def parameters(self) -> dict[str, Any]:
        """Read the files; the parameters of a fit that they stand for."""
        given = {"fixed_loadings": self.loadings, "fixed_factors": self.factors}
        found = {name: _frame(path) for name, path in given.items() if path is not None}
        if self.mask is not None:
            found["mask"] = read_sets(self.mask)
        return found

    def as_dict(self) -> dict[str, str | None]:
        """Return the names of the files, for the record of a run."""
        return {name: None if path is None else str(path) for name, path in vars(self).items()}


NOTHING_KNOWN = KnownFiles()


def _frame(path: Path) -> Any:
    """Read a table of numbers that are not negative, with its names."""
    table = read_table(path, fractions="allow")
    columns = table.feature_names
    if columns is None:
        raise BadFileError(f"{path} has no header: the first line has to name the factors")
    pandas = require("pandas", purpose="tables of what is known")
    names = np.arange(table.shape[0]) if table.sample_names is None else table.sample_names
    return pandas.DataFrame(table.counts.to_scipy().toarray().astype(float), index=names, columns=columns)


# ---------- options that several commands share, and how their values are read

LARGEST_NUMBER = 10_000
"""Largest accepted number of factors; catches typing errors."""

CountFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Counts: .h5ad, .zarr, 10x .h5 or folder, .mtx(.gz), .csv/.tsv(.gz), .npz, .npy; "
        "or a folder of .txt files.",
        show_default=False,
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)]
WhichModel = Annotated[
    str | None, typer.Option("-c", "--shift", metavar="C", help="Model to use, if the run has several c.")
]
TableFile = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="PATH", help="Also write the table, as .csv or .tsv.")
]
Output = Annotated[
    Path,
    typer.Option("-o", "--output", metavar="FOLDER", help="New folder for the results.", show_default=False),
]
Shifts = Annotated[
    list[str],
    typer.Option(
        "-c",
        "--shift",
        metavar="C",
        help="Shift of the link: parts multiply at small c and add up at inf. Separate several by commas.",
    ),
]
Components = Annotated[
    int, typer.Option("-k", "--components", metavar="K", help="Number of factors.", show_default=False)
]
Layer = Annotated[
    str | None,
    typer.Option(
        "--layer",
        help="AnnData layer with the counts; also 'X' or 'raw'. [default: X, or 'counts' if X has none]",
    ),
]
Transpose = Annotated[bool, typer.Option("--transpose", help="Rows of the file are features, not samples.")]
AllowFractions = Annotated[
    bool, typer.Option("--allow-fractions", help="Accept values that are not whole numbers.")
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="Memory that reading may use, such as 8GB. [default: what is free, at most 200 times the file]",
        show_default=False,
    ),
]
Text = Annotated[
    str | None,
    typer.Option(
        "--text", metavar="COLUMN", help="Column of a .csv or .tsv with texts; their words are counted."
    ),
]
StopWords = Annotated[
    str | None,
    typer.Option(
        "--stop-words",
        metavar="WORDS",
        help="Words to ignore: english, or a file with one word per line. [default: none]",
        show_default=False,
    ),
]
MinSamples = Annotated[
    int, typer.Option("--min-samples", metavar="N", help="Remove features that occur in fewer samples.")
]
MinCounts = Annotated[
    float, typer.Option("--min-counts", metavar="N", help="Remove samples with a lower total count.")
]
MinFeatures = Annotated[
    int, typer.Option("--min-features", metavar="N", help="Remove samples with fewer features.")
]
GroupBy = Annotated[
    str | None,
    typer.Option("--groupby", metavar="COLUMN", help="Column with labels of the samples, for the report."),
]
Batch = Annotated[
    str | None,
    typer.Option(
        "--batch", metavar="COLUMN", help="Column with the batch of each sample: donor, chip, section."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, everything else to stderr.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing output.")]


def parse_c(values: Sequence[str]) -> list[float]:
    """Read values of c, several in one text with commas between.

    >>> parse_c(["0.001,1", "inf"])
    [0.001, 1.0, inf]
    """
    numbers: list[float] = []
    for text in (part.strip() for value in values for part in value.split(",")):
        try:
            number = ShiftedLog(float(text)).c
        except ValueError:
            raise typer.BadParameter(f"c must be positive or inf, got {text!r}") from None
        if number in numbers:
            raise typer.BadParameter(f"c must hold different numbers, got {text} twice")
        numbers.append(number)
    return numbers


def parse_numbers(text: str) -> list[int]:
    """Read numbers of factors: several with commas between, and ranges.

    >>> parse_numbers("2-5,8")
    [2, 3, 4, 5, 8]
    """
    numbers: list[int] = []
    for part in (part.strip() for part in text.split(",")):
        first, dash, last = part.partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise typer.BadParameter(f"numbers of factors are given as in 2-6,8,10, got {part!r}")
        low, high = int(first), int(last) if dash else int(first)
        if not 1 <= low <= high <= LARGEST_NUMBER:
            raise typer.BadParameter(f"numbers of factors must be at least 1 and rise, got {part!r}")
        numbers += range(low, high + 1)
    return numbers


Likelihood = Annotated[
    str,
    typer.Option(
        "--likelihood",
        metavar="KIND",
        help="exact visits every zero count; adaptive visits those that matter, and is exact up to 1e-4 of "
        "the log-likelihood; chebyshev and taylor are the paper's fast forms. auto: exact for small or dense "
        "data, otherwise adaptive.",
    ),
]
SizeFactors = Annotated[
    str,
    typer.Option(
        "--size-factors",
        metavar="KIND",
        help="total: total count over the mean total; fit: estimated with the model; none: all 1.",
    ),
]
Noise = Annotated[
    str,
    typer.Option(
        "--noise",
        metavar="KIND",
        help="Distribution of the counts: poisson, nb (negative binomial) for overdispersed counts, or auto: "
        "the one that predicts held-out counts better.",
    ),
]
L1 = Annotated[float, typer.Option("--l1", metavar="X", help="Penalty on all factors but the baseline.")]
FixedLoadings = Annotated[
    Path | None,
    typer.Option(
        "--fixed-loadings",
        metavar="TABLE",
        help="Known loadings, such as a design: rows are samples, columns factors.",
    ),
]
FixedFactors = Annotated[
    Path | None,
    typer.Option(
        "--fixed-factors",
        metavar="TABLE",
        help="Known factors, on the link scale: rows are features, columns factors.",
    ),
]
Mask = Annotated[
    Path | None,
    typer.Option("--mask", metavar="GMT", help="Gene sets; each becomes a factor with only these features."),
]
Others = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other parameter of Log1pNMF, such as init=random, n_init=5, dispersion=shared, "
        "zeros_tol=1e-5, batch_strength=3 or mask_penalty=2. May be repeated.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Random seed.")]
MaxIter = Annotated[int, typer.Option("--max-iter", metavar="N", help="Maximum number of iterations.")]
Tol = Annotated[
    float,
    typer.Option(
        "--tol", metavar="X", help="Stop when the objective falls by less than this, relative to its size."
    ),
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", metavar="N", help="Number of threads. [default: all cores]")
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine", metavar="NAME", help="auto, native, torch (GPU), or streaming (counts stay on disk)."
    ),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Memory for a streaming fit, such as 4GB. [default: 2GB]"),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="ADDRESS",
        help="Dask cluster for a streaming fit, such as tcp://host:8786. [default: this machine]",
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="PATH",
        help="Save the state of the fit to this file, every 30 seconds and at the end.",
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume", metavar="PATH", help="Continue from a checkpoint, with the same file and options."
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit", metavar="SECONDS", help="Stop each fit after this time and keep the result."
    ),
]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write report.html.")]
WriteH5ad = Annotated[
    Path | None, typer.Option("--write-h5ad", metavar="PATH", help="Also write AnnData with the results.")
]


DEFAULT_C = [c_name(Settings.c)]

SETTABLE = ("init", "n_init", "dispersion", "zeros_tol", "batch_strength", "mask_penalty", "row_solver")
"""Parameters of a fit without an option of their own."""


def parse_others(given: Sequence[str]) -> dict[str, Any]:
    """Read parameters of a fit, each as a text NAME=VALUE.

    >>> parse_others(["init=random", "n_init=5", "zeros_tol=1e-5"])
    {'init': 'random', 'n_init': 5, 'zeros_tol': 1e-05}
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or name not in SETTABLE:
            raise typer.BadParameter(
                f"--set takes NAME=VALUE with one of {', '.join(SETTABLE)}, got {text!r}"
            )
        kind = type(getattr(Settings, name))
        try:
            found[name] = kind(value)
        except ValueError:
            raise typer.BadParameter(f"{name} must be a number, got {value!r}") from None
    return found


def checked_parameters(**parameters: Any) -> dict[str, Any]:
    """Check the parameters of a fit before any file is read."""
    Request.of(**parameters)
    return parameters
