"""The headline says what the table says: every claim at both sides of its threshold."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from log1pnmf import fit_log1p_nmf, shares
from log1pnmf.analysis.groups import Groups
from log1pnmf.pl.canvas import fit_of_arrays as fit_of
from log1pnmf.report import write_report
from log1pnmf.report.comparison import CLUSTERED, SAME, Measure, compare, same_factors, verdict


def headline(per_sample=(2.0, 2.0), strongest=(0.5, 0.5)):
    figures = [
        Measure("Factors per sample", "", *per_sample),
        Measure("Share of the strongest factor", "", *strongest),
    ]
    return verdict(figures, "c = 1")[0]


class TestEachClaim:
    @pytest.mark.parametrize(
        ("per_sample", "start"),
        [
            ((2.0, 1.7), "Samples mix more factors at c = 1 than at c = ∞ (2.00 factors"),
            ((2.0, 1.9), "Samples mix about as many"),
            ((1.9, 2.0), "Samples mix about as many"),
            ((1.7, 2.0), "Samples mix more factors at c = ∞ than at c = 1 (1.70 factors"),
        ],
    )
    def test_mixing_is_said_where_it_is_clear(self, per_sample, start):
        assert headline(per_sample).startswith(start)

    def test_figures_that_disagree_make_no_claim(self):
        """And do not call numbers about the same that are not."""
        said = headline((2.0, 1.5), (0.9, 0.5))
        assert said.startswith("It is unclear in which fit samples mix more factors: 2.00 factors per sample")
        assert "about as many" not in said

    def test_clusters_take_a_strongest_factor_that_is_strong_and_stronger(self):
        assert "At c = ∞ samples fall into clusters" in headline((2, 1.5), (0.5, CLUSTERED))
        assert "At c = 1 samples fall into clusters" in headline((1.5, 2), (CLUSTERED, 0.5))
        assert "clusters" not in headline((2, 1.5), (0.5, CLUSTERED - 0.01))
        assert "clusters" not in headline((2, 1.5), (0.95 * CLUSTERED, CLUSTERED))


class TestStarts:
    """Differences are said only where they are beyond those between starts."""

    def test_within_the_differences_between_starts_nothing_differs(self):
        assert Measure("", "", 2.0, 1.5, between_starts=0.6).direction == 0
        assert Measure("", "", 2.0, 1.5, between_starts=0.4).direction == 1

    def test_one_fit_of_each_shows_no_difference_between_starts(self):
        assert "Each c has one fit" in headline((2.0, 1.5))
        assert "Each c has one fit" not in headline((2.0, 2.0))

    def test_other_fits_of_a_setting_are_other_starts(self):
        rng = np.random.default_rng(0)
        sparse, even = (rng.gamma(shape, size=(40, 3)) for shape in (0.1, 5.0))
        fits = [
            fit_of(one / one.max(axis=0), rng.random((8, 3)), c=c)
            for one, c in ((even, 1.0), (sparse, np.inf), (sparse, 1.0))
        ]
        alone, several = compare(fits[:2]), compare(fits)
        assert "mix more factors at c = 1" in alone.headline
        assert alone.n_starts == (1, 1)
        assert "mix more" not in several.headline  # another start at c = 1 mixes as few
        assert several.n_starts == (2, 1)


def test_nearly_the_same_factors_are_said_first_whatever_else_differs(tmp_path):
    """Seed, noise or number of factors, with labels that tell the fits apart."""
    own = (np.arange(40)[:, None] < 20) == (np.arange(16) < 8)
    counts = np.random.default_rng(0).poisson(np.where(own, 8.0, 0.5))
    fits = {
        "seed": fit_log1p_nmf(counts, 2, tol=1e-4, random_state=1),
        "noise": fit_log1p_nmf(counts, 2, tol=1e-4, noise="nb"),
        "size": fit_log1p_nmf(counts, 4, tol=1e-4, init="random"),
    }
    one = fit_log1p_nmf(counts, 2, tol=1e-4)
    leads = {}
    for what, other in fits.items():
        text = write_report(tmp_path / "r.html", [one, other]).read_text()
        leads[what] = text.split('class="lead">')[1].split("</p>")[0].replace("\xa0", " ")
        assert leads[what].startswith("40 samples and 16 features, 2 ")
    for what in ("seed", "noise"):
        assert ". Both fits have nearly the same factors" in leads[what]
    assert "Of 4 factors, " in leads["size"]
    text = write_report(tmp_path / "r.html", [one, *fits.values()]).read_text()
    labels = re.findall(r'class="head"><strong>(.*?) <span', text)
    assert len(set(labels)) == 4
    assert "negative binomial" in labels[2]
    assert "seed 1" in labels[1]


def test_pairs_of_several_fits():
    rng = np.random.default_rng(0)
    a, b = rng.gamma(0.3, size=(2, 40, 3))
    fits = [fit_of(one, rng.random((8, 3)), c=1.0) for one in (a, b, a)]
    assert same_factors(fits, ["x", "y", "z"]) == "Nearly the same factors: x as z."
    assert same_factors([fits[0]] * 3, ["x", "y", "z"]).startswith("All 3 fits have nearly the same")
    assert same_factors(fits[:1], ["x"]) == ""


@given(
    seed=st.integers(0, 2**32 - 1),
    shapes=st.tuples(st.floats(0.02, 5.0), st.floats(0.02, 5.0)),
    noise=st.sampled_from([0.0, 0.05, 0.5, None]),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    grouped=st.booleans(),
)
def test_headline_never_contradicts_the_table(*, seed, shapes, noise, sizes, grouped):
    rng = np.random.default_rng(seed)
    first = rng.gamma(shapes[0], size=(40, sizes[0]))
    second = rng.gamma(shapes[1], size=(40, sizes[1]))
    if noise is not None:  # the same factors but for noise
        second = first * (1.0 + noise * rng.random(first.shape))
    pair = [
        fit_of(one / one.max(axis=0), rng.random((8, one.shape[1])), c=c)
        for one, c in ((first, 1.0), (second, np.inf))
    ]
    groups = Groups.of(rng.choice(["a", "b", "c"], size=40)) if grouped else None
    found = compare(pair, groups=groups)
    said, figures = found.headline, {one.name: one for one in found.measures}
    strongest = [np.mean(shares(one).max(axis=1)) for one in pair]
    per_sample = figures["Factors per sample"]
    assert ("Samples mix more factors at c = 1" in said) <= (per_sample.finite > 1.1 * per_sample.additive)
    assert ("Samples mix more factors at c = ∞" in said) <= (per_sample.additive > 1.1 * per_sample.finite)
    assert ("At c = ∞ samples fall into clusters" in said) <= (
        strongest[1] >= CLUSTERED and strongest[1] > strongest[0]
    )
    assert ("At c = 1 samples fall into clusters" in said) <= (
        strongest[0] >= CLUSTERED and strongest[0] > strongest[1]
    )
    closest = [similarity >= SAME for *_, similarity in found.pairs]
    assert same_factors(pair, ["a", "b"]).startswith("Both fits have nearly the same factors") == (
        len(closest) == max(one.n_components for one in pair) and all(closest)
    )
    if noise == 0.0:
        assert "mix more" not in said
        assert "clusters" not in said
    assert grouped or "group" not in f"{said} {found.advice}"


def test_no_groups_no_word_about_them(tmp_path, models, counts, monkeypatch):
    monkeypatch.setattr("log1pnmf.report.figures.MOST_SAMPLES", 30)
    plain = {"feature_names": [f"f{j}" for j in range(40)]}
    for shown in (models, models[0]):
        more = {"counts": counts, "evidence": [None] * np.size(shown), **plain}
        text = write_report(tmp_path / "r.html", shown, **more).read_text(encoding="utf-8")
        body = text.split("</style>")[1].split('<script type="application/json"')[0].lower()
        assert "group" not in body
        assert "groups use" not in body
