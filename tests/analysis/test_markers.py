"""Markers of models: one order for every list, tables, and what others take from them."""

import warnings
from dataclasses import fields, replace

import anndata
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from log1pnmf import Log1pNMF, as_fit, fit_log1p_nmf, pl, tl
from log1pnmf.analysis import loading_errors
from log1pnmf.analysis.markers import markers
from log1pnmf.fitting.ranking import rank_features
from log1pnmf.model.noise import ShiftedLog

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


def test_every_list_has_the_same_features_in_the_same_order(blocks, tmp_path):
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


def test_anndata(blocks, tmp_path):
    _, counts = blocks
    adata = anndata.AnnData(counts.astype(np.float32))
    adata.layers["counts"] = adata.X.copy()
    adata.var_names = [f"g{j}" for j in range(31)]
    tl.log1p_nmf(adata, 2, likelihood="exact", layer="counts", key_added="programmes", n_jobs=1)
    adata.X = np.log1p(adata.X)
    tl.markers(adata, key="programmes", n_top=None)
    adata.write_h5ad(tmp_path / "a.h5ad")
    back = anndata.read_h5ad(tmp_path / "a.h5ad")
    found = markers(as_fit(adata, key="programmes"), counts)
    table = back.uns["programmes_markers"]["table"]
    np.testing.assert_array_equal(table["z"], found.table()["z"])
    ax = pl.volcano(back, 1, key="programmes", ax=Figure().subplots())
    points = np.concatenate([part.get_offsets() for part in ax.collections])
    np.testing.assert_allclose(np.sort(points[:, 0]), np.sort(found.log2_fold_change[:, 1]))
    with pytest.raises(KeyError, match="log1p_nmf_markers"):
        pl.volcano(back, 1)
    tl.markers(adata, key="programmes")  # as a rule only what rises is kept
    kept = adata.uns["programmes_markers"]["table"]
    assert (kept["adjusted_p"] <= 0.05).all()
    ax = pl.volcano(adata, "k1", key="programmes", ax=Figure().subplots())  # and yet all are drawn
    assert sum(len(part.get_offsets()) for part in ax.collections) == 31
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
