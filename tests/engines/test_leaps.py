"""Starts far below the counts: dispersed noise must not leap to means from which no step leads back."""

import numpy as np
import pytest

from log1pnmf import fit_log1p_nmf


@pytest.mark.parametrize("engine", ["native", pytest.param("torch", marks=pytest.mark.gpu)])
def test_a_start_far_below_the_counts_ends_where_a_near_one_does(engine):
    rng = np.random.default_rng(0)
    loadings, factors = rng.uniform(0.2, 1.0, (60, 2)), rng.gamma(1.0, 1.0, (8, 2))
    factors[0] = 8.0, 6.0
    counts = rng.negative_binomial(2, 2.0 / (2.0 + np.expm1(loadings @ factors.T)))
    options = {
        "noise": "nb",
        "dispersion": 0.5,
        "size_factors": "none",
        "likelihood": "exact",
        "engine": engine,
    }
    near, far = (
        fit_log1p_nmf(counts, 2, init=(loadings, scale * factors), **options) for scale in (1.0, 0.01)
    )
    assert far.converged
    assert far.objective == pytest.approx(near.objective, rel=1e-5)
