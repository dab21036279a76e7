"""Plots of factors: the points, bars and cells are the factors' values, and names do not overlap."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from scipy.stats import spearmanr

from log1pnmf import Log1pNMF, pl
from log1pnmf.analysis.groups import factor_colors, point_colors
from log1pnmf.fitting.ranking import ranking_of
from log1pnmf.pl.canvas import fit_of_arrays, spread


def overlaps(texts):
    boxes = [text.get_window_extent() for text in texts]
    return [
        (texts[i].get_text(), texts[j].get_text())
        for i in range(len(boxes))
        for j in range(i)
        if boxes[i].x0 < boxes[j].x1
        and boxes[j].x0 < boxes[i].x1
        and boxes[i].y0 < boxes[j].y1
        and boxes[j].y0 < boxes[i].y1
    ]


class TestScatter:
    def test_points_are_the_factors(self, shown, ax):
        pl.factor_scatter(shown, 1, 2, ax=ax)
        np.testing.assert_array_equal(ax.collections[0].get_offsets(), shown.factors[:, [1, 2]])
        assert ax.get_title(loc="right") == f"Spearman {spearmanr(shown.factors[:, [1, 2]]).statistic:.2f}"

    def test_names_are_of_extreme_features_and_apart(self, shown, figure):
        figure.set_size_inches(4, 4)
        ax = pl.factor_scatter(shown, 1, 2, n_labels=9, ax=figure.subplots())
        names = {text.get_text() for text in ax.texts}
        for k, other in ((1, 2), (2, 1)):
            scaled = shown.factors / shown.factors.max(axis=0)
            assert f"gene{np.argmax(scaled[:, k] - scaled[:, other])}" in names
        assert len(names) <= 9
        assert overlaps(ax.texts) == []

    def test_names_of_crowded_points_are_left_out_rather_than_on_each_other(self, figure):
        figure.set_size_inches(2.5, 2.5)
        factors = 1.0 + 1e-3 * np.random.default_rng(0).random((20, 2))
        names = np.array([f"long_name_{j}" for j in range(20)], dtype=object)
        crowd = fit_of_arrays(np.ones((5, 2)), factors, 1.0, feature_names=names)
        ax = pl.factor_scatter(crowd, 0, 1, n_labels=20, ax=figure.subplots())
        assert 0 < len(ax.texts) < 20
        assert overlaps(ax.texts) == []

    def test_named_features_have_the_colour_of_the_factor_in_which_they_are_larger(self, shown, ax):
        pl.factor_scatter(shown, 1, 2, ax=ax)
        colors = point_colors(shown.n_components)
        sides = [1 if x >= y else 2 for x, y in ax.collections[1].get_offsets()]
        faces = [tuple(face[:3]) for face in ax.collections[1].get_facecolors()]
        assert faces == [to_rgb(colors[side]) for side in sides]


class TestTopFeatures:
    def test_bars_are_fold_changes_in_the_one_order(self, shown, figure):
        pl.top_features(shown, n_top=5, figure=figure)
        assert len(figure.axes) == 4
        ranking = ranking_of(shown)
        for k, ax in enumerate(figure.axes):
            expected = ranking.top(k, 5)
            assert [text.get_text() for text in ax.get_yticklabels()] == [f"gene{j}" for j in expected]
            widths = [bar.get_width() for bar in ax.patches]
            np.testing.assert_array_equal(widths, ranking.log2_fold_change[expected, k])
            assert ax.patches[0].get_facecolor()[:3] == to_rgb(factor_colors(shown.loadings)[k])
            assert ax.get_title(loc="left") == f"k{k}"

    def test_heat_map_holds_fold_changes(self, shown, figure):
        pl.top_features(shown, n_top=3, kind="heatmap", figure=figure)
        ax, ranking = figure.axes[0], ranking_of(shown)
        rows = [int(text.get_text().removeprefix("gene")) for text in ax.get_yticklabels()]
        assert set(rows) == {int(j) for k in range(4) for j in ranking.top(k, 3)}
        assert len(rows) == len(set(rows))
        expected = np.maximum(ranking.log2_fold_change[rows], 0.0)
        np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), expected)

    @pytest.mark.parametrize("kind", ["bars", "heatmap"])
    def test_features_that_are_markers(self, figure, kind):
        rng = np.random.default_rng(0)
        own = (np.arange(60)[:, None] < 30) == (np.arange(20) < 10)
        counts = rng.poisson(np.where(own, 6.0, 0.5))
        model = Log1pNMF(2, tol=1e-5, random_state=0).fit(counts)
        found = model.markers(counts)
        pl.top_features(model, n_top=4, markers=found, kind=kind, figure=figure)
        shown = {text.get_text() for ax in figure.axes[:2] for text in ax.get_yticklabels()}
        expected = {int(j) for k in range(2) for j in found.top_index(k, 4)}
        assert {int(name) for name in shown if name.isdigit()} >= expected
        with pytest.raises(ValueError, match="pass those of the same fit"):
            pl.top_features(Log1pNMF(3, tol=1e-3, random_state=0).fit(counts), markers=found, figure=figure)

    def test_chosen_factors_and_other_names(self, shown, figure):
        pl.top_features(shown, factors=[3, 1], feature_names=[f"word{j}" for j in range(30)], figure=figure)
        assert [ax.get_title(loc="left") for ax in figure.axes] == ["k3", "k1"]
        assert all(text.get_text().startswith("word") for text in figure.axes[0].get_yticklabels())


class TestSpread:
    def test_is_apart_inside_and_in_order(self):
        wanted = np.sort(np.random.default_rng(0).random(8))
        moved = spread(wanted, 0.1, (0.0, 1.0))
        assert (np.diff(moved) >= 0.1 - 1e-12).all()
        assert moved[0] >= -1e-12
        assert moved[-1] <= 1.0 + 1e-12

    def test_takes_what_room_there_is(self):
        np.testing.assert_allclose(spread([0.5] * 5, 1.0, (0.0, 1.0)), [0, 0.25, 0.5, 0.75, 1.0])
        np.testing.assert_allclose(spread([0.1, 0.5, 0.9], 0.2, (0.0, 1.0)), [0.1, 0.5, 0.9])


@pytest.fixture(scope="module")
def fitted():
    counts = np.random.default_rng(0).poisson(np.where(np.eye(3).repeat(12, 0).repeat(5, 1), 6.0, 0.5))
    model = Log1pNMF(3, init="nndsvd", random_state=0).fit(counts)
    return model, model.markers(counts)


class TestVolcano:
    def test_a_factor_has_the_colour_it_has_in_every_other_plot(self, fitted, figure):
        model, found = fitted
        axes = figure.subplots(1, 4)
        pl.structure(model, ax=axes[3])
        legend = [patch.get_facecolor()[:3] for patch in axes[3].get_legend().get_patches()][::-1]
        for k in range(3):
            pl.volcano(found, k, ax=axes[k])
            drawn = {tuple(color[:3]) for part in axes[k].collections for color in part.get_facecolors()}
            assert legend[k] in drawn
            assert not drawn & (set(legend) - {legend[k]})

    def test_capped_p_values_are_marked_and_counted(self, fitted, figure):
        p = np.maximum(fitted[1].p, 1e-49)
        p[:3, 1] = (1e-60, 1e-320, 0.0)
        found = replace(fitted[1], p=p)
        for k, ax in enumerate(figure.subplots(1, 2)):
            pl.volcano(found, k, ax=ax)
            assert sum(len(part.get_offsets()) for part in ax.collections) == len(p)
        assert figure.axes[0].get_legend() is None
        (label,) = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
        assert label == "p < 1e-50 (3)"
        (marked,) = [part for part in figure.axes[1].collections if part.get_label() == label]
        np.testing.assert_array_equal(
            np.sort(marked.get_offsets()[:, 0]), np.sort(found.log2_fold_change[:3, 1])
        )
