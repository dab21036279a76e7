"""Plots of loadings: sample by sample, and by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf._common.colors import factor_colors
from log1pnmf.analysis.arrange import Arrangement, arrange
from log1pnmf.analysis.groups import group_means, read_groups, read_labels
from log1pnmf.fitting.arrangement import sample_shares

from .canvas import INK, axes_or_new, color_bar, drawing, heat_map, set_title, tidy
from .labels import label_below, label_columns
from .raster import group_places, stacked_pixels
from .sources import drawable, need_factors

__all__ = ["HEIGHTS", "draw_structure", "factor_legend", "loadings_by_group", "name_groups", "structure"]

Array = NDArray[np.float64]

HEIGHTS = ("loadings", "shares")

PIXELS = (400, 2400)
"""Pixels of a structure plot: enough for print."""

ROWS_OF_LEGEND = 16


@drawing
def structure(
    source: Any,
    groupby: Any = None,
    *,
    key: str | None = None,
    factors: Sequence[int] | None = None,
    heights: str = "loadings",
    max_samples: int | None = 20_000,
    random_state: int = 0,
    colors: Sequence[Any] | None = None,
    legend: bool = True,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the loadings of all samples: each sample is a thin bar, each colour a factor.

    Parameters
    ----------
    source : Fit, Log1pNMF, AnnData, or a file that `save` wrote
        The fit.
    groupby : str or array-like of shape (n,), optional
        Column of ``adata.obs``, or labels; categories keep their order. Numbers with more than 60 different
        values (a pseudotime, an age) sort the samples instead, and a strip shows the values. More than 60
        other labels are an error.
    key : str, optional
        Name of the fit in an AnnData.
    factors : sequence of int, optional
        Which factors to draw, from the bottom up; by default all.
    heights : {"loadings", "shares"}
        Loadings with a maximum of 1 for every factor, as in the paper; or the share of each sample's signal
        that each factor carries (`log1pnmf.shares`).
    max_samples : int, optional
        Maximum number of samples to draw; groups are thinned equally.
    random_state : int
        Seed that decides which samples are drawn.
    colors : sequence of colours, optional
        One for each factor of the fit.
    legend : bool
        Whether to draw the legend of the factors.
    title : str, optional
        Title; by default the name of the fit, such as "c = 1".
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    Axes

    Notes
    -----
    Within a group similar samples are neighbours. If bars are narrower than a pixel, the pixel shows their
    mean. The width of a group is proportional to its number of samples, but at least a fiftieth of the axes,
    so that rare groups are visible.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import Log1pNMF, datasets, pl
    >>> data = datasets.pancreas()
    >>> model = Log1pNMF(3, random_state=0).fit(data.counts[:200])
    >>> ax = pl.structure(model, data.sample_labels[:200], ax=Figure().subplots())
    >>> ax.get_ylabel()
    'loading'
    """
    check_choice("heights", heights, HEIGHTS)
    shown = drawable(source, key=key)
    groups = None if groupby is None else read_labels(source, groupby)
    arrangement = arrange(shown.loadings, groups, max_samples=max_samples, random_state=random_state)
    chosen = list(range(shown.n_components) if factors is None else factors)
    palette = factor_colors(shown.n_components) if colors is None else list(colors)
    values = shown.loadings
    if heights == "shares":
        need_factors(shown)
        values = sample_shares(shown.loadings, shown.factors)
    values = values[:, chosen]
    ax = axes_or_new(ax, (9.0, 2.9))
    draw_structure(ax, values[arrangement.order], arrangement, [palette[k] for k in chosen])
    ax.set_ylabel("loading" if heights == "loadings" else "share of the signal", fontsize="small", color=INK)
    set_title(ax, title, shown.name)
    if legend:
        factor_legend(ax, [shown.factor_labels[k] for k in chosen], [palette[k] for k in chosen])
    name_groups(ax, arrangement, groupby)
    return ax


def draw_structure(ax: Axes, values: Array, arrangement: Arrangement, colors: Sequence[Any]) -> None:
    """Draw stacked bars, already in order, as one picture."""
    tallest = float(values.sum(axis=1).max(initial=0.0)) or 1.0
    parts = [(start, stop) for _, start, stop in arrangement.spans]
    pixels = stacked_pixels(values, parts, colors, top=tallest, shape=PIXELS)
    ax.imshow(pixels, origin="lower", extent=(0.0, 1.0, 0.0, tallest), aspect="auto", zorder=2)
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.02 * tallest), xticks=[])
    tidy(ax)
    ax.spines["bottom"].set_visible(False)
    if arrangement.scale is not None:
        _draw_strip(ax, arrangement, tallest)


def name_groups(ax: Axes, arrangement: Arrangement, groupby: Any = None) -> None:
    """Write the names of the groups below their bars, or the numbers that samples are ordered by."""
    names = [name for name, _, _ in arrangement.spans]
    places = _places(arrangement)
    if arrangement.scale is not None:
        known = arrangement.scale[: arrangement.spans[0][2]]
        at = np.linspace(0.0, 1.0, 5)
        values = [f"{value:.3g}" for value in np.quantile(known, at)]
        ticks, texts = list(places[0, 0] + at * (places[0, 1] - places[0, 0])), values
        if len(names) > 1:
            ticks, texts = [*ticks[:-1], places[1].mean()], [*texts[:-1], names[1]]
        ax.set_xticks(ticks, texts)
        ax.tick_params(axis="x", length=0)
        called = groupby if isinstance(groupby, str) else getattr(groupby, "name", None) or "groupby"
        ax.set_xlabel(f"{called} (samples in its order)", fontsize="small", color=INK)
    elif any(names):
        label_below(ax, names, places.mean(axis=1))


def _places(arrangement: Arrangement) -> Array:
    return group_places([stop - start for _, start, stop in arrangement.spans])


def _draw_strip(ax: Axes, arrangement: Arrangement, tallest: float) -> None:
    """Show the number that samples are ordered by as a strip of colours below their bars."""
    assert arrangement.scale is not None
    known = arrangement.scale[: arrangement.spans[0][2]]
    left, right = _places(arrangement)[0]
    bottom, top = -0.08 * tallest, -0.025 * tallest
    ax.imshow(known[None, :], extent=(left, right, bottom, top), aspect="auto", cmap="viridis", zorder=2)
    ax.set(xlim=(0.0, 1.0), ylim=(bottom, 1.02 * tallest))
    ax.spines["left"].set_bounds(0.0, 1.02 * tallest)


def factor_legend(ax: Axes, names: Sequence[str], colors: Sequence[Any]) -> None:
    """List the factors beside the axes, in the order of the stack."""
    patches = [Patch(color=color, label=name) for name, color in zip(names, colors, strict=True)]
    ax.legend(
        handles=patches[::-1],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        ncols=-(-len(patches) // ROWS_OF_LEGEND),
        frameon=False,
        fontsize="small",
        labelcolor=INK,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.5,
        labelspacing=0.3,
        borderaxespad=0.3,
    )


@drawing
def loadings_by_group(
    source: Any, groupby: Any, *, key: str | None = None, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the mean loading of each factor in each group, as a heat map.

    Parameters
    ----------
    source : Fit, Log1pNMF, AnnData, or a file that `save` wrote
        The fit.
    groupby : str or array-like of shape (n,)
        Column of ``adata.obs``, or labels; at most 60 groups.
    key : str, optional
        Name of the fit in an AnnData.
    title : str, optional
        Title; by default the name of the fit.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    Axes

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import Log1pNMF, pl
    >>> model = Log1pNMF(1, random_state=0).fit([[4, 2], [2, 1], [6, 3]])
    >>> ax = pl.loadings_by_group(model, ["a", "b", "a"], ax=Figure().subplots())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['a (2)', 'b (1)']
    """
    shown = drawable(source, key=key)
    groups = read_groups(source, groupby)
    means = group_means(shown.loadings, groups)
    ax = axes_or_new(ax, (1.9 + 0.42 * shown.n_components, 0.9 + 0.27 * len(groups.names)))
    image = heat_map(ax, means, cmap="Blues", limits=(0.0, max(float(means.max()), 1e-300)))
    label_columns(ax, shown.factor_labels)
    counts = zip(groups.names, groups.sizes.tolist(), strict=True)
    ax.set_yticks(range(len(groups.names)), [f"{name} ({size:,})" for name, size in counts])
    color_bar(image, "mean loading")
    set_title(ax, title, shown.name)
    return ax
