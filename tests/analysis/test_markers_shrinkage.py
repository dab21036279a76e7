"""Effects of features, shrunk towards each other."""

import mpmath
import numpy as np
import pytest

from log1pnmf.analysis.marker_tests import _means, shrink


def test_shrinkage():
    rng = np.random.default_rng(1)
    effects = np.where(rng.random(5000) < 0.7, 0.0, np.abs(3.0 * rng.standard_normal(5000)))
    errors = rng.uniform(0.3, 2.0, 5000)
    x = effects + errors * rng.standard_normal(5000)
    found = shrink(x, errors)
    assert 0.5 < found.null_share < 0.85
    assert np.mean((found.effect - effects) ** 2) < 0.7 * np.mean((np.maximum(x, 0.0) - effects) ** 2)
    for low, high in ((0.0, 0.05), (0.1, 0.4), (0.6, 0.9)):  # it says how often it is wrong
        chosen = (found.false_sign_rate >= low) & (found.false_sign_rate < high)
        stated, actual = found.false_sign_rate[chosen].mean(), (effects[chosen] == 0.0).mean()
        assert actual <= stated + 0.06
    # An estimate of which nothing is known is the prior.
    unknown = shrink(np.append(x, 0.0), np.append(errors, np.inf))
    assert unknown.null_share <= unknown.false_sign_rate[-1] < unknown.null_share + 0.1


def test_shrinkage_without_any_effect():
    rng = np.random.default_rng(2)
    found = shrink(rng.standard_normal(2000), np.ones(2000))
    assert found.null_share > 0.8
    assert (found.false_sign_rate < 0.05).mean() < 0.001


@pytest.mark.parametrize("x", [-1e12, -1e5, -40.0, -1.0, 0.0, 2.0, 50.0, 1e9])
def test_posterior_means_at_any_distance_from_zero(x):
    """Against the integral, in many digits; also where density and distribution function both underflow."""
    with mpmath.workdps(60):
        s, width = mpmath.mpf("0.02"), mpmath.mpf(3)
        variance = 1 / (1 / s**2 + 1 / width**2)
        centre, spread = variance * mpmath.mpf(x) / s**2, mpmath.sqrt(variance)
        a = centre / spread
        hazard = mpmath.npdf(a) / mpmath.ncdf(a) if a > -1e3 else -a - 1 / a + 2 / a**3
        expected = float(centre + spread * hazard)
    found = _means(np.array([x]), np.array([0.02]), np.array([3.0]))[0, 0]
    assert found == pytest.approx(expected, rel=2e-8)
