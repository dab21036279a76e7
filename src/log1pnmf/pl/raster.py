"""Stacked bars as pixels: exact however many bars there are, and one artist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

__all__ = ["group_places", "stacked_pixels"]

Array = NDArray[np.float64]

GAP = 0.008
"""Gap between groups, as a part of the width."""

LEAST_WIDTH = 0.02
"""Least width of a group, as a part of the whole: few samples among thousands get wider bars."""


def group_places(sizes: Sequence[int]) -> Array:
    """Places of groups on a line of length 1, start and stop, in proportion to sizes but never tiny.

    Examples
    --------
    >>> group_places([1, 3]).round(3).tolist()
    [[0.0, 0.248], [0.256, 1.0]]
    """
    counts = np.asarray(sizes, dtype=np.float64)
    least = min(LEAST_WIDTH, 0.5 / len(counts))
    gap = min(GAP, 0.25 / len(counts))
    widths = np.maximum(counts / counts.sum(), least)
    widths *= (1.0 - gap * (len(counts) - 1)) / widths.sum()
    stops = np.cumsum(widths) + gap * np.arange(len(counts))
    return np.stack((stops - widths, stops), axis=1)


def stacked_pixels(
    values: Array,
    parts: Sequence[tuple[int, int]],
    colors: Sequence[Any],
    *,
    top: float,
    shape: tuple[int, int],
) -> NDArray[np.uint8]:
    """Draw stacked bars, groups of them apart.

    A pixel has the mean colour of what it covers from top to bottom; from left to right, a column of pixels
    shows the mean of the bars it covers.
    """
    rows, columns = shape
    heights = np.zeros((columns, values.shape[1]))
    places = np.rint(columns * group_places([stop - start for start, stop in parts])).astype(int)
    for (start, stop), (left, right) in zip(parts, places.tolist(), strict=True):
        heights[left:right] = _column_means(values[start:stop], right - left)
    floors = top / rows * np.arange(rows)[:, None]
    paint = np.zeros((rows, columns, 4))
    below = np.zeros((1, columns))
    for height, color in zip(heights.T, colors, strict=True):
        above = below + height
        covered = np.minimum(above - floors, top / rows).clip(min=0.0)
        covered -= np.minimum(below - floors, top / rows).clip(min=0.0)
        paint += (covered * (rows / top))[:, :, None] * (*to_rgb(color), 1.0)
        below = above
    # Where nothing is drawn the colour is white: no dark rim appears when the picture is made smaller.
    opaque = paint[:, :, 3:]
    paint[:, :, :3] = np.where(opaque > 1e-9, paint[:, :, :3] / np.where(opaque > 1e-9, opaque, 1.0), 1.0)
    return np.rint(255.0 * paint.clip(0.0, 1.0)).astype(np.uint8)


def _column_means(values: Array, columns: int) -> Array:
    """Mean of the bars that each of a number of equally wide columns covers."""
    sums = np.concatenate((np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)))
    cuts = np.linspace(0.0, len(values), columns + 1)
    at = [np.interp(cuts, np.arange(len(sums)), column) for column in sums.T]
    return np.diff(np.stack(at, axis=1), axis=0) * (columns / len(values))
