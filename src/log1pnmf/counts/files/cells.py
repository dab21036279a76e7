"""Text in cells of tables that spreadsheets would take for a formula and run."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["plain_cell", "safe_cell"]

FORMULA = re.compile(r"'*[=+\-@\t\r]")
MARK = "'"


def safe_cell(value: Any) -> Any:
    """Put a mark before text that begins like a formula; numbers, also as text, stay as they are.

    Examples
    --------
    >>> safe_cell("=1+1"), safe_cell("-3.5"), safe_cell(-3.5), safe_cell("CD4+")
    ("'=1+1", '-3.5', -3.5, 'CD4+')
    """
    if not isinstance(value, str) or not FORMULA.match(value):
        return value
    try:
        float(value)
    except ValueError:
        return MARK + value
    return value


def plain_cell(cell: str) -> str:
    """Take the mark away again.

    Examples
    --------
    >>> [plain_cell(safe_cell(text)) for text in ("=1+1", "'=1+1", "5'-end")]
    ['=1+1', "'=1+1", "5'-end"]
    """
    return cell[1:] if cell.startswith(MARK) and FORMULA.match(cell) else cell
