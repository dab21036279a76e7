"""Plot for the choice of K: held-out log-likelihood and stability over seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from log1pnmf._common.colors import distinct_colors
from log1pnmf.analysis.selection.grid import Setting
from log1pnmf.analysis.selection.judgement import Judgement, judge
from log1pnmf.analysis.selection.selection import Selection
from log1pnmf.fitting.keys import Keys
from log1pnmf.fitting.settings import Settings

from .canvas import INK, drawing, figure_or_new, tidy
from .selection import BEST, NAMES, ONE_SE, path_name, short_number, short_value

__all__ = ["select"]

Array = NDArray[np.float64]

WIDTH = 70
"""Characters of a line of the title."""


@drawing
def select(source: Any, *, key: str | None = None, figure: Figure | SubFigure | None = None) -> Any:
    """Draw held-out log-likelihood and stability over seeds against the number of factors.

    Parameters
    ----------
    source : Selection or AnnData
        Result of `log1pnmf.select`, or AnnData with the result of `log1pnmf.tl.select`.
    key : str, optional
        Name of the selection in an AnnData, if `key_added` was given.
    figure : Figure or SubFigure, optional
        Figure to draw on; by default a new one.

    Returns
    -------
    Figure
        Above: differences from the best setting with their standard errors, on a scale that is linear near
        the best setting and logarithmic far below it. Below: the mean similarity of matched factors between
        seeds. There is one line for every c, penalty and noise. The title says what the data suggest. If only
        one number of factors was compared, c is on the axis.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import datasets, pl
    >>> from log1pnmf.analysis import select
    >>> counts = datasets.pancreas().counts[:100, :200]
    >>> found = select(counts, 1.0, [1, 2, 3], n_folds=2, n_starts=1, n_seeds=2, tol=1e-4)
    >>> [ax.get_xlabel() for ax in pl.select(found, figure=Figure()).axes]
    ['', 'number of factors K']
    """
    table, judgement = _read(source, key)
    over = next((name for name in ("n_components", "c", "l1") if len(np.unique(table[name])) > 1), "c")
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
    panels[0].legend(frameon=False, fontsize="small", loc="best")
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
                f"no selection in a {type(source).__name__}: pass what log1pnmf.select gives, or an AnnData "
                f"with uns[{name!r}], which log1pnmf.tl.select writes"
            )
        about = source.uns[name]
        summary, holdout = about["table"], str(about["holdout"])
    table: dict[str, NDArray[Any]] = {
        name: np.asarray(summary[name], dtype=str if name == "noise" else np.float64) for name in summary
    }
    table.setdefault("noise", np.full(len(table["c"]), Settings.noise))
    return table, judge(table, holdout=holdout)
