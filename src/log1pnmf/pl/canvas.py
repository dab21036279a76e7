"""What all plots share: where they draw, and how axes look."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

__all__ = [
    "INK",
    "axes_or_new",
    "color_bar",
    "drawing",
    "figure_or_new",
    "heat_map",
    "set_title",
    "settle",
    "tidy",
    "write_in_cell",
]

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
    """Give a plot scanpy's `show` and `save`, in its signature and docstring too."""

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
    """Give the axes back, or make them in a new figure of pyplot."""
    return figure_or_new(None, figsize).subplots() if ax is None else ax


def figure_or_new(figure: Figure | SubFigure | None, figsize: tuple[float, float]) -> Any:
    """Give the figure back, or make a new one of pyplot."""
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
