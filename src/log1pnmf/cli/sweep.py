"""``log1pnmf sweep``: one data set along c, each fit starting from the one before."""

from __future__ import annotations

import typer

from . import options as common
from .console import Screen
from .groups import FitOptions, unfolded
from .inputs import Reading
from .running import RunPlan, carry_out

__all__ = ["sweep"]

PATH = ["0.001,0.01,0.1,1,10,100,1000,inf"]


@unfolded
def sweep(
    *,
    file: common.CountFile,
    components: common.Components,
    output: common.Output,
    c: common.Shifts = PATH,
    reading: Reading,
    groupby: common.GroupBy = None,
    options: FitOptions,
    batch: common.Batch = None,
    time_limit: common.TimeLimit = None,
    report: common.Report = True,
    write_h5ad: common.WriteH5ad = None,
    json: common.Json = False,
    force: common.Force = False,
) -> int:
    """Fit the model at several c and compare the fits.

    Each fit starts from its neighbour, first with rising, then with falling c. sweep.csv compares them.
    """
    values = common.parse_c(c)
    if len(values) < 2:
        raise typer.BadParameter("a sweep needs at least two values of c; for one use log1pnmf fit")
    plan = RunPlan(
        file=file,
        output=output,
        reading=reading,
        c=values,
        parameters=options.parameters(components),
        along=True,
        groupby=groupby,
        batch=batch,
        time_limit=time_limit,
        report=report,
        force=force,
        write_h5ad=write_h5ad,
    )
    return carry_out(plan, Screen(json=json))
