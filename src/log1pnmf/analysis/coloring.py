"""Colours of the factors of several fits: factors that correspond have the same colour."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.colors import factor_colors

from .metrics import match_factors

__all__ = ["ALIKE", "colors_of_fits"]

ALIKE = 0.5
"""Correlation from which factors of two fits that correspond have the same colour."""


def colors_of_fits(tables: Sequence[NDArray[np.float64]], reference: int = 0) -> list[list[str]]:
    """Colour the factors of several fits; `tables` are their loadings (or their factors).

    Factors of the fit at position `reference` have the usual colours. A factor of another fit has the colour
    of its match there, or a new one where the two are less alike than 0.5.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.eye(3)
    >>> first, second = colors_of_fits([one, one[:, ::-1]])
    >>> first == second[::-1]
    True
    """
    first = tables[reference]
    palette = factor_colors(sum(table.shape[1] for table in tables))
    fresh = iter(palette[first.shape[1] :])
    colors = []
    for table in tables:
        if table is first:
            colors.append(palette[: table.shape[1]])
            continue
        match = match_factors(first, table)
        alike = {b: palette[a] for a, b in match.pairs[match.similarity >= ALIKE].tolist()}
        colors.append([alike[k] if k in alike else next(fresh) for k in range(table.shape[1])])
    return colors
