"""Whether somebody is looking."""

from __future__ import annotations

import sys

__all__ = ["is_live"]


def is_live() -> bool:
    """Whether a progress bar can move: in a terminal and in a notebook, not in a log file."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
