"""Which of several fits have nearly the same factors; the report says this first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from log1pnmf._common.words import plural
from log1pnmf.analysis.metrics import match_factors
from log1pnmf.fitting.fit import Fit

from .verdict import SAME
from .words import decimal

__all__ = ["Sameness"]

MOST_PAIRS = 4
"""Pairs of fits that are named."""

MOST_FITS = 20
"""Most fits that are compared with each other."""


class Sameness:
    """How similar the factors of every two fits are.

    Parameters
    ----------
    shared : dict of (int, int) to (int, float)
        How many factors of two fits are nearly the same, and the least correlation of these.
    """

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
        """Say it; `skip` is a pair of which it is said elsewhere."""
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
