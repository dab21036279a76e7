from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse


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
