"""``log1pnmf transform``: loadings of new samples for the factors of a run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from log1pnmf._common.atomic import building, check_place
from log1pnmf._common.warn import convergence_warning
from log1pnmf._common.words import plural
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.features import repeated, select_features
from log1pnmf.counts.files import BadFileError, CountTable
from log1pnmf.counts.files.documents import TEXT_FORMATS
from log1pnmf.counts.files.write import numbered, write_csv
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.keys import c_name
from log1pnmf.fitting.new_samples import project

from . import options as common
from .console import Screen, one_line
from .inputs import Reading, describe
from .run_folder import fit_in

__all__ = ["transform"]


def transform(
    *,
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or a model (.npz).", show_default=False)
    ],
    file: common.CountFile,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="File for the loadings: .csv or .tsv, also with .gz.",
            show_default=False,
        ),
    ],
    c: common.WhichModel = None,
    missing: Annotated[
        Literal["refuse", "zero"],
        typer.Option(
            "--missing", help="If the file lacks features of the model: refuse, or fill them with zero."
        ),
    ] = "refuse",
    batch: common.Batch = None,
    layer: common.Layer = None,
    transpose: common.Transpose = False,
    allow_fractions: common.AllowFractions = False,
    max_memory: common.MaxMemory = None,
    text: common.Text = None,
    json: common.Json = False,
    force: common.Force = False,
) -> int:
    """Estimate the loadings of new samples.

    The factors are those of a fit. Features are matched by name.
    """
    screen = Screen(json=json)
    if not output.name.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz")):
        raise typer.BadParameter(f"-o must end with .csv, .tsv or the same with .gz, got {output}")
    check_place(output, force=force)
    fit = fit_in(run, None if c is None else common.parse_c([c])[0])
    table = Reading(layer, transpose, allow_fractions, max_memory=max_memory, text=text).table(file)
    screen.say((file.name, "bold"), f": {describe(table)} ({table.format})")
    if table.format in TEXT_FORMATS:  # words that no new text has were counted: zero times
        missing = "zero"
    counts, notes = align(table, fit, missing=missing)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", convergence_warning())
        loadings = project(fit, counts, batch=None if batch is None else table.labels(batch))
    notes += [one_line(warning.message) for warning in caught]
    screen.notes([*table.notes, *notes])
    header = ["sample", *fit.factor_names]
    names = numbered(table.sample_names, len(loadings))
    delimiter = "\t" if ".tsv" in output.suffixes else ","
    with building(output, force=force) as temporary:
        write_csv(temporary, names, [header], rows=(row.tolist() for row in loadings), delimiter=delimiter)
    n, k = loadings.shape
    screen.say(
        ("wrote ", "green"),
        (str(output), "bold"),
        f" ({n:,} samples x {k} factors, c = {c_name(fit.c)})",
    )
    screen.result({"output": str(output), "c": fit.c, "shape": [n, k], "notes": notes})
    return 0


def align(table: CountTable, fit: Fit, *, missing: str) -> tuple[Counts, list[str]]:
    """Bring the features of a table into the order of a fit.

    Parameters
    ----------
    missing : {"refuse", "zero"}
        What to do where a feature of the fit is not in the table.

    Returns
    -------
    notes : list of str
        What was left out or taken as zero.
    """
    fitted, given = fit.feature_names, table.feature_names
    if fitted is None or given is None:
        if table.shape[1] != len(fit.factors):
            raise BadFileError(
                f"{table.source} has {table.shape[1]} features, but the model {len(fit.factors)}; "
                "without names on both sides they must be the same"
            )
        return table.counts, ["no feature names on both sides: columns were taken in their order"]
    twice = repeated(fitted)
    if twice:
        raise BadFileError(
            f"{plural(len(twice), 'feature name occurs', 'feature names occur')} more than once in the model "
            f"(first {twice[0]!r}), so features cannot be matched by name; fit again with unique names"
        )
    position = {name: j for j, name in enumerate(given)}
    absent = [name for name in fitted if name not in position]
    if len(absent) == len(fitted):
        raise BadFileError(
            f"{table.source} has none of the model's features (first {fitted[0]!r}, here {given[0]!r}); "
            "are they named in the same way? --transpose exchanges rows and columns"
        )
    if absent and missing == "refuse":
        raise BadFileError(
            f"{table.source} lacks {len(absent):,} of {len(fitted):,} features (first {absent[0]!r}); "
            "--missing zero fills them with zero"
        )
    chosen = np.array([position.get(name, -1) for name in fitted], dtype=np.intp)
    notes = []
    extra = len(given) - (len(fitted) - len(absent))
    if extra:
        notes.append(f"{extra:,} features are not in the model and were ignored")
    if absent:
        notes.append(f"{len(absent):,} features of the model are not in the file and were set to zero")
    return select_features(table.counts, chosen), notes
