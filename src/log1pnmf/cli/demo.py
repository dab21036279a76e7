"""``log1pnmf demo``: the bundled data, fitted and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import bundled

__all__ = ["demo"]


def demo(
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where the report goes.")
    ] = Path("demo-out"),
) -> int:
    """Fit the bundled human pancreas data at c = 1 and c = inf, and say what to look at."""
    bundled.main(out=str(output))
    return 0
