"""``log1pnmf rename``: names for the factors of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from log1pnmf.counts.files.table import BadFileError
from log1pnmf.counts.files.write import numbered
from log1pnmf.fitting.keys import c_name

from . import options as common
from .console import Screen
from .run_folder import RunFolder
from .run_writer import write_factor_tables

__all__ = ["rename"]


def rename(
    *,
    run: common.Run,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="FACTOR=NAME...",
            help="Old and new names: k1=interferon k2='cell cycle'.",
            show_default=False,
        ),
    ],
    c: common.WhichModel = None,
) -> int:
    """Rename factors in the model and its tables.

    Run `log1pnmf report` afterwards to update the report.
    """
    screen, folder = Screen(), RunFolder.open(run)
    wanted = dict(_pair(text) for text in names)
    fit = folder.fit(None if c is None else common.parse_c([c])[0]).renamed(wanted)
    name = f"c={c_name(fit.c)}"
    if f"models/{name}.npz" not in folder.record["models"]:
        raise BadFileError(f"{folder.path} has no models/{name}.npz: it is damaged; run the command again")
    fit.save(folder.path / "models" / f"{name}.npz")
    features = numbered(fit.feature_names, len(fit.factors))
    write_factor_tables(folder.path, name, fit, folder.samples["sample"].tolist(), features)
    screen.say(("renamed", "green"), f": {', '.join(fit.factor_names)}")
    screen.say(f"log1pnmf report {run} writes the report again")
    return 0


def _pair(text: str) -> tuple[str, str]:
    factor, equals, name = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"names are given as k1=NAME, got {text!r}")
    return factor, name
