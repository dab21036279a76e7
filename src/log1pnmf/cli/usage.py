"""``log1pnmf usage``: which factors differ between groups of samples."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import numpy as np
import typer

from log1pnmf.analysis.groups import MISSING
from log1pnmf.analysis.usage import Usage
from log1pnmf.analysis.usage import usage as compare_groups

from . import options as common
from .console import Screen, one_line
from .run_folder import RunFolder
from .tables import check_table, write_table

__all__ = ["usage"]


def usage(
    *,
    run: common.Run,
    groupby: Annotated[
        str,
        typer.Option(
            "--groupby",
            metavar="COLUMN",
            help="Column with the condition of each sample, or a number such as an age, which has a slope.",
            show_default=False,
        ),
    ],
    replicate: Annotated[
        str | None,
        typer.Option(
            "--replicate",
            metavar="COLUMN",
            help="Column with the donor, animal or patient of each sample. Compare these, not samples.",
        ),
    ] = None,
    samples_are_replicates: Annotated[
        bool, typer.Option("--samples-are-replicates", help="Every sample is a replicate, as in bulk data.")
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference", metavar="GROUP", help="Group to compare the others with. [default: the first]"
        ),
    ] = None,
    covariate: Annotated[
        list[str] | None,
        typer.Option("--covariate", metavar="COLUMN", help="Covariate to adjust for; can be repeated."),
    ] = None,
    as_groups: Annotated[
        bool, typer.Option("--as-groups", help="Numbers in the column of --groupby are names of groups.")
    ] = False,
    c: common.WhichModel = None,
    output: common.TableFile = None,
    json: common.Json = False,
    force: common.Force = False,
) -> int:
    """Compare how much groups use each factor.

    Donors, animals or patients are the replicates.
    """
    screen = Screen(json=json)
    check_table(output, force=force)
    if replicate is not None and samples_are_replicates:
        raise typer.BadParameter("--replicate and --samples-are-replicates contradict each other; choose one")
    folder = RunFolder.open(run)
    fit = folder.fit(None if c is None else common.parse_c([c])[0])
    donors: Any = True if samples_are_replicates else None if replicate is None else folder.labels(replicate)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        found = compare_groups(
            fit,
            _numbers(folder.labels(groupby)),
            replicate=donors,
            reference=reference,
            covariates={name: _numbers(folder.labels(name)) for name in covariate or ()} or None,
            numeric=False if as_groups else None,
        )
    screen.notes([_in_the_shell(one_line(warning.message)) for warning in caught])
    table = found.table()
    if found.reference is None:
        table["group"][:] = groupby
    _show(found, table, groupby, screen)
    write_table(output, table, screen, force=force)
    screen.result({name: np.asarray(column).tolist() for name, column in table.items()})
    return 0


def _in_the_shell(message: str) -> str:
    """Name the options of this command in place of the parameters of the function."""
    return message.replace("replicate=True", "--samples-are-replicates").replace("replicate=", "--replicate")


def _numbers(labels: np.ndarray) -> Any:
    """Return labels as numbers where all that are there are numbers."""
    try:
        return np.where(np.isin(labels, ("", MISSING)), "nan", labels).astype(np.float64)
    except ValueError:
        return labels


def _show(found: Usage, table: dict[str, Any], groupby: str, screen: Screen) -> None:
    if screen.json:
        return
    units = "replicates" if found.replicated else "samples"
    against = f"slope on {groupby}" if found.reference is None else f"difference to {found.reference}"
    screen.say((f"{against}, {len(found.means):,} {units}", "bold"))
    what, digits = ("slope", ".3g") if found.reference is None else ("difference", ".3f")
    screen.say(f"{'factor':>10}  {'group':<16}{what:>10}  {'95% interval':<18}{'adjusted p':>10}")
    columns = ("factor", "group", what, "lower", "upper", "adjusted_p")
    for factor, group, value, low, high, adjusted in zip(*(table[name] for name in columns), strict=True):
        interval = f"{low:{digits}} to {high:{digits}}"
        screen.say(f"{factor:>10}  {group:<16}{value:>10{digits}}  {interval:<18}{adjusted:>10.2g}")
