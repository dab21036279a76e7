"""A `Problem` whose counts are in chunks, and the piece of it that is one chunk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.chunked.survey import ChunkedCounts
from log1pnmf.counts.counts import Counts

from .link import ShiftedLog
from .problem import Problem
from .zeros import Quadratic

__all__ = ["ChunkedProblem", "PieceOfProblem", "problem_of"]


@dataclass(frozen=True, eq=False)
class ChunkedProblem(Problem):
    """Its sides say how long rows are and what they are exposed to; their entries are in the chunks."""

    @property
    def chunked(self) -> ChunkedCounts:
        """The counts, by their own type."""
        return cast(ChunkedCounts, self.counts)


@dataclass(frozen=True, eq=False)
class PieceOfProblem(Problem):
    """Some rows of a problem; what every fit of it has in common is left to the whole."""

    @cached_property
    def constant(self) -> float:
        """Nothing: the whole has it."""
        return 0.0


def problem_of(
    counts: Counts,
    sizes: NDArray[np.float64],
    link: ShiftedLog,
    zeros: Quadratic | None = None,
) -> Problem:
    """Make the problem of counts of either kind."""
    kind = ChunkedProblem if isinstance(counts, ChunkedCounts) else Problem
    return kind(counts, sizes, link, zeros)
