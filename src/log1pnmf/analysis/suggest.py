"""Suggestions for names of factors, from gene sets or from what is known about the samples."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from log1pnmf._common.checks import require
from log1pnmf.counts.read import read_sets
from log1pnmf.fitting.anndata import as_fit
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.ranking import ranking_of

from .groups import Groups, group_means, labels_of

if TYPE_CHECKING:
    from pandas import DataFrame

N_TOP, LEVEL = 50, 0.05  # first features of a factor, and the largest adjusted p of a set among them
AHEAD = 2.0  # a group names a factor where its mean loading is this many times that of every other group


def suggest_names(
    source: Any,
    gene_sets: Mapping[str, Iterable[str]] | str | os.PathLike[str] | None = None,
    *,
    groups: Any = None,
    key: str | None = None,
    feature_names: Any = None,
    gene_symbols: str | None = None,
) -> DataFrame:
    """Suggest a name for every factor, with the reason.

    Parameters
    ----------
    source : Fit, or anything that `log1pnmf.as_fit` takes
        The fit whose factors are named.
    gene_sets : mapping of name to features, or path of a GMT file, optional
        A factor gets the name of the set that is most enriched among its top 50 features (hypergeometric test
        against all features; adjusted p at most 0.05 over all factors and sets).
    groups : array-like of shape (n,) or str, optional
        Groups of samples: labels, or a column of ``adata.obs``. A factor gets the name of a group whose mean
        loading is at least twice that of every other group. Groups take precedence over gene sets, unless
        their names are bare numbers, as those of clusters are: these come last, as "leiden 8" or "group 8".
    feature_names : sequence of str, optional
        Names of the features, such as gene symbols if the sets contain these; by default those of the fit.
    gene_symbols : str, optional
        Column of ``adata.var`` with these names, for AnnData.

    Returns
    -------
    pandas.DataFrame
        One row per factor: `factor`, `name` (None if nothing fits), `reason`. Pass
        ``dict(table.dropna()[["factor", "name"]].to_numpy())`` to `rename_factors`.

    Examples
    --------
    >>> from log1pnmf import Log1pNMF, datasets
    >>> data = datasets.pancreas()
    >>> model = Log1pNMF(5, init="rank1").fit(data.counts[:400])
    >>> sets = {"acinar": ["PRSS1", "PRSS2", "CTRB1", "CPA1", "REG1A"], "beta": ["INS", "IAPP", "MAFA"]}
    >>> table = suggest_names(model, sets, feature_names=data.feature_names)
    >>> sorted(table["name"].dropna())
    ['acinar', 'beta']
    """
    pandas = require("pandas", purpose="a table of names")
    if gene_sets is None and groups is None:
        raise ValueError("pass gene_sets, groups or both: names come from these")
    fit = as_fit(source, key=key, gene_symbols=gene_symbols).named(feature_names=feature_names)
    found: dict[int, tuple[str, str]] = {}
    if gene_sets is not None:
        sets = read_sets(gene_sets) if isinstance(gene_sets, str | os.PathLike) else gene_sets
        found |= _by_sets(fit, {str(name): set(map(str, members)) for name, members in sets.items()})
    if groups is not None:
        by_groups = _by_groups(fit, Groups.of(labels_of(source, groups)))
        column = groups if isinstance(groups, str) else "group"
        bare = {k: one for k, one in by_groups.items() if one[0].replace(".", "", 1).isdecimal()}
        numbers = {k: (f"{column} {name}", why) for k, (name, why) in bare.items()}
        found = {**numbers, **found, **{k: one for k, one in by_groups.items() if k not in numbers}}
    names = _different([found.get(k, (None, ""))[0] for k in range(fit.n_components)], fit.factor_names)
    reasons = [found.get(k, (None, "nothing fits well enough"))[1] for k in range(fit.n_components)]
    return pandas.DataFrame({"factor": fit.factor_names, "name": names, "reason": reasons}, dtype=object)


def _by_sets(fit: Fit, sets: Mapping[str, set[str]]) -> dict[int, tuple[str, str]]:
    """Find the set of each factor, by over-representation among its first features."""
    features = [str(name) for name in fit.feature_labels]
    known, ranking = set(features), ranking_of(fit)
    present = {name: members & known for name, members in sets.items() if members & known}
    if not present:
        raise ValueError(
            f"no set has a feature of the fit (first {features[0]!r}); are they named in the same way? "
            "gene_symbols= names them by a column of adata.var, feature_names= by any others"
        )
    tops = [{features[j] for j in ranking.top(k, N_TOP)} for k in range(fit.n_components)]
    shared = np.array([[len(top & members) for members in present.values()] for top in tops])
    sizes = np.array([len(members) for members in present.values()])
    drawn = np.array([[len(top)] for top in tops])
    p = scipy.stats.hypergeom.sf(shared - 1, len(known), sizes, drawn)
    adjusted = scipy.stats.false_discovery_control(p.ravel()).reshape(p.shape)
    found = {}
    for k, best in enumerate(p.argmin(axis=1).tolist()):
        first = p[:, best].argmin() == k  # a set names one factor only, that which has most of it
        if first and adjusted[k, best] <= LEVEL and shared[k, best] > 1:
            name = list(present)[best]
            reason = f"{shared[k, best]} of its first {drawn[k, 0]} features are in {name} ({sizes[best]})"
            found[k] = (name, f"{reason}, adjusted p {adjusted[k, best]:.1e}")
    return found


def _by_groups(fit: Fit, groups: Groups) -> dict[int, tuple[str, str]]:
    """Find the group that has each factor, where one has it far more than all others."""
    means = group_means(fit.normalized("max").loadings, groups)
    found = {}
    for k in range(fit.n_components):
        order = np.argsort(-means[:, k], kind="stable")
        first, second = np.append(means[order, k], 0.0)[:2]
        if first > 0.0 and first >= AHEAD * second:
            name, others = groups.names[order[0]], f"at most {second:.2f} in every other group"
            found[k] = (name, f"mean loading {first:.2f} in {name}, {others}")
    return found


def _different(names: list[str | None], factors: list[str]) -> list[str | None]:
    """Add numbers to names that several factors would have."""
    numbered = [
        name if name is None or names.count(name) == 1 else f"{name} {names[: k + 1].count(name)}"
        for k, name in enumerate(names)
    ]
    return [None if name in factors else name for name in numbered]
