"""What a fit keeps of the factors of which something was known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf.model.structure import FREE_KIND, KINDS

__all__ = ["check_kinds", "known_parts"]


def known_parts(
    kinds: Sequence[str],
    names: Sequence[str],
    loadings: NDArray[np.float64],
    factors: NDArray[np.float64],
    mask: NDArray[np.bool_] | None,
) -> tuple[Any, Any, Any]:
    """Give loadings, factors and mask of a fit that were known, with their names; None where none are."""
    own = np.array(kinds)
    where = [np.flatnonzero(at) for at in (np.isin(own, KINDS[:2]), own == "factors", own == "mask")]
    allowed = np.zeros((len(factors), 0), dtype=bool) if mask is None else mask
    some = (own[where[0]] == "pattern") & (loadings[:, where[0]] > 0.0)
    columns = (np.where(some, np.nan, loadings[:, where[0]]), factors[:, where[1]], allowed)
    one, two, three = (
        {names[int(k)]: column for k, column in zip(at, part.T, strict=True)} or None
        for at, part in zip(where, columns, strict=True)
    )
    return one, two, three


def check_kinds(kinds: list[str], mask: NDArray[Any] | None, n_features: int) -> None:
    """Refuse kinds that are not known, not in order, or do not go with the mask."""
    order = (*KINDS, FREE_KIND)
    if not set(kinds) <= set(order) or kinds != sorted(kinds, key=lambda kind: max(1, order.index(kind))):
        raise ValueError(f"factor_kinds must be some of {', '.join(order)}, in this order; got {kinds}")
    n_masked = kinds.count("mask")
    if (mask is None) != (n_masked == 0):
        raise ValueError(f"mask does not go with {n_masked} masked factors")
    if mask is not None and (mask.dtype != bool or mask.shape != (n_features, n_masked)):
        raise ValueError(f"mask must be True or False for {n_masked} factors, got shape {mask.shape}")
