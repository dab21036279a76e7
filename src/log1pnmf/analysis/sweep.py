"""One data set, several links: fits along c, up and down, each starting where its neighbour ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np

from log1pnmf.counts.counts import Counts
from log1pnmf.estimator import Log1pNMF
from log1pnmf.model.link import ShiftedLog

from .metrics import (
    deviance_explained,
    factor_correlation,
    hoyer,
    log_likelihood,
)

__all__ = ["Sweep", "along_path", "fits_along", "sweep"]

NOT_FOR_SWEEPS = ("c", "warm_start", "checkpoint", "checkpoint_every")


@dataclass(frozen=True, eq=False)
class Sweep:
    """Fits of one data set at several c, ordered by c.

    Parameters
    ----------
    models : tuple of Log1pNMF
        Fitted, smallest c first.
    table : dict of str to ndarray
        One row per model; ``pandas.DataFrame(table)`` shows it. Columns: `c`; `log_likelihood`, always that
        without approximation; `deviance_explained`; `factor_correlation`, mean absolute Spearman correlation
        between factors; `sparsity_loadings` and `sparsity_factors`, mean Hoyer sparsity; `n_iter`;
        `converged`; `seconds`.
    """

    models: tuple[Log1pNMF, ...]
    table: dict[str, np.ndarray]

    @classmethod
    def of(cls, models: Sequence[Log1pNMF], X: Any) -> Sweep:
        """Order fitted models by c and compare them.

        Parameters
        ----------
        models : sequence of Log1pNMF
            Where several have the same c, the one with the lowest objective is kept.
        X : array, sparse matrix or data frame
            What they were fitted to.

        Returns
        -------
        Sweep
        """
        counts = Counts.from_any(X)
        best: dict[float, Log1pNMF] = {}
        for model in models:
            if _is_better(model, best.get(model.fit_.c)):
                best[model.fit_.c] = model
        ordered = tuple(best[value] for value in sorted(best))
        rows = [_row(model, counts) for model in ordered]
        return cls(ordered, {name: np.array([row[name] for row in rows]) for name in rows[0]})


def sweep(
    X: Any,
    c: Sequence[float],
    n_components: int,
    *,
    warm_start: bool = True,
    likelihood: str = "refined",
    random_state: Any = 0,
    **fit_options: Any,
) -> Sweep:
    """Fit the model at several c and compare the fits.

    Parameters
    ----------
    X : array, sparse matrix or data frame of shape (n_samples, n_features)
        Raw counts.
    c : sequence of float
        Different from each other, in any order; may contain inf.
    n_components : int
    warm_start : bool
        Whether fits start from those at neighbouring c, up and down, see `fits_along`. On the bundled data
        cold fits at large c end up to 131,234 units of log-likelihood below what the way up finds, and at
        small c up to 12,170 below what the way down finds; see docs/anndata.md.
    likelihood : {"refined", "exact", "auto", "approximate"}
        As in `Log1pNMF`, but by default exact in the end for every c, so that rows of the table differ by
        the link and not by the approximation.
    random_state : int, RandomState, Generator or None
    **fit_options : optional
        Other parameters of `Log1pNMF`; not `checkpoint`, as there are several fits.

    Returns
    -------
    Sweep

    Examples
    --------
    >>> from log1pnmf.datasets import pancreas
    >>> counts = pancreas().counts[:150, :400]
    >>> result = sweep(counts, [0.1, 1, float("inf")], 3, tol=1e-4)
    >>> result.table["c"]
    array([0.1, 1. , inf])
    >>> [model.components_.shape for model in result.models]
    [(3, 400), (3, 400), (3, 400)]
    """
    counts = Counts.from_any(X)
    options = {"likelihood": likelihood, "random_state": random_state, **fit_options}
    return Sweep.of(list(fits_along(counts, c, n_components, warm_start=warm_start, **options)), counts)


def fits_along(
    X: Any, c: Sequence[float], n_components: int, *, warm_start: bool = True, **fit_options: Any
) -> Iterator[Log1pNMF]:
    """Fit the model at several c, one after the other, and yield each when it is done.

    Parameters
    ----------
    X : array, sparse matrix or data frame
    c : sequence of float
    n_components : int
    warm_start : bool
        Whether to walk along c: up, each fit from that at the next smaller c, then down, each from the better
        one at the next larger c, as `Log1pNMF` does with ``warm_start=True``. Every c but the largest is then
        fitted twice. The very first fit starts as `init` and `n_init` say; otherwise every one does.
    **fit_options : optional
        Other parameters of `Log1pNMF`.

    Yields
    ------
    Log1pNMF
        Smallest c first, and back. `Sweep.of` keeps the best for each c. A fit that Ctrl-C interrupted is the
        last one.
    """
    values = _checked_path(c)
    for name in NOT_FOR_SWEEPS:
        if name in fit_options:
            raise TypeError(f"{name} is not an option of the fits of a sweep; leave it out")
    best = Log1pNMF(n_components, **fit_options)
    counts = Counts.from_any(X)
    done: dict[float, Log1pNMF] = {}
    for value in along_path(values) if warm_start else values:
        # A copy shares the earlier fit, from which the warm start goes on, and takes its own in `fit`.
        model = copy(best).set_params(c=value, warm_start=warm_start)
        model.fit(counts).set_params(warm_start=False)
        yield model
        if any(message.startswith("interrupted") for message in model.fit_.messages):
            return
        best = model if _is_better(model, done.get(value)) else done[value]
        done[value] = best


def along_path(c: Sequence[float]) -> list[float]:
    """Values of c in the order in which a warm sweep fits them: up, and back down.

    Examples
    --------
    >>> along_path([1, float("inf"), 0.1])
    [0.1, 1, inf, 1, 0.1]
    """
    values = sorted(c)
    return [*values, *values[-2::-1]]


def _is_better(model: Log1pNMF, other: Log1pNMF | None) -> bool:
    return other is None or model.fit_.objective < other.fit_.objective


def _checked_path(c: Sequence[float]) -> list[float]:
    """Sort the values of c."""
    if isinstance(c, str | Real) or not np.iterable(c):
        raise TypeError(f"c must be a sequence of numbers, one for each fit, got {c!r}")
    values = sorted(ShiftedLog(value).c for value in c)
    if not values:
        raise ValueError("c must hold at least one number, got none")
    for smaller, larger in pairwise(values):
        if smaller == larger:
            raise ValueError(f"c must hold different numbers, got {smaller:g} twice")
    return values


def _row(model: Log1pNMF, counts: Counts) -> dict[str, Any]:
    fit = model.fit_
    known = fit.log_likelihood
    return {
        "c": fit.c,
        "log_likelihood": log_likelihood(model, counts) if known is None else known,
        "deviance_explained": deviance_explained(model, counts),
        "factor_correlation": factor_correlation(model.components_.T),
        "sparsity_loadings": float(hoyer(model.loadings_).mean()),
        "sparsity_factors": float(hoyer(model.components_.T).mean()),
        "n_iter": fit.n_iter,
        "converged": fit.converged,
        "seconds": fit.seconds,
    }
