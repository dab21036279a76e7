"""Order of samples, their groups, and colours of factors."""

import numpy as np
import pandas as pd
import pytest

from log1pnmf.analysis.groups import (
    BASELINE,
    MOST_LEAVES,
    PALE,
    Groups,
    arrange,
    distinct_colors,
    factor_colors,
    point_colors,
)


def walk(loadings, order):
    """Length of the path through the samples in an order."""
    return np.linalg.norm(np.diff(loadings[order], axis=0), axis=1).sum()


@pytest.fixture
def loadings():
    return np.random.default_rng(0).gamma(0.4, size=(120, 4))


class TestGroups:
    def test_categories_keep_their_order_and_unused_ones_are_left_out(self):
        labels = pd.Categorical(["low", "high", "low"], categories=["low", "never", "high"])
        for groups in map(Groups.of, (labels, pd.Series(labels))):
            assert (groups.names, groups.codes.tolist()) == (("low", "high"), [0, 1, 0])

    def test_missing_labels_are_a_last_group(self):
        words = [np.array(["z", nothing, "a"], dtype=object) for nothing in (None, float("nan"))]
        kinds = [pd.Categorical(["z", None, "a"]), pd.array(["z", None, "a"], dtype="string")]
        for given in words + kinds:
            groups = Groups.of(given)
            assert groups.names == ("a", "z", "NA")
            assert groups.labels.tolist() == ["z", "NA", "a"]
        assert Groups.of([10, 9, 10]).names == ("9", "10")  # numbers are sorted as numbers
        with pytest.raises(ValueError, match="one label for each sample"):
            Groups.of(np.zeros((3, 2)))


class TestArrange:
    def test_every_sample_is_there_once_and_in_its_group(self, loadings):
        labels = np.random.default_rng(1).choice(["a", "b", "c"], size=120)
        arrangement = arrange(loadings, labels)
        assert sorted(arrangement.order.tolist()) == list(range(120))
        assert [name for name, _, _ in arrangement.spans] == ["a", "b", "c"]
        assert arrangement.spans[-1][2] == 120
        for name, start, stop in arrangement.spans:
            assert set(labels[arrangement.order[start:stop]]) == {name}

    def test_samples_on_a_line_are_put_in_its_order(self):
        place = np.random.default_rng(2).permutation(50)
        line = place[:, None] * np.array([[1.0, 2.0]])
        assert place[arrange(line).order].tolist() == list(range(49, -1, -1))  # the larger end first

    @pytest.mark.parametrize("n", [MOST_LEAVES, 5 * MOST_LEAVES])
    def test_large_groups_too_are_close_to_a_line(self, n):
        t = np.random.default_rng(3).random(n)
        curve = np.stack([np.cos(3 * t), np.sin(3 * t)], axis=1) + 1.0
        ideal = walk(curve, np.argsort(t))
        assert walk(curve, arrange(curve).order) < 1.3 * ideal
        values = np.random.default_rng(4).gamma(0.4, size=(n, 4))
        assert walk(values, arrange(values).order) < 0.5 * walk(values, np.arange(n))

    def test_the_order_of_samples_given_does_not_matter(self, loadings):
        shuffle = np.random.default_rng(5).permutation(120)
        np.testing.assert_array_equal(
            loadings[shuffle][arrange(loadings[shuffle]).order], loadings[arrange(loadings).order]
        )

    def test_alike_samples(self):
        assert sorted(arrange(np.ones((1000, 2))).order.tolist()) == list(range(1000))
        assert arrange(np.ones((1, 2))).order.tolist() == [0]

    def test_thinning_is_in_proportion_but_keeps_small_groups(self):
        labels = np.repeat(["big", "half", "rare"], [6000, 3000, 3])
        values = np.random.default_rng(6).random((9003, 2))
        first, second = (arrange(values, labels, max_samples=900, random_state=1) for _ in range(2))
        sizes = {name: stop - start for name, start, stop in first.spans}
        assert sizes["rare"] == 3
        assert sum(sizes.values()) == 900
        assert sizes["big"] / sizes["half"] == pytest.approx(2.0, rel=0.03)
        np.testing.assert_array_equal(first.order, second.order)
        assert len(set(first.order.tolist())) == 900
        least = arrange(values[:1000], np.arange(1000) % 14, max_samples=14)
        assert [stop - start for _, start, stop in least.spans] == [1] * 14

    def test_numbers_put_samples_in_order(self, loadings):
        values = np.random.default_rng(2).permutation(120).astype(float)
        values[[3, 50]] = np.nan
        found = arrange(loadings, values)
        assert found.spans == (("", 0, 118), ("NA", 118, 120))
        assert (np.diff(found.scale[:118]) > 0).all()
        np.testing.assert_array_equal(found.scale, values[found.order])
        thinned = arrange(loadings, values, max_samples=20)
        assert len(set(thinned.order.tolist())) == 20
        assert thinned.scale[0] == np.nanmin(values)
        few = arrange(loadings, np.arange(120) % 5)  # few numbers are groups
        assert (len(few.spans), few.scale) == (5, None)

    def test_refusals(self, loadings):
        with pytest.raises(ValueError, match="one label for each of the 120 samples, got 3"):
            arrange(loadings, ["a", "b", "c"])
        with pytest.raises(ValueError, match="at least the number of groups, 120, got 10"):
            arrange(loadings, [f"g{i}" for i in range(120)], max_samples=10)
        with pytest.raises(ValueError, match="finite table"):
            arrange(np.full((3, 2), np.nan))


def test_colours_differ_and_do_not_change_when_there_are_more():
    assert len({PALE, *point_colors(60)}) == 61
    assert point_colors(41) == point_colors(60)[:41] == [BASELINE, *distinct_colors(40)]


def test_only_a_baseline_that_all_samples_share_is_pale():
    other = np.r_[np.zeros(50), np.ones(50)]
    for less, color in ((0.9, PALE), (0.4, PALE), (0.2, BASELINE)):  # loading of half of the samples
        for scale in (1.0, 7.0):
            loadings = scale * np.column_stack((np.where(other > 0, less, 1.0), other))
            assert factor_colors(loadings) == [color, *distinct_colors(1)]
