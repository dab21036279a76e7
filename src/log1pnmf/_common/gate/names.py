"""Names of columns that a file gives: they must stay inside of the group that gives them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from log1pnmf._common.untrusted import BadFileError

__all__ = ["NAMING", "check_names", "texts"]

NAMING = ("column-order", "_index", "categories")
"""Attributes of AnnData that name other parts of the file."""


def texts(value: Any) -> list[str]:
    """Names in an attribute: one, or several."""
    listed = [value] if isinstance(value, str | bytes) else list(value)
    return [one.decode() if isinstance(one, bytes) else str(one) for one in listed]


def check_names(where: str, names: Iterable[str]) -> None:
    """Refuse names that begin at the root or go up.

    Parameters
    ----------
    where : str
        File and group, for the message.
    """
    for name in names:
        if any(part in ("", ".", "..") for part in name.replace("\\", "/").split("/")):
            raise BadFileError(
                f"{where} names {name!r}, which leads out of it and is not read; the file is damaged"
            )
