"""Plots of loadings: sample by sample, and by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Patch

from log1pnmf._common.checks import check_choice
from log1pnmf.analysis.groups import (
    Arrangement,
    Section,
    arrange,
    distinct_colors,
    factor_colors,
    group_means,
    point_colors,
    read_labels,
    sections_of,
)
from log1pnmf.analysis.metrics import dominant_factor
from log1pnmf.analysis.usage import Usage
from log1pnmf.fitting.anndata import is_annotated
from log1pnmf.fitting.fit import Fit, sample_shares

from . import canvas
from .canvas import INK, axes_or_new, caption, chosen_factors, drawing, figure_or_new, fit_to_draw, tidy

if TYPE_CHECKING:
    from typing_extensions import Unpack


# ---------- loadings on a map of the samples: a UMAP, a t-SNE, or positions in a tissue

MAPS = ("X_umap", "X_tsne", "X_draw_graph_fa", "spatial", "X_pca")  # in `obsm`, searched in this order
ABSENT = "#e6e9eb"  # colour of samples without the factor
THROUGH = 0.3  # their opacity over an image
FADED = 0.6  # opacity of the image, so that spots stand out


@drawing
def embedding(
    adata: Any,
    basis: Any = None,
    *,
    factors: Sequence[int | str] | None = None,
    key: str | None = None,
    n_columns: int = 4,
    size: float | None = None,
    figure: canvas.OnFigure = None,
    **shown: Unpack[canvas.Shown],
) -> Any:
    """Draw the loadings of each factor on a map of the samples (UMAP, t-SNE, space).

    Parameters
    ----------
    adata : AnnData, or anything that `log1pnmf.as_fit` takes
        Data with a fit by `log1pnmf.tl.log1p_nmf`, or a fit.
    basis : str or array of shape (n, 2), optional
        Name of the map in ``adata.obsm``, with or without ``X_``; by default the UMAP, or the first of t-SNE,
        force-directed graph, positions in space and PCA. Without AnnData, pass the positions.
    size : float, optional
        Size of the points, in square points; by default it depends on their number.

    Notes
    -----
    Each factor has the colour that it has in all other plots. Samples with large loadings are drawn last.

    See Also
    --------
    log1pnmf.pl.spatial : Loadings in a tissue, with the image of each section.
    """
    fit = fit_to_draw(adata, key=key)
    places, found = _places(adata, basis, len(fit.loadings))
    if found in ("spatial", "X_spatial") and len(sections_of(adata)) > 1:
        raise ValueError("the samples are of several sections, whose positions overlap; use pl.spatial")
    chosen = chosen_factors(fit, factors)
    figure, panels = canvas.panels_in(figure, len(chosen), n_columns, (1.6, 1.75))
    size = float(np.clip(12_000.0 / len(places), 0.4, 14.0)) if size is None else size
    for ax, k in zip(panels, chosen, strict=True):
        order = np.argsort(fit.loadings[:, k], kind="stable")
        values, shades = _shades(fit, k)
        ax.scatter(*places[order].T, size, values[order], linewidths=0, rasterized=True, **shades)
        caption(ax, title=fit.factor_labels[k])
        ax.set_aspect("equal", adjustable="datalim")
        ax.axis("off")
    return figure


def _shades(fit: Fit, k: int, opacity: float = 1.0) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the loadings of a factor and how to colour them; `opacity` is that of samples without it."""
    values, color = fit.loadings[:, k], point_colors(fit.n_components)[k]
    shades = LinearSegmentedColormap.from_list("factor", [to_rgba(ABSENT, opacity), to_rgba(color)])
    return values, {"cmap": shades, "norm": Normalize(0.0, max(float(values.max()), 1e-300))}


@drawing
def spatial(
    adata: Any,
    *,
    factors: Sequence[int | str] | None = None,
    key: str | None = None,
    library_key: str | None = None,
    image: Literal["hires", "lowres", "none"] = "hires",
    size: float = 1.0,
    n_columns: int = 4,
    figure: canvas.OnFigure = None,
    **shown: Unpack[canvas.Shown],
) -> Any:
    """Draw the dominant factor and the loadings of each factor in a tissue, over the image of each section.

    The dominant factor is that of `log1pnmf.dominant_factor`.

    Parameters
    ----------
    adata : AnnData
        Data with a fit by `log1pnmf.tl.log1p_nmf` and positions in ``obsm["spatial"]``. Images and diameters
        of spots are those in ``uns["spatial"]``, where scanpy and squidpy keep them.
    factors : sequence of int or str, optional
        Which factors to draw, by number or name; by default all. ``[]`` draws the dominant factor alone.
    library_key : str, optional
        Column of ``adata.obs`` with the section (slide, library) of every sample; by default "library_id",
        "section" or "slide", if there is one. Each section is drawn in panels of its own.
    image : {"hires", "lowres", "none"}
        Image under the spots; the other one if it is missing.
    size : float
        Size of the spots, as a multiple of their diameter in the data. If the data have none, it is the
        median distance to the nearest neighbour.

    Returns
    -------
    Figure
        The y axis points downwards, as in images. Shades of a factor are the same in all sections.
    """
    fit, sections = fit_to_draw(adata, key=key), sections_of(adata, library_key, image)
    each = (None, *chosen_factors(fit, factors))
    n_columns = min(n_columns, len(each))
    n_each = -(-len(each) // n_columns) * n_columns  # every section begins a row
    tallest = max(np.ptp(y) / max(np.ptp(x), 1e-300) for x, y in (one.places.T for one in sections))
    size_of_panel = (2.3, 0.3 + 2.1 * min(max(tallest, 0.2), 2.0))
    figure, panels = canvas.panels_in(figure, n_each * len(sections), n_columns, size_of_panel)
    drawn = [(section, k) for section in sections for k in each]
    shown_panels = [ax for i, ax in enumerate(panels) if i % n_each < len(each) or ax.remove()]
    colors = point_colors(fit.n_components)
    palette = dict(zip(fit.factor_names, colors, strict=True))
    largest = np.array([to_rgba(palette.get(name, ABSENT)) for name in dominant_factor(fit)])
    factor_legend(panels[n_columns - 1], fit.factor_labels[::-1], colors[::-1])
    for ax, (section, k) in zip(shown_panels, drawn, strict=True):
        spots = _spots(ax, section, size)
        if k is None:
            spots.set_facecolor(largest[section.samples])
        else:
            values, shades = _shades(fit, k, 1.0 if section.image is None else THROUGH)
            spots.set(array=values[section.samples], **shades)
        what = "dominant factor" if k is None else fit.factor_labels[k]
        caption(ax, title=f"{section.name} {what}".strip(), size="small")
    return figure


def _spots(ax: Axes, section: Section, size: float) -> EllipseCollection:
    """Draw the image of a section and its spots, without colours yet; their size is in units of the data."""
    if section.image is not None:
        ax.imshow(section.image, extent=section.extent, cmap="gray", alpha=FADED)
    wide = [size * section.diameter]
    place: Any = {"units": "xy", "offsets": section.places, "offset_transform": ax.transData}
    spots = EllipseCollection(wide, wide, [0.0], linewidths=0, rasterized=True, **place)
    ax.add_collection(spots)
    left, top = section.places.min(axis=0) - section.diameter
    right, bottom = section.places.max(axis=0) + section.diameter
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.axis("off")
    return spots


def _places(source: Any, basis: Any, n: int) -> tuple[np.ndarray, str | None]:
    """Return the map, the first two columns of what is named or given, and its name."""
    found = None
    if basis is None or isinstance(basis, str):
        if not is_annotated(source):
            raise ValueError("basis is needed: pass an array, two numbers per sample, or AnnData with a UMAP")
        wanted = MAPS if basis is None else (basis, f"X_{basis}")
        found = next((name for name in wanted if name in source.obsm), None)
        if found is None:
            what = "no map of the samples" if basis is None else f"no {basis!r}"
            known = ", ".join(map(repr, source.obsm)) or "none"
            raise KeyError(f"adata.obsm has {what} (it has: {known}); run scanpy.tl.umap, or pass basis=")
        basis = source.obsm[found]
    places = np.asarray(basis, dtype=np.float64)
    if places.ndim != 2 or len(places) != n or places.shape[1] < 2:
        raise ValueError(f"basis must have two numbers for each of the {n} samples, got shape {places.shape}")
    return places[:, :2], found


# ---------- plots of mean loadings of groups and of their differences

SPREAD = 0.55  # height that the groups of one factor share
MOST_COMPARISONS = 6  # that are drawn with intervals
MOST_OF_ALL = 40  # of more comparisons, those with a significant difference are drawn
MOST_LABELS = 250  # rows of a map with names
TEXTS = ("factor", "group", "reference", "within", "relative_to", "rivals")  # no numbers


@drawing
def usage(
    source: Any,
    *,
    key: str | None = None,
    level: float = 0.05,
    figure: canvas.OnFigure = None,
    **shown: Unpack[canvas.Shown],
) -> Any:
    """Draw the mean loadings of groups and their differences with 95% intervals.

    More than six comparisons, and comparisons within parts, are drawn as one map of effects x factors: the
    differences as colours, similar comparisons side by side, and a dot where one is significant. Of more than
    40 comparisons, such as the guides of a screen, the map has those with a significant difference.

    Parameters
    ----------
    source : Usage or AnnData
        Result of ``model.usage(...)``, or AnnData with the result of `log1pnmf.tl.usage`.
    level : float
        Differences with an adjusted p-value up to this level are drawn filled, others open.
    """
    table, about = _usage_of(source, key)
    names = [str(name) for name in about["factor_names"]]
    is_slope = "reference" not in table
    if "within" in table or len(table["factor"]) > MOST_COMPARISONS * len(names):
        return _effects(table, names, level, figure)
    figure = figure_or_new(figure, (4.8 if is_slope else 8.4, 1.1 + 0.36 * len(names)))
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


def _effects(
    table: Mapping[str, np.ndarray], names: list[str], level: float, figure: Figure | SubFigure | None
) -> Any:
    """Draw the differences of many comparisons as a map, similar ones side by side."""
    parts = [table[name][:: len(names)] for name in ("within", "group") if name in table]
    what = "difference" if "difference" in table else "slope"
    values = table[what].reshape(-1, len(names))
    sure = table["adjusted_p"].reshape(values.shape) <= level
    order, title = arrange(values).order, f"{len(values)} comparisons"
    if len(values) > MOST_OF_ALL:
        clear = order[sure[order].any(axis=1)]
        title = f"{len(clear)} of {title} with\na significant {what}"
        order = clear if len(clear) else order
    labelled = len(order) <= MOST_LABELS
    tall = max(1.2, 0.17 * len(order)) if labelled else 9.0
    figure = figure_or_new(figure, (2.6 + 0.42 * len(names), 1.4 + tall))
    ax, most = figure.subplots(), max(float(np.quantile(np.abs(values[order]), 0.99)), 1e-300)
    image = canvas.heat_map(ax, values[order], "RdBu_r", (-most, most), numbers=False)
    rows, columns = np.nonzero(sure[order])
    ax.scatter(columns, rows, s=16, color="white", edgecolors=INK, linewidths=0.8)
    canvas.label_columns(ax, names)
    ax.set_yticks(range(len(order)), [": ".join(part[row] for part in parts) for row in order])
    ax.tick_params(labelleft=labelled)
    caption(ax, title=title, size="small")
    against = "" if what == "slope" else f" to {table['reference'][0]}"
    canvas.color_bar(image, f"{what}{against}\n(dot: adjusted p at most {level:g})")
    return figure


def _means(ax: Axes, table: Mapping[str, np.ndarray], about: Mapping[str, Any], names: list[str]) -> None:
    """Draw a bar at the mean of every group, and its replicates around it."""
    group, factor, reference = table["group"], table["factor"], table["reference"][0]
    groups = [reference, *dict.fromkeys(group)]
    given = about.get("colors")
    colors = distinct_colors(len(groups)) if given is None else [given.get(name) for name in groups]
    units = None if "means" not in about else np.asarray(about["unit_groups"]).astype(str)
    half = 0.45 * SPREAD / len(groups)
    for place, (name, color) in enumerate(zip(groups, colors, strict=True)):
        for k, one in enumerate(names):
            row = np.flatnonzero((factor == one) & ((group == name) | (name == reference)))[0]
            mean = table["reference_mean" if name == reference else "mean"][row]
            y, label = _height(k, place, len(groups)), name if k == 0 else None
            ax.plot([mean, mean], [y - half, y + half], color=color, linewidth=2.2, label=label)
            if units is not None:
                dots = np.asarray(about["means"])[units == name, k]
                ax.scatter(dots, np.full(len(dots), y), s=13, color=color, alpha=0.55, linewidths=0)
    ax.set_xlim(left=0.0)
    caption(ax, "mean loading", size="small")
    place_above = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 4}
    ax.legend(frameon=False, fontsize="small", labelcolor=INK, **place_above)


def _height(k: int, place: int, n_groups: int) -> float:
    """Return where a group is drawn among those of factor k."""
    return k + SPREAD * ((place + 0.5) / n_groups - 0.5)


def _differences(
    ax: Axes, table: Mapping[str, np.ndarray], names: list[str], given: Mapping[str, Any] | None, level: float
) -> None:
    """Draw the difference, or the slope, of every group and factor, with its interval."""
    group, factor, groups = table["group"], table["factor"], list(dict.fromkeys(table["group"]))
    colors = point_colors(len(names))
    shades = distinct_colors(len(groups) + 1)[1:] if given is None else [given[name] for name in groups]
    columns = ("difference" if "difference" in table else "slope", "lower", "upper", "adjusted_p")
    values = np.stack([table[name] for name in columns], axis=1)
    for row, (difference, low, high, adjusted) in enumerate(values):
        k, place = names.index(factor[row]), groups.index(group[row])
        y, color = _height(k, place, len(groups)), colors[k] if len(groups) == 1 else shades[place]
        if np.isfinite(high - low):
            ax.plot([low, high], [y, y], color=color, linewidth=1.4)
        face = color if adjusted <= level else "white"
        ax.scatter([difference], [y], s=28, facecolor=face, edgecolor=color, linewidths=1.2, zorder=3)
    ax.axvline(0.0, color="#bbbbbb", linewidth=0.8, linestyle=":", zorder=0)
    is_slope = "reference" not in table
    what = f"slope on {groups[0]}" if is_slope else f"difference to {table['reference'][0]}"
    stable = dict.fromkeys(filter(None, table["relative_to"]))
    against = f" relative to {next(iter(stable))}" if len(stable) == 1 else ""
    label = f"{fill(what + against, 50)}\n95% interval (filled: adjusted p at most {level:g})"
    caption(ax, label, size="small")


def _usage_of(source: Any, key: str | None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the table of a comparison of groups, and all that is drawn beside it."""
    found = canvas.result_in(source, Usage, key, tool="usage", call="model.usage(groups)")
    given = isinstance(found, Usage)
    about = dict(found.kept() if given else found)
    columns = found.table() if given else about["table"]
    table = {name: np.asarray(columns[name], dtype=str if name in TEXTS else float) for name in columns}
    colors = None if given else canvas.colors_in(source, str(about.get("groupby", "")))
    if colors is not None and {*table["group"], *table.get("reference", ())} <= set(colors):
        about["colors"] = colors
    return table, about


# ---------- plots of loadings: sample by sample, and by group

PIXELS = (400, 2400)  # of a structure plot: enough for print
ROWS_OF_LEGEND = 16


@drawing
def structure(
    source: Any,
    groupby: Any = None,
    *,
    key: str | None = None,
    factors: Sequence[int | str] | None = None,
    heights: Literal["loadings", "shares"] = "loadings",
    max_samples: int | None = 20_000,
    colors: Sequence[Any] | None = None,
    legend: bool = True,
    title: str | None = None,
    ax: Axes | None = None,
    **shown: Unpack[canvas.Shown],
) -> Axes:
    """Draw the loadings of all samples: each sample is a thin bar, each colour a factor.

    Parameters
    ----------
    factors : sequence of int or str, optional
        Which factors to draw, by number or name, from the bottom up; by default all.
    heights : {"loadings", "shares"}
        Loadings with a maximum of 1 for every factor, as in the paper; or the share of each sample's signal
        that each factor carries (`log1pnmf.shares`).
    colors : sequence of colours, optional
        One for each factor of the fit.
    legend : bool
        Whether to draw the legend of the factors.

    Notes
    -----
    Within a group similar samples are neighbours. If bars are narrower than a pixel, the pixel shows their
    mean. The width of a group is proportional to its number of samples, but at least a fiftieth of the axes,
    so that rare groups are visible.
    """
    check_choice("heights", heights, ("loadings", "shares"))
    fit = fit_to_draw(source, key=key)
    groups = None if groupby is None else read_labels(source, groupby)
    arrangement = arrange(fit.loadings, groups, max_samples=max_samples)
    chosen = chosen_factors(fit, factors)
    palette = factor_colors(fit.loadings) if colors is None else list(colors)
    used = [palette[k] for k in chosen]
    values, unit = fit.loadings, "loading"
    if heights == "shares":
        values, unit = sample_shares(fit.loadings, fit.factors), "share of the signal"
    ax = axes_or_new(ax, (9.0, 2.9))
    draw_structure(ax, values[arrangement.order][:, chosen], arrangement, used)
    caption(ax, y=unit, size="small")
    caption(ax, title=fit.name if title is None else title)
    if legend:
        factor_legend(ax, [fit.factor_labels[k] for k in chosen], used)
    name_groups(ax, arrangement, groupby)
    return ax


def draw_structure(ax: Axes, values: canvas.Array, arrangement: Arrangement, colors: Sequence[Any]) -> None:
    """Draw stacked bars, already in order, as one picture; below it, the numbers that they are sorted by."""
    tallest = float(values.sum(axis=1).max(initial=0.0)) or 1.0
    parts = [(start, stop) for _, start, stop in arrangement.spans]
    pixels = canvas.stacked_pixels(values, parts, colors, top=tallest, shape=PIXELS)
    ax.imshow(pixels, origin="lower", extent=(0.0, 1.0, 0.0, tallest), aspect="auto", zorder=2)
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.02 * tallest), xticks=[])
    tidy(ax)
    ax.spines["bottom"].set_visible(False)
    if arrangement.scale is not None:
        strip, bottom = arrangement.scale[None, : parts[0][1]], -0.08 * tallest
        left, right = _places_of_bars(arrangement)[0]
        extent = (left, right, bottom, -0.025 * tallest)
        ax.imshow(strip, extent=extent, aspect="auto", cmap="viridis", zorder=2)
        ax.set(xlim=(0.0, 1.0), ylim=(bottom, 1.02 * tallest))
        ax.spines["left"].set_bounds(0.0, 1.02 * tallest)


def name_groups(ax: Axes, arrangement: Arrangement, groupby: Any = None) -> None:
    """Write the names of the groups below their bars, or the numbers that samples are ordered by."""
    names = [name for name, _, _ in arrangement.spans]
    places = _places_of_bars(arrangement)
    if arrangement.scale is not None:
        parts = np.linspace(0.0, 1.0, 5)
        values = np.quantile(arrangement.scale[: arrangement.spans[0][2]], parts)
        ticks, texts = list(places[0, 0] + parts * np.ptp(places[0])), [f"{value:.3g}" for value in values]
        if len(names) > 1:
            ticks[-1], texts[-1] = places[1].mean(), names[1]
        ax.set_xticks(ticks, texts)
        ax.tick_params(axis="x", length=0)
        called = groupby if isinstance(groupby, str) else getattr(groupby, "name", None) or "groupby"
        caption(ax, f"{called} (samples in its order)", size="small")
    elif any(names):
        canvas.label_below(ax, names, places.mean(axis=1))


def _places_of_bars(arrangement: Arrangement) -> canvas.Array:
    """Return where the bars of every group start and stop."""
    return canvas.group_places([stop - start for _, start, stop in arrangement.spans])


def factor_legend(ax: Axes, names: Sequence[str], colors: Sequence[Any]) -> None:
    """List the factors beside the axes, in the order of the stack."""
    patches = [Patch(color=color, label=name) for name, color in zip(names, colors, strict=True)]
    place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "ncols": -(-len(patches) // ROWS_OF_LEGEND)}
    sizes = {"handlelength": 0.9, "handleheight": 0.9, "handletextpad": 0.5, "labelspacing": 0.3}
    style = {"frameon": False, "fontsize": "small", "labelcolor": INK, "borderaxespad": 0.3}
    ax.legend(handles=patches[::-1], **place, **sizes, **style)


@drawing
def loadings_by_group(
    source: Any,
    groupby: Any,
    *,
    key: str | None = None,
    title: str | None = None,
    ax: Axes | None = None,
    **shown: Unpack[canvas.Shown],
) -> Axes:
    """Draw the mean loading of each factor in each group, as a heat map."""
    fit = fit_to_draw(source, key=key)
    groups = read_labels(source, groupby, scale=False)
    means = group_means(fit.loadings, groups)
    ax = axes_or_new(ax, (1.9 + 0.42 * fit.n_components, 0.9 + 0.27 * len(groups.names)))
    image = canvas.heat_map(ax, means, "Blues", (0.0, max(float(means.max()), 1e-300)))
    canvas.label_columns(ax, fit.factor_labels)
    counts = zip(groups.names, groups.sizes.tolist(), strict=True)
    ax.set_yticks(range(len(groups.names)), [f"{name} ({size:,})" for name, size in counts])
    canvas.color_bar(image, "mean loading")
    caption(ax, title=fit.name if title is None else title)
    return ax
