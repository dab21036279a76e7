"""Bounds and penalties."""

import math

import numpy as np
import pytest

from log1pnmf.fitting.settings import Settings
from log1pnmf.model.problem import NON_NEGATIVE, Bounds, Constraint

VALUES = np.array([[0.0, 0.5], [2.0, 1.0], [3.0, 0.1]])


@pytest.mark.parametrize("penalty", [0.0, 2.0, np.array([0.0, 3.0]), np.arange(6.0).reshape(3, 2)])
def test_the_cost_is_the_sum_of_penalty_times_value(penalty):
    assert Bounds(penalty=penalty).cost(VALUES) == pytest.approx(float(np.sum(penalty * VALUES)))


@pytest.mark.parametrize("lower", [0.0, 0.2, np.array([0.2, 0.3])])
@pytest.mark.parametrize("upper", [1.0, math.inf, np.array([1.0, math.inf]), np.full((3, 2), 0.7)])
def test_clipping_leads_inside_and_changes_nothing_there(lower, upper):
    bounds = Bounds(lower, upper)
    inside = bounds.clip(VALUES)
    assert np.array_equal(inside, np.clip(VALUES, lower, upper))
    assert np.array_equal(bounds.clip(inside), inside)


def test_rows_are_of_a_few_kinds_beside_columns_that_are_known():
    assert NON_NEGATIVE.kinds == (NON_NEGATIVE, None, ())
    known = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    bounds = Bounds(known, np.where(known > 0.0, known, 1.0))
    columns, kind, held = bounds.kinds
    assert kind is None
    assert held == (0,)
    assert columns.upper.tolist() == [math.inf, 1.0]
    again = columns.holding(known, held)
    assert all(np.array_equal(*pair) for pair in zip(again.tables(2), bounds.tables(2), strict=True))
    assert bounds.of_rows([2, 0]).lower[:, 0].tolist() == [3.0, 1.0]
    some = Bounds(known * [1.0, 0.0], np.c_[known[:, 0], [0.0, math.inf, 0.0]])  # known to be 0 in two rows
    few, kind, held = some.kinds
    assert held == (0,)
    assert len(few.upper) == 2
    assert few.of_rows(kind).upper[:, 1].tolist() == [0.0, math.inf, 0.0]


def test_only_columns_without_known_numbers_have_a_free_scale():
    lower, upper = np.zeros((3, 4)), np.full((3, 4), math.inf)
    lower[:, 0] = upper[:, 0] = [1.0, 0.0, 1.0]  # known loadings
    upper[:, 1] = 1.0
    mask = np.full((5, 4), math.inf)
    mask[2:, 2] = 0.0  # zero whatever the scale
    free, largest = Constraint(Bounds(lower, upper), Bounds(0.0, mask)).scales(4)
    assert free.tolist() == [False, False, True, True]
    np.testing.assert_array_equal(largest, [math.nan, 1.0, math.nan, math.nan])
    profile = Bounds(np.eye(5, 4), np.where(np.arange(4) == 3, np.eye(5, 4), math.inf))
    assert not Constraint(factors=profile).scales(4)[0][3]


def test_settings_make_the_constraint():
    free = Settings(n_components=3).constraint
    assert free.scale_is_free
    assert free.cost(VALUES, VALUES) == 0.0
    penalised = Settings(n_components=3, l1=0.5, c=4.0).constraint
    assert not penalised.scale_is_free
    assert penalised.loadings.upper == 1.0
    assert penalised.factors.penalty.tolist() == [0.0, 2.0, 2.0]  # on the eta scale, alpha = 4
    assert Constraint().cost(VALUES, VALUES) == 0.0
