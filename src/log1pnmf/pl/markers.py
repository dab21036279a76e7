"""Volcano plot: effects of a factor on features against their p-values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf._common.colors import factor_colors
from log1pnmf.analysis.markers.table import Markers
from log1pnmf.fitting.annotated import symbols_of
from log1pnmf.fitting.keys import Keys

from .canvas import INK, axes_or_new, drawing, set_title, tidy
from .labels import label_points

__all__ = ["volcano"]

Array = NDArray[np.float64]

MOST_CERTAIN = 50.0
"""Height at which points end: a p-value of 1e-50."""


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
) -> Axes:
    """Draw how much each feature rises with a factor, and its p-value.

    Parameters
    ----------
    source : Markers or AnnData
        Result of `log1pnmf.analysis.markers`, or AnnData with the result of `log1pnmf.tl.markers`.
    k : int or str
        Factor: its number, from 0, or its name.
    key : str, optional
        Name of the fit in an AnnData.
    gene_symbols : str, optional
        Column of ``adata.var`` with the names to show, if `var_names` are identifiers.
    level : float
        Features with an adjusted p-value up to this level are drawn in colour.
    n_labels : int
        Maximum number of features to name: the first of the factor. Names that would overlap are omitted.
    title : str, optional
        Title; by default the name of the factor.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    Axes

    Notes
    -----
    Points end at a p-value of 1e-50. Those that would lie above are triangles at that height, and the legend
    says how many they are.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from log1pnmf import Log1pNMF, pl
    >>> counts = np.random.default_rng(0).poisson(np.where(np.eye(2).repeat(20, 0).repeat(10, 1), 6.0, 0.5))
    >>> found = Log1pNMF(2, random_state=0).fit(counts).markers(counts)
    >>> pl.volcano(found, 1, ax=Figure().subplots()).get_xlabel()
    'log2 fold change'
    """
    tested, names = _tested(source, key)
    if isinstance(k, str):
        check_choice("factor", k, names)
        k = names.index(k)
    elif not 0 <= k < len(names):
        raise ValueError(f"there are factors 0 to {len(names) - 1}, got {k}")
    order = np.argsort(-tested["score"][:, k], kind="stable")  # the first features of the factor first
    x, p, adjusted = (tested[name][order, k] for name in ("log2_fold_change", "p", "adjusted_p"))
    features = np.array([str(name) for name in tested["feature_names"]])[order]
    if gene_symbols is not None:
        shown = symbols_of(source, gene_symbols)
        symbols = dict(zip(map(str, source.var_names), shown, strict=True))
        features = np.array([symbols.get(name, name) for name in features])
    if np.isnan(p).all():
        raise ValueError(
            f"factor {names[k]} has no tests, because all samples have it and there is nothing to "
            "compare it with; pl.top_features shows its features"
        )
    height = -np.log10(np.maximum(p, np.finfo(float).tiny))
    y, capped = np.minimum(height, MOST_CERTAIN), height > MOST_CERTAIN
    sure = adjusted <= level
    color = factor_colors(len(names))[k]
    ax = axes_or_new(ax, (4.8, 4.0))
    tidy(ax)
    _draw_points(ax, x, y, ~sure & ~capped, {"s": 6, "color": "#dfe3e6", "linewidths": 0})
    seen = {"color": color, "edgecolors": INK, "linewidths": 0.25}  # an edge, as the baseline is grey
    _draw_points(ax, x, y, sure & ~capped, {"s": 10, **seen})
    if capped.any():
        label = f"p < 1e-{MOST_CERTAIN:.0f} ({int(capped.sum()):,})"
        _draw_points(ax, x, y, capped, {"s": 18, "marker": "^", "label": label, **seen})
        ax.legend(loc="best", frameon=False, fontsize="small", labelcolor=INK, handletextpad=0.1)
    ax.axvline(0.0, color="#bbbbbb", linewidth=0.8, linestyle=":", zorder=0)
    ax.set_ylim(-0.03 * y.max(), 1.08 * max(float(y.max()), 1.0))
    ax.margins(x=0.08)
    ax.set_xlabel("log2 fold change", fontsize="medium", color=INK)
    ax.set_ylabel(r"$-\log_{10}$ p, one-sided", fontsize="medium", color=INK)
    set_title(ax, title, f"factor {names[k]}")
    ax.set_title(f"{int(sure.sum()):,} of {len(sure):,} features", loc="right", fontsize="small", color=INK)
    named = np.flatnonzero(sure)[:n_labels]
    label_points(ax, features[named].tolist(), x[named], y[named])
    return ax


def _draw_points(ax: Axes, x: Array, y: Array, part: NDArray[np.bool_], look: dict[str, Any]) -> None:
    ax.scatter(x[part], y[part], alpha=0.8, rasterized=True, **look)


def _tested(source: Any, key: str | None) -> tuple[Mapping[str, Any], list[str]]:
    """Return arrays of features x factors with names of the features, and the names of the factors."""
    if isinstance(source, Markers):
        if key is not None:
            raise ValueError(f"key={key!r} is for AnnData, got Markers; leave it out")
        return source.tested, list(source.factor_names)
    name = Keys(key).markers
    if not hasattr(source, "uns") or name not in source.uns:
        raise KeyError(
            f"no markers in a {type(source).__name__}: pass what model.markers(counts) gives, or an AnnData "
            f"with uns[{name!r}], which log1pnmf.tl.markers writes"
        )
    about: Mapping[str, Any] = source.uns[name]
    return about["tested"], [str(one) for one in about["factor_names"]]
