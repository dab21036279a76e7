"""Labels that do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import isotonic_regression

from log1pnmf._common.optional import require

from .canvas import INK, settle

__all__ = ["label_below", "label_columns", "label_points", "spread"]

Array = NDArray[np.float64]

LINE_HEIGHT = 1.45
"""Distance between lines of text, as a multiple of the font size."""

SLANT = 45.0
LEVEL_UP_TO = 4
"""Names of columns with up to this many letters (k0, k10) are not slanted."""

SMALLEST_FONT = 4.0
MOST_MOVES = 60
"""Rounds in which names of points move apart."""

DROP = 0.05
"""How far below the axes names start, in parts of its height, where lines lead to them."""


def spread(wanted: ArrayLike, gap: float, bounds: tuple[float, float]) -> Array:
    """Move ascending positions as little as possible so that they are a gap apart and inside the bounds.

    Examples
    --------
    >>> spread([1.0, 1.2, 5.0], 1.0, (0.0, 10.0)).tolist()
    [0.6, 1.6, 5.0]
    """
    positions = np.asarray(wanted, dtype=np.float64)
    n, (low, high) = len(positions), bounds
    if n > 1:
        gap = min(gap, (high - low) / (n - 1))
    steps = gap * np.arange(n)
    moved = isotonic_regression(positions - steps)
    return np.clip(moved, low, high - gap * (n - 1)) + steps


def label_below(ax: Axes, names: Sequence[str], centres: ArrayLike) -> list[Text]:
    """Write names below the x axis: level where they fit, otherwise slanted, apart and with leading lines."""
    places = np.asarray(centres, dtype=np.float64)
    settle(ax)
    pixels = ax.figure.dpi / 72.0
    left, right = sorted(ax.get_xlim())
    per_pixel = (right - left) / ax.get_window_extent().width
    level = [_text(ax, x, -0.02, name, ha="center") for name, x in zip(names, places, strict=True)]
    if not _overlapping(level, padding=4.0 * pixels):
        return level
    for text in level:
        text.remove()
    size = FontProperties(size="small").get_size_in_points()
    room = (right - left) / per_pixel / pixels * np.sin(np.radians(SLANT)) / max(len(names), 1)
    size = max(SMALLEST_FONT, min(size, room / LINE_HEIGHT))
    gap = LINE_HEIGHT * size * pixels * per_pixel / np.sin(np.radians(SLANT))
    moved = spread(places, gap, (left, right))
    lines = [[(x, 0.0), (x, -0.3 * DROP), (to, -0.8 * DROP)] for x, to in zip(places, moved, strict=True)]
    transform = ax.get_xaxis_transform()
    ax.add_collection(
        LineCollection(lines, colors="#999999", linewidths=0.6, transform=transform, clip_on=False),
        autolim=False,
    )
    style = {"ha": "right", "va": "top", "rotation": SLANT, "rotation_mode": "anchor", "fontsize": size}
    return [_text(ax, x, -DROP, name, **style) for name, x in zip(names, moved, strict=True)]


def _text(ax: Axes, x: float, y: float, name: str, **style: Any) -> Text:
    """Write a name at a place on the x axis, y in parts of the height of the axes."""
    style = {"va": "top", "fontsize": "small", "color": INK, **style}
    return ax.text(x, y, name, transform=ax.get_xaxis_transform(), clip_on=False, **style)


def label_columns(ax: Axes, names: Sequence[str], *, above: bool = False) -> None:
    """Name the columns of a heat map, below or above it; long names are slanted, so that none overlap."""
    ax.set_xticks(range(len(names)), names)
    ax.tick_params(axis="x", top=False, labeltop=above, labelbottom=not above)
    if max(map(len, names), default=0) <= LEVEL_UP_TO:
        return
    for label in ax.get_xticklabels():
        label.set(rotation=SLANT, rotation_mode="anchor", ha="left" if above else "right")


def label_points(ax: Axes, names: Sequence[str], x: Array, y: Array) -> list[Text]:
    """Name points; names that overlap after all moves are left out, the last ones first."""
    adjust = require("adjustText", purpose="labels of points")
    settle(ax)
    texts = [
        ax.text(at_x, at_y, name, fontsize="x-small", color=INK, ha="center", va="center")
        for name, at_x, at_y in zip(names, x, y, strict=True)
    ]
    if not texts:
        return []
    arrows = {"arrowstyle": "-", "color": "#999999", "lw": 0.5}
    # By iterations, not by time, so that it always ends up the same.
    _, drawn = adjust.adjust_text(
        texts, x=x, y=y, ax=ax, iter_lim=MOST_MOVES, expand=(1.3, 1.6), arrowprops=arrows, min_arrow_len=4
    )
    kept: list[Text] = []
    for text in texts:
        if _overlapping([*kept, text], padding=0.0):
            text.remove()
            _remove_arrow(drawn, text)
        else:
            kept.append(text)
    return kept


def _remove_arrow(arrows: list[Any], text: Text) -> None:
    """Remove the line that led to a removed text."""
    for arrow in arrows:
        if getattr(arrow, "patchA", None) is text:
            arrow.remove()


def _overlapping(texts: Sequence[Text], padding: float) -> bool:
    boxes = [text.get_window_extent() for text in texts]
    return any(
        first.x0 < second.x1 + padding
        and second.x0 < first.x1 + padding
        and first.y0 < second.y1
        and second.y0 < first.y1
        for i, first in enumerate(boxes)
        for second in boxes[i + 1 :]
    )
