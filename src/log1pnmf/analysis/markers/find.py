"""Which features rise with a factor, from a fitted model and its counts."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control
from scipy.stats import t as student
from sklearn.exceptions import ConvergenceWarning

from log1pnmf._common.checks import check_choice
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import split_counts
from log1pnmf.fitting.as_fit import fit_and_counts
from log1pnmf.fitting.driver import run_request
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.ranking import ranking_of, stand_ins
from log1pnmf.fitting.request import Request
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
        Otherwise the tests treat the loadings as known. With many features a single one hardly changes them,
        but a factor that was fitted to noise then has "markers" of noise. Splitting takes another fit and
        leaves half of the counts for the tests.
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
    Loadings are taken as known. Where the counts of a sample say little about them (overdispersed counts, few
    features) and factors occur together, features of one factor are called for the other as well; see "Why
    tests are timid or bold" in docs/markers.md. More features, deeper samples or fewer factors help.

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
    if split:
        fit, counts = _on_halves(fit, counts, sizes, n_jobs)
        sizes = fit.size_factors
    tested_counts, rows = counts.part_in_memory(max_samples)
    loadings = np.ascontiguousarray(fit.loadings[rows])
    batches = None if fit.batches is None else fit.batches.of_samples(rows)
    problem = Problem(tested_counts, sizes[rows], fit.link, noise=fit.noise, batches=batches)
    regressions = FeatureRegressions(problem, loadings, n_jobs)
    alpha = fit.link.alpha
    coefficients = regressions.solve(fit.factors / alpha)
    around = stand_ins(loadings, sizes[rows])
    found = infer(regressions, coefficients, around, errors=errors)
    p = student.sf(found.z, max(len(loadings) - fit.n_components, 1))
    with np.errstate(divide="ignore", invalid="ignore"):  # as far from zero as the test says
        spread = np.where(found.z > 0.0, found.effect / found.z, found.error)
    shrunken = [shrink(found.effect[:, k], spread[:, k]) for k in range(fit.n_components)]
    unknown = np.where(around.comparable, 0.0, np.nan)
    return Markers(
        log2_fold_change=ranking.log2_fold_change,
        score=ranking.lower,
        effect=alpha * found.effect,
        error=alpha * found.error,
        z=found.z,
        p=p,
        adjusted_p=_adjusted(p, np.diff(tested_counts.by_column.indptr) > 0),
        shrunken_effect=alpha * np.stack([one.effect for one in shrunken], axis=1) + unknown,
        false_sign_rate=np.stack([one.false_sign_rate for one in shrunken], axis=1) + unknown,
        weight=weight,
        c=fit.c,
        errors=errors,
        split=split,
        feature_names=fit.feature_labels,
        factor_names=names,
    )


def _on_halves(fit: Fit, counts: Counts, sizes: Array, n_jobs: int | None) -> tuple[Fit, Counts]:
    """Fit to a random half of every count, from where the fit is; also the other half, to test on.

    Halves of negative binomial counts have twice the dispersion.
    """
    twice = None if fit.dispersion is None else 2.0 * fit.dispersion
    phi = 0.0 if fit.dispersion is None else fit.dispersion
    train, test = split_counts(counts, 0.5, dispersion=phi, random_state=0)
    request = Request.like(fit).at(init=(fit.loadings, fit.factors), l1=0.5 * fit.asked.l1, normalize="max")
    given = twice if request.dispersion is not None else None
    request = replace(request, size_factors=0.5 * sizes, dispersion=given, n_jobs=n_jobs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the fit itself has said so
        half = run_request(request, train)
    order = match_factors(fit.loadings, half.loadings).pairs[:, 1]  # the order is by share, which may change
    loadings, factors = half.loadings[:, order], half.factors[:, order]
    return replace(half, loadings=loadings, factors=factors, dispersion=twice), test


def _adjusted(p: Array, tested: NDArray[np.bool_]) -> Array:
    """Adjust p-values within each factor; features without any count have 1 and do not count."""
    adjusted = np.where(np.isnan(p), np.nan, 1.0)
    for k in np.flatnonzero(~np.isnan(p).all(axis=0)):
        if tested.any():
            adjusted[tested, k] = false_discovery_control(p[tested, k])
    return adjusted
