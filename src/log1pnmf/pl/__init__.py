"""Plots of a `Fit`, a fitted model, an AnnData or a file. Each returns the axes or figure it drew on.

If you pass `ax` or `figure`, a plot draws there and does not use pyplot. Otherwise pyplot makes a figure, and
notebooks show it. ``show=True`` shows the figure, and ``save=path`` writes it to a file. No setting of
matplotlib is changed.
"""

from log1pnmf._common.optional import require

require("matplotlib", purpose="log1pnmf.pl")

from .comparison import compare  # noqa: E402
from .curves import convergence, link, sweep  # noqa: E402
from .diagnostics import diagnostics, dispersion  # noqa: E402
from .embedding import embedding  # noqa: E402
from .features import factor_scatter, top_features  # noqa: E402
from .group_usage import usage  # noqa: E402
from .loadings import loadings_by_group, structure  # noqa: E402
from .markers import volcano  # noqa: E402
from .select import select  # noqa: E402
from .selection import heldout, heldout_path, relation  # noqa: E402

__all__ = [
    "compare",
    "convergence",
    "diagnostics",
    "dispersion",
    "embedding",
    "factor_scatter",
    "heldout",
    "heldout_path",
    "link",
    "loadings_by_group",
    "relation",
    "select",
    "structure",
    "sweep",
    "top_features",
    "usage",
    "volcano",
]
