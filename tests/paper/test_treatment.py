"""The first picture of README and site: it shows what most starts find, and the best of them."""

import math
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def figure(monkeypatch):
    """Return the script that draws it."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(ROOT / "docs")
    return import_module("treatment_figure")


def test_a_factor_is_shared_if_it_rises_in_every_type(figure):
    def table(*rises):
        return np.column_stack([np.full(4, 0.25), 0.25 + np.array(rises)])

    assert figure.is_shared(table(0.5, 0.25, 0.375, 0.5))
    assert not figure.is_shared(table(0.5, 0.125, 0.375, 0.5))
    assert not figure.is_shared(table(0.0, 0.125, 0.125, 0.75))


@pytest.mark.slow
def test_the_response_is_shared_where_parts_multiply_and_not_where_they_add_up(figure, real_data):
    """In the best of twelve starts and in most of them; ten minutes."""
    real_data("kang_pbmc_ifnb_14k")  # skips where it is not there
    data = figure.cells()
    for c, expected in ((0.3, True), (math.inf, False)):
        found = [figure.is_shared(tables[0]) is expected for _, tables in figure.all_starts(*data, c=c)]
        assert len(found) == 12
        assert found[0]
        assert sum(found) >= 9
