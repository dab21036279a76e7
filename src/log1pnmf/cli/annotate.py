"""Results written into AnnData, for those who go on with scanpy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.atomic import building
from log1pnmf._common.untrusted import Budget
from log1pnmf.counts.chunked.opening import parse_memory
from log1pnmf.counts.files import Filtered
from log1pnmf.counts.files.annotated import created_store, read_whole, write_annotated
from log1pnmf.counts.files.write import to_anndata
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.keys import Keys, sweep_key
from log1pnmf.tl.inputs import Selection
from log1pnmf.tl.store import write_fit

__all__ = ["write_annotated_fits"]


def write_annotated_fits(
    path: Path,
    fits: Sequence[Fit],
    filtered: Filtered,
    *,
    source: Path,
    force: bool = False,
    max_memory: str | None = None,
) -> None:
    """Write fits as `log1pnmf.tl` does: one under the usual keys, several under those of a sweep.

    Parameters
    ----------
    path : Path
        .h5ad or .zarr.
    filtered : Filtered
        What they were fitted to.
    source : Path
        Where that comes from; of an AnnData file everything else is kept as well.
    max_memory : str, optional
        See `log1pnmf.counts.files.read_table`.
    """
    budget = Budget(source, None if max_memory is None else parse_memory(max_memory))
    adata = _annotated(filtered, source, budget)
    selection = Selection(filtered.table.counts, np.arange(adata.n_vars), None)
    for fit in fits:
        keys = Keys() if len(fits) == 1 else Keys(sweep_key(fit.c))
        write_fit(adata, keys, fit, selection)
    with building(path, force=force) as temporary, created_store(temporary) as store:
        write_annotated(store, adata)


def _annotated(filtered: Filtered, source: Path, budget: Budget) -> Any:
    """Take the object in the file where it has the same samples and features, else one with the counts."""
    table = filtered.table
    if table.format in ("h5ad", "zarr"):
        whole = read_whole(source, budget)
        samples, features = filtered.kept_samples, filtered.kept_features
        names = [] if table.feature_names is None else list(table.feature_names)
        if samples.max() < whole.n_obs and features.max() < whole.n_vars:
            part = whole[samples, features]
            if part.var_names.tolist() == names:
                return part.copy()
    return to_anndata(table)
