"""What plots and reports read of a fit, wherever it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.fitting.annotated import is_annotated
from log1pnmf.fitting.as_fit import as_fit
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.keys import Keys

from .arrange import MOST_GROUPS, Groups, as_numbers

__all__ = ["Decomposition", "group_labels", "obs_column", "sample_labels"]

Array = NDArray[np.float64]
Names = NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Loadings and factors as they are shown; make one with `Decomposition.of`.

    Parameters
    ----------
    loadings, factors : ndarray of shape (n, K) and (m, K)
        The largest loading of every factor is 1 (less where only some of the fit's samples are there), the
        baseline comes first. No factors (m = 0) where only loadings are known, as `log1pnmf.tl.transform`
        leaves them.
    c : float
        Shift of the link; NaN where only loadings are known.
    sample_names, feature_names : ndarray of str, optional
    history : mapping of str to ndarray, optional
        One entry per iteration, see `log1pnmf.fitting.solver.callbacks.History.table`.
    log_likelihood : float, optional
        Exact.
    name : str
        Short label.
    """

    loadings: Array
    factors: Array
    c: float
    sample_names: Names | None = None
    feature_names: Names | None = None
    history: Mapping[str, np.ndarray] | None = field(default=None, repr=False)
    log_likelihood: float | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.loadings.ndim != 2 or self.factors.ndim != 2 or len(self.factors.T) != len(self.loadings.T):
            raise ValueError(
                "loadings and factors must have one column for each factor, "
                f"got shapes {self.loadings.shape} and {self.factors.shape}"
            )
        _check_names("sample_names", self.sample_names, len(self.loadings))
        _check_names("feature_names", self.feature_names, len(self.factors))

    @classmethod
    def of(
        cls, source: Any, *, key: str | None = None, feature_names: Any = None, sample_names: Any = None
    ) -> Decomposition:
        """Read a fit.

        Parameters
        ----------
        source : Log1pNMF, Fit, AnnData or Decomposition
            A fitted model, or data to which `log1pnmf.tl.log1p_nmf` wrote.
        key : str, optional
            Where it wrote, if ``key_added`` was given; for AnnData only.
        feature_names, sample_names : sequence of str, optional
            By default those of the source, where it has any.

        Returns
        -------
        Decomposition

        Examples
        --------
        >>> from log1pnmf import Log1pNMF
        >>> model = Log1pNMF(1, random_state=0).fit([[4, 2], [2, 1], [6, 3]])
        >>> shown = Decomposition.of(model, feature_names=["a", "b"])
        >>> shown.loadings.max(), shown.name, shown.feature_names.tolist()
        (np.float64(1.0), 'c = 1', ['a', 'b'])
        """
        if isinstance(source, Decomposition):
            shown = source
        elif is_annotated(source):
            shown = _of_anndata(source, Keys(key))
        else:
            shown = _of_fit(as_fit(source, key=key).normalized("max"))
        if feature_names is not None:
            shown = replace(shown, feature_names=_names(feature_names))
        if sample_names is not None:
            shown = replace(shown, sample_names=_names(sample_names))
        return shown

    @property
    def n_components(self) -> int:
        """Number of factors."""
        return self.factors.shape[1]

    @property
    def factor_names(self) -> list[str]:
        """Short names of the factors: "k0" is the first, the baseline."""
        return [f"k{k}" for k in range(self.n_components)]

    @property
    def feature_labels(self) -> Names:
        """Names of the features, or their numbers where they have none."""
        if self.feature_names is not None:
            return self.feature_names
        return np.arange(len(self.factors)).astype(str).astype(object)


def group_labels(source: Any, groupby: Any) -> Groups:
    """Find the groups of samples that a user means; refuse more than a plot can show.

    Parameters
    ----------
    source : AnnData, or anything else that `Decomposition.of` reads
    groupby : str, or array-like of shape (n,)
        Name of a column of ``adata.obs``, or the labels themselves.

    Returns
    -------
    Groups
        In the order of the categories of a pandas Categorical; other labels are sorted.

    Examples
    --------
    >>> group_labels(None, ["b", "a", "b"]).names
    ('a', 'b')
    """
    labels = sample_labels(source, groupby)
    if as_numbers(labels) is not None:
        raise ValueError(
            f"{_called(groupby)} holds numbers with more than {MOST_GROUPS} different values, which are no "
            "groups; cut them into ranges first, for instance with pandas.qcut(values, 4), or let "
            "log1pnmf.pl.structure put the samples in their order"
        )
    return labels if isinstance(labels, Groups) else Groups.of(labels)


def sample_labels(source: Any, groupby: Any) -> Any:
    """Find what a user wants samples to be told apart by: groups, or numbers to put them in order.

    Parameters
    ----------
    source : AnnData, or anything else that `Decomposition.of` reads
    groupby : str, or array-like of shape (n,)

    Returns
    -------
    Groups or array-like
        The column or the labels themselves where they are numbers on a scale (`as_numbers`).

    Examples
    --------
    >>> sample_labels(None, ["b", "a", "b"]).names
    ('a', 'b')
    """
    labels = groupby if not isinstance(groupby, str) else obs_column(source, groupby)
    if as_numbers(labels) is not None:
        return labels
    groups = Groups.of(labels)
    if len(groups.names) > MOST_GROUPS:
        raise ValueError(
            f"{_called(groupby)} has {len(groups.names)} different labels, more than the {MOST_GROUPS} "
            "groups that a plot can show; merge some, or choose a column with fewer"
        )
    return groups


def _called(groupby: Any) -> str:
    return f"groupby={groupby!r}" if isinstance(groupby, str) else "groupby"


def obs_column(source: Any, groupby: str) -> Any:
    """Find a column of ``adata.obs``."""
    if not is_annotated(source):
        raise ValueError(
            f"groupby={groupby!r} names a column of adata.obs, but the source is a {type(source).__name__}; "
            "pass the labels themselves, one for each sample"
        )
    if groupby not in source.obs:
        known = ", ".join(map(repr, source.obs.columns)) or "none"
        raise KeyError(f"adata.obs has no column {groupby!r}; it has: {known}")
    return source.obs[groupby]


def _of_fit(fit: Fit) -> Decomposition:
    return Decomposition(
        loadings=fit.loadings,
        factors=fit.factors,
        c=fit.c,
        sample_names=fit.sample_names,
        feature_names=fit.feature_names,
        history=fit.history,
        log_likelihood=fit.log_likelihood,
        name=fit.name,
    )


def _of_anndata(adata: Any, keys: Keys) -> Decomposition:
    if keys.obsm not in adata.obsm:
        found = ", ".join(map(repr, adata.obsm)) or "none"
        raise KeyError(
            f"adata.obsm has no {keys.obsm!r} (it has: {found}); "
            "run log1pnmf.tl.log1p_nmf first, or pass the key it wrote to"
        )
    loadings = np.asarray(adata.obsm[keys.obsm], dtype=np.float64)
    sample_names = _names(adata.obs_names)
    if keys.varm not in adata.varm or keys.uns not in adata.uns:
        nothing = np.zeros((0, loadings.shape[1]))
        return Decomposition(loadings, nothing, math.nan, sample_names=sample_names)
    about = adata.uns[keys.uns]
    factors = np.asarray(adata.varm[keys.varm], dtype=np.float64)
    if about["settings"]["normalize"] != "max":
        largest = loadings.max(axis=0)
        scale = np.where(largest > 0.0, largest, 1.0)
        loadings, factors = loadings / scale, factors * scale
    likelihood = about.get("log_likelihood")
    return Decomposition(
        loadings=loadings,
        factors=factors,
        c=float(about["c"]),
        sample_names=sample_names,
        feature_names=_names(adata.var_names),
        history=about.get("history"),
        log_likelihood=None if likelihood is None else float(likelihood),
        name=_name(float(about["c"])),
    )


def _name(c: float) -> str:
    return "c = ∞" if math.isinf(c) else f"c = {c:g}"


def _names(given: Any) -> Names:
    return np.array([str(name) for name in given], dtype=object)


def _check_names(what: str, names: Names | None, length: int) -> None:
    if names is not None and names.shape != (length,):
        raise ValueError(f"{what} must have one name for each of the {length}, got shape {names.shape}")
