"""Fits along c."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from log1pnmf import Log1pNMF
from log1pnmf.analysis import metrics
from log1pnmf.analysis.stability import Sweep, fits_along, sweep
from log1pnmf.datasets import pancreas

PATH = [np.inf, 0.1, 1.0]
FAST = {"tol": 1e-5, "n_jobs": 1, "likelihood": "adaptive", "random_state": 0}
COLUMNS = ["c", "log_likelihood", "deviance_explained", "factor_correlation", "sparsity_loadings"]
COLUMNS += ["sparsity_factors", "n_iter", "converged", "seconds"]


@pytest.fixture(scope="module")
def counts():
    return pancreas().counts[:400:2, :500]


@pytest.fixture(scope="module")
def result(counts):
    return sweep(counts, 3, PATH, **FAST)


def test_table_says_what_the_metrics_say(result, counts):
    assert [fit.c for fit in result.fits] == [0.1, 1.0, np.inf]
    assert list(result.table) == COLUMNS
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


def test_fits_in_any_order_make_the_same_table(result, counts):
    again = Sweep.of(result.fits[::-1], counts)
    assert again.fits == result.fits
    np.testing.assert_equal(again.table, result.table)


def test_names_of_features_are_kept():
    frame = pd.DataFrame([[4, 0, 2], [3, 1, 2], [0, 5, 2]], columns=["a", "b", "c"])
    for fit in sweep(frame, 1, [1, np.inf], tol=1e-3).fits:
        assert fit.feature_names.tolist() == ["a", "b", "c"]
        assert Log1pNMF.of(fit).transform(frame[["c", "a", "b"]]).shape == (3, 1)


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
