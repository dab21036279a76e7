"""Which features define a factor, from a fitted model and its counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, norm

from log1pnmf._common.checks import check_choice
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.as_fit import fit_and_counts
from log1pnmf.model.problem import Problem

from .inference import ERRORS, infer
from .regression import FeatureRegressions
from .shrinkage import shrink
from .table import Markers

__all__ = ["markers"]

Array = NDArray[np.float64]


def markers(
    fit: Any,
    counts: Any,
    *,
    errors: str = "model",
    size_factors: Any = None,
    feature_names: Any = None,
    max_samples: int | None = None,
    n_jobs: int | None = None,
) -> Markers:
    """Effect of every factor on every feature, with standard errors and tests.

    Every feature is regressed on the loadings of the fit, which are taken as known, without penalty and with
    exact zero counts. `log1pnmf.analysis.markers.inference` explains the tests, and docs/markers.md when they
    hold: with many features a single one has little influence on the loadings, but loadings found in pure
    noise make markers of noise. To be safe against that, fit to one part of the counts and test on the other
    (`log1pnmf.counts.splitting`), as in the second example.

    Parameters
    ----------
    fit : Fit, or what `log1pnmf.as_fit` takes
    counts : array, sparse matrix or data frame of shape (n_samples, n_features)
        The counts it was fitted to, or others of the same samples. Of counts in chunks the samples that are
        kept in memory are tested, up to 8,192 at random.
    errors : {"model", "sandwich"}
        "model": counts are Poisson. "sandwich": their variance may be anything; larger where counts are
        overdispersed, but needs a few dozen samples.
    size_factors : array of shape (n_samples,), optional
        Of `counts`, if they are not those of the fit.
    feature_names : sequence of str, optional
        By default those of the fit.
    max_samples : int, optional
        Test only so many random samples, the same ones every time. All zero counts are visited, so many
        samples take long, and a few thousand already have small errors.
    n_jobs : int, optional
        Threads.

    Returns
    -------
    Markers

    Examples
    --------
    >>> import numpy as np
    >>> from log1pnmf import Log1pNMF
    >>> from log1pnmf.counts.splitting import split_counts, training_size_factors
    >>> rng = np.random.default_rng(0)
    >>> own = (np.arange(60)[:, None] < 30) == (np.arange(20) < 10)  # half of the features for each half
    >>> counts = rng.poisson(np.where(own, 6.0, 0.5))
    >>> found = markers(Log1pNMF(2, random_state=0).fit(counts), counts)
    >>> sorted(sorted(map(int, found.top(k))) for k in range(2))
    [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]]

    >>> train, test = split_counts(counts, 0.5, random_state=0)
    >>> model = Log1pNMF(2, size_factors=training_size_factors(train, 0.5), random_state=0).fit(train)
    >>> found = markers(model, test)  # halves: the same size factors
    >>> sorted(sorted(map(int, found.top(k))) for k in range(2))
    [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]]
    """
    check_choice("errors", errors, ERRORS)
    fit, counts = fit_and_counts(fit, counts)
    fit = fit.normalized("max").named(feature_names=feature_names)
    sizes = fit.size_factors if size_factors is None else counts.size_factors(size_factors)
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"max_samples must be at least 1, got {max_samples}")
    tested_counts, rows = counts.part_in_memory(max_samples)
    loadings, weights = fit.loadings[rows], fit.factors
    problem = Problem(tested_counts, sizes[rows], fit.link)
    regressions = FeatureRegressions(problem, np.ascontiguousarray(loadings), n_jobs)
    alpha = fit.link.alpha
    effects = regressions.solve(weights / alpha)
    found = infer(regressions, effects, errors=errors)
    p, net_p, tested = norm.sf(found.z), norm.sf(found.net_z), _has_counts(tested_counts)
    shrunken = [
        shrink(*_unbounded(effects[:, k], found.error[:, k], found.z[:, k])) for k in range(p.shape[1])
    ]
    return Markers(
        effect=alpha * effects,
        error=alpha * found.error,
        z=found.z,
        p=p,
        adjusted_p=_adjusted(p, tested),
        shrunken_effect=alpha * np.stack([one.effect for one in shrunken], axis=1),
        false_sign_rate=np.stack([one.false_sign_rate for one in shrunken], axis=1),
        distinctiveness=alpha * found.difference,
        distinctiveness_error=alpha * found.difference_error,
        nearest=found.nearest,
        net_effect=alpha * found.net,
        net_error=alpha * found.net_error,
        net_p=net_p,
        adjusted_net_p=_adjusted(net_p, tested),
        weight=weights,
        c=fit.c,
        errors=errors,
        feature_names=fit.feature_labels,
    )


def _unbounded(effects: Array, errors: Array, z: Array) -> tuple[Array, Array]:
    """Estimates as if there were no bound, with errors of which they are z away from zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(effects > 0.0, effects, z * errors), np.where(z > 0.0, effects / z, errors)


def _has_counts(counts: Counts) -> NDArray[np.bool_]:
    return np.diff(counts.by_column.indptr) > 0


def _adjusted(p: Array, tested: NDArray[np.bool_]) -> Array:
    """Adjust p-values within each factor; features without any count have 1 and do not count."""
    adjusted = np.ones_like(p)
    if tested.any():
        adjusted[tested] = false_discovery_control(p[tested], axis=0)
    return adjusted
