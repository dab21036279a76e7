"""Which features rise with a factor, from a fitted model and its counts."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from log1pnmf._common.checks import check_choice
from log1pnmf._common.warn import convergence_warning, warn
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import split_counts
from log1pnmf.fitting.as_fit import fit_and_counts
from log1pnmf.fitting.driver import run_request
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.ranking import ranking_of
from log1pnmf.fitting.request import Request
from log1pnmf.model.problem import Problem

from .inference import ERRORS, infer_from_fit
from .shrinkage import shrink
from .table import LEVEL, Markers

__all__ = ["LEAST_RELIABLE", "markers"]

Array = NDArray[np.float64]

LEAST_RELIABLE = 0.5
"""Share of what tells a factor's loadings from the others that may not be less than this: not error."""


def markers(
    fit: Any,
    counts: Any,
    *,
    errors: str = "sandwich",
    split: bool = False,
    size_factors: Any = None,
    feature_names: Any = None,
    max_samples: int | None = None,
    n_jobs: int | None = None,
) -> Markers:
    """Test which features rise with each factor, beyond what the other factors do.

    Features have the same order as in `log1pnmf.analysis.top_features` and in every list of this package. For
    the tests every feature is regressed on the loadings, without penalty and with all zero counts.
    docs/markers.md explains the effect and shows when the tests hold.

    Parameters
    ----------
    fit : Fit, or anything that `log1pnmf.as_fit` takes
        The fit.
    counts : array, sparse matrix or data frame of shape (n_samples, n_features)
        The counts that were fitted, or others of the same samples. Of counts in chunks, only the samples kept
        in memory are tested, up to 8,192 at random.
    errors : {"sandwich", "model"}
        "sandwich" is valid for counts of any variance. "model" trusts the noise of the fit; do not use it for
        overdispersed counts with Poisson noise.
    split : bool
        Whether to estimate the loadings from a random half of the counts and test on the other half.
        Otherwise the tests treat the factors as known, and a factor that was fitted to noise then has
        "markers" of noise. Splitting takes another fit and leaves half of the counts for the tests.
    size_factors : array of shape (n_samples,), optional
        Size factors of `counts`, if they differ from those of the fit.
    feature_names : sequence of str, optional
        Names of the features; by default those of the fit.
    max_samples : int, optional
        Number of random samples to test, the same ones every time. The tests visit all zero counts, so many
        samples take long; a few thousand give small errors.
    n_jobs : int, optional
        Number of threads.

    Returns
    -------
    Markers

    See Also
    --------
    log1pnmf.analysis.top_features : The same order without tests.
    log1pnmf.pl.volcano : Draw effects and p-values.
    log1pnmf.tl.markers : The same for AnnData.

    Notes
    -----
    Loadings are estimates. Every feature is tested on loadings without its own counts, and the tests take the
    errors of the loadings into account. A warning names factors whose loadings are mostly error (see
    `Markers.reliability`): few of their markers can be found, and some may belong to other factors. The
    factors themselves are taken as known.

    Examples
    --------
    >>> import numpy as np
    >>> from log1pnmf import Log1pNMF
    >>> rng = np.random.default_rng(0)
    >>> own = (np.arange(60)[:, None] < 30) == (np.arange(20) < 10)  # half of the features for each half
    >>> counts = rng.poisson(np.where(own, 6.0, 0.5))
    >>> model = Log1pNMF(2, random_state=0).fit(counts)
    >>> sorted(sorted(map(int, markers(model, counts).top(k))) for k in range(2))
    [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]]

    >>> sorted(sorted(map(int, markers(model, counts, split=True).top(k))) for k in range(2))
    [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]]
    """
    check_choice("errors", errors, ERRORS)
    fit, counts = fit_and_counts(fit, counts)
    fit = fit.normalized("max").named(feature_names=feature_names)
    sizes = fit.size_factors if size_factors is None else counts.size_factors(size_factors)
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"max_samples must be at least 1, got {max_samples}")
    ranking, weight, names = ranking_of(fit), fit.factors, tuple(fit.factor_names)
    source = counts
    if split:
        fit, source, counts = _on_halves(fit, counts, sizes, n_jobs)
        sizes = fit.size_factors
    problem, rows = _in_memory(fit, counts, sizes, max_samples)
    seen = _in_memory(fit, source, sizes, max_samples)[0] if split else None
    loadings, alpha = np.ascontiguousarray(fit.loadings[rows]), fit.link.alpha
    with threadpool_limits(1, user_api="blas"):  # thin products: more threads only spin and change bits
        found, reliability = infer_from_fit(fit, problem, loadings, errors=errors, source=seen, n_jobs=n_jobs)
        with np.errstate(divide="ignore", invalid="ignore"):  # as far from zero as the test says
            spread = np.where(found.z > 0.0, found.effect / found.z, found.error)
        shrunken = [shrink(found.effect[:, k], spread[:, k]) for k in range(fit.n_components)]
    _warn_of_errors(reliability, found.comparable, names)
    p = scipy.stats.t.sf(found.z, max(len(loadings) - fit.n_components, 1))
    unknown = np.where(found.comparable, 0.0, np.nan)
    adjusted = _adjusted(p, np.diff(problem.counts.by_column.indptr) > 0)
    return Markers(
        log2_fold_change=ranking.log2_fold_change,
        score=ranking.lower,
        effect=alpha * found.effect,
        error=alpha * found.error,
        z=found.z,
        p=p,
        adjusted_p=adjusted,
        shrunken_effect=alpha * np.stack([one.effect for one in shrunken], axis=1) + unknown,
        false_sign_rate=np.stack([one.false_sign_rate for one in shrunken], axis=1) + unknown,
        weight=weight,
        reliability=reliability,
        c=fit.c,
        errors=errors,
        split=split,
        n_samples=len(rows),
        n_rising=((adjusted <= LEVEL) & (weight > 0.0)).sum(axis=0),
        feature_names=fit.feature_labels,
        factor_names=names,
    )


def _in_memory(
    fit: Fit, counts: Counts, sizes: Array, max_samples: int | None
) -> tuple[Problem, NDArray[np.intp]]:
    """Hold samples that are tested against the fit; also say which they are."""
    part, rows = counts.part_in_memory(max_samples)
    batches = None if fit.batches is None else fit.batches.of_samples(rows)
    return Problem(part, sizes[rows], fit.link, noise=fit.noise, batches=batches), rows


def _warn_of_errors(reliability: Array, tested: NDArray[np.bool_], names: tuple[str, ...]) -> None:
    """Warn of factors whose loadings are mostly error beyond the other loadings."""
    low = np.flatnonzero(tested & (reliability < LEAST_RELIABLE)).tolist()
    if not low:
        return
    which = ", ".join(f"{names[k]} ({reliability[k]:.0%})" for k in low)
    warn(
        f"the loadings of some factors are mostly error: {which}. The number in brackets is the share of "
        "what tells the factor's loadings from the others that is not error. Few markers of such a factor "
        "can be found, and some may belong to other factors. More features, deeper samples or fewer factors "
        "help",
        UserWarning,
    )


def _on_halves(fit: Fit, counts: Counts, sizes: Array, n_jobs: int | None) -> tuple[Fit, Counts, Counts]:
    """Fit to a random half of every count, from where the fit is; also this half, and the other to test on.

    Halves of negative binomial counts have twice the dispersion.
    """
    twice = None if fit.dispersion is None else 2.0 * fit.dispersion
    phi = 0.0 if fit.dispersion is None else fit.dispersion
    train, test = split_counts(counts, 0.5, dispersion=phi, random_state=0)
    request = Request.like(fit).at(init=(fit.loadings, fit.factors), l1=0.5 * fit.asked.l1, normalize="max")
    given = twice if request.dispersion is not None else None
    request = replace(request, size_factors=0.5 * sizes, dispersion=given, n_jobs=n_jobs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", convergence_warning())  # the fit itself has said so
        half = run_request(request, train)
    order = match_factors(fit.loadings, half.loadings).pairs[:, 1]  # the order is by share, which may change
    loadings, factors = half.loadings[:, order], half.factors[:, order]
    return replace(half, loadings=loadings, factors=factors, dispersion=twice), train, test


def _adjusted(p: Array, tested: NDArray[np.bool_]) -> Array:
    """Adjust p-values within each factor; features without any count have 1 and do not count."""
    adjusted = np.where(np.isnan(p), np.nan, 1.0)
    for k in np.flatnonzero(~np.isnan(p).all(axis=0)):
        if tested.any():
            adjusted[tested, k] = scipy.stats.false_discovery_control(p[tested, k])
    return adjusted
