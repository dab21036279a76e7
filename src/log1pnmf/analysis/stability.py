"""Several fits of one data set: with other seeds or at other c, and how their factors relate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

from log1pnmf._common.checks import as_random, check_absent, check_choice, check_whole, new_seed
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import PairSide
from log1pnmf.fitting.anndata import as_fit
from log1pnmf.fitting.fit import Fit, c_name
from log1pnmf.fitting.fit_counts import SampleParameters, checked, fit_counts, fit_log1p_nmf
from log1pnmf.fitting.settings import Settings

from .grid import ascending_shifts
from .metrics import deviance_explained, log_likelihood, match_factors, measures

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = NDArray[np.float64]


def fit_seeds(
    counts: Any,
    n_components: int,
    n_seeds: int = 5,
    *,
    c: float = 1.0,
    **parameters: Unpack[SampleParameters],
) -> list[Fit]:
    """Fit one model several times, each time with another seed; return the fits, the best objective first.

    Parameters
    ----------
    counts : array, sparse matrix or data frame of shape (n_samples, n_features)
        Counts, samples x features.
    n_components : int
        Number of factors.
    n_seeds : int
        Number of fits, each with its own seed.
    c : float
        Shift of the link.
    **parameters : optional
        Others of `log1pnmf.Log1pNMF`. `random_state` is the source of the seeds; the settings of each fit
        contain its own. The default of `init` is "random" here, because "auto" may use the same start for
        every seed.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> fits = fit_seeds(pancreas().counts[:150, :400], 3, 3)
    >>> stability(fits).factors.shape
    (3,)
    """
    check_whole("n_seeds", n_seeds, least=1)
    check_absent(parameters, ("checkpoint",), "fits with several seeds")
    init = parameters.setdefault("init", "random")
    if not isinstance(init, str) and not callable(init):
        raise ValueError("init is given: all fits would be the same; use 'auto', 'rank1' or 'random'")
    rng, data = as_random(parameters.get("random_state", Settings.random_state)), Counts.from_any(counts)
    own: list[SampleParameters] = [{**parameters, "random_state": new_seed(rng)} for _ in range(n_seeds)]
    fits = [fit_log1p_nmf(data, n_components, c=c, **one) for one in own]
    return sorted(fits, key=lambda fit: fit.objective)


@dataclass(frozen=True, eq=False)
class Stability:
    """How alike the factors of several fits are.

    Parameters
    ----------
    similarity : ndarray of shape (fits - 1, K)
        Similarity of each factor of the first fit to its match in every other one.
    between : ndarray of shape (fits, fits)
        Mean similarity of the matched factors of any two fits.
    """

    similarity: Array
    between: Array

    @property
    def factors(self) -> Array:
        """Stability of every factor of the first (the best) fit: its mean similarity to its matches."""
        return self.similarity.mean(axis=0)

    @property
    def score(self) -> float:
        """Stability of the setting: mean similarity of matched factors over all pairs of fits, at most 1."""
        return score_with_error(self.between)[0]


def score_with_error(between: Array) -> tuple[float, float]:
    """Mean similarity over all pairs of fits, and its standard error by leaving out one fit after the other.

    >>> value, error = score_with_error(np.array([[1.0, 0.9, 0.5], [0.9, 1.0, 0.4], [0.5, 0.4, 1.0]]))
    >>> round(value, 3), round(error, 3)
    (0.6, 0.306)
    """
    n = len(between)
    if n < 2:
        return np.nan, np.nan
    mean = float(between[np.triu_indices(n, k=1)].mean())
    if n < 3:
        return mean, np.nan
    pairs = between - np.diag(np.diag(between))
    without = (pairs.sum() - 2.0 * pairs.sum(axis=0)) / ((n - 1) * (n - 2))
    return mean, float(np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2)))


def stability(fits: Sequence[Any], *, on: PairSide = "loadings") -> Stability:
    """Measure how similar the matched factors of several fits are.

    Parameters
    ----------
    fits : sequence of Fit, or of anything that `log1pnmf.as_fit` takes
        Fits to the same counts with the same number of factors, the best first; see `fit_seeds`.
    on : {"loadings", "factors"}
        Pearson's correlation of loadings over samples, or of factors over features. The factors of one fit
        often resemble each other (all follow the mean of the features), so loadings are the better choice.
    """
    check_choice("on", on, get_args(PairSide))
    tables: list[Array] = [getattr(as_fit(fit), on) for fit in fits]
    if len({table.shape for table in tables}) > 1:
        shapes = ", ".join(str(table.shape) for table in tables)
        raise ValueError(f"fits must be of one setting to the same counts, got {on} of shapes {shapes}")
    if len(tables) < 2:
        raise ValueError(f"a comparison needs at least two fits, got {len(tables)}")
    between = np.eye(len(tables))
    for a in range(len(tables)):
        for b in range(a):
            between[a, b] = between[b, a] = match_factors(tables[a], tables[b]).similarity.mean()
    others = [match_factors(tables[0], table).similarity for table in tables[1:]]
    return Stability(np.array(others), between)


@dataclass(frozen=True, eq=False)
class Relation:
    """How the factors of several fits relate.

    Parameters
    ----------
    names : tuple of str
        Names of the fits.
    owner : ndarray of int, shape (factors of all fits,)
        Which fit a factor belongs to.
    number : ndarray of int
        Which factor of that fit it is.
    similarity : ndarray of shape (all factors, all factors)
        Pearson's correlation.
    shares : ndarray of shape (all factors, all factors)
        Row a, columns of another fit: what factor a is made of there. The loadings (or factors) of a are
        written as a non-negative combination of those of the other fit; a share is the part of the
        combination's total that one of them brings. Rows sum to 1 over each other fit; 0 within a fit.
    """

    names: tuple[str, ...]
    owner: NDArray[np.intp]
    number: NDArray[np.intp]
    similarity: Array
    shares: Array

    @property
    def labels(self) -> list[str]:
        """One for each factor, like ``c=1 K=6: k2``."""
        return [
            f"{self.names[owner]}: k{number}" for owner, number in zip(self.owner, self.number, strict=True)
        ]

    def splits(self, fit: str, factor: int, into: str, *, least: float = 0.1) -> list[tuple[int, float]]:
        """List what a `factor` of `fit` becomes, `into` another: numbers and shares of at least `least`."""
        for name in (fit, into):
            if name not in self.names:
                raise ValueError(f"fits are named {', '.join(map(repr, self.names))}, got {name!r}")
        (row,) = np.flatnonzero((self.owner == self.names.index(fit)) & (self.number == factor))
        columns = np.flatnonzero(self.owner == self.names.index(into))
        parts = [(int(self.number[column]), float(self.shares[row, column])) for column in columns]
        return sorted((part for part in parts if part[1] >= least), key=lambda part: -part[1])


def tree_of(similarity: Array) -> Array:
    """Return average linkage of factors by ``1 - similarity``, as `scipy.cluster.hierarchy` takes it."""
    distance = np.clip(1.0 - similarity, 0.0, 2.0)
    np.fill_diagonal(distance, 0.0)
    pairs = scipy.spatial.distance.squareform(distance, checks=False)
    return np.asarray(scipy.cluster.hierarchy.linkage(pairs, method="average", optimal_ordering=True))


def relate(fits: Sequence[Any], *, names: Sequence[str] | None = None, on: PairSide = "loadings") -> Relation:
    """Relate the factors of fits with different c or K: which ones split or merge.

    Parameters
    ----------
    fits : sequence of Fit, or of anything that `log1pnmf.as_fit` takes
        Fits to the same counts.
    names : sequence of str, optional
        Names of the fits; by default made from c and the number of factors.
    on : {"loadings", "factors"}
        Whether to compare loadings or factors. Loadings compare across c; factors have another scale at
        another c.

    Examples
    --------
    >>> from log1pnmf import fit_log1p_nmf
    >>> from log1pnmf.datasets import pancreas
    >>> counts = pancreas().counts[:150, :400]
    >>> few, many = (fit_log1p_nmf(counts, K) for K in (2, 4))
    >>> relation = relate([few, many])
    >>> relation.names
    ('c=1 K=2', 'c=1 K=4')
    >>> bool(abs(sum(share for _, share in relation.splits("c=1 K=2", 1, "c=1 K=4", least=0.0)) - 1) < 1e-9)
    True
    """
    check_choice("on", on, get_args(PairSide))
    tables: list[Array] = [getattr(as_fit(fit), on) for fit in fits]
    n_rows = sorted({len(table) for table in tables})
    if len(n_rows) != 1:
        raise ValueError(f"fits must be of the same counts, got {on} of {n_rows} rows")
    labels = tuple(names) if names is not None else tuple(_name(as_fit(fit)) for fit in fits)
    if len(labels) != len(fits) or len(set(labels)) < len(labels):
        raise ValueError(f"names must be {len(fits)} different ones, got {labels}; pass names=")
    together = np.hstack(tables)
    owner = np.repeat(np.arange(len(tables)), [table.shape[1] for table in tables])
    number = np.concatenate([np.arange(table.shape[1]) for table in tables])
    similarity = match_factors(together, together).matrix
    shares = np.zeros_like(similarity)
    for b, table in enumerate(tables):
        columns = owner == b
        for row in np.flatnonzero(~columns):
            weights = scipy.optimize.nnls(table, together[:, row])[0] * table.sum(axis=0)
            shares[row, columns] = weights / weights.sum() if weights.any() else 1.0 / len(weights)
    return Relation(labels, owner, number, similarity, shares)


def _name(fit: Fit) -> str:
    text = f"c={c_name(fit.c)} K={fit.n_components}"
    return text if fit.settings.l1 == 0.0 else f"{text} l1={fit.settings.l1:g}"


# ---------- fits at several c: up and down, each started where its neighbour ended


@dataclass(frozen=True, eq=False)
class Sweep:
    """Fits of one data set at several c, ordered by c.

    Parameters
    ----------
    fits : tuple of Fit
        Smallest c first.
    table : dict of str to ndarray
        One row per fit; ``pandas.DataFrame(table)`` shows it. Columns: `c`; `log_likelihood`, always that
        without approximation; `deviance_explained`; `factor_correlation`, mean absolute Spearman correlation
        between factors; `sparsity_loadings` and `sparsity_factors`, mean Hoyer sparsity; `n_iter`;
        `converged`; `seconds`.
    """

    fits: tuple[Fit, ...]
    table: dict[str, np.ndarray]

    @classmethod
    def of(cls, fits: Sequence[Any], counts: Any) -> Sweep:
        """Order `fits` to the same `counts` by c and compare them; the best of each c is kept."""
        counts = Counts.from_any(counts)
        best: dict[float, Fit] = {}
        for fit in map(as_fit, fits):
            best[fit.c] = min(best.get(fit.c, fit), fit, key=lambda one: one.objective)
        ordered = tuple(best[value] for value in sorted(best))
        rows = [_row(fit, counts) for fit in ordered]
        return cls(ordered, {name: np.array([row[name] for row in rows]) for name in rows[0]})


def sweep(
    counts: Any, n_components: int, c: Sequence[float], **parameters: Unpack[SampleParameters]
) -> Sweep:
    """Fit the model at several c and compare the fits.

    Each fit starts from its neighbour, first with rising, then with falling c: independent fits may end in
    poorer optima and take longer.

    Parameters
    ----------
    counts : array, sparse matrix or data frame of shape (n_samples, n_features)
        Raw counts.
    n_components : int
        Number of factors.
    c : sequence of float
        Values of c, all different, in any order; may contain inf.
    **parameters : optional
        Others of `log1pnmf.Log1pNMF`, with the same defaults, except `checkpoint`.

    See Also
    --------
    log1pnmf.pl.sweep : Draw the result.
    log1pnmf.select : Choose c by held-out counts.

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> counts = pancreas().counts[:150, :400]
    >>> result = sweep(counts, 3, [0.1, 1, float("inf")])
    >>> result.table["c"]
    array([0.1, 1. , inf])
    >>> [fit.factors.shape for fit in result.fits]
    [(400, 3), (400, 3), (400, 3)]
    """
    counts = Counts.from_any(counts)
    return Sweep.of(list(fits_along(counts, n_components, c, **parameters)), counts)


def fits_along(counts: Any, n_components: int, c: Sequence[float], **parameters: Any) -> Iterator[Fit]:
    """Yield fits up along c, each from the one before, then down, each from the better one at the next c."""
    values = ascending_shifts(c)
    check_absent(parameters, ("checkpoint",), "the fits of a sweep")
    settings, given = checked(n_components=n_components, **parameters)
    counts = Counts.from_any(counts)
    done: dict[float, Fit] = {}
    for value in along_path(values):
        fit = fit_counts(counts, replace(settings, c=value), **given)
        yield fit
        if fit.stopped == "interrupted":
            return
        done[value] = min(done.get(value, fit), fit, key=lambda one: one.objective)
        given["init"] = done[value]


def along_path(c: Sequence[float]) -> list[float]:
    """Order the values of c as a sweep fits them: up, and back down."""
    values = sorted(c)
    return [*values, *values[-2::-1]]


def _row(fit: Fit, counts: Counts) -> dict[str, Any]:
    known = fit.log_likelihood
    likelihood = log_likelihood(fit, counts) if known is None else known
    return measures(fit, likelihood, deviance_explained(fit, counts))
