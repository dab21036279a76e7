"""``log1pnmf convert``: counts from one format to another, fits to and from the R package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np

from log1pnmf._common.archive import archive_kind, building, check_place
from log1pnmf._common.safe_files import BadFileError
from log1pnmf.cli import options as common
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.text import CountTable
from log1pnmf.counts.write import write_table
from log1pnmf.fitting.fit import Fit, c_name

from .console import Screen
from .options import OpenOptions, describe, unfolded
from .run_folder import fit_in, is_run


@unfolded
def convert(
    *,
    source: Annotated[
        Path,
        common.argument(
            metavar="FROM",
            help="Counts, the folder of a run, a model (.npz), or a folder with a fit of R's log1pNMF.",
        ),
    ],
    target: Annotated[
        Path,
        common.argument(
            metavar="TO",
            help="Counts: the ending sets the format (none: a 10x folder). A fit: a folder for R, or .npz.",
        ),
    ],
    opening: OpenOptions,
    allow_fractions: common.AllowFractions = False,
    c: common.WhichModel = None,
    counts: Annotated[
        Path | None, common.data(metavar="FILE", help="Counts to write with a fit for R.")
    ] = None,
    force: common.Force = False,
) -> int:
    """Convert counts between formats, or a fit for R.

    Fits are converted to and from the R package log1pNMF.
    """
    screen = Screen()
    check_place(target, force=force)
    if is_run(source) or archive_kind(source) is not None:
        fit = fit_in(source, c)
        data = None if counts is None else opening.table(counts, fractions=allow_fractions).counts
        to_r(fit, target, counts=data, force=force)
        screen.say(("wrote ", "green"), (str(target), "bold"), f" (LL, FF, s, cc = {c_name(fit.c)} for R)")
        return 0
    if all((source / part).exists() for part in ("LL.csv", "FF.csv")):
        _from_r(source, target, screen, force=force)
    else:
        table = opening.table(source, fractions=allow_fractions)
        screen.say((source.name, "bold"), f": {describe(table)} ({table.format})")
        screen.notes([*table.notes, *write_table(table, target, force=force)])
    screen.say(("wrote ", "green"), (str(target), "bold"))
    return 0


def to_r(fit: Fit, target: Path, *, counts: Counts | None = None, force: bool = False) -> None:
    """Write a fit for R, whole or not at all."""
    from .exchange import write_r_list

    with building(target, force=force) as folder:
        write_r_list(fit, folder, counts=counts)


def _from_r(source: Path, target: Path, screen: Screen, *, force: bool) -> None:
    from .exchange import read_r_list

    listed = read_r_list(source)
    if listed.counts is None:
        raise BadFileError(f"{source} has no counts.mtx, and a model needs the counts; write it in R as well")
    if target.suffix == ".npz":
        fit = listed.to_fit()
        with building(target, force=force) as temporary:
            fit.save(temporary)
        screen.say(
            f"c = {c_name(fit.c)}, log-likelihood {fit.log_likelihood:,.0f} as in R, not fitted further"
        )
        return
    samples, features = (
        None if names is None else np.array(names, dtype=object)
        for names in (listed.sample_names, listed.feature_names)
    )
    counts = replace(Counts.from_any(listed.counts), sample_names=samples, feature_names=features)
    screen.notes(["only the counts are converted: a fit becomes a model, .npz"])
    screen.notes(write_table(CountTable(counts, source=str(source), format="R list"), target, force=force))
