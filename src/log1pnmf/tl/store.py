"""Results written into an AnnData object; `log1pnmf.fitting.annotated` reads them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.optional import require
from log1pnmf.fitting.annotated import uns_of
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.keys import Keys

from .inputs import Selection

__all__ = ["OBS_COLUMNS", "as_frame", "write_fit", "write_loadings", "write_obs"]

OBS_COLUMNS = "obs_columns"
"""In `uns` of a fit: the columns of `obs` with its loadings."""


def write_fit(adata: Any, keys: Keys, fit: Fit, selection: Selection) -> None:
    """Write a fit; features that were left out have zero factors, and no dispersion.

    Parameters
    ----------
    selection : Selection
        The counts that were fitted.
    """
    factors = np.zeros((adata.n_vars, fit.n_components))
    factors[selection.positions] = fit.factors
    write_loadings(adata, keys, fit.loadings)
    adata.varm[keys.varm] = factors
    if fit.dispersion is not None:
        dispersion = np.full(adata.n_vars, np.nan)
        dispersion[selection.positions] = fit.dispersion
        adata.var[keys.dispersion] = dispersion
    elif keys.dispersion in adata.var:  # of an earlier fit
        del adata.var[keys.dispersion]
    if fit.mask is not None:
        mask = np.zeros((adata.n_vars, fit.mask.shape[1]), dtype=bool)
        mask[selection.positions] = fit.mask
        adata.varm[keys.mask] = mask
    elif keys.mask in adata.varm:
        del adata.varm[keys.mask]
    for finding in (keys.markers, keys.usage, keys.evidence):  # of an earlier fit
        adata.uns.pop(finding, None)
    named = fit.named(sample_names=adata.obs_names, feature_names=adata.var_names[selection.positions])
    adata.uns[keys.uns] = uns_of(named, selection.layer)


def write_loadings(adata: Any, keys: Keys, loadings: NDArray[np.float64]) -> None:
    """Write loadings; a view becomes a copy."""
    anndata = require("anndata", purpose="log1pnmf.tl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", anndata.ImplicitModificationWarning)
        adata.obsm[keys.obsm] = loadings.copy()


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
