"""Several fits of one setting: what is stable, what they agree on, and what factors become in other fits."""

import math
from dataclasses import replace

import numpy as np
import pytest

from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.analysis.stability import consensus, fit_seeds, relate, stability
from log1pnmf.model.noise import ShiftedLog

OPTIONS = {"likelihood": "exact", "size_factors": "none", "tol": 1e-6, "max_iter": 500, "n_jobs": 1}


@pytest.fixture(scope="module")
def truth():
    """Counts of three clear parts, and their loadings."""
    rng = np.random.default_rng(0)
    loadings, factors = rng.dirichlet(np.full(3, 0.3), size=120), 3.0 * rng.gamma(0.5, size=(80, 3))
    return rng.poisson(ShiftedLog(1.0).inverse(loadings @ factors.T)), loadings


@pytest.fixture(scope="module")
def fits(truth):
    return fit_seeds(truth[0], 3, 4, init="random", **OPTIONS)


def test_seeds_differ_and_can_be_fitted_again(truth, fits):
    assert len({fit.settings.random_state for fit in fits}) == 4
    seed = fits[2].settings.random_state
    again = fit_log1p_nmf(truth[0], 3, init="random", random_state=seed, **OPTIONS)
    np.testing.assert_array_equal(again.loadings, fits[2].loadings)
    objectives = [fit.objective for fit in fits]
    assert objectives == sorted(objectives)


def test_true_factors_are_stable_and_superfluous_ones_are_not(truth, fits):
    found = stability(fits)
    assert found.factors.shape == (3,)
    assert found.score > 0.99
    many = stability(fit_seeds(truth[0], 7, 4, init="random", **{**OPTIONS, "tol": 1e-5}))
    assert many.score < found.score - 0.05
    assert many.factors.min() < 0.9
    noise = np.random.default_rng(0).poisson(2.0, size=(100, 60))
    assert stability(fit_seeds(noise, 4, 3, **{**OPTIONS, "tol": 1e-4})).score < 0.8


def test_stability_does_not_see_order_and_scale(fits):
    """A fit whose factors come in another order and scale is the same fit."""
    order, scale = [2, 0, 1], np.array([0.1, 5.0, 2.0])
    other = replace(
        fits[0], loadings=fits[0].loadings[:, order] * scale, factors=fits[0].factors[:, order] / scale
    )
    for on in ("loadings", "factors"):
        np.testing.assert_allclose(stability([fits[0], other], on=on).similarity, 1.0)


def test_consensus_leaves_out_what_one_fit_found(truth, fits):
    """One fit among three is not a fit at all: the consensus is as good as if it were not there."""
    y = truth[0]
    rng = np.random.default_rng(0)
    spoilt = replace(
        fits[1],
        loadings=rng.uniform(size=fits[1].loadings.shape),
        factors=10.0 * rng.uniform(size=fits[1].factors.shape),
    )
    found = consensus(y, [fits[0], spoilt, fits[2]])
    assert found.objective == pytest.approx(fits[0].objective, rel=1e-5)
    assert match_factors(found.loadings, fits[0].loadings).similarity.min() > 0.999


def test_consensus_recovers_the_truth_from_several_fits(truth, fits):
    found = consensus(truth[0], fits, n_jobs=1)
    assert match_factors(truth[1], found.loadings).similarity.min() > 0.97
    assert found.converged
    same = consensus(truth[0], [fits[0], fits[0]])  # stays there
    assert same.n_iter < 30
    assert match_factors(same.loadings, fits[0].loadings).similarity.min() > 0.9999


def test_relation_finds_the_parts_of_a_factor(truth):
    """A factor whose loadings are the sum of two others is made of these, by their totals."""
    y = truth[0]
    fine = fit_log1p_nmf(y, 3, **OPTIONS)
    together = np.column_stack([fine.loadings[:, 0], fine.loadings[:, 1] + fine.loadings[:, 2]])
    coarse = replace(fine, loadings=together, factors=fine.factors[:, :2])
    found = relate([coarse, fine])
    assert found.splits("c=1 K=2", 0, "c=1 K=3") == [(0, pytest.approx(1.0))]
    totals = fine.loadings.sum(axis=0)
    expected = sorted([(1, totals[1]), (2, totals[2])], key=lambda part: -part[1])
    parts = found.splits("c=1 K=2", 1, "c=1 K=3")
    assert [k for k, _ in parts] == [k for k, _ in expected]
    assert parts[0][1] == pytest.approx(expected[0][1] / (totals[1] + totals[2]))
    table = found.table
    assert len(table["share"]) == 2 * 2 * 3
    assert found.tree.shape == (4, 4)
    assert found.labels[0] == "c=1 K=2: k0"


def test_relation_across_c(truth):
    found = relate([Log1pNMF(3, c=c, **OPTIONS).fit(truth[0]) for c in (0.5, 1.0, math.inf)])
    assert found.names == ("c=0.5 K=3", "c=1 K=3", "c=inf K=3")
    near = found.similarity[np.ix_(found.owner == 0, found.owner == 1)]
    assert near.max(axis=1).min() > 0.95  # neighbours in c have the same factors
    other = found.owner[:, None] != found.owner[None, :]
    for row in range(len(found.owner)):
        assert found.shares[row][other[row]].sum() == pytest.approx(2.0)


def test_the_plot_of_a_relation_has_a_row_for_every_factor(truth):
    figures = pytest.importorskip("matplotlib.figure")
    from log1pnmf import pl

    found = relate([fit_log1p_nmf(truth[0], K, **OPTIONS) for K in (2, 3)])
    assert len(pl.relation(found, figure=figures.Figure()).axes[1].get_yticklabels()) == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y, fits: stability(fits[:1]), "at least two fits"),
        (lambda y, fits: stability([fits[0], Log1pNMF(2, **OPTIONS).fit(y)]), "must be of one setting"),
        (lambda y, fits: consensus(y, [fits[0], Log1pNMF(2, **OPTIONS).fit(y)]), "must be of one setting"),
        (lambda y, fits: relate(fits[:2]), "names must be 2 different ones"),
        (lambda y, fits: relate([fits[0], Log1pNMF(2, **OPTIONS).fit(y[:50])]), "the same counts"),
        (lambda y, fits: stability(fits, on="genes"), "on must be one of 'loadings', 'factors'"),
        (lambda y, fits: fit_seeds(y, 1, init=(y[:, :1], y[:1].T)), "would be the same"),
        (lambda y, fits: relate(fits[:1]).splits("c=2 K=3", 0, "c=1 K=3"), "fits are named"),
    ],
)
def test_refused(truth, fits, call, message):
    with pytest.raises(ValueError, match=message):
        call(truth[0], fits)
    with pytest.raises(TypeError, match="checkpoint is not an option of fits with several seeds"):
        fit_seeds(truth[0], 2, 2, checkpoint="file")
