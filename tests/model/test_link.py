"""Laws of the link."""

import math

import mpmath
import numpy as np
import pytest

from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.zeros import EXACT_FOR_IDENTITY, Quadratic, quadratic

SHIFTS = [1e-6, 1e-3, 1.0, 10.0, 1e4, 1e8, 1e12, math.inf]
RATES = np.array([0.0, 1e-12, 1e-3, 0.5, 1.0, 37.0, 1e5])


@pytest.mark.parametrize("c", SHIFTS)
def test_inverse_undoes_link(c):
    link = ShiftedLog(c)
    np.testing.assert_allclose(link.inverse(link.link(RATES)), RATES, rtol=1e-13)
    np.testing.assert_allclose(link.mean(link.link(RATES) / link.alpha), RATES, rtol=1e-13)


@pytest.mark.parametrize("c", SHIFTS[:-1])
def test_all_digits_at_every_shift(c):
    with mpmath.workdps(50):
        b = [float(max(1, mpmath.mpf(c)) * mpmath.log1p(mpmath.mpf(rate) / mpmath.mpf(c))) for rate in RATES]
        lam = [float(mpmath.mpf(c) * mpmath.expm1(mpmath.mpf(rate) / max(1, c))) for rate in RATES[:5]]
    np.testing.assert_allclose(ShiftedLog(c).link(RATES), b, rtol=1e-14)
    np.testing.assert_allclose(ShiftedLog(c).inverse(RATES[:5]), lam, rtol=1e-14)


def test_identity_is_the_limit():
    identity = ShiftedLog(np.inf)
    assert identity.is_identity
    assert identity.alpha == identity.exposure_scale == 1.0
    np.testing.assert_array_equal(identity.link(RATES), RATES)
    np.testing.assert_allclose(ShiftedLog(1e12).link(RATES), RATES, rtol=1e-6)


@pytest.mark.parametrize("c", SHIFTS[:-1])
def test_parts_combine_as_sum_and_product(c):
    """The landing page's 4 and 6 give 34 at c = 1: their sum, and their product over c."""
    link = ShiftedLog(c)
    np.testing.assert_allclose(link.inverse(link.link(4.0) + link.link(6.0)), 10.0 + 24.0 / c)
    assert (link.alpha, link.exposure_scale) == (max(1.0, c), c)


def test_a_shift_is_a_positive_number():
    assert [type(ShiftedLog(c).c) for c in (1, np.float32(0.5), np.int64(3))] == [float] * 3
    for c in (-1.0, 0.0, -math.inf, math.nan):
        with pytest.raises(ValueError, match=rf"c must be positive or inf, got {c}"):
            ShiftedLog(c)
    for c in ("1", None, [1.0], True, 1j):
        with pytest.raises(TypeError, match="c must be a number"):
            ShiftedLog(c)


# ---------- the quadratic that replaces the costs of zeros


def interpolant(low, high):
    """Coefficients of the interpolant of exp in the Chebyshev nodes, the first one less 1."""
    nodes = [(low + high) / 2 + (high - low) / 2 * mpmath.cos(mpmath.pi * (2 * k + 1) / 6) for k in range(3)]
    a0, a1, a2 = mpmath.lu_solve(
        mpmath.matrix([[1, x, x * x] for x in nodes]), mpmath.matrix([mpmath.exp(x) for x in nodes])
    )
    return [float(a0 - 1), float(a1), float(a2)]


@pytest.mark.parametrize("c", [1e-6, 1e-3, 0.03, 1.0, 10.0, 1e4, 1e7, 1e8, 1e10])
def test_interpolates_in_the_nodes_of_rates_up_to_one(c):
    with mpmath.workdps(90):
        a0m1, a1, a2 = interpolant(mpmath.mpf(0), mpmath.log1p(1 / mpmath.mpf(c)))
    found = quadratic(ShiftedLog(c))
    np.testing.assert_allclose([found.a0m1, found.a1, found.a2], [a0m1, a1, a2], rtol=1e-12)
    if c == 1.0:  # as published
        assert [found.a1, found.a2] == pytest.approx([0.941723055868, 0.7124310528], abs=1e-10)


def test_taylor_is_the_limit_of_large_c():
    near = quadratic(ShiftedLog(1e10))
    np.testing.assert_allclose([near.a0m1, near.a1, near.a2], [0.0, 1.0, 0.5], atol=1e-9)
    assert quadratic(ShiftedLog(2.0), "taylor") == Quadratic(0.0, 1.0, 0.5)


@pytest.mark.parametrize("kind", ["chebyshev", "taylor"])
def test_identity_is_exact(kind):
    found = quadratic(ShiftedLog(math.inf), kind)
    assert found is EXACT_FOR_IDENTITY
    assert (found.a0m1, found.a1, found.a2) == (0.0, 1.0, 0.0)
