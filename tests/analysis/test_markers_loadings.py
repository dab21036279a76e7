"""Tests of markers with estimated loadings: errors of loadings, and features that take part in their own."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student
from tests.analysis.simulated_markers import FACTOR, Case, draw, shares, simulate

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.marker_tests import (
    EstimatedLoadings,
    estimate_loadings,
    infer,
    infer_from_fit,
    regress,
)
from log1pnmf.analysis.markers import LEAST_RELIABLE, markers
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.features import select_features
from log1pnmf.fitting.new_samples import project
from log1pnmf.fitting.ranking import stand_ins
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem

GOOD = Case("", 1.0, n_samples=300, n_features=300, overdispersion=0.5)
UNCERTAIN = Case("", np.inf, n_samples=300, n_features=150, overdispersion=0.5, correlation=0.7)
BAD = Case("", np.inf, n_samples=300, n_features=200, overdispersion=1.5, correlation=0.8)


def estimated(case, seed=0):
    """Loadings from the counts, with the true factors and dispersions: a fit, its counts, and the truth."""
    _, loadings, factors, sizes, kind = simulate(case, seed)
    means = sizes[:, None] * ShiftedLog(case.c).inverse(loadings @ factors.T)
    counts = draw(means, case.overdispersion, np.random.default_rng(seed))
    phi = np.full(case.n_features, case.overdispersion)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fit_log1p_nmf(
            counts,
            3,
            c=case.c,
            noise="nb",
            dispersion=phi,
            init=(loadings, factors),
            size_factors=sizes,
            max_iter=1,
            n_jobs=1,
        )
    fit = replace(fit, loadings=loadings, factors=factors, dispersion=phi)
    found = np.ascontiguousarray(project(fit, counts, sizes, prior=0, n_jobs=1).loadings)
    problem = Problem(Counts.from_any(counts), sizes, fit.link, noise=fit.noise)
    return replace(fit, loadings=found), problem, loadings, kind


@pytest.mark.parametrize("errors", ["model", "sandwich"])
@pytest.mark.parametrize("c", [1.0, np.inf])
def test_loadings_without_bounds_have_the_errors_stated(c, errors):
    """Right on average, though two fifths of the true loadings are zero, and as uncertain as they say."""
    fit, problem, truth, _ = estimated(Case("", c, overdispersion=0.5))
    found = estimate_loadings(fit, problem, fit.loadings, errors=errors, own=True)
    off = found.values - truth
    spread = off.std(axis=0)
    assert (np.abs(off.mean(axis=0)) < 0.3 * spread).all()
    assert (fit.loadings - truth)[truth == 0.0].mean() > 2.0 * abs(off[truth == 0.0].mean())
    np.testing.assert_allclose(found.covariance.mean(axis=0).diagonal(), spread**2, rtol=0.2)
    true = truth.T @ (problem.size_factors[:, None] * truth)
    seen = found.values.T @ (problem.size_factors[:, None] * found.values)
    without = seen - found.excess(problem.size_factors)
    assert np.abs(without - true).max() < 0.1 * true.max()


@pytest.mark.parametrize("c", [1.0, np.inf])
def test_loadings_without_a_feature_are_those_of_the_others(c):
    """One step takes the counts of a feature out of the loadings, as if they had never been there."""
    fit, problem, _, _ = estimated(Case("", c, n_samples=100, n_features=60, overdispersion=0.3))
    found = estimate_loadings(fit, problem, fit.loadings, errors="model", own=True)
    j = 45
    y, t = problem.counts.by_column.to_dense(slice(j, j + 1)).T, found.factors[j]
    exposure = fit.link.exposure_scale * problem.size_factors[:, None]
    moved = found.own_part(y, exposure, fit.link, fit.noise.of_features([j]), slice(j, j + 1))
    step = moved * np.einsum("ikl,l->ik", found.inverse, t)
    kept = np.delete(np.arange(60), j)
    part = replace(fit, factors=fit.factors[kept], dispersion=fit.dispersion[kept], feature_names=None)
    counts = select_features(problem.counts, kept)
    loadings = project(part, counts, problem.size_factors, prior=0, n_jobs=1).loadings
    others = estimate_loadings(
        part,
        Problem(counts, problem.size_factors, fit.link, noise=part.noise),
        loadings,
        errors="model",
        own=True,
    )
    difference = others.values - found.values
    assert np.corrcoef(step.ravel(), difference.ravel())[0, 1] > 0.98
    assert np.abs(step - difference).mean() < 0.2 * np.abs(difference).mean()


def test_effects_are_not_too_small_because_of_errors_in_the_loadings():
    """Without their errors uncertain loadings give effects that are too small; with them they do not."""
    sums = np.zeros(3)
    for seed in range(3):
        fit, problem, truth, kind = estimated(UNCERTAIN, seed)
        found = estimate_loadings(fit, problem, fit.loadings, errors="model", own=True)
        certain = replace(found, covariance=np.zeros_like(found.covariance))
        around = stand_ins(truth, problem.size_factors)
        for number, loadings in enumerate((EstimatedLoadings.known(truth, len(kind)), certain, found)):
            best = regress(problem, np.ascontiguousarray(loadings.bounded), fit.factors / fit.link.alpha, 1)
            inference = infer(problem, loadings, best, around, errors="model")
            sums[number] += inference.effect[kind == FACTOR, FACTOR].mean()
    assert sums[1] < 0.9 * sums[0]
    assert sums[2] == pytest.approx(sums[0], rel=0.05)


@pytest.mark.parametrize("case", [GOOD, BAD], ids=["good", "bad"])
def test_levels_hold_with_estimated_loadings(case):
    rows = []
    for seed in range(4):
        fit, problem, _, kind = estimated(case, seed)
        found, _ = infer_from_fit(fit, problem, fit.loadings, errors="model", n_jobs=1)
        rows.append(shares(student.sf(found.z[:, FACTOR], len(fit.loadings) - 3), kind))
    constant, _, other, _, false = np.mean(rows, axis=0)
    assert 0.03 < constant < 0.07
    assert other < 0.07
    assert false < 0.06


def test_factors_whose_loadings_are_mostly_error_are_named():
    """The warning comes where errors are large, and stays away where they are not."""
    fit, problem, _, _ = estimated(BAD)
    with pytest.warns(UserWarning, match=r"mostly error: .*k2 \(\d+%\).*deeper samples"):
        found = markers(fit, problem.counts, errors="model", n_jobs=1)
    assert found.reliability[FACTOR] < LEAST_RELIABLE
    fit, problem, _, _ = estimated(GOOD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = markers(fit, problem.counts, errors="model", n_jobs=1)
    assert (found.reliability[1:] > 0.8).all()
    assert (found.determined[1:] > 0.9).all()
