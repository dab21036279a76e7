"""Usage of factors by groups of samples: units, tests, tables, and where they are written."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.usage import Design, measure
from scipy.stats import linregress, ttest_ind, ttest_rel

from log1pnmf import Log1pNMF
from log1pnmf.analysis.usage import moderate, usage


@pytest.fixture(scope="module")
def model():
    counts = np.random.default_rng(0).poisson(2.0, (120, 12))
    return Log1pNMF(3, tol=1e-3, random_state=0, n_jobs=1).fit(counts)


DONOR = np.repeat([f"d{i}" for i in range(12)], 10)
GROUP = np.repeat(["b", "a"], 60)


def by_donor(values, donors=DONOR):
    return np.stack([values[donors == one].mean(axis=0) for one in dict.fromkeys(donors)])


def test_one_factor_at_a_time_it_is_the_t_test_of_donor_means(model):
    """With fewer factors than are drawn together."""
    found = model.usage(GROUP, replicate=DONOR)
    means = by_donor(model.loadings_)
    expected = ttest_ind(means[6:], means[:6])
    assert (found.reference, found.comparisons) == ("a", ("b",))
    np.testing.assert_allclose(found.difference[0], means[:6].mean(axis=0) - means[6:].mean(axis=0))
    np.testing.assert_allclose(found.p[0], expected.pvalue)
    interval = expected.confidence_interval(0.95)
    np.testing.assert_allclose(found.lower[0], -interval.high)
    np.testing.assert_allclose(found.upper[0], -interval.low)
    assert found.means.shape == (12, 3)


def test_donors_in_both_groups_are_compared_with_themselves(model):
    donor, group = np.tile(np.repeat(np.arange(6), 10), 2), np.repeat(["a", "b"], 60)
    found = model.usage(group, replicate=donor)
    first, second = (by_donor(model.loadings_[group == one], donor[group == one]) for one in "ab")
    np.testing.assert_allclose(found.p[0], ttest_rel(second, first).pvalue)


def test_cells_are_not_replicates(model):
    with pytest.warns(UserWarning, match="treats samples as replicates"):
        found = model.usage(GROUP)
    assert not found.replicated
    assert len(found.means) == 120
    assert len(model.usage(GROUP, replicate=True).means) == 120  # as in bulk data, without a warning


def test_a_group_of_one_sample_is_not_known_to_differ(model):
    group = np.array(["a"] * 60 + ["b"] * 59 + ["c"])
    with pytest.warns(UserWarning, match="treats samples as replicates"):
        found = model.usage(group)
    assert np.isinf(found.error[1]).all()
    assert (found.p[1] == 1.0).all()
    assert np.isfinite(found.error[0]).all()


def test_numbers_have_a_slope(model):
    many = np.linspace(0.0, 1.0, 120)  # differs within donors: the slopes within them, against zero
    within = model.usage(many, replicate=DONOR)
    slopes = [
        linregress(many[one == DONOR], model.loadings_[one == DONOR, 0]).slope for one in dict.fromkeys(DONOR)
    ]
    assert within.difference[0, 0] == pytest.approx(np.mean(slopes))
    between = usage(model, many, replicate=True)
    expected = linregress(many, model.loadings_[:, 0])
    assert between.difference[0, 0] == pytest.approx(expected.slope)
    assert between.p[0, 0] == pytest.approx(expected.pvalue)
    assert between.reference is None
    assert "reference" not in between.table()


def test_covariates_are_held(model):
    """A difference that a covariate explains goes; labels and numbers both serve."""
    shifted = model.loadings_.copy()
    batch = np.repeat(np.tile(["x", "y"], 6), 10)
    shifted[batch == "y"] += 0.3
    uneven = np.repeat(["a"] * 5 + ["b"] + ["a"] + ["b"] * 5, 10)
    fit = replace(model.fit_, loadings=shifted)
    plain = usage(fit, uneven, replicate=DONOR)
    held = usage(fit, uneven, replicate=DONOR, covariates={"batch": batch})
    number = usage(fit, uneven, replicate=DONOR, covariates=(batch == "y").astype(float))
    np.testing.assert_allclose(held.difference, number.difference)
    assert held.error.max() < plain.error.max()


def test_several_groups_and_missing_labels(model):
    group = np.repeat(["low", "mid", "high", None], 30).astype(object)
    found = model.usage(group, replicate=DONOR, reference="low")
    assert found.comparisons == ("high", "mid")
    assert len(found.means) == 9
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


@pytest.mark.parametrize("n_donors", [3, 6])
def test_level(n_donors):
    """The quick form of benchmarks/usage.py; docs/usage.md has the whole."""
    found = measure(Design("", n_donors), 60)
    assert 0.02 < found["called"] < 0.085
    assert found["covered"] > 0.91
    assert measure(Design("", n_donors), 10, replicates=False)["called"] > 0.2


def test_refusals(model):
    with pytest.raises(ValueError, match="all samples are in the group 'a'"):
        model.usage(["a"] * 120, replicate=DONOR)
    with pytest.raises(ValueError, match="reference must be one of 'a', 'b', got 'c'"):
        model.usage(GROUP, replicate=DONOR, reference="c")
    with pytest.raises(ValueError, match="one label for each of the 120 samples, got 3"):
        model.usage(GROUP, replicate=[1, 2, 3])
    with pytest.raises(ValueError, match="cannot be separated from the replicates and covariates"):
        model.usage(GROUP, replicate=DONOR, covariates={"same": GROUP})
    with pytest.raises(ValueError, match="from 2 replicates with 2 coefficients"):
        model.usage(GROUP, replicate=GROUP)


@pytest.mark.parametrize("replicate", ["donor", None])
def test_anndata_and_plot(tmp_path, replicate):
    anndata = pytest.importorskip("anndata")
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from log1pnmf import pl, tl

    adata = anndata.AnnData(np.random.default_rng(0).poisson(2.0, (120, 12)).astype(np.float32))
    adata.obs["donor"], adata.obs["condition"] = DONOR, GROUP
    adata.obs["batch"] = np.repeat(np.tile(["x", "y", "z"], 4), 10)
    tl.log1p_nmf(adata, 3, tol=1e-3, n_jobs=1)
    if replicate is None:
        with pytest.warns(UserWarning, match="treats samples as replicates"):
            tl.usage(adata, "condition", covariates="batch")
    else:
        tl.usage(adata, "condition", replicate=replicate, covariates=["batch"])
    adata.write_h5ad(tmp_path / "a.h5ad")
    back = anndata.read_h5ad(tmp_path / "a.h5ad")
    table = back.uns["log1p_nmf_usage"]["table"]
    assert table.factor.tolist() == ["k0", "k1", "k2"]
    figure = pl.usage(back, figure=Figure())
    assert len(figure.axes[0].collections) == (6 if replicate else 0)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["k0", "k1", "k2"]
    with pytest.raises(KeyError, match="other_usage"):
        pl.usage(back, key="other")
    with pytest.raises(KeyError, match="no column 'sex'"):
        tl.usage(adata, "sex")
