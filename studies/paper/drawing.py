"""Figures that more than one study draws, put together from `log1pnmf.pl`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pandas
from matplotlib import pyplot
from matplotlib.figure import Figure

from log1pnmf import pl
from log1pnmf.analysis.groups import distinct_colors
from log1pnmf.fitting.fit import Fit
from log1pnmf.pl.canvas import fit_of_arrays
from log1pnmf.pl.loadings import factor_legend
from studies.paper.mcf7_picture import Picture

CHANGED = {"neither": "#b0b0b0", "RA": "#e67e22", "TGFb": "#2176c7", "both": "#2e9e4f"}
TREATMENTS = ("#4d4d4d", "#e67e22", "#2176c7")  # baseline, RA, TGFb


def panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, Any]:
    """Make a figure with a grid of axes."""
    figure = pyplot.figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def structures(
    shown: Mapping[str, tuple[np.ndarray, np.ndarray]],
    labels: np.ndarray,
    order: Sequence[str],
    *,
    colors: Sequence[Any] | None = None,
) -> Figure:
    """Structure plots below each other: loadings and factors by title; groups are named below the last."""
    figure, axes = panels(len(shown), 1, (9.0, 2.1 * len(shown) + 0.6))
    groups = pandas.Categorical(labels, categories=list(order))
    for ax, (title, (loadings, factors)) in zip(axes[:, 0], shown.items(), strict=True):
        one = fit_of_arrays(loadings, factors, math.inf)
        palette = distinct_colors(loadings.shape[1]) if colors is None else list(colors)
        pl.structure(one, groups, title=title, colors=palette, legend=False, ax=ax)
        if ax is axes[0, 0]:
            factor_legend(ax, [f"k{k + 1}" for k in range(len(palette))], palette)
        if ax is not axes[-1, 0]:
            for text in list(ax.texts):
                text.remove()
    return figure


def as_shown(picture: Picture) -> Fit:
    """Return a picture as a fit, which plots take."""
    names = picture.symbols.astype(object)
    return fit_of_arrays(picture.loadings, picture.factors, picture.c, feature_names=names)


def sample_scores(pictures: Iterable[Picture], labels: np.ndarray, order: Sequence[str]) -> Figure:
    """Scores of the samples, by treatment."""
    shown = {f"c = {picture.c:g}": (picture.loadings, picture.factors) for picture in pictures}
    return structures(shown, labels, order, colors=TREATMENTS)


def gene_scores(pictures: Iterable[Picture], groups: np.ndarray) -> Figure:
    """Scores of the genes in the two treatment factors, coloured by differential expression."""
    found = list(pictures)
    figure, axes = panels(1, len(found), (4.6 * len(found), 4.2))
    for ax, picture in zip(axes[0], found, strict=True):
        _scatter_genes(ax, picture, groups)
        ax.set_title(f"c = {picture.c:g}, Spearman {picture.correlation:.2f}", loc="left", fontsize="medium")
    axes[0, 0].legend(frameon=False, fontsize="small", markerscale=3.0, title="higher under")
    return figure


def _scatter_genes(ax: Any, picture: Picture, groups: np.ndarray) -> None:
    for group, color in CHANGED.items():
        where = groups == group
        ax.scatter(
            picture.factors[where, 1],
            picture.factors[where, 2],
            s=3,
            color=color,
            label=group,
            alpha=0.5 if group == "neither" else 0.9,
            linewidths=0,
            rasterized=True,
        )
    if math.isinf(picture.c):
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_yscale("symlog", linthresh=1.0)
    ax.set(xlabel="k2 (RA)", ylabel="k3 (TGF-beta)")
    ax.spines[["top", "right"]].set_visible(False)


def forms_figure(found: Mapping[str, Picture], labels: np.ndarray, order: Sequence[str]) -> Figure:
    """For every fit its sample scores, and its treatment factors against each other."""
    figure, axes = panels(len(found), 2, (10.0, 2.3 * len(found)))
    groups = pandas.Categorical(labels, categories=list(order))
    for (left, right), (title, picture) in zip(axes, found.items(), strict=True):
        pl.structure(as_shown(picture), groups, title=title, colors=TREATMENTS, legend=False, ax=left)
        right.scatter(picture.factors[:, 1], picture.factors[:, 2], s=2, color="#4d4d4d", linewidths=0)
        if math.isinf(picture.c):
            right.set_xscale("symlog", linthresh=1.0)
            right.set_yscale("symlog", linthresh=1.0)
        right.set_title(f"Spearman {picture.correlation:.2f}", loc="left", fontsize="medium")
        right.set(xlabel="k2 (RA)", ylabel="k3 (TGF-beta)")
        right.spines[["top", "right"]].set_visible(False)
    return figure
