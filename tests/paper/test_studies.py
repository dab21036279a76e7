"""The studies of paper/ on tiny inputs: their starts, readings, choices and page."""

import json
import math
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from paper.cell_types import MARKERS, associations, name_cell_types
from paper.complexity import Size, predicted
from paper.contents import CONTENTS
from paper.faithful import fit_as_in_r, fit_topic_model
from paper.forms import Case, Choice, choose_l1
from paper.published import BBC_WORDS, MCF7_GENES
from paper.results import STUDIES, write_page
from paper.structures import Data, across
from paper.study import Fits, Options, Report, parse, quiet
from scipy import sparse

from log1pnmf import fit_log1p_nmf
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.counts.counts import Counts
from log1pnmf.model.objective import log_likelihood
from log1pnmf.model.simulate import simulate


@pytest.fixture
def options(tmp_path):
    return Options(tmp_path / "data", tmp_path / "results", tmp_path / "fits", quick=True, jobs=1)


@pytest.fixture(scope="module")
def counts():
    return Counts.from_any(simulate(40, 30, 3, c=1.0, density=0.5, size_spread=0.3, random_state=0).counts)


# ---------------------------------------------------------------- what the paper prints


def test_published_lists_are_whole():
    assert all(len(set(words)) == 20 for table in BBC_WORDS.values() for words in table.values())
    assert all(len(table) == 10 for table in BBC_WORDS.values())
    assert all(len(set(genes)) == 10 for table in MCF7_GENES.values() for genes in table.values())


# ---------------------------------------------------------------- faithful fits


def test_faithful_fit_goes_on(counts):
    """More iterations from the same seed pass through the same points."""
    short, long = (fit_as_in_r(counts, 3, c=1.0, n_iter=n, seed=1, jobs=1) for n in (3, 6))
    np.testing.assert_array_equal(long.history["objective"][:4], short.history["objective"])
    assert (np.diff(long.history["objective"]) < 0).all()
    assert not long.converged
    assert long.messages == ("start: R, set.seed(1)",)


def test_faithful_seed_is_used(counts):
    first, second = (fit_as_in_r(counts, 3, c=1.0, n_iter=2, seed=seed, jobs=1) for seed in (1, 2))
    assert first.objective != second.objective


def test_approximate_faithful_fit_knows_its_exact_likelihood(counts):
    fit = fit_as_in_r(counts, 3, c=10.0, n_iter=5, seed=1, likelihood="chebyshev", jobs=1)
    exact = log_likelihood(counts, fit.loadings, fit.factors, fit.link, fit.size_factors)
    assert fit.log_likelihood == pytest.approx(exact, rel=1e-9)
    assert fit.log_likelihood != fit.approximate_log_likelihood


def test_topic_model_reaches_the_common_optimum(counts):
    """At c = inf size factors only rescale the loadings: the same likelihood with and without them."""
    fit = fit_topic_model(counts, 2, n_iter=500, tiny=1e-5, jobs=1)
    other = max(
        (fit_log1p_nmf(counts, 2, c=math.inf, random_state=seed) for seed in range(3)),
        key=lambda one: one.log_likelihood,
    )
    assert fit.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-4)
    np.testing.assert_allclose(fit.size_factors.mean(), 1.0)


# ---------------------------------------------------------------- forms


def make_case(options, counts):
    def faithful(data, *, size_factors, seed):
        return fit_as_in_r(data, 3, c=1.0, n_iter=3, seed=seed, size_factors=size_factors, jobs=1)

    return Case(Fits(options, "tiny"), counts, 3, 1.0, faithful, tol=1e-5)


def test_parts_sum_to_the_whole(options, counts):
    case = make_case(options, counts)
    train, test = case.split
    assert train.total + test.total == counts.total
    assert case.of("train")[1].mean() == pytest.approx(0.9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_choice_of_the_penalty(options, counts):
    choice = choose_l1(make_case(options, counts), (0.1, 100.0), (0,))
    scores = {row["l1"]: row["held-out log-likelihood"] for row in choice.rows}
    assert set(scores) == {0.0, 0.1, 100.0}
    assert scores[choice.best] == max(scores.values())
    assert choice.best <= choice.chosen < 100.0  # so large a penalty leaves the baseline alone
    assert choice.rows[-1]["zeros in the factors"] > choice.rows[0]["zeros in the factors"]


def test_penalty_that_is_shown():
    """The chosen one; else the largest that is no worse than the faithful fit; else the smallest."""
    rows = [
        {"l1": l1, "held-out log-likelihood": score}
        for l1, score in ((0.0, -10.0), (1.0, -12.0), (3.0, -15.0))
    ]
    assert Choice(rows, 0.0, 1.0, {}).shown(np.array([-11.0]))[0] == 1.0
    none = Choice(rows, 0.0, 0.0, {})
    assert [none.shown(np.array([score]))[0] for score in (-20.0, -13.0, -11.0)] == [3.0, 1.0, 1.0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fits_are_kept(options, counts, capsys):
    first = make_case(options, counts).fit_converged("whole", (0,))[0]
    assert "fitted" in capsys.readouterr().out
    case = make_case(options, counts)
    again = case.fit_converged("whole", (0,))[0]
    assert "kept from before" in capsys.readouterr().out
    np.testing.assert_array_equal(again.loadings, first.loadings)
    assert min(case.fits.cost(again)) > 0
    fresh = replace(options, fresh=True, began=time.time() + 1)
    make_case(fresh, counts).fit_converged("whole", (0,))
    assert "fitted" in capsys.readouterr().out
    make_case(replace(fresh, began=0.0), counts).fit_converged("whole", (0,))  # made in the same run
    assert "kept from before" in capsys.readouterr().out


# ---------------------------------------------------------------- readings


def test_associations_tell_treatment_from_type():
    rng = np.random.default_rng(0)
    types, condition = rng.choice(["a", "b", "c"], 600), rng.choice(["ctrl", "stim"], 600)
    noise = 0.05 * rng.random(600)
    treatment, of_type = (condition == "stim") + noise, (types == "a") + noise
    one_type = ((condition == "stim") & (types == "a")) + noise
    rows = associations(np.stack([treatment, of_type, one_type], axis=1), types, condition)
    for row, strong, weak in ((rows[0], "treatment", "type"), (rows[1], "type", "treatment")):
        assert row[f"{strong} given {weak}"] > 0.95
        assert row[f"{weak} given {strong}"] < 0.05
    assert rows[0]["shared"] > 0.95
    assert rows[2]["shared"] < 0.4


def test_cell_types_by_their_markers():
    genes = np.array(sorted({gene for markers in MARKERS.values() for gene in markers}))
    rng = np.random.default_rng(0)
    truth = np.repeat(list(MARKERS), 20)
    rates = np.array([[8.0 if gene in MARKERS[name] else 0.2 for gene in genes] for name in truth])
    found = name_cell_types(sparse.csr_matrix(rng.poisson(rates)), genes, np.tile(["ctrl", "stim"], 80))
    assert (found == truth).mean() > 0.95


def test_predicted_costs():
    found = predicted(Size(10_000, 10_000, 25, 0.95))
    assert found["exact"] == pytest.approx(1.0 / (0.05 + 2e-4))
    assert found["approximate"] == pytest.approx(1.0 + 25 * 2e-4 / (0.05 + 2e-4))


# ---------------------------------------------------------------- page


def test_page(options, tmp_path):
    report = Report(options, "theory", "Theorems")
    report.claim("one holds", paper="yes", ours="yes", agrees=np.bool_(True))
    report.claim("another does not", paper="1", ours="2", agrees=False, spread="1 to 3")
    report.table(
        "numbers", [{"name": "a|b", "value": 1234567.8}, {"name": "c", "value": 0.12345}], "Numbers."
    )
    report.save()
    assert json.loads((options.results / "theory.json").read_text())["claims"][0]["agrees"] is True
    write_page(options.results, tmp_path / "RESULTS.md")
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| one holds | yes | yes | yes |  |" in page
    assert "| another does not | 1 | 2 | **no** | 1 to 3 |" in page
    assert "- Theorems: another does not: 2 (paper: 1)" in page
    assert "| a\\|b | 1,234,568 |" in page
    assert "| [Theorems](#theorems) | 1 | 1 | 0 |" in page
    assert "| Theorem 1 | large c: standard Poisson NMF | [Theorems](#theorems) |  |" in page


def test_contents_name_every_part_of_the_paper():
    """Figures and theorems are numbered; what no study tests has a reason."""
    places = " ".join(item.place for item in CONTENTS)
    figures = [int(n) for item in CONTENTS if "Figure" in item.place for n in re.findall(r"\d+", item.place)]
    assert set(figures) == set(range(1, 16))
    assert all(f"Theorem {n}" in places for n in range(1, 5))
    assert {item.study for item in CONTENTS} - {None} <= set(STUDIES)
    assert all(item.study or item.remark.startswith("not made") for item in CONTENTS)


def test_structures_have_the_factors_in_the_same_order_at_every_c(options, counts):
    labels = np.repeat(["a", "b"], counts.n_samples // 2)
    data = Data(counts, 3, labels, ("a", "b"))
    with quiet():
        rows, shown = across(data, Fits(options, "simulated"))
    assert rows[0]["c"] == math.inf
    first, *others = (loadings for loadings, _ in shown.values())
    assert np.isclose(first.max(axis=0), 1.0).all()
    for loadings in others:
        pairs = match_factors(first, loadings).pairs
        np.testing.assert_array_equal(pairs[:, 0], pairs[:, 1])
    assert rows[0]["correlation with the loadings at c = inf"] == pytest.approx(1.0)


def test_quick_results_are_kept_apart(tmp_path):
    quick, whole = (parse(None, ["--fits", str(tmp_path), *extra]) for extra in (["--quick"], []))
    assert quick.results.is_relative_to(tmp_path)
    assert quick.fits != whole.fits
    assert whole.results.name == "results"


@pytest.mark.parametrize("name", ["link_figure", "theory"])
def test_studies_without_data(name, options):
    pytest.importorskip("matplotlib")
    module = __import__(f"paper.{name}", fromlist=["study"])
    module.study(options)
    content = json.loads((options.results / f"{name}.json").read_text())
    assert content["claims"]
    assert all(claim["agrees"] for claim in content["claims"])
    for part in content["parts"]:
        assert 0 < (options.results / part["file"]).stat().st_size < 200_000
