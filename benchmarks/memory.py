"""Resident memory that an approximate fit adds, measured in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from .data import ROOT, Folder


def measure(folder: Folder, quick: bool = False) -> Iterator[dict[str, Any]]:
    data = "pbmc" if quick else "kang"
    matrix = folder.matrix(data)
    parts = {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
    size = sum(part.nbytes for part in parts.values())
    with tempfile.TemporaryDirectory() as folder_name:
        for name, part in parts.items():
            np.save(Path(folder_name) / f"{name}.npy", part)
        shape = [str(n) for n in matrix.shape]
        for n_components in (6, 13):
            child = [sys.executable, "-m", "benchmarks.memory", folder_name, *shape, str(n_components)]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            out = subprocess.run(child, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
            added = int(out.stdout.splitlines()[-1])
            yield {
                "data": data,
                "K": n_components,
                "CSR MB": size / 1e6,
                "added MB": added / 1e6,
                "times the CSR": added / size,
            }


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/self/status")


def _forget_peak() -> None:
    """Set the peak to what is resident now, so that the loading of the data is not in it."""
    Path("/proc/self/clear_refs").write_text("5")


def _child(folder: Path, n_samples: int, n_features: int, n_components: int) -> None:
    from log1pnmf import fit_log1p_nmf

    parts = [np.load(folder / f"{name}.npy") for name in ("data", "indices", "indptr")]
    matrix = sparse.csr_array(tuple(parts), shape=(n_samples, n_features))
    small = sparse.random_array((60, 50), density=0.2, rng=np.random.default_rng(0), format="csr")
    small.data = np.ceil(5 * small.data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit_log1p_nmf(small, 2, max_iter=2, random_state=0)  # loads what is loaded only when needed
        _forget_peak()
        before = _status("VmRSS")
        fit_log1p_nmf(matrix, n_components, c=1.0, likelihood="chebyshev", max_iter=5, random_state=0)
    print(_status("VmHWM") - before)


if __name__ == "__main__":
    _child(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
