"""Tests of effects: the regressions of features, their errors, and how often they are wrong."""

import warnings
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import nbinom, poisson
from scipy.stats import t as student
from tests.analysis.simulated_markers import FACTOR, Case, calibrate, draw, shares, simulate

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.marker_tests import (
    EstimatedLoadings,
    _means,
    estimate_loadings,
    infer,
    infer_from_fit,
    regress,
    resizing,
    shrink,
)
from log1pnmf.analysis.markers import LEAST_RELIABLE, markers
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.new_samples import project
from log1pnmf.fitting.ranking import stand_ins
from log1pnmf.model.noise import POISSON, NegativeBinomial, ShiftedLog
from log1pnmf.model.problem import Problem


def regressions(case, seed=0, noise=POISSON):
    counts, loadings, factors, sizes, _ = simulate(case, seed)
    problem = Problem(Counts.from_any(counts), sizes, ShiftedLog(case.c), noise=noise)
    truth = factors / problem.link.alpha
    return problem, loadings, truth, regress(problem, loadings, truth, 1), counts


def inferred(counts, loadings, c, start, *, errors, sizes=None, around=None):
    """Coefficients, and inference with known loadings."""
    sizes = np.ones(len(counts)) if sizes is None else sizes
    problem = Problem(Counts.from_any(counts), sizes, ShiftedLog(c))
    best = regress(problem, loadings, np.broadcast_to(start, (counts.shape[1], loadings.shape[1])).copy(), 1)
    around = stand_ins(loadings, sizes) if around is None else around
    return best, infer(problem, EstimatedLoadings.known(loadings, len(best)), best, around, errors=errors)


@pytest.mark.parametrize(("c", "phi"), [(0.01, 0.0), (1.0, 0.0), (np.inf, 0.0), (1.0, 0.5), (np.inf, 0.5)])
def test_regressions_are_at_their_maximum(c, phi):
    """A general optimiser with bounds finds no better coefficients, with scipy's likelihoods."""
    noise = NegativeBinomial(np.full(5, phi)) if phi else POISSON
    case = Case("", c, n_samples=40, n_features=5, overdispersion=phi)
    problem, loadings, truth, best, counts = regressions(case, noise=noise)
    for j in range(5):

        def loss(b, y=counts[:, j]):
            mean = np.maximum(problem.size_factors * problem.link.mean(loadings @ b), 1e-300)
            logs = nbinom.logpmf(y, 1.0 / phi, 1.0 / (1.0 + phi * mean)) if phi else poisson.logpmf(y, mean)
            return -logs.sum()

        other = minimize(loss, np.maximum(truth[j], 1e-3), bounds=[(1e-12, None)] * 3, tol=1e-12)
        assert loss(best[j]) <= other.fun + 1e-5


def test_a_count_that_no_other_factor_explains():
    """Samples with one factor only: an effect is a difference of means, and one count is not certainty."""
    loadings = np.array([[1.0, 0.0]] * 10 + [[0.0, 1.0]] * 10)
    counts = np.zeros((20, 3))
    counts[0, 0], counts[:10, 1], counts[:, 2] = 1, 8, 3
    around = stand_ins(loadings + 1e-6, np.ones(20))
    _, inference = inferred(counts, loadings, np.inf, 0.1, errors="model", around=around)
    np.testing.assert_allclose(inference.effect[:, 0], [0.1, 8.0, 0.0], atol=1e-4)
    np.testing.assert_allclose(inference.error[:, 0], [0.1, np.sqrt(0.8), np.sqrt(0.6)], rtol=1e-4)
    roots = np.sqrt(2.0 * counts.sum(axis=0)[:2] * np.log(2.0))  # of the likelihood ratios
    np.testing.assert_allclose(inference.z[:2, 0], roots, rtol=0.05)
    assert abs(inference.z[2, 0]) < 1e-4


def test_chance_zeros_outside_the_factor_do_not_make_a_marker():
    """Few samples without the factor, none with a count: a tiny standard error, but no evidence."""
    loadings = np.ones((520, 2))
    loadings[:20, 1] = 0.0
    counts = np.zeros((520, 1))
    counts[20:45, 0] = 1.0  # rate 0.05: zero counts in 20 samples have probability exp(-1)
    _, inference = inferred(counts, loadings, 1.0, 0.02, errors="model")
    assert 1.0 < inference.z[0, 1] < 1.6
    assert inference.error[0, 1] < 0.011


@pytest.mark.parametrize(("c", "correlation"), [(1.0, 0.7), (np.inf, 0.0)])
def test_features_that_do_not_rise_are_not_called(c, correlation):
    """Constant features, and those of another factor."""
    found = calibrate(Case("", c, correlation=correlation, fall=0.3, overdispersion=0.5), 3)
    assert found["sandwich"]["constant"] < 0.07
    assert found["sandwich"]["of another factor"] < 0.07
    assert found["sandwich"]["false discoveries"] < 0.06
    assert found["sandwich"]["found"] > 0.5


@pytest.mark.parametrize("c", [1.0, np.inf])
def test_correlated_loadings_do_not_make_tests_cautious(c):
    """The coefficient of the other factor is at its bound; the level holds all the same."""
    found = calibrate(Case("", c, n_samples=200, correlation=0.7), 12)
    for errors in ("sandwich", "model"):
        assert 0.035 < found[errors]["constant"] < 0.065
        assert 0.035 < found[errors]["of another factor"] < 0.065


def test_errors_for_poisson_counts_do_not_hold_for_others():
    found = calibrate(Case("", 1.0, overdispersion=0.5), 4)
    assert found["model"]["constant"] > 0.08
    assert found["sandwich"]["constant"] < 0.07


def test_a_large_change_is_found_though_the_counts_vary_much():
    """From 7 to 200 counts in twenty samples, with a standard deviation as large as the mean."""
    rng, n_features = np.random.default_rng(0), 100
    loadings = np.column_stack([np.ones(40), np.arange(40) >= 20]).astype(float)
    means = np.where(loadings[:, 1:] > 0.0, 200.0 * rng.gamma(1.0, 1.0, (40, n_features)), 7.0)
    _, inference = inferred(rng.poisson(means), loadings, 1.0, 1.0, errors="sandwich")
    assert inference.z[:, 1].min() > 4.0


def test_halves_of_negative_binomial_counts_are_independent():
    """Tests on the other half hold for overdispersed noise, with errors of the model too."""
    p = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        counts = rng.poisson(rng.uniform(0.5, 4.0, 150) * rng.gamma(2.0, 0.5, (150, 150)))
        fit = fit_log1p_nmf(counts, 2, noise="nb", dispersion=0.5, random_state=seed, n_jobs=1)
        with pytest.warns(UserWarning, match="no markers are named"):
            p.append(markers(fit, counts, split=True, errors="model", n_jobs=1).p.ravel())
    p = np.concatenate(p)
    assert np.mean(p[~np.isnan(p)] <= 0.05) < 0.07


@pytest.mark.parametrize("phi", [0.0, 0.5])
def test_factors_found_in_noise_have_no_markers(phi):
    """Their loadings do not come back with factors fitted to other samples, whatever the noise is."""
    rng = np.random.default_rng(0)
    means = np.broadcast_to(rng.uniform(0.5, 4.0, 150), (150, 150))
    counts = draw(means, phi, rng)
    fit = fit_log1p_nmf(counts, 3, random_state=0, n_jobs=1)
    with pytest.warns(UserWarning, match="no markers are named of factors whose loadings are mostly error"):
        found = markers(fit, counts, n_jobs=1)
    tested = ~np.isnan(found.p).all(axis=0)
    assert (found.determined < 0.7).all()
    assert (found.reliability < 0.5).all()
    assert (found.n_rising == 0).all()
    assert not any(found.top(k) for k in np.flatnonzero(tested))
    assert (found.p[:, tested] <= 0.05).mean() > 0.07  # though tests on the same counts would call some


def test_a_factor_that_raises_totals_does_not_hide_its_markers():
    """With totals as size factors other features seem to fall; the tests are relative to them."""
    rng, called, known = np.random.default_rng(1), [], []
    for _ in range(3):
        loadings = np.where(rng.random(200) < 0.3, rng.gamma(3.0, 1.0 / 3.0, 200), 0.0)
        own = np.arange(150) < 30
        depth, rates = np.exp(0.4 * rng.standard_normal(200)), 2.0 * np.exp(0.7 * rng.standard_normal(150))
        counts = rng.poisson(depth[:, None] * np.expm1(np.log1p(rates) + np.outer(loadings, own)))
        fit = fit_log1p_nmf(counts, 2, n_jobs=1)
        sizes = resizing(fit, fit.problem(Counts.from_any(counts)), errors="sandwich", n_jobs=1)[1]
        totals, resized = (np.std(np.log(one / depth)) for one in (fit.size_factors, sizes))
        assert resized < 0.5 * totals
        k = int(np.argmax([np.corrcoef(one, loadings)[0, 1] for one in fit.loadings.T]))
        found = markers(fit, counts, n_jobs=1)
        called.append(np.mean(found.p[~own, k] <= 0.05))
        known.append(
            np.mean(markers(fit, counts, size_factors=fit.size_factors, n_jobs=1).p[~own, k] <= 0.05)
        )
        assert found.unmoved[k] < -0.1
        assert abs(np.median(found.log2_fold_change[~own, k])) < 0.1
        assert (found.adjusted_p[own, k] <= 0.05).mean() > 0.9
    assert np.mean(known) < 0.01
    assert 0.025 < np.mean(called) < 0.085


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["total", "fit"])
def test_levels_hold_with_estimated_size_factors(sizes):
    """studies/marker_levels.py has more designs."""
    study = pytest.importorskip("studies.marker_levels")
    runs = [one for seed in range(8) for one in study.measure(study.CASES["Poisson"], sizes, seed)]
    rate, found, false = np.mean(runs, axis=0)[:3]
    assert 0.035 < rate < 0.065
    assert found > 0.98
    assert false < 0.07


@pytest.mark.slow
def test_levels_hold_for_a_rare_factor():
    study = pytest.importorskip("studies.marker_levels")
    case = study.CASES["a strong factor of 2% of the samples, nb"]
    rate, found, false = np.mean([study.measure(case, "total", seed)[0] for seed in range(8)], axis=0)[:3]
    assert rate < 0.07
    assert found > 0.8
    assert false < 0.1


def test_errors_are_those_of_repeated_experiments():
    """Standard errors equal the spread of estimates over repetitions of the same experiment."""
    link, rng = ShiftedLog(1.0), np.random.default_rng(3)
    _, loadings, factors, sizes, _ = simulate(Case("", 1.0, n_features=3), 0)
    means = np.repeat(sizes[:, None] * link.inverse(loadings @ factors[2:].T), 400, axis=1)
    counts = rng.poisson(means)
    for errors in ("model", "sandwich"):
        _, stated = inferred(counts, loadings, 1.0, factors[2:], errors=errors, sizes=sizes)
        spread = stated.effect[:, FACTOR].std()
        np.testing.assert_allclose(np.median(stated.error[:, FACTOR]), spread, rtol=0.12)


def test_a_constant_feature_has_no_effect_though_the_baseline_falls():
    """Its coefficient is positive, to make up for the baseline; its effect is not."""
    loadings = np.array([[1.0, 0.0]] * 50 + [[0.6, 1.0]] * 50)
    counts = np.random.default_rng(0).poisson(30.0, (100, 200))
    coefficients, inference = inferred(counts, loadings, 1.0, 1.0, errors="sandwich")
    assert (coefficients[:, 1] > 0.5).all()
    assert abs(np.mean(inference.effect[:, 1])) < 0.01
    assert 0.8 < np.std(inference.z[:, 1]) < 1.2


def test_shrinkage():
    rng = np.random.default_rng(1)
    effects = np.where(rng.random(5000) < 0.7, 0.0, np.abs(3.0 * rng.standard_normal(5000)))
    errors = rng.uniform(0.3, 2.0, 5000)
    x = effects + errors * rng.standard_normal(5000)
    found = shrink(x, errors)
    assert 0.5 < found.null_share < 0.85
    assert np.mean((found.effect - effects) ** 2) < 0.7 * np.mean((np.maximum(x, 0.0) - effects) ** 2)
    for low, high in ((0.0, 0.05), (0.1, 0.4), (0.6, 0.9)):  # it says how often it is wrong
        chosen = (found.false_sign_rate >= low) & (found.false_sign_rate < high)
        stated, actual = found.false_sign_rate[chosen].mean(), (effects[chosen] == 0.0).mean()
        assert actual <= stated + 0.06
    # An estimate of which nothing is known is the prior.
    unknown = shrink(np.append(x, 0.0), np.append(errors, np.inf))
    assert unknown.null_share <= unknown.false_sign_rate[-1] < unknown.null_share + 0.1


def test_shrinkage_without_any_effect():
    rng = np.random.default_rng(2)
    found = shrink(rng.standard_normal(2000), np.ones(2000))
    assert found.null_share > 0.8
    assert (found.false_sign_rate < 0.05).mean() < 0.001


@pytest.mark.parametrize("x", [-1e12, -40.0, 0.0, 2.0, 1e9])
def test_posterior_means_at_any_distance_from_zero(x):
    """Against the integral, in many digits; also where density and distribution function both underflow."""
    with mpmath.workdps(60):
        s, width = mpmath.mpf("0.02"), mpmath.mpf(3)
        variance = 1 / (1 / s**2 + 1 / width**2)
        centre, spread = variance * mpmath.mpf(x) / s**2, mpmath.sqrt(variance)
        a = centre / spread
        hazard = mpmath.npdf(a) / mpmath.ncdf(a) if a > -1e3 else -a - 1 / a + 2 / a**3
        expected = float(centre + spread * hazard)
    found = _means(np.array([x]), np.array([0.02]), np.array([3.0]))[0, 0]
    assert found == pytest.approx(expected, rel=2e-8)


# ---------- loadings that are estimated from the same counts

GOOD = Case("", 1.0, n_samples=300, n_features=300, overdispersion=0.5)
UNCERTAIN = Case("", np.inf, n_samples=300, n_features=150, overdispersion=0.5, correlation=0.7)
BAD = Case("", np.inf, n_samples=300, n_features=200, overdispersion=1.5, correlation=0.8)


def estimated(case, seed=0):
    """Loadings from the counts, with the true factors and dispersions: a fit, its counts, and the truth."""
    _, loadings, factors, sizes, kind = simulate(case, seed)
    means = sizes[:, None] * ShiftedLog(case.c).inverse(loadings @ factors.T)
    counts = draw(means, case.overdispersion, np.random.default_rng(seed))
    phi = np.full(case.n_features, case.overdispersion)
    given = {"noise": "nb", "dispersion": phi, "init": (loadings, factors), "size_factors": sizes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fit_log1p_nmf(counts, 3, c=case.c, max_iter=1, n_jobs=1, **given)
    fit = replace(fit, loadings=loadings, factors=factors, dispersion=phi)
    found = np.ascontiguousarray(project(fit, counts, sizes, prior=0, n_jobs=1).loadings)
    problem = Problem(Counts.from_any(counts), sizes, fit.link, noise=fit.noise)
    return replace(fit, loadings=found), problem, loadings, kind


@pytest.mark.parametrize(("c", "errors"), [(1.0, "sandwich"), (np.inf, "model")])
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
