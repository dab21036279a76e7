"""Markers of models: one order for every list, tables, and what others take from them."""

import warnings
from dataclasses import fields, replace

import anndata
import mpmath
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy.optimize import minimize
from scipy.stats import false_discovery_control, nbinom, poisson
from scipy.stats import t as student
from tests.analysis.simulated_markers import FACTOR, Case, calibrate, draw, shares, simulate
from threadpoolctl import threadpool_limits

from log1pnmf import Log1pNMF, as_fit, fit_log1p_nmf, pl, tl
from log1pnmf.analysis import loading_errors
from log1pnmf.analysis.marker_tests import (
    MIXED,
    EstimatedLoadings,
    _means,
    estimate_loadings,
    infer,
    infer_from_fit,
    regress,
    resizing,
    shrink,
)
from log1pnmf.analysis.markers import LEAST_RELIABLE, RELIABLE, markers
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.new_samples import project
from log1pnmf.fitting.ranking import rank_features, stand_ins
from log1pnmf.model.noise import POISSON, NegativeBinomial, ShiftedLog
from log1pnmf.model.problem import Problem

LINKS = [0.01, 1.0, np.inf]


@pytest.fixture(scope="module")
def blocks():
    """Two kinds of samples with ten features of their own, ten shared, and one without counts."""
    rng = np.random.default_rng(4)
    rates = np.full((80, 31), 0.5)
    rates[:40, :10] = rates[40:, 10:20] = 6.0
    rates[:, 20:30] = 3.0
    rates[:, 30] = 0.0
    counts = rng.poisson(rates)
    model = Log1pNMF(2, c=1.0, likelihood="exact", random_state=0, n_jobs=1).fit(counts)
    return model, counts


def test_markers_of_a_model(blocks):
    model, counts = blocks
    found = model.markers(counts)
    assert {frozenset(map(int, found.top(k, 20, level=0.01))) for k in range(2)} == {
        frozenset(range(10)),
        frozenset(range(10, 20)),
    }
    assert (found.adjusted_p[30] == 1.0).all()
    assert (found.effect[30] == 0.0).all()
    assert (found.adjusted_p >= found.p).all()
    assert (found.lower <= found.effect).all()
    assert (found.effect <= found.upper).all()
    assert (found.false_sign_rate[:20].min(axis=1) < 0.01).all()
    assert (np.abs(found.shrunken_effect[20:30]) < 0.2).all()
    np.testing.assert_allclose(found.weight, model.components_.T)


def test_progress_of_all_that_takes_long(blocks, capsys):
    """Fits at other size factors and to each half of the samples, then tests of every feature."""
    markers(*blocks, verbose=1, n_jobs=1)
    fits, tests = capsys.readouterr().err.splitlines()
    assert fits.startswith("markers: short fits: ")
    assert "of 60 iterations in" in fits
    assert tests.startswith("markers: tests: 31 of 31 features in")


def test_every_list_has_the_same_features_in_the_same_order(blocks):
    model, counts = blocks
    table = model.top_features(5)
    for k in range(2):
        listed = table.feature[table.factor == f"k{k}"].tolist()
        assert model.markers(counts).top(k, 5) == listed
        assert ", ".join(listed) in model.summary(n_top=5)
    assert table.columns.tolist() == ["factor", "rank", "feature", "log2_fold_change", "score", "weight"]
    assert table["rank"].tolist() == [1, 2, 3, 4, 5] * 2


@pytest.mark.parametrize("c", LINKS)
@pytest.mark.parametrize("mixed", [0.0, 0.2])
def test_fold_changes_mean_the_same_at_every_c(c, mixed):
    """Two kinds of samples: the ratio of their rates, whatever the link, also where samples are mixtures."""
    link, rng = ShiftedLog(c), np.random.default_rng(0)
    loadings = np.where(np.arange(200)[:, None] < 100, [1.0, 0.0], [0.0, 1.0])
    loadings = (1.0 - mixed) * loadings + mixed * rng.dirichlet([1.0, 1.0], 200)
    factors = link.link(np.where(np.arange(30)[:, None] < 15, [12.0, 3.0], [3.0, 12.0]))
    factors[14] = link.link(7.0)
    found = rank_features(loadings, factors, np.ones(200), link)
    np.testing.assert_allclose(found.log2_fold_change[14], 0.0, atol=1e-9)
    assert set(found.top(0).tolist()) == set(range(14))
    if mixed == 0.0:
        np.testing.assert_allclose(found.log2_fold_change[:14, 0], 2.0, atol=0.01)


def test_what_comes_along_is_not_what_a_factor_is():
    """Two factors in nearly the same samples: features of the one are not listed for the other."""
    rng = np.random.default_rng(0)
    latent = rng.multivariate_normal([0.0, 0.0], [[1.0, 0.8], [0.8, 1.0]], 300)
    loadings = np.column_stack([np.ones(300), np.maximum(latent, 0.0) / latent.max(axis=0)])
    factors = np.column_stack(
        [np.full(40, 1.0), np.arange(40) < 10, (np.arange(40) >= 10) & (np.arange(40) < 20)]
    )
    found = rank_features(loadings, factors.astype(float), np.ones(300), ShiftedLog(1.0))
    assert set(found.top(1).tolist()) == set(range(10))
    assert set(found.top(2).tolist()) == set(range(10, 20))


def test_a_factor_that_all_samples_have_is_not_tested():
    rng = np.random.default_rng(0)
    response = np.where(np.arange(80) < 40, 0.0, 1.0)
    loadings = np.stack([np.ones(80), response], axis=1)
    factors = np.stack([rng.uniform(0.5, 2.0, 25), np.where(np.arange(25) < 5, 1.5, 0.0)], axis=1)
    counts = rng.poisson(np.expm1(loadings @ factors.T))
    fit = fit_log1p_nmf(counts, 2, tol=1e-3, random_state=0, n_jobs=1)
    found = markers(replace(fit, loadings=loadings, factors=factors), counts, n_jobs=1)
    assert np.isnan(found.p[:, 0]).all()
    assert np.isnan(found.adjusted_p[:, 0]).all()
    assert set(map(int, found.top(1, 25))) == set(range(5))
    assert len(found.top(0)) == 10  # listed by fold change, without a test


def test_markers_do_not_depend_on_the_scale_the_order_of_features_nor_on_what_holds_the_fit(blocks):
    model, counts = blocks
    fit, own = model.fit_, markers(model, counts, n_jobs=1)
    np.testing.assert_array_equal(markers(fit, counts).z, own.z)
    other = markers(fit.normalized("factor_sum"), counts)
    np.testing.assert_allclose(other.effect, own.effect, rtol=1e-8, atol=1e-10)
    order = np.random.default_rng(0).permutation(counts.shape[1])
    permuted = markers(replace(fit, factors=fit.factors[order]), counts[:, order], n_jobs=1)
    np.testing.assert_allclose(permuted.z, own.z[order], rtol=1e-6, atol=1e-6)


def test_penalised_fits_get_effects_without_penalty(blocks):
    _, counts = blocks
    fit = fit_log1p_nmf(counts, 2, l1=10.0, likelihood="exact", random_state=0, n_jobs=1)
    found = markers(fit, counts, n_jobs=1)
    free = markers(replace(fit, factors=np.maximum(fit.factors, 1e-3)), counts, n_jobs=1)
    np.testing.assert_allclose(found.effect, free.effect, atol=1e-3)


def test_one_factor_and_identity_link(blocks):
    """Nothing to compare with: no tests, and features are listed by their rates."""
    _, counts = blocks
    model = Log1pNMF(1, c=np.inf, random_state=0, n_jobs=1).fit(counts)
    assert np.isnan(model.markers(counts).p).all()
    order = [int(j) for j in model.top_features(31).feature]
    assert len(order) == 30
    assert (np.diff(counts.sum(axis=0)[order]) <= 0).all()


def test_any_number_of_threads_gives_the_same_bits():
    """Also of BLAS, for so many samples and features that it would split the products."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.3, 1.0, (400, 4)) @ rng.gamma(0.3, 1.0, (4, 600)))
    fit = fit_log1p_nmf(counts, 4, init="rank1", tol=1e-3, n_jobs=1)
    found, errors = [], []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads, user_api="blas"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(markers(fit, counts, n_jobs=n_threads))
            errors.append(loading_errors(fit, counts))
    np.testing.assert_array_equal(*errors)
    for one in fields(found[0]):
        np.testing.assert_array_equal(*(getattr(each, one.name) for each in found), err_msg=one.name)


@pytest.mark.parametrize("errors", ["model", "sandwich"])
def test_factors_that_cannot_be_told_apart(blocks, errors):
    """A factor twice: no effect of either is known, and none is claimed."""
    model, counts = blocks
    fit = model.fit_
    half = fit.factors[:, [0, 1, 1]] * [1.0, 0.5, 0.5]
    twice = replace(fit, loadings=fit.loadings[:, [0, 1, 1]], factors=half)
    with pytest.warns(UserWarning, match=r"k[12] \(0%\)"):
        found = markers(twice, counts, errors=errors)
    assert (found.reliability[1:] == 0.0).all()
    assert not (found.adjusted_p[:, 1:] <= 0.05).any()
    assert (markers(fit, counts, errors=errors).adjusted_p <= 0.05).sum() >= 20


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model, y: model.markers(y, errors="robust"), "errors must be one of 'sandwich', 'model'"),
        (lambda model, y: model.markers(y[1:]), "the fit is of 80 samples, got counts of 79"),
        (lambda model, y: model.markers(y).top(2), "or 0 to 1, got 2"),
        (lambda model, y: model.markers(y).top(0, by="p"), "by must be one of"),
        (lambda model, y: model.markers(y).top("k2"), "must be one of 'k0', 'k1' or 0 to 1, got 'k2'"),
        (lambda model, y: model.markers(y + 0.5, split=True), "only whole numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*non-integer:UserWarning")
def test_bad_input(blocks, call, words):
    with pytest.raises(ValueError, match=words):
        call(*blocks)


def test_tables(blocks):
    model, counts = blocks
    found = markers(model, counts, feature_names=[f"g{j}" for j in range(31)])
    table = pd.DataFrame(found.table())
    assert len(table) == 62
    row = table[(table.factor == "k1") & (table.feature == "g3")].iloc[0]
    assert row.effect == found.effect[3, 1]
    assert row.p == found.p[3, 1]
    for _, part in table.groupby("factor"):
        assert (np.diff(part.score) <= 0.0).all()
        assert part["rank"].tolist() == list(range(1, 32))
    top = pd.DataFrame(found.table(4))
    assert top.feature.tolist() == found.top(0, 4) + found.top("k1", 4)


def test_anndata_keeps_what_rises_and_yet_all_are_drawn(blocks):
    _, counts = blocks
    adata = anndata.AnnData(counts.astype(np.float32))
    tl.log1p_nmf(adata, 2, likelihood="exact", n_jobs=1)
    tl.markers(adata)
    assert (adata.uns["log1p_nmf_markers"]["table"]["adjusted_p"] <= 0.05).all()
    ax = pl.volcano(adata, "k1", ax=Figure().subplots())
    points = np.concatenate([part.get_offsets() for part in ax.collections])
    found = markers(as_fit(adata), counts)
    np.testing.assert_allclose(np.sort(points[:, 0]), np.sort(found.log2_fold_change[:, 1]))
    assert len(ax.texts) > 0


def test_the_strongest_markers_are_significant():
    """The variance of "no effect" is taken near the estimate: far from it means and errors would explode."""
    rng = np.random.default_rng(0)
    depth, group = rng.uniform(0.5, 2.0, size=(300, 1)), np.arange(300) % 3
    rates = rng.gamma(2.0, 0.5, size=(1, 80)) * np.exp(rng.normal(0.0, 0.2, size=(300, 1)))
    rates[(group[:, None] == np.arange(80) // 20) & (np.arange(80) < 60)] *= 8.0
    rates[:, 60:63] = 0.3
    rates[group == 0, 60:63] *= np.array([300.0, 3000.0, 30000.0])
    counts = rng.poisson(depth * rates)
    found = markers(fit_log1p_nmf(counts, 3, random_state=0), counts)
    assert found.z[60:63, np.argmax(found.effect[61])].min() > 5.0


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


def test_factors_fitted_to_noise_do_not_spoil_the_tests_of_others():
    """Six factors for three kinds of samples: markers are those of the kinds."""
    rng = np.random.default_rng(1)
    kind = np.arange(300) % 3
    means = rng.lognormal(0.0, 1.0, 200) * np.where(np.arange(200) // 20 == kind[:, None], 4.0, 1.0)
    counts = draw(means, 0.3, rng)
    fit = fit_log1p_nmf(counts, 6, noise="nb", n_jobs=1)
    with pytest.warns(UserWarning, match="no markers are named"):
        found = markers(fit, counts, n_jobs=1)
    named = found.n_rising > 0
    assert named.sum() == 3
    assert (found.p[60:, named] <= 0.05).mean() < 0.07
    assert (found.adjusted_p[60:] <= 0.05).sum() <= 0.06 * found.n_rising.sum()
    assert np.isinf(found.error[:, found.determined < 0.5]).all()


def test_a_little_of_another_factor_is_no_evidence():
    """Features of a factor rise with another one whose loadings lack what the first has too much."""
    counts, loadings, factors, sizes, kind = simulate(Case("", 1.0), 0)
    loadings[:, 1] -= 0.05 * loadings[:, FACTOR]
    problem = Problem(Counts.from_any(counts), sizes, ShiftedLog(1.0))
    known, around = EstimatedLoadings.known(loadings, len(factors)), stand_ins(loadings, sizes)
    start = regress(problem, np.maximum(loadings, 0.0), factors / problem.link.alpha, 1)
    z = [infer(problem, known, start, around, errors="model", mixed=one).z[:, FACTOR] for one in (0.0, MIXED)]
    assert (z[0][kind == 1] > 1.65).mean() > 0.1
    assert (z[1][kind == 1] > 1.65).mean() < 0.05
    np.testing.assert_array_equal(z[0][kind == FACTOR], z[1][kind == FACTOR])


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


def test_features_of_less_reliable_factors_need_a_larger_z():
    """p stays, and fewer are significant; a reliable factor is tested as it is."""
    fewer = []
    for case in (GOOD, replace(BAD, overdispersion=1.0, correlation=0.5)):
        fit, problem, _, _ = estimated(case)
        found = markers(fit, problem.counts, errors="model", n_jobs=1)
        for k in (1, 2):
            n, plain = (
                (p <= 0.05).sum() for p in (found.adjusted_p[:, k], false_discovery_control(found.p[:, k]))
            )
            assert n < plain if found.reliability[k] < RELIABLE else n == plain > 0
            fewer.append(n < plain)
    assert fewer == [False, False, True, True]
