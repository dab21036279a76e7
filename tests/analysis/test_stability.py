"""Several fits of one setting: what is stable, what they agree on, and what factors become in other fits."""

import math

import numpy as np
import pytest
from sklearn.base import clone

from log1pnmf import Log1pNMF
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.analysis.stability import (
    consensus,
    fit_seeds,
    relate,
    stability,
    stability_table,
)
from log1pnmf.model.link import ShiftedLog

OPTIONS = {"likelihood": "exact", "size_factors": "none", "tol": 1e-6, "max_iter": 500, "n_jobs": 1}


@pytest.fixture(scope="module")
def truth():
    """Counts of three clear parts, and their loadings."""
    rng = np.random.default_rng(0)
    loadings, factors = rng.dirichlet(np.full(3, 0.3), size=120), 3.0 * rng.gamma(0.5, size=(80, 3))
    return rng.poisson(ShiftedLog(1.0).inverse(loadings @ factors.T)), loadings


@pytest.fixture(scope="module")
def models(truth):
    return fit_seeds(truth[0], Log1pNMF(3, init="random", **OPTIONS), 4)


def test_seeds_differ_and_can_be_fitted_again(truth, models):
    assert len({model.random_state for model in models}) == 4
    again = clone(models[2]).fit(truth[0])
    np.testing.assert_array_equal(again.loadings_, models[2].loadings_)
    objectives = [model.fit_.objective for model in models]
    assert objectives == sorted(objectives)


def test_true_factors_are_stable_and_superfluous_ones_are_not(truth, models):
    found = stability(models)
    assert found.factors.shape == (3,)
    assert found.score > 0.99
    many = stability(fit_seeds(truth[0], Log1pNMF(7, init="random", **{**OPTIONS, "tol": 1e-5}), 4))
    assert many.score < found.score - 0.05
    assert many.factors.min() < 0.9


def test_stability_does_not_see_order_and_scale(models):
    """A fit whose factors come in another order and scale is the same fit."""
    other = clone(models[0])
    other.__dict__.update(models[0].__dict__)
    order, scale = [2, 0, 1], np.array([0.1, 5.0, 2.0])
    other.loadings_ = models[0].loadings_[:, order] * scale
    other.components_ = models[0].components_[order] / scale[:, None]
    for on in ("loadings", "factors"):
        np.testing.assert_allclose(stability([models[0], other], on=on).similarity, 1.0)


def test_stability_of_noise_is_low():
    """Without any structure, what a fit finds depends on its random numbers."""
    y = np.random.default_rng(0).poisson(2.0, size=(100, 60))
    table = stability_table(y, [Log1pNMF(4, init="random", **{**OPTIONS, "tol": 1e-4})], 3)
    assert table["stability"][0] < 0.8
    assert table["least"][0] <= table["stability"][0] + 0.1
    assert table["spread"][0] >= 0.0
    assert (table["c"][0], table["n_components"][0]) == (1.0, 4)


def test_consensus_leaves_out_what_one_fit_found(truth, models):
    """One fit among three is not a fit at all: the consensus is as good as if it were not there."""
    y = truth[0]
    spoilt = clone(models[1])
    spoilt.__dict__.update(models[1].__dict__)
    rng = np.random.default_rng(0)
    spoilt.loadings_ = rng.uniform(size=models[1].loadings_.shape)
    spoilt.components_ = 10.0 * rng.uniform(size=models[1].components_.shape)
    found = consensus(y, [models[0], spoilt, models[2]])
    assert found.fit_.objective == pytest.approx(models[0].fit_.objective, rel=1e-5)
    assert match_factors(found.loadings_, models[0].loadings_).similarity.min() > 0.999


def test_consensus_recovers_the_truth_from_several_fits(truth, models):
    found = consensus(truth[0], models)
    assert match_factors(truth[1], found.loadings_).similarity.min() > 0.97
    assert found.converged_


def test_consensus_of_equal_fits_stays_there(truth, models):
    found = consensus(truth[0], [models[0], models[0]])
    assert found.n_iter_ < 30
    assert match_factors(found.loadings_, models[0].loadings_).similarity.min() > 0.9999


def test_relation_finds_the_parts_of_a_factor(truth):
    """A factor whose loadings are the sum of two others is made of these, by their totals."""
    y = truth[0]
    fine = Log1pNMF(3, random_state=0, **OPTIONS).fit(y)
    coarse = clone(fine)
    coarse.__dict__.update(fine.__dict__)
    coarse.n_components = 2
    coarse.loadings_ = np.column_stack([fine.loadings_[:, 0], fine.loadings_[:, 1] + fine.loadings_[:, 2]])
    coarse.components_ = fine.components_[:2]
    found = relate([coarse, fine])
    assert found.splits("c=1 K=2", 0, "c=1 K=3") == [(0, pytest.approx(1.0))]
    totals = fine.loadings_.sum(axis=0)
    expected = sorted([(1, totals[1]), (2, totals[2])], key=lambda part: -part[1])
    parts = found.splits("c=1 K=2", 1, "c=1 K=3")
    assert [k for k, _ in parts] == [k for k, _ in expected]
    assert parts[0][1] == pytest.approx(expected[0][1] / (totals[1] + totals[2]))
    table = found.table
    assert len(table["share"]) == 2 * 2 * 3
    assert found.tree.shape == (4, 4)
    assert found.labels[0] == "c=1 K=2: 0"


def test_relation_across_c(truth):
    models = [Log1pNMF(3, c=c, random_state=0, **OPTIONS).fit(truth[0]) for c in (0.5, 1.0, math.inf)]
    found = relate(models)
    assert found.names == ("c=0.5 K=3", "c=1 K=3", "c=inf K=3")
    near = found.similarity[np.ix_(found.owner == 0, found.owner == 1)]
    assert near.max(axis=1).min() > 0.95  # neighbours in c have the same factors
    other = found.owner[:, None] != found.owner[None, :]
    for row in range(len(found.owner)):
        assert found.shares[row][other[row]].sum() == pytest.approx(2.0)


def test_plots_show_what_was_found(truth):
    figures = pytest.importorskip("matplotlib.figure")
    from log1pnmf import pl
    from log1pnmf.analysis.selection import select

    y = truth[0]
    quick = {"size_factors": "none", "n_folds": 2, "n_init": 1, "tol": 1e-4, "random_state": 0, "n_jobs": 1}
    found = select(y, [0.01, 1.0, math.inf], [2, 3, 4], **quick)
    ax = pl.heldout(found, ax=figures.Figure().subplots())
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.01", "1", "∞"]
    star, ring = (points.get_offsets()[0].tolist() for points in ax.collections)
    assert star == [1.0, 1.0]  # c = 1, K = 3
    assert ring == [[0.01, 1.0, math.inf].index(found.one_se.c), [2, 3, 4].index(found.one_se.n_components)]
    assert len(ax.texts) == 8  # every cell but the best says how far below it is
    path = pl.heldout_path(found, "n_components", ax=figures.Figure().subplots())
    line = path.containers[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), found.summary["difference"][found.summary["c"] == 1.0])
    assert path.get_legend_handles_labels()[1][0] == "best"
    drawn = pl.relation(relate([Log1pNMF(K, random_state=0, **OPTIONS).fit(y) for K in (2, 3)]), figure=None)
    assert len(drawn.axes[1].get_yticklabels()) == 5
    from matplotlib import pyplot

    pyplot.close(drawn)
    with pytest.raises(ValueError, match="over must be one of"):
        pl.heldout_path(found, "K")
    with pytest.raises(ValueError, match=r"those that were compared \(0\), got 3"):
        pl.heldout(found, l1=3.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y, models: stability(models[:1]), "at least two fits"),
        (lambda y, models: stability([models[0], Log1pNMF(2, **OPTIONS).fit(y)]), "fits of one setting"),
        (lambda y, models: consensus(y, [models[0], Log1pNMF(2, **OPTIONS).fit(y)]), "fits of one setting"),
        (lambda y, models: relate(models[:2]), "names must be 2 different ones"),
        (lambda y, models: relate([models[0], Log1pNMF(2, **OPTIONS).fit(y[:50])]), "the same counts"),
        (lambda y, models: stability(models, on="genes"), "on must be one of 'loadings', 'factors'"),
        (lambda y, models: fit_seeds(y, Log1pNMF(1, init=(y[:, :1], y[:1].T))), "would be the same"),
        (lambda y, models: relate(models[:1]).splits("c=2 K=3", 0, "c=1 K=3"), "fits are named"),
    ],
)
def test_refused(truth, models, call, message):
    with pytest.raises(ValueError, match=message):
        call(truth[0], models)
