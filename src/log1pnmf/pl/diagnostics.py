"""Plots of what a fit does not explain."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from log1pnmf.analysis.diagnostics import OUTLYING, Diagnostics
from log1pnmf.analysis.markers.inference import Z95

from .canvas import INK, axes_or_new, drawing, figure_or_new, set_title, tidy
from .labels import label_points

__all__ = ["diagnostics", "dispersion"]

GREY, RED, BAND = "#9aa3ab", "#c4473a", "#f0d3cf"

VARIANCES = {"poisson": "Poisson", "nb": "negative binomial"}
"""The noise with whose variance that of a feature is compared, in words."""


@drawing
def diagnostics(found: Diagnostics, *, n_labels: int = 8, figure: Figure | SubFigure | None = None) -> Any:
    """Draw variances of features, deviances of samples, and the error of an approximation.

    Parameters
    ----------
    found : Diagnostics
        Result of `log1pnmf.analysis.diagnose`.
    n_labels : int
        Maximum number of features and samples to name in each panel.
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
    >>> counts = np.random.default_rng(0).poisson(3.0, size=(40, 30))
    >>> found = Log1pNMF(1, c=float("inf"), random_state=0).fit(counts).diagnose(counts)
    >>> len(pl.diagnostics(found, figure=Figure()).axes)
    2
    """
    if not isinstance(found, Diagnostics):
        raise TypeError(f"expected Diagnostics, got {type(found).__name__}; pass model.diagnose(counts)")
    n_panels = 2 if found.feature_gap is None else 3
    figure = figure_or_new(figure, (4.2 * n_panels, 3.6))
    panels = figure.subplots(1, n_panels)
    _features(panels[0], found, n_labels)
    _samples(panels[1], found, n_labels)
    if found.feature_gap is not None:
        _gaps(panels[2], found, n_labels)
    return figure


@drawing
def dispersion(found: Diagnostics, *, n_labels: int = 8, ax: Axes | None = None) -> Axes:
    """Draw the dispersions of a fit with negative binomial noise against mean counts, with their trend.

    Parameters
    ----------
    found : Diagnostics
        Result of `log1pnmf.analysis.diagnose`.
    n_labels : int
        Maximum number of features to name: those farthest above the trend.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    Axes
        The line is the trend. The band around it contains 95% of the prior of a feature's dispersion, so it
        shows how strongly dispersions are pulled towards the trend.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import Log1pNMF, pl
    >>> counts = np.random.default_rng(0).negative_binomial(2, 0.4, size=(60, 30))
    >>> found = Log1pNMF(1, noise="nb").fit(counts).diagnose(counts)
    >>> pl.dispersion(found, ax=Figure().subplots()).get_ylabel()
    'dispersion'
    """
    if not isinstance(found, Diagnostics):
        raise TypeError(f"expected Diagnostics, got {type(found).__name__}; pass model.diagnose(counts)")
    if found.fitted_dispersion is None:
        raise ValueError(
            "the fit has Poisson noise and therefore no dispersions; fit with noise='nb', or use "
            "pl.diagnostics(found) for the variances of features"
        )
    ax = axes_or_new(ax, (4.6, 3.6))
    index = np.flatnonzero(found.feature_mean > 0.0)
    x, y = found.feature_mean[index], found.fitted_dispersion[index]
    _scatter(ax, x, y, logs="xy")
    ax.set_xlabel("mean count", color=INK)
    ax.set_ylabel("dispersion", color=INK)
    set_title(ax, None, f"{len(index):,} features: median {np.median(y):.2g}" if len(index) else "no counts")
    if found.trend is None or not len(index):
        return ax
    order, trend = np.argsort(x, kind="stable"), found.trend[index]
    wide = np.exp(Z95 * found.trend_spread)
    ax.plot(x[order], trend[order], color=RED, linewidth=1.2, label="trend")
    band = trend[order] / wide, trend[order] * wide
    ax.fill_between(x[order], *band, color=BAND, linewidth=0, zorder=0, label="95% around it, a priori")
    ax.legend(frameon=False, fontsize="small", labelcolor=INK)
    top = np.argsort(-y / trend, kind="stable")[:n_labels]
    label_points(ax, [str(found.feature_names[j]) for j in index[top]], x[top], y[top])
    return ax


def _features(ax: Axes, found: Diagnostics, n_labels: int) -> None:
    good = np.isfinite(found.feature_dispersion) & (found.feature_dispersion > 0.0)
    index = np.flatnonzero(good)
    x, y = found.feature_mean[index], found.feature_dispersion[index]
    _scatter(ax, x, y, logs="xy")
    order = np.sort(x)
    ax.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    median = float(np.median(y)) if len(y) else 1.0
    title = f"features: median {median:.2g}"
    if found.noise == "poisson":
        ax.plot(order, 1.0 + found.overdispersion * order, color=RED, linewidth=1.0, zorder=0)
        title += f"; line 1 + {found.overdispersion:.2g} mean"
    top = np.argsort(-y, kind="stable")[:n_labels]
    ax.set_xlabel("mean count", color=INK)
    ax.set_ylabel(f"variance / {VARIANCES[found.noise]} variance", color=INK)
    set_title(ax, None, title)
    label_points(ax, [str(found.feature_names[j]) for j in index[top]], x[top], y[top])


def _samples(ax: Axes, found: Diagnostics, n_labels: int) -> None:
    x, y = np.arange(len(found.sample_score)), found.sample_score
    outliers = found.outliers()
    _scatter(ax, x, y)
    ax.scatter(outliers, y[outliers], s=12, color=RED, linewidths=0, zorder=3)
    ax.axhline(OUTLYING, color=INK, linewidth=0.8, linestyle=":")
    ax.set_xlabel("sample", color=INK)
    ax.set_ylabel("deviance, robust z", color=INK)
    set_title(ax, None, f"samples: {len(outliers):,} outlying")
    named = outliers[:n_labels]
    label_points(ax, [str(found.sample_names[i]) for i in named], named.astype(np.float64), y[named])


def _gaps(ax: Axes, found: Diagnostics, n_labels: int) -> None:
    assert found.feature_gap is not None  # the panel is only there with it
    index = np.flatnonzero((found.feature_gap > 0.0) & (found.feature_mean > 0.0))
    x, y = found.feature_mean[index], found.feature_gap[index]
    _scatter(ax, x, y, logs="xy")
    top = np.argsort(-y, kind="stable")[:n_labels]
    ax.set_xlabel("mean count", color=INK)
    ax.set_ylabel("log-likelihood misjudged at zeros", color=INK)
    set_title(ax, None, f"approximation: {found.feature_gap.sum():,.3g} in all")
    label_points(ax, [str(found.feature_names[j]) for j in index[top]], x[top], y[top])


def _scatter(ax: Axes, x: np.ndarray, y: np.ndarray, *, logs: str = "") -> None:
    tidy(ax)
    if "x" in logs:
        ax.set_xscale("log")
    if "y" in logs:
        ax.set_yscale("log")
    ax.scatter(x, y, s=7, color=GREY, alpha=0.6, linewidths=0, rasterized=True)
    ax.margins(0.08)
