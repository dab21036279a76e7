"""Data beside the checkout (real counts, figures of the reference implementation), and counts in chunks."""

import os
import signal
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
from scipy import sparse

from log1pnmf.engines.registry import has_card

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Whether a test passes depends neither on chance nor on the speed of the machine. `make search` draws anew.
kept = {"database": None, "deadline": None}
hypothesis.settings.register_profile("same", derandomize=True, max_examples=30, **kept)
hypothesis.settings.register_profile("search", **kept)
hypothesis.settings.load_profile("same")

# scanpy's neighbours: compiling them takes half a minute, and running them as they are a tenth of a second.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")

# Without a card, kernels of engine="torch" are made for Triton's interpreter when they are loaded.
if not has_card():
    os.environ.setdefault("TRITON_INTERPRET", "1")

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
def interpreter():
    """Triton's interpreter, on a machine without a card: about a second for a half-step of ten rows."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    if has_card():
        pytest.skip("the kernels are compiled for the card")
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction, TensorHandle, _patch_lang

    from log1pnmf.engines.torch import kernels

    def by(function):
        return lambda x: tl.tensor(TensorHandle(function(x.handle.data), x.handle.dtype), x.type)

    # the card's own library is not interpreted
    kernels.libdevice = SimpleNamespace(expm1=by(np.expm1), log=by(np.log))
    # the language is made ready at every call of a function, which takes most of the time; once is enough
    ready = {kernels.__name__}

    def call(self, *args, **options):
        if self.fn.__module__ not in ready:
            _patch_lang(self.fn)
            ready.add(self.fn.__module__)
        return self.rewrite()(*args, **options)

    InterpretedFunction.__call__ = call
    kernels.ROWS = kernels.FEWER_ROWS = kernels.COLUMNS = kernels.FEWEST_COLUMNS = 16
    return kernels


@pytest.fixture(scope="session")
def reference_start(reference_file):
    """(loadings, factors) of a start of the reference, by file name."""

    def read(name):
        with np.load(reference_file(name)) as arrays:
            return arrays["loadings"], arrays["factors"]

    return read


class Chunks:
    """Chunks as a user might have them: a length, a shape, and one after the other."""

    def __init__(self, matrix, bounds):
        self.shape = matrix.shape
        self.parts = [matrix[a:b] for a, b in pairwise(bounds)]

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, index):
        return self.parts[index]


@pytest.fixture(scope="session")
def chunks_of():
    """Give chunks of a matrix, cut at the bounds."""
    return Chunks


@pytest.fixture(scope="session")
def matrix():
    """Counts with structure, a sample and a feature without any, and a feature with a single count."""
    rng = np.random.default_rng(1)
    loadings, factors = rng.gamma(0.5, 1.0, (203, 3)), rng.gamma(0.4, 0.8, (60, 3))
    counts = rng.poisson(loadings @ factors.T)
    counts[17], counts[:, 5], counts[:, 6] = 0, 0, 0
    counts[100, 6] = 2
    return sparse.csr_array(counts.astype(np.float32))


@pytest.fixture(scope="session")
def cut(matrix):
    """Cut the counts into equal chunks, or at given rows."""

    def cut(into):
        n = matrix.shape[0]
        bounds = np.linspace(0, n, into + 1).astype(int) if isinstance(into, int) else [0, *into, n]
        return Chunks(matrix, bounds)

    return cut


@pytest.fixture(scope="session")
def three_groups():
    """Counts of three groups of samples, each with ten features of its own."""
    return np.random.default_rng(0).poisson(np.kron(np.eye(3), np.full((20, 10), 6.0)) + 0.3)
