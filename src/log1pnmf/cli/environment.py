"""What a bug report needs to say: versions, kernel, threads, graphics card; imports nothing heavy."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from log1pnmf._common.checks import __version__
from log1pnmf._core import runnable_kernels
from log1pnmf.engines.native import effective_threads

CARDS = Path("/proc/driver/nvidia/gpus")
FOR_DEVELOPERS = frozenset(["all", "bench", "dev", "docs"])
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
REQUIREMENT = re.compile(r"^([\w.-]+)(?:.*extra == ['\"]([\w-]+)['\"])?")


def describe_environment() -> str:
    """Describe the package and what it runs on, for a bug report.

    >>> print(describe_environment())  # doctest: +ELLIPSIS
    log1pnmf ...
      python     ...
    """
    present, absent = _optional()
    facts = {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.platform()}, {platform.machine()}",
        "needed": _listed({name: _version(name) for name in _needed()}),
        "optional": _listed(present) or "none",
        "missing": ", ".join(absent) or "none",
        "kernel": f"{runnable_kernels()[0]} (of {', '.join(runnable_kernels())})",
        "threads": _threads(),
        "gpu": f"{', '.join(_cards()) or 'none found'}; {_torch()}",
    }
    return "\n".join([f"log1pnmf {__version__}", *(f"  {name:<10} {text}" for name, text in facts.items())])


def _requirements() -> list[tuple[str, str]]:
    """Names of packages and of the extras that ask for them ("" where every installation has them)."""
    try:
        listed = requires("log1pnmf") or []
    except PackageNotFoundError:  # sources on a path, not installed
        listed = []
    matches = (REQUIREMENT.match(line) for line in listed)
    return [(found[1], found[2] or "") for found in matches if found]


def _needed() -> list[str]:
    return [name for name, extra in _requirements() if not extra]


def _optional() -> tuple[dict[str, str | None], list[str]]:
    """Return versions of the extras' packages that are there, and the names of the others."""
    present: dict[str, str | None] = {}
    absent: list[str] = []
    for name, extra in _requirements():
        if not extra or extra in FOR_DEVELOPERS or name == "log1pnmf":
            continue
        found = _version(name)
        if found is not None:
            present[name] = found
        elif name not in absent:
            absent.append(name)
    return present, absent


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _listed(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {found or 'missing'}" for name, found in versions.items())


def _threads() -> str:
    limits = [f"{name}={os.environ[name]}" for name in THREAD_LIMITS if name in os.environ]
    said = f" ({', '.join(limits)})" if limits else ""
    return f"{effective_threads(None)} of {os.cpu_count()} processors{said}"


def _cards() -> list[str]:
    """Names of NVIDIA's cards as its Linux driver lists them; other systems have no such place."""
    names = []
    for place in sorted(CARDS.glob("*/information")):
        model = re.search(r"^Model:\s*(.+)$", place.read_text(errors="replace"), re.MULTILINE)
        names.append(model[1].strip() if model else "unknown card")
    return names


def _torch() -> str:
    """Describe for which CUDA PyTorch was built, from its files: importing it takes seconds."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return "torch is not installed"
    place = Path(found.origin).with_name("version.py")
    text = place.read_text() if place.exists() else ""
    cuda = re.search(r"^cuda\b.*=\s*['\"](.+)['\"]", text, re.MULTILINE)
    return f"torch {_version('torch')} ({f'CUDA {cuda[1]}' if cuda else 'without CUDA'})"
