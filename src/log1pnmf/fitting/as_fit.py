"""A `Fit` from whatever holds one."""

from __future__ import annotations

import os
from typing import Any

from log1pnmf.counts.counts import Counts

from .annotated import fit_from, is_annotated
from .fit import Fit
from .new_samples import counts_of

__all__ = ["as_fit", "fit_and_counts"]


def as_fit(source: Any, *, key: str | None = None) -> Fit:
    """Get the `Fit` from a model, AnnData or a file.

    Parameters
    ----------
    source : Fit, Log1pNMF, AnnData, str or PathLike
        A fit, a fitted estimator, AnnData with a fit by `log1pnmf.tl.log1p_nmf`, or a file that `save` wrote.
        Samples of AnnData may be some of those that were fitted, in any order; see `Fit.whole`.
    key : str, optional
        Name of the fit in AnnData, if ``key_added`` was given.

    Returns
    -------
    Fit

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> model = Log1pNMF(1).fit([[4, 2], [2, 1], [6, 3]])
    >>> as_fit(model).loadings.max()
    np.float64(1.0)
    """
    if key is not None and not is_annotated(source):
        raise ValueError(f"key={key!r} is for AnnData, got {type(source).__name__}; leave it out")
    if isinstance(source, Fit):
        return source
    if isinstance(source, str | os.PathLike):
        if os.fspath(source).endswith((".h5ad", ".zarr")):
            raise ValueError(
                f"{os.fspath(source)} is a file of AnnData; read it first, and pass the object: "
                "anndata.read_h5ad(path) or anndata.read_zarr(path)"
            )
        return Fit.load(source)
    if is_annotated(source):
        return fit_from(source, key)
    if hasattr(source, "get_params") and hasattr(source, "fit"):
        from sklearn.utils.validation import check_is_fitted  # loaded with the estimator

        check_is_fitted(source)
    fit = getattr(source, "fit_", None)
    if not isinstance(fit, Fit):
        raise TypeError(
            f"expected a Fit, a fitted Log1pNMF, an AnnData or a file with a fit, got {type(source).__name__}"
        )
    return fit


def fit_and_counts(source: Any, counts: Any, *, key: str | None = None) -> tuple[Fit, Counts]:
    """Give the fit that something holds, and the counts of its samples with features in its order."""
    fit = as_fit(source, key=key)
    return fit, counts_of(fit, counts)
