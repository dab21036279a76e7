"""Fits with negative binomial noise: what everybody who holds one knows of it."""

import math
from dataclasses import replace

import anndata
import numpy as np
import pytest
from scipy import stats

import log1pnmf as lp
from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis import deviance_explained, log_likelihood, match_factors
from log1pnmf.analysis.heldout import heldout_features, heldout_log_likelihood
from log1pnmf.cli.exchange import read_r_list, write_r_list
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import split_counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.fitting import fit_counts as noise_choice
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.fit_counts import asked_again
from log1pnmf.fitting.new_samples import project, score
from log1pnmf.fitting.summary import levelled
from log1pnmf.model.dispersion import update_dispersions
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.predict import OUTLIERS
from log1pnmf.model.problem import Problem

PHI = np.array([0.0, 0.2, 0.5, 1.0, 3.0, 0.1])
pytestmark = pytest.mark.filterwarnings("ignore:not converged")
QUICK = {"max_iter": 30, "tol": 1e-5}


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(0)
    means = rng.gamma(1.0, size=(24, 2)) @ rng.gamma(1.0, 3.0, size=(2, 6))
    varied = np.maximum(PHI, 1e-9)
    return rng.poisson(means * rng.gamma(1.0 / varied, varied, size=means.shape))


@pytest.fixture(scope="module", params=[1.0, math.inf])
def fit(request, counts):
    return lp.fit_log1p_nmf(counts, 2, c=request.param, noise="nb", dispersion=PHI, **QUICK)


def log_pmf(y, mean, phi):
    r = 1.0 / np.maximum(phi, 1e-12)
    return np.where(phi == 0, stats.poisson.logpmf(y, mean), stats.nbinom.logpmf(y, r, r / (r + mean)))


def fitted_means(fit):
    return fit.size_factors[:, None] * fit.link.inverse(fit.loadings @ fit.factors.T)


def test_the_fit_knows_its_noise(counts, fit):
    np.testing.assert_array_equal(fit.dispersion, PHI)
    assert (fit.settings.noise, fit.settings.dispersion, fit.settings.likelihood) == ("nb", "given", "exact")
    expected = log_pmf(counts, fitted_means(fit), PHI).sum()
    assert fit.log_likelihood == pytest.approx(expected, rel=1e-10)
    assert log_likelihood(fit, counts) == pytest.approx(expected, rel=1e-10)
    assert np.diff(fit.history["objective"]).max() <= 0.0
    assert "noise           negative binomial, dispersion given: 0.35" in lp.Log1pNMF.of(fit).summary()


def test_zero_dispersions_are_the_poisson_fit(counts):
    options = {"likelihood": "exact", "init": "nndsvd", "max_iter": 1000, "tol": 1e-12}
    poisson = lp.fit_log1p_nmf(counts, 2, c=1.0, **options)
    none = lp.fit_log1p_nmf(counts, 2, c=1.0, noise="nb", dispersion=0.0, **options)
    assert none.objective == pytest.approx(poisson.objective, rel=1e-10)
    np.testing.assert_allclose(none.loadings, poisson.loadings, atol=1e-4)


def test_deviance_explained_is_that_of_the_noise(counts, fit):
    def deviance(means):
        at_itself = np.where(counts > 0, log_pmf(counts, np.maximum(counts, 1e-300), PHI), 0.0)
        return (at_itself - log_pmf(counts, means, PHI)).sum()

    null = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    expected = 1.0 - deviance(fitted_means(fit)) / deviance(null)
    assert deviance_explained(fit, counts) == pytest.approx(expected, rel=1e-8)


def test_new_samples_are_held_against_the_noise(counts, fit):
    new = np.random.default_rng(1).poisson(counts[:5] + 1)
    loadings = project(fit, new, "none", prior=0).loadings
    means = fit.link.inverse(loadings @ fit.factors.T)
    expected = log_pmf(new, means, PHI)
    assert score(fit, new, "none") == pytest.approx(expected.mean(), rel=1e-9)
    for k in range(2):  # the best there is, for this noise
        for step in (0.99, 1.01):
            moved = loadings * np.where(np.arange(2) == k, step, 1.0)
            worse = log_pmf(new, fit.link.inverse(moved @ fit.factors.T), PHI)
            assert (worse.sum(axis=1) <= expected.sum(axis=1) + 1e-9).all()
    poisson = lp.fit_log1p_nmf(counts, 2, c=fit.c, init=fit)
    as_poisson = np.abs(project(poisson, new, "none", prior=0).loadings - loadings)
    assert as_poisson.max() > 1e-3


def test_features_without_factors_keep_the_dispersions_of_the_others(counts):
    y, used, options = counts.copy(), np.delete(np.arange(6), 1), {"c": math.inf, "noise": "nb", "tol": 1e-5}
    y[:, 1] = 0
    fit = lp.fit_log1p_nmf(y, 1, dispersion=PHI, **options)
    alone = lp.fit_log1p_nmf(y[:, used], 1, dispersion=PHI[used], **options)
    np.testing.assert_allclose(project(fit, y).loadings, project(alone, y[:, used]).loadings, rtol=1e-4)


def test_features_left_out_are_predicted_with_the_noise_of_the_others(counts, fit, monkeypatch):
    monkeypatch.setattr("log1pnmf.fitting.new_samples.PRIOR", 0.0)  # the most likely loadings
    scored, given = np.array([1, 4]), np.array([0, 2, 3, 5])
    options = {"scored": scored, "size_factors": np.ones(5), "background": 0.0}
    totals = counts.sum(axis=0, dtype=float)
    found = heldout_features(fit, totals, Counts.from_any(counts[:5]), **options)
    part = replace(fit, factors=fit.factors[given], dispersion=PHI[given])
    means = fit.link.inverse(project(part, counts[:5][:, given], np.ones(5)).loadings @ fit.factors[scored].T)
    wider = np.maximum(PHI[scored], 1.0)
    own, wide = (log_pmf(counts[:5][:, scored], means, phi) for phi in (PHI[scored], wider))
    expected = np.logaddexp(np.log1p(-OUTLIERS) + own, np.log(OUTLIERS) + wide).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_a_test_part_is_scored_given_its_training_part(counts, fit):
    """Both together are as likely as the whole count, split at random."""
    share = 0.3
    train, test = (part.to_scipy().toarray() for part in split_counts(counts, share, random_state=0))
    means = fitted_means(fit)  # of the training part
    found = heldout_log_likelihood(fit, train, test, test_fraction=share, background=0.0)
    whole = log_pmf(counts, means / (1.0 - share), PHI) + stats.binom.logpmf(test, counts, share)
    np.testing.assert_allclose(found, (whole - log_pmf(train, means, PHI)).sum(axis=1), rtol=1e-8)
    assert np.isfinite(heldout_log_likelihood(fit, train, test + 1, test_fraction=share)).all()


def test_forged_dispersions_are_refused(counts, fit):
    arrays, metadata = fit.to_parts()
    poisson, about = lp.fit_log1p_nmf(counts, 2, init="rank1").to_parts()
    for own, dispersion, others, message in (
        (arrays, -PHI, metadata, "dispersion must be"),
        (arrays, PHI[1:], metadata, "dispersion must be"),
        (poisson, PHI, about, "settings must go with the other parts"),
    ):
        with pytest.raises(ValueError, match=message):
            Fit.from_parts({**own, "dispersion": dispersion}, others)
    del arrays["dispersion"]
    with pytest.raises(ValueError, match="must have dispersion"):
        Fit.from_parts(arrays, metadata)


def test_anndata_keeps_it(counts, tmp_path):
    adata = anndata.AnnData(counts.astype(np.float32))
    mask = np.array([True, True, False, True, True, True])
    lp.tl.log1p_nmf(adata, 2, noise="nb", dispersion=PHI[mask], mask_var=mask, tol=1e-3)
    column = adata.var["log1p_nmf_dispersion"].to_numpy()
    np.testing.assert_array_equal(column[mask], PHI[mask])
    assert np.isnan(column[2])
    adata.write_h5ad(tmp_path / "a.h5ad")
    for one in (adata, anndata.read_h5ad(tmp_path / "a.h5ad"), adata[:, ::-1].copy()):
        fit = lp.as_fit(one)
        np.testing.assert_array_equal(fit.dispersion, PHI[mask])
        assert fit.asked.noise == "nb"
    lp.tl.log1p_nmf(adata, 2)
    assert "log1p_nmf_dispersion" not in adata.var
    assert lp.as_fit(adata).dispersion is None


def test_files_and_r_lists_keep_it(counts, fit, tmp_path):
    fit.save(tmp_path / "fit.npz")
    model = lp.Log1pNMF.load(tmp_path / "fit.npz")
    assert (model.noise, model.dispersion.tolist()) == ("nb", PHI.tolist())
    write_r_list(fit, tmp_path / "r", counts=counts)
    again = read_r_list(tmp_path / "r")
    np.testing.assert_array_equal(again["dispersion"], PHI)
    same = lp.fit_log1p_nmf(**again, likelihood="exact", callbacks=[lambda _: True])
    assert same.log_likelihood == pytest.approx(fit.log_likelihood, rel=1e-10)
    write_r_list(lp.fit_log1p_nmf(counts, 1), tmp_path / "other")
    assert "dispersion" not in read_r_list(tmp_path / "other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "negative"}, "noise must be one of 'poisson', 'nb', 'auto', got 'negative'"),
        ({"dispersion": PHI}, "dispersion is used by noise='nb' only"),
        ({"noise": "nb", "dispersion": "features"}, "dispersion must be one of .* did you mean 'feature'"),
        ({"noise": "nb", "dispersion": PHI[1:]}, "one for each of the 6 features; got shape"),
        ({"noise": "nb", "dispersion": -PHI}, "dispersion must be finite and not negative, got -0.2 at"),
        ({"noise": "nb", "dispersion": ["a"] * 6}, "dispersion must be numbers"),
        ({"noise": "nb", "likelihood": "chebyshev"}, "likelihood='chebyshev' supports noise='poisson' only"),
        ({"noise": "nb", "row_solver": "coordinate"}, "row_solver must be 'newton' unless noise='poisson'"),
        ({"likelihood": "adaptive", "row_solver": "coordinate"}, "needs row_solver='newton'"),
    ],
)
def test_refusals(counts, options, message):
    with pytest.raises(ValueError, match=message):
        lp.fit_log1p_nmf(counts, 2, **options)


# ---------- starts far below the counts: no leap to means from which no step leads back


@pytest.mark.parametrize("engine", ["native", pytest.param("torch", marks=pytest.mark.gpu)])
def test_a_start_far_below_the_counts_ends_where_a_near_one_does(engine):
    rng = np.random.default_rng(0)
    loadings, factors = rng.uniform(0.2, 1.0, (60, 2)), rng.gamma(1.0, 1.0, (8, 2))
    factors[0] = 8.0, 6.0
    counts = rng.negative_binomial(2, 2.0 / (2.0 + np.expm1(loadings @ factors.T)))
    options = {
        "noise": "nb",
        "dispersion": 0.5,
        "size_factors": "none",
        "likelihood": "exact",
        "engine": engine,
    }
    near, far = (
        fit_log1p_nmf(counts, 2, init=(loadings, scale * factors), **options) for scale in (1.0, 0.01)
    )
    assert far.converged
    assert far.objective == pytest.approx(near.objective, rel=1e-5)


OPTIONS = {"noise": "nb", "tol": 1e-6}
CHOOSING = {"c": math.inf, "init": "nndsvd", "max_iter": 30, "tol": 1e-5}


@pytest.fixture(scope="module")
def drawn():
    return lp.simulate.simulate(40, 30, 3, c=1.0, density=0.4, dispersion=0.5, random_state=0)


@pytest.fixture(scope="module")
def fits(drawn):
    return {
        (kind, c): lp.fit_log1p_nmf(drawn.counts, 2, c=c, dispersion=kind, **OPTIONS)
        for kind in ("feature", "shared")
        for c in (1.0, math.inf)
    }


@pytest.mark.parametrize("kind", ["feature", "shared"])
@pytest.mark.parametrize("c", [1.0, math.inf])
def test_a_fit_finds_its_dispersions(drawn, fits, kind, c):
    fit = fits[kind, c]
    assert fit.converged
    assert (fit.settings.dispersion, fit.asked.dispersion) == (kind, kind)
    assert 0.3 < np.median(fit.dispersion) < 0.8
    assert (len(np.unique(fit.dispersion)) == 1) == (kind == "shared")
    assert fit.log_likelihood > lp.fit_log1p_nmf(drawn.counts, 2, c=c).log_likelihood + 50.0


@pytest.mark.parametrize("kind", ["feature", "shared"])
@pytest.mark.parametrize("c", [1.0, math.inf])
def test_the_objective_falls_between_updates_and_what_dispersions_gain_is_a_gain(fits, kind, c):
    """Log-likelihood that is gained where dispersions are updated stays, what the prior changes does not."""
    history = fits[kind, c].history
    change, looked = np.diff(history["objective"]), np.isnan(history["relative_change"][1:])
    assert looked.sum() > 1
    assert (change[~looked] <= 0.0).all()
    np.testing.assert_array_equal(np.diff(history["iteration"])[looked], 0)  # the same point, looked at again
    assert change[looked].min() < -10.0  # with the first dispersions
    rows, objective = levelled(history)
    assert (np.diff(objective) <= 1e-9 * np.abs(objective[1:])).all()
    iterations, renewals = -np.diff(history["objective"])[~looked], -np.diff(history["loss"])[looked]
    gain = iterations.sum() + renewals[renewals > 0.0].sum()
    assert objective[0] - objective[-1] == pytest.approx(gain)
    assert gain > iterations.sum() + 1.0 or kind == "shared"
    assert objective[-1] == history["objective"][-1]
    assert rows.sum() == len(objective)


@pytest.mark.parametrize("kind", ["feature", "shared"])
def test_dispersions_and_factors_belong_together_in_the_end(drawn, fits, kind):
    """Dispersions that are found for the final factors, from nothing, are those of the fit."""
    fit = fits[kind, 1.0]
    counts = lp.counts.Counts.from_any(drawn.counts)
    problem = Problem(counts, fit.size_factors, ShiftedLog(1.0))
    means = NativeEngine(problem).mean_spectrum(fit.loadings, fit.factors)
    again, _ = update_dispersions(counts, fit.factors, means, kind=kind)
    np.testing.assert_allclose(again.dispersion, fit.dispersion, rtol=0.1)


def test_a_fit_that_is_stopped_early_says_with_what_it_was_fitted(drawn):
    fit = lp.fit_log1p_nmf(drawn.counts, 2, callbacks=[lambda iteration: iteration.index == 2], **OPTIONS)
    assert fit.stopped == "callback"
    np.testing.assert_allclose(fit.dispersion, np.full(30, 0.3), rtol=1e-12)


def test_a_fit_goes_on_with_the_dispersions_of_another(drawn, fits):
    before = fits["feature", 1.0]
    again = lp.fit_log1p_nmf(drawn.counts, 2, init=before, **OPTIONS)
    assert again.n_iter < before.n_iter
    assert again.log_likelihood == pytest.approx(before.log_likelihood, abs=1.0)
    np.testing.assert_allclose(again.dispersion, before.dispersion, rtol=0.1)


@pytest.mark.parametrize("init", ["nndsvd", "auto"])
def test_dispersions_and_zeros_do_not_follow_each_other_for_ever(init):
    rng = np.random.default_rng(0)
    loadings, factors = rng.gamma(0.5, 0.7, (150, 3)), rng.gamma(0.5, 0.7, (120, 3))
    counts = rng.poisson(np.minimum(np.expm1(loadings @ factors.T), 200.0))
    options = {"noise": "nb", "tol": 1e-8, "init": init}
    adaptive, exact = (
        lp.fit_log1p_nmf(counts, 3, likelihood=kind, **options) for kind in ("adaptive", "exact")
    )
    assert adaptive.stopped == exact.stopped == "converged"
    assert adaptive.log_likelihood == pytest.approx(exact.log_likelihood, rel=2e-4)


@pytest.mark.parametrize("c", [1.0, math.inf])
def test_few_features_with_most_counts_do_not_rule_the_factors(c):
    """With Poisson noise factors follow the scatter of the largest counts, and with it they do not."""
    rng, link = np.random.default_rng(0), ShiftedLog(c)
    loadings = rng.dirichlet([0.4, 0.4], size=50)
    alone = np.concatenate([rng.gamma(1.0, 3.0, size=(20, 2)), np.full((2, 2), 200.0)])
    rates = link.inverse(loadings @ link.link(alone).T)
    y = rng.poisson(rates * rng.gamma(2.0, 0.5, size=rates.shape))
    similar = {
        noise: float(match_factors(fit.loadings, loadings).similarity.mean())
        for noise in ("poisson", "nb")
        for fit in [lp.fit_log1p_nmf(y, 2, c=c, noise=noise, size_factors="none", tol=1e-5)]
    }
    assert similar["nb"] > 0.75
    assert similar["poisson"] < 0.3


# ---------- noise="auto"


def scattered(dispersion, seed=0):
    rng = np.random.default_rng(seed)
    means = 3.0 * rng.dirichlet(np.full(3, 0.3), 60) @ rng.gamma(1.0, 2.0, (3, 40))
    if dispersion:
        means = means * rng.gamma(1.0 / dispersion, dispersion, means.shape)
    return rng.poisson(means)


def choosing(counts, noise, **options):
    return lp.fit_log1p_nmf(counts, 3, noise=noise, **CHOOSING, **options)


@pytest.mark.parametrize(("dispersion", "expected"), [(0.0, "poisson"), (0.5, "nb")])
def test_the_data_choose_and_the_fit_is_the_same_as_with_that_noise(dispersion, expected):
    counts = scattered(dispersion)
    fit, named = choosing(counts, "auto"), choosing(counts, expected)
    assert (fit.asked.noise, fit.settings.noise) == ("auto", expected)
    assert (fit.loadings == named.loadings).all()
    assert (fit.factors == named.factors).all()
    assert (fit.dispersion is None) == (expected == "poisson")
    name = {"poisson": "Poisson", "nb": "negative binomial"}[expected]
    assert f"noise='auto' chose {name} noise" in lp.Log1pNMF.of(fit).summary()


def test_poisson_counts_are_hardly_ever_called_overdispersed():
    took = [choosing(scattered(0.0, seed), "auto").settings.noise for seed in range(1, 5)]
    assert took.count("poisson") >= 3


def test_it_is_kept_in_files_and_not_asked_again_where_a_fit_is_repeated(tmp_path):
    fit = choosing(scattered(0.5), "auto", dispersion="shared")
    fit.save(tmp_path / "fit.npz")
    again = lp.Fit.load(tmp_path / "fit.npz")
    assert (again.asked.noise, again.settings.noise, again.messages) == ("auto", "nb", fit.messages)
    assert asked_again(again)[0].noise == "nb"
    assert len(np.unique(fit.dispersion)) == 1
    poisson = choosing(scattered(0.0), "auto", dispersion="shared")
    assert asked_again(poisson)[0].noise == "poisson"


def test_some_samples_of_many_are_enough(monkeypatch):
    monkeypatch.setattr(noise_choice, "FEWEST_SAMPLES", 30)
    monkeypatch.setattr(noise_choice, "MOST_ENTRIES", 1)
    batch, sizes = np.repeat(["a", "b"], 30), np.linspace(0.5, 1.5, 60)
    fit = choosing(scattered(0.5), "auto", batch=batch, size_factors=sizes, l1=1.0)
    assert "held-out counts of 30 samples" in fit.messages[0]
    assert fit.settings.noise == "nb"


def test_counts_in_chunks():
    fit = choosing(lp.open_counts(scattered(0.5)), "auto")
    assert (fit.settings.engine, fit.settings.noise) == ("streaming", "nb")


def test_what_cannot_be_chosen_is_refused():
    with pytest.raises(ValueError, match="use noise='nb' to give one"):
        choosing(scattered(0.5), "auto", dispersion=0.3)
    with pytest.raises(ValueError, match="whole numbers"), pytest.warns(UserWarning, match="counts"):
        choosing(scattered(0.5) * 0.5, "auto")
    with pytest.raises(ValueError, match="supports noise='poisson' only; with noise='auto'"):
        choosing(scattered(0.5), "auto", likelihood="chebyshev")


@pytest.mark.slow
@pytest.mark.parametrize("c", [1.0, 0.1])
def test_fits_with_dispersions_converge(c):
    rows = np.random.default_rng(0).permutation(1937)[:300]
    counts = lp.datasets.pancreas().counts[rows]
    seen = np.asarray((counts > 0).sum(axis=0)).ravel()
    counts = counts[:, np.sort(np.argsort(-seen, kind="stable")[:300])]
    assert lp.fit_log1p_nmf(counts, 8, c=c, noise="nb", n_jobs=1).converged
