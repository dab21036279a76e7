"""``make bench``: run all measurements, print tables, write JSON.

CPU seconds (of all threads) are the figure that counts; wall time depends on who else uses the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from log1pnmf._core import runnable_kernels
from log1pnmf.engines.native import effective_threads

from . import from_reference, memory, pace, streaming
from .data import DATA, REFERENCE, ROOT, Folder, MissingError
from .table import as_markdown

SECTIONS = {
    "reference": "PBMC, K=6, from the R packages' starts: to the likelihoods that they reached",
    "coordinate": "PBMC, K=6, from the same starts: to the likelihood that coordinate ascent reached",
    "memory": "Resident memory added by an approximate fit",
    "pace": "One iteration at c = 1, one thread",
    "default": "A default call at c = 1, one thread",
    "streaming": "Counts in memory and streamed from files, K=16, c = 1, approximate, one thread",
}


def _measurements(arguments: argparse.Namespace) -> dict[str, Callable[[Folder], Iterator[dict[str, Any]]]]:
    quick = arguments.quick
    return {
        "reference": from_reference.measure,
        "coordinate": lambda folder: from_reference.measure_coordinate(folder, quick),
        "memory": lambda folder: memory.measure(folder, quick),
        "pace": lambda folder: pace.measure(folder, arguments.full),
        "default": lambda _: pace.measure_default(),
        "streaming": lambda _: streaming.measure(10_000 if quick else 20_000),
    }


def main() -> None:
    arguments = _arguments()
    folder = Folder(arguments.data, arguments.reference)
    result: dict[str, Any] = {"about": about(), "quick": arguments.quick, "sections": {}, "skipped": {}}
    print(" | ".join(f"{name} {value}" for name, value in result["about"].items()), "\n", flush=True)
    began = time.perf_counter()
    for name, measure in _measurements(arguments).items():
        if arguments.only and name not in arguments.only:
            continue
        rows = result["sections"][name] = []
        try:
            for row in measure(folder):
                rows.append(row)
                _write(arguments.json, result)
        except MissingError as missing:
            result["skipped"][name] = str(missing)
            print(f"{SECTIONS[name]}: other rows are skipped, {missing}\n")
        if rows:
            print(f"{SECTIONS[name]}\n\n{as_markdown(rows)}", flush=True)
    result["wall_s"] = time.perf_counter() - began
    result["load_average_at_end"] = os.getloadavg() if hasattr(os, "getloadavg") else None
    _write(arguments.json, result)
    print(f"{result['wall_s']:.0f} s in all; written to {arguments.json}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the .h5ad files")
    parser.add_argument("--reference", type=Path, default=REFERENCE, help="folder of the reference starts")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="about two minutes: PBMC only, shorter runs")
    parser.add_argument(
        "--full",
        action="store_true",
        help="also 1e8 non-zeros",
    )
    parser.add_argument("--json", type=Path, default=ROOT / "bench-out" / "bench.json", help="where to write")
    return parser.parse_args()


def about() -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": effective_threads(None),
        "kernel": runnable_kernels()[0],
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "scipy", "scikit-learn")},
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def _processor() -> str:
    try:
        lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("Model name"))
    except (OSError, subprocess.CalledProcessError, StopIteration):
        return platform.processor() or "unknown"


def _commit() -> str:
    def git(*words: str) -> str:
        out = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return out.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src", "cpp")
        return git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    number = float(value)
    return number if math.isfinite(number) else str(number)


if __name__ == "__main__":
    main()
