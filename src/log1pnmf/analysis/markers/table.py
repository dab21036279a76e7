"""Markers as tables, and in the forms that tools for gene sets take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf._common.optional import require
from log1pnmf._common.words import plural
from log1pnmf.fitting.keys import c_label
from log1pnmf.model.link import ShiftedLog

from .inference import Z95

__all__ = ["STATISTICS", "Markers"]

Array = NDArray[np.float64]

STATISTICS = (
    "net_lower",
    "net_effect",
    "lower",
    "effect",
    "shrunken_effect",
    "z",
    "distinctiveness",
)
"""What features can be ranked by."""

COLUMNS = (
    "effect",
    "error",
    "lower",
    "upper",
    "fold_change",
    "z",
    "p",
    "adjusted_p",
    "shrunken_effect",
    "false_sign_rate",
    "distinctiveness",
    "distinctiveness_error",
    "nearest",
    "net_effect",
    "net_error",
    "net_p",
    "adjusted_net_p",
    "weight",
)
"""Of the table, after `factor` and `feature`."""

DERIVED = ("lower", "upper", "fold_change")
"""Those that follow from others."""


@dataclass(frozen=True, eq=False, repr=False)
class Markers:
    """Effect of every factor on every feature, with its uncertainty; made by `markers`.

    All arrays are of shape (n_features, n_components), on the link scale, where the largest loading of every
    factor is 1.

    Parameters
    ----------
    effect : ndarray
        Change of ``alpha_c log(1 + rate / c)`` when membership in the factor goes from none to full: a
        difference of rates at ``c = inf``, about a log fold change at small c. Maximum likelihood given the
        loadings, without penalty.
    error : ndarray
        Its standard error.
    z, p : ndarray
        One-sided test of a positive effect; see `log1pnmf.analysis.markers.inference`.
    adjusted_p : ndarray
        After Benjamini and Hochberg, over the features of a factor that have counts.
    shrunken_effect, false_sign_rate : ndarray
        After adaptive shrinkage within the factor: posterior mean, and probability that there is no effect.
    distinctiveness, distinctiveness_error : ndarray
        Effect minus the largest effect of another factor on the feature; NaN with a single factor.
    nearest : ndarray of int
        That other factor; -1 with a single one.
    net_effect, net_error, net_p, adjusted_net_p : ndarray
        Change with membership across the samples, where other loadings change as well: what is not in this
        factor alone cancels. Its error and one-sided test; see `log1pnmf.analysis.markers.inference`.
    weight : ndarray
        What the fit itself has; less than `effect` where it was penalised.
    c : float
    errors : str
        Which kind of standard errors these are.
    feature_names : ndarray of str
    """

    effect: Array
    error: Array
    z: Array
    p: Array
    adjusted_p: Array
    shrunken_effect: Array
    false_sign_rate: Array
    distinctiveness: Array
    distinctiveness_error: Array
    nearest: NDArray[np.intp]
    net_effect: Array
    net_error: Array
    net_p: Array
    adjusted_net_p: Array
    weight: Array
    c: float
    errors: str
    feature_names: NDArray[np.object_]

    def __repr__(self) -> str:
        m, n_components = self.effect.shape
        return (
            f"<Markers of {plural(n_components, 'factor')} among {plural(m, 'feature')}, {c_label(self.c)}; "
            "table() lists them>"
        )

    @property
    def n_components(self) -> int:
        """Number of factors."""
        return self.effect.shape[1]

    @property
    def lower(self) -> Array:
        """Lower end of the 95% interval of the effect, at least 0."""
        return np.maximum(self.effect - Z95 * self.error, 0.0)

    @property
    def upper(self) -> Array:
        """Upper end of the 95% interval of the effect."""
        return self.effect + Z95 * self.error

    @property
    def net_lower(self) -> Array:
        """Lower end of the 95% interval of the net effect."""
        return self.net_effect - Z95 * self.net_error

    @property
    def fold_change(self) -> Array:
        """By what full membership multiplies ``rate + c``; NaN at ``c = inf``, where it adds `effect`."""
        if math.isinf(self.c):
            return np.full(self.effect.shape, np.nan)
        return np.exp(self.effect / ShiftedLog(self.c).alpha)

    # ---------------------------------------------------------------- tables

    def table(
        self, n_top: int | None = None, *, by: str = "net_lower", level: float = 0.05
    ) -> dict[str, Any]:
        """One row per factor and feature; ``pandas.DataFrame(table)`` shows it.

        Parameters
        ----------
        n_top : int, optional
            Only the first features of every factor, as `top` gives them; by default all, in their own order.
        by, level
            As in `top`.

        Returns
        -------
        dict of str to ndarray
            Columns `factor`, `feature`, `effect`, `error`, `lower`, `upper`, `fold_change` (of rate + c; not
            at c = inf), `z`, `p`, `adjusted_p`, `shrunken_effect`, `false_sign_rate`, `distinctiveness`,
            `distinctiveness_error`, `nearest`, `net_effect`, `net_error`, `net_p`, `adjusted_net_p` and
            `weight`.
        """
        m = len(self.effect)
        chosen = [
            np.arange(m) if n_top is None else self.top_index(k, n_top, by=by, level=level)
            for k in range(self.n_components)
        ]
        factor = np.repeat(np.arange(self.n_components), [len(part) for part in chosen])
        feature = np.concatenate(chosen)
        columns: dict[str, Any] = {"factor": factor, "feature": self.feature_names[feature]}
        columns |= {name: getattr(self, name)[feature, factor] for name in COLUMNS}
        if math.isinf(self.c):
            del columns["fold_change"]
        return columns

    def top(self, k: int, n: int = 10, *, by: str = "net_lower", level: float = 0.05) -> list[str]:
        """Name the features that define a factor.

        Parameters
        ----------
        k : int
            Factor, from 0.
        n : int
            How many at most.
        by : {"net_lower", "net_effect", "lower", "effect", "shrunken_effect", "z", "distinctiveness"}
            What they are ranked by. "net_lower", the lower end of the interval of the net effect, finds what
            rises with the factor, much and significantly; "lower", that of the effect, finds what the factor
            is made of, also where others have it too; "z" finds the most certain effects, however small.
        level : float
            Only features with an adjusted p-value (of the net effect, where that is asked for) up to this
            are named.

        Returns
        -------
        list of str
        """
        return [str(name) for name in self.feature_names[self.top_index(k, n, by=by, level=level)]]

    def top_index(
        self, k: int, n: int = 10, *, by: str = "net_lower", level: float = 0.05
    ) -> NDArray[np.intp]:
        """Find the features that define a factor; parameters as in `top`.

        Returns
        -------
        ndarray of int
        """
        scores = self.ranking(by)[:, self._checked(k)]
        order = np.argsort(-scores, kind="stable")
        adjusted = self.adjusted_net_p if by.startswith("net") else self.adjusted_p
        return order[adjusted[order, k] <= level][:n]

    def ranking(self, by: str) -> Array:
        """Give the numbers that features are ranked by, features x factors.

        Parameters
        ----------
        by : {"net_lower", "net_effect", "lower", "effect", "shrunken_effect", "z", "distinctiveness"}
        """
        check_choice("by", by, STATISTICS)
        values: Array = getattr(self, by)
        return values

    # ---------------------------------------------------------------- for tools for gene sets

    def to_decoupler(self, by: str = "net_effect") -> Any:
        """Give the matrix that decoupler's methods take as `data`: a row per factor, a column per feature.

        Parameters
        ----------
        by : str
            As in `top`.

        Returns
        -------
        pandas.DataFrame
            For instance for ``decoupler.mt.ulm(data=..., net=...)``.
        """
        return _pandas().DataFrame(
            self.ranking(by).T, index=self._factor_names(), columns=self.feature_names.astype(str)
        )

    def to_network(self, n_top: int = 50, *, by: str = "net_effect", level: float = 0.05) -> Any:
        """Give the factors themselves as gene sets with weights, to score other data with.

        Parameters
        ----------
        n_top : int
            Features of every factor at most.
        by, level
            As in `top`; the weight is what they are ranked by.

        Returns
        -------
        pandas.DataFrame
            Columns `source` (the factor), `target` (the feature) and `weight`, as decoupler takes for `net`.
        """
        chosen = [self.top_index(k, n_top, by=by, level=level) for k in range(self.n_components)]
        factor = np.repeat(np.arange(self.n_components), [len(part) for part in chosen])
        feature = np.concatenate(chosen)
        return _pandas().DataFrame(
            {
                "source": np.array(self._factor_names(), dtype=object)[factor],
                "target": self.feature_names[feature].astype(str),
                "weight": self.ranking(by)[feature, factor],
            }
        )

    def to_gseapy(self, k: int, by: str = "net_effect") -> Any:
        """Give all features of a factor with a number, largest first, as gseapy's `prerank` takes for `rnk`.

        Parameters
        ----------
        k : int
            Factor, from 0.
        by : str
            As in `top`.

        Returns
        -------
        pandas.DataFrame
            Columns `gene_name` and `score`. Written as a file without header, separated by tabs,
            it is the .rnk file of other tools.
        """
        scores = self.ranking(by)[:, self._checked(k)]
        order = np.argsort(-scores, kind="stable")
        names = self.feature_names[order].astype(str)
        return _pandas().DataFrame({"gene_name": names, "score": scores[order]})

    # ---------------------------------------------------------------- inside

    def _factor_names(self) -> list[str]:
        return [f"k{k}" for k in range(self.n_components)]

    def _checked(self, k: int) -> int:
        if not 0 <= k < self.n_components:
            raise ValueError(f"there are factors 0 to {self.n_components - 1}, got {k}")
        return k

    @classmethod
    def from_table(cls, table: Mapping[str, Any], *, c: float, errors: str) -> Markers:
        """Put together what `table` without `n_top` took apart.

        Parameters
        ----------
        table : mapping of str to array
            Also a data frame.
        c : float
        errors : str

        Returns
        -------
        Markers
        """
        factor, names = np.asarray(table["factor"]), np.asarray(table["feature"], dtype=object)
        k = int(factor.max(initial=0)) + 1
        features = names[: len(names) // k]
        if not np.array_equal(names, np.tile(features, k)):
            raise ValueError("the table does not have all features of every factor; make it without n_top")
        kept = [name for name in COLUMNS if name not in DERIVED]
        arrays = {name: np.asarray(table[name]).reshape(k, -1).T for name in kept}
        return cls(**arrays, c=c, errors=errors, feature_names=features)


def _pandas() -> Any:
    return require("pandas", extra="anndata", purpose="tables for gene sets")
