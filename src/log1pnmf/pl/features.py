"""Plots of the features of factors: one factor at a time, and one against another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf.analysis.groups import factor_colors, point_colors
from log1pnmf.analysis.markers import Markers
from log1pnmf.analysis.metrics import correlation_matrix
from log1pnmf.fitting.anndata import symbols_of
from log1pnmf.fitting.fit import Fit, factor_number
from log1pnmf.fitting.ranking import ranking_of

from . import canvas
from .canvas import INK, axes_or_new, caption, chosen_factors, drawing, figure_or_new, fit_to_draw, tidy

if TYPE_CHECKING:
    from typing_extensions import Unpack


# ---------- volcano plot: effects of a factor on features against their p-values

MOST_CERTAIN = 50.0  # height at which points end: a p-value of 1e-50


@drawing
def volcano(
    source: Any,
    k: int | str,
    *,
    key: str | None = None,
    gene_symbols: str | None = None,
    level: float = 0.05,
    n_labels: int = 12,
    title: str | None = None,
    ax: Axes | None = None,
    **shown: Unpack[canvas.Shown],
) -> Axes:
    """Draw how much each feature rises with a factor, and its p-value.

    Parameters
    ----------
    source : Markers or AnnData
        Result of `log1pnmf.analysis.markers`, or AnnData with the result of `log1pnmf.tl.markers`.
    k : int or str
        Factor: its number, from 0, or its name.
    level : float
        Features with an adjusted p-value up to this level are drawn in colour.
    title : str, optional
        Title; by default the name of the factor.

    Notes
    -----
    Points end at a p-value of 1e-50. Those that would lie above are triangles at that height, and the legend
    has their number.
    """
    found = canvas.result_in(source, Markers, key, tool="markers", call="model.markers(counts)")
    given = isinstance(found, Markers)
    tested = found.tested if given else found["tested"]
    names = [str(name) for name in (found.factor_names if given else found["factor_names"])]
    k = factor_number(k, names)
    order = np.argsort(-tested["score"][:, k], kind="stable")  # the first features of the factor first
    x, p, adjusted = (tested[name][order, k] for name in ("log2_fold_change", "p", "adjusted_p"))
    features = np.array([str(name) for name in tested["feature_names"]])[order]
    if gene_symbols is not None:
        symbols = dict(zip(map(str, source.var_names), symbols_of(source, gene_symbols), strict=True))
        features = np.array([symbols.get(name, name) for name in features])
    if np.isnan(p).all():
        raise ValueError(
            f"factor {names[k]} has no tests, because all samples have it and there is nothing to "
            "compare it with; pl.top_features shows its features"
        )
    height = -np.log10(np.maximum(p, np.finfo(float).tiny))
    y, capped = np.minimum(height, MOST_CERTAIN), height > MOST_CERTAIN
    sure = adjusted <= level
    ax = axes_or_new(ax, (4.8, 4.0))
    tidy(ax)

    def draw(part: NDArray[np.bool_], **style: Any) -> None:
        ax.scatter(x[part], y[part], alpha=0.8, rasterized=True, **style)

    draw(~sure & ~capped, s=6, color="#dfe3e6", linewidths=0)
    seen = {"color": point_colors(len(names))[k], "edgecolors": INK, "linewidths": 0.25}
    draw(sure & ~capped, s=10, **seen)
    if capped.any():
        draw(capped, s=18, marker="^", label=f"p < 1e-{MOST_CERTAIN:.0f} ({int(capped.sum()):,})", **seen)
        ax.legend(loc="best", frameon=False, fontsize="small", labelcolor=INK, handletextpad=0.1)
    ax.axvline(0.0, color="#bbbbbb", linewidth=0.8, linestyle=":", zorder=0)
    ax.set_ylim(-0.03 * y.max(), 1.08 * max(float(y.max()), 1.0))
    ax.margins(x=0.08)
    title = f"factor {names[k]}" if title is None else title
    caption(ax, "log2 fold change", r"$-\log_{10}$ p, one-sided", title)
    ax.set_title(f"{int(sure.sum()):,} of {len(sure):,} features", loc="right", fontsize="small", color=INK)
    named = np.flatnonzero(sure)[:n_labels]
    canvas.label_points(ax, features[named].tolist(), x[named], y[named])
    return ax


# ---------- plots of the features of factors: one factor at a time, and one against another

PANELS_PER_ROW = 5


@drawing
def factor_scatter(
    source: Any,
    a: int | str,
    b: int | str,
    *,
    key: str | None = None,
    feature_names: Any = None,
    gene_symbols: str | None = None,
    n_labels: int = 12,
    title: str | None = None,
    ax: Axes | None = None,
    **shown: Unpack[canvas.Shown],
) -> Axes:
    """Draw the features of one factor against those of another; name the largest in either and in both.

    Parameters
    ----------
    a, b : int or str
        Two factors: their numbers, from 0, or names.
    """
    fit = fit_to_draw(source, key=key, feature_names=symbols_of(source, gene_symbols, feature_names))
    pair = chosen_factors(fit, (a, b))
    x, y = fit.factors[:, pair].T
    rho = correlation_matrix(fit.factors[:, pair])[0, 1]
    named = _extremes(x, y, n_labels)
    palette = point_colors(fit.n_components)
    sides = [palette[pair[0] if x[j] >= y[j] else pair[1]] for j in named]  # where its value is larger
    largest = float(max(x.max(), y.max())) or 1.0
    limits = (-0.08 * largest, 1.06 * largest)
    ax = axes_or_new(ax, (4.4, 4.4))
    tidy(ax)
    ax.scatter(x, y, s=7, color="#9aa3ab", alpha=0.6, linewidths=0, rasterized=True)
    ax.plot(limits, limits, color="#bbbbbb", linewidth=0.8, linestyle=":", zorder=0)
    ax.scatter(x[named], y[named], s=11, color=sides, linewidths=0, zorder=3)
    ax.set(xlim=limits, ylim=limits)
    across, up = (f"factor {fit.factor_labels[k]}" for k in pair)
    caption(ax, across, up, fit.name if title is None else title)
    ax.set_title(f"Spearman {rho:.2f}", loc="right", fontsize="small", color=INK)
    canvas.label_points(ax, fit.feature_labels[named].tolist(), x[named], y[named])
    return ax


def _extremes(x: canvas.Array, y: canvas.Array, n_labels: int) -> NDArray[np.intp]:
    """Return features largest in x, in y and in both, in turns, so that the first are of all three kinds."""
    right, up = x / (x.max() or 1.0), y / (y.max() or 1.0)
    scores = (right - up, up - right, np.minimum(right, up))
    turns = np.stack([np.argsort(-score, kind="stable")[:n_labels] for score in scores], axis=1).ravel()
    _, first = np.unique(turns, return_index=True)
    return turns[np.sort(first)][:n_labels]


@drawing
def top_features(
    source: Any,
    *,
    n_top: int = 8,
    kind: Literal["bars", "heatmap"] = "bars",
    key: str | None = None,
    factors: Sequence[int | str] | None = None,
    markers: Markers | None = None,
    feature_names: Any = None,
    gene_symbols: str | None = None,
    figure: canvas.OnFigure = None,
    **shown: Unpack[canvas.Shown],
) -> Any:
    """Draw the features that each factor raises most, and by how much.

    Parameters
    ----------
    n_top : int
        Number of features per factor.
    kind : {"bars", "heatmap"}
        A panel of bars for each factor, in the order of `log1pnmf.analysis.top_features`; or one heat map of
        all of them. Both show log2 fold changes.
    markers : Markers, optional
        Result of ``model.markers(counts)``. The plot then shows only features that rise significantly with a
        factor, in the same order.
    """
    check_choice("kind", kind, ("bars", "heatmap"))
    fit = fit_to_draw(source, key=key, feature_names=symbols_of(source, gene_symbols, feature_names))
    chosen = chosen_factors(fit, factors)
    if markers is not None and markers.effect.shape != fit.factors.shape:
        raise ValueError(
            f"markers are of {markers.effect.shape[0]} features and {markers.n_components} factors, but the "
            f"fit has {fit.factors.shape[0]} and {fit.n_components}; pass those of the same fit"
        )
    ranking = ranking_of(fit)
    top = [ranking.top(k, n_top) if markers is None else markers.top_index(k, n_top) for k in chosen]
    draw = _draw_bars if kind == "bars" else _draw_heat_map
    return draw(fit, dict(zip(chosen, top, strict=True)), ranking.log2_fold_change, figure)


def _draw_bars(fit: Fit, top: dict[int, Any], change: canvas.Array, figure: Any) -> Any:
    """Draw a panel for each factor."""
    tallest = max(map(len, top.values()), default=1)
    figure, panels = canvas.panels_in(figure, len(top), PANELS_PER_ROW, (1.85, 0.55 + 0.155 * tallest))
    colors = factor_colors(fit.loadings)
    for ax, (k, features) in zip(panels, top.items(), strict=True):
        place = np.arange(len(features))
        ax.barh(place, change[features, k], color=colors[k], height=0.75)
        ax.set_yticks(place, fit.feature_labels[features])
        ax.set_ylim(tallest - 0.4, -0.6)
        tidy(ax)
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0, labelsize="x-small")
        ax.tick_params(axis="x", length=2, labelsize="x-small")
        ax.locator_params(axis="x", nbins=3)
        caption(ax, title=fit.factor_labels[k], size="small")
    for ax in panels[-PANELS_PER_ROW:]:  # those without another below
        caption(ax, "log2 fold change", size="x-small")
    return figure


def _draw_heat_map(fit: Fit, top: dict[int, Any], change: canvas.Array, figure: Any) -> Any:
    """Draw one table of the features of all factors."""
    features = np.array(list(dict.fromkeys(int(j) for part in top.values() for j in part)), dtype=np.intp)
    values = np.maximum(change[features][:, list(top)], 0.0)
    figure = figure_or_new(figure, (1.9 + 0.28 * len(top), 0.7 + 0.135 * len(features)))
    ax = figure.subplots()
    image = canvas.heat_map(ax, values, "Blues", (0.0, max(float(values.max(initial=0.0)), 1.0)))
    canvas.label_columns(ax, [fit.factor_labels[k] for k in top], above=True)
    ax.set_yticks(range(len(features)), fit.feature_labels[features], fontsize="x-small")
    canvas.color_bar(image, "log2 fold change (0: not more)")
    return figure
