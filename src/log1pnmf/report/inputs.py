"""Input of a report: fits and what the user wrote about their data, checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from log1pnmf.analysis.evidence import Evidence
from log1pnmf.analysis.groups import Groups, Section
from log1pnmf.analysis.markers import Markers
from log1pnmf.counts.counts import Counts
from log1pnmf.fitting.fit import Fit
from log1pnmf.fitting.summary import NOISES

# ---------- numbers and findings in plain words


def keep_together(text: str) -> str:
    """Keep equations such as "c = 1" on one line."""
    return text.replace(" = ", "\u00a0=\u00a0")


def percent(share: float) -> str:
    """Show a share, with as many digits as distinguish it from 0 and 1."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share > 0.999:
        return f"{100 * share:.4g}%"
    return f"{share:.1%}" if share >= 0.001 else f"{100 * share:.2g}%"


def decimal(number: float) -> str:
    """Show a number with two decimals, as in tables; whole ones as they are, and NaN as a dash."""
    return "–" if math.isnan(number) else f"{number}" if isinstance(number, int) else f"{number:.2f}"


def alike(numbers: Sequence[float]) -> list[str]:
    """Show numbers with the same number of decimals, three digits for the largest."""
    largest = max((abs(number) for number in numbers), default=0.0)
    decimals = max(0, 2 - math.floor(math.log10(largest))) if largest > 0 else 0
    return [f"{number:,.{decimals}f}" for number in numbers]


def significant(number: float) -> str:
    """Show a number with three significant digits and separators."""
    if number == 0.0 or not math.isfinite(number):
        return f"{number:g}"
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.3g}"


# ---------- input of a report, checked once

N_TABLE = 25  # features that are listed for each factor


@dataclass(frozen=True, eq=False)
class ReportInput:
    """Fits of one data set and what is known about it; `write_report` makes one of its parameters."""

    # to the same samples and features, with their names; the largest loading of every factor is 1
    fits: Sequence[Fit]
    counts: Counts | None  # what was fitted, where it was given
    groups: Groups | None  # of samples
    group_name: str  # what the groups are
    n_groups: int  # how many there were before small ones were merged
    # evidence and tests of features of every fit, or nothing
    evidence: Sequence[Evidence | None]
    markers: Sequence[Markers | None]
    maps: Mapping[str, Sequence[Section]]  # where samples are drawn, by the name of the map
    title: str
    source: str | None
    command: str | None
    filters: Sequence[str]
    notes: Sequence[str]
    date: str
    n_jobs: int | None

    @property
    def sample_names(self) -> NDArray[np.object_]:
        """Names of the samples, which all fits here have."""
        names = self.fits[0].sample_names
        assert names is not None
        return names

    @property
    def compared(self) -> tuple[int, int] | None:
        """Positions of the first fits with finite c and with c = inf, where there are both."""
        finite = [i for i, fit in enumerate(self.fits) if math.isfinite(fit.c)]
        additive = [i for i, fit in enumerate(self.fits) if math.isinf(fit.c)]
        return (finite[0], additive[0]) if finite and additive else None

    @property
    def labels(self) -> list[str]:
        """Name of every fit: its c, and whatever else distinguishes the fits."""
        labels = [fit.name for fit in self.fits]
        for more in (
            [f"K = {fit.n_components}" for fit in self.fits],
            [NOISES[fit.settings.noise] for fit in self.fits],
            [f"l1 = {fit.settings.l1:g}" for fit in self.fits],
            [f"seed {fit.settings.random_state}" for fit in self.fits],
            [f"fit {i}" for i in range(1, len(labels) + 1)],
        ):
            if len(set(labels)) < len(labels) and len(set(more)) > 1:
                labels = [f"{label}, {text}" for label, text in zip(labels, more, strict=True)]
        return [keep_together(label) for label in labels]
