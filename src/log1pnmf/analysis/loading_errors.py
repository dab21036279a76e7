"""How well the loadings of a sample are known, given the factors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from log1pnmf._common.checks import check_choice
from log1pnmf.counts.chunked.parts import parts_of, source_of
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.sparse_rows import dense_blocks
from log1pnmf.fitting.as_fit import as_fit
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.new_samples import counts_of, new_batches, new_samples
from log1pnmf.model.batches import Batches
from log1pnmf.model.objective import BLOCK_BYTES, entry_curvature, entry_gradient

from .markers.inference import ERRORS, Z95
from .markers.loadings import inverse_information

__all__ = ["loading_errors"]

Array = NDArray[np.float64]

AT_BOUND = 1e-9
"""Of a factor's largest loading: what is nearer to a bound than this is at it."""

ARRAYS_PER_BLOCK = 8


def loading_errors(
    fit: Any,
    counts: Any,
    loadings: Any = None,
    *,
    size_factors: Any = None,
    batch: Any = None,
    errors: str = "sandwich",
) -> Array:
    """Compute standard errors of loadings given the factors, from the counts of each sample.

    The factors are treated as known. Fitted ones differ from true ones in scale and mixing, which is not in
    these errors: intervals hold a sample's loadings on the factors of this fit, and much less often those on
    the true factors (docs/usage.md has figures). For a loading at its bound, 1.96 errors reach the end of a
    one-sided 95% interval, and the errors of the other loadings are computed without it.

    Parameters
    ----------
    fit : Fit, or anything that `log1pnmf.as_fit` takes
        The fit.
    counts : array, sparse matrix, data frame or source of shape (n, m)
        Counts of the samples.
    loadings : array of shape (n, K), optional
        Loadings of other samples, from `log1pnmf.Log1pNMF.transform`; by default those of the fit.
    size_factors : {"total", "fit", "none"} or array of shape (n,), optional
        For other samples, as in `transform`.
    batch : array of shape (n,), optional
        For other samples, as in `transform`.
    errors : {"sandwich", "model"}
        "sandwich" is valid for counts of any variance; "model" trusts the noise of the fit.

    Returns
    -------
    ndarray of shape (n, K)
        Standard errors given the factors, on the scale of the loadings; inf if the counts contain no
        information.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF
    >>> model = Log1pNMF(1, c=float("inf")).fit([[40, 20], [20, 10], [60, 30]])
    >>> error = loading_errors(model, [[40, 20], [20, 10], [60, 30]], errors="model")
    >>> (error / model.loadings_).round(3).ravel().tolist()  # 60, 30 and 90 counts: 1 / sqrt
    [0.129, 0.183, 0.105]
    """
    check_choice("errors", errors, ERRORS)
    fit, own = as_fit(fit), loadings is None
    source = source_of(counts)
    whole = counts_of(fit, counts) if own and source is None else counts
    values = fit.loadings if own else np.asarray(loadings, dtype=np.float64)
    found = np.empty((len(values), fit.n_components))
    given = None if size_factors is None or isinstance(size_factors, str) else np.asarray(size_factors)
    batches = fit.batches if own else new_batches(fit, batch, len(values))
    for first, part in parts_of(whole if source is None else source):
        here = counts_of(fit, part, same_samples=False)
        rows = slice(first, first + here.n_samples)
        if own:
            sizes = fit.size_factors[rows]
        else:
            kind = size_factors if given is None else given[rows]
            sizes = new_samples(fit, here, kind).size_factors
        here_batches = None if batches is None else batches.of_samples(rows)
        with threadpool_limits(1, user_api="blas"):  # more threads change bits
            found[rows] = _errors(fit, here, values[rows], sizes, errors, batches=here_batches)
    return found


def _errors(
    fit: Fit, counts: Counts, loadings: Array, sizes: Array, errors: str, *, batches: Batches | None
) -> Array:
    """Errors of samples in memory, block by block."""
    factors = fit.factors / fit.link.alpha
    first, second = np.triu_indices(fit.n_components)
    products = factors[:, first] * factors[:, second]
    largest = fit.loadings.max(axis=0)
    upper = largest if fit.settings.l1 > 0 else np.full(len(largest), np.inf)
    found = np.empty_like(loadings)
    for rows in dense_blocks(counts.shape, BLOCK_BYTES / (8 * ARRAYS_PER_BLOCK)):
        y, eta = counts.by_row.to_dense(rows), loadings[rows] @ factors.T
        t = fit.link.exposure_scale * sizes[rows, None]
        if batches is not None:
            t = t * batches.rows(rows)
        slope = entry_gradient(y, eta, t, fit.link, noise=fit.noise)
        information = _square(entry_curvature(y, eta, t, fit.link, noise=fit.noise) @ products, first, second)
        scores = _square(slope**2 @ products, first, second) if errors == "sandwich" else None
        low = loadings[rows] <= AT_BOUND * largest
        high = loadings[rows] >= (1.0 - AT_BOUND) * upper
        found[rows] = _of_block(information, scores, slope @ factors, low, high)
    return found


def _square(pairs: Array, first: Any, second: Any) -> Array:
    full = np.empty((len(pairs), int(first.max()) + 1, int(first.max()) + 1))
    full[:, first, second] = full[:, second, first] = pairs
    return full


def _of_block(information: Array, scores: Array | None, gradient: Array, low: Any, high: Any) -> Array:
    """Errors of free loadings, and one-sided ones of those at a bound, where the loss rises away from it."""
    pinned = low | high
    found = np.empty(gradient.shape)
    for k in range(gradient.shape[1]):
        counted = ~pinned
        counted[:, k] = True
        model = inverse_information(information, counted)
        covariance = model if scores is None else model @ scores @ model
        variance = covariance[:, k, k]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.sqrt(variance / model[:, k, k])
            rise = np.maximum(np.where(low[:, k], gradient[:, k], -gradient[:, k]), 0.0)
            end = Z95**2 / (rise + np.sqrt(rise**2 + Z95**2 / model[:, k, k]))
            found[:, k] = np.where(pinned[:, k], ratio * end / Z95, np.sqrt(variance))
    return np.where(np.isfinite(found) & (information.diagonal(axis1=1, axis2=2) > 0.0), found, np.inf)
