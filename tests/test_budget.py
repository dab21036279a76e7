"""The house only gets smaller: sizes and walks are at most those of tests/budget.json (tools/house.py)."""

import json

import pytest
from tools import house

BUDGET = json.loads(house.BUDGET.read_text())


@pytest.mark.parametrize("measure", [house.sizes, house.walks])
def test_no_figure_is_above_its_budget(measure):
    figures = measure().items()
    above = {name: (figure, BUDGET[name]) for name, figure in figures if figure > BUDGET.get(name, figure)}
    assert above == {}, "make room for what is new; python tools/house.py --write lowers the budget"
