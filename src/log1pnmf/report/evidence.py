"""Which features rise significantly with a factor: tests for the lists of a report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from log1pnmf.analysis.markers.find import markers
from log1pnmf.analysis.markers.table import Markers
from log1pnmf.fitting.arrangement import evenness

from .inputs import ReportInput

__all__ = ["Evidence", "find_evidence"]

TESTED_ENTRIES = 5_000_000
"""Entries that are tested, about: a test takes seconds. There are random samples enough to reach it."""

LEAST_SAMPLES = 500
"""Samples that are tested at least, however many features they have."""

SANDWICH_FROM = 20
"""From so many samples, standard errors allow for counts that vary more than Poisson counts."""

SHARED = 0.8
"""Evenness from which a factor counts as shared by all samples. What rises with it says little about it."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Tests of all features in all factors of one fit.

    Parameters
    ----------
    n_samples : int
        On which they were tested.
    shared : ndarray of bool, shape (K,)
        Which factors (nearly) all samples have.
    """

    markers: Markers
    n_samples: int
    shared: NDArray[np.bool_]

    def leading(self, k: int, n: int | None = None) -> NDArray[np.intp]:
        """Find features that rise significantly with a factor, or that make up one that all samples have."""
        most = len(self.markers.effect) if n is None else n
        return self.markers.top_index(k, most, by="lower" if self.shared[k] else "net_lower")

    def rising(self, k: int) -> int | None:
        """Count the features that rise with a factor; None where all samples have it."""
        return None if self.shared[k] else len(self.leading(k))


def find_evidence(inputs: ReportInput) -> list[Evidence | None]:
    """Test the features of every fit of a report; None without counts."""
    counts = inputs.counts
    if counts is None:
        return [None] * len(inputs.fits)
    most = max(LEAST_SAMPLES, TESTED_ENTRIES // counts.n_features)
    n_samples = len(counts.part_in_memory(most)[1])
    return [
        Evidence(
            markers(
                fit,
                counts,
                errors="sandwich" if n_samples >= SANDWICH_FROM else "model",
                max_samples=n_samples,
                n_jobs=inputs.n_jobs,
            ),
            n_samples,
            evenness(fit.loadings) >= SHARED,
        )
        for fit in inputs.fits
    ]
