"""Fits of one data set at several c: up and down, each started where its neighbour ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from log1pnmf._common.checks import check_absent
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.anndata import as_fit
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.fit_counts import checked, fit_counts

from .grid import ascending_shifts
from .metrics import deviance_explained, factor_correlation, hoyer, log_likelihood


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
        """Order fits by c and compare them.

        Parameters
        ----------
        fits : sequence of Fit, or of anything that `log1pnmf.as_fit` takes
            Where several have the same c, the one with the lowest objective is kept.
        counts : array, sparse matrix or data frame
            What they were fitted to.

        Returns
        -------
        Sweep
        """
        counts = Counts.from_any(counts)
        best: dict[float, Fit] = {}
        for fit in map(as_fit, fits):
            best[fit.c] = min(best.get(fit.c, fit), fit, key=lambda one: one.objective)
        ordered = tuple(best[value] for value in sorted(best))
        rows = [_row(fit, counts) for fit in ordered]
        return cls(ordered, {name: np.array([row[name] for row in rows]) for name in rows[0]})


def sweep(counts: Any, n_components: int, c: Sequence[float], **parameters: Any) -> Sweep:
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

    Returns
    -------
    Sweep

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
    """Fit the model at several c, one after the other, and yield each when it is done.

    The walk goes up, each fit from that at the next smaller c, then down, each from the better one at the
    next larger c. Every c but the largest is fitted twice. The very first fit starts as `init` and `n_init`
    say.
    """
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
    """Order the values of c as a sweep fits them: up, and back down.

    >>> along_path([1, float("inf"), 0.1])
    [0.1, 1, inf, 1, 0.1]
    """
    values = sorted(c)
    return [*values, *values[-2::-1]]


def _row(fit: Fit, counts: Counts) -> dict[str, Any]:
    known = fit.log_likelihood
    return {
        "c": fit.c,
        "log_likelihood": log_likelihood(fit, counts) if known is None else known,
        "deviance_explained": deviance_explained(fit, counts),
        "factor_correlation": factor_correlation(fit.factors),
        "sparsity_loadings": float(hoyer(fit.loadings).mean()),
        "sparsity_factors": float(hoyer(fit.factors).mean()),
        "n_iter": fit.n_iter,
        "converged": fit.converged,
        "seconds": fit.seconds,
    }
