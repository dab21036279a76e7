"""Held-out log-likelihood across settings, and how factors of several fits relate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf._common.colors import distinct_colors
from log1pnmf.analysis.selection.selection import Selection
from log1pnmf.analysis.stability import Relation

from .canvas import INK, axes_or_new, color_bar, drawing, figure_or_new, tidy, write_in_cell

__all__ = [
    "BEST",
    "NAMES",
    "ONE_SE",
    "heldout",
    "heldout_path",
    "path_name",
    "relation",
    "short_number",
    "short_value",
]

Array = NDArray[np.float64]

NAMES = {"c": "c", "n_components": "number of factors K", "l1": "penalty l1", "noise": "noise"}
BEST: dict[str, Any] = {
    "marker": "*",
    "s": 150,
    "color": "#d62728",
    "edgecolors": "white",
    "zorder": 5,
    "label": "best",
}
ONE_SE: dict[str, Any] = {
    "marker": "o",
    "s": 190,
    "facecolors": "none",
    "edgecolors": "#d62728",
    "linewidths": 1.8,
    "zorder": 4,
    "label": "simplest within one SE",
}


@drawing
def heldout(found: Selection, *, l1: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw the surface of held-out log-likelihood over c and the number of factors.

    Parameters
    ----------
    found : Selection
        Result of `log1pnmf.select`.
    l1 : float, optional
        Penalty to show; by default that of the best setting.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    Axes
        Cells show the difference from the best setting, in units of log-likelihood per fold. The star marks
        the best setting, the ring the simplest one within one standard error.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import datasets, pl
    >>> from log1pnmf.analysis import select
    >>> counts = datasets.pancreas().counts[:100, :200]
    >>> found = select(counts, [0.1, 1.0], [1, 2], n_folds=2, n_starts=1, n_seeds=0)
    >>> ax = pl.heldout(found, ax=Figure().subplots())
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['0.1', '1']
    """
    shown = found.best.l1 if l1 is None else l1
    summary = found.summary
    kept = np.flatnonzero((summary["l1"] == shown) & (summary["noise"] == found.best.noise))
    if not len(kept):
        known = ", ".join(f"{value:g}" for value in np.unique(summary["l1"]))
        raise ValueError(f"l1 must be one of those that were compared ({known}), got {shown:g}")
    shifts, numbers = (np.unique(summary[name][kept]) for name in ("c", "n_components"))
    values = np.full((len(numbers), len(shifts)), np.nan)
    rows = np.searchsorted(numbers, summary["n_components"][kept])
    values[rows, np.searchsorted(shifts, summary["c"][kept])] = summary["difference"][kept]
    ax = axes_or_new(ax, (1.6 + 0.75 * len(shifts), 1.3 + 0.45 * len(numbers)))
    norm = PowerNorm(0.25, vmin=0.0, vmax=max(-float(np.nanmin(values)), 1.0))
    image = ax.imshow(
        -values, cmap="viridis_r", norm=norm, aspect="auto", interpolation="nearest", origin="lower"
    )
    _label_cells(values, image)
    for style, setting in ((BEST, found.best), (ONE_SE, found.one_se)):
        if setting.l1 == shown and setting.noise == found.best.noise:
            place = np.searchsorted(shifts, setting.c), np.searchsorted(numbers, setting.n_components)
            ax.scatter(*place, **style)
    _categories(ax, "c", shifts)
    ax.set_yticks(range(len(numbers)), [str(number) for number in numbers])
    ax.set_ylabel(NAMES["n_components"], color=INK)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, colors=INK, labelsize="small")
    ax.set_title(_title(found, shown), loc="left", fontsize="medium", color=INK)
    color_bar(image, "below the best")
    return ax


def _label_cells(values: Array, image: Any) -> None:
    for (row, column), value in np.ndenumerate(values):
        if value < 0.0:
            write_in_cell(image, row, column, -value, short_number(value))


def short_number(value: float) -> str:
    """Write a number in few characters, with a true minus sign."""
    size = abs(value)
    text = f"{size / 1000:.0f}k" if size >= 9950 else f"{size / 1000:.1f}k" if size >= 995 else f"{size:.0f}"
    return f"−{text}" if value < 0 else text


def _title(found: Selection, l1: float) -> str:
    text = f"Held-out log-likelihood ({found.about['holdout']})"
    text = text if l1 == 0.0 else f"{text}, l1 = {l1:g}"
    return text if len(found.about["grid"]["noise"]) == 1 else f"{text}, noise = {found.best.noise}"


@drawing
def heldout_path(found: Selection, over: str = "c", *, lines: str = "best", ax: Axes | None = None) -> Axes:
    """Draw held-out log-likelihood along one parameter, with standard errors.

    Parameters
    ----------
    found : Selection
        Result of `log1pnmf.select`.
    over : {"c", "n_components", "l1"}
        Parameter on the horizontal axis.
    lines : {"best", "all"}
        "best" draws the path through the best setting, "all" one line for every combination of the other
        parameters.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    Axes
        Differences from the best setting. Bars are one standard error *of that difference* on both sides.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import datasets, pl
    >>> from log1pnmf.analysis import select
    >>> counts = datasets.pancreas().counts[:100, :200]
    >>> found = select(counts, [0.1, 1.0], [1, 2], n_folds=2, n_starts=1, n_seeds=0)
    >>> ax = pl.heldout_path(found, lines="all", ax=Figure().subplots())
    >>> len(ax.containers)
    2
    """
    check_choice("over", over, tuple(NAMES)[:3])
    check_choice("lines", lines, ("best", "all"))
    summary, others = found.summary, [name for name in NAMES if name != over]
    values = np.unique(summary[over])
    paths = sorted({tuple(summary[name][i] for name in others) for i in range(len(found.settings))})
    best = tuple(getattr(found.best, name) for name in others)
    if lines == "best":
        paths = [best]
    ax = axes_or_new(ax, (5.0, 3.2))
    for path, color in zip(paths, distinct_colors(len(paths)), strict=True):
        on = np.flatnonzero(
            np.all([summary[name] == value for name, value in zip(others, path, strict=True)], axis=0)
        )
        on = on[np.argsort(summary[over][on])]
        label = path_name(others, path, several_noises=len(found.about["grid"]["noise"]) > 1)
        place = np.searchsorted(values, summary[over][on])
        gap, error = summary["difference"][on], summary["se_difference"][on]
        ax.errorbar(
            place,
            gap,
            yerr=error,
            fmt="o-",
            color=color,
            markersize=4,
            linewidth=1.4,
            capsize=2.5,
            label=label,
        )
    for style, setting in ((BEST, found.best), (ONE_SE, found.one_se)):
        if tuple(getattr(setting, name) for name in others) in paths:
            height = summary["difference"][found.settings.index(setting)]
            ax.scatter(np.searchsorted(values, getattr(setting, over)), height, **style)
    ax.axhline(0.0, color=INK, linewidth=0.8, linestyle=":")
    tidy(ax)
    _categories(ax, over, values)
    ax.set_ylabel("difference to the best", color=INK)
    ax.legend(frameon=False, fontsize="small")
    return ax


def path_name(others: list[str], path: tuple[Any, ...], *, several_noises: bool = False) -> str:
    """Name a line by the parameters that are the same along it."""
    short = {"n_components": "K", "c": "c", "l1": "l1"}
    given = dict(zip(others, path, strict=True))
    named = [name for name in short if given.get(name)]  # no penalty is not worth a name
    words = [f"{short[name]} = {short_value(given[name])}" for name in named]
    return ", ".join([*words, str(given["noise"])] if several_noises else words)


def _categories(ax: Axes, name: str, values: Array) -> None:
    """Put values of a parameter side by side, whatever lies between them."""
    ax.set_xticks(range(len(values)), [short_value(value) for value in values])
    ax.set_xlabel(NAMES[name], color=INK)


def short_value(value: float) -> str:
    """Write a value of c or of a penalty."""
    return "∞" if math.isinf(value) else f"{value:g}"


# ---------------------------------------------------------------- factors of several fits


@drawing
def relation(found: Relation, *, figure: Figure | SubFigure | None = None) -> Any:
    """Draw how similar the factors of several fits are: a tree and a heat map.

    Parameters
    ----------
    found : Relation
        Result of `log1pnmf.analysis.relate`.
    figure : Figure or SubFigure, optional
        Figure to draw on; by default a new one.

    Returns
    -------
    Figure
        Names of factors have the colour of their fit. Factors that several fits share form a block; a factor
        that splits in another fit stands beside its parts.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import datasets, fit_log1p_nmf, pl
    >>> from log1pnmf.analysis import relate
    >>> counts = datasets.pancreas().counts[:100, :200]
    >>> fits = [fit_log1p_nmf(counts, K) for K in (2, 3)]
    >>> figure = pl.relation(relate(fits), figure=Figure())
    >>> len(figure.axes[1].get_yticklabels())
    5
    """
    n = len(found.owner)
    figure = figure_or_new(figure, (3.6 + 0.24 * n, 1.2 + 0.24 * n))
    left, right = figure.subplots(1, 2, width_ratios=[1, 4])
    tree = scipy.cluster.hierarchy.dendrogram(
        found.tree,
        orientation="left",
        ax=left,
        color_threshold=0.0,
        above_threshold_color=INK,
        no_labels=True,
    )
    left.set_axis_off()
    order = np.array(tree["leaves"])
    image = right.imshow(
        found.similarity[np.ix_(order, order)],
        cmap="RdBu_r",
        vmin=-1.0,
        vmax=1.0,
        aspect="auto",
        interpolation="nearest",
        origin="lower",
    )
    colors, labels = distinct_colors(len(found.names)), found.labels
    right.set_yticks(range(n), [labels[i] for i in order], fontsize="small")
    right.set_xticks([])
    right.yaxis.tick_right()
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    for label, i in zip(right.get_yticklabels(), order, strict=True):
        label.set_color(colors[found.owner[i]])
    bar = figure.colorbar(image, ax=left, location="left", shrink=0.6)
    bar.set_label("similarity", fontsize="small", color=INK)
    bar.outline.set_visible(False)
    return figure
