"""Data that lies beside the checkout: real counts and the figures of the reference implementation."""

import signal
from pathlib import Path

import numpy as np
import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["interpreted_kernels.py"]  # run by a test, as a program

SHARED = Path(__file__).resolve().parents[2] / "shared"


def beside(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"needs {path}, which is not part of the repository")
    return path


@pytest.fixture(scope="session")
def reference_file():
    """Path of a file of ../shared/reference, by name."""
    return lambda name: beside(SHARED / "reference" / name)


@pytest.fixture(scope="session")
def real_data():
    """AnnData of a file of ../shared/data, by name; each is read once."""
    anndata = pytest.importorskip("anndata")
    kept = {}

    def read(name):
        if name not in kept:
            kept[name] = anndata.read_h5ad(beside(SHARED / "data" / f"{name}.h5ad"))
        return kept[name]

    return read


@pytest.fixture(scope="session")
def reference_start(reference_file):
    """(loadings, factors) of a start of the reference, by file name."""

    def read(name):
        with np.load(reference_file(name)) as arrays:
            return arrays["loadings"], arrays["factors"]

    return read
