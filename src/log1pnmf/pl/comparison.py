"""Two fits side by side, factors that correspond in the same colour."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure, SubFigure

from log1pnmf._common.checks import check_choice
from log1pnmf.analysis.arrange import arrange
from log1pnmf.analysis.coloring import colors_of_fits
from log1pnmf.analysis.groups import read_labels
from log1pnmf.analysis.metrics import FactorMatch, match_factors

from .canvas import INK, color_bar, drawing, figure_or_new, heat_map, set_title
from .labels import label_columns
from .loadings import draw_structure, factor_legend, name_groups
from .sources import Drawable, drawable, need_factors

__all__ = ["compare"]


@drawing
def compare(
    a: Any,
    b: Any,
    groupby: Any = None,
    *,
    keys: tuple[str | None, str | None] = (None, None),
    on: str = "loadings",
    max_samples: int | None = 20_000,
    random_state: int = 0,
    figure: Figure | SubFigure | None = None,
) -> Any:
    """Compare two fits: structure plots with matched colours, and the similarity of their factors.

    Parameters
    ----------
    a, b : Fit, Log1pNMF, AnnData, or a file that `save` wrote
        The two fits.
    groupby : str or array-like of shape (n,), optional
        Column of ``obs`` of the first fit, or labels; numbers sort the samples, as in `structure`.
    keys : (str, str), optional
        Names of the fits in AnnData; both may be in the same object.
    on : {"loadings", "factors"}
        Whether to correlate loadings over samples, or factors over features (Pearson). Loadings compare
        across c; factors have different scales at different c.
    max_samples : int, optional
        Maximum number of samples to draw.
    random_state : int
        Seed that decides which samples are drawn.
    figure : Figure or SubFigure, optional
        Figure to draw on; by default a new one.

    Returns
    -------
    Figure
        The structure plot of `a` above that of `b`, with the samples in the same order. Beside them is the
        similarity of all pairs of factors, with matched factors on the diagonal. A factor of `b` has the
        colour of its match in `a` if they correlate by at least 0.5, and otherwise a colour of its own.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import Log1pNMF, datasets, pl
    >>> counts = datasets.pancreas().counts[:200]
    >>> fits = [Log1pNMF(3, c=c, random_state=0).fit(counts) for c in (1.0, np.inf)]
    >>> figure = pl.compare(*fits, figure=Figure())
    >>> [ax.get_title(loc="left") for ax in figure.axes[:2]]
    ['c = 1', 'c = ∞']
    """
    first, second = drawable(a, key=keys[0]), drawable(b, key=keys[1])
    tables = _compared(first, second, on)
    match = match_factors(*tables)
    order = match.order()
    palettes = colors_of_fits(tables)
    groups = None if groupby is None else read_labels(a, groupby)
    both = np.concatenate((first.loadings, second.loadings[:, order]), axis=1)
    arrangement = arrange(both, groups, max_samples=max_samples, random_state=random_state)

    figure = figure_or_new(figure, (11.0, 4.6))
    upper, lower, similar = _panels(figure)
    for ax, shown, columns, palette in (
        (upper, first, np.arange(first.n_components), palettes[0]),
        (lower, second, order, palettes[1]),
    ):
        used = [palette[k] for k in columns]
        draw_structure(ax, shown.loadings[arrangement.order][:, columns], arrangement, used)
        factor_legend(ax, [shown.factor_labels[k] for k in columns], used)
        ax.set_ylabel("loading", fontsize="small", color=INK)
        set_title(ax, None, shown.name)
    _draw_similarity(similar, first, second, match)
    name_groups(lower, arrangement, groupby)
    return figure


def _compared(first: Drawable, second: Drawable, on: str) -> tuple[np.ndarray, np.ndarray]:
    check_choice("on", on, ("loadings", "factors"))
    if len(first.loadings) != len(second.loadings):
        raise ValueError(
            f"both fits must be of the same samples, got {len(first.loadings)} and {len(second.loadings)}; "
            "to compare factors of different samples, use log1pnmf.analysis.metrics.match_factors"
        )
    if on == "loadings":
        return first.loadings, second.loadings
    need_factors(first)
    need_factors(second)
    return first.factors, second.factors


def _panels(figure: Any) -> tuple[Any, Any, Any]:
    grid = figure.add_gridspec(2, 2, width_ratios=(2.1, 1.0))
    return figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[:, 1])


def _draw_similarity(ax: Any, first: Drawable, second: Drawable, match: FactorMatch) -> None:
    order = match.order()
    matched = match.pairs[:, 0]
    rows = np.concatenate((matched, np.setdiff1d(np.arange(first.n_components), matched)))
    image = heat_map(ax, match.matrix[np.ix_(rows, order)], cmap="RdBu_r", limits=(-1.0, 1.0))
    label_columns(ax, [second.factor_labels[k] for k in order])
    ax.set_yticks(range(len(rows)), [first.factor_labels[k] for k in rows])
    ax.set_xlabel(second.name, fontsize="small", color=INK)
    ax.set_ylabel(first.name, fontsize="small", color=INK)
    color_bar(image, "correlation")
