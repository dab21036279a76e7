"""Rows of numbers as an aligned text table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]


def shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 1e5 else f"{value:.0f}"
    return str(value)


def as_text(title: str, rows: Iterable[Row]) -> str:
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names] + [[shown(row.get(name)) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [any(isinstance(row.get(name), int | float) for row in rows) for name in names]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]
    return "\n".join([title, *lines, ""])
