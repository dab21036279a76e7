"""Fits that find their dispersions, and noise="auto": which noise predicts held-out counts better."""

import math

import numpy as np
import pytest

import log1pnmf as lp
from log1pnmf.analysis import match_factors
from log1pnmf.fitting import fit_counts as noise_choice
from log1pnmf.fitting.fit_counts import asked_again
from log1pnmf.fitting.summary import levelled
from log1pnmf.model.dispersion import update_dispersions
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.problem import Problem

OPTIONS = {"noise": "nb", "tol": 1e-6}
QUICK = {"c": math.inf, "init": "nndsvd", "max_iter": 30, "tol": 1e-5}
pytestmark = pytest.mark.filterwarnings("ignore:not converged")


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
    again, _ = update_dispersions(problem, fit.loadings, fit.factors, kind=kind)
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
    return lp.fit_log1p_nmf(counts, 3, noise=noise, **QUICK, **options)


@pytest.mark.parametrize(("dispersion", "expected"), [(0.0, "poisson"), (0.5, "nb")])
def test_the_data_choose_and_the_fit_is_the_same_as_with_that_noise(dispersion, expected):
    counts = scattered(dispersion)
    fit, named = choosing(counts, "auto"), choosing(counts, expected)
    assert (fit.asked.noise, fit.settings.noise) == ("auto", expected)
    assert (fit.loadings == named.loadings).all()
    assert (fit.factors == named.factors).all()
    assert (fit.dispersion is None) == (expected == "poisson")
    name = {"poisson": "Poisson", "nb": "negative binomial"}[expected]
    assert f"noise='auto' took {name} noise" in lp.Log1pNMF.of(fit).summary()


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
    with pytest.raises(ValueError, match="supports Poisson noise only; with noise='auto'"):
        choosing(scattered(0.5), "auto", likelihood="chebyshev")


@pytest.mark.slow
@pytest.mark.parametrize("c", [1.0, 0.1])
def test_fits_with_dispersions_converge(c):
    rows = np.random.default_rng(0).permutation(1937)[:300]
    counts = lp.datasets.pancreas().counts[rows]
    seen = np.asarray((counts > 0).sum(axis=0)).ravel()
    counts = counts[:, np.sort(np.argsort(-seen, kind="stable")[:300])]
    assert lp.fit_log1p_nmf(counts, 8, c=c, noise="nb", n_jobs=1).converged
