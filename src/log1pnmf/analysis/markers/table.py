"""Markers as tables, and in the forms that tools for gene sets take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf._common.optional import require
from log1pnmf._common.words import plural
from log1pnmf.fitting.annotated import is_annotated
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.keys import Keys, c_label

from .inference import Z95

__all__ = ["STATISTICS", "Markers", "markers_in"]

Array = NDArray[np.float64]

STATISTICS = ("score", "log2_fold_change", "effect", "shrunken_effect", "z")
"""What features can be ranked by."""

COLUMNS = (
    "log2_fold_change",
    "score",
    "effect",
    "error",
    "z",
    "p",
    "adjusted_p",
    "shrunken_effect",
    "false_sign_rate",
    "weight",
)
"""Of the table, after `factor`, `rank` and `feature`."""

REST = {"log2_fold_change": -np.inf, "score": -np.inf, "p": 1.0, "adjusted_p": 1.0}
"""What stands for features that a table does not list; 0 in other columns."""

LEVEL = 0.05
"""Largest adjusted p-value of features that rise significantly."""


@dataclass(frozen=True, eq=False, repr=False)
class Markers:
    """Features that rise with each factor, with standard errors and tests; made by `markers`.

    All arrays are of shape (n_features, n_components). Tests are NaN for a factor that all samples have and
    to which others are added: nothing can be compared with it.

    Parameters
    ----------
    log2_fold_change, score : ndarray
        How much more of the feature a typical sample with the factor has than with the rest of its own
        mixture in its place, and the lower end of its interval, by which features are ranked; see
        `log1pnmf.analysis.top_features`.
    effect, error : ndarray
        The same change on the link scale, of ``alpha_c log(1 + rate / c)``, by maximum likelihood given the
        loadings, and its standard error. May be negative.
    z, p : ndarray
        One-sided test of a rise; see `log1pnmf.analysis.markers.inference`.
    adjusted_p : ndarray
        After Benjamini and Hochberg, over the features of a factor that have counts.
    shrunken_effect, false_sign_rate : ndarray
        After adaptive shrinkage within the factor: posterior mean, and probability that there is no rise.
    weight : ndarray
        What the fit itself has, where the largest loading of every factor is 1.
    reliability : ndarray of shape (n_components,)
        Of what tells a factor's loadings from the others, the share that is not error. If it is small, tests
        of the factor may find features of others.
    c : float
        Shift of the link.
    errors : str
        Which kind of standard errors these are.
    split : bool
        Whether loadings and tests are from different halves of the counts.
    n_samples : int
        Samples that were tested.
    n_rising : ndarray of int, shape (n_components,)
        Features of each factor that rise significantly, with an adjusted p-value of at most 0.05.
    feature_names : ndarray of str
        Names of the features.
    factor_names : tuple of str
        Names of the factors.
    """

    log2_fold_change: Array
    score: Array
    effect: Array
    error: Array
    z: Array
    p: Array
    adjusted_p: Array
    shrunken_effect: Array
    false_sign_rate: Array
    weight: Array
    reliability: Array
    c: float
    errors: str
    split: bool
    n_samples: int
    n_rising: NDArray[np.int64]
    feature_names: NDArray[np.object_]
    factor_names: tuple[str, ...]

    def __repr__(self) -> str:
        m, n_components = self.effect.shape
        known = "" if self.split else "; factors taken as known (split=True does not)"
        return (
            f"<Markers of {plural(n_components, 'factor')} among {plural(m, 'feature')}, {c_label(self.c)}, "
            f"{self.errors} errors{known}; table() lists them>"
        )

    @property
    def n_components(self) -> int:
        """Number of factors."""
        return self.effect.shape[1]

    @property
    def lower(self) -> Array:
        """Lower end of the 95% interval of the effect."""
        return self.effect - Z95 * self.error

    @property
    def upper(self) -> Array:
        """Upper end of the 95% interval of the effect."""
        return self.effect + Z95 * self.error

    # ---------------------------------------------------------------- tables

    def table(self, n_top: int | None = None, *, by: str = "score", level: float = LEVEL) -> dict[str, Any]:
        """One row per factor and feature, the first features first; ``pandas.DataFrame(table)`` shows it.

        Parameters
        ----------
        n_top : int, optional
            Only the first features of every factor, as `top` gives them; by default all.
        by, level
            As in `top`.

        Returns
        -------
        dict of str to ndarray
            Columns `factor`, `rank`, `feature`, `log2_fold_change`, `score`, `effect`, `error`, `z`, `p`,
            `adjusted_p`, `shrunken_effect`, `false_sign_rate` and `weight`.
        """
        chosen = [
            self._order(k, by) if n_top is None else self.top_index(k, n_top, by=by, level=level)
            for k in range(self.n_components)
        ]
        factor = np.repeat(np.arange(self.n_components), [len(part) for part in chosen])
        feature = np.concatenate(chosen)
        columns: dict[str, Any] = {
            "factor": np.array(self.factor_names, dtype=object)[factor],
            "rank": np.concatenate([np.arange(1, len(part) + 1) for part in chosen]),
            "feature": self.feature_names[feature],
        }
        return columns | {name: getattr(self, name)[feature, factor] for name in COLUMNS}

    def top(self, k: int | str, n: int = 10, *, by: str = "score", level: float = LEVEL) -> list[str]:
        """Name the first features of a factor.

        Parameters
        ----------
        k : int or str
            Factor: its number, from 0, or its name.
        n : int
            How many at most.
        by : {"score", "log2_fold_change", "effect", "shrunken_effect", "z"}
            What they are ranked by: "score" is the order of every list of this package. "z" finds the most
            certain effects, however small.
        level : float
            Largest adjusted p-value of features to name. A factor that cannot be tested names all features
            that it raises. A feature without any weight in the factor, because of a mask or a penalty, is
            never named.

        Returns
        -------
        list of str
        """
        return [str(name) for name in self.feature_names[self.top_index(k, n, by=by, level=level)]]

    def top_index(
        self, k: int | str, n: int | None = 10, *, by: str = "score", level: float = LEVEL
    ) -> NDArray[np.intp]:
        """Find the first features of a factor; parameters as in `top`.

        Returns
        -------
        ndarray of int
        """
        k = self._checked(k)
        order = self._order(k, by)
        named = self.adjusted_p[order, k] <= level
        if np.isnan(self.p[:, k]).all():
            named = self.log2_fold_change[order, k] > 0.0
        return order[named & (self.weight[order, k] > 0.0)][:n]

    def ranking(self, by: str) -> Array:
        """Give the numbers that features are ranked by, features x factors.

        Parameters
        ----------
        by : {"score", "log2_fold_change", "effect", "shrunken_effect", "z"}
            What ranks the features.
        """
        check_choice("by", by, STATISTICS)
        values: Array = getattr(self, by)
        return values

    @property
    def tested(self) -> dict[str, np.ndarray]:
        """What `log1pnmf.pl.volcano` draws: arrays of features x factors, and names of the features."""
        names = ("score", "log2_fold_change", "p", "adjusted_p")
        return {"feature_names": self.feature_names, **{name: getattr(self, name) for name in names}}

    # ---------------------------------------------------------------- for tools for gene sets

    def to_decoupler(self, by: str = "log2_fold_change") -> Any:
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
            self.ranking(by).T, index=list(self.factor_names), columns=self.feature_names.astype(str)
        )

    def to_network(self, n_top: int = 50, *, by: str = "score", level: float = LEVEL) -> Any:
        """Give the factors themselves as gene sets with weights, to score other data with.

        Parameters
        ----------
        n_top : int
            Maximum number of features of each factor.
        by, level
            As in `top`; the weight is the log2 fold change.

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
                "source": np.array(self.factor_names, dtype=object)[factor],
                "target": self.feature_names[feature].astype(str),
                "weight": self.log2_fold_change[feature, factor],
            }
        )

    def to_gseapy(self, k: int | str, by: str = "log2_fold_change") -> Any:
        """Give all features of a factor with a number, largest first, as gseapy's `prerank` takes for `rnk`.

        Parameters
        ----------
        k : int or str
            Factor: its number, from 0, or its name.
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

    def _order(self, k: int, by: str) -> NDArray[np.intp]:
        return np.argsort(-self.ranking(by)[:, k], kind="stable")

    def _checked(self, k: int | str) -> int:
        if isinstance(k, str):
            check_choice("factor", k, self.factor_names)
            return self.factor_names.index(k)
        if not 0 <= k < self.n_components:
            raise ValueError(f"there are factors 0 to {self.n_components - 1}, got {k}")
        return k


def markers_in(source: Any, fit: Fit, n_top: int) -> Markers | None:
    """Read what `log1pnmf.tl.markers` has written; None if it is not enough for so many features of a factor.

    Features that were not kept have no effect and no test here: they are not among the first.
    """
    about = source.uns.get(Keys(None).markers, {}) if is_annotated(source) else {}
    places = {str(name): j for j, name in enumerate(fit.feature_labels)}
    n_rising = np.asarray(about.get("n_rising", ()), dtype=np.int64)
    if len(n_rising) != fit.n_components or len(places) != len(fit.factors):
        return None
    table, names = about["table"], [str(name) for name in about["factor_names"]]
    k = np.array([names.index(str(name)) for name in table["factor"]], dtype=np.intp)
    if (np.bincount(k, minlength=len(names)) < np.minimum(n_rising, n_top)).any():
        return None
    j = np.array([places[str(name)] for name in table["feature"]], dtype=np.intp)
    values = {}
    for name in COLUMNS:
        kept = np.asarray(table[name], dtype=np.float64)
        other = np.full(len(names), REST.get(name, 0.0))
        other[k[np.isnan(kept)]] = np.nan  # factors that cannot be tested
        values[name] = np.tile(other, (len(places), 1))
        values[name][j, k] = kept
    return Markers(
        **values,
        reliability=np.asarray(about["reliability"], dtype=np.float64),
        c=float(about["c"]),
        errors=str(about["errors"]),
        split=bool(about["split"]),
        n_samples=int(about["n_samples"]),
        n_rising=n_rising,
        feature_names=fit.feature_labels,
        factor_names=tuple(names),
    )


def _pandas() -> Any:
    return require("pandas", purpose="tables for gene sets")
