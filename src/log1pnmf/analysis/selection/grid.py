"""What is compared: settings, and the order in which they are fitted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from numbers import Real
from typing import Any

from log1pnmf._common.checks import check_choice, check_number, check_whole
from log1pnmf.fitting.keys import c_name
from log1pnmf.fitting.settings import NOISES, Settings
from log1pnmf.model.link import ShiftedLog

__all__ = ["Grid", "Setting"]

SECOND_NOISE = 1000
"""Marks the place of settings with another noise than the first; fewer values of l1 are compared."""


@dataclass(frozen=True)
class Setting:
    """One model that is compared with others.

    Parameters
    ----------
    c : float
        Shift of the link.
    n_components : int
        Number of factors.
    l1 : float
        Penalty on the factors.
    noise : {"poisson", "nb"}
        Distribution of the counts.

    Examples
    --------
    >>> print(Setting(c=0.1, n_components=6, noise="nb"))
    c=0.1, K=6, noise=nb
    >>> Setting(c=1.0, n_components=3, l1=10.0).parameters
    {'c': 1.0, 'n_components': 3, 'l1': 10.0, 'noise': 'poisson'}
    """

    c: float
    n_components: int
    l1: float = 0.0
    noise: str = Settings.noise

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of `log1pnmf.Log1pNMF`, for a fit to the whole data."""
        return asdict(self)

    @property
    def complexity(self) -> tuple[float, float, float, bool]:
        """Smaller is simpler: fewer factors, a larger penalty, a larger c (nearer to adding up), Poisson."""
        return self.n_components, -self.l1, -self.c, self.noise != "poisson"

    def __str__(self) -> str:
        text = f"c={c_name(self.c)}, K={self.n_components}"
        text = text if self.l1 == 0.0 else f"{text}, l1={self.l1:g}"
        return text if self.noise == Settings.noise else f"{text}, noise={self.noise}"


@dataclass(frozen=True)
class Grid:
    """All combinations of c, number of factors, penalty and noise.

    Parameters
    ----------
    c : tuple of float
        Largest first: fits at a large c are the cheapest, and those at the next smaller one start from them.
    n_components : tuple of int
        Smallest first: factors are added.
    l1 : tuple of float
        Largest first: factors fill up as the penalty falls.
    noise : tuple of str
        Poisson first, which costs least.
    """

    c: tuple[float, ...]
    n_components: tuple[int, ...]
    l1: tuple[float, ...] = (0.0,)
    noise: tuple[str, ...] = (Settings.noise,)

    @classmethod
    def of(cls, c: Any, n_components: Any, l1: Any = 0.0, noise: Any = Settings.noise) -> Grid:
        """Check the values, each a number or a sequence of numbers in any order; names of noise."""
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
            _noises(noise),
        )

    def __iter__(self) -> Iterator[Setting]:
        """Yield all settings in the order of a table: by noise, number of factors, c and l1, all upwards."""
        for noise, number, c, l1 in product(
            self.noise, self.n_components, reversed(self.c), reversed(self.l1)
        ):
            yield Setting(c, number, l1, noise)

    def __len__(self) -> int:
        return len(self.n_components) * len(self.c) * len(self.l1) * len(self.noise)

    def before(self, setting: Setting) -> Setting | None:
        """Return the setting whose fit a fit starts from; None for the first of all."""
        for name in ("l1", "c", "noise", "n_components"):
            values = getattr(self, name)
            number = values.index(getattr(setting, name))
            if number:
                return replace(setting, **{name: values[number - 1]})
        return None

    def place(self, setting: Setting) -> list[int]:
        """Give numbers that tell a setting from all others."""
        found = [self.n_components.index(setting.n_components), self.c.index(setting.c)]
        found.append(self.l1.index(setting.l1))
        which = self.noise.index(setting.noise)
        return [*found, SECOND_NOISE + which] if which else found

    def as_dict(self) -> dict[str, list[Any]]:
        """Plain lists, to be saved."""
        return {name: list(values) for name, values in asdict(self).items()}


def _noises(noise: Any) -> tuple[str, ...]:
    """Check names of noise, Poisson first; "auto" compares all."""
    given = [noise] if isinstance(noise, str) or not isinstance(noise, Iterable) else list(noise)
    for one in given:
        check_choice("noise", one, NOISES, otherwise="several of them")
    if not given or len(set(given)) < len(given):
        raise ValueError(f"noise must hold different names, at least one, got {noise!r}")
    known = [one for one in NOISES if one != "auto"]
    return tuple(one for one in known if one in given or "auto" in given)


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
