"""Rows of numbers as a Markdown table that is aligned in a terminal, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1e3 else f"{value:,.0f}"
    return str(value)


def as_markdown(rows: Iterable[Row]) -> str:
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([shown(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    lines = (" | ".join(map(str.ljust, line, widths)) for line in cells)
    return "\n".join(f"| {line} |" for line in lines) + "\n"
