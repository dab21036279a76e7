"""Which features rise with a factor for certain: tests for the lists of a report."""

from __future__ import annotations

from dataclasses import dataclass

from log1pnmf.markers.find import markers
from log1pnmf.markers.table import Markers

from .subject import Subject

__all__ = ["Evidence", "find_evidence"]

TESTED_ENTRIES = 20_000_000
LEAST_SAMPLES = 500
"""Samples are tested until there are so many entries, but at least so many: that takes seconds."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Tests of all features in all factors of one fit.

    Parameters
    ----------
    markers : Markers
    n_samples : int
        On which they were tested.
    """

    markers: Markers
    n_samples: int


def find_evidence(subject: Subject) -> list[Evidence | None]:
    """Test the features of every fit of a report.

    Parameters
    ----------
    subject : Subject

    Returns
    -------
    list of Evidence or None
        None without counts.
    """
    counts = subject.counts
    if counts is None:
        return [None] * len(subject.models)
    most = max(LEAST_SAMPLES, TESTED_ENTRIES // counts.n_features)
    n_samples = len(counts.part_in_memory(most)[1])
    return [
        Evidence(
            markers(
                model.fit_,
                counts,
                feature_names=shown.feature_labels,
                max_samples=n_samples,
                n_jobs=model.n_jobs,
            ),
            n_samples,
        )
        for model, shown in zip(subject.models, subject.shown, strict=True)
    ]
