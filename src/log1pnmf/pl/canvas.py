"""What all plots share: where they draw, and how axes look."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import isotonic_regression

from log1pnmf._common.checks import require
from log1pnmf.fitting.anndata import as_fit, fitted_samples, is_annotated
from log1pnmf.fitting.fit import Fit, Keys, c_label, marked_names, usual_factor_names
from log1pnmf.fitting.ranking import Ranking, rank_features
from log1pnmf.model.link import ShiftedLog

# ---------- stacked bars as pixels: exact however many bars there are, and one artist

Array = NDArray[np.float64]

GAP = 0.008
"""Gap between groups, as a part of the width."""

LEAST_WIDTH = 0.02
"""Least width of a group, as a part of the whole: few samples among thousands get wider bars."""


def group_places(sizes: Sequence[int]) -> Array:
    """Places of groups on a line of length 1, start and stop, in proportion to sizes but never tiny.

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


# ---------- what plots draw


@dataclass(frozen=True, eq=False)
class Factorization:
    """Loadings and factors without the fit behind them, with the names that `Fit` has for them.

    An AnnData object holds only these if features were dropped since the fit, or if only the loadings are
    left, as after `anndata.concat`. In the second case m is 0, and c is NaN.
    """

    # (n, K) and (m, K): as they are drawn
    loadings: Array
    factors: Array
    c: float
    feature_names: NDArray[np.object_] | None = None
    history: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)  # see `Fit.history`
    size_factors: Array | None = None  # (n,): where they are known
    given_factor_names: tuple[str, ...] | None = None
    dispersion: Array | None = None  # (m,): with negative binomial noise
    kinds: tuple[str, ...] | None = None  # see `Fit.kinds`

    def __post_init__(self) -> None:
        if self.feature_names is not None and len(self.feature_names) != len(self.factors):
            m, got = len(self.factors), len(self.feature_names)
            raise ValueError(f"feature_names must have one name for each of the {m} features, got {got}")

    @property
    def n_components(self) -> int:
        """Number of factors."""
        return self.loadings.shape[1]

    @property
    def name(self) -> str:
        """Short label: the shift of the link, where it is known."""
        return "" if math.isnan(self.c) else c_label(self.c)

    @property
    def factor_names(self) -> list[str]:
        """Names of the factors."""
        return list(self.given_factor_names or usual_factor_names(self.n_components))

    @property
    def factor_labels(self) -> list[str]:
        """Names of the factors, with a mark where something was known; see `Fit.factor_labels`."""
        return self.factor_names if self.kinds is None else marked_names(self.factor_names, self.kinds)

    @property
    def feature_labels(self) -> NDArray[np.object_]:
        """Names of the features, or their numbers where they have none."""
        if self.feature_names is not None:
            return self.feature_names
        return np.arange(len(self.factors)).astype(str).astype(object)


Drawable: TypeAlias = Fit | Factorization


def colors_in(adata: Any, column: str) -> dict[str, str] | None:
    """Return the colours that scanpy keeps for the categories of a column; None where it has none."""
    name = f"{column}_colors"
    if column not in adata.obs or name not in adata.uns or not hasattr(adata.obs[column], "cat"):
        return None
    categories = [str(one) for one in adata.obs[column].cat.categories]
    colors = [str(color) for color in adata.uns[name]]
    return dict(zip(categories, colors, strict=True)) if len(colors) == len(categories) else None


def drawable(source: Any, *, key: str | None = None, feature_names: Any = None) -> Drawable:
    """Read what a plot draws: the largest loading of every factor is 1, unless its sample was dropped."""
    if isinstance(source, Factorization):
        if feature_names is None:
            return source
        return replace(source, feature_names=np.array([str(name) for name in feature_names], dtype=object))
    if is_annotated(source):
        return drawable(_of_anndata(source, Keys(key)), feature_names=feature_names)
    return as_fit(source, key=key).normalized("max").named(feature_names=feature_names)


def need_factors(shown: Drawable) -> None:
    """Refuse a source that has loadings only."""
    if not len(shown.factors):
        raise ValueError("the source has loadings but no factors; pass the fit itself")


def _of_anndata(adata: Any, keys: Keys) -> Factorization:
    if keys.obsm not in adata.obsm:
        found = ", ".join(map(repr, adata.obsm)) or "none"
        raise KeyError(
            f"adata.obsm has no {keys.obsm!r} (it has: {found}); "
            "run log1pnmf.tl.log1p_nmf first, or pass the key it wrote to"
        )
    loadings = stored = np.asarray(adata.obsm[keys.obsm], dtype=np.float64)
    if keys.varm not in adata.varm or keys.uns not in adata.uns:
        return Factorization(loadings, np.zeros((0, loadings.shape[1])), math.nan)
    about = adata.uns[keys.uns]
    factors = np.asarray(adata.varm[keys.varm], dtype=np.float64)
    if about["scale"] != "max":
        largest = loadings.max(axis=0)
        scale = np.where(largest > 0.0, largest, 1.0)
        loadings, factors = loadings / scale, factors * scale
    sizes, (rows, missing) = np.asarray(about["size_factors"]), fitted_samples(adata, about, stored)
    return Factorization(
        loadings,
        factors,
        float(about["c"]),
        np.array(adata.var_names, dtype=object),
        about["history"],
        None if missing else sizes[rows],
        tuple(map(str, about["factor_names"])) if "factor_names" in about else None,
        np.nan_to_num(adata.var[keys.dispersion].to_numpy(np.float64))
        if keys.dispersion in adata.var
        else None,
        tuple(map(str, about["factor_kinds"])) if "factor_kinds" in about else None,
    )


def rank(shown: Drawable) -> Ranking:
    """Rank the features of what is drawn, as all lists do."""
    sizes = np.ones(len(shown.loadings)) if shown.size_factors is None else shown.size_factors
    link = ShiftedLog(shown.c)
    return rank_features(shown.loadings, shown.factors, sizes, link, dispersion=shown.dispersion)


# ---------- what all plots share: where they draw, and how axes look

INK = "#333333"
"""Colour of lines and text that belong to no factor."""

MOST_NUMBERS = 240
"""A heat map with more cells does not show their values as text."""


SHOW_AND_SAVE = """show : bool, optional
        Whether to call ``pyplot.show``. By default it is not called, because notebooks show figures anyway.
    save : str or PathLike, optional
        File to write the figure to; its ending sets the format.

    Returns
    -------"""


def drawing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plot scanpy's `show` and `save`, in its signature and docstring too."""

    @wraps(function)
    def drawn(*arguments: Any, show: bool | None = None, save: Any = None, **options: Any) -> Any:
        made = function(*arguments, **options)
        if save is not None:
            figure = made if isinstance(made, Figure | SubFigure) else made.figure
            figure.canvas.figure.savefig(save, bbox_inches="tight", dpi=150)
        if show:
            from matplotlib import pyplot

            pyplot.show()
        return made

    signature = inspect.signature(function)
    more = [
        inspect.Parameter("show", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="bool | None"),
        inspect.Parameter("save", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Any"),
    ]
    drawn.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])  # type: ignore[attr-defined]
    drawn.__doc__ = (function.__doc__ or "").replace("\n    Returns\n    -------", f"    {SHOW_AND_SAVE}", 1)
    return drawn


def axes_or_new(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    """Return the axes back, or make them in a new figure of pyplot."""
    return figure_or_new(None, figsize).subplots() if ax is None else ax


def figure_or_new(figure: Figure | SubFigure | None, figsize: tuple[float, float]) -> Any:
    """Return the figure back, or make a new one of pyplot."""
    if figure is not None:
        return figure
    from matplotlib import pyplot

    return pyplot.figure(figsize=figsize, layout="constrained")


def settle(ax: Axes) -> None:
    """Let the figure find its layout, so that sizes on the screen are known."""
    ax.figure.canvas.figure.draw_without_rendering()


def tidy(ax: Axes) -> None:
    """Leave the frame open at the top and on the right, in quiet colours."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(INK)
    ax.tick_params(colors=INK, labelsize="small")


def set_title(ax: Axes, title: str | None, default: str) -> None:
    """Write a title above the left end; an empty one leaves it out."""
    text = default if title is None else title
    if text:
        ax.set_title(text, loc="left", fontsize="medium", color=INK)


def heat_map(ax: Axes, values: np.ndarray, *, cmap: str, limits: tuple[float, float]) -> Any:
    """Draw a table as coloured cells, with numbers in them where they fit."""
    image = ax.imshow(
        values, cmap=cmap, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="nearest"
    )
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, colors=INK, labelsize="small")
    if values.size <= MOST_NUMBERS:
        for (row, column), value in np.ndenumerate(values):
            text = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.0f}"
            write_in_cell(image, row, column, value, text)
    return image


def write_in_cell(image: Any, row: int, column: int, value: float, text: str) -> None:
    """Write a text into a cell of a heat map, light on dark cells; `value` is that of the cell."""
    red, green, blue, _ = image.cmap(image.norm(value))
    color = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK
    image.axes.text(column, row, text, ha="center", va="center", fontsize="x-small", color=color)


def color_bar(image: Any, label: str) -> None:
    """Explain the colours of a heat map beside it."""
    ax = image.axes
    bar = ax.figure.colorbar(image, ax=ax, shrink=0.8, aspect=25, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(label, fontsize="small", color=INK)
    bar.ax.tick_params(labelsize="small", colors=INK, length=2)


# ---------- labels that do not overlap

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
