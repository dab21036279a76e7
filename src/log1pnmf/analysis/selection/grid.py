"""What is compared: settings, and the order in which they are fitted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from numbers import Real
from typing import Any

from log1pnmf._common.checks import check_number, check_whole
from log1pnmf.fitting.keys import c_name
from log1pnmf.model.link import ShiftedLog

__all__ = ["Grid", "Setting"]


@dataclass(frozen=True)
class Setting:
    """One model that is compared with others.

    Parameters
    ----------
    c : float
    n_components : int
    l1 : float

    Examples
    --------
    >>> print(Setting(c=0.1, n_components=6))
    c=0.1, K=6
    >>> Setting(c=1.0, n_components=3, l1=10.0).parameters
    {'c': 1.0, 'n_components': 3, 'l1': 10.0}
    """

    c: float
    n_components: int
    l1: float = 0.0

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of `log1pnmf.Log1pNMF`, for a fit to the whole data."""
        return asdict(self)

    @property
    def complexity(self) -> tuple[float, float, float]:
        """Smaller is simpler: fewer factors, then a larger penalty, then a larger c (nearer to adding up)."""
        return self.n_components, -self.l1, -self.c

    def __str__(self) -> str:
        text = f"c={c_name(self.c)}, K={self.n_components}"
        return text if self.l1 == 0.0 else f"{text}, l1={self.l1:g}"


@dataclass(frozen=True)
class Grid:
    """All combinations of c, number of factors and penalty.

    Parameters
    ----------
    c : tuple of float
        Largest first: fits at a large c are the cheapest, and those at the next smaller one start from them.
    n_components : tuple of int
        Smallest first: factors are added.
    l1 : tuple of float
        Largest first: factors fill up as the penalty falls.
    """

    c: tuple[float, ...]
    n_components: tuple[int, ...]
    l1: tuple[float, ...] = (0.0,)

    @classmethod
    def of(cls, c: Any, n_components: Any, l1: Any = 0.0) -> Grid:
        """Check the values, each a number or a sequence of numbers in any order."""
        shifts = [ShiftedLog(value).c for value in _several("c", c)]
        numbers = _several("n_components", n_components)
        for number in numbers:
            check_whole("n_components", number, least=1)
        penalties = _several("l1", l1)
        for penalty in penalties:
            check_number("l1", penalty)
        return cls(
            tuple(_different("c", sorted(shifts, reverse=True))),
            tuple(int(number) for number in _different("n_components", sorted(numbers))),
            tuple(_different("l1", sorted((float(penalty) for penalty in penalties), reverse=True))),
        )

    def __iter__(self) -> Iterator[Setting]:
        """All settings in the order of a table: by number of factors, then c, then l1, all upwards."""
        for number, c, l1 in product(self.n_components, reversed(self.c), reversed(self.l1)):
            yield Setting(c, number, l1)

    def __len__(self) -> int:
        return len(self.c) * len(self.n_components) * len(self.l1)

    def path(self, n_components: int) -> Iterator[tuple[Setting, Setting | None]]:
        """Give the settings with that many factors as they are fitted, each with the one it starts from."""
        for k, c in enumerate(self.c):
            for i, l1 in enumerate(self.l1):
                before = None
                if i:
                    before = Setting(c, n_components, self.l1[i - 1])
                elif k:
                    before = Setting(self.c[k - 1], n_components, l1)
                yield Setting(c, n_components, l1), before

    def as_dict(self) -> dict[str, list[float]]:
        """Plain lists, to be saved."""
        return {name: list(values) for name, values in asdict(self).items()}


def _several(name: str, values: Any) -> list[Any]:
    if isinstance(values, Real):
        return [values]
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a number or a sequence of numbers, got {values!r}")
    listed = list(values)
    if not listed:
        raise ValueError(f"{name} must hold at least one number, got none")
    return listed


def _different(name: str, ordered: Sequence[float]) -> Sequence[float]:
    for one, other in pairwise(ordered):
        if one == other or (math.isinf(one) and math.isinf(other)):
            raise ValueError(f"{name} must hold different numbers, got {one:g} twice")
    return ordered
