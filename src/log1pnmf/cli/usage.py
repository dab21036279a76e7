"""``log1pnmf usage``: which factors differ between groups of samples."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import numpy as np
import typer

from log1pnmf.analysis.groups import as_numbers
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
            help="Column with the condition of each sample, or a number.",
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
        )
    screen.notes([_in_the_shell(one_line(warning.message)) for warning in caught])
    table = found.table()
    _show(found, table, groupby, screen)
    write_table(output, table, screen, force=force)
    screen.result({name: np.asarray(column).tolist() for name, column in table.items()})
    return 0


def _in_the_shell(message: str) -> str:
    """Name the options of this command in place of the parameters of the function."""
    return message.replace("replicate=True", "--samples-are-replicates").replace("replicate=", "--replicate")


def _numbers(labels: np.ndarray) -> Any:
    """Read labels as numbers, where they are a scale."""
    try:
        values = labels.astype(np.float64)
    except ValueError:
        return labels
    return labels if as_numbers(values) is None else values


def _show(found: Usage, table: dict[str, Any], groupby: str, screen: Screen) -> None:
    if screen.json:
        return
    units = "replicates" if found.replicated else "samples"
    against = f"slope on {groupby}" if found.reference is None else f"difference to {found.reference}"
    screen.say((f"{against}, {len(found.means):,} {units}", "bold"))
    screen.say(f"{'factor':>10}  {'group':<16}{'difference':>10}  {'95% interval':<18}{'adjusted p':>10}")
    rows = zip(
        *(table[name] for name in ("factor", "group", "difference", "lower", "upper", "adjusted_p")),
        strict=True,
    )
    for factor, group, difference, low, high, adjusted in rows:
        name, interval = group if found.reference else groupby, f"{low:.3f} to {high:.3f}"
        screen.say(f"{factor:>10}  {name:<16}{difference:>10.3f}  {interval:<18}{adjusted:>10.2g}")
