"""Curves of fits: convergence, what changes with c, a selection; and factors that come back."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from log1pnmf._common.checks import check_choice
from log1pnmf.analysis.grid import Setting
from log1pnmf.analysis.groups import distinct_colors
from log1pnmf.analysis.selection import Selection, judge
from log1pnmf.analysis.stability import Consensus, tree_of
from log1pnmf.fitting.fit import SWEEP
from log1pnmf.fitting.summary import levelled

from . import canvas
from .canvas import INK, Array, axes_or_new, caption, drawing, figure_or_new, fit_to_draw, result_in, tidy

if TYPE_CHECKING:
    from typing_extensions import Unpack


# ---------- curves: the objective by iteration, and what changes with c

# columns of the table of a sweep, and how they are called in plots
MEASURES = {
    "factor_correlation": "mean |Spearman| of factors",
    "sparsity_loadings": "sparsity of loadings",
    "sparsity_factors": "sparsity of factors",
    "log_likelihood": "log-likelihood",
    "deviance_explained": "deviance explained",
}
MOST_TICKS = 8  # values of c that are named on an axis
LINES = {"exact": "-", "adaptive": "-.", "approximate": "--"}  # by the likelihood that was fitted


@drawing
def convergence(
    sources: Any,
    *,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
    **shown: Unpack[canvas.Shown],
) -> Axes:
    """Draw how far each iteration is above the best objective seen, on a log axis.

    Parameters
    ----------
    sources : Fit, Log1pNMF, AnnData or a file that `save` wrote, or a sequence of them
        One fit or several.
    names : sequence of str, optional
        Names of the sources; by default their values of c.

    Notes
    -----
    Sources with the same c, noise and likelihood are compared with each other: exact (solid), adaptive
    (dash-dotted) or approximate (dashed). The plot removes the steps of an adaptive objective at which the
    zeros to be checked exactly are chosen again, but keeps gains from new dispersions. The line of the best
    fit ends before its last iteration, where the difference is zero.
    """
    given = list(sources) if isinstance(sources, list | tuple) else [sources]
    fits = [fit_to_draw(source) for source in given]
    labels = [fit.name for fit in fits] if names is None else list(names)
    if len(labels) != len(fits):
        raise ValueError(f"names must have one name for each of the {len(fits)} sources, got {len(labels)}")
    for fit in fits:
        if not len(fit.history.get("objective", ())):
            raise ValueError(f"{fit.name} has no history of iterations; pass the fit itself")
    curves = [levelled(fit.history) for fit in fits]
    # objectives are compared where c, likelihood and noise are the same
    kinds = [(fit.c, str(fit.history["likelihood"][-1]), fit.dispersion is None) for fit in fits]
    ax = axes_or_new(ax, (4.6, 3.2))
    for fit, label, (rows, objective), kind, color in zip(
        fits, labels, curves, kinds, distinct_colors(len(fits)), strict=True
    ):
        same = [other for (_, other), its in zip(curves, kinds, strict=True) if its == kind]
        gap = objective - min(float(other.min()) for other in same)
        style: dict[str, Any] = {"color": color, "linewidth": 1.4, "linestyle": LINES[kind[1]]}
        iterations = np.asarray(fit.history["iteration"])[rows]
        ax.plot(iterations, np.where(gap > 0.0, gap, np.nan), label=label, **style)
    tidy(ax)
    ax.set_yscale("log")
    caption(ax, "iteration", "objective above the best")
    ax.legend(frameon=False, fontsize="small", labelcolor=INK)
    return ax


@drawing
def sweep(
    table: Any,
    *,
    measures: Sequence[str] = ("factor_correlation", "sparsity_loadings", "sparsity_factors"),
    figure: canvas.OnFigure = None,
    **shown: Unpack[canvas.Shown],
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

    Returns
    -------
    Figure
        Values of c stand side by side in their order, ``c = inf`` at the right end.
    """
    columns = _columns(table, measures)
    c = columns["c"]
    figure = figure_or_new(figure, (2.9 * len(measures), 2.6))
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    order = np.argsort(c, kind="stable")
    places = range(len(c) - 1, -1, -math.ceil(len(c) / MOST_TICKS))
    for ax, measure, color in zip(panels, measures, distinct_colors(len(measures)), strict=True):
        ax.plot(columns[measure][order], "o-", color=color, linewidth=1.4, markersize=4)
        tidy(ax)
        ax.set_xticks(places, [_short_value(c[order[place]]) for place in places])
        ax.margins(x=0.08, y=0.12)
        caption(ax, "c", title=MEASURES.get(measure, measure), size="small")
    return figure


def _columns(table: Any, measures: Sequence[str]) -> dict[str, Array]:
    """Return c and the columns to draw of a sweep, its table, or an AnnData with it."""
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


# ---------- factors that come back in several fits


@drawing
def consensus(
    source: Any, *, key: str | None = None, figure: canvas.OnFigure = None, **shown: Unpack[canvas.Shown]
) -> Any:
    """Draw how similar the factors of all fits of a consensus are: a tree and a heat map.

    A frame marks the factors that became one factor of the final fit, named at the right; others are
    outliers. The strip shows the group of each factor, or the number of factors of its fit.

    Parameters
    ----------
    source : Consensus or AnnData
        Result of `log1pnmf.analysis.consensus`, or AnnData with the result of `log1pnmf.tl.consensus`.
    """
    found = result_in(source, Consensus, key, tool="consensus", call="log1pnmf.analysis.consensus")
    about = vars(found) if isinstance(found, Consensus) else found
    table = {name: np.asarray(column).astype(str) for name, column in about["members"].items()}
    figure = figure_or_new(figure, (7.0, 5.4))
    left, strip, right = figure.subplots(1, 3, width_ratios=[8, 1, 32])
    similarity = np.asarray(about["similarity"])
    style = {"color_threshold": 0.0, "above_threshold_color": INK, "no_labels": True}
    tree = scipy.cluster.hierarchy.dendrogram(tree_of(similarity), orientation="left", ax=left, **style)
    left.set_axis_off()
    order = np.array(tree["leaves"])
    scale: Any = {"cmap": "RdBu_r", "vmin": -1.0, "vmax": 1.0, "interpolation": "nearest"}
    image = right.imshow(similarity[np.ix_(order, order)], aspect="auto", origin="lower", **scale)
    right.set_xticks([])
    right.yaxis.tick_right()
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    bar = right.figure.colorbar(image, ax=left, location="left", shrink=0.6)
    bar.set_label("similarity", fontsize="small", color=INK)
    bar.outline.set_visible(False)
    labels = table["group"] if len(set(table["group"])) > 1 else np.char.add("K = ", table["n_components"])
    names = list(dict.fromkeys(labels.tolist()))
    colors = np.array([to_rgb(color) for color in distinct_colors(len(names))])
    codes = [names.index(label) for label in labels[order]]
    strip.imshow(colors[codes][:, None], aspect="auto", origin="lower", interpolation="nearest")
    strip.set_axis_off()
    consensus = table["consensus"][order]
    places = {name: np.flatnonzero(consensus == name) for name in consensus if name}
    for rows in places.values():
        first, size = rows[0] - 0.5, len(rows)
        right.add_patch(Rectangle((first, first), size, size, fill=False, edgecolor=INK, linewidth=1.4))
    right.set_yticks([rows.mean() for rows in places.values()], list(places), fontsize="small")
    handles = [Rectangle((0, 0), 1, 1, color=color) for color in colors]
    figure.legend(handles, names, loc="outside lower center", ncols=8, frameon=False, fontsize="small")
    return figure


# ---------- a selection: held-out log-likelihood and stability over seeds

AXES = {"n_components": "number of factors K", "c": "c", "l1": "penalty l1"}
WIDTH = 70  # characters of a line of the title
RED = "#d62728"
STAR: Any = {"marker": "*", "s": 150, "color": RED, "edgecolors": "white", "zorder": 5}
RING: Any = {"marker": "o", "s": 190, "facecolors": "none", "edgecolors": RED, "linewidths": 1.8, "zorder": 4}


@drawing
def select(
    source: Any,
    *,
    over: Literal["n_components", "c", "l1"] | None = None,
    key: str | None = None,
    figure: canvas.OnFigure = None,
    **shown: Unpack[canvas.Shown],
) -> Any:
    """Draw held-out log-likelihood and stability over seeds against the number of factors, c or the penalty.

    Parameters
    ----------
    source : Selection or AnnData
        Result of `log1pnmf.select`, or AnnData with the result of `log1pnmf.tl.select`.
    over : {"n_components", "c", "l1"}, optional
        Parameter on the horizontal axis; by default the first of them of which several values were compared.
    key : str, optional
        Name of the selection in an AnnData, if `key_added` was given.

    Returns
    -------
    Figure
        Above: differences from the best setting with their standard errors, on a scale that is linear near
        the best setting and logarithmic far below it. Below: the mean similarity of matched factors between
        seeds. There is one line for every combination of the other parameters. The star marks the best
        setting, the ring the simplest one within one standard error. The title is what the data suggest.
    """
    found = result_in(source, Selection, key, tool="select", call="log1pnmf.select")
    given = isinstance(found, Selection)
    summary, about = (found.summary, found.about) if given else (found["table"], found)
    table = {name: np.asarray(summary[name], dtype=str if name == "noise" else float) for name in summary}
    judgement = judge(table, holdout=str(about["holdout"]))
    across: str = over or next((name for name in AXES if len(np.unique(table[name])) > 1), "c")
    check_choice("over", across, tuple(AXES))
    stable = not np.isnan(table["stability"]).all()
    figure = figure_or_new(figure, (6.2, 4.9 if stable else 3.4))
    heights = {"height_ratios": [3, 2]} if stable else {}
    panels = figure.subplots(1 + stable, 1, sharex=True, squeeze=False, gridspec_kw=heights)[:, 0]
    _draw_paths(panels[0], table, judgement.simplest, across, "difference")
    _scale_differences(panels[0], table)
    if stable:
        _draw_paths(panels[1], table, judgement.simplest, across, "stability")
        panels[1].set_ylim(min(0.0, float(np.nanmin(table["stability"]))) - 0.05, 1.08)
        caption(panels[1], y="stability over seeds", size="small")
    for ax in panels:
        tidy(ax)
    if across == "n_components":
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=2))
    else:
        values = np.unique(table[across])
        panels[-1].set_xticks(range(len(values)), [_short_value(value) for value in values])
    caption(panels[-1], AXES[across], size="small")
    panels[0].legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    caption(panels[0], title="\n".join(textwrap.wrap(judgement.headline, WIDTH)))
    return figure


def _draw_paths(ax: Axes, table: Mapping[str, Any], simplest: Setting, over: str, value: str) -> None:
    """Draw one line for every combination of the other parameters; mark the best and the simplest."""
    place = table[over]
    if over != "n_components":  # values of c and penalties stand side by side
        place = np.searchsorted(np.unique(place), place).astype(float)
    others = [name for name in ("c", "n_components", "l1", "noise") if name != over]
    paths = sorted(set(zip(*(table[name].tolist() for name in others), strict=True)))
    for path, color in zip(paths, distinct_colors(len(paths)), strict=True):
        same = [table[name] == one for name, one in zip(others, path, strict=True)]
        on = np.flatnonzero(np.all(same, axis=0))
        on = on[np.argsort(place[on])]
        ax.errorbar(
            place[on],
            table[value][on],
            yerr=table[f"se_{value}"][on],
            fmt="o-",
            color=color,
            markersize=4,
            linewidth=1.4,
            capsize=2.5,
            label=_path_name(dict(zip(others, path, strict=True)), table) if len(paths) > 1 else None,
        )
    chosen = np.all([table[name] == wanted for name, wanted in simplest.parameters.items()], axis=0)
    best, row = np.argmax(table["difference"]), np.argmax(chosen)
    ax.scatter(place[best], table[value][best], label="best", **STAR)
    ax.scatter(place[row], table[value][row], label="simplest within one SE", **RING)


def _path_name(path: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    """Return the parameters that are the same along a line, without a penalty of 0 and a single noise."""
    short = {"n_components": "K", "c": "c", "l1": "l1"}
    words = [f"{word} = {_short_value(path[name])}" for name, word in short.items() if path.get(name)]
    return ", ".join([*words, path["noise"]] if len(np.unique(table["noise"])) > 1 else words)


def _short_value(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"


def _scale_differences(ax: Axes, table: Mapping[str, Any]) -> None:
    """Show what is near the best on a linear scale, and what is far below on a logarithmic one."""
    errors = table["se_difference"]
    near = max(1.0, 5.0 * float(np.nanmedian(errors[errors > 0.0]))) if np.any(errors > 0.0) else 1.0
    if np.min(table["difference"]) < -10.0 * near:
        ax.set_yscale("symlog", linthresh=near, linscale=1.2)
    ax.yaxis.set_major_formatter(lambda value, _: _short_number(value))
    ax.axhline(0.0, color=INK, linewidth=0.8, linestyle=":")
    caption(ax, y="held-out log-likelihood,\ndifference to the best", size="small")


def _short_number(value: float) -> str:
    """Write a number in few characters, with a true minus sign."""
    size = abs(value)
    text = f"{size / 1000:.0f}k" if size >= 9950 else f"{size / 1000:.1f}k" if size >= 995 else f"{size:.0f}"
    return f"−{text}" if value < 0 else text
