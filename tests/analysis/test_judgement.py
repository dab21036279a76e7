"""What the data say about K and c: one judgement, also when they do not decide."""

import math

import numpy as np
import pytest

from log1pnmf.analysis import Setting, select
from log1pnmf.analysis.selection import judge


def table(rows, stability=None):
    """Columns of a summary; rows are (c, K, difference, standard error of it)."""
    c, numbers, difference, error = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    columns = {"c": c, "n_components": numbers, "l1": np.zeros(len(c)), "noise": ["poisson"] * len(c)}
    columns |= {"difference": difference, "se_difference": error}
    if stability is not None:
        columns |= {"stability": np.array(stability), "se_stability": np.full(len(c), 0.01)}
    return columns


CLEAR = [(1.0, 2, -90.0, 9.0), (1.0, 3, 0.0, 0.0), (1.0, 4, -40.0, 8.0)]


def test_a_clear_answer_is_given_with_its_reason():
    found = judge(table(CLEAR, [0.7, 0.99, 0.8]))
    assert found.setting == Setting(1.0, 3)
    assert found.clear
    assert "K = 4 is 5.0 standard errors behind" in found.reasons[0]
    assert "find the same factors (stability 0.99)" in found.reasons[1]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(1.0, 2, -90.0, 9.0), (1.0, 3, 0.0, 0.0)], "K = 3 predicts best, the largest tried: try larger"),
        ([(1.0, 2, 0.0, 0.0), (1.0, 3, -90.0, 9.0)], "K = 2 predicts best, the smallest tried: try smaller"),
        ([(0.1, 3, 0.0, 0.0), (1.0, 3, -90.0, 9.0)], "c = 0.1 predicts best, the smallest tried"),
        ([(0.1, 3, -90.0, 9.0), (1.0, 3, 0.0, 0.0)], "c = 1 predicts best, the largest tried"),
    ],
)
def test_the_best_at_the_end_of_the_grid_is_no_answer(rows, words):
    found = judge(table(rows))
    assert (found.setting, found.clear) == (None, False)
    assert found.headline.startswith("The data do not decide")
    assert words in found.reasons[0]
    overdispersed = "compare noise='nb'"  # splits of such counts want ever more factors, and a small c
    assert (overdispersed in found.reasons[0]) == ("K = 3" in words or "c = 0.1" in words)
    assert overdispersed not in judge(table(rows), holdout="samples").reasons[0]


def test_where_prediction_keeps_growing_stability_and_size_are_named():
    rows = table([(1.0, 2, -90.0, 9.0), (1.0, 3, -40.0, 8.0), (1.0, 4, 0.0, 0.0)], [1.0, 0.95, 0.6])
    rows["smallest_share"] = np.array([0.4, 0.2, 0.012])
    reason = judge(rows).reasons[0]
    assert (
        "K = 3 has stability 0.95, and its smallest factor carries 20.0% of the signal; K = 4 has" in reason
    )
    assert "stability 0.60, and its smallest factor carries 1.2%" in reason
    assert "n_seeds=3 measures it" in judge(rows | {"stability": np.full(3, np.nan)}).reasons[0]


def test_an_end_of_what_is_possible_is_an_answer():
    """There are no fewer factors than one, and there is no larger c than inf."""
    assert judge(table([(1.0, 1, 0.0, 0.0), (1.0, 2, -90.0, 9.0)])).clear
    assert judge(table([(1.0, 3, -90.0, 9.0), (math.inf, 3, 0.0, 0.0)])).clear


def test_settings_within_error_of_each_other_are_not_told_apart():
    rows = [(1.0, 2, -90.0, 9.0), (1.0, 3, -4.0, 5.0), (1.0, 4, 0.0, 0.0), (1.0, 5, -30.0, 6.0)]
    found = judge(table(rows))
    assert (found.setting, found.clear) == (Setting(1.0, 3), False)  # the simplest
    assert "do not decide which K is best" in found.headline
    assert "K = 3 and 4 predict held-out counts equally well" in found.reasons[0]
    at_the_end = judge(table(rows[1:3]), holdout="samples")
    assert "held-out samples equally well" in at_the_end.reasons[0]
    assert at_the_end.reasons[0].endswith("; 4 is the largest tried.")


def test_fewer_factors_that_are_clearly_more_stable_contradict():
    found = judge(table(CLEAR, [0.97, 0.6, 0.5]))
    assert found.setting is None
    assert "contradict" in found.headline
    assert "stability 0.60 at K = 3, 0.97 at K = 2" in found.reasons[-1]
    hardly = judge(table(CLEAR, [0.69, 0.6, 0.5]))  # within the error of stability
    assert hardly.setting == Setting(1.0, 3)
    assert "Some factors change with the seed" in hardly.reasons[-1]


QUICK = {"n_folds": 2, "n_starts": 1, "n_seeds": 3, "tol": 1e-4, "size_factors": "none", "n_jobs": 1}


@pytest.fixture(scope="module")
def counts():
    """Three groups of samples, each with features of its own."""
    rng = np.random.default_rng(0)
    rates = np.full((60, 45), 0.3)
    for k in range(3):
        rates[20 * k : 20 * k + 20, 15 * k : 15 * k + 15] = rng.gamma(4.0, 2.0, size=15)
    return rng.poisson(rates)


@pytest.fixture(scope="module")
def found(counts):
    return select(counts, [1, 2, 3, 4], math.inf, **QUICK)


def test_stability_and_likelihood_agree_on_what_is_there(found):
    stability = found.summary["stability"]
    assert found.judgement.setting == Setting(math.inf, 3)
    assert stability[2] > 0.99 > stability[1]
    assert stability[0] == 1.0  # one factor alone
    assert np.isnan(stability[3])  # more factors than the choice
    assert str(found.judgement) in str(found)


def test_without_seeds_nothing_is_said_about_stability(counts):
    plain = select(counts, [2, 3], math.inf, **{**QUICK, "n_seeds": 0})
    assert np.isnan(plain.summary["stability"]).all()
    assert "stability 0" not in str(plain.judgement)
    with pytest.raises(ValueError, match="n_seeds must be 0 or at least 2"):
        select(counts, [2, 3], math.inf, **{**QUICK, "n_seeds": 1})


def test_stability_does_not_depend_on_how_it_is_run_and_every_fit_is_told_of(counts, found):
    told = []
    again = select(counts, [1, 2, 3, 4], math.inf, on_fit=lambda *n: told.append(n), **{**QUICK, "n_jobs": 2})
    np.testing.assert_array_equal(again.agreement, found.agreement)
    n_fits = 4 * 2 + 2 * 3  # folds, and seeds of the choice and of one factor fewer
    assert [done for done, _ in told] == list(range(1, n_fits + 1))
    assert told[-1] == (n_fits, n_fits)
    assert again.is_whole
