"""``log1pnmf simulate``: counts from the model, as many as the disk holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from log1pnmf._common.atomic import building, check_place
from log1pnmf.counts.files import CountTable, write_chunks, write_table
from log1pnmf.counts.files.read import format_of
from log1pnmf.model.simulate import Simulation

from . import options as common
from .console import Screen
from .convert import named_counts

__all__ = ["simulate"]

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
