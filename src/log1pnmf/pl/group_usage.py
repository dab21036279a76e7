"""Plots of mean loadings of groups and of their differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from log1pnmf._common.colors import distinct_colors, factor_colors
from log1pnmf.analysis.usage import Usage
from log1pnmf.fitting.keys import Keys

from .canvas import INK, drawing, figure_or_new, tidy
from .sources import colors_in

__all__ = ["usage"]

SPREAD = 0.55
"""Height that the groups of one factor share."""


@drawing
def usage(
    source: Any, *, key: str | None = None, level: float = 0.05, figure: Figure | SubFigure | None = None
) -> Any:
    """Draw the mean loadings of groups and their differences with 95% intervals.

    Parameters
    ----------
    source : Usage or AnnData
        Result of ``model.usage(...)``, or AnnData with the result of `log1pnmf.tl.usage`.
    key : str, optional
        Name of the fit in an AnnData.
    level : float
        Differences with an adjusted p-value up to this level are drawn filled, others open.
    figure : Figure or SubFigure, optional
        Figure to draw on; by default a new one.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import Log1pNMF, pl
    >>> model = Log1pNMF(2).fit(np.random.default_rng(0).poisson(2.0, (60, 10)))
    >>> found = model.usage(np.repeat(["a", "b"], 30), replicate=np.repeat(np.arange(6), 10))
    >>> len(pl.usage(found, figure=Figure()).axes)
    2
    """
    table, about = _read(source, key)
    names = [str(name) for name in about["factor_names"]]
    is_slope = "reference" not in table
    height = 1.1 + 0.36 * len(names)
    figure = figure_or_new(figure, (4.8 if is_slope else 8.4, height))
    panels = figure.subplots(1, 1 if is_slope else 2, sharey=True, squeeze=False)[0]
    if not is_slope:
        _means(panels[0], table, about, names)
    _differences(panels[-1], table, names, about.get("colors"), level)
    for ax in panels:
        tidy(ax)
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
    return figure


def _means(ax: Axes, table: Mapping[str, Any], about: Mapping[str, Any], names: list[str]) -> None:
    """Draw a bar at the mean of every group, and its replicates around it."""
    reference = str(np.asarray(table["reference"])[0])
    groups = [reference, *dict.fromkeys(map(str, table["group"]))]
    group, factor = (np.asarray(table[name]).astype(str) for name in ("group", "factor"))
    colors = (
        [about["colors"].get(name) for name in groups] if "colors" in about else distinct_colors(len(groups))
    )
    units = None if "means" not in about else np.asarray(about["unit_groups"]).astype(str)
    for place, (name, color) in enumerate(zip(groups, colors, strict=True)):
        shift = SPREAD * ((place + 0.5) / len(groups) - 0.5)
        for k, one in enumerate(names):
            rows = np.flatnonzero((factor == one) & ((group == name) | (name == reference)))[:1]
            mean = np.asarray(table["reference_mean" if name == reference else "mean"])[rows[0]]
            y, half = k + shift, 0.45 * SPREAD / len(groups)
            ax.plot(
                [mean, mean], [y - half, y + half], color=color, linewidth=2.2, label=name if k == 0 else None
            )
            if units is not None:
                dots = np.asarray(about["means"])[units == name, k]
                ax.scatter(dots, np.full(len(dots), y), s=13, color=color, alpha=0.55, linewidths=0)
    ax.set_xlim(left=0.0)
    ax.set_xlabel("mean loading", color=INK, fontsize="small")
    ax.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, frameon=False, fontsize="small", labelcolor=INK
    )


def _differences(
    ax: Axes, table: Mapping[str, Any], names: list[str], given: Mapping[str, Any] | None, level: float
) -> None:
    factor = np.asarray(table["factor"]).astype(str)
    group = np.asarray(table["group"]).astype(str)
    groups = list(dict.fromkeys(group))
    colors = factor_colors(len(names))
    shades = distinct_colors(len(groups) + 1)[1:] if given is None else [given[name] for name in groups]
    columns = ("difference" if "difference" in table else "slope", "lower", "upper", "adjusted_p")
    values = np.stack([np.asarray(table[name], dtype=np.float64) for name in columns], axis=1)
    for row, (difference, low, high, adjusted) in enumerate(values):
        k, place = names.index(factor[row]), groups.index(group[row])
        y = k + SPREAD * ((place + 0.5) / len(groups) - 0.5)
        color = INK if len(groups) == 1 and k == 0 else colors[k] if len(groups) == 1 else shades[place]
        if np.isfinite(high - low):
            ax.plot([low, high], [y, y], color=color, linewidth=1.4)
        face = color if adjusted <= level else "white"
        ax.scatter([difference], [y], s=28, facecolor=face, edgecolor=color, linewidths=1.2, zorder=3)
    ax.axvline(0.0, color="#bbbbbb", linewidth=0.8, linestyle=":", zorder=0)
    reference = "" if "reference" not in table else f" to {np.asarray(table['reference'])[0]}"
    what = f"difference{reference}, 95% interval" if reference else f"slope on {groups[0]}, 95% interval"
    ax.set_xlabel(f"{what}\n(filled: adjusted p at most {level:g})", color=INK, fontsize="small")


def _read(source: Any, key: str | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if isinstance(source, Usage):
        if key is not None:
            raise ValueError(f"key={key!r} is for AnnData, got Usage; leave it out")
        return source.table(), source.kept()
    name = Keys(key).usage
    if not hasattr(source, "uns") or name not in source.uns:
        raise KeyError(
            f"no usage in a {type(source).__name__}: pass what model.usage(groups) gives, or an AnnData with "
            f"uns[{name!r}], which log1pnmf.tl.usage writes"
        )
    about = dict(source.uns[name])
    colors = colors_in(source, str(about.get("groupby", "")))
    wanted = {str(one) for column in ("group", "reference") for one in about["table"].get(column, [])}
    if colors is not None and wanted <= set(colors):
        about["colors"] = colors
    return about["table"], about
