"""AnnData on disk: .h5ad and .zarr. Only what is asked for is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from log1pnmf.counts import holds_counts
from log1pnmf.optional import require
from log1pnmf.untrusted import BadFileError, check_hdf5, check_zarr

from .sink import created_hdf5
from .table import RawTable

__all__ = ["created_store", "element_io", "read_anndata", "write_annotated"]

COUNTS = "counts"
MISSING = "NA"


def element_io() -> Any:
    """Find the module of AnnData with `read_elem` and `write_elem`, which has moved between versions."""
    anndata = require("anndata", extra="anndata", purpose="reading and writing AnnData")
    if hasattr(anndata, "io") and hasattr(anndata.io, "read_elem"):
        return anndata.io
    return require("anndata.experimental", extra="anndata", purpose="reading and writing AnnData")


def write_annotated(store: Any, adata: Any) -> None:
    """Write AnnData to an open store, without the mark of "no raw" that older versions cannot read."""
    element_io().write_elem(store, "/", adata)
    if adata.raw is None and "raw" in store:
        del store["raw"]


def read_anndata(path: Path, kind: str, layer: str | None) -> RawTable:
    """Read the counts, names and columns of obs.

    Parameters
    ----------
    path : Path
    kind : {"h5ad", "zarr"}
    layer : str, optional
        Name of a layer, "X" or "raw". By default X, or layers["counts"] where X does not hold counts.

    Returns
    -------
    RawTable
    """
    read = element_io().read_elem
    with _opened(path, kind) as store:
        if "obs" not in store or "var" not in store:
            raise BadFileError(f"{path} holds no AnnData: obs or var is missing; is it another kind of file?")
        layers = sorted(store["layers"]) if "layers" in store else []
        has_raw = "raw/X" in store
        if kind == "h5ad":
            places = ["obs", "var", "X", f"layers/{layer or COUNTS}"]
            places += ["raw/X", "raw/var"] if layer == "raw" else []
            check_hdf5(path, [store[place] for place in places if place in store])
        place, matrix, notes = _chosen(path, store, layer, layers=layers, has_raw=has_raw)
        obs = read(store["obs"])
        var = read(store["raw/var"] if place == "raw/X" else store["var"])
    others = [*(["raw"] if has_raw and place != "raw/X" else []), *(one for one in layers if one != layer)]
    return RawTable(
        matrix,
        obs.index.tolist(),
        var.index.tolist(),
        {str(name): _column(obs[name]) for name in obs.columns},
        notes,
        hint=f"choose another layer with --layer ({', '.join(others)})" if others else "pass raw counts",
    )


@contextmanager
def _opened(path: Path, kind: str) -> Iterator[Any]:
    if kind == "h5ad":
        h5py = require("h5py", extra="anndata", purpose="reading .h5ad files")
        with h5py.File(path, "r") as file:
            yield file
    else:
        zarr = require("zarr", extra="dask", purpose="reading .zarr folders")
        check_zarr(path)
        yield zarr.open_group(str(path), mode="r")


@contextmanager
def created_store(path: Path) -> Iterator[Any]:
    """Open a new .h5ad file or, for any other ending, a new .zarr folder.

    Parameters
    ----------
    path : Path

    Yields
    ------
    h5py.File or zarr.Group
    """
    if path.name.endswith(".h5ad"):
        with created_hdf5(path) as file:
            yield file
    else:
        zarr = require("zarr", extra="dask", purpose="writing .zarr folders")
        # Version 2 of the layout is what every AnnData reads.
        yield zarr.open_group(str(path), mode="w", zarr_format=2)


def _chosen(
    path: Path, store: Any, layer: str | None, *, layers: list[str], has_raw: bool
) -> tuple[str, Any, tuple[str, ...]]:
    """Read the layer asked for; without one, X or the counts that stand in for it."""
    read = element_io().read_elem
    if layer in layers:
        return f"layers/{layer}", read(store[f"layers/{layer}"]), ()
    if layer == "raw" and has_raw:
        return "raw/X", read(store["raw/X"]), ()
    if layer not in (None, "X"):
        known = ", ".join([*layers, "X", *(["raw"] if has_raw else [])])
        raise BadFileError(f"{path} has no layer {layer!r}; choose one of {known}")
    matrix = read(store["X"]) if "X" in store else None
    if layer is None and COUNTS in layers and (matrix is None or not holds_counts(matrix)):
        why = "there is no X" if matrix is None else "X does not hold counts"
        return f"layers/{COUNTS}", read(store[f"layers/{COUNTS}"]), (f"{why}: layer {COUNTS!r} was taken",)
    if matrix is None:
        raise BadFileError(
            f"{path} has no X; choose a layer with --layer ({', '.join(layers) or 'there are none'})"
        )
    return "X", matrix, ()


def _column(series: Any) -> np.ndarray:
    """Labels as numbers or text; missing text is "NA"."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf":
        return series.to_numpy()
    missing = series.isna().to_numpy()
    text = series.astype(object).to_numpy()
    return np.array(
        [MISSING if gone else str(one) for one, gone in zip(text, missing, strict=True)], dtype=str
    )
