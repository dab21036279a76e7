"""Count splitting: the parts are what the model says they are, and scores are those of the model."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse, stats

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.heldout import heldout_features, heldout_log_likelihood
from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import folds, split_counts, training_size_factors
from log1pnmf.fitting.new_samples import project
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.predict import OUTLIERS

OPTIONS = {"tol": 1e-7, "random_state": 0, "n_jobs": 1, "likelihood": "exact", "max_iter": 400}


def simulated(seed=0, shape=(60, 40), mean=4.0):
    """Counts of samples of different depth in which three parts overlap."""
    rng = np.random.default_rng(seed)
    loadings, factors = rng.uniform(size=(shape[0], 3)), rng.gamma(0.7, size=(shape[1], 3))
    rates = ShiftedLog(0.5).inverse(loadings @ factors.T)
    depth = rng.uniform(0.5, 1.5, size=(shape[0], 1))
    return rng.poisson(mean * depth * rates / rates.mean())


def dense(counts):
    return counts.to_scipy().toarray()


@pytest.mark.parametrize("kind", [np.asarray, sparse.csc_array, sparse.coo_array])
def test_parts_add_up_whatever_the_input_is(kind):
    y = simulated()
    train, test = split_counts(kind(y), 0.3, dispersion=np.zeros(40), random_state=1)
    np.testing.assert_array_equal(dense(train) + dense(test), y)
    again, _ = split_counts(y, 0.3, random_state=1)
    np.testing.assert_array_equal(dense(again), dense(train))
    assert not np.array_equal(dense(split_counts(y, 0.3, random_state=2)[0]), dense(train))


def test_parts_of_poisson_counts_are_independent_poissons():
    rates = np.full((400, 500), 3.0)
    train, test = split_counts(np.random.default_rng(0).poisson(rates), 0.2, random_state=0)
    a, b = dense(train), dense(test)
    for part, mean in ((a, 2.4), (b, 0.6)):
        assert part.mean() == pytest.approx(mean, rel=0.01)
        assert part.var() == pytest.approx(mean, rel=0.02)
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / math.sqrt(a.size)


@pytest.mark.parametrize("phi", [0.2, 1.5, 30.0])
def test_parts_of_negative_binomial_counts_are_independent(phi):
    """With the dispersion known; without it they share the excess."""
    rng, mean, share = np.random.default_rng(0), 3.0, 0.3
    y = rng.poisson(rng.gamma(1.0 / phi, phi * mean, size=(400, 500)))
    a, b = map(dense, split_counts(y, share, dispersion=phi, random_state=0))
    np.testing.assert_array_equal(a + b, y)
    for part, own in ((a, 1 - share), (b, share)):
        expected = own * mean * (1.0 + phi * mean)  # the dispersion of a part is phi / own
        assert abs(part.mean() - own * mean) < 5.0 * math.sqrt(expected / y.size)
        assert part.var() == pytest.approx(expected, rel=0.05 if phi < 10 else 0.2)
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4.5 / math.sqrt(a.size)
    for low in (0, 1, 4):  # not only uncorrelated
        seen = b[a == low].mean(), b[a > low].mean()
        error = math.sqrt(b.var() / min((a == low).sum(), (a > low).sum()))
        assert abs(seen[0] - seen[1]) < 6.0 * error
    thinned = split_counts(y, share, random_state=0)
    assert np.corrcoef(*(dense(part).ravel() for part in thinned))[0, 1] > 0.1


def test_folds_of_negative_binomial_counts_are_independent_of_what_they_are_trained_on():
    phi = np.repeat([0.0, 1.0], 200)
    y = np.random.default_rng(0).poisson(4.0, size=(300, 400))
    y[:, 200:] = np.random.default_rng(1).negative_binomial(1.0, 0.2, size=(300, 200))
    for share in (None, 0.2):
        pairs = folds(y, 3, test_fraction=share, dispersion=phi, random_state=0)
        tested = sum(dense(test) for _, test in pairs)
        assert (tested <= y).all()
        assert (tested.sum() == y.sum()) == (share is None)
        for train, test in pairs:
            np.testing.assert_array_equal(dense(train) + dense(test), y)
            for half in (slice(0, 200), slice(200, 400)):
                a, b = dense(train)[:, half].ravel(), dense(test)[:, half].ravel()
                assert b.mean() == pytest.approx((share or 1 / 3) * 4.0, rel=0.03)
                assert abs(np.corrcoef(a, b)[0, 1]) < 4.5 / math.sqrt(a.size)


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ([[1.0, 2.0], [0.0, 1.5]], {}, "got 1.5 at row 1, column 1 .*round them first"),
        ([[1.0, 2e17]], {}, "whole numbers up to"),
        ([[1, 2]], {"test_fraction": 1.0}, "between 0 and 1, got 1.0"),
        ([[1, 2]], {"test_fraction": 0.0}, "between 0 and 1, got 0.0"),
        ([[1, 2]], {"dispersion": [1.0, -2.0]}, "must be finite and not negative, got -2.0 at position 1"),
    ],
)
def test_refused(counts, options, message):
    with pytest.raises(ValueError, match=message):
        split_counts(counts, **options, random_state=0)


def test_folds_refuse_what_cannot_be_disjoint():
    with pytest.raises(ValueError, match=r"at most 1 / n_folds = 0.333"):
        folds([[1, 2]], 3, test_fraction=0.5)
    with pytest.raises(ValueError, match="leaves nothing to train on"):
        folds([[1, 2]], 1)


@pytest.mark.parametrize("c", [0.05, 3.0, math.inf])
def test_smaller_exposure_is_a_smaller_c(c):
    """Size factors of 1 - eps at c, and the usual ones at (1 - eps) c, are the same model."""
    share = 0.25
    train, test = split_counts(simulated(), share, random_state=0)
    smaller = fit_log1p_nmf(train, 3, c=c, size_factors=training_size_factors(train, share), **OPTIONS)
    scaled = fit_log1p_nmf(train, 3, c=(1 - share) * c, **OPTIONS)
    unscaled = fit_log1p_nmf(train, 3, c=c, **OPTIONS)
    scores = [
        heldout_log_likelihood(fit, train, test, test_fraction=share).sum() for fit in (smaller, scaled)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=0.05)
    etas = [fit.loadings @ fit.factors.T / fit.link.alpha for fit in (smaller, scaled, unscaled)]
    if c < math.inf:  # fold changes are the same; at c itself they are not
        np.testing.assert_allclose(etas[0], etas[1], atol=0.02 * etas[0].max())
        assert np.abs(etas[0] - etas[2]).max() > 0.04 * etas[0].max()


@pytest.mark.parametrize("c", [0.01, 2.0, math.inf])
def test_score_is_the_poisson_log_likelihood(c):
    train, test = split_counts(simulated(), 0.2, random_state=0)
    fit = fit_log1p_nmf(train, 2, c=c, **OPTIONS)
    means = 0.25 * fit.size_factors[:, None] * fit.link.inverse(fit.loadings @ fit.factors.T)
    expected = stats.poisson.logpmf(dense(test), means).sum(axis=1)
    found = heldout_log_likelihood(fit, train, test, test_fraction=0.2, background=0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    seen = dense(train)
    shares = (seen.sum(axis=0) + 0.5) / (seen + 0.5 / len(seen)).sum()
    means = 0.9 * means + 0.1 * 0.25 * np.outer(seen.sum(axis=1) + 0.5, shares)
    expected = stats.poisson.logpmf(dense(test), means).sum()
    found = heldout_log_likelihood(fit, train, test, test_fraction=0.2, background=0.1).sum()
    assert found == pytest.approx(expected, rel=1e-9)


def test_unforeseen_counts_are_costly_and_finite():
    y = simulated()
    y[3] = 0
    y[:, 5] = 0
    train, test = split_counts(y, 0.2, random_state=0)
    fit = fit_log1p_nmf(train, 2, c=1.0, **OPTIONS)
    surprise = dense(test)
    surprise[3, 2] = surprise[4, 5] = surprise[3, 5] = 1  # an empty sample, an empty feature, both
    found = heldout_log_likelihood(fit, train, surprise, test_fraction=0.2, background=0.0)
    assert found.sum() == -math.inf
    before, after = (heldout_log_likelihood(fit, train, part, test_fraction=0.2) for part in (test, surprise))
    assert np.isfinite(after).all()
    np.testing.assert_array_equal(np.delete(after, [3, 4], axis=0), np.delete(before, [3, 4], axis=0))
    assert (after[3:5] < before[3:5] - math.log(1000)).all()


@pytest.fixture
def no_prior(monkeypatch):
    """Held-out samples' loadings by maximum likelihood, as `project` finds them."""
    monkeypatch.setattr("log1pnmf.fitting.new_samples.PRIOR", 0.0)


def mixed(y, means):
    """Log-likelihood of samples where one entry in a thousand scatters by its whole mean."""
    wide = stats.nbinom.logpmf(y, 1.0, 1.0 / (1.0 + means))
    own = stats.poisson.logpmf(y, means)
    return np.logaddexp(np.log1p(-OUTLIERS) + own, np.log(OUTLIERS) + wide).sum(axis=1)


@pytest.mark.parametrize("sizes", ["total", "none"])
@pytest.mark.usefixtures("no_prior")
def test_features_left_out_are_predicted_from_the_others(sizes):
    y = simulated(shape=(90, 40), mean=10.0)
    fit = fit_log1p_nmf(y[:60], 3, c=0.5, size_factors=sizes, **OPTIONS)
    scored = np.array([1, 4, 9, 30])
    given = np.setdiff1d(np.arange(40), scored)
    new_sizes = (
        np.ones(30) if sizes == "none" else y[60:, given].sum(axis=1) / y[:60, given].sum(axis=1).mean()
    )
    # loadings by the model of the given features alone, with its factors as they are
    part = replace(fit, factors=fit.factors[given])
    loadings = project(part, y[60:, given], new_sizes, prior=0, n_jobs=1).loadings
    means = new_sizes[:, None] * fit.link.inverse(loadings @ fit.factors[scored].T)
    options = {"scored": scored, "size_factors": None if sizes == "total" else new_sizes}
    totals = y[:60].sum(axis=0, dtype=float)
    found = heldout_features(fit, totals, Counts.from_any(y[60:]), background=0.0, **options)
    np.testing.assert_allclose(found, mixed(y[60:, scored], means), rtol=1e-8)
    # what the scored features were like in the new samples has no part in the prediction
    other = y[60:].copy()
    other[:, scored] = 0
    changed = heldout_features(fit, totals, Counts.from_any(other), background=0.0, **options)
    np.testing.assert_allclose(changed, mixed(0, means), rtol=1e-8)


def test_one_count_that_is_far_off_does_not_decide():
    """Its cost is that of a count that scatters by its whole mean, and of the thousand that do not."""
    y = simulated(shape=(90, 40), mean=10.0)
    fit = fit_log1p_nmf(y[:60], 3, c=0.5, size_factors="none", **OPTIONS)
    options = {"scored": np.array([1, 4, 9]), "size_factors": np.ones(30)}
    off = y[60:].copy()
    off[0, 4] += 1000
    totals = y[:60].sum(axis=0, dtype=float)
    before, after = (heldout_features(fit, totals, Counts.from_any(new), **options) for new in (y[60:], off))
    assert (before[1:] == after[1:]).all()
    mean = max(y[60, 4], 1.0)
    assert after[0] > before[0] - 3.0 * (1000.0 / mean) - 10.0  # Poisson: 1000 * log(1000 / mean)
