"""What a selection that was stopped has done."""

from __future__ import annotations

import os
from typing import Any

from log1pnmf._common.atomic import StrPath, check_writable
from log1pnmf.fitting.fit import Fit

from .paths import Job, Record
from .seeds import Agreement
from .selection import read_records

__all__ = ["resumed"]


def resumed(
    path: StrPath | None, about: dict[str, Any], *, keeps_seed: bool
) -> tuple[list[Record], list[Agreement], dict[Job, Fit], dict[str, Any]]:
    """Read what is done, where there is a file; refuse one that is about something else."""
    if path is None or not os.path.exists(path):
        if path is not None:
            check_writable(path, "resume")
        return [], [], {}, about
    records, agreements, fits, before = read_records(path)
    here = dict(about)
    if keeps_seed:  # no seed was asked for: go on with the one of the file
        here["seed"] = before["seed"]
        here["settings"] = {**here["settings"], "random_state": before["settings"]["random_state"]}
    different = [name for name, value in here.items() if before.get(name) != value]
    if different:
        raise ValueError(
            f"resume: {os.fspath(path)} is of another selection: {', '.join(different)} differ. Pass the "
            "same counts and options, or another file"
        )
    return records, agreements, fits, before
