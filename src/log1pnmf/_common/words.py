"""Numbers with their nouns."""

from __future__ import annotations

__all__ = ["plural"]


def plural(number: float, one: str, many: str | None = None) -> str:
    """Say how many, with the noun in the right form.

    Examples
    --------
    >>> plural(1, "sample"), plural(1937, "sample"), plural(0, "entry", "entries")
    ('1 sample', '1,937 samples', '0 entries')
    """
    return f"{round(number):,} {one if number == 1 else many or one + 's'}"
