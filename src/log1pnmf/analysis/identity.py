"""What tells each factor from the others, as a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from log1pnmf._common.checks import check_whole
from log1pnmf._common.optional import require
from log1pnmf.fitting.as_fit import as_fit
from log1pnmf.fitting.ranking import ranking_of

__all__ = ["top_features"]


def top_features(source: Any, n: int = 10, *, key: str | None = None, feature_names: Any = None) -> Any:
    """List the features that each factor raises most.

    The comparison is between a typical sample with the factor and the same sample with more of its other
    factors instead (docs/markers.md). Only the fit is needed; `log1pnmf.analysis.markers` adds tests, from
    the counts.

    Parameters
    ----------
    source : Fit, or anything that `log1pnmf.as_fit` takes
        The fit.
    n : int
        Maximum number of features of each factor; only features that the factor raises are listed.
    key : str, optional
        Name of the fit in an AnnData.
    feature_names : sequence of str, optional
        Names of the features; by default those of the fit.

    Returns
    -------
    pandas.DataFrame
        One row per factor and feature: `factor`, `rank` (from 1), `feature`, `log2_fold_change`, `score` (the
        lower end of its interval, by which they are ranked) and `weight` in the factor.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF, datasets
    >>> data = datasets.pancreas()
    >>> model = Log1pNMF(3, random_state=0).fit(data.counts[:300])
    >>> table = top_features(model, 2, feature_names=data.feature_names)
    >>> table.columns.tolist(), len(table)
    (['factor', 'rank', 'feature', 'log2_fold_change', 'score', 'weight'], 6)
    """
    check_whole("n", n, least=1)
    pandas = require("pandas", purpose="a table of features")
    fit = as_fit(source, key=key).named(feature_names=feature_names)
    ranking = ranking_of(fit)
    chosen = [ranking.top(k, n) for k in range(fit.n_components)]
    factor = np.repeat(np.arange(fit.n_components), [len(part) for part in chosen])
    feature = np.concatenate(chosen)
    return pandas.DataFrame(
        {
            "factor": np.array(fit.factor_names, dtype=object)[factor],
            "rank": np.concatenate([np.arange(1, len(part) + 1) for part in chosen]),
            "feature": fit.feature_labels[feature],
            "log2_fold_change": ranking.log2_fold_change[feature, factor],
            "score": ranking.lower[feature, factor],
            "weight": fit.factors[feature, factor],
        }
    )
