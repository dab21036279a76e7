"""Order of samples, their groups, and colours of factors."""

import numpy as np
import pandas as pd
import pytest

from log1pnmf._common.colors import BASELINE, distinct_colors, factor_colors
from log1pnmf.analysis.groups import MOST_LEAVES, Groups, arrange


def walk(loadings, order):
    """Length of the path through the samples in an order."""
    return np.linalg.norm(np.diff(loadings[order], axis=0), axis=1).sum()


@pytest.fixture
def loadings():
    return np.random.default_rng(0).gamma(0.4, size=(120, 4))


class TestGroups:
    def test_categories_keep_their_order_and_unused_ones_are_left_out(self):
        labels = pd.Categorical(["low", "high", "low"], categories=["low", "never", "high"])
        for given in (labels, pd.Series(labels)):
            groups = Groups.of(given)
            assert groups.names == ("low", "high")
            assert groups.codes.tolist() == [0, 1, 0]

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

    @pytest.mark.slow
    def test_a_hundred_thousand_samples(self):
        values = np.random.default_rng(8).gamma(0.3, size=(100_000, 15))
        order = arrange(values, np.arange(100_000) % 14).order
        assert walk(values, order) < 0.6 * walk(values, np.arange(100_000))


# Björn Ottosson's OKLab: linear sRGB to cone responses, and their cube roots to lightness and two hues.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def oklab(rgb):
    """sRGB in OKLab, where distances are about as large as they look."""
    values = np.asarray(rgb, dtype=np.float64)
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ TO_CONES.T) @ TO_LAB.T


def apart(colors):
    """Least distance between two colours."""
    lab = oklab([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in colors])
    distances = np.linalg.norm(lab[:, None] - lab[None], axis=2)
    return distances[np.triu_indices(len(colors), k=1)].min()


class TestColors:
    @pytest.mark.parametrize(("n", "least"), [(10, 0.14), (20, 0.12), (30, 0.10), (60, 0.08)])
    def test_can_be_told_apart(self, n, least):
        assert apart(factor_colors(n)) >= least

    def test_do_not_change_when_there_are_more(self):
        many = distinct_colors(40)
        for n in range(40):
            assert distinct_colors(n) == many[:n]
        assert factor_colors(41) == [BASELINE, *many]

    def test_stand_out_from_white_paper(self):
        rgb = [[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in distinct_colors(60)]
        assert oklab(rgb)[:, 0].max() < 0.9

    def test_none(self):
        assert factor_colors(0) == distinct_colors(0) == []
