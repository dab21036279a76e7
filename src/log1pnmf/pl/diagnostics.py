"""Plots of what a fit does not explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from log1pnmf.analysis.diagnostics import OUTLYING, Diagnostics
from log1pnmf.analysis.groups import arrange, colors_of_fits, read_labels
from log1pnmf.analysis.marker_tests import Z95
from log1pnmf.analysis.metrics import FactorMatch, match_factors
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.summary import NOISES

from . import canvas
from .canvas import INK, axes_or_new, caption, drawing, figure_or_new, fit_to_draw, tidy
from .loadings import draw_structure, factor_legend, name_groups

if TYPE_CHECKING:
    from typing_extensions import Unpack


# ---------- two fits side by side, factors that correspond in the same colour


@drawing
def compare(
    a: Any,
    b: Any,
    groupby: Any = None,
    *,
    keys: tuple[str | None, str | None] = (None, None),
    max_samples: int | None = 20_000,
    figure: canvas.OnFigure = None,
    **shown: Unpack[canvas.Shown],
) -> Any:
    """Compare two fits: structure plots with matched colours, and the similarity of their factors.

    Parameters
    ----------
    a, b : Fit, Log1pNMF, AnnData, or a file that `save` wrote
        The two fits.
    keys : (str, str), optional
        Names of the fits in AnnData; both may be in the same object.

    Returns
    -------
    Figure
        The structure plot of `a` above that of `b`, with the samples in the same order. Beside them is the
        similarity of all pairs of factors, the correlation of their loadings, with matched factors on the
        diagonal. A factor of `b` has the colour of its match in `a` if they correlate by at least 0.5, and
        otherwise a colour of its own.
    """
    first, second = fit_to_draw(a, key=keys[0]), fit_to_draw(b, key=keys[1])
    if len(first.loadings) != len(second.loadings):
        raise ValueError(
            f"both fits must be of the same samples, got {len(first.loadings)} and {len(second.loadings)}; "
            "to compare factors of different samples, use log1pnmf.analysis.metrics.match_factors"
        )
    match = match_factors(first.loadings, second.loadings)
    order = match.order()
    groups = None if groupby is None else read_labels(a, groupby)
    both = np.concatenate((first.loadings, second.loadings[:, order]), axis=1)
    arrangement = arrange(both, groups, max_samples=max_samples)

    figure = figure_or_new(figure, (11.0, 4.6))
    grid = figure.add_gridspec(2, 2, width_ratios=(2.1, 1.0))
    upper, lower, similar = (figure.add_subplot(grid[at]) for at in ((0, 0), (1, 0), (slice(None), 1)))
    columns, palettes = (np.arange(first.n_components), order), colors_of_fits((first, second))
    for ax, fit, own, palette in zip((upper, lower), (first, second), columns, palettes, strict=True):
        used = [palette[k] for k in own]
        draw_structure(ax, fit.loadings[arrangement.order][:, own], arrangement, used)
        factor_legend(ax, [fit.factor_labels[k] for k in own], used)
        caption(ax, y="loading", size="small")
        caption(ax, title=fit.name)
    _draw_similarity(similar, first, second, match)
    name_groups(lower, arrangement, groupby)
    return figure


def _draw_similarity(ax: Any, first: Fit, second: Fit, match: FactorMatch) -> None:
    """Draw the correlations of all pairs of factors, matched ones on the diagonal."""
    order, matched = match.order(), match.pairs[:, 0]
    rows = np.concatenate((matched, np.setdiff1d(np.arange(first.n_components), matched)))
    image = canvas.heat_map(ax, match.matrix[np.ix_(rows, order)], "RdBu_r", (-1.0, 1.0))
    canvas.label_columns(ax, [second.factor_labels[k] for k in order])
    ax.set_yticks(range(len(rows)), [first.factor_labels[k] for k in rows])
    caption(ax, second.name, first.name, size="small")
    canvas.color_bar(image, "correlation")


# ---------- plots of what a fit does not explain

GREY, RED, BAND = "#9aa3ab", "#c4473a", "#f0d3cf"


@drawing
def diagnostics(
    found: Diagnostics, *, n_labels: int = 8, figure: canvas.OnFigure = None, **shown: Unpack[canvas.Shown]
) -> Any:
    """Draw the variances of features against their means, and the deviances of samples."""
    _check_kind(found)
    figure = figure_or_new(figure, (8.4, 3.6))
    left, right = figure.subplots(1, 2)
    _draw_features(left, found, n_labels)
    _draw_samples(right, found, n_labels)
    return figure


def _check_kind(found: Any) -> None:
    if not isinstance(found, Diagnostics):
        raise TypeError(
            f"expected Diagnostics, got {type(found).__name__}; pass log1pnmf.analysis.diagnose(fit, counts)"
        )


@drawing
def dispersion(
    found: Diagnostics, *, n_labels: int = 8, ax: Axes | None = None, **shown: Unpack[canvas.Shown]
) -> Axes:
    """Draw the dispersions of a fit with negative binomial noise against mean counts, with their trend.

    The band around the trend contains 95% of the prior of a feature's dispersion, so it shows how strongly
    dispersions are pulled towards the trend. Names are of the features farthest above it.
    """
    _check_kind(found)
    if found.fitted_dispersion is None:
        raise ValueError(
            "the fit has Poisson noise and therefore no dispersions; fit with noise='nb', or use "
            "pl.diagnostics(found) for the variances of features"
        )
    ax = axes_or_new(ax, (4.6, 3.6))
    index = np.flatnonzero(found.feature_mean > 0.0)
    x, y = found.feature_mean[index], found.fitted_dispersion[index]
    _scatter(ax, x, y, scale="log")
    title = f"{len(index):,} features: median {np.median(y):.2g}" if len(index) else "no counts"
    caption(ax, "mean count", "dispersion", title)
    if found.trend is None or not len(index):
        return ax
    order, trend = np.argsort(x, kind="stable"), found.trend[index]
    wide = np.exp(Z95 * found.trend_spread)
    ax.plot(x[order], trend[order], color=RED, linewidth=1.2, label="trend")
    band = trend[order] / wide, trend[order] * wide
    ax.fill_between(x[order], *band, color=BAND, linewidth=0, zorder=0, label="95% around it, a priori")
    ax.legend(frameon=False, fontsize="small", labelcolor=INK)
    top = np.argsort(-y / trend, kind="stable")[:n_labels]
    canvas.label_points(ax, [str(found.feature_names[j]) for j in index[top]], x[top], y[top])
    return ax


def _draw_features(ax: Axes, found: Diagnostics, n_labels: int) -> None:
    """Draw the variance of every feature against its mean."""
    index = np.flatnonzero(np.isfinite(found.feature_dispersion) & (found.feature_dispersion > 0.0))
    x, y = found.feature_mean[index], found.feature_dispersion[index]
    _scatter(ax, x, y, scale="log")
    ax.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    title = f"features: median {np.median(y) if len(y) else 1.0:.2g}"
    if found.noise == "poisson":
        order = np.sort(x)
        ax.plot(order, 1.0 + found.overdispersion * order, color=RED, linewidth=1.0, zorder=0)
        title += f"; line 1 + {found.overdispersion:.2g} mean"
    top = np.argsort(-y, kind="stable")[:n_labels]
    caption(ax, "mean count", f"variance / {NOISES[found.noise]} variance", title)
    canvas.label_points(ax, [str(found.feature_names[j]) for j in index[top]], x[top], y[top])


def _draw_samples(ax: Axes, found: Diagnostics, n_labels: int) -> None:
    """Draw the deviance of every sample."""
    y, outliers = found.sample_score, found.outliers()
    _scatter(ax, np.arange(len(y)), y)
    ax.scatter(outliers, y[outliers], s=12, color=RED, linewidths=0, zorder=3)
    ax.axhline(OUTLYING, color=INK, linewidth=0.8, linestyle=":")
    caption(ax, "sample", "deviance, robust z", f"samples: {len(outliers):,} outlying")
    named = outliers[:n_labels]
    canvas.label_points(ax, [str(found.sample_names[i]) for i in named], named.astype(np.float64), y[named])


def _scatter(ax: Axes, x: np.ndarray, y: np.ndarray, *, scale: str = "linear") -> None:
    tidy(ax)
    ax.set(xscale=scale, yscale=scale)
    ax.scatter(x, y, s=7, color=GREY, alpha=0.6, linewidths=0, rasterized=True)
    ax.margins(0.08)
