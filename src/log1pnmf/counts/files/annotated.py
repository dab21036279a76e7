"""AnnData on disk: .h5ad and .zarr. Only what is asked for is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf._common.gate import Store, open_store
from log1pnmf._common.optional import require
from log1pnmf._common.untrusted import BadFileError, Budget
from log1pnmf.counts.given import holds_counts

from .sink import created_hdf5
from .table import RawTable

__all__ = [
    "created_store",
    "element_io",
    "opened",
    "read_anndata",
    "read_columns",
    "read_whole",
    "write_annotated",
]

COUNTS = "counts"
MISSING = "NA"
CELL = 64
"""Bytes that a label takes while it becomes text, besides the text itself."""


def element_io() -> Any:
    """Find the module of AnnData with `read_elem` and `write_elem`, which has moved between versions."""
    anndata = require("anndata", purpose="reading and writing AnnData")
    if hasattr(anndata, "io") and hasattr(anndata.io, "read_elem"):
        return anndata.io
    return require("anndata.experimental", purpose="reading and writing AnnData")


def write_annotated(store: Any, adata: Any) -> None:
    """Write AnnData to an open store, without the mark of "no raw" that older versions cannot read."""
    element_io().write_elem(store, "/", adata)
    if adata.raw is None and "raw" in store:
        del store["raw"]


def read_anndata(path: Path, layer: str | None, budget: Budget) -> RawTable:
    """Read the counts, names and columns of obs.

    Parameters
    ----------
    path : Path
        .h5ad or .zarr.
    layer : str, optional
        Name of a layer, "X" or "raw". By default X, or layers["counts"] where X does not hold counts.
    """
    read = element_io().read_elem
    with opened(path, budget) as store:
        if "obs" not in store or "var" not in store:
            raise BadFileError(f"{path} holds no AnnData: obs or var is missing; is it another kind of file?")
        layers, has_raw = store.members("layers"), "raw/X" in store
        place, matrix, notes = _chosen(path, store, layer, layers=layers, has_raw=has_raw)
        names, columns = read_columns(store)
        var = read(store.node("raw/var" if place == "raw/X" else "var"))
    others = [*(["raw"] if has_raw and place != "raw/X" else []), *(one for one in layers if one != layer)]
    return RawTable(
        matrix,
        names,
        var.index.tolist(),
        columns,
        notes,
        hint=f"choose another layer with --layer ({', '.join(others)})" if others else "pass raw counts",
    )


def read_columns(store: Store) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Read the names of the samples and the columns of obs."""
    obs = element_io().read_elem(store.node("obs"))
    return obs.index.tolist(), {str(name): _column(obs[name], store.budget) for name in obs.columns}


def read_whole(path: Path, budget: Budget) -> Any:
    """Read everything that is in an AnnData file; all of it is checked before.

    Parameters
    ----------
    path : Path
        .h5ad or .zarr.
    """
    anndata = require("anndata", purpose="reading AnnData")
    with opened(path, budget) as store:
        group = store.node("/")
        return anndata.read_zarr(group) if path.is_dir() else anndata.read_h5ad(path)


@contextmanager
def opened(path: Path, budget: Budget) -> Iterator[Store]:
    """Open a .h5ad file or a .zarr folder, and close it."""
    store = open_store(path, budget)
    try:
        yield store
    finally:
        if hasattr(store.root, "close"):
            store.root.close()


@contextmanager
def created_store(path: Path) -> Iterator[Any]:
    """Open a new .h5ad file or, for any other ending, a new .zarr folder."""
    if path.name.endswith(".h5ad"):
        with created_hdf5(path) as file:
            yield file
    else:
        zarr = require("zarr", purpose="writing .zarr folders")
        # Version 2 of the layout is what every AnnData reads.
        yield zarr.open_group(str(path), mode="w", zarr_format=2)


def _chosen(
    path: Path, store: Store, layer: str | None, *, layers: list[str], has_raw: bool
) -> tuple[str, Any, tuple[str, ...]]:
    """Read the layer asked for; without one, X or the counts that stand in for it."""
    read = element_io().read_elem
    if layer in layers:
        return f"layers/{layer}", read(store.node(f"layers/{layer}")), ()
    if layer == "raw" and has_raw:
        return "raw/X", read(store.node("raw/X")), ()
    if layer not in (None, "X"):
        known = ", ".join([*layers, "X", *(["raw"] if has_raw else [])])
        raise BadFileError(f"{path} has no layer {layer!r}; choose one of {known}")
    matrix = read(store.node("X")) if "X" in store else None
    if layer is None and COUNTS in layers and (matrix is None or not holds_counts(matrix)):
        why = "there is no X" if matrix is None else "X does not hold counts"
        return (
            f"layers/{COUNTS}",
            read(store.node(f"layers/{COUNTS}")),
            (f"{why}: layer {COUNTS!r} was taken",),
        )
    if matrix is None:
        raise BadFileError(
            f"{path} has no X; choose a layer with --layer ({', '.join(layers) or 'there are none'})"
        )
    return "X", matrix, ()


def _column(series: Any, budget: Budget) -> np.ndarray:
    """Labels as numbers or text; missing text is "NA"."""
    budget.charge(CELL * len(series))
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf":
        return series.to_numpy()
    missing = series.isna().to_numpy()
    text = series.astype(object).to_numpy()
    return budget.text([MISSING if gone else str(one) for one, gone in zip(text, missing, strict=True)])
