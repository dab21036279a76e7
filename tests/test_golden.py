"""Golden fits: what was computed once is computed still; tests/test_defaults.py has every face.

``python -m tools.fingerprints --write`` writes tests/golden.json anew; the commit says why a figure changed.
"""

import json

import pytest
from tools.fingerprints import GOLDEN, fits

EXPECTED = json.loads(GOLDEN.read_text())


@pytest.mark.filterwarnings("ignore")
def test_golden_fits():
    found = {name: model.log_likelihood_ for name, model in fits(only=EXPECTED)}
    assert found == pytest.approx(EXPECTED, rel=1e-8)
