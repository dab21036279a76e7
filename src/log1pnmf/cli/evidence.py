"""``log1pnmf evidence``: whether the factors of a run are there."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from log1pnmf.analysis.evidence import evidence as find_evidence
from log1pnmf.counts.files.table import BadFileError

from . import options as common
from .console import Screen
from .reporting import counts_again
from .run_folder import RunFolder
from .tables import check_table, write_table

__all__ = ["evidence"]


def evidence(
    *,
    run: common.Run,
    n_seeds: Annotated[int, typer.Option("--seeds", help="Number of fits from other random starts.")] = 5,
    n_bootstrap: Annotated[
        int, typer.Option("--bootstrap", help="Number of fits to samples drawn with replacement.")
    ] = 10,
    max_samples: Annotated[
        int | None,
        typer.Option("--max-samples", metavar="N", help="Use only N random samples. [default: all]"),
    ] = None,
    c: common.WhichModel = None,
    output: common.TableFile = None,
    jobs: common.Jobs = None,
    json: common.Json = False,
    force: common.Force = False,
) -> int:
    """Test whether each factor is real.

    Measures what the fit loses without it, and how often it comes back from other starts and samples.
    """
    screen = Screen(json=json)
    check_table(output, force=force)
    folder = RunFolder.open(run)
    folder.check_record("reading", "shape", "source")
    fit = folder.fit(None if c is None else common.parse_c([c])[0])
    counts, why = counts_again(folder.record)
    if counts is None:
        raise BadFileError(f"the counts of {run} are needed, but cannot be read again: {why}")
    found = find_evidence(
        fit,
        counts,
        n_seeds=n_seeds,
        n_bootstrap=n_bootstrap,
        max_samples=max_samples,
        n_jobs=jobs,
        verbose=int(not json),
    )
    if not json:
        screen.lines(found.summary())
    table = found.table()
    write_table(output, table, screen, force=force)
    columns = {name: np.asarray(column).tolist() for name, column in table.items()}
    screen.result({**columns, "judgement": found.judgement()})
    return 0
