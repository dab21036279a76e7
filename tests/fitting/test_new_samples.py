"""Loadings of new samples and factors of new features, with the rest of a fit as it is."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from log1pnmf import Fit, Log1pNMF, fit_log1p_nmf
from log1pnmf.counts import Counts, split_counts
from log1pnmf.fitting.new_features import extend_features
from log1pnmf.fitting.new_samples import NewSamples, new_size_factors, of_features, prior_counts, project
from log1pnmf.model.predict import score_parts

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
N, M, K = 300, 60, 4


def simulated(seed=0, depth=1.0, efficiency=1.0):
    rng = np.random.default_rng(seed)
    factors = np.random.default_rng(99).gamma(0.3, 2.0, (M, K)) + 0.05
    loadings = rng.dirichlet(np.full(K, 0.3), N)
    return rng.poisson(depth * efficiency * (loadings @ factors.T)), loadings


@pytest.mark.parametrize(
    ("c", "noise", "depth"), [(1.0, "poisson", 1.0), (math.inf, "poisson", 0.1), (1.0, "nb", 0.1)]
)
def test_no_worse_than_one_factor(c, noise, depth):
    old, new = Counts.from_any(simulated()[0]), Counts.from_any(simulated(1, depth)[0])
    seen, unseen = split_counts(new, 0.2, random_state=0)
    scores = {}
    for k, prior in ((1, None), (K, 0.0), (K, None)):
        fit = fit_log1p_nmf(old, k, c=c, noise=noise, max_iter=100, init="nndsvd")
        samples = NewSamples(fit, seen, new_size_factors(fit, seen), prior=prior)
        loadings, converged = samples.solve()
        assert converged
        rates = replace(fit.rates, loadings=loadings, size_factors=samples.size_factors)
        scores[k, prior] = score_parts(rates, seen, unseen, test_fraction=0.2, background=1e-9).sum()
    assert scores[K, None] > max(scores[1, None], scores[K, 0.0])


def test_the_prior_weighs_less_the_more_counts_there_are():
    fit = fit_log1p_nmf(simulated()[0], K, c=math.inf)
    assert 2.0 < prior_counts(fit) < 8.0  # the Dirichlet law has a precision of 1.2
    y, mean = simulated(1)[0][:30], fit.loadings.mean(axis=0)
    for times in (1, 100):
        free, shrunk = (project(fit, times * y, prior=prior).loadings for prior in (0, 5))
        weight = 5.0 / (times * y.sum(axis=1) + 5.0)
        np.testing.assert_allclose(shrunk, free + weight[:, None] * (mean - free), rtol=1e-9, atol=1e-12)
    assert (project(fit, np.zeros((2, M)), prior=5).loadings == 0.0).all()
    model = Log1pNMF.of(fit)
    np.testing.assert_allclose(model.transform(y)[:1], model.transform(y[:1]), rtol=1e-9)
    with pytest.warns(UserWarning, match="non-integer"):  # what a count is worth is not clear then
        np.testing.assert_array_equal(model.transform(y + 0.5), model.transform(y + 0.5, prior=0))
    with pytest.raises(ValueError, match=r"prior must be .* got -1"):
        model.transform(y, prior=-1)


def test_a_check_that_fails_raises_the_prior_and_is_stated(monkeypatch):
    fit = fit_log1p_nmf(simulated()[0], K, c=math.inf)
    assert "is predicted better than by one factor" in project(fit, simulated(1)[0]).notes[-1]
    alike = np.random.default_rng(2).poisson(0.2 * fit.rates.of_rows(slice(None)).mean(axis=0), (N, M))
    note = project(fit, alike).notes[-1]
    assert "is predicted about as well as by one factor" in note
    assert float(note.split("worth ")[1].split()[0]) > 5.0 * prior_counts(fit)
    monkeypatch.setattr("log1pnmf.fitting.new_samples.PRIOR", 1e-6)
    with pytest.warns(UserWarning, match=r"predicted worse than by one factor.*unlike those of the fit"):
        project(fit, alike)


def test_a_batch_of_its_own():
    rng = np.random.default_rng(5)
    efficiency = np.exp(rng.normal(0.0, 0.7, M))
    old, (new, true) = simulated(0, 5.0)[0], simulated(1, 5.0, efficiency)
    fit = fit_log1p_nmf(old, K, c=math.inf)
    same = project(fit, simulated(1, 5.0)[0]).loadings

    def agreement(loadings):
        return min(np.corrcoef(a, b)[0, 1] for a, b in zip(same.T, loadings.T, strict=True))

    plain, own = project(fit, new), project(fit, new, batch="new platform")
    assert agreement(own.loadings) > max(0.95, agreement(plain.loadings))
    assert np.corrcoef(np.log(own.batches.effects[0]), np.log(efficiency))[0, 1] > 0.9
    few = project(fit, new[:10], batch="new platform")  # too few samples to estimate effects
    assert (few.batches.effects == 1.0).all()
    assert "1 new batch has fewer than 20" in few.notes[0]
    assert len(true) == len(own.loadings)


# ---------- new features

NAMES = np.array([f"g{j}" for j in range(40)], dtype=object)


def counted(noise="poisson"):
    rng = np.random.default_rng(0)
    means = rng.dirichlet(np.full(3, 0.3), 200) @ rng.gamma(0.5, 10.0, (3, 40))
    if noise == "nb":
        means *= rng.gamma(1.0 / 0.3, 0.3, means.shape)
    return replace(Counts.from_any(rng.poisson(means)), feature_names=NAMES)


@pytest.mark.parametrize(
    ("c", "options"),
    [(math.inf, {}), (1.0, {"noise": "nb"}), (math.inf, {"batch": np.arange(200) % 2}), (1.0, {"l1": 2.0})],
)
def test_the_same_as_in_a_fit_of_all(c, options):
    counts = counted(options.get("noise"))
    fit = fit_log1p_nmf(counts, 3, c=c, tol=1e-10, max_iter=200, **options)
    some = of_features(fit, np.arange(40)[::-2].copy())
    found = extend_features(some, counts, n_jobs=1)
    assert found.feature_names.tolist() == NAMES.tolist()
    assert (found.factors[1::2] == fit.factors[1::2]).all()
    tight = 0.02 if options.keys() & {"noise", "batch"} else 1e-3
    np.testing.assert_allclose(found.factors, fit.factors, atol=tight * fit.factors.max())
    if fit.dispersion is not None:
        assert np.median(np.abs(np.log(found.dispersion / fit.dispersion))[::2]) < 0.2
    if fit.batches is not None:
        np.testing.assert_allclose(found.batches.effects, fit.batches.effects, rtol=0.1)
    assert "20 features were fitted, and 20 were added given the loadings" in found.messages[0]
    assert found.log_likelihood is None


def test_what_cannot_be_added():
    counts = counted()
    fit = fit_log1p_nmf(counts, 3, tol=1e-3)
    masked = fit_log1p_nmf(counts, 3, mask=np.arange(40)[None] % 2 == 0, tol=1e-3)
    other = replace(counts, feature_names=np.array(["x", *NAMES[1:]], dtype=object))
    for one, given, message in (
        (masked, counts, "cannot be added to a fit with fixed_factors or a mask"),
        (fit, Counts.from_any(counts.to_scipy()[:5]), "must be of the 200 samples of the fit, got 5"),
        (fit, other, "1 features of the fit are not in the counts"),
    ):
        with pytest.raises(ValueError, match=message):
            extend_features(one, given)
    assert extend_features(fit, counts) is fit
    with pytest.raises(ValueError, match="features must be the 40 of the fit, each once, got 2"):
        extend_features(fit, counts, features=[1, 2])


def test_features_without_names_are_found_by_place():
    """New samples have the loadings that the fitted features give them; files keep which they are."""
    matrix, chosen = counted().to_scipy(), np.arange(40) % 3 > 0
    some = fit_log1p_nmf(matrix[:, chosen], 3, tol=1e-9)
    every = Fit.from_parts(*extend_features(some, matrix, features=chosen).to_parts())
    assert (every.fitted_features == chosen).all()
    found, expected = (project(fit, X).loadings for fit, X in ((every, matrix), (some, matrix[:, chosen])))
    np.testing.assert_allclose(found, expected, atol=1e-3)
    again = extend_features(every, sparse.hstack([matrix, matrix[:, :2]]).tocsr(), features=range(40))
    assert (again.fitted_features == [*chosen, False, False]).all()
