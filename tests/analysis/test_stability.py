"""Several fits of one setting: what is stable, and what factors become in other fits."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis import metrics
from log1pnmf.analysis.stability import Sweep, fit_seeds, fits_along, relate, stability, sweep
from log1pnmf.datasets import pancreas
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


# ---------- fits along c

PATH = [np.inf, 0.1, 1.0]
FAST = {"tol": 1e-5, "n_jobs": 1, "likelihood": "adaptive", "random_state": 0}


@pytest.fixture(scope="module")
def counts():
    return pancreas().counts[:400:2, :500]


@pytest.fixture(scope="module")
def result(counts):
    return sweep(counts, 3, PATH, **FAST)


def test_table_says_what_the_metrics_say(result, counts):
    assert [fit.c for fit in result.fits] == [0.1, 1.0, np.inf]
    np.testing.assert_equal(Sweep.of(result.fits[::-1], counts).table, result.table)
    for i, fit in enumerate(result.fits):
        row = {name: column[i] for name, column in result.table.items()}
        assert row["log_likelihood"] == pytest.approx(metrics.log_likelihood(fit, counts), rel=1e-12)
        assert row["deviance_explained"] == metrics.deviance_explained(fit, counts)
        assert row["factor_correlation"] == metrics.factor_correlation(fit.factors)
        assert row["sparsity_loadings"] == metrics.hoyer(fit.loadings).mean()
        assert row["sparsity_factors"] == metrics.hoyer(fit.factors).mean()
        assert row["n_iter"] == fit.n_iter
        assert row["converged"] == fit.converged


def test_path_goes_up_and_down_from_fit_to_fit_and_the_best_of_both_ways_is_kept(result, counts):
    path = list(fits_along(counts, 3, PATH, **FAST))
    assert [fit.c for fit in path] == [0.1, 1.0, np.inf, 1.0, 0.1]
    for before, fit in pairwise(path[:4]):
        again = Log1pNMF(3, c=fit.c, init=before, **FAST).fit(counts)
        np.testing.assert_array_equal(again.loadings_, fit.loadings)
    best = [max(path[i].log_likelihood, path[-1 - i].log_likelihood) for i in range(3)]
    np.testing.assert_array_equal(result.table["log_likelihood"], best)


def test_a_sweep_has_batches(counts):
    given = {"init": "nndsvd", "tol": 1e-2, "n_jobs": 1}
    found = sweep(counts, 2, [1.0, np.inf], batch=np.arange(counts.shape[0]) % 2, **given)
    assert [fit.batches.n_batches for fit in found.fits] == [2, 2]


@pytest.mark.parametrize(
    ("c", "error", "words"),
    [
        ("1", TypeError, "sequence of numbers"),
        ([], ValueError, "at least one"),
        ([1, 2, 1.0], ValueError, "got 1 twice"),
        ([1, -1], ValueError, "positive or inf"),
    ],
)
def test_bad_paths_are_refused(c, error, words):
    with pytest.raises(error, match=words):
        sweep([[1, 2], [3, 4]], 1, c)
    with pytest.raises(TypeError, match="checkpoint is not an option of the fits of a sweep"):
        sweep([[1, 2], [3, 4]], 1, [1], checkpoint="file")


def test_interrupted_sweep_keeps_what_it_has(counts):
    seen = []

    def interrupt(iteration):
        seen.append(iteration.index)
        if seen.count(0) == 2 and iteration.index == 2:  # in the second fit
            raise KeyboardInterrupt

    with pytest.warns(RuntimeWarning, match="interrupted"):
        result = sweep(counts, 2, [0.1, 1.0, 10.0], tol=1e-3, callbacks=[interrupt])
    assert [fit.c for fit in result.fits] == [0.1, 1.0]
    assert result.table["converged"].tolist() == [True, False]
