"""``log1pnmf convert``: counts from one format to another, fits to and from the R package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from log1pnmf._common.archive import building, check_place
from log1pnmf._common.safe_files import BadFileError
from log1pnmf.cli import options as common
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.read import format_of
from log1pnmf.counts.text import CountTable
from log1pnmf.counts.write import write_chunks, write_table
from log1pnmf.fitting.fit import Fit, c_name
from log1pnmf.model.simulate import Simulation

from .console import Screen
from .exchange import read_r_list, write_r_list
from .findings import is_model
from .inputs import Reading, describe
from .run_folder import fit_in, is_run

# ---------- log1pnmf convert: counts from one format to another, fits to and from the R package

PARTS = ("LL.csv", "FF.csv")


def convert(
    *,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FROM",
            help="Counts, the folder of a run, a model (.npz), or a folder with a fit of R's log1pNMF.",
            show_default=False,
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TO",
            help="Counts: the ending sets the format (none: a 10x folder). A fit: a folder for R, or .npz.",
            show_default=False,
        ),
    ],
    layer: common.Layer = None,
    transpose: common.Transpose = False,
    allow_fractions: common.AllowFractions = False,
    max_memory: common.MaxMemory = None,
    text: common.Text = None,
    stop_words: common.StopWords = None,
    c: Annotated[
        str | None, typer.Option("-c", "--shift", metavar="C", help="Model to use, if the run has several c.")
    ] = None,
    counts: Annotated[
        Path | None, typer.Option("--counts", metavar="FILE", help="Counts to write with a fit for R.")
    ] = None,
    force: common.Force = False,
) -> int:
    """Convert counts between formats, or a fit for R.

    Fits are converted to and from the R package log1pNMF.
    """
    screen = Screen()
    check_place(target, force=force)
    reading = Reading(
        layer, transpose, allow_fractions, max_memory=max_memory, text=text, stop_words=stop_words
    )
    if is_run(source) or is_model(source):
        fit = fit_in(source, None if c is None else common.parse_c([c])[0])
        to_r(fit, target, counts=None if counts is None else reading.table(counts).counts, force=force)
        screen.say(("wrote ", "green"), (str(target), "bold"), f" (LL, FF, s, cc = {c_name(fit.c)} for R)")
        return 0
    if all((source / part).exists() for part in PARTS):
        return _from_r(source, target, screen, force=force)
    table = reading.table(source)
    screen.say((source.name, "bold"), f": {describe(table)} ({table.format})")
    screen.notes([*table.notes, *write_table(table, target, force=force)])
    screen.say(("wrote ", "green"), (str(target), "bold"))
    return 0


def to_r(fit: Fit, target: Path, *, counts: Counts | None = None, force: bool = False) -> None:
    """Write a fit for R, whole or not at all."""
    with building(target, force=force) as folder:
        write_r_list(fit, folder, counts=counts)


def _from_r(source: Path, target: Path, screen: Screen, *, force: bool) -> int:
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
    else:
        counts = named_counts(listed.counts, listed.sample_names, listed.feature_names)
        screen.notes(["only the counts are converted: a fit becomes a model, .npz"])
        screen.notes(
            write_table(CountTable(counts, source=str(source), format="R list"), target, force=force)
        )
    screen.say(("wrote ", "green"), (str(target), "bold"))
    return 0


def named_counts(matrix: Any, sample_names: Any, feature_names: Any) -> Counts:
    """Check counts and give them names."""
    samples, features = (
        None if names is None else np.array(names, dtype=object) for names in (sample_names, feature_names)
    )
    return replace(Counts.from_any(matrix), sample_names=samples, feature_names=features)


# ---------- log1pnmf simulate: counts from the model, as many as the disk holds

CHUNK_ROWS = 8192


def simulate(
    *,
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            help="File for the counts (or use -o); .h5ad and .zarr may be larger than memory.",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PATH", help="File for the counts.")
    ] = None,
    samples: Annotated[int, typer.Option("-n", "--samples", help="Number of samples.")] = 1000,
    features: Annotated[int, typer.Option("-m", "--features", help="Number of features.")] = 500,
    components: Annotated[int, typer.Option("-k", "--components", help="Number of factors.")] = 5,
    c: Annotated[str, typer.Option("-c", "--shift", metavar="C", help="Shift of the link.")] = "1",
    density: Annotated[
        float | None,
        typer.Option(
            "--density",
            metavar="X",
            help="Share of entries that are not zero. [default: about 0.05 with 5 factors]",
        ),
    ] = None,
    size_spread: Annotated[
        float, typer.Option("--size-spread", metavar="X", help="Standard deviation of the log size factors.")
    ] = 0.0,
    dispersion: Annotated[
        float,
        typer.Option(
            "--dispersion", metavar="X", help="Variance is mean + X mean^2 (negative binomial); 0 is Poisson."
        ),
    ] = 0.0,
    batches: Annotated[
        int,
        typer.Option(
            "--batches", metavar="N", help="Number of batches; from 2 on, the file has a column 'batch'."
        ),
    ] = 1,
    batch_spread: Annotated[
        float,
        typer.Option("--batch-spread", metavar="X", help="Standard deviation of the log effects of batches."),
    ] = 0.5,
    seed: common.Seed = 0,
    truth: Annotated[
        Path | None,
        typer.Option(
            "--truth",
            metavar="PATH",
            help="Also write the true loadings, factors, size factors, dispersions and batches (.npz).",
        ),
    ] = None,
    json: common.Json = False,
    force: common.Force = False,
) -> int:
    """Simulate counts from the model, as in the paper."""
    screen = Screen(json=json)
    (shift,) = common.parse_c([c])
    output = path or option
    if output is None or (path and option):
        raise typer.BadParameter("name the output file once: log1pnmf simulate PATH, or -o PATH")
    check_place(output, force=force)
    if truth is not None:
        check_place(truth, force=force)
    simulation = Simulation(
        samples,
        features,
        components,
        c=shift,
        density=density,
        size_spread=size_spread,
        dispersion=dispersion,
        batches=batches,
        batch_spread=batch_spread,
        random_state=seed,
    )
    nnz, notes = write_simulation(simulation, output, force=force)
    if truth is not None:
        with building(truth, force=force) as temporary, open(temporary, "wb") as file:
            np.savez(
                file,
                loadings=simulation.loadings(),
                factors=simulation.factors,
                size_factors=simulation.size_factors(),
                dispersion=simulation.dispersion,
                batch=simulation.batch(),
                batch_effects=simulation.batch_effects(),
                c=np.array(shift),
            )
    part = nnz / (samples * features)
    screen.say(
        ("wrote ", "green"), (str(output), "bold"), f" ({samples:,} x {features:,}, {part:.1%} not zero)"
    )
    screen.notes(notes)
    screen.result(
        {"output": str(output), "n_samples": samples, "n_features": features, "nnz": nnz, "density": part}
    )
    return 0


def write_simulation(
    simulation: Simulation, path: Path, *, force: bool = False
) -> tuple[int, tuple[str, ...]]:
    """Draw and write, chunk by chunk where the format allows it; gives the number of non-zeros, and notes."""
    n, m = simulation.n_samples, simulation.n_features
    samples, features = [f"sample_{i}" for i in range(n)], [f"feature_{j}" for j in range(m)]
    columns = {}
    if simulation.batches > 1:
        columns["batch"] = np.array([f"batch_{number}" for number in simulation.batch()])
    kind = format_of(path) if path.suffix else ""
    if kind in ("h5ad", "zarr"):
        nnz = write_chunks(
            path,
            simulation.chunks(CHUNK_ROWS),
            shape=(n, m),
            sample_names=samples,
            feature_names=features,
            sample_columns=columns,
            force=force,
        )
        return nnz, ()
    (counts,) = simulation.chunks(n)
    table = CountTable(named_counts(counts, samples, features), columns)
    return int(counts.nnz), write_table(table, path, force=force)
