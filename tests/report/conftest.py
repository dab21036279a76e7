"""One small data set with hostile names, fitted at c = 1 and c = inf, and its report."""

import json
import re

import numpy as np
import pytest

from log1pnmf import Log1pNMF
from log1pnmf.report import write_report

GROUPS = ["plain", "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>"]
HOSTILE = '</script><script>document.title="owned"</script>'


@pytest.fixture(scope="session")
def counts():
    """90 samples in three groups of 40, 30 and 20; each group has ten features of its own and shares ten."""
    rng = np.random.default_rng(5)
    rates = np.full((90, 40), 0.3)
    rates[:40, :10] += 6.0
    rates[40:70, 10:20] += 5.0
    rates[70:, 20:30] += 7.0
    rates[:70, 30:] += 4.0
    return rng.poisson(rates)


@pytest.fixture(scope="session")
def about():
    names = [f"gene{j}" for j in range(40)]
    names[0], names[12], names[25] = "<script>alert(3)</script>", "a\"b'&<b>", HOSTILE
    samples = [f"s{i}" for i in range(90)]
    samples[3] = HOSTILE
    return {
        "title": "Test <b>&amp;</b> </title><script>alert(4)</script>",
        "feature_names": names,
        "sample_names": samples,
        "groupby": np.repeat(GROUPS, [40, 30, 20]),
        "group_name": "kind <i>",
        "source": "a file </style><script>alert(5)</script>",
        "command": "log1pnmf fit '<script>alert(6)</script>'",
        "filters": ["3 features <script>alert(7)</script> in fewer than 2 samples"],
        "notes": ["a note with <script>alert(8)</script>"],
        "date": "2026-01-31",
    }


@pytest.fixture(scope="session")
def models(counts):
    fits = []
    for c, likelihood in ((1.0, "adaptive"), (np.inf, "exact")):
        model = Log1pNMF(3, c=c, likelihood=likelihood, init="nndsvd", tol=1e-7, random_state=0, n_jobs=1)
        fits.append(model.fit(counts))
    return fits


@pytest.fixture(scope="session")
def page(tmp_path_factory, models, about, counts):
    """Path of the report of both models."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(path, models, counts=counts, **about)


@pytest.fixture
def embedded():
    """Read the numbers that a report embeds."""

    def read(path):
        text = path.read_text(encoding="utf-8")
        block = re.search(
            r'<script type="application/json" id="structure-data">(.*?)</script>', text, re.DOTALL
        )
        return json.loads(block.group(1))

    return read
