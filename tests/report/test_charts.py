"""Charts of the report that it draws itself."""

import numpy as np

from log1pnmf.report.figures import histogram, log_curve


def test_histogram_bars_cover_all_values():
    chart = histogram(np.array([0.5, 1.0, 1.0, 2.0, 0.0]), label="", x_title="", n_bins=3)
    heights = [height for *_, height in chart.bars]
    assert len(heights) == 3
    np.testing.assert_allclose(np.array(heights) / min(heights), [1, 2, 1], rtol=1e-2)
    assert [text for _, text in chart.x_ticks] == ["0.5", "1", "2"]
    assert histogram(np.ones(4), label="", x_title="") is None


def test_log_curve_is_straight_where_the_values_fall_by_a_factor():
    x = np.arange(5.0)
    texts = {"name": "exact", "style": "line-1", "label": "", "y_title": ""}
    chart = log_curve(x, 10.0**-x, level=(0.01, "tol"), **texts)
    points = np.array([point.split(",") for point in chart.lines[0][2][1:].split("L")], dtype=float)
    np.testing.assert_allclose(
        np.diff(points, axis=0), np.diff(points, axis=0)[:1].repeat(4, axis=0), atol=0.02
    )
    assert chart.level[0] == points[2, 1]
    assert log_curve(x[:1], x[:1], **texts) is None
