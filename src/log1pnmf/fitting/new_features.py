"""Factors of features that were not fitted, given the loadings: a convex problem for every feature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from log1pnmf._common.checks import convergence_warning, warn
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.features import select_features, shared_features
from log1pnmf.engines.registry import as_counts, make_engine
from log1pnmf.model.batch_effects import mean_sums
from log1pnmf.model.batches import balanced_effects
from log1pnmf.model.dispersion import FIRST_DISPERSION, update_dispersions
from log1pnmf.model.noise import NegativeBinomial
from log1pnmf.model.problem import Array, Problem

from .anndata import as_fit
from .fit import DataFacts, Fit, or_one
from .settings import constraint_of
from .solver import solve_side

ROUNDS = 4  # how often factors are found in turns with dispersions and effects of batches
TOLERANCE = 1e-9


def extend_features(fit: Any, counts: Any, *, features: Any = None, n_jobs: int | None = None) -> Fit:
    """Add the factors of all features to a fit of some of them, as `log1pnmf.tl.extend_features`.

    Parameters
    ----------
    fit : Fit, Log1pNMF, AnnData, str or PathLike
        A fit, see `log1pnmf.as_fit`.
    counts : array, sparse matrix, data frame or Counts
        Counts of all features of the samples of the fit.
    features : array of bool or int, optional
        Which features of `counts` were fitted; by default those with the names of the fit.
    n_jobs : int, optional
        Number of threads.

    Returns
    -------
    Fit
        Of all features of `counts`; `fitted_features` marks those that were fitted.
    """
    fit, counts = as_fit(fit), as_counts(counts)
    if counts.n_samples != len(fit.loadings):
        raise ValueError(
            f"counts must be of the {len(fit.loadings)} samples of the fit, got {counts.n_samples}"
        )
    if set(fit.kinds) & {"factors", "mask"}:
        raise ValueError("features cannot be added to a fit with fixed_factors or a mask; fit all features")
    if features is not None:
        here, fitted = np.arange(counts.n_features)[features], np.arange(len(fit.factors))
        if len(np.unique(here)) != len(fitted) or len(here) != len(fitted):
            raise ValueError(f"features must be the {len(fitted)} of the fit, each once, got {len(here)}")
    elif fit.feature_names is None or counts.feature_names is None:
        raise ValueError("the fit or the counts have no names of features; pass features, where they are")
    else:
        here, fitted = shared_features(list(counts.feature_names), list(fit.feature_names))
    if len(fitted) < len(fit.factors):
        raise ValueError(f"{len(fit.factors) - len(fitted):,} features of the fit are not in the counts")
    added = np.setdiff1d(np.arange(counts.n_features), here)
    if not len(added):
        return fit
    known = np.ones(len(fitted)) if fit.fitted_features is None else fit.fitted_features
    problem, factors = _solved(fit, select_features(counts, added), n_jobs)

    def joined(old: Any, new: Any) -> Any:
        whole = np.empty((*old.shape[:-1], counts.n_features))
        whole[..., here], whole[..., added] = old[..., fitted], new
        return whole

    why = f"{len(fitted):,} features were fitted, and {len(added):,} were added given the loadings"
    return replace(
        fit,
        factors=np.ascontiguousarray(joined(fit.factors.T, factors.T * fit.link.alpha).T),
        dispersion=fit.dispersion
        if fit.dispersion is None
        else joined(fit.dispersion, problem.noise.dispersion),
        batches=fit.batches
        and replace(fit.batches, effects=joined(fit.batches.effects, problem.batches.effects), known={}),
        feature_names=counts.feature_names,
        fitted_features=joined(known, 0.0) > 0.0,
        data=replace(DataFacts.of(counts), fitted_total=fit.data.fitted_total),
        certificate=None,
        approximate_log_likelihood=None,
        messages=(f"{why}; objective, convergence and history are those of the fitted ones", *fit.messages),
    )


def _solved(fit: Fit, counts: Counts, n_jobs: int | None) -> tuple[Any, Array]:
    """Return the problem of added features, with their dispersions and effects, and their factors."""
    m, loadings = counts.n_features, fit.loadings
    noise = fit.noise if fit.dispersion is None else NegativeBinomial(np.full(m, FIRST_DISPERSION))
    batches = fit.batches and replace(fit.batches, effects=np.ones((fit.batches.n_batches, m)), known={})
    problem = Problem(counts, fit.size_factors, fit.link, None, noise, batches)
    level = problem.profile / or_one(loadings.mean(axis=0).sum())
    factors, converged = np.tile(level[:, None], (1, fit.n_components)), False
    bounds = constraint_of(fit.settings).factors
    for _ in range(1 if fit.dispersion is None and batches is None else ROUNDS):
        engine = make_engine("native", problem, n_jobs)
        factors, converged = solve_side(engine, "factors", factors, loadings, bounds=bounds, tol=TOLERANCE)
        if batches is not None:
            seen, expected = batches.totals(counts), mean_sums(problem, loadings, factors)
            effects = balanced_effects(seen + batches.strength, expected + batches.strength)
            problem = replace(problem, batches=replace(batches, effects=effects))
        if isinstance(problem.noise, NegativeBinomial):
            before = problem.noise if problem.noise.prior is not None else None
            means = engine.with_problem(problem).mean_spectrum(loadings, factors)
            noise, _ = update_dispersions(counts, factors, means, before=before)
            problem = replace(problem, noise=noise)
    if not converged:
        warn("factors of some added features have not converged", convergence_warning())
    return problem, factors
