"""Bounds and penalties."""

import math

import numpy as np
import pytest

from log1pnmf.fitting.settings import Settings
from log1pnmf.model.constraint import NON_NEGATIVE, Bounds, Constraint

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


def test_only_a_box_with_a_penalty_per_column_is_simple():
    assert NON_NEGATIVE.beyond_a_box is None
    assert Bounds(upper=1.0, penalty=[0.0, 1.0]).beyond_a_box is None
    for bounds in (Bounds(lower=0.1), Bounds(upper=[1.0, 2.0]), Bounds(penalty=np.ones((3, 2)))):
        assert bounds.beyond_a_box is not None


def test_settings_make_the_constraint():
    free = Settings(n_components=3).constraint
    assert free.scale_is_free
    assert free.cost(VALUES, VALUES) == 0.0
    penalised = Settings(n_components=3, l1=0.5, c=4.0).constraint
    assert not penalised.scale_is_free
    assert penalised.loadings.box_upper == 1.0
    assert penalised.factors.column_penalty(3).tolist() == [0.0, 2.0, 2.0]  # on the eta scale, alpha = 4
    assert Constraint().cost(VALUES, VALUES) == 0.0
