"""Counts out of an AnnData object: which matrix, which features, from memory or from the file."""

from __future__ import annotations

import logging
import os
import re
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from log1pnmf._common.checks import require
from log1pnmf.counts.compress import dense_blocks
from log1pnmf.counts.counts import Counts, holds_counts
from log1pnmf.counts.features import find_features, variable_features
from log1pnmf.fitting.anndata import column_of, uns_of
from log1pnmf.fitting.fit import Fit, Keys


def known_loadings(adata: Any, given: Any) -> Any:
    """Turn names of columns of `obs` into loadings; anything else is left as it is.

    Numbers and True or False are taken as they are. Labels become one column of 0 and 1 for each label, named
    "column=label".
    """
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return given
    columns: dict[str, Any] = {}
    for name in names:
        column = column_of(adata, "obs", name, "fixed_loadings")
        if column.dtype.kind in "biuf":
            columns[name] = column.to_numpy(dtype=np.float64)
            continue
        if column.isna().any():
            raise ValueError(f"fixed_loadings: column {name!r} of obs has missing labels; fill them in")
        labels = column.astype(str).to_numpy()
        columns |= {f"{name}={label}": (labels == label).astype(np.float64) for label in np.unique(labels)}
    return columns


# ---------- counts out of an AnnData object

logger = logging.getLogger("log1pnmf")

RAW, X = "raw", "X"  # names of ``adata.raw`` and ``adata.X`` as layers
COUNTS_LAYER = "counts"  # where scanpy users keep the raw counts when X is something else
VARIABLE = re.compile(r"variable:[1-9]\d*")  # so many variable features, as `mask_var`
BLOCK_ENTRIES = 1 << 24  # of a matrix in a file, read at a time


@dataclass(frozen=True, eq=False)
class ChosenCounts:
    """Counts, and where they are in the AnnData object."""

    counts: Counts  # the counts, with the names of the features
    positions: NDArray[np.intp]  # positions of these features among all features of the object
    layer: str | None  # where they were found; None is X


def check_anndata(adata: Any) -> None:
    """Refuse what is not an AnnData object."""
    anndata = require("anndata", purpose="log1pnmf.tl")
    if not isinstance(adata, anndata.AnnData):
        if isinstance(adata, str | os.PathLike):
            advice = "read the file first, with anndata.read_h5ad(path)"
        elif hasattr(adata, "mod"):  # MuData
            advice = f"pass one of its modalities, such as mdata[{next(iter(adata.mod), 'rna')!r}]"
        else:
            advice = "for matrices use log1pnmf.Log1pNMF"
        raise TypeError(f"adata must be an AnnData object, got {type(adata).__name__}; {advice}")


def raw_layer(layer: str | None, use_raw: bool) -> str | None:
    """Return the layer that scanpy's `use_raw` stands for."""
    if not use_raw:
        return layer
    if layer not in (None, RAW):
        raise ValueError(f"use_raw=True and layer={layer!r} name different counts; pass one of them")
    return RAW


def target(adata: Any, copy: bool) -> Any:
    """Choose the object that results are written to."""
    if copy:
        return adata.to_memory() if adata.isbacked else adata.copy()
    if adata.is_view:
        if adata.isbacked:
            raise ValueError(
                "adata is a view of data in a file, which cannot store results; pass "
                "adata.to_memory(), or copy=True"
            )
        logger.warning("adata is a view: it is copied, and the copy gets the results")
    return adata


def chosen_features(adata: Any, mask_var: Any, layer: str | None = None) -> NDArray[np.intp]:
    """Find the features that are wanted."""
    if mask_var is None:
        return np.arange(adata.n_vars)
    what = "mask_var"
    if isinstance(mask_var, str) and mask_var not in adata.var and VARIABLE.fullmatch(mask_var):
        counts = read_counts(adata, layer, np.arange(adata.n_vars)).counts
        return variable_features(counts, int(mask_var.partition(":")[2]))
    if isinstance(mask_var, str):
        what = f"adata.var[{mask_var!r}]"
        mask_var = column_of(adata, "var", mask_var, "mask_var")
    mask = np.asarray(mask_var)
    if mask.dtype != bool or mask.shape != (adata.n_vars,):
        raise ValueError(
            f"{what} must be True or False for each of the {adata.n_vars} features, "
            f"got {mask.dtype} of shape {mask.shape}"
        )
    if not mask.any():
        raise ValueError(f"{what} leaves no feature; choose at least one")
    return np.flatnonzero(mask)


def read_counts(adata: Any, layer: str | None, positions: NDArray[np.intp]) -> ChosenCounts:
    """Read the counts of some features.

    `layer`: none takes X, or ``layers["counts"]`` if X does not hold counts (then a log message says so), and
    refuses fractions. "X" takes X as it is, "raw" takes ``adata.raw``.
    """
    matrix = _matrix(adata, layer, positions)
    if layer is None and COUNTS_LAYER in adata.layers and not holds_counts(matrix):
        logger.warning("adata.X does not hold counts: layers[%r] is used", COUNTS_LAYER)
        layer = COUNTS_LAYER
        matrix = _matrix(adata, layer, positions)
    fractions = layer is None and not holds_counts(matrix)
    with warnings.catch_warnings():
        if fractions:
            warnings.simplefilter("ignore", UserWarning)
        counts = Counts.from_any(matrix)
    if fractions:
        places = [*map(repr, adata.layers), *(["'raw' (adata.raw)"] if adata.raw is not None else [])]
        raise ValueError(
            "adata.X holds values that are not whole numbers: it looks normalised or log-transformed, not "
            f"counted; pass layer= with the counts (adata has: {', '.join(places) or 'no layer, no raw'}), "
            "or layer='X' where they are expected counts"
        )
    names = np.asarray(adata.var_names, dtype=object)[positions]
    return ChosenCounts(replace(counts, feature_names=names), positions, None if layer == X else layer)


def counts_of_fit(adata: Any, fit: Fit, key: str | None, layer: str | None) -> Counts:
    """Return the counts of the features of a fit, from its own layer unless another is given."""
    stored = str(adata.uns[Keys(key).uns]["layer"])
    if layer is None and not (stored == X and COUNTS_LAYER in adata.layers):
        layer = stored
    return read_counts(adata, layer, find_features(adata.var_names, fit.feature_labels.tolist())).counts


def _matrix(adata: Any, layer: str | None, positions: NDArray[np.intp]) -> Any:
    layer = None if layer == X and X not in adata.layers else layer
    if layer == RAW and RAW not in adata.layers:
        if adata.raw is None:
            raise KeyError("adata.raw is empty; pass layer=, the name of the layer with the counts")
        wanted = [str(name) for name in np.asarray(adata.var_names)[positions]]  # raw may have more features
        return sparse.csr_array(adata.raw.X[:, find_features(adata.raw.var_names, wanted)])
    if layer is not None and layer not in adata.layers:
        known = ", ".join(map(repr, adata.layers)) or "none"
        raise KeyError(f"adata has no layer {layer!r}; it has: {known}")
    stored = adata.X if layer is None else adata.layers[layer]
    if stored is None:
        raise ValueError("adata.X is empty; pass layer=, the name of the layer with the counts")
    everything = len(positions) == adata.n_vars and np.array_equal(positions, np.arange(adata.n_vars))
    if isinstance(stored, np.ndarray) or sparse.issparse(stored):
        return stored if everything else stored[:, positions]
    return _read_blocks(stored, None if everything else positions)


def _read_blocks(stored: Any, positions: NDArray[np.intp] | None) -> Any:
    """Read a matrix from a file into memory, as a sparse one, with the wanted features only."""
    if getattr(stored, "format", "csr") == "csc":  # its rows are spread over the whole file
        matrix = stored[:]
        return matrix if positions is None else matrix[:, positions]
    wanted = slice(None) if positions is None else positions
    blocks = dense_blocks(stored.shape, BLOCK_ENTRIES)
    return sparse.vstack([sparse.csr_array(stored[rows][:, wanted]) for rows in blocks], format="csr")


def batch_of(adata: Any, key: str | None) -> Any:
    """Return the column of `obs` with the batch of every sample, if one is named."""
    return None if key is None else column_of(adata, "obs", key, "batch_key").to_numpy(dtype=object)


# ---------- results written into an AnnData object; log1pnmf.fitting.anndata reads them

OBS_COLUMNS = "obs_columns"  # in `uns` of a fit: the columns of `obs` with its loadings


def write_fit(adata: Any, keys: Keys, fit: Fit, chosen: ChosenCounts) -> None:
    """Write a fit; features that were left out have zero factors, and no dispersion."""
    anndata = require("anndata", purpose="log1pnmf.tl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", anndata.ImplicitModificationWarning)  # a view becomes a copy
        adata.obsm[keys.obsm] = fit.loadings.copy()
    of_features = (
        (adata.varm, keys.varm, fit.factors, 0.0),
        (adata.var, keys.dispersion, fit.dispersion, np.nan),
        (adata.varm, keys.mask, fit.mask, False),
    )
    for slot, name, values, others in of_features:
        if values is not None:
            whole = np.full((adata.n_vars, *values.shape[1:]), others)
            whole[chosen.positions] = values
            slot[name] = whole
        elif name in slot:  # of an earlier fit
            del slot[name]
    for finding in (keys.markers, keys.usage, keys.evidence):  # of an earlier fit
        adata.uns.pop(finding, None)
    named = fit.named(sample_names=adata.obs_names, feature_names=adata.var_names[chosen.positions])
    adata.uns[keys.uns] = uns_of(named, chosen.layer)


def write_obs(adata: Any, keys: Keys, fit: Fit) -> None:
    """Write loadings as columns of `obs`, for plots that colour samples by a column."""
    columns = [keys.obs_column(name) for name in fit.factor_names]
    for column, values in zip(columns, fit.loadings.T, strict=True):
        adata.obs[column] = values.copy()
    adata.uns[keys.uns][OBS_COLUMNS] = np.array(columns, dtype=object)


def as_frame(columns: Any) -> Any:
    """Make a data frame that anndata can write."""
    table = require("pandas", purpose="log1pnmf.tl").DataFrame(columns)
    table.index = table.index.astype(str)
    return table
