"""Batches: the objective with an effect of every batch on every feature, and the effects that minimise it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from log1pnmf.counts import Counts
from log1pnmf.model.batches import Batches, balanced_effects
from log1pnmf.model.noise import POISSON, NegativeBinomial, ShiftedLog
from log1pnmf.model.objective import entry_loss, exposure_of, negative_log_likelihood
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import quadratic

N, M, K, B = 14, 9, 2, 3


def problem_of(c, *, noise=POISSON, zeros=None):
    rng = np.random.default_rng(1)
    counts = Counts.from_any(rng.poisson(0.8, (N, M)))
    effects = rng.uniform(0.3, 3.0, (B, M))
    batches = Batches(rng.integers(0, B, N), effects, 5.0)
    link = ShiftedLog(c)
    approximate = quadratic(link, zeros) if zeros else None
    return Problem(counts, rng.uniform(0.5, 2.0, N), link, approximate, noise, batches)


def point():
    rng = np.random.default_rng(2)
    return rng.uniform(0.1, 1.0, (N, K)), rng.uniform(0.1, 1.0, (M, K))


CASES = [
    (1.0, POISSON, None),
    (0.1, POISSON, "chebyshev"),
    (math.inf, POISSON, None),
    (1.0, NegativeBinomial(np.linspace(0.0, 0.8, M)), None),
]


@pytest.mark.parametrize(("c", "noise", "zeros"), CASES)
def test_the_objective_is_that_of_counts_with_the_exposure_of_their_batch(c, noise, zeros):
    problem = problem_of(c, noise=noise, zeros=zeros)
    loadings, factors = point()
    y, t = problem.counts.by_row.to_dense(slice(0, N)), exposure_of(problem, slice(0, N))
    effect = problem.batches.effects[problem.batches.labels[4], 5]
    assert t[4, 5] == problem.link.exposure_scale * problem.size_factors[4] * effect
    losses = entry_loss(y, loadings @ factors.T, t, problem.link, problem.zeros, noise=noise)
    offset = 0.0 if zeros is None else problem.zeros.a0m1 * t[y == 0].sum()
    expected = losses.sum() + noise.constant(problem.counts) + offset
    assert negative_log_likelihood(problem, loadings, factors) == pytest.approx(expected, rel=1e-12)


def test_batches_in_another_order_are_the_same_batches():
    problem, order = problem_of(1.0), np.array([2, 0, 1])
    own = problem.batches
    other = Batches(np.argsort(order)[own.labels], own.effects[order], own.strength)
    assert (other.rows(slice(None)) == own.rows(slice(None))).all()
    assert other.cost == pytest.approx(own.cost)
    there = negative_log_likelihood(replace(problem, batches=other), *point())
    assert there == pytest.approx(negative_log_likelihood(problem, *point()), rel=1e-13)


def test_balanced_effects_minimise_with_a_geometric_mean_of_one():
    rng = np.random.default_rng(3)
    seen, expected = rng.gamma(0.5, 100.0, (5, 200)) + 0.1, rng.gamma(0.5, 100.0, (5, 200)) + 0.1

    def cost(effects):
        return (expected * effects - seen * np.log(effects)).sum(axis=0)

    effects = balanced_effects(seen, expected)
    assert np.log(effects).sum(axis=0) == pytest.approx(0.0, abs=1e-12)
    for size in (0.3, 1e-3):
        aside = size * rng.normal(size=effects.shape)
        moved = effects * np.exp(aside - aside.mean(axis=0))
        assert (cost(moved) >= cost(effects) - 1e-12 * np.abs(cost(effects))).all()


def test_effects_cost_nothing_where_there_are_none_and_something_elsewhere():
    none = Batches.of(["a", "b", "a", "b"], (4, 3), strength=7.0)
    assert none.names == ("a", "b")
    assert none.cost == 0.0
    assert replace(none, effects=np.full((2, 3), 2.0)).cost == pytest.approx(7.0 * 6 * (1.0 - math.log(2.0)))


@pytest.mark.parametrize(
    ("labels", "effects", "message"),
    [
        ([0, 3], np.ones((2, 4)), "from 0 to 1"),
        ([0, 1], np.zeros((2, 4)), "positive"),
        ([[0, 1]], np.ones((2, 4)), "label for every sample"),
    ],
)
def test_batches_that_make_no_sense_are_refused(labels, effects, message):
    with pytest.raises(ValueError, match=message):
        Batches(np.array(labels), effects)


def test_features_weigh_by_their_counts_or_by_how_far_these_decide():
    counts = Counts.from_any(np.array([[0, 1, 4000], [0, 1, 4000]]))
    by_counts = Batches.of(["a", "b"], counts.shape, 1.0)
    by_features = Batches.of(["a", "b"], counts.shape, 1.0, by_counts=False)
    np.testing.assert_allclose(by_counts.feature_weights(counts), np.array([0, 2, 8000]) / 8002)
    np.testing.assert_allclose(by_features.feature_weights(counts), [0.0, 1.0 / 3.0, 2.0 / 3.0], atol=1e-3)
