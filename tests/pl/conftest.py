"""Fits to draw, and figures that no test leaves open."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from log1pnmf.pl.canvas import fit_of_arrays

mpl.use("Agg")


@pytest.fixture(autouse=True)
def untouched():
    """No plot may change a setting, and figures of pyplot are closed."""
    from matplotlib import pyplot

    before = dict(mpl.rcParams)
    yield
    pyplot.close("all")
    assert dict(mpl.rcParams) == before


@pytest.fixture
def figure():
    made = Figure(figsize=(9, 3), layout="constrained")
    FigureCanvasAgg(made)
    return made


@pytest.fixture
def ax(figure):
    return figure.subplots()


@pytest.fixture
def shown():
    """60 samples in 3 groups, 4 factors, 30 features; factor 0 is shared by all."""
    rng = np.random.default_rng(0)
    loadings = rng.gamma(0.3, 0.1, size=(60, 4))
    loadings[:, 0] += 0.8
    for group in range(3):
        loadings[20 * group : 20 * (group + 1), group + 1] += 0.5 + 0.5 * rng.random(20)
    factors = rng.gamma(0.3, size=(30, 4))
    factors[np.arange(8) * 3, np.arange(8) % 4] += 5.0
    iterations = np.arange(12)
    return fit_of_arrays(
        loadings=loadings / loadings.max(axis=0),
        factors=factors,
        c=1.0,
        feature_names=np.array([f"gene{j}" for j in range(30)], dtype=object),
        history={
            "iteration": iterations,
            "seconds": 0.5 * iterations,
            "objective": 90.0 + 0.5**iterations,
            "loss": 90.0 + 0.5**iterations,
            "likelihood": np.repeat("exact", 12),
            "relative_change": np.where(iterations == 0, np.nan, 1e-3),
        },
    )


@pytest.fixture
def labels():
    return np.repeat(["alpha", "beta", "gamma"], 20)
