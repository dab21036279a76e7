"""Usage of factors by groups of samples: units, tests, tables, and where they are written."""

from dataclasses import replace

import anndata
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import linregress, ttest_ind, ttest_rel

import log1pnmf as lp
from log1pnmf import Log1pNMF, fit_log1p_nmf, pl, tl
from log1pnmf.analysis.usage import Sizes, moderate, usage


@pytest.fixture(scope="module")
def model():
    """Donors differ by more than ten cells of each explain."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.repeat(rng.gamma(3.0, 0.7, (12, 12)), 10, axis=0))
    return Log1pNMF(3, tol=1e-3, random_state=0, n_jobs=1).fit(counts)


AS_THEY_ARE = {"relative_to": None}
DONOR = np.repeat([f"d{i}" for i in range(12)], 10)
GROUP = np.repeat(["b", "a"], 60)


def by_donor(values, donors=DONOR):
    return np.stack([values[donors == one].mean(axis=0) for one in dict.fromkeys(donors)])


def test_one_factor_at_a_time_it_is_the_t_test_of_donor_means(model):
    """With fewer factors than are drawn together, and as many cells of each donor."""
    found = model.usage(GROUP, replicate=DONOR, **AS_THEY_ARE)
    means = by_donor(model.loadings_)
    expected = ttest_ind(means[6:], means[:6])
    assert (found.reference, found.comparisons) == ("a", ("b",))
    np.testing.assert_allclose(found.difference[0], means[:6].mean(axis=0) - means[6:].mean(axis=0))
    np.testing.assert_allclose(found.p[0], expected.pvalue, rtol=0.02)
    interval = expected.confidence_interval(0.95)
    np.testing.assert_allclose(found.lower[0], -interval.high, rtol=0.02)
    np.testing.assert_allclose(found.upper[0], -interval.low, rtol=0.02)
    assert found.means.shape == (12, 3)


def test_donors_in_both_groups_are_compared_with_themselves(model):
    donor, group = np.tile(np.repeat(np.arange(6), 10), 2), np.repeat(["a", "b"], 60)
    found = model.usage(group, replicate=donor, **AS_THEY_ARE)
    first, second = (by_donor(model.loadings_[group == one], donor[group == one]) for one in "ab")
    np.testing.assert_allclose(found.p[0], ttest_rel(second, first).pvalue, rtol=0.02)


def test_cells_are_not_replicates_and_one_of_a_group_is_not_known_to_differ(model):
    group = np.array(["a"] * 60 + ["b"] * 59 + ["c"])
    with pytest.warns(UserWarning, match="treats samples as replicates"):
        found = model.usage(group, **AS_THEY_ARE)
    assert (found.replicated, len(found.means)) == (False, 120)
    assert np.isinf(found.error[1]).all()
    assert (found.p[1] == 1.0).all()
    assert np.isfinite(found.error[0]).all()
    assert len(model.usage(GROUP, replicate=True).means) == 120  # as in bulk data, without a warning


def test_numbers_have_a_slope(model):
    many = np.linspace(0.0, 1.0, 120)  # differs within donors: the slopes within them, against zero
    within = model.usage(many, replicate=DONOR, **AS_THEY_ARE)
    own = [one == DONOR for one in dict.fromkeys(DONOR)]
    slopes = [linregress(many[which], model.loadings_[which, 0]).slope for which in own]
    assert within.difference[0, 0] == pytest.approx(np.mean(slopes))
    between = usage(model, many, replicate=True, **AS_THEY_ARE)
    expected = linregress(many, model.loadings_[:, 0])
    assert between.difference[0, 0] == pytest.approx(expected.slope)
    assert between.p[0, 0] == pytest.approx(expected.pvalue)
    assert between.reference is None
    assert "reference" not in between.table()


AGE = np.repeat([31, 45, 52, 23, 67, 39, 71, 28, 58, 44, 36, 62], 10)


@pytest.mark.parametrize("kind", [int, object])
def test_a_number_per_donor_has_a_slope_over_donors(model, kind):
    """The donors are the observations; the number is not a group for each of them."""
    found = model.usage(AGE.astype(kind), replicate=DONOR, **AS_THEY_ARE)
    assert found.means.shape == (12, 3)
    for k, means in enumerate(by_donor(model.loadings_).T):
        expected = linregress(AGE[::10], means)
        assert found.difference[0, k] == pytest.approx(expected.slope)
        assert found.error[0, k] == pytest.approx(expected.stderr, rel=0.02)
        assert found.p[0, k] == pytest.approx(expected.pvalue, rel=0.02)
    np.testing.assert_array_equal(found.table()["slope"], found.difference[0])


TWO, DOSE = np.where(AGE > 40, 1, 0), np.repeat([0, 10, 20], 40)


@pytest.mark.parametrize(
    ("given", "numeric", "comparisons"),
    [
        (TWO, None, ("1",)),
        (TWO, True, ("slope",)),
        (DOSE, None, ("slope",)),
        (DOSE, False, ("10", "20")),
        (DOSE.astype(str), None, ("10", "20")),
        (DOSE > 0, None, ("True",)),
    ],
)
def test_numbers_that_are_groups(model, given, numeric, comparisons):
    assert model.usage(given, replicate=DONOR, numeric=numeric, **AS_THEY_ARE).comparisons == comparisons


def test_differences_are_within_the_donors_that_are_in_both_groups(model):
    """Donors that are in one group only change the means, not the difference."""
    donor = np.concatenate([np.tile(np.repeat(np.arange(5), 10), 2), np.repeat([5, 6], 10)])
    group = np.concatenate([np.repeat(["a", "b"], 50), np.repeat("b", 20)])
    found = model.usage(group, replicate=donor, **AS_THEY_ARE)
    both = donor < 5
    pairs = [
        by_donor(model.loadings_[both & (group == one)], donor[both & (group == one)]).mean(axis=0)
        for one in "ab"
    ]
    np.testing.assert_allclose(found.difference[0], pairs[1] - pairs[0])
    table = found.table()
    assert not np.allclose(table["difference"], table["mean"] - table["reference_mean"])


def test_covariates_are_held(model):
    """A difference that a covariate explains goes; labels and numbers both serve."""
    shifted = model.loadings_.copy()
    batch = np.repeat(np.tile(["x", "y"], 6), 10)
    shifted[batch == "y"] += 0.3
    uneven = np.repeat(["a"] * 5 + ["b"] + ["a"] + ["b"] * 5, 10)
    fit = replace(model.fit_, loadings=shifted)
    plain = usage(fit, uneven, replicate=DONOR, **AS_THEY_ARE)
    held = usage(fit, uneven, replicate=DONOR, covariates={"batch": batch}, **AS_THEY_ARE)
    number = usage(fit, uneven, replicate=DONOR, covariates=(batch == "y").astype(float), **AS_THEY_ARE)
    np.testing.assert_allclose(held.difference, number.difference)
    assert held.error.max() < plain.error.max()


def test_several_groups_and_missing_labels(model):
    group = np.repeat(["low", "mid", "high", None], 30).astype(object)
    found = model.usage(group, replicate=DONOR, reference="low", **AS_THEY_ARE)
    assert found.comparisons == ("high", "mid")
    assert len(found.means) == 9
    some = {"replicate": np.where(group == "mid", None, DONOR), "covariates": {"x": ["a", "b", "b"] * 40}}
    with pytest.warns(UserWarning, match="without a replicate or covariate: 30 of 120"):
        without = model.usage(group, reference="low", **AS_THEY_ARE, **some)
    assert without.comparisons == ("high",)
    some["covariates"]["x"] = [None] * 120
    with pytest.warns(UserWarning, match="90 of"), pytest.raises(ValueError, match="no sample has a group"):
        model.usage(group, **some)
    table = found.table()
    assert table["factor"].tolist() == ["k0", "k1", "k2"] * 2
    np.testing.assert_allclose(table["difference"], table["mean"] - table["reference_mean"])
    assert (found.adjusted_p >= found.p - 1e-15).all()


def test_moderation_keeps_the_order_and_draws_together():
    variances = np.array([0.1, 0.5, 1.0, 2.0, 9.0, 0.0])
    drawn, added = moderate(variances, 4.0)
    assert 0.0 < added <= 4.0
    assert (np.diff(drawn[:5]) > 0.0).all()
    assert drawn[:5].max() / drawn[:5].min() < 90.0
    assert drawn[5] == 0.0


FACTORS = np.eye(4)[np.repeat([0, 1, 2, 3], [24, 6, 6, 6])] + [0.3, 0.0, 0.0, 0.0]


def compositional(c, seed, shifted=(1,), scatter=0.1):
    """Six donors against six; some factors are doubled, and size factors are totals."""
    rng = np.random.default_rng([seed, 3])
    level = np.exp(scatter * rng.standard_normal((12, 4)))
    level[6:, list(shifted)] *= 2.0
    eta = np.repeat(level, 20, axis=0) * rng.gamma(10.0, 0.1, (240, 4)) @ FACTORS.T
    means = (eta if np.isinf(c) else np.expm1(eta)) * rng.lognormal(1.5, 0.4, (240, 1))
    fixed = {"fixed_factors": FACTORS * lp.ShiftedLog(c).alpha}
    return Log1pNMF(4, c=c, n_jobs=1, **fixed).fit(rng.poisson(means))


@pytest.mark.parametrize("c", [1.0, np.inf])
def test_what_keeps_its_proportions_is_not_called(c):
    """The baseline falls with totals as size factors; relative to what stays, only one factor moves."""
    donor, group, model = np.repeat(np.arange(12), 20), np.repeat(["a", "b"], 120), compositional(c, 0)
    plain = model.usage(group, replicate=donor, **AS_THEY_ARE)
    assert plain.difference[0, 0] < 0.0
    assert plain.p[0, 0] < 0.05
    found = model.usage(group, replicate=donor)
    assert (found.p[0] < 0.05).tolist() == [False, True, False, False]
    assert "k1" not in found.relative_to[0]
    assert set(found.table()["relative_to"]) == {", ".join(found.relative_to[0])}
    chosen = model.usage(group, replicate=donor, relative_to="k0")
    assert chosen.relative_to == (("k0",),)
    assert (chosen.difference[0, 0], chosen.error[0, 0], chosen.p[0, 0]) == (0.0, 0.0, 1.0)


def doubled(rng, k, n_doubled):
    """Donors against donors: some of k equal factors double, or did the others halve?"""
    tiled = np.tile(np.eye(k), (16 // k, 1))
    fit = fit_log1p_nmf(rng.poisson(3.0, (40, 16)), k, c=np.inf, n_jobs=1, fixed_factors=tiled)
    level = np.exp(0.1 * rng.standard_normal((12, k)))
    level[6:, :n_doubled] *= 2.0
    return fit, np.repeat(level, 20, axis=0) * np.exp(0.1 * rng.standard_normal((240, k)))


def test_what_may_have_stayed_instead_is_named():
    """Of four two double: none is called, but that two doubled beside the others; of eight one doubles."""
    rng, donor, group = np.random.default_rng(0), np.repeat(np.arange(12), 20), np.repeat(["a", "b"], 120)
    for k, n in ((4, 2), (8, 1)):
        fit, loadings = doubled(rng, k, n)
        found = usage(fit, group, replicate=donor, loadings=loadings)
        if k == 4:
            halves = [tuple(fit.factor_names[:2]), tuple(fit.factor_names[2:])]
            assert sorted((found.relative_to[0], found.rivals[0])) == halves
            assert found.p.min() > 0.05
            assert ((found.lower <= 0.0) & (found.upper >= 0.0)).all()
            up = 1.0 if found.rivals[0] == halves[0] else -1.0
            assert found.rivals_change[0] == pytest.approx(up, abs=0.2)
            assert found.rivals_p[0] < 0.01
            names, way = ", ".join(found.rivals[0]), "rose" if up > 0.0 else "fell"
            assert f"whether {names} kept their proportions instead, which {way} 2." in repr(found)
            table = found.table()
            assert (set(table["rivals"]), set(table["rivals_p"])) == ({names}, set(found.rivals_p))
            chosen = usage(fit, group, replicate=donor, loadings=loadings, relative_to=halves[1])
            assert (chosen.p[0] < 0.01).tolist() == [True, True, False, False]
        else:
            assert (found.rivals, found.p[0, 0] < 0.001) == (((),), True)
            assert np.isnan(found.rivals_p[0])
            assert found.against == f"relative to {', '.join(found.relative_to[0])}"
    plain = usage(fit, group, replicate=donor, loadings=loadings, **AS_THEY_ARE)
    assert (plain.against, plain.rivals) == ("loadings as they are", ((),))


@pytest.mark.parametrize("runs", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_with_half_of_the_factors_doubled_none_is_called(runs):
    """Every second statement would be false."""
    donor, group = np.repeat(np.arange(12), 20), np.repeat(["a", "b"], 120)
    called = []
    for seed in range(runs):
        fit, loadings = doubled(np.random.default_rng([seed, 5]), 4, 2)
        called.append(usage(fit, group, replicate=donor, loadings=loadings).p[0] <= 0.05)
    assert np.mean(called) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("shifted", [(1,), (1, 2)])
@pytest.mark.parametrize("c", [1.0, np.inf])
def test_factors_that_stay_are_called_by_chance_only(c, shifted):
    """With one and with half of the factors shifted, which costs power; studies/usage.py has more designs."""
    donor, group = np.repeat(np.arange(12), 20), np.repeat(["a", "b"], 120)
    models = [compositional(c, seed, shifted, scatter=0.2) for seed in range(100)]
    called = np.stack([model.usage(group, replicate=donor).p[0] <= 0.05 for model in models])
    assert np.delete(called, shifted, axis=1).mean() <= 0.07
    assert called[:, shifted].mean() > (0.9 if len(shifted) == 1 else 0.2)


def test_a_change_of_all_size_factors_changes_nothing():
    """At c = inf loadings of a donor that are multiplied by a number have the same ratios."""
    rng = np.random.default_rng(0)
    fit = fit_log1p_nmf(rng.poisson(2.0, (120, 12)), 3, c=np.inf, n_jobs=1, tol=1e-3)
    sizes = Sizes.of(fit, fit.loadings)
    np.testing.assert_allclose(sizes.response, fit.loadings.mean(axis=0))
    np.testing.assert_allclose(sizes.response @ sizes.relative((0, 2)), 0.0, atol=1e-12)
    near = fit_log1p_nmf(rng.poisson(2.0, (120, 12)), 3, c=1e6, n_jobs=1, tol=1e-3)
    np.testing.assert_allclose(Sizes.of(near, near.loadings).response, near.loadings.mean(axis=0), rtol=1e-3)


def test_another_reference_has_at_least_half_as_many_factors():
    for n, groups in ((3, [(1, 2, 3)]), (2, [(1, 2), (0,)])):
        sizes = Sizes(np.ones(n + 1), np.array([0.4, *np.full(n, 0.6 / n)]))
        assert sizes.references(np.eye(n + 1)[0], np.full(n + 1, 0.1)) == groups


def test_within_is_the_comparison_of_these_cells(model):
    kind = np.tile(["T", "B"], 60)
    found = model.usage(GROUP, replicate=DONOR, within=kind, **AS_THEY_ARE)
    assert found.within == ("B", "T")
    only = np.where(kind == "T", GROUP, None)
    np.testing.assert_allclose(found.p[1], model.usage(only, replicate=DONOR, **AS_THEY_ARE).p[0])
    of = kind == "T"
    own = usage(model, GROUP[of], replicate=DONOR[of], loadings=model.loadings_[of])
    np.testing.assert_allclose(own.p[0], model.usage(only, replicate=DONOR).p[0])
    table = found.table()
    assert table["within"].tolist() == ["B"] * 3 + ["T"] * 3
    np.testing.assert_allclose(table["difference"], table["mean"] - table["reference_mean"])
    rare = np.where(np.arange(120) < 2, "rare", kind)
    with pytest.warns(UserWarning, match="'rare' \\(all samples are in the group 'b'"):
        assert model.usage(GROUP, replicate=DONOR, within=rare, **AS_THEY_ARE).within == ("B", "T")


def test_an_interaction_is_the_test_of_differences_between_parts(model):
    kind = np.tile(["T", "B"], 60)
    found = model.usage(GROUP, replicate=DONOR, within=kind, interaction=True, **AS_THEY_ARE)
    parts = [by_donor(model.loadings_[kind == one], DONOR[kind == one]) for one in "BT"]
    expected = ttest_ind((parts[1] - parts[0])[:6], (parts[1] - parts[0])[6:])
    apart = (parts[1] - parts[0])[:6].mean(axis=0) - (parts[1] - parts[0])[6:].mean(axis=0)
    np.testing.assert_allclose(found.difference, [-apart, apart])
    assert (found.p[1] >= 0.98 * expected.pvalue).all()  # no surer than the scatter of cells allows


def test_hundreds_of_groups_are_one_map(model):
    guide = np.resize([f"g{i}" for i in range(8)], 120)
    found = model.usage(guide, replicate=np.repeat(["r1", "r2", "r3"], 40), reference="g0")
    assert found.difference.shape == (7, 3)
    image = pl.usage(found, figure=Figure()).axes[0].images[0]
    np.testing.assert_allclose(np.sort(np.ravel(image.get_array())), np.sort(found.difference.ravel()))


def test_of_many_guides_those_with_an_effect_are_drawn_and_counted(model):
    rng = np.random.default_rng(0)
    loadings = np.repeat(rng.uniform(0.45, 0.55, (153, 3)), 4, axis=0)  # 51 groups in three replicates
    loadings[(group := np.repeat(np.arange(51), 12)) == 7, 1] += 0.4
    names, copies = np.array([f"g{i:02}" for i in range(51)])[group], np.tile(np.repeat([0, 1, 2], 4), 51)
    found = usage(model, names, replicate=copies, loadings=loadings, reference="g00", **AS_THEY_ARE)
    ax = pl.usage(found, figure=Figure()).axes[0]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["g07"]
    np.testing.assert_allclose(ax.images[0].get_array(), found.difference[[6]])
    np.testing.assert_array_equal(ax.collections[0].get_offsets(), [[1, 0]])
    assert ax.get_title(loc="left") == "1 of 50 comparisons with\na significant difference"
    nothing = pl.usage(found, level=0.0, figure=Figure()).axes[0]  # all, where none is
    assert len(nothing.get_yticklabels()) == 50


def chance(fit, n_donors, n_simulations, *, ages=False, replicated=True, cells=20):
    """Donors differ, their groups do not: how often they are called different, and how often 0 is covered."""
    called, covered = [], []
    for seed in range(n_simulations):
        rng = np.random.default_rng([seed, n_donors])
        cells = np.resize(cells, 2 * n_donors)
        means = 0.4 + 0.08 * rng.gamma(4.0, 0.25, 8) * rng.standard_normal((2 * n_donors, 8))
        loadings = np.maximum(np.repeat(means, cells, axis=0) + rng.normal(0.0, 0.15, (cells.sum(), 8)), 0.0)
        group = rng.integers(20, 81, 2 * n_donors) if ages else np.repeat(["a", "b"], n_donors)
        how = {"replicate": np.repeat(np.arange(2 * n_donors), cells) if replicated else True, **AS_THEY_ARE}
        found = usage(replace(fit, loadings=loadings), np.repeat(group, cells), **how)
        called.append(found.p <= 0.05)
        covered.append((found.lower <= 0.0) & (found.upper >= 0.0))
    return np.mean(called), np.mean(covered)


@pytest.mark.parametrize(
    ("n_donors", "ages", "cells"),
    [(3, False, 20), (6, True, 20), (3, False, [5, 5, 5, 80, 80, 80]), (3, False, [5, 20, 80])],
)
def test_level(n_donors, ages, cells):
    """Studies/usage.py has more designs. With cells as replicates chance is called a difference."""
    fit = fit_log1p_nmf(np.ones((8, 8)), 8, random_state=0, tol=0.1, n_jobs=1)
    called, covered = chance(fit, n_donors, 60, ages=ages, cells=cells)
    assert 0.02 < called < 0.085
    assert covered > 0.91
    assert chance(fit, n_donors, 5, ages=ages, replicated=False, cells=cells)[0] > 0.2


@pytest.mark.parametrize(
    ("groups", "options", "words"),
    [
        (["a"] * 120, {}, "all samples are in the group 'a'"),
        (GROUP, {"reference": "c"}, "reference must be one of 'a', 'b', got 'c'"),
        (GROUP, {"replicate": [1, 2, 3]}, "one label for each of the 120 samples, got 3"),
        (GROUP, {"covariates": {"same": GROUP}}, "cannot be separated from the replicates and covariates"),
        (GROUP, {"replicate": GROUP}, "from 2 replicates with 2 coefficients"),
        (GROUP, {"numeric": True}, "numeric=True needs numbers"),
        (GROUP, {"interaction": True}, "interaction=True needs within="),
        (GROUP, {"relative_to": "k9"}, "a factor must be one of 'k0'"),
        (GROUP, {"loadings": np.ones((120, 2))}, r"samples x 3 factors, got shape \(120, 2\)"),
        (np.where(np.arange(120) == 35, 24, AGE), {}, r"1 of 12 replicates \(in one, 23 and 24\)"),
    ],
)
def test_refusals(model, groups, options, words):
    with pytest.raises(ValueError, match=words):
        model.usage(groups, **{"replicate": DONOR, **options})


@pytest.mark.parametrize("replicate", ["donor", None])
@pytest.mark.filterwarnings("ignore:this test treats samples as replicates:UserWarning")
def test_columns_of_anndata_and_the_plot(replicate):
    adata = anndata.AnnData(np.random.default_rng(0).poisson(2.0, (120, 12)).astype(np.float32))
    adata.obs["donor"], adata.obs["condition"], adata.obs["age"] = DONOR, GROUP, AGE
    adata.obs["batch"] = np.repeat(np.tile(["x", "y", "z"], 4), 10)
    tl.log1p_nmf(adata, 3, tol=1e-3, init="nndsvd", n_jobs=1)
    tl.usage(adata, "condition", replicate=replicate, covariates="batch" if replicate else ["batch"])
    ax = pl.usage(adata, figure=Figure()).axes[0]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["k0", "k1", "k2"]
    assert len(ax.collections) == (6 if replicate else 0)
    tl.usage(adata, "age", replicate="donor")
    assert adata.uns["log1p_nmf_usage"]["table"]["group"].tolist() == ["age"] * 3
    assert "slope on age" in pl.usage(adata, figure=Figure()).axes[0].get_xlabel()
    tl.usage(adata, "age", replicate=True, numeric=False)
    assert adata.uns["log1p_nmf_usage"]["table"]["reference"].unique().tolist() == ["23"]
    with pytest.raises(KeyError, match="no column 'sex'"):
        tl.usage(adata, "sex")
