"""Names of factors, in AnnData."""

from __future__ import annotations

from typing import Any

import numpy as np

from log1pnmf.fitting.annotated import fit_from
from log1pnmf.fitting.keys import Keys

from .inputs import check_anndata
from .store import OBS_COLUMNS

__all__ = ["rename_factors"]


def rename_factors(adata: Any, names: Any, *, key: str | None = None) -> None:
    """Rename factors; every table, plot and report of `adata` then uses these names.

    Parameters
    ----------
    adata : AnnData
        Data with a fit by `log1p_nmf`. Tables of `markers`, `usage` and `evidence`, and loadings in `obs`,
        are renamed as well.
    names : sequence of str, or mapping of name or number to str
        Names of all factors, or of some: ``{"k1": "interferon"}``. `log1pnmf.analysis.suggest_names` suggests
        some.
    key : str, optional
        Name of the fit, if `key_added` was given.

    Examples
    --------
    >>> import anndata
    >>> from log1pnmf.datasets import pancreas
    >>> from log1pnmf.tl import log1p_nmf
    >>> adata = anndata.AnnData(pancreas().counts[:100])
    >>> log1p_nmf(adata, 3)
    >>> rename_factors(adata, {"k1": "acinar"})
    >>> adata.uns["log1p_nmf"]["factor_names"].tolist()
    ['k0', 'acinar', 'k2']
    """
    check_anndata(adata)
    keys = Keys(key)
    fit = fit_from(adata, key, any_samples=True)
    new = fit.renamed(names).factor_names
    changed = dict(zip(fit.factor_names, new, strict=True))
    adata.uns[keys.uns]["factor_names"] = np.array(new, dtype=object)
    for place in (keys.markers, keys.usage, keys.evidence):
        if place in adata.uns:
            about = adata.uns[place]
            about["factor_names"] = np.array(
                [changed[str(name)] for name in about["factor_names"]], dtype=object
            )
            about["table"]["factor"] = [changed[str(name)] for name in about["table"]["factor"]]
    columns = adata.uns[keys.uns].get(OBS_COLUMNS)
    if columns is not None:
        after = [keys.obs_column(name) for name in new]
        adata.obs = adata.obs.rename(columns=dict(zip(map(str, columns), after, strict=True)))
        adata.uns[keys.uns][OBS_COLUMNS] = np.array(after, dtype=object)
