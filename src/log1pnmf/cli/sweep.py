"""``log1pnmf sweep``: one data set along c, each fit starting from the one before."""

from __future__ import annotations

import typer

from log1pnmf.fitting.request import Request
from log1pnmf.fitting.settings import Settings

from . import options as common
from .console import Screen
from .inputs import Reading
from .running import RunPlan, carry_out

__all__ = ["sweep"]

PATH = ["0.001,0.01,0.1,1,10,100,1000,inf"]


def sweep(
    *,
    file: common.CountFile,
    components: common.Components,
    output: common.Output,
    c: common.Shifts = PATH,
    layer: common.Layer = None,
    groupby: common.GroupBy = None,
    min_samples: common.MinSamples = 0,
    min_counts: common.MinCounts = 0,
    min_features: common.MinFeatures = 0,
    transpose: common.Transpose = False,
    allow_fractions: common.AllowFractions = False,
    max_memory: common.MaxMemory = None,
    text: common.Text = None,
    stop_words: common.StopWords = None,
    likelihood: common.Likelihood = Settings.likelihood,
    zeros_tol: common.ZerosTol = Settings.zeros_tol,
    size_factors: common.SizeFactors = Settings.size_factors,
    noise: common.Noise = Settings.noise,
    dispersion: common.Dispersion = Settings.dispersion,
    batch: common.Batch = None,
    batch_strength: common.BatchStrength = Settings.batch_strength,
    init: common.Init = Settings.init,
    n_init: common.NInit = Settings.n_init,
    l1: common.L1 = Settings.l1,
    seed: common.Seed = 0,
    max_iter: common.MaxIter = Settings.max_iter,
    tol: common.Tol = Settings.tol,
    jobs: common.Jobs = Request.n_jobs,
    time_limit: common.TimeLimit = None,
    report: common.Report = True,
    write_h5ad: common.WriteH5ad = None,
    json: common.Json = False,
    force: common.Force = False,
) -> int:
    """Fit the model at several c and compare the fits.

    Each fit starts from its neighbour, first with rising, then with falling c. sweep.csv compares them.
    """
    parameters = common.checked_parameters(
        n_components=components,
        likelihood=likelihood,
        zeros_tol=zeros_tol,
        size_factors=size_factors,
        noise=noise,
        dispersion=dispersion,
        batch_strength=batch_strength,
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
    plan = RunPlan(
        file=file,
        output=output,
        reading=Reading(
            layer,
            transpose,
            allow_fractions,
            min_samples,
            min_counts,
            min_features,
            max_memory,
            text,
            stop_words,
        ),
        c=values,
        parameters=parameters,
        along=True,
        groupby=groupby,
        batch=batch,
        time_limit=time_limit,
        report=report,
        force=force,
        write_h5ad=write_h5ad,
    )
    return carry_out(plan, Screen(json=json))
