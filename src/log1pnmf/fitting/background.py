"""A background profile, to be held as a known factor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import check_choice, check_number
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.registry import as_counts
from log1pnmf.model.link import ShiftedLog

__all__ = ["WHICH", "background"]

WHICH = ("empty", "mean")

FEW = 100.0
"""Total count up to which a droplet is taken to be empty."""


def background(
    counts: Any, *, c: float = 1.0, which: str = "mean", most_counts: float = FEW
) -> NDArray[np.float64]:
    """Estimate a background profile, such as ambient RNA, for ``fixed_factors=``.

    The profile is the rate of every feature in a sample of average size that is pure background, on the link
    scale of `c`. A loading of 1 stands for such a sample.

    Parameters
    ----------
    counts : array, sparse matrix, data frame or Counts
        Samples x features. For "empty" all droplets, also those without cells.
    c : float
        Shift of the link of the fit that will use the profile.
    which : {"mean", "empty"}
        "mean" uses all samples, "empty" those with few counts.
    most_counts : float
        With "empty": largest total count of an empty sample.

    Returns
    -------
    ndarray of shape (m,)

    Examples
    --------
    >>> droplets = np.array([[2, 1, 0], [1, 1, 1], [900, 100, 500], [100, 800, 600]])
    >>> background(droplets, c=float("inf"), which="empty", most_counts=10).round(2)
    array([750., 500., 250.])
    """
    check_choice("which", which, WHICH)
    check_number("most_counts", most_counts)
    data: Counts = as_counts(counts)
    totals = np.asarray(data.row_sums, dtype=np.float64)
    used = (totals > 0.0) & ((totals <= most_counts) if which == "empty" else True)
    if not used.any():
        raise ValueError(
            f"no sample has between 1 and {most_counts:g} counts (the smallest total is {totals.min():g}): "
            "pass all droplets, also those without cells, or raise most_counts"
        )
    sums = np.asarray(data.to_scipy().tocsr()[np.flatnonzero(used)].sum(axis=0), dtype=np.float64).ravel()
    average = totals[totals > (most_counts if which == "empty" else 0.0)]
    rates = sums / sums.sum() * (average.mean() if len(average) else totals.mean())
    link = ShiftedLog(c)
    return np.asarray(link.link(rates), dtype=np.float64)
