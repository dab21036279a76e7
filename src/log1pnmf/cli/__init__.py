"""The command line ``log1pnmf``; it needs the extra ``cli`` (typer and rich)."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if "--version" in given:
        sys.stdout.write(f"{describe_environment()}\n")
        return 0
    try:
        try:
            import rich  # noqa: F401
            import typer  # noqa: F401
        except ImportError as error:
            needed = "rich and typer: pip install rich typer"
            sys.stderr.write(f"error: the command line needs {needed} ({error})\n")
            return 2
        from .app import run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted: nothing was written\n")
        return 130
    return run(arguments)


# ---------- what a bug report needs: versions, kernel, threads, graphics card; loads nothing heavy

CARDS = Path("/proc/driver/nvidia/gpus")
FOR_DEVELOPERS = ("all", "bench", "dev", "docs")
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
REQUIREMENT = re.compile(r"^([\w.-]+)(?:.*extra == ['\"]([\w-]+)['\"])?")


def describe_environment() -> str:
    """Return versions, kernel, threads and graphics card, for a bug report."""
    from log1pnmf._common.checks import __version__
    from log1pnmf._core import runnable_kernels
    from log1pnmf.engines.native import effective_threads

    limits = [f"{name}={os.environ[name]}" for name in THREAD_LIMITS if name in os.environ]
    facts = {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.platform()}, {platform.machine()}",
        **_packages(),
        "kernel": f"{runnable_kernels()[0]} (of {', '.join(runnable_kernels())})",
        "threads": f"{effective_threads(None)} of {os.cpu_count()} processors {' '.join(limits)}".rstrip(),
        "gpu": ", ".join(_cards()) or "none found",
    }
    return "\n".join([f"log1pnmf {__version__}", *(f"  {name:<10} {text}" for name, text in facts.items())])


def _packages() -> dict[str, str]:
    """Return versions of needed and of optional packages, and the names of missing ones."""
    found: dict[str, dict[str, None]] = {"needed": {}, "optional": {}, "missing": {}}
    try:
        listed = requires("log1pnmf") or []
    except PackageNotFoundError:  # sources on a path, not installed
        listed = []
    for name, extra in (match.groups() for line in listed if (match := REQUIREMENT.match(line))):
        if extra in FOR_DEVELOPERS or name == "log1pnmf":
            continue
        try:
            found["optional" if extra else "needed"][f"{name} {version(name)}"] = None
        except PackageNotFoundError:
            found["missing"][name] = None
    return {kind: ", ".join(names) or "none" for kind, names in found.items()}


def _cards() -> list[str]:
    """Return the names of NVIDIA's cards as its Linux driver lists them."""
    texts = [place.read_text(errors="replace") for place in sorted(CARDS.glob("*/information"))]
    models = [re.search(r"^Model:\s*(.+)$", text, re.MULTILINE) for text in texts]
    return [model[1].strip() if model else "unknown card" for model in models]
