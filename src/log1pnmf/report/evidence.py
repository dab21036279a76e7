"""Which features rise significantly with a factor: tests for the lists of a report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from log1pnmf.analysis.markers.find import markers
from log1pnmf.analysis.markers.table import Markers

from .inputs import ReportInput

__all__ = ["Evidence", "find_evidence"]

TESTED_ENTRIES = 5_000_000
"""About how many entries are tested, in random samples, so that a test takes seconds."""

LEAST_SAMPLES = 500
"""Least number of samples that are tested, however many features they have."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Tests of all features in all factors of one fit.

    Parameters
    ----------
    n_samples : int
        Number of samples in the tests.
    """

    markers: Markers
    n_samples: int

    def rising(self, k: int) -> int | None:
        """Count the features that rise significantly with a factor; None where nothing can be compared."""
        if np.isnan(self.markers.p[:, k]).all():
            return None
        return len(self.markers.top_index(k, None))


def find_evidence(inputs: ReportInput) -> list[Evidence | None]:
    """Test the features of every fit of a report; None without counts."""
    counts = inputs.counts
    if counts is None:
        return [None] * len(inputs.fits)
    most = max(LEAST_SAMPLES, TESTED_ENTRIES // counts.n_features)
    n_samples = len(counts.part_in_memory(most)[1])
    return [
        Evidence(markers(fit, counts, max_samples=n_samples, n_jobs=inputs.n_jobs), n_samples)
        for fit in inputs.fits
    ]
