"""What batches do in the fits of a report: how much of the deviance they take, and which features differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

from log1pnmf.analysis.batches import batch_findings, confounded_groups
from log1pnmf.fitting.certificate import LARGEST_CERTIFIED
from log1pnmf.fitting.fit import Fit

from .figures import Chart, histogram
from .inputs import ReportInput

__all__ = ["BatchSection", "describe_batches"]


@dataclass(frozen=True)
class BatchSection:
    """What the report says of the batches of one fit.

    Parameters
    ----------
    label : str
        Name of the fit.
    sentences : list of str
        The findings in words.
    warnings : list of str
        Groups that coincide with batches.
    chart : Chart or None
        Histogram of the effects.
    rows : list of list of str
        Name, number of samples, part of the deviance and features of each batch.
    """

    label: str
    sentences: list[str]
    warnings: list[str]
    chart: Chart | None
    rows: list[list[str]]


def describe_batches(inputs: ReportInput) -> list[BatchSection]:
    """Describe the batches of all fits that have some."""
    fits = zip(inputs.labels, inputs.fits, strict=True)
    return [
        _describe(inputs, label, fit)
        for label, fit in fits
        if fit.batches is not None and fit.batches.n_batches > 1
    ]


def _describe(inputs: ReportInput, label: str, fit: Fit) -> BatchSection:
    assert fit.batches is not None
    counts = inputs.counts
    if counts is not None and math.prod(counts.shape) > LARGEST_CERTIFIED:
        counts = None
    found, groups = batch_findings(fit, counts), inputs.groups
    sentences = [
        "In each batch the rate of every feature is multiplied by an effect. Loadings and factors describe "
        f"what the {len(found.names)} batches have in common."
    ]
    if counts is not None:
        sentences.append(f"Without the effects the deviance of this fit would be {found.total:.1%} larger.")
    rows = [
        [
            name,
            f"{size:,}",
            "" if math.isnan(excess) else f"{excess:.1%}",
            ", ".join(
                f"{feature} × {effect:.2g}".replace(" × ", "\u00a0×\u00a0") for feature, effect in features
            ),
        ]
        for name, size, excess, features in zip(
            found.names, found.n_samples, found.excess.tolist(), found.features, strict=True
        )
    ]
    return BatchSection(
        label=label,
        sentences=sentences,
        warnings=[]
        if groups is None
        else [f"{one[0].upper()}{one[1:]}." for one in confounded_groups(fit, groups.labels)],
        chart=histogram(
            fit.batches.effects.ravel(),
            label=f"Histogram of the effects of batches on features at {label}",
            x_title="effect of a batch on a feature (log scale)",
            y_title="features in batches",
        ),
        rows=rows,
    )
