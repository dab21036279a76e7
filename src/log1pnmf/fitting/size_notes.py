"""Whether size factors matter: totals are poor ones where factors change them."""

from __future__ import annotations

import numpy as np

from log1pnmf.counts.counts import Counts

from .arrangement import sample_shares
from .fit import Fit

__all__ = ["note_on_sizes"]

EXPLAINED, TIMES = 0.5, 1.5
"""Part of the variance of log(total / size) that factors have to explain, and how far apart they must be."""


def note_on_sizes(fit: Fit, counts: Counts) -> str | None:
    """Say it where totals differ from fitted size factors, and factors explain most of the difference.

    Parameters
    ----------
    fit : Fit
        With size factors that were fitted.
    counts : Counts
        The counts that were fitted.
    """
    counted = counts.row_sums > 0
    ratio = np.log(counts.size_factors("total")[counted] / fit.size_factors[counted])
    shares = sample_shares(fit.loadings, fit.factors)[counted]
    used = np.flatnonzero(shares.sum(axis=0) >= 1.0)
    if len(used) < 2 or ratio.std() == 0.0:
        return None
    rest = ratio - shares @ np.linalg.lstsq(shares, ratio, rcond=None)[0]
    level = (shares.T @ ratio)[used] / shares.sum(axis=0)[used]
    times, explained = np.exp(np.ptp(level)), 1.0 - rest.var() / ratio.var()
    if explained < EXPLAINED or times < TIMES:
        return None
    high, low = (fit.factor_names[used[pick(level)]] for pick in (np.argmax, np.argmin))
    return (
        f"totals are poor size factors here: at the same depth, samples of factor {high} have {times:.1f} "
        f"times the total of samples of factor {low}. Compare values of c with size_factors='fit', or give "
        "the depth of the samples if it is known"
    )
