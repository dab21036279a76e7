"""Tests of whether factors are real: what a fit loses without them, how often other fits find them."""

from __future__ import annotations

import math

from log1pnmf.analysis.evidence import Evidence, evidence
from log1pnmf.fitting.fit import Fit

from .inputs import ReportInput

__all__ = ["find_presence", "presence_note"]

N_SEEDS, N_BOOTSTRAP = 2, 5
"""Fits that a report makes for itself."""

LARGEST = 2e7
"""Most entries times factors times fits, over all fits of a report, for which that takes seconds."""

DEARER = 4.0
"""How many times longer a fit with dispersions takes."""


def find_presence(inputs: ReportInput) -> list[Evidence | None]:
    """Give the evidence of every fit, or compute it if that takes seconds; None without counts."""
    if inputs.evidence:
        return [
            None if found is None else found.renamed(fit.factor_names)
            for found, fit in zip(inputs.evidence, inputs.fits, strict=True)
        ]
    counts = inputs.counts
    if counts is None or not _is_affordable(inputs):
        return [None] * len(inputs.fits)
    return [
        evidence(fit, counts, n_seeds=N_SEEDS, n_bootstrap=N_BOOTSTRAP, n_jobs=inputs.n_jobs)
        for fit in inputs.fits
    ]


def presence_note(inputs: ReportInput) -> str | None:
    """Say why factors were not tested; None if they were, or if there are no counts."""
    if inputs.evidence or inputs.counts is None or _is_affordable(inputs):
        return None
    n_fits = sum(_n_fits(fit) for fit in inputs.fits)
    return (
        "This report does not test whether each factor is real: that would take "
        f"{n_fits} more fits of counts of this size. Use model.evidence(counts) or log1pnmf evidence."
    )


def _n_fits(fit: Fit) -> int:
    return fit.n_components + N_SEEDS + N_BOOTSTRAP


def _is_affordable(inputs: ReportInput) -> bool:
    costs = [
        math.prod(inputs.counts.shape if inputs.counts is not None else (0,))
        * fit.n_components
        * _n_fits(fit)
        * (1.0 if fit.dispersion is None else DEARER)
        for fit in inputs.fits
    ]
    return math.fsum(costs) <= LARGEST
