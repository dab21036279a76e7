"""``log1pnmf fit``: counts in, factors and a report out."""

from __future__ import annotations

import typer

from log1pnmf.counts.chunked.opening import DEFAULT_MEMORY, parse_memory
from log1pnmf.fitting.settings import Settings

from . import options as common
from .console import Screen
from .groups import FitOptions, unfolded
from .inputs import Reading
from .known import KnownFiles
from .running import RunPlan, carry_out
from .streamed import Streaming

__all__ = ["fit"]


@unfolded
def fit(
    *,
    file: common.CountFile,
    components: common.Components,
    output: common.Output,
    c: common.Shifts = common.DEFAULT_C,
    reading: Reading,
    groupby: common.GroupBy = None,
    batch: common.Batch = None,
    options: FitOptions,
    fixed_loadings: common.FixedLoadings = None,
    fixed_factors: common.FixedFactors = None,
    mask: common.Mask = None,
    mask_penalty: common.MaskPenalty = Settings.mask_penalty,
    engine: common.Engine = Settings.engine,
    memory: common.Memory = None,
    scheduler: common.Scheduler = None,
    time_limit: common.TimeLimit = None,
    checkpoint: common.Checkpoint = None,
    resume: common.Resume = None,
    report: common.Report = True,
    write_h5ad: common.WriteH5ad = None,
    json: common.Json = False,
    force: common.Force = False,
) -> int:
    """Fit the model to a file of counts.

    Writes models, tables and a report to a folder.

    Ctrl-C keeps the fit so far.
    """
    values = common.parse_c(c)
    if len(values) > 1 and (checkpoint is not None or resume is not None):
        raise typer.BadParameter("--checkpoint and --resume are for one fit: give one c")
    parameters = options.parameters(components, mask_penalty=mask_penalty, engine=engine)
    size = DEFAULT_MEMORY if memory is None else memory
    parse_memory(size)
    if memory is not None and engine != "streaming":
        raise typer.BadParameter("--memory is for --engine streaming")
    if scheduler is not None and engine != "streaming":
        raise typer.BadParameter("--scheduler is for --engine streaming")
    if write_h5ad is not None and engine == "streaming":
        raise typer.BadParameter("--write-h5ad would load all counts: the folder has the loadings as tables")
    if checkpoint is not None:
        parameters["checkpoint"] = str(checkpoint)
    plan = RunPlan(
        file=file,
        output=output,
        reading=reading,
        c=values,
        parameters=parameters,
        groupby=groupby,
        batch=batch,
        time_limit=time_limit,
        resume=resume,
        report=report,
        force=force,
        write_h5ad=write_h5ad,
        known=KnownFiles(fixed_loadings, fixed_factors, mask),
        streaming=Streaming(size, scheduler) if engine == "streaming" else None,
    )
    return carry_out(plan, Screen(json=json))
