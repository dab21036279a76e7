"""Checks of arguments. All errors have one form: what the argument must be, and what was given."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Container, Sequence
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["check_absent", "check_choice", "check_number", "check_whole", "one_for_each"]


def check_choice(name: str, value: object, choices: Collection[str], *, otherwise: str = "") -> None:
    """Refuse what is not one of the choices; `otherwise` names what else may be given.

    Examples
    --------
    >>> check_choice("init", "nndsvda", ["rank1", "nndsvd"])
    Traceback (most recent call last):
    ValueError: init must be one of 'rank1', 'nndsvd', got 'nndsvda'; did you mean 'nndsvd'?
    """
    if isinstance(value, str) and value in choices:
        return
    near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    also = f" or {otherwise}" if otherwise else ""
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}{also}, got {value!r}{hint}")


def check_absent(parameters: Container[str], names: Sequence[str], of: str) -> None:
    """Refuse parameters of single fits where several are made."""
    for name in names:
        if name in parameters:
            raise TypeError(f"{name} is not an option of {of}; leave it out")


def check_whole(name: str, value: object, *, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if cast(int, value) < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_number(name: str, value: object, *, finite: bool = True) -> None:
    """Refuse what is not a finite number >= 0; inf may be allowed."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0.0 <= float(value) <= math.inf or (finite and math.isinf(value)):
        raise ValueError(f"{name} must be {'finite and ' if finite else ''}not negative, got {value}")


def one_for_each(name: str, given: Any, length: int, *, of: str = "features") -> NDArray[np.float64]:
    """Give finite numbers >= 0, one for each of `length` features: an array of them, or one number for all.

    Examples
    --------
    >>> one_for_each("dispersion", 0.5, 3).tolist()
    [0.5, 0.5, 0.5]
    >>> one_for_each("dispersion", [0.5, -1.0], 2)
    Traceback (most recent call last):
    ValueError: dispersion must be finite and not negative, got -1.0 at position 1
    """
    try:
        values = np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{name} must be numbers, one for each of the {length} {of}, got {given!r}"
        ) from error
    if values.shape not in ((), (length,)):
        raise ValueError(
            f"{name} must be a number, or one for each of the {length} {of}; got shape {values.shape}"
        )
    values = np.broadcast_to(values, (length,)).copy()
    bad = ~(np.isfinite(values) & (values >= 0.0))
    if bad.any():
        where = int(np.argmax(bad))
        raise ValueError(f"{name} must be finite and not negative, got {values[where]} at position {where}")
    return values
