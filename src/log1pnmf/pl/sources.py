"""What plots draw: a fit on the scale of memberships, or the part of one that is left in an AnnData."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from log1pnmf.fitting.annotated import fitted_samples, is_annotated
from log1pnmf.fitting.as_fit import as_fit
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.keys import Keys, c_label
from log1pnmf.fitting.naming import marked_names, usual_factor_names
from log1pnmf.fitting.ranking import Ranking, rank_features
from log1pnmf.model.link import ShiftedLog

__all__ = ["Drawable", "Factorization", "colors_in", "drawable", "need_factors", "rank"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Factorization:
    """Loadings and factors without the fit behind them, with the names that `Fit` has for them.

    An AnnData object holds only these if features were dropped since the fit, or if only the loadings are
    left, as after `anndata.concat`. In the second case m is 0, and c is NaN.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        As they are drawn.
    history : mapping of str to ndarray
        See `Fit.history`.
    size_factors : ndarray of shape (n,), optional
        Where they are known.
    given_factor_names : tuple of str, optional
    kinds : tuple of str, optional
        See `Fit.kinds`.
    dispersion : ndarray of shape (m,), optional
        With negative binomial noise.
    """

    loadings: Array
    factors: Array
    c: float
    feature_names: NDArray[np.object_] | None = None
    history: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    size_factors: Array | None = None
    given_factor_names: tuple[str, ...] | None = None
    dispersion: Array | None = None
    kinds: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.feature_names is not None and len(self.feature_names) != len(self.factors):
            m, got = len(self.factors), len(self.feature_names)
            raise ValueError(f"feature_names must have one name for each of the {m} features, got {got}")

    @property
    def n_components(self) -> int:
        """Number of factors."""
        return self.loadings.shape[1]

    @property
    def name(self) -> str:
        """Short label: the shift of the link, where it is known."""
        return "" if math.isnan(self.c) else c_label(self.c)

    @property
    def factor_names(self) -> list[str]:
        """Names of the factors."""
        return list(self.given_factor_names or usual_factor_names(self.n_components))

    @property
    def factor_labels(self) -> list[str]:
        """Names of the factors, with a mark where something was known; see `Fit.factor_labels`."""
        return self.factor_names if self.kinds is None else marked_names(self.factor_names, self.kinds)

    @property
    def feature_labels(self) -> NDArray[np.object_]:
        """Names of the features, or their numbers where they have none."""
        if self.feature_names is not None:
            return self.feature_names
        return np.arange(len(self.factors)).astype(str).astype(object)


Drawable: TypeAlias = Fit | Factorization


def colors_in(adata: Any, column: str) -> dict[str, str] | None:
    """Give the colours that scanpy keeps for the categories of a column; None where it has none."""
    name = f"{column}_colors"
    if column not in adata.obs or name not in adata.uns or not hasattr(adata.obs[column], "cat"):
        return None
    categories = [str(one) for one in adata.obs[column].cat.categories]
    colors = [str(color) for color in adata.uns[name]]
    return dict(zip(categories, colors, strict=True)) if len(colors) == len(categories) else None


def drawable(source: Any, *, key: str | None = None, feature_names: Any = None) -> Drawable:
    """Read what a plot draws: the largest loading of every factor is 1, unless its sample was dropped."""
    if isinstance(source, Factorization):
        if feature_names is None:
            return source
        return replace(source, feature_names=np.array([str(name) for name in feature_names], dtype=object))
    if is_annotated(source):
        return drawable(_of_anndata(source, Keys(key)), feature_names=feature_names)
    return as_fit(source, key=key).normalized("max").named(feature_names=feature_names)


def need_factors(shown: Drawable) -> None:
    """Refuse a source that has loadings only."""
    if not len(shown.factors):
        raise ValueError("the source has loadings but no factors; pass the fit itself")


def _of_anndata(adata: Any, keys: Keys) -> Factorization:
    if keys.obsm not in adata.obsm:
        found = ", ".join(map(repr, adata.obsm)) or "none"
        raise KeyError(
            f"adata.obsm has no {keys.obsm!r} (it has: {found}); "
            "run log1pnmf.tl.log1p_nmf first, or pass the key it wrote to"
        )
    loadings = stored = np.asarray(adata.obsm[keys.obsm], dtype=np.float64)
    if keys.varm not in adata.varm or keys.uns not in adata.uns:
        return Factorization(loadings, np.zeros((0, loadings.shape[1])), math.nan)
    about = adata.uns[keys.uns]
    factors = np.asarray(adata.varm[keys.varm], dtype=np.float64)
    if about["settings"]["normalize"] != "max":
        largest = loadings.max(axis=0)
        scale = np.where(largest > 0.0, largest, 1.0)
        loadings, factors = loadings / scale, factors * scale
    sizes, (rows, missing) = np.asarray(about["size_factors"]), fitted_samples(adata, about, stored)
    return Factorization(
        loadings,
        factors,
        float(about["c"]),
        np.array(adata.var_names, dtype=object),
        about["history"],
        None if missing else sizes[rows],
        tuple(map(str, about["factor_names"])) if "factor_names" in about else None,
        np.nan_to_num(adata.var[keys.dispersion].to_numpy(np.float64))
        if keys.dispersion in adata.var
        else None,
        tuple(map(str, about["factor_kinds"])) if "factor_kinds" in about else None,
    )


def rank(shown: Drawable) -> Ranking:
    """Rank the features of what is drawn, as all lists do."""
    sizes = np.ones(len(shown.loadings)) if shown.size_factors is None else shown.size_factors
    link = ShiftedLog(shown.c)
    return rank_features(shown.loadings, shown.factors, sizes, link, dispersion=shown.dispersion)
