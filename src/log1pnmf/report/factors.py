"""The factors of one fit: what they weigh, whom they serve, how alike they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.words import plural
from log1pnmf.analysis.groups import Groups, group_means
from log1pnmf.analysis.markers.table import Markers
from log1pnmf.analysis.metrics import correlation_matrix, hoyer
from log1pnmf.fitting.arrangement import evenness, shares
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.summary import top_features

from .evidence import Evidence
from .words import alike, decimal, enumerate_words, percent

__all__ = ["SERVED", "Factor", "FactorSection", "describe_factors", "served_groups"]

Array = NDArray[np.float64]

SERVED = 0.5
"""A factor serves the groups whose mean loading is at least this part of its highest."""

N_TOP = 10
N_TABLE = 25


@dataclass(frozen=True)
class Feature:
    """A feature of a factor.

    Parameters
    ----------
    rank : int
        1 for the first.
    weight : float
        In the factor, on the link scale, where its largest loading is 1.
    text : str
        The weight, with as many decimals as those beside it.
    share : float
        Of the sum of the factor.
    elsewhere : float
        Mean share in the other factors; NaN where there are none.
    width : float
        Length of the bar, as a share of the longest.
    net_effect, lower, upper, adjusted_p : float
        How much it rises with the factor, on the link scale, the 95% interval, and the test of it; NaN where
        it was not tested.
    """

    name: str
    rank: int
    weight: float
    text: str
    share: float
    elsewhere: float
    width: float
    net_effect: float
    lower: float
    upper: float
    adjusted_p: float


@dataclass(frozen=True)
class Factor:
    """What is said of a factor.

    Parameters
    ----------
    share : float
        Of the fitted signal.
    evenness, sparsity : float
        Of its loadings over samples; of its weights over features (Hoyer).
    served : list of str
        Groups, the one with the highest mean loading first.
    sentence : str
        Whom it serves, in words.
    top, table : list of Feature
        Those fit as bars; those of the long table.
    n_markers : int or None
        Features that rise significantly with it; None where they were not tested, or all samples have it.
    """

    name: str
    color: str
    share: float
    evenness: float
    sparsity: float
    served: list[str]
    sentence: str
    top: list[Feature]
    table: list[Feature]
    n_markers: int | None


@dataclass(frozen=True)
class FactorSection:
    """The factors of a fit.

    Parameters
    ----------
    label : str
        Of the fit.
    means : list of list of float
        Mean loading of each group (row) on each factor.
    correlations : list of list of float
        Spearman's, between factors.
    n_tested : int or None
        Samples on which features were tested; None where they were not.
    """

    label: str
    factors: list[Factor]
    groups: list[str]
    group_sizes: list[int]
    means: list[list[float]]
    correlations: list[list[float]]
    n_tested: int | None


def describe_factors(
    fit: Fit,
    *,
    label: str,
    colors: list[str],
    groups: Groups | None,
    evidence: Evidence | None = None,
) -> FactorSection:
    """Describe the factors of a fit; with evidence, list the features that rise significantly with each."""
    means = None if groups is None else group_means(fit.loadings, groups)
    share, even = shares(fit.loadings, fit.factors), evenness(fit.loadings)
    sparsity = hoyer(fit.factors)
    factors = []
    for k, name in enumerate(fit.factor_names):
        column = None if means is None else means[:, k]
        served = [] if groups is None or column is None else served_groups(column, groups.names)
        table = _features(fit, k, evidence)
        factors.append(
            Factor(
                name=name,
                color=colors[k],
                share=float(share[k]),
                evenness=float(even[k]),
                sparsity=float(sparsity[k]),
                served=served,
                sentence=_sentence(fit.loadings[:, k], groups, column, served),
                top=table[:N_TOP],
                table=table,
                n_markers=None if evidence is None else evidence.rising(k),
            )
        )
    return FactorSection(
        label=label,
        factors=factors,
        groups=[] if groups is None else list(groups.names),
        group_sizes=[] if groups is None else groups.sizes.tolist(),
        means=[] if means is None else means.tolist(),
        correlations=correlation_matrix(fit.factors).tolist(),
        n_tested=None if evidence is None else evidence.n_samples,
    )


def served_groups(means: Array, names: tuple[str, ...]) -> list[str]:
    """Find the groups whose mean loading is at least half of the highest, the highest first.

    Examples
    --------
    >>> served_groups(np.array([0.2, 0.9, 0.5]), ("a", "b", "c"))
    ['b', 'c']
    """
    highest = float(means.max())
    order = np.argsort(-means, kind="stable")
    return [names[code] for code in order if highest > 0.0 and means[code] >= SERVED * highest]


def _sentence(loading: Array, groups: Groups | None, means: Array | None, served: list[str]) -> str:
    if not (loading > 0.0).any():
        return "Empty: no sample has it."
    if groups is None or means is None:
        return (
            f"Above half of its maximum in {plural(int((loading > SERVED).sum()), 'sample')}; "
            f"exactly zero in {percent(float((loading == 0.0).mean()))} of them."
        )
    value = {name: decimal(means[groups.names.index(name)]) for name in served}
    if len(served) == len(groups.names) and len(served) > 1:
        return f"In all {len(served)} groups alike, most in {served[0]} (mean loading {value[served[0]]})."
    first = f"{served[0]} (mean loading {value[served[0]]})"
    if len(served) == 1:
        return f"Serves one group: {first}."
    others = enumerate_words([f"{name} ({value[name]})" for name in served[1:]], most=4)
    return f"Shared by {len(served)} of {len(groups.names)} groups: {first}, {others}."


def _features(fit: Fit, k: int, evidence: Evidence | None) -> list[Feature]:
    components = fit.factors.T
    sums = components.sum(axis=1, keepdims=True)
    parts = components / np.where(sums > 0.0, sums, 1.0)
    others = np.delete(parts, k, axis=0)
    chosen = top_features(components, k, N_TABLE)
    tests = np.full((len(fit.factors), 4), np.nan) if evidence is None else _tests(evidence.markers, k)
    if evidence is not None and len(evidence.leading(k, 1)):
        chosen = evidence.leading(k, N_TABLE)
    longest = float(components[k, chosen].max()) if len(chosen) else 1.0
    texts = alike(components[k, chosen].tolist())
    return [
        Feature(
            name=str(fit.feature_labels[j]),
            rank=rank,
            weight=float(components[k, j]),
            text=texts[rank - 1],
            share=float(parts[k, j]),
            elsewhere=float(others[:, j].mean()) if len(others) else float("nan"),
            width=float(components[k, j]) / longest,
            net_effect=float(tests[j, 0]),
            lower=float(tests[j, 1]),
            upper=float(tests[j, 2]),
            adjusted_p=float(tests[j, 3]),
        )
        for rank, j in enumerate(chosen, start=1)
    ]


def _tests(found: Markers, k: int) -> Array:
    """Net effect, the ends of its interval and adjusted p of every feature."""
    net, lower = found.net_effect[:, k], found.net_lower[:, k]
    return np.stack((net, lower, 2.0 * net - lower, found.adjusted_net_p[:, k]), axis=1)
