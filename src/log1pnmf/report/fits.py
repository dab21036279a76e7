"""The fits: how well, how exactly and how far each went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from log1pnmf._common.checks import plural
from log1pnmf.analysis.groups import Groups, group_means
from log1pnmf.analysis.metrics import (
    deviance_explained,
    dominant_factor,
    effective_factors,
    factor_correlation,
    hoyer,
    match_factors,
    shares,
)
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.settings import LARGEST_EXACT
from log1pnmf.fitting.summary import last_gain, levelled, model_facts, quality_facts

from .factors import served_groups
from .figures import Chart, Curve, log_curves
from .inputs import ReportInput, decimal, percent, significant
from .verdict import SAME, Figure, verdict

# ---------- which of several fits have nearly the same factors: the first sentence of the report

MOST_PAIRS = 4
"""Pairs of fits that are named."""

MOST_FITS = 20
"""Most fits that are compared with each other."""


class Sameness:
    """How similar the factors of every two fits are."""

    def __init__(self, fits: Sequence[Fit], labels: Sequence[str]) -> None:
        self.labels, self.n_factors = labels, [fit.n_components for fit in fits]
        self.shared: dict[tuple[int, int], tuple[int, float]] = {}
        for a, b in combinations(range(min(len(fits), MOST_FITS)), 2):
            found = match_factors(fits[a].loadings, fits[b].loadings).similarity
            close = found[found >= SAME]
            self.shared[a, b] = len(close), float(close.min(initial=1.0))

    def is_same(self, a: int, b: int) -> bool:
        """Whether all factors of two fits are nearly the same."""
        return self.shared[a, b][0] == max(self.n_factors[a], self.n_factors[b])

    @property
    def all_same(self) -> bool:
        """Whether that is so for any two fits."""
        return all(self.is_same(*pair) for pair in self.shared)

    def sentence(self, skip: tuple[int, int] | None = None) -> str:
        """Describe which fits agree; `skip` is a pair that is described elsewhere."""
        if not self.shared:
            return ""
        if self.all_same:
            least = min(lowest for _, lowest in self.shared.values())
            which = "Both" if len(self.n_factors) == 2 else f"All {len(self.n_factors)}"
            return (
                f"{which} fits have nearly the same factors: the loadings of matched factors correlate by "
                f"{decimal(int(100 * least + 1e-9) / 100)} or more."
            )
        others = [pair for pair in self.shared if skip is None or pair != tuple(sorted(skip))]
        same = [pair for pair in others if self.is_same(*pair)]
        if same:
            pairs = [f"{self.labels[a]} as {self.labels[b]}" for a, b in same[:MOST_PAIRS]]
            more = [f"{len(same) - MOST_PAIRS} more pairs"] if len(same) > MOST_PAIRS else []
            return f"Nearly the same factors: {'; '.join([*pairs, *more])}."
        if len(others) == 1 and skip is None:
            ((a, b),) = others
            n, of = self.shared[a, b][0], max(self.n_factors[a], self.n_factors[b])
            return f"Of {plural(of, 'factor')}, {n} {'is' if n == 1 else 'are'} nearly the same in both fits."
        return ""


# ---------- two links side by side: parts that multiply against parts that add up, in figures

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """Section of the report that compares two fits."""

    # positions of the two models
    finite: int
    additive: int
    figures: list[Figure]
    paragraphs: list[str]  # what to look at, in words that follow from the figures
    headline: str  # the same in one sentence
    pairs: list[tuple[int, int, float]]  # factors that correspond, and the correlation of their loadings


def compare(
    fits: Sequence[Fit],
    which: tuple[int, int] = (0, 1),
    *,
    groups: Groups | None = None,
    said_same: bool = False,
) -> Comparison:
    """Compare a fit at finite c with one at c = inf; `which` are their positions.

    Other fits with the same settings show how much figures change from start to start. `said_same`: the page
    has already stated that their factors are nearly the same.
    """
    first, second = (fits[i] for i in which)
    match = match_factors(first.loadings, second.loadings)
    finite, additive = ([one, *_other_starts(one, fits)] for one in (first, second))
    figures = _figures(finite, additive, groups)
    headline, paragraphs = verdict(
        figures,
        first.name,
        similarity=match.similarity.tolist(),
        n_factors=max(first.n_components, second.n_components),
        said_same=said_same,
    )
    return Comparison(
        finite=which[0],
        additive=which[1],
        figures=figures,
        paragraphs=[*paragraphs, _about_starts(len(finite), len(additive))],
        headline=headline,
        pairs=[
            (int(a), int(b), float(similarity))
            for (a, b), similarity in zip(match.pairs, match.similarity, strict=True)
        ],
    )


def _other_starts(one: Fit, fits: Sequence[Fit]) -> list[Fit]:
    """Find the fits that differ from one in their starts only."""
    names = ("c", "n_components", "noise", "l1", "size_factors", "dispersion")
    return [
        other
        for other in fits
        if other is not one and all(getattr(one.asked, name) == getattr(other.asked, name) for name in names)
    ]


def _about_starts(n_finite: int, n_additive: int) -> str:
    """Describe what is known of how much the figures change from start to start."""
    if n_finite == n_additive == 1:
        return (
            "Each c has one start. To see which differences come from the start, add fits with other values "
            "of random_state to the report."
        )
    return (
        f"Only differences larger than those between starts are mentioned ({n_finite} at finite c, "
        f"{n_additive} at c = ∞)."
    )


def _figures(finite: Sequence[Fit], additive: Sequence[Fit], groups: Groups | None) -> list[Figure]:
    """Measure the first fit of each; the others of the same setting show the differences between starts."""
    tables = [[_measures(one, groups) for one in several] for several in (finite, additive)]
    known = max(len(finite), len(additive)) > 1
    figures = []
    for row, (name, meaning, _) in enumerate(tables[0][0]):
        values = [[table[row][2] for table in several] for several in tables]
        apart = max(max(several) - min(several) for several in values) if known else None
        whole = name == "Factors used by one group"
        figures.append(Figure(name, meaning, values[0][0], values[1][0], whole=whole, between_starts=apart))
    return figures


def _measures(one: Fit, groups: Groups | None) -> list[tuple[str, str, float]]:
    """Name, meaning and value of every figure of a fit."""
    found, share = [] if groups is None else _group_measures(one, groups), shares(one)
    return [
        *found,
        (
            "Factors per sample",
            "effective number (exp of the entropy of a sample's shares of the signal), mean over samples",
            _mean_positive(effective_factors(share)),
        ),
        (
            "Share of the strongest factor",
            "in the signal of a sample, mean over samples; 1 if every sample has a single factor",
            _mean_positive(share.max(axis=1)),
        ),
        (
            "Correlation of factors",
            "mean absolute Spearman correlation between the weights of two factors",
            factor_correlation(one.factors),
        ),
        (
            "Sparsity of factors",
            "Hoyer, mean over factors; 1 if a factor is a single feature",
            float(hoyer(one.factors).mean()),
        ),
        (
            "Sparsity of loadings",
            "Hoyer, mean over factors; 1 if a single sample has the factor",
            float(hoyer(one.loadings).mean()),
        ),
    ]


def _group_measures(one: Fit, groups: Groups) -> list[tuple[str, str, float]]:
    from sklearn.metrics import adjusted_mutual_info_score  # only reports with groups need it

    mean = group_means(one.loadings, groups)
    served = [len(served_groups(column, groups.names)) for column in mean.T]
    agreement = adjusted_mutual_info_score(groups.codes, dominant_factor(one).astype(str))
    return [
        (
            "Groups that use a factor",
            "mean loading at least half of the highest group's; mean over factors",
            float(np.mean(served)),
        ),
        ("Factors used by one group", "and by no other", served.count(1)),
        (
            "Groups per factor",
            "effective number (exp of the entropy of mean loadings by group), mean over factors",
            _mean_positive(effective_factors(mean.T)),
        ),
        (
            "Strongest factor predicts the group",
            "adjusted mutual information of group and strongest factor that not all samples share; "
            "1 if one determines the other",
            float(agreement),
        ),
    ]


def _mean_positive(values: Array) -> float:
    """Mean over what is not empty."""
    kept = values[values > 0.0]
    return float(kept.mean()) if len(kept) else 0.0


# ---------- the fits: how well, how exactly and how far each went

UNKNOWN = "not computed"


@dataclass(frozen=True)
class FitSection:
    """Section of the report about the quality of the fits."""

    rows: list[tuple[str, list[str]]]  # name of a fact, and its value for every model
    # for every model: its label and what there is to be drawn of its iterations
    charts: list[tuple[str, list[Chart]]]
    explained: list[float]  # share of the deviance that every model explains; NaN where it was not computed


def describe_fits(inputs: ReportInput) -> FitSection:
    """Describe all fits of a report, side by side."""
    facts = [dict((*model_facts(fit), *quality_facts(fit))) for fit in inputs.fits]
    names = dict.fromkeys(name for one in facts for name in one)
    rows = [(name[0].upper() + name[1:], [one.get(name, "none") for one in facts]) for name in names]
    rows.insert(0, ("Factors (K)", [str(fit.n_components) for fit in inputs.fits]))
    explained = [_explained(fit, inputs.counts, inputs.n_jobs) for fit in inputs.fits]
    if inputs.counts is not None:
        texts = [_deviance(fit, share) for fit, share in zip(inputs.fits, explained, strict=True)]
        rows.insert(1, ("Deviance explained", texts))
    charts = [(label, _charts(fit)) for label, fit in zip(inputs.labels, inputs.fits, strict=True)]
    return FitSection(rows, charts, explained)


def early_stopping_note(fit: Fit) -> str | None:
    """Describe that a fit ended before its optimum; None where it did not."""
    if fit.converged:
        return None
    if fit.stopped == "stalled":
        return (
            f"stalled after {plural(fit.n_iter, 'iteration')}: no step lowers the objective any more, but "
            f"this is not an optimum (KKT residual {fit.kkt_residual:.1e}). Rescale or drop extreme counts "
            "or size factors, or try another init"
        )
    gain = last_gain(fit)
    still = "" if gain is None else f", still gaining {significant(gain)} in log-likelihood per iteration"
    return (
        f"stopped early: not converged after {plural(fit.n_iter, 'iteration')}{still} "
        f"(KKT residual {fit.kkt_residual:.1e}). The picture may change as the fit continues; raise max_iter"
    )


def _explained(fit: Fit, counts: Counts | None, n_jobs: int | None) -> float:
    if counts is None or (not fit.link.is_identity and math.prod(counts.shape) > LARGEST_EXACT):
        return math.nan
    return deviance_explained(fit, counts, n_jobs=n_jobs)


def _deviance(fit: Fit, share: float) -> str:
    if math.isnan(share):
        return f"{UNKNOWN}: it needs all {fit.data.n_entries:.2g} entries"
    own = "" if fit.dispersion is None else ", under negative binomial noise"
    return f"{percent(share)} beyond the totals of samples and features{own}"


def _charts(fit: Fit) -> list[Chart]:
    rows, objective = levelled(fit.history)
    x = fit.history["iteration"][rows].astype(np.float64)
    kind = str(fit.history["likelihood"][-1])
    style = {"approximate": "line-2", "adaptive": "line-3"}.get(kind, "line-1")
    to_go = [Curve(kind, x[:-1], objective[:-1] - objective[-1], style)]
    change = [Curve(kind, x, fit.history["relative_change"][rows], style)]
    tol = float(fit.settings.tol)
    charts = [
        log_curves(
            to_go,
            label="Objective above its final value, by iteration",
            x_title="iteration",
            y_title="above final objective",
        ),
        log_curves(
            change,
            label="Relative change of the objective, by iteration, and the tolerance",
            x_title="iteration",
            y_title="relative change",
            level=(tol, f"tolerance {tol:.0e}") if tol > 0 else None,
        ),
    ]
    return [chart for chart in charts if chart is not None]
