"""Curves of fits: convergence, what changes with c, a selection; and how factors of several fits relate."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike, NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf._common.colors import distinct_colors
from log1pnmf.analysis.grid import Setting
from log1pnmf.analysis.selection import Judgement, Selection, judge
from log1pnmf.analysis.stability import Relation
from log1pnmf.fitting.fit import SWEEP, Keys, c_name
from log1pnmf.fitting.settings import Settings
from log1pnmf.fitting.summary import levelled

from .canvas import (
    INK,
    Drawable,
    axes_or_new,
    drawable,
    drawing,
    figure_or_new,
    tidy,
)

# ---------- curves: the objective by iteration, and what changes with c

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
    zeros to be checked exactly are chosen again, but keeps gains from new dispersions. The line of the best
    fit ends before its last iteration, where the difference is zero.

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
    place = _places_of_points(c)
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


def _places_of_points(c: ArrayLike) -> Array:
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


# ---------- marks and names of settings

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


def short_number(value: float) -> str:
    """Write a number in few characters, with a true minus sign."""
    size = abs(value)
    text = f"{size / 1000:.0f}k" if size >= 9950 else f"{size / 1000:.1f}k" if size >= 995 else f"{size:.0f}"
    return f"−{text}" if value < 0 else text


def path_name(others: list[str], path: tuple[Any, ...], *, several_noises: bool = False) -> str:
    """Name a line by the parameters that are the same along it."""
    short = {"n_components": "K", "c": "c", "l1": "l1"}
    given = dict(zip(others, path, strict=True))
    named = [name for name in short if given.get(name)]  # no penalty is not worth a name
    words = [f"{short[name]} = {short_value(given[name])}" for name in named]
    return ", ".join([*words, str(given["noise"])] if several_noises else words)


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


# ---------- plot for the choice of K: held-out log-likelihood and stability over seeds

AXES = ("n_components", "c", "l1")
WIDTH = 70
"""Characters of a line of the title."""


@drawing
def select(
    source: Any,
    *,
    over: str | None = None,
    key: str | None = None,
    figure: Figure | SubFigure | None = None,
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
    figure : Figure or SubFigure, optional
        Figure to draw on; by default a new one.

    Returns
    -------
    Figure
        Above: differences from the best setting with their standard errors, on a scale that is linear near
        the best setting and logarithmic far below it. Below: the mean similarity of matched factors between
        seeds. There is one line for every combination of the other parameters. The star marks the best
        setting, the ring the simplest one within one standard error. The title is what the data suggest.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import datasets, pl
    >>> from log1pnmf.analysis import select
    >>> counts = datasets.pancreas().counts[:100, :200]
    >>> found = select(counts, [1, 2, 3], n_folds=2, n_starts=1, n_seeds=2, tol=1e-4)
    >>> [ax.get_xlabel() for ax in pl.select(found, figure=Figure()).axes]
    ['', 'number of factors K']
    """
    table, judgement = _read(source, key)
    if over is None:
        over = next((name for name in AXES if len(np.unique(table[name])) > 1), "c")
    check_choice("over", over, AXES)
    stable = not np.isnan(table["stability"]).all()
    figure = figure_or_new(figure, (6.2, 4.9 if stable else 3.4))
    heights = {"height_ratios": [3, 2]} if stable else {}
    panels = figure.subplots(1 + stable, 1, sharex=True, squeeze=False, gridspec_kw=heights)[:, 0]
    _draw(panels[0], table, judgement.simplest, over=over, value="difference", error="se_difference")
    _scale(panels[0], table)
    if stable:
        _draw(panels[1], table, judgement.simplest, over=over, value="stability", error="se_stability")
        panels[1].set_ylim(min(0.0, float(np.nanmin(table["stability"]))) - 0.05, 1.08)
        panels[1].set_ylabel("stability over seeds", color=INK, fontsize="small")
    for ax in panels:
        tidy(ax)
    _label(panels[-1], table, over)
    panels[0].legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    title = "\n".join(textwrap.wrap(judgement.headline, WIDTH))
    panels[0].set_title(title, loc="left", fontsize="medium", fontweight="normal", color=INK)
    return figure


def _draw(
    ax: Axes, table: Mapping[str, Array], simplest: Setting, *, over: str, value: str, error: str
) -> None:
    """Draw one line for every combination of the other parameters; mark the best and the simplest."""
    others = [name for name in NAMES if name != over]
    paths = sorted({tuple(table[name][row] for name in others) for row in range(len(table["c"]))})
    several = len(np.unique(table["noise"])) > 1
    rows: list[NDArray[np.intp]] = []
    for path in paths:
        same = [table[name] == one for name, one in zip(others, path, strict=True)]
        on = np.flatnonzero(np.all(same, axis=0))
        rows.append(on[np.argsort(table[over][on])])
    place = _places(table, over)
    for path, on, color in zip(paths, rows, distinct_colors(len(paths)), strict=True):
        ax.errorbar(
            place[on],
            table[value][on],
            yerr=table[error][on],
            fmt="o-",
            color=color,
            markersize=4,
            linewidth=1.4,
            capsize=2.5,
            label=path_name(others, path, several_noises=several) if len(paths) > 1 else None,
        )
    best = int(np.argmax(table["difference"]))
    one = np.all([table[name] == wanted for name, wanted in simplest.parameters.items()], axis=0)
    for style, row in ((BEST, best), (ONE_SE, int(np.argmax(one)))):
        ax.scatter(place[row], table[value][row], **style)


def _places(table: Mapping[str, Array], over: str) -> Array:
    """Put numbers of factors where they are, values of c and penalties side by side."""
    values = table[over]
    return values if over == "n_components" else np.searchsorted(np.unique(values), values).astype(float)


def _label(ax: Axes, table: Mapping[str, Array], over: str) -> None:
    if over == "n_components":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=2))
    else:
        values = np.unique(table[over])
        ax.set_xticks(range(len(values)), [short_value(value) for value in values])
    ax.set_xlabel(NAMES[over], color=INK, fontsize="small")


def _scale(ax: Axes, table: Mapping[str, Array]) -> None:
    """Show what is near the best on a linear scale, and what is far below on a logarithmic one."""
    errors = table["se_difference"]
    near = max(1.0, 5.0 * float(np.nanmedian(errors[errors > 0.0]))) if np.any(errors > 0.0) else 1.0
    if np.min(table["difference"]) < -10.0 * near:
        ax.set_yscale("symlog", linthresh=near, linscale=1.2)
    ax.yaxis.set_major_formatter(lambda value, _: short_number(value))
    ax.axhline(0.0, color=INK, linewidth=0.8, linestyle=":")
    ax.set_ylabel("held-out log-likelihood,\ndifference to the best", color=INK, fontsize="small")


def _read(source: Any, key: str | None) -> tuple[Mapping[str, Array], Judgement]:
    """Take the table of a selection, and the judgement of it."""
    if isinstance(source, Selection):
        if key is not None:
            raise ValueError(f"key={key!r} is for AnnData, got Selection; leave it out")
        summary, holdout = source.summary, str(source.about["holdout"])
    else:
        name = Keys(key).select
        if not hasattr(source, "uns") or name not in source.uns:
            raise KeyError(
                f"no selection in a {type(source).__name__}: pass the result of log1pnmf.select, or an "
                f"AnnData with uns[{name!r}], which log1pnmf.tl.select writes"
            )
        about = source.uns[name]
        summary, holdout = about["table"], str(about["holdout"])
    table: dict[str, NDArray[Any]] = {
        name: np.asarray(summary[name], dtype=str if name == "noise" else np.float64) for name in summary
    }
    table.setdefault("noise", np.full(len(table["c"]), Settings.noise))
    return table, judge(table, holdout=holdout)
