"""A `Problem` whose counts are in chunks, and the piece of it that is one chunk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from log1pnmf.approximation import Quadratic
from log1pnmf.counts import Counts
from log1pnmf.link import ShiftedLog
from log1pnmf.problem import Problem

from .survey import ChunkedCounts

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
    """Some rows of a problem; what every fit of it has in common is left to the whole, `large` included."""

    large: bool = False

    @cached_property
    def is_large(self) -> bool:
        """As the whole is."""
        return self.large

    @cached_property
    def constant(self) -> float:
        """Nothing: the whole has it."""
        return 0.0

    @cached_property
    def plain_constant(self) -> float:
        """Nothing, as well."""
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
