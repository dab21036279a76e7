"""Markers: the regressions, their errors and tests, tables, and what others take from them."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.calibration import NULL, Case, calibrate, from_fit, simulate
from scipy.optimize import minimize
from scipy.special import xlogy

from log1pnmf import Log1pNMF, as_fit, fit_log1p_nmf
from log1pnmf.analysis.markers import Markers, markers
from log1pnmf.analysis.markers.inference import infer, slopes_on_each
from log1pnmf.analysis.markers.regression import FeatureRegressions
from log1pnmf.counts.counts import Counts
from log1pnmf.model.link import ShiftedLog
from log1pnmf.model.problem import Problem

LINKS = [0.01, 1.0, 100.0, np.inf]


def regressions(case, seed=0):
    counts, loadings, factors, sizes = simulate(case, seed)
    problem = Problem(Counts.from_any(counts), sizes, ShiftedLog(case.c))
    return FeatureRegressions(problem, loadings, 1), factors / problem.link.alpha, counts


def loss_of(found, counts, j, b):
    """Loss of one feature in plain words, without what does not depend on its coefficients."""
    link = found.problem.link
    t, eta = link.exposure_scale * found.problem.size_factors, found.loadings @ b
    em = eta if link.is_identity else np.expm1(eta)
    return (t * em - xlogy(counts[:, j], em)).sum()


# ---------------------------------------------------------------- regressions


@pytest.mark.parametrize("c", LINKS)
def test_regressions_are_at_their_maximum(c):
    """A general optimiser with bounds finds no better coefficients, with or without a factor."""
    found, truth, counts = regressions(Case("", c, n_samples=40, n_features=6))
    best = found.solve(truth)
    losses, without = found.terms(best).loss, found.losses_without(1, best, np.arange(6))
    for j in range(6):
        start = np.maximum(truth[j], 1e-3)
        full = minimize(
            lambda b, j=j: loss_of(found, counts, j, b), start, bounds=[(1e-12, None)] * 3, tol=1e-12
        )
        none = minimize(
            lambda b, j=j: loss_of(found, counts, j, np.array([b[0], 0.0, b[1]])),
            start[[0, 2]],
            bounds=[(1e-12, None)] * 2,
            tol=1e-12,
        )
        assert losses[j] == pytest.approx(loss_of(found, counts, j, best[j]), rel=1e-12)
        assert losses[j] <= full.fun + 1e-6
        assert without[j] == pytest.approx(none.fun, abs=1e-3)
        assert without[j] <= none.fun + 1e-6


@pytest.mark.parametrize("c", LINKS)
def test_terms_are_derivatives(c):
    found, truth, counts = regressions(Case("", c, n_samples=30, n_features=5))
    at = truth + 0.1
    terms = found.terms(at)
    step = 1e-5
    for j in range(5):

        def gradient(b, j=j):
            axes = step * np.eye(3)
            return np.array(
                [loss_of(found, counts, j, b + e) - loss_of(found, counts, j, b - e) for e in axes]
            ) / (2 * step)

        np.testing.assert_allclose(terms.gradient[j], gradient(at[j]), rtol=1e-5, atol=1e-4)
        second = np.array([gradient(at[j] + e) - gradient(at[j] - e) for e in 1e-3 * np.eye(3)]) / 2e-3
        np.testing.assert_allclose(terms.information[j], second, rtol=1e-3, atol=1e-3)


def test_scores_agree_between_sparse_and_dense_forms():
    """The identity link, whose zeros are never visited, against sums over all entries."""
    found, truth, counts = regressions(Case("", np.inf, n_samples=50, n_features=8, level=0.5))
    best = found.solve(truth)
    covariance = np.linalg.inv(found.terms(best).information + 1e-8 * np.eye(3))
    scores = found.scores(best, covariance)
    eta = best @ found.loadings.T
    t = found.problem.size_factors
    for j in range(8):
        y = counts[:, j]
        leverage = y / eta[j] ** 2 * np.einsum("ik,kl,il->i", found.loadings, covariance[j], found.loadings)
        slope = (t - y / eta[j]) / np.maximum(1.0 - leverage, 0.05)
        expected = np.einsum("i,ik,il->kl", slope**2, found.loadings, found.loadings)
        np.testing.assert_allclose(scores[j], expected, rtol=1e-9)


def test_a_count_that_no_other_factor_explains():
    """Samples with one factor only: the ratio would be infinite, but one count is not certainty."""
    loadings = np.array([[1.0, 0.0]] * 10 + [[0.0, 1.0]] * 10)
    counts = np.zeros((20, 3))
    counts[0, 0], counts[:10, 1], counts[:, 2] = 1, 8, 3
    problem = Problem(Counts.from_any(counts), np.ones(20), ShiftedLog(np.inf))
    found = FeatureRegressions(problem, loadings, 1)
    best = found.solve(np.full((3, 2), 0.1))
    assert found.losses_without(0, best, np.array([0, 1]))[0] == np.inf
    inference = infer(found, best, errors="model")
    np.testing.assert_allclose(best[:, 0], [0.1, 8.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(inference.z[:, 0], [1.0, np.sqrt(80), np.sqrt(30)], rtol=1e-6)
    np.testing.assert_allclose(inference.difference[2], 0.0, atol=1e-9)
    np.testing.assert_allclose(inference.difference_error[2], np.sqrt(0.6), rtol=1e-6)


def test_chance_zeros_outside_the_factor_do_not_make_a_marker():
    """Few samples without the factor, none with a count: a tiny standard error, but no evidence."""
    loadings = np.ones((520, 2))
    loadings[:20, 1] = 0.0
    counts = np.zeros((520, 1))
    counts[20:45, 0] = 1.0  # rate 0.05: zero counts in 20 samples have probability exp(-1)
    problem = Problem(Counts.from_any(counts), np.ones(520), ShiftedLog(1.0))
    found = FeatureRegressions(problem, loadings, 1)
    inference = infer(found, found.solve(np.full((1, 2), 0.02)), errors="model")
    assert 1.0 < inference.z[0, 1] < 1.6
    assert inference.error[0, 1] < 0.011


# ---------------------------------------------------------------- calibration


@pytest.mark.parametrize("c", [1.0, np.inf])
def test_null_p_values_and_coverage(c):
    """The quick form of benchmarks/calibration.py; docs/markers.md has the whole."""
    found = calibrate(Case("", c), 5)
    for errors in ("model", "sandwich"):
        assert found[errors]["p below 0.05"] < 0.07
        assert found[errors]["KS, one-sided"] > 0.001
        assert 0.92 < min(found[errors]["coverage"]) <= max(found[errors]["coverage"]) < 0.98


@pytest.mark.slow
@pytest.mark.parametrize("c", LINKS)
def test_null_p_values_and_coverage_in_full(c):
    found = calibrate(Case("", c), 50)["model"]
    assert found["KS, one-sided"] > 0.01
    assert 0.93 < min(found["coverage"]) <= max(found["coverage"]) < 0.97


def test_sandwich_repairs_overdispersion():
    found = calibrate(Case("", 1.0, overdispersion=0.5), 4)
    assert found["model"]["p below 0.05"] > 0.1
    assert max(found["model"]["coverage"]) < 0.9
    assert found["sandwich"]["p below 0.05"] < 0.07
    assert min(found["sandwich"]["coverage"]) > 0.92


def test_net_effects_of_noise_on_the_other_half():
    """A factor found in noise has no markers on counts that it has not seen; on its own it has."""
    own, other = (from_fit(3, held_out=held_out)["net effect"] for held_out in (False, True))
    assert own["p below 0.05"] > 0.1
    assert other["p below 0.05"] < 0.08


def test_errors_are_those_of_repeated_experiments():
    """Standard errors equal the spread of estimates over repetitions of the same experiment."""
    link, rng = ShiftedLog(1.0), np.random.default_rng(3)
    _, loadings, factors, sizes = simulate(Case("", 1.0, n_features=1), 0)
    means = np.repeat(sizes[:, None] * link.inverse(loadings @ factors.T), 400, axis=1)
    problem = Problem(Counts.from_any(rng.poisson(means)), sizes, link)
    found = FeatureRegressions(problem, loadings, 1)
    effects = found.solve(np.repeat(factors, 400, axis=0))
    for errors in ("model", "sandwich"):
        stated = infer(found, effects, errors=errors)
        spread = effects[:, :NULL].std(axis=0)
        np.testing.assert_allclose(np.median(stated.error[:, :NULL], axis=0), spread, rtol=0.12)
        contrast = stated.net[:, 1].std()
        np.testing.assert_allclose(np.median(stated.net_error[:, 1]), contrast, rtol=0.12)


# ---------------------------------------------------------------- net effects


def test_net_effect_is_the_slope_of_the_fitted_link():
    found, truth, _ = regressions(Case("", 1.0, n_samples=60, n_features=4))
    effects = found.solve(truth)
    net = infer(found, effects, errors="model").net
    b = found.loadings @ effects.T
    for k in range(3):
        slopes = np.polyfit(found.loadings[:, k], b, 1)[0]
        np.testing.assert_allclose(net[:, k], slopes, rtol=1e-8)


def test_slopes_on_a_constant_loading():
    slopes = slopes_on_each(np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 0.5]]))
    np.testing.assert_allclose(slopes, [[1.0, 0.0], [0.0, 1.0]], atol=1e-12)


# ---------------------------------------------------------------- from models


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
    assert {frozenset(map(int, found.top(k, 20))) for k in range(2)} == {
        frozenset(range(10)),
        frozenset(range(10, 20)),
    }
    shared = set(map(int, found.top(0, 30, by="lower"))) & set(map(int, found.top(1, 30, by="lower")))
    assert shared >= set(range(20, 30))
    assert (found.adjusted_p[30] == 1.0).all()
    assert (found.effect[30] == 0.0).all()
    assert (found.adjusted_p >= found.p).all()
    assert (found.lower <= found.effect).all()
    assert (found.effect <= found.upper).all()
    np.testing.assert_allclose(found.effect[:20], model.components_.T[:20], rtol=0.02, atol=0.02)
    np.testing.assert_allclose(found.fold_change, np.exp(found.effect))
    np.testing.assert_allclose(found.weight, model.components_.T)


def test_markers_do_not_depend_on_the_scale_shown(blocks):
    model, counts = blocks
    other = Log1pNMF(**{**model.get_params(), "normalize": "factor_sum"}).fit(counts)
    np.testing.assert_allclose(other.markers(counts).effect, model.markers(counts).effect, rtol=1e-9)


def test_markers_of_a_fit_and_its_model_are_the_same(blocks):
    model, counts = blocks
    a, b = markers(model, counts), markers(model.fit_, counts)
    np.testing.assert_array_equal(a.z, b.z)


def test_penalised_fits_get_effects_without_penalty(blocks):
    _, counts = blocks
    fit = fit_log1p_nmf(counts, 2, l1=10.0, likelihood="exact", random_state=0, n_jobs=1)
    found = markers(fit, counts, n_jobs=1)
    present = found.weight[:, 1] > 0.0
    assert (found.effect[present, 1] > found.weight[present, 1]).mean() > 0.9
    assert found.effect[:, 1].sum() > 1.02 * found.weight[:, 1].sum()


def test_one_factor_and_identity_link(blocks):
    _, counts = blocks
    found = Log1pNMF(1, c=np.inf, random_state=0, n_jobs=1).fit(counts).markers(counts)
    assert np.isnan(found.distinctiveness).all()
    assert (found.nearest == -1).all()
    assert np.isnan(found.fold_change).all()
    assert "fold_change" not in found.table()
    total = counts.sum(axis=0)
    np.testing.assert_allclose(found.z[:30, 0], np.sqrt(total[:30]), rtol=1e-5)  # error: 1 / sqrt(count)
    assert found.p[30, 0] == 1.0


def test_permuted_features_have_permuted_markers(blocks):
    model, counts = blocks
    order = np.random.default_rng(0).permutation(counts.shape[1])
    fit = model.fit_
    permuted = markers(replace(fit, factors=fit.factors[order]), counts[:, order], n_jobs=1)
    np.testing.assert_allclose(permuted.z, markers(fit, counts, n_jobs=1).z[order], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("errors", ["model", "sandwich"])
def test_factors_that_cannot_be_told_apart(blocks, errors):
    """A factor twice: no effect of either is known, and none is claimed."""
    model, counts = blocks
    fit = model.fit_
    half = fit.factors[:, [0, 1, 1]] * [1.0, 0.5, 0.5]
    found = markers(replace(fit, loadings=fit.loadings[:, [0, 1, 1]], factors=half), counts, errors=errors)
    one = markers(fit, counts, errors=errors)
    assert np.isfinite(found.p).all()
    columns = [k for k in range(3) if np.median(found.error[:30, k]) > 1e3]
    assert len(columns) == 2
    assert found.p[:30, columns].min() > 0.3
    assert one.error[:30].max() < 1.0


def test_bad_input(blocks):
    model, counts = blocks
    with pytest.raises(ValueError, match="errors must be one of 'model', 'sandwich', got 'robust'"):
        model.markers(counts, errors="robust")
    with pytest.raises(ValueError, match="the fit is of 80 samples, got counts of 79"):
        model.markers(counts[1:])
    found = model.markers(counts)
    with pytest.raises(ValueError, match="there are factors 0 to 1, got 2"):
        found.top(2)
    with pytest.raises(ValueError, match="by must be one of"):
        found.top(0, by="p")


# ---------------------------------------------------------------- tables


def test_tables(blocks):
    pandas = pytest.importorskip("pandas")
    model, counts = blocks
    found = markers(model, counts, feature_names=[f"g{j}" for j in range(31)])
    table = pandas.DataFrame(found.table())
    assert len(table) == 62
    row = table[(table.factor == 1) & (table.feature == "g3")].iloc[0]
    assert row.effect == found.effect[3, 1]
    assert row.net_p == found.net_p[3, 1]
    top = pandas.DataFrame(found.table(4))
    assert top.feature.tolist() == found.top(0, 4) + found.top(1, 4)
    again = Markers.from_table(table, c=1.0, errors="model")
    np.testing.assert_array_equal(again.net_lower, found.net_lower)
    with pytest.raises(ValueError, match="all features of every factor"):
        Markers.from_table(top, c=1.0, errors="model")


def test_forms_for_gene_sets(blocks):
    pytest.importorskip("pandas")
    model, counts = blocks
    found = markers(model, counts, feature_names=[f"g{j}" for j in range(31)])
    matrix = found.to_decoupler()
    assert matrix.index.tolist() == ["k0", "k1"]
    assert matrix.loc["k1", "g5"] == found.net_effect[5, 1]
    ranked = found.to_gseapy(0)
    assert ranked.columns.tolist() == ["gene_name", "score"]
    assert (np.diff(ranked.score) <= 0.0).all()
    assert set(ranked.gene_name[:10]) == set(found.top(0, 10, by="net_effect"))
    network = found.to_network(3)
    assert network.columns.tolist() == ["source", "target", "weight"]
    assert network.source.tolist() == ["k0"] * 3 + ["k1"] * 3


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_anndata(blocks, tmp_path, kind):
    anndata = pytest.importorskip("anndata")
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from log1pnmf import pl, tl

    _, counts = blocks
    adata = anndata.AnnData(counts.astype(np.float32))
    adata.layers["counts"] = adata.X.copy()
    adata.var_names = [f"g{j}" for j in range(31)]
    tl.log1p_nmf(adata, 2, likelihood="exact", layer="counts", key_added="programmes", n_jobs=1)
    adata.X = np.log1p(adata.X)
    tl.markers(adata, key="programmes")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Writing zarr v2 data", UserWarning)
        getattr(adata, f"write_{kind}")(tmp_path / "data")
    back = getattr(anndata, f"read_{kind}")(tmp_path / "data")
    found = markers(as_fit(adata, key="programmes"), counts)
    table = back.uns["programmes_markers"]["table"]
    np.testing.assert_array_equal(table["z"], found.z.T.ravel())
    ax = pl.volcano(back, 1, key="programmes", ax=Figure().subplots())
    points = np.concatenate([part.get_offsets() for part in ax.collections])
    np.testing.assert_allclose(np.sort(points[:, 0]), np.sort(found.net_effect[:, 1]))
    with pytest.raises(KeyError, match="log1p_nmf_markers"):
        pl.volcano(back, 1)


# ---------------------------------------------------------------- real data


@pytest.mark.slow
def test_mcf7_markers_are_differentially_expressed():
    pytest.importorskip("anndata")
    from benchmarks.calibration import mcf7
    from benchmarks.data import DATA

    if not (DATA / "mcf7_bulk.h5ad").exists():
        pytest.skip("no MCF-7 data here")
    for row in mcf7((10.0,)):
        assert row["net_lower"] >= 0.9
        assert row["lower"] >= 0.9
        assert row["significant, net"] < 0.5 * row["significant"]
