"""``log1pnmf sweep``: one data set along c, each fit starting from the one before."""

from __future__ import annotations

import typer

from . import options as common
from .console import Screen
from .inputs import Reading
from .running import Request, run_request

__all__ = ["sweep"]

PATH = "0.001,0.01,0.1,1,10,100,1000,inf"


def sweep(
    *,
    file: common.CountFile,
    components: common.Components,
    output: common.Output,
    c: common.Shifts = [PATH],  # noqa: B006
    layer: common.Layer = None,
    label: common.Label = None,
    min_cells: common.MinCells = 0,
    min_counts: common.MinCounts = 0,
    min_features: common.MinFeatures = 0,
    transpose: common.Transpose = False,
    allow_fractions: common.AllowFractions = False,
    max_memory: common.MaxMemory = None,
    likelihood: common.Likelihood = None,
    size_factors: common.SizeFactors = "total",
    init: common.Init = "rank1",
    n_init: common.NInit = 1,
    l1: common.L1 = 0.0,
    seed: common.Seed = 0,
    max_iter: common.MaxIter = 1000,
    tol: common.Tol = 1e-8,
    jobs: common.Jobs = None,
    time_limit: common.TimeLimit = None,
    report: common.Report = True,
    write_h5ad: common.WriteH5ad = None,
    json: common.Json = False,
    force: common.Force = False,
) -> int:
    """Fit along several c, up and back down, each from its neighbour; compare the better ones (sweep.csv)."""
    parameters = common.model_parameters(
        components,
        likelihood="refined" if likelihood is None else likelihood,
        size_factors=size_factors,
        init=init,
        n_init=n_init,
        l1=l1,
        random_state=seed,
        max_iter=max_iter,
        tol=tol,
        n_jobs=jobs,
    )
    values = common.parse_c(c)
    if len(values) < 2:
        raise typer.BadParameter("a sweep needs at least two values of c; for one use log1pnmf fit")
    request = Request(
        file=file,
        output=output,
        reading=Reading(layer, transpose, allow_fractions, min_cells, min_counts, min_features, max_memory),
        c=values,
        parameters=parameters,
        by_size=likelihood is None,
        along=True,
        label=label,
        time_limit=time_limit,
        report=report,
        force=force,
        write_h5ad=write_h5ad,
    )
    return run_request(request, Screen(json=json))
