"""Effects of a factor against their certainty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice
from log1pnmf._common.colors import factor_colors
from log1pnmf.analysis.markers.table import Markers
from log1pnmf.fitting.keys import Keys, c_name

from .canvas import INK, axes_or_new, set_title, tidy
from .labels import label_points

__all__ = ["volcano"]

Array = NDArray[np.float64]

MOST_CERTAIN = 50.0
"""Height at which points end: a p-value of 1e-50."""


def volcano(
    source: Any,
    k: int,
    *,
    key: str | None = None,
    effect: str = "net_effect",
    level: float = 0.05,
    n_labels: int = 12,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Effect of a factor on every feature, and how certain it is.

    Parameters
    ----------
    source : Markers or AnnData
        From `log1pnmf.analysis.markers.markers`, or to which `log1pnmf.tl.markers` wrote.
    k : int
        Factor, from 0.
    key : str, optional
        Name of the fit in an AnnData.
    effect : {"net_effect", "effect"}
        Change with membership as the samples go, or with all other loadings held fixed.
    level : float
        Adjusted p-value up to which features are drawn in colour.
    n_labels : int
        Features named at most: those with the largest lower end of the interval. Names that would lie on
        others are left out.
    title : str, optional
    ax : Axes, optional

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
    'net effect (on the link scale, c = 1)'
    """
    check_choice("effect", effect, ("net_effect", "effect"))
    found = _markers(source, key)
    by = "net_lower" if effect == "net_effect" else "lower"
    named = found.top_index(k, n_labels, by=by, level=level)
    p = found.net_p if effect == "net_effect" else found.p
    adjusted = found.adjusted_net_p if effect == "net_effect" else found.adjusted_p
    x = getattr(found, effect)[:, k]
    height = -np.log10(np.maximum(p[:, k], np.finfo(float).tiny))
    y, capped = np.minimum(height, MOST_CERTAIN), height > MOST_CERTAIN
    sure = adjusted[:, k] <= level
    color = factor_colors(found.n_components)[k]
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
    ax.set_xlabel(_explained(effect, found.c), fontsize="medium", color=INK)
    ax.set_ylabel(r"$-\log_{10}$ p, one-sided", fontsize="medium", color=INK)
    set_title(ax, title, f"factor k{k}")
    ax.set_title(f"{int(sure.sum()):,} of {len(sure):,} features", loc="right", fontsize="small", color=INK)
    label_points(ax, [str(name) for name in found.feature_names[named]], x[named], y[named])
    return ax


def _draw_points(ax: Axes, x: Array, y: Array, part: NDArray[np.bool_], look: dict[str, Any]) -> None:
    ax.scatter(x[part], y[part], alpha=0.8, rasterized=True, **look)


def _explained(effect: str, c: float) -> str:
    what = "net effect" if effect == "net_effect" else "effect"
    if np.isinf(c):
        return f"{what} (difference of rates)"
    return f"{what} (on the link scale, c = {c_name(c)})"


def _markers(source: Any, key: str | None) -> Markers:
    if isinstance(source, Markers):
        if key is not None:
            raise ValueError(f"key={key!r} is for AnnData, got Markers; leave it out")
        return source
    name = Keys(key).markers
    if not hasattr(source, "uns") or name not in source.uns:
        raise KeyError(
            f"no markers in a {type(source).__name__}: pass what model.markers(counts) gives, or an AnnData "
            f"with uns[{name!r}], which log1pnmf.tl.markers writes"
        )
    about: Mapping[str, Any] = source.uns[name]
    return Markers.from_table(about["table"], c=float(about["c"]), errors=str(about["errors"]))
