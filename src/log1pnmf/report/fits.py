"""Fits of the report: how far each went, what it does not explain, and what its batches do."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import numpy as np

from log1pnmf._common.checks import plural
from log1pnmf.analysis.batches import batch_findings, confounded_groups
from log1pnmf.analysis.diagnostics import OUTLYING, Diagnostics, diagnose
from log1pnmf.analysis.marker_tests import Z95
from log1pnmf.analysis.metrics import deviance_explained
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.settings import LARGEST_EXACT
from log1pnmf.fitting.summary import NOISES, last_gain, levelled, model_facts, quality_facts

from .figures import Chart, histogram, log_curve, log_points
from .inputs import ReportInput, enumerate_words, percent, significant


def describe_fits(inputs: ReportInput) -> dict[str, Any]:
    """Return facts about all fits side by side, charts of their iterations, and the deviance they explain."""
    facts = [dict((*model_facts(fit), *quality_facts(fit))) for fit in inputs.fits]
    names = dict.fromkeys(name for one in facts for name in one)
    rows = [(name[0].upper() + name[1:], [one.get(name, "none") for one in facts]) for name in names]
    rows.insert(0, ("Factors (K)", [str(fit.n_components) for fit in inputs.fits]))
    explained = [_explained(fit, inputs.counts, inputs.n_jobs) for fit in inputs.fits]
    if inputs.counts is not None:
        texts = [_deviance(fit, share) for fit, share in zip(inputs.fits, explained, strict=True)]
        rows.insert(1, ("Deviance explained", texts))
    charts = [(label, _charts(fit)) for label, fit in zip(inputs.labels, inputs.fits, strict=True)]
    return {"rows": rows, "charts": charts, "explained": explained}


def early_stopping_note(fit: Fit) -> str | None:
    """Describe that a fit ended before its optimum; None where it did not."""
    if fit.converged:
        return None
    after, residual = plural(fit.n_iter, "iteration"), f"(KKT residual {fit.kkt_residual:.1e})"
    if fit.stopped == "stalled":
        return (
            f"stalled after {after}: no step lowers the objective any more, but this is not an optimum "
            f"{residual}. Rescale or drop extreme counts or size factors, or try another init"
        )
    gain = last_gain(fit)
    still = "" if gain is None else f", still gaining {significant(gain)} in log-likelihood per iteration"
    return (
        f"stopped early: not converged after {after}{still} {residual}. The picture may change as the fit "
        "continues; raise max_iter"
    )


def _explained(fit: Fit, counts: Counts | None, n_jobs: int | None) -> float:
    if counts is None or (not fit.link.is_identity and math.prod(counts.shape) > LARGEST_EXACT):
        return math.nan
    return deviance_explained(fit, counts, n_jobs=n_jobs)


def _deviance(fit: Fit, share: float) -> str:
    if math.isnan(share):
        return f"not computed: it needs all {fit.data.n_entries:.2g} entries"
    own = "" if fit.dispersion is None else f", under {NOISES['nb']} noise"
    return f"{percent(share)} beyond the totals of samples and features{own}"


def _charts(fit: Fit) -> list[Chart]:
    """Draw the objective above its final value, and its relative change, by iteration."""
    rows, objective = levelled(fit.history)
    x, kind = fit.history["iteration"][rows].astype(np.float64), str(fit.history["likelihood"][-1])
    curve: dict[str, Any] = {
        "name": kind,
        "style": {"approximate": "line-2", "adaptive": "line-3"}.get(kind, "line-1"),
    }
    tol = float(fit.settings.tol)
    charts = [
        log_curve(
            x[:-1],
            objective[:-1] - objective[-1],
            label="Objective above its final value, by iteration",
            y_title="above final objective",
            **curve,
        ),
        log_curve(
            x,
            fit.history["relative_change"][rows],
            label="Relative change of the objective, by iteration, and the tolerance",
            y_title="relative change",
            level=(tol, f"tolerance {tol:.0e}") if tol > 0 else None,
            **curve,
        ),
    ]
    return [chart for chart in charts if chart is not None]


# ---------- what a fit does not explain: features, samples and entries whose counts it does not expect

N_LISTED = 8
OVERDISPERSED = 1.5  # noise="nb" is mentioned from this multiple of Poisson's variance on


def describe_misfit(inputs: ReportInput) -> list[dict[str, Any]]:
    """Compare all fits with the counts; nothing without counts, or with too many entries."""
    if inputs.counts is None or math.prod(inputs.counts.shape) > LARGEST_EXACT:
        return []
    return [
        _misfit(inputs, label, diagnose(fit, inputs.counts))
        for label, fit in zip(inputs.labels, inputs.fits, strict=True)
    ]


def _misfit(inputs: ReportInput, label: str, found: Diagnostics) -> dict[str, Any]:
    """Return sentences, charts and tables of the least explained for one fit."""
    noise, variance, worst = NOISES[found.noise], np.nan_to_num(found.feature_dispersion), found.worst
    entries = zip(worst.sample, worst.feature, worst.count, worst.mean, strict=True)
    return {
        "label": label,
        "sentences": [_variance(found), _outliers(inputs, found)],
        "noise": noise,
        "chart": histogram(
            variance,
            label=f"Histogram of the variances of features at {label}",
            x_title=f"variance / {noise} variance (log scale)",
            y_title="features",
        ),
        "dispersions": _dispersions(found, label),
        "features": [
            (found.feature_names[j], significant(found.feature_mean[j]), significant(variance[j]))
            for j in np.argsort(-variance, kind="stable")[:N_LISTED]
            if variance[j] > 0.0
        ],
        "entries": [
            (inputs.sample_names[i], found.feature_names[j], significant(count), significant(mean))
            for i, j, count, mean in islice(entries, N_LISTED)
        ],
    }


def _dispersions(found: Diagnostics, label: str) -> Chart | None:
    """Draw the dispersions of a fit with negative binomial noise."""
    if found.fitted_dispersion is None:
        return None
    return log_points(
        found.feature_mean,
        found.fitted_dispersion,
        trend=found.trend,
        spread=1.0 if found.trend is None else math.exp(Z95 * found.trend_spread),
        label=f"Dispersions of features against their mean counts at {label}",
        x_title="mean count (log scale)",
        y_title="dispersion",
    )


def _variance(found: Diagnostics) -> str:
    known = found.feature_dispersion[np.isfinite(found.feature_dispersion)]
    typical = float(np.median(known)) if len(known) else 1.0
    text = f"The variance of a typical feature is {typical:.2f} times that of {NOISES[found.noise]} counts"
    if found.fitted_dispersion is not None:
        middle = significant(float(np.median(found.fitted_dispersion)))
        return f"{text}, with the dispersions of the fit ({middle} in the median)."
    text += f"; over all entries it is mean + {significant(found.overdispersion)} mean²."
    if typical < OVERDISPERSED:
        return f"{text} Standard errors of Poisson counts are about right."
    return f"{text} The standard errors of effects allow for this; noise='nb' would model it."


def _outliers(inputs: ReportInput, found: Diagnostics) -> str:
    outliers = found.outliers()
    if not len(outliers):
        return f"No sample is explained much worse than the others (robust z at most {OUTLYING:g})."
    return (
        f"{plural(len(outliers), 'sample is', 'samples are')} explained much worse than the others (robust z "
        f"of the deviance above {OUTLYING:g}): "
        f"{enumerate_words(inputs.sample_names[outliers].tolist(), most=N_LISTED)}."
    )


# ---------- what batches do


def describe_batches(inputs: ReportInput) -> list[dict[str, Any]]:
    """Describe the batches of all fits that have some."""
    counts = inputs.counts
    if counts is not None and math.prod(counts.shape) > LARGEST_EXACT:
        counts = None
    return [
        _batches(inputs, label, fit, counts)
        for label, fit in zip(inputs.labels, inputs.fits, strict=True)
        if fit.batches is not None and fit.batches.n_batches > 1
    ]


def _batches(inputs: ReportInput, label: str, fit: Fit, counts: Counts | None) -> dict[str, Any]:
    """Return sentences, warnings, a chart and a table about the batches of one fit."""
    assert fit.batches is not None
    found = batch_findings(fit, counts)
    sentences = [
        "In each batch the rate of every feature is multiplied by an effect. Loadings and factors describe "
        f"what the {len(found.names)} batches have in common."
    ]
    if counts is not None:
        sentences.append(f"Without the effects the deviance of this fit would be {found.total:.1%} larger.")
    coinciding = [] if inputs.groups is None else confounded_groups(fit, inputs.groups.labels)
    return {
        "label": label,
        "sentences": sentences,
        "warnings": [f"{text[0].upper()}{text[1:]}." for text in coinciding],
        "chart": histogram(
            fit.batches.effects.ravel(),
            label=f"Histogram of the effects of batches on features at {label}",
            x_title="effect of a batch on a feature (log scale)",
            y_title="features in batches",
        ),
        "rows": [
            (
                name,
                f"{size:,}",
                "" if math.isnan(excess) else f"{excess:.1%}",
                ", ".join(f"{feature}\u00a0×\u00a0{effect:.2g}" for feature, effect in features),
            )
            for name, size, excess, features in zip(
                found.names, found.n_samples, found.excess.tolist(), found.features, strict=True
            )
        ],
    }
