"""The structure plot: what its pixels say is what the loadings are."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from log1pnmf import pl
from log1pnmf.analysis.groups import arrange, factor_colors
from log1pnmf.fitting.fit import sample_shares
from log1pnmf.pl.canvas import fit_of_arrays, group_places, stacked_pixels


def column_heights(ax):
    """Height of the stack in every column of pixels, in data units."""
    (image,) = ax.images
    pixels = np.asarray(image.get_array())
    top = image.get_extent()[3]
    return pixels[:, :, 3].sum(axis=0) / 255.0 * top / len(pixels)


def factor_heights(ax, colors, columns):
    """Height of every colour in some columns, up to the pixels where colours mix."""
    (image,) = ax.images
    pixels = np.asarray(image.get_array())[:, columns, :3] / 255.0
    opaque = np.asarray(image.get_array())[:, columns, 3] > 127
    palette = np.array([to_rgb(color) for color in colors])
    nearest = np.linalg.norm(pixels[:, :, None] - palette, axis=3).argmin(axis=2)
    unit = image.get_extent()[3] / len(pixels)
    return np.stack([((nearest == k) & opaque).sum(axis=0) * unit for k in range(len(colors))], axis=1)


def columns_of(arrangement, width):
    """Column of pixels in the middle of each sample."""
    places = group_places([stop - start for _, start, stop in arrangement.spans]) * width
    at = []
    for (_, start, stop), (left, right) in zip(arrangement.spans, np.rint(places), strict=True):
        size = (right - left) / (stop - start)
        at.append(left + size * (np.arange(stop - start) + 0.5))
    return np.concatenate(at).astype(int)


class TestPixels:
    def test_every_colour_is_as_high_as_its_loading(self, shown, labels, ax):
        pl.structure(shown, labels, ax=ax)
        order = arrange(shown.loadings, labels)
        at = columns_of(order, ax.images[0].get_array().shape[1])
        drawn = factor_heights(ax, factor_colors(shown.loadings), at)
        np.testing.assert_allclose(drawn, shown.loadings[order.order], atol=0.02)
        sums = shown.loadings[order.order].sum(axis=1)
        np.testing.assert_allclose(column_heights(ax)[at], sums, atol=0.01)

    def test_nothing_is_drawn_between_groups(self, shown, labels, ax):
        pl.structure(shown, labels, ax=ax)
        heights = column_heights(ax)
        places = np.rint(group_places([20, 20, 20]) * len(heights)).astype(int)
        inside = np.zeros(len(heights), dtype=bool)
        for left, right in places:
            inside[left:right] = True
        assert (heights[~inside] == 0).all()
        assert (heights[inside] > 0).all()
        assert 0 < (~inside).sum() < 0.05 * len(heights)

    def test_shares_are_those_of_the_whole_signal(self, shown, labels, ax):
        pl.structure(shown, labels, heights="shares", factors=[2, 1], ax=ax)
        order = arrange(shown.loadings, labels)
        heights = column_heights(ax)
        expected = sample_shares(shown.loadings, shown.factors)[order.order][:, [2, 1]].sum(axis=1)
        np.testing.assert_allclose(heights[columns_of(order, len(heights))], expected, atol=0.01)

    def test_narrow_bars_are_averaged(self):
        values = np.random.default_rng(0).random((1000, 2))
        pixels = stacked_pixels(values, [(0, 1000)], ["red", "blue"], top=2.0, shape=(200, 10))
        heights = pixels[:, :, 3].sum(axis=0) / 255 * 2.0 / 200
        np.testing.assert_allclose(heights, values.sum(axis=1).reshape(10, 100).mean(axis=1), atol=0.01)

    def test_the_area_of_a_colour_is_exact(self):
        # Thin layers must not look thicker than they are: a pixel mixes what it covers.
        values = np.full((4, 2), [0.5, 0.003])
        pixels = (
            stacked_pixels(values, [(0, 4)], ["black", "red"], top=1.0, shape=(100, 4)).astype(float) / 255
        )
        red = (pixels[:, :, 0] * pixels[:, :, 3])[pixels[:, :, 3] > 0].sum() / 400
        assert red == pytest.approx(0.003, abs=2e-4)

    def test_groups_have_widths_in_proportion_and_rare_ones_are_seen(self):
        places = group_places([10_000, 5_000, 2])
        widths = np.diff(places, axis=1).ravel()
        assert widths[0] / widths[1] == pytest.approx(2.0)
        assert widths[2] > 0.015
        assert places[0, 0] == pytest.approx(0.0, abs=1e-12)
        assert places[-1, 1] == pytest.approx(1.0)
        assert (places[1:, 0] > places[:-1, 1]).all()
        assert (np.diff(group_places([1] * 300).ravel()) > 0).all()


class TestAround:
    def test_legend_lists_factors_in_the_order_of_the_stack(self, shown, labels, ax):
        pl.structure(shown, labels, ax=ax)
        legend = ax.get_legend()
        assert [text.get_text() for text in legend.get_texts()] == ["k3", "k2", "k1", "k0"]
        faces = [patch.get_facecolor()[:3] for patch in legend.get_patches()]
        assert faces == [to_rgb(color) for color in factor_colors(shown.loadings)[::-1]]

    def test_names_of_groups_are_below_them(self, shown, labels, figure):
        ax = pl.structure(shown, labels, ax=figure.subplots())
        names = {text.get_text(): text for text in ax.texts}
        assert set(names) == {"alpha", "beta", "gamma"}
        centres = group_places([20, 20, 20]).mean(axis=1)
        for name, centre in zip(("alpha", "beta", "gamma"), centres, strict=True):
            assert names[name].get_position()[0] == pytest.approx(centre)
            assert names[name].get_rotation() == 0

    def test_fourteen_names_do_not_overlap(self, figure):
        rng = np.random.default_rng(1)
        sizes = [110, 51, 236, 872, 214, 120, 130, 13, 70, 14, 8, 92, 5, 2]
        labels = np.repeat([f"{i:02d} a long name of a group"[: 6 + i] for i in range(14)], sizes)
        shown = fit_of_arrays(rng.random((len(labels), 3)), np.ones((5, 3)), 1.0)
        ax = pl.structure(shown, labels, ax=figure.subplots())
        figure.draw_without_rendering()
        texts = ax.texts
        assert len(texts) == 14
        # Slanted lines of text are parallel: they are apart if their anchors are.
        across = [ax.transData.transform((text.get_position()[0], 0.0))[0] for text in texts]
        height = texts[0].get_fontsize() * figure.dpi / 72
        slant = np.radians(texts[0].get_rotation())
        assert (np.diff(across) * np.sin(slant) > 1.15 * height).all()
        box = figure.bbox
        for text in texts:
            extent = text.get_window_extent()
            assert extent.x0 >= box.x0 - 1
            assert extent.y0 >= box.y0 - 1


class TestByGroup:
    def test_shows_the_means(self, shown, labels, ax):
        pl.loadings_by_group(shown, labels, ax=ax)
        expected = shown.loadings.reshape(3, 20, 4).mean(axis=1)
        np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), expected)
        numbers = np.array([float(text.get_text()) for text in ax.texts]).reshape(3, 4)
        np.testing.assert_allclose(numbers, expected, atol=0.0051)
        assert [text.get_text() for text in ax.get_yticklabels()] == ["alpha (20)", "beta (20)", "gamma (20)"]
        assert [text.get_text() for text in ax.get_xticklabels()] == ["k0", "k1", "k2", "k3"]


class TestNumbers:
    """A column of numbers is a scale: samples stand in its order, and are no groups of one."""

    def test_samples_stand_in_the_order_of_the_numbers(self, shown, figure, monkeypatch):
        monkeypatch.setattr("log1pnmf.analysis.groups.MOST_GROUPS", 20)
        values = np.random.default_rng(1).permutation(60) / 7
        ax = figure.subplots()
        pl.structure(shown, values, ax=ax)
        bars, strip = ax.images
        pixels = np.asarray(bars.get_array())
        heights = pixels[:, :, 3].sum(axis=0) / 255.0 * bars.get_extent()[3] / len(pixels)
        at = ((np.arange(60) + 0.5) / 60 * len(heights)).astype(int)
        np.testing.assert_allclose(heights[at], shown.loadings[np.argsort(values)].sum(axis=1), atol=0.01)
        np.testing.assert_array_equal(np.asarray(strip.get_array())[0], np.sort(values))
        ticks = [float(text.get_text()) for text in ax.get_xticklabels()]
        np.testing.assert_allclose(ticks, np.quantile(values, np.linspace(0, 1, 5)), rtol=0.01)

    def test_400_numbers_are_not_400_groups(self, figure):
        rng = np.random.default_rng(0)
        many = fit_of_arrays(rng.random((400, 3)), rng.random((5, 3)), c=1.0)
        ax = figure.subplots()
        pl.structure(many, rng.random(400), ax=ax)
        assert len(ax.get_xticklabels()) == 5
        assert ax.get_xlabel() == "groupby (samples in its order)"

    def test_missing_numbers_stand_apart(self, figure):
        rng = np.random.default_rng(0)
        values = rng.random(100)
        values[:10] = np.nan
        ax = pl.structure(
            fit_of_arrays(rng.random((100, 3)), rng.random((5, 3)), c=1.0), values, ax=figure.subplots()
        )
        assert [text.get_text() for text in ax.get_xticklabels()][-1] == "NA"
