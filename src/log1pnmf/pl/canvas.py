"""What all plots share: where they draw, and the style of axes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from itertools import combinations
from typing import Any, ParamSpec, TypeAlias, TypedDict, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from numpy.typing import ArrayLike, NDArray
from sklearn.isotonic import isotonic_regression

from log1pnmf._common.archive import StrPath
from log1pnmf._common.checks import extend, require
from log1pnmf.fitting.anndata import as_fit, fitted_samples, is_annotated, stored
from log1pnmf.fitting.fit import DataFacts, Fit, Keys, factor_number
from log1pnmf.fitting.settings import Settings

# ---------- stacked bars as pixels: exact however many bars there are, and one artist

Array = NDArray[np.float64]
OnFigure: TypeAlias = Figure | SubFigure | None

GAP = 0.008  # between groups, as a part of the width
LEAST_WIDTH = 0.02  # of a group, as a part of the whole: few samples among thousands get wider bars


def group_places(sizes: Sequence[int]) -> Array:
    """Return start and stop of groups on a line of length 1, in proportion to sizes but never tiny."""
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
    """Return a picture of stacked bars, groups of them apart.

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
    """Return the mean of the bars that each of a number of equally wide columns covers."""
    sums = np.concatenate((np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)))
    cuts = np.linspace(0.0, len(values), columns + 1)
    at = [np.interp(cuts, np.arange(len(sums)), column) for column in sums.T]
    return np.diff(np.stack(at, axis=1), axis=0) * (columns / len(values))


# ---------- the fit that a plot draws


def fit_to_draw(source: Any, *, key: str | None = None, feature_names: Any = None) -> Fit:
    """Return the fit of a source, largest loadings 1; samples and features may be some of those fitted."""
    fit = _stored_fit(source, Keys(key)) if is_annotated(source) else as_fit(source, key=key)
    return fit.normalized("max").named(feature_names=feature_names)


def _stored_fit(adata: Any, keys: Keys) -> Fit:
    loadings, factors = (
        np.asarray(stored(adata, slot, getattr(keys, slot)), dtype=np.float64) for slot in ("obsm", "varm")
    )
    about, more = stored(adata, "uns", keys.uns), {}
    rows, missing = fitted_samples(adata, about, loadings)
    if not missing:
        more["size_factors"] = np.asarray(about["size_factors"])[rows]
    if keys.dispersion in adata.var:
        more["dispersion"] = np.nan_to_num(adata.var[keys.dispersion].to_numpy(np.float64))
    return fit_of_arrays(
        loadings,
        factors,
        float(about["c"]),
        scale=str(about["scale"]),
        feature_names=np.array(adata.var_names, dtype=object),
        history=about["history"],
        given_factor_names=about.get("factor_names"),
        factor_kinds=about.get("factor_kinds"),
        **more,
    )


def fit_of_arrays(loadings: Array, factors: Array, c: float = 1.0, **known: Any) -> Fit:
    """Return a fit to draw of loadings and factors alone; `known` are other parts of `Fit`."""
    settings, (n, m) = Settings(loadings.shape[1], c=c), (len(loadings), len(factors))
    rest: dict[str, Any] = {"stopped": "converged", "n_iter": 0, "seconds": 0.0, "history": {}}
    rest |= {"objective": math.nan, "approximate_log_likelihood": None, "kkt_residual": math.nan}
    data = DataFacts(n, m, nnz=0, total=0.0, fitted_total=0.0)
    return replace(Fit(loadings, factors, np.ones(n), settings, settings, data, **rest), **known)


def chosen_factors(fit: Fit, factors: Sequence[int | str] | None) -> list[int]:
    """Return the numbers of factors that are given by number or name; of all, where none are given."""
    given = range(fit.n_components) if factors is None else factors
    return [factor_number(k, fit.factor_names) for k in given]


def result_in(source: Any, kind: type, key: str | None, *, tool: str, call: str) -> Any:
    """Return a result that was given, or what a function of `log1pnmf.tl` stored of it in ``adata.uns``."""
    if isinstance(source, kind):
        if key is not None:
            raise ValueError(f"key={key!r} is for AnnData, got {kind.__name__}; leave it out")
        return source
    name = getattr(Keys(key), tool)
    if not hasattr(source, "uns") or name not in source.uns:
        raise KeyError(
            f"no {kind.__name__.lower()} in a {type(source).__name__}: pass the result of {call}, or an "
            f"AnnData with uns[{name!r}], which log1pnmf.tl.{tool} writes"
        )
    return source.uns[name]


def colors_in(adata: Any, column: str) -> dict[str, str] | None:
    """Return the colours that scanpy keeps for the categories of a column; None where it has none."""
    name = f"{column}_colors"
    if column not in adata.obs or name not in adata.uns or not hasattr(adata.obs[column], "cat"):
        return None
    categories, colors = adata.obs[column].cat.categories, list(map(str, adata.uns[name]))
    return dict(zip(map(str, categories), colors, strict=True)) if len(colors) == len(categories) else None


# ---------- what all plots share: where they draw, and the style of axes

INK = "#333333"  # lines and text that belong to no factor
MOST_NUMBERS = 240  # a heat map with more cells does not show their values as text

SHARED = """
source : Fit, Log1pNMF, AnnData, or a file that `save` wrote
    The fit.
found : Diagnostics
    Result of `log1pnmf.analysis.diagnose`.
key : str, optional
    Name of the fit in an AnnData.
factors : sequence of int or str, optional
    Which factors to draw, by number or name; by default all.
feature_names : sequence of str, optional
    Names of the features; by default those of the source.
gene_symbols : str, optional
    Column of ``adata.var`` with the names to show, if `var_names` are identifiers.
groupby : str, array-like of shape (n,) or None
    Column of ``adata.obs``, or at most 60 different labels; categories keep their order. In plots of single
    samples, numbers with more different values (a pseudotime, an age) sort the samples, and a strip shows
    them.
n_labels : int
    Maximum number of features or samples to name, the most extreme first; names that would overlap are
    omitted.
max_samples : int, optional
    Maximum number of samples to draw; groups are thinned equally.
n_columns : int
    Number of panels in a row.
title : str, optional
    Title; by default the name of the fit, such as "c = 1".
ax : Axes, optional
    Axes to draw on; by default those of a new figure.
figure : Figure or SubFigure, optional
    Figure to draw on; by default a new one.
show : bool, optional
    Whether to call ``pyplot.show``. By default it is not called, because notebooks show figures anyway.
save : str or PathLike, optional
    File to write the figure to; its ending sets the format.
"""


class Shown(TypedDict, total=False):
    """Parameters that all plots share, for type checkers."""

    show: bool | None
    save: StrPath | None


P = ParamSpec("P")
R = TypeVar("R")


def drawing(function: Callable[P, R]) -> Callable[P, R]:
    """Return a plot with scanpy's parameters `show` and `save`, and with all that plots share described."""

    @wraps(function)
    def drawn(*arguments: Any, show: bool | None = None, save: StrPath | None = None, **options: Any) -> Any:
        inspect.signature(drawn).bind(*arguments, **options)  # the function itself takes any keyword
        made: Any = function(*arguments, **options)
        if save is not None:
            figure = made if isinstance(made, Figure | SubFigure) else made.figure
            figure.canvas.figure.savefig(save, bbox_inches="tight", dpi=150)
        if show:
            from matplotlib import pyplot

            pyplot.show()
        return made

    made = "Axes" if "ax" in inspect.signature(function).parameters else "Figure"
    returns = "" if "Returns\n" in (function.__doc__ or "") else f"Returns\n-------\n{made}\n\n"
    extend(drawn, {"show": None, "save": None}, SHARED, returns)
    drawn.__doc__ = f"{drawn.__doc__}\n\nExamples\n--------\nSee :doc:`/gallery/index`."
    return drawn  # type: ignore[return-value]


def axes_or_new(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    """Return the axes that were given, or those of a new figure of pyplot."""
    return figure_or_new(None, figsize).subplots() if ax is None else ax


def figure_or_new(figure: OnFigure, figsize: tuple[float, float]) -> Any:
    """Return the figure that was given, or a new one of pyplot."""
    if figure is not None:
        return figure
    from matplotlib import pyplot

    return pyplot.figure(figsize=figsize, layout="constrained")


def panels_in(figure: Any, n: int, most_columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """Return a figure, new if none is given, and n panels of a size in its rows."""
    columns = max(1, min(most_columns, n))
    rows = -(-n // columns)
    figure = figure_or_new(figure, (size[0] * columns, size[1] * rows))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in panels[n:]:
        ax.set_visible(False)
    return figure, list(panels[:n])


def tidy(ax: Axes) -> None:
    """Leave the frame open at the top and on the right, in quiet colours."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(INK)
    ax.tick_params(colors=INK, labelsize="small")


def caption(ax: Axes, x: str = "", y: str = "", title: str = "", *, size: str = "medium") -> None:
    """Write what the axes show, and a title above their left end; empty texts are left out."""
    for write, text in ((ax.set_xlabel, x), (ax.set_ylabel, y)):
        if text:
            write(text, fontsize=size, color=INK)
    if title:
        ax.set_title(title, loc="left", fontsize=size, color=INK)


def heat_map(ax: Axes, values: Any, cmap: str, limits: tuple[float, float], *, numbers: bool = True) -> Any:
    """Draw a table as coloured cells, with numbers in them where they fit."""
    image = ax.imshow(values, cmap, clim=limits, aspect="auto", interpolation="nearest")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, colors=INK, labelsize="small")
    if numbers and values.size <= MOST_NUMBERS:
        for (row, column), value in np.ndenumerate(values):
            text = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.0f}"
            red, green, blue, _ = image.cmap(image.norm(value))
            color = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK
            ax.text(column, row, text, ha="center", va="center", fontsize="x-small", color=color)
    return image


def color_bar(image: Any, label: str) -> None:
    """Explain the colours of a heat map beside it."""
    bar = image.axes.figure.colorbar(image, ax=image.axes, shrink=0.8, aspect=25, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(label, fontsize="small", color=INK)
    bar.ax.tick_params(labelsize="small", colors=INK, length=2)


# ---------- labels that do not overlap

LINE_HEIGHT = 1.45  # distance between lines of text, as a multiple of the font size
SLANT = 45.0  # degrees
LEVEL_UP_TO = 4  # names of columns with up to this many letters (k0, k10) are not slanted
SMALLEST_FONT = 4.0
MOST_MOVES = 60  # rounds in which names of points move apart
DROP = 0.05  # how far below the axes names start, in parts of its height, where lines lead to them


def spread(wanted: ArrayLike, gap: float, bounds: tuple[float, float]) -> Array:
    """Move ascending positions as little as possible so that they are a gap apart and inside the bounds."""
    positions = np.asarray(wanted, dtype=np.float64)
    n, (low, high) = len(positions), bounds
    if n > 1:
        gap = min(gap, (high - low) / (n - 1))
    steps = gap * np.arange(n)
    return np.clip(isotonic_regression(positions - steps), low, high - gap * (n - 1)) + steps


def label_below(ax: Axes, names: Sequence[str], centres: ArrayLike) -> list[Text]:
    """Write names below the x axis: level where they fit, otherwise slanted, apart and with leading lines."""
    places = np.asarray(centres, dtype=np.float64)
    ax.figure.canvas.figure.draw_without_rendering()  # now the layout is known
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
    ax.figure.canvas.figure.draw_without_rendering()  # now the layout is known
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
        if not _overlapping([*kept, text]):
            kept.append(text)
            continue
        text.remove()
        for arrow in drawn:
            if getattr(arrow, "patchA", None) is text:
                arrow.remove()
    return kept


def _overlapping(texts: Sequence[Text], padding: float = 0.0) -> bool:
    """Whether any two texts overlap, or are less than `padding` pixels apart from left to right."""
    boxes = combinations([text.get_window_extent() for text in texts], 2)
    return any(one.padded(padding, 0.0).overlaps(other) for one, other in boxes)
