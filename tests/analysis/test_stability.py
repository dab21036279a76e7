"""Several fits of one data set: what is stable, and fits along c."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from log1pnmf import Log1pNMF, fit_log1p_nmf
from log1pnmf.analysis import metrics
from log1pnmf.analysis.stability import Sweep, agreement, fits_along, score_with_error, sweep
from log1pnmf.datasets import pancreas
from log1pnmf.model.noise import ShiftedLog

OPTIONS = {"likelihood": "exact", "size_factors": "none", "tol": 1e-6, "max_iter": 500, "n_jobs": 1}


@pytest.fixture(scope="module")
def truth():
    """Counts of three clear parts, and their loadings."""
    rng = np.random.default_rng(0)
    loadings, factors = rng.dirichlet(np.full(3, 0.3), size=120), 3.0 * rng.gamma(0.5, size=(80, 3))
    return rng.poisson(ShiftedLog(1.0).inverse(loadings @ factors.T)), loadings


def scores(counts, n_components, n_seeds, **options):
    fits = [
        fit_log1p_nmf(counts, n_components, init="random", random_state=seed, **options)
        for seed in range(n_seeds)
    ]
    return fits, score_with_error(agreement(fits))[0]


def test_true_factors_are_stable_and_superfluous_ones_are_not(truth):
    _, true = scores(truth[0], 3, 4, **OPTIONS)
    assert true > 0.99
    assert scores(truth[0], 7, 4, **{**OPTIONS, "tol": 1e-5})[1] < true - 0.05
    noise = np.random.default_rng(0).poisson(2.0, size=(100, 60))
    assert scores(noise, 4, 3, **{**OPTIONS, "tol": 1e-4})[1] < 0.8


def test_stability_does_not_see_order_and_scale(truth):
    """A fit whose factors come in another order and scale is the same fit."""
    (fit,), _ = scores(truth[0], 3, 1, **OPTIONS)
    order, scale = [2, 0, 1], np.array([0.1, 5.0, 2.0])
    other = replace(fit, loadings=fit.loadings[:, order] * scale, factors=fit.factors[:, order] / scale)
    np.testing.assert_allclose(agreement([fit, other]), 1.0)


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
