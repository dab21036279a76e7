"""Names of factors that users give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["KNOWN", "check_factor_names", "marked_names", "new_factor_names", "usual_factor_names"]

LONGEST = 200

KNOWN = {
    "loadings": "known loadings",
    "pattern": "known samples",
    "factors": "known profile",
    "mask": "known features",
}
"""What was known of a factor of each kind but "free"."""


def usual_factor_names(n_components: int) -> list[str]:
    """Names of factors that have none: "k0" is the first, the baseline."""
    return [f"k{k}" for k in range(n_components)]


def marked_names(names: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Mark the names of factors of which something was known, for plots and lists.

    Examples
    --------
    >>> marked_names(["treated", "k1"], ["loadings", "free"])
    ['treated (known)', 'k1']
    """
    both = zip(names, kinds, strict=True)
    return [f"{name} (known)" if kind in KNOWN else name for name, kind in both]


def new_factor_names(current: Sequence[str], given: Any) -> NDArray[np.object_]:
    """Rename factors.

    Parameters
    ----------
    current : sequence of str
    given : sequence of str, or mapping of name or number to str
        All of them, or some.

    Examples
    --------
    >>> new_factor_names(["k0", "k1", "k2"], {"k1": "interferon", 2: "cell cycle"}).tolist()
    ['k0', 'interferon', 'cell cycle']
    """
    names = list(current)
    if isinstance(given, Mapping):
        for which, name in given.items():
            names[_place(which, current)] = name
    elif isinstance(given, str) or len(given) != len(names):
        count = 1 if isinstance(given, str) else len(given)
        raise ValueError(
            f"there are {len(names)} factors, got {count} names; pass one for each, or a mapping such as "
            f"{{{names[-1]!r}: 'name'}} for some"
        )
    else:
        names = list(given)
    changed = np.array([str(name) for name in names], dtype=object)
    check_factor_names(changed, len(names))
    return changed


def _place(which: Any, current: Sequence[str]) -> int:
    if isinstance(which, str) and which in current:
        return list(current).index(which)
    if isinstance(which, int | np.integer) and not isinstance(which, bool) and 0 <= which < len(current):
        return int(which)
    raise ValueError(f"no factor is called {which!r}; they are {', '.join(map(repr, current))}")


def check_factor_names(names: NDArray[Any], n_components: int) -> None:
    """Refuse names that are not one for each factor, that are empty, very long, or there twice."""
    if names.shape != (n_components,):
        raise ValueError(f"factor names must be {n_components}, got shape {names.shape}")
    for name in names.tolist():
        if not isinstance(name, str) or not name.strip() or len(name) > LONGEST or not name.isprintable():
            raise ValueError(
                f"a factor's name must be text of 1 to {LONGEST} printable letters, got {name!r}"
            )
    if len(set(names.tolist())) != n_components:
        twice = next(name for name in names.tolist() if names.tolist().count(name) > 1)
        raise ValueError(f"every factor needs a name of its own, got {twice!r} twice")
