"""Plots of a `Fit`, a fitted model, an AnnData or a file. Each returns the axes or figure it drew on.

If you pass `ax` or `figure`, a plot draws there and does not use pyplot. Otherwise pyplot makes a figure, and
notebooks show it. ``show=True`` shows the figure, and ``save=path`` writes it to a file. No setting of
matplotlib is changed.
"""

from log1pnmf._common.checks import require

require("matplotlib", purpose="log1pnmf.pl")

from .diagnostics import compare, diagnostics, dispersion  # noqa: E402
from .features import factor_scatter, top_features, volcano  # noqa: E402
from .loadings import embedding, loadings_by_group, spatial, structure, usage  # noqa: E402
from .selection import consensus, convergence, select, sweep  # noqa: E402

__all__ = [
    "compare",
    "consensus",
    "convergence",
    "diagnostics",
    "dispersion",
    "embedding",
    "factor_scatter",
    "loadings_by_group",
    "select",
    "spatial",
    "structure",
    "sweep",
    "top_features",
    "usage",
    "volcano",
]
