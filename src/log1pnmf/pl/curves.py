"""Curves: the link, the objective by iteration, and what changes with c."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import ArrayLike, NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf._common.colors import distinct_colors
from log1pnmf.fitting.keys import SWEEP, c_label, c_name
from log1pnmf.fitting.summary import levelled
from log1pnmf.model.link import ShiftedLog

from .canvas import INK, axes_or_new, drawing, figure_or_new, tidy
from .labels import spread
from .sources import Drawable, drawable

__all__ = ["MEASURES", "convergence", "link", "sweep"]

Array = NDArray[np.float64]

MEASURES = {
    "factor_correlation": "mean |Spearman| of factors",
    "sparsity_loadings": "sparsity of loadings",
    "sparsity_factors": "sparsity of factors",
    "log_likelihood": "log-likelihood",
    "deviance_explained": "deviance explained",
}
"""Columns of the table of a sweep, and how they are called in plots."""

LINES = {"exact": "-", "adaptive": "-.", "approximate": "--"}
"""How objectives of each likelihood are drawn."""


@drawing
def link(
    c: Sequence[float] = (0.01, 0.1, 1.0, 10.0, math.inf),
    *,
    largest: float = 10.0,
    ax: Axes | None = None,
) -> Axes:
    """Draw the link ``alpha_c log(1 + rate / c)`` for several c.

    Parameters
    ----------
    c : sequence of float
        Values of c; inf is the identity.
    largest : float
        Largest rate on the axis.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    Axes

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import pl
    >>> ax = pl.link([1.0, float("inf")], ax=Figure().subplots())
    >>> [line.get_label() for line in ax.lines]
    ['c = 1', 'c = ∞']
    """
    if not largest > 0:
        raise ValueError(f"largest must be positive, got {largest}")
    links = [ShiftedLog(value) for value in c]
    ax = axes_or_new(ax, (4.4, 3.2))
    rates = largest * np.linspace(0.0, 1.0, 401) ** 2
    for shape, color in zip(links, distinct_colors(len(links)), strict=True):
        ax.plot(rates, shape.link(rates), color=color, linewidth=1.6, label=c_label(shape.c))
    tidy(ax)
    ax.set_xlim(0.0, largest)
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel("rate λ", color=INK)
    ax.set_ylabel("link g(λ; c)", color=INK)
    _name_ends(ax)
    return ax


def _name_ends(ax: Axes) -> None:
    """Name every line at its right end, instead of a legend."""
    ends = np.array([np.asarray(line.get_ydata())[-1] for line in ax.lines])
    order = np.argsort(ends, kind="stable")
    low, high = ax.get_ylim()
    heights = spread(ends[order], 0.07 * (high - low), (low, high))
    for i, height in zip(order.tolist(), heights, strict=True):
        line = ax.lines[i]
        ax.annotate(
            str(line.get_label()),
            (1.0, height),
            xycoords=ax.get_yaxis_transform(),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            color=line.get_color(),
            annotation_clip=False,
        )


@drawing
def convergence(
    sources: Any, *, x: str = "iteration", names: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw how far each iteration is above the best objective seen, on a log axis.

    Parameters
    ----------
    sources : Fit, Log1pNMF, AnnData or a file that `save` wrote, or a sequence of them
        One fit or several.
    x : {"iteration", "seconds"}
        What the horizontal axis shows.
    names : sequence of str, optional
        Names of the sources; by default their values of c.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    Axes

    Notes
    -----
    Sources with the same c, noise and likelihood are compared with each other: exact (solid), adaptive
    (dash-dotted) or approximate (dashed). The plot removes the steps of an adaptive objective at which the
    zeros to visit are chosen again, but keeps gains from new dispersions. The line of the best fit ends
    before its last iteration, where the difference is zero.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import Log1pNMF, pl
    >>> model = Log1pNMF(1, random_state=0).fit([[4, 2], [2, 1], [6, 2]])
    >>> pl.convergence(model, ax=Figure().subplots()).get_yscale()
    'log'
    """
    check_choice("x", x, ("iteration", "seconds"))
    given = list(sources) if isinstance(sources, list | tuple) else [sources]
    shown = [drawable(source) for source in given]
    labels = [one.name for one in shown] if names is None else list(names)
    if len(labels) != len(shown):
        raise ValueError(f"names must have one name for each of the {len(shown)} sources, got {len(labels)}")
    best = _best_objectives(shown)
    ax = axes_or_new(ax, (4.6, 3.2))
    for one, label, color in zip(shown, labels, distinct_colors(len(shown)), strict=True):
        rows, objective = levelled(one.history)
        gap = objective - best[_comparable(one)]
        ax.plot(
            np.asarray(one.history[x])[rows],
            np.where(gap > 0.0, gap, np.nan),
            color=color,
            linewidth=1.4,
            linestyle=LINES[_kind(one)],
            label=label,
        )
    tidy(ax)
    ax.set_yscale("log")
    ax.set_xlabel("iteration" if x == "iteration" else "seconds", color=INK)
    ax.set_ylabel("objective above the best", color=INK)
    ax.legend(frameon=False, fontsize="small", labelcolor=INK)
    return ax


def _kind(one: Drawable) -> str:
    """Which likelihood was fitted in the end."""
    return str(np.asarray(one.history["likelihood"])[-1])


def _comparable(one: Drawable) -> tuple[float, str, bool]:
    """Objectives are compared where this is the same."""
    return one.c, _kind(one), one.dispersion is None


def _best_objectives(shown: Sequence[Drawable]) -> dict[tuple[float, str, bool], float]:
    best: dict[tuple[float, str, bool], float] = {}
    for one in shown:
        if not len(one.history.get("objective", ())):
            raise ValueError(f"{one.name or 'a source'} has no history of iterations; pass the fit itself")
        which = _comparable(one)
        best[which] = min(best.get(which, math.inf), float(levelled(one.history)[1].min()))
    return best


@drawing
def sweep(
    table: Any,
    *,
    measures: Sequence[str] = ("factor_correlation", "sparsity_loadings", "sparsity_factors"),
    figure: Figure | SubFigure | None = None,
) -> Any:
    """Draw how the factors change with c: their correlation and sparsity.

    Parameters
    ----------
    table : Sweep, data frame, mapping of columns, or AnnData
        Result of `log1pnmf.sweep` or `log1pnmf.tl.sweep`, or a table with a column "c" and those named in
        `measures`.
    measures : sequence of str
        Columns to draw, one panel each: any of "factor_correlation", "sparsity_loadings", "sparsity_factors",
        "log_likelihood", "deviance_explained".
    figure : Figure or SubFigure, optional
        Figure to draw on; by default a new one.

    Returns
    -------
    Figure
        ``c = inf`` is at the right end, after a break of the axis.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import pl
    >>> table = {"c": [0.1, 1.0, float("inf")], "factor_correlation": [0.2, 0.3, 0.7]}
    >>> figure = pl.sweep(table, measures=["factor_correlation"], figure=Figure())
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['0.1', '1', '∞']
    """
    columns = _columns(table, measures)
    c = columns["c"]
    figure = figure_or_new(figure, (2.9 * len(measures), 2.6))
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    order = np.argsort(c, kind="stable")
    for ax, measure, color in zip(panels, measures, distinct_colors(len(measures)), strict=True):
        _draw_across_c(ax, c[order], columns[measure][order], color)
        ax.set_title(MEASURES.get(measure, measure), loc="left", fontsize="small", color=INK)
    return figure


def _columns(table: Any, measures: Sequence[str]) -> dict[str, Array]:
    source = getattr(table, "table", table)  # of a Sweep
    if hasattr(source, "uns"):
        if SWEEP not in source.uns:
            raise KeyError(f"adata.uns has no {SWEEP!r}; run log1pnmf.tl.sweep first")
        source = source.uns[SWEEP]
    if not isinstance(source, Mapping) and not hasattr(source, "columns"):
        raise TypeError(f"expected the table of a sweep, got {type(table).__name__}")
    missing = [name for name in ("c", *measures) if name not in source]
    if missing:
        raise ValueError(f"the table has no column {missing[0]!r}; it has {', '.join(map(str, source))}")
    return {name: np.asarray(source[name], dtype=np.float64) for name in ("c", *measures)}


def _draw_across_c(ax: Axes, c: Array, values: Array, color: str) -> None:
    finite = np.isfinite(c)
    place = _places(c)
    ax.plot(place[finite], values[finite], "o-", color=color, linewidth=1.4, markersize=4)
    ticks, names = _ticks(c, place)
    if not finite.all():
        ax.plot(place[~finite], values[~finite], "o", color=color, markersize=4)
    if finite.any() and not finite.all():
        last, end = place[finite][-1], place[~finite][0]
        pair = [values[finite][-1], values[~finite][0]]
        ax.plot([last, end], pair, ":", color=color, linewidth=1.2)
        _break_axis(ax, (last + end) / 2.0)
    tidy(ax)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels(names)
    ax.set_xlabel("c", color=INK, fontsize="small")
    ax.margins(x=0.08, y=0.12)


def _places(c: ArrayLike) -> Array:
    """Where values of c are on the axis: their logarithm, and inf to the right of all others."""
    values = np.asarray(c, dtype=np.float64)
    finite = np.isfinite(values)
    logs = np.log10(values, where=finite, out=np.zeros_like(values))
    if finite.any():
        known = logs[finite]
        logs[~finite] = known.max() + max(1.0, 0.2 * float(np.ptp(known)))
    return logs


def _ticks(c: Array, place: Array) -> tuple[list[float], list[str]]:
    """Tick every value of c if they are few, otherwise every power of ten; inf always."""
    finite = np.isfinite(c)
    powers = place[finite]
    if len(powers) and (len(powers) > 5 or np.abs(powers).max() > 2.0):
        whole = range(math.ceil(powers.min() - 1e-9), math.floor(powers.max() + 1e-9) + 1)
        pairs = [(float(power), f"$10^{{{power}}}$") for power in whole]
    else:
        pairs = [(float(at), c_name(value)) for at, value in zip(powers, c[finite], strict=True)]
    if not finite.all():
        pairs.append((float(place[~finite][0]), "∞"))
    return [at for at, _ in pairs], [name for _, name in pairs]


def _break_axis(ax: Axes, at: float) -> None:
    """Draw two slanted strokes through the x axis."""
    stroke: dict[str, Any] = {
        "marker": [(-0.5, -1), (0.5, 1)],
        "markersize": 7,
        "linestyle": "none",
        "color": INK,
        "mew": 1,
    }
    transform = ax.get_xaxis_transform()
    for shift in (-0.06, 0.06):
        ax.plot([at + shift], [0.0], transform=transform, clip_on=False, gid="break", **stroke)
