"""Adaptive zeros: which are visited, the quadratics of the others, and how far these are off."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference_zeros import survey_feature

from log1pnmf.counts.compress import Pattern
from log1pnmf.model.noise import ShiftedLog
from log1pnmf.model.zeros import AdaptiveZeros, ZeroSurvey, caps_for, choose


def polyval(coefficients, x):
    return np.polynomial.polynomial.polyval(x, coefficients)


@given(
    st.lists(st.floats(0.0, 1.5), min_size=1, max_size=50), st.floats(0.01, 2.0), st.integers(0, 2**32 - 1)
)
def test_the_quadratic_of_a_feature(etas, cap, seed):
    eta = np.array(etas)
    t = np.random.default_rng(seed).uniform(0.1, 5.0, len(eta))
    error, n_above, quadratic = survey_feature(eta, t, cap, link=ShiftedLog(1.0))
    below = eta <= cap
    off = np.expm1(eta[below]) - polyval(quadratic, eta[below])
    assert n_above == (~below).sum()
    assert error == pytest.approx(t[below] @ np.abs(off), abs=1e-12)
    assert quadratic[2] >= 0.0
    if below.any():
        # no worse than the expansion around the mean, whose third derivative is at most e^cap
        mean = np.average(eta[below], weights=t[below])
        worst = np.exp(eta[below].max()) * np.abs(eta[below] - mean) ** 3 / 6
        assert np.sqrt(t[below] @ off**2) <= np.sqrt(t[below] @ worst**2) + 1e-9
        assert np.abs(t[below] @ off) <= 1e-6 * (1.0 + t[below] @ np.expm1(eta[below]))


def test_caps_follow_the_tolerance():
    assert caps_for(1e-4)[0] == pytest.approx(0.05)
    assert caps_for(1e-9)[0] < 0.01
    assert (np.diff(caps_for(1e-4)) > 0).all()


def test_few_zeros_are_visited_and_the_limit_is_kept():
    rng = np.random.default_rng(0)
    caps, m = caps_for(1e-4), 40
    error = np.cumsum(rng.exponential(size=(m, len(caps))), axis=1)
    n_above = np.cumsum(rng.integers(0, 100, size=(m, len(caps)))[:, ::-1], axis=1)[:, ::-1].astype(float)
    survey = ZeroSurvey(caps, error, n_above, rng.normal(size=(m, len(caps), 3)))
    before = -1.0
    for limit in (1e3, 300.0, 150.0, 80.0, 60.0):
        chosen = choose(survey, limit)
        at = np.searchsorted(caps, chosen.caps)
        assert chosen.error == pytest.approx(error[np.arange(m), at].sum())
        assert chosen.error <= limit or (at == 0).all()
        assert chosen.n_above >= before  # a tighter limit visits more
        np.testing.assert_array_equal(chosen.quadratics, survey.quadratics[np.arange(m), at])
        before = chosen.n_above
    assert choose(survey, 0.0).error == pytest.approx(error[:, 0].sum())  # as good as it gets


def test_errors_come_close_to_the_limit():
    rng = np.random.default_rng(1)
    caps, m = caps_for(1e-4, dispersed=True), 2000
    error = np.cumsum(rng.exponential(size=(m, len(caps))), axis=1)
    n_above = np.cumsum(rng.exponential(size=(m, len(caps)))[:, ::-1], axis=1)[:, ::-1]
    survey = ZeroSurvey(caps, error, n_above, np.zeros((m, len(caps), 5)))
    for part in (0.2, 0.5, 0.9):
        limit = error[:, 0].sum() + part * (error[:, -1].sum() - error[:, 0].sum())
        assert 0.995 * limit <= choose(survey, limit).error <= limit


@given(st.integers(0, 2**32 - 1))
def test_two_coefficients_have_room_in_one_double(seed):
    rng = np.random.default_rng(seed)
    given = rng.normal(size=(6, 5)) * 10.0 ** rng.integers(-300, 300, (6, 5))
    zeros = AdaptiveZeros(given, Pattern.empty((6, 4)), np.ones((6, 2)), np.ones(6), 0.0)
    assert np.isfinite(zeros.quadratics).all()
    for k in (1, 2, 4):
        np.testing.assert_array_equal(zeros.quadratics[:, k], zeros.quadratics[:, k].astype(np.float32))
    np.testing.assert_array_equal(zeros.quadratics[:, [0, 3]], given[:, [0, 3]])
    again = replace(zeros, exposure=np.zeros((6, 2)))
    np.testing.assert_array_equal(again.quadratics, zeros.quadratics)


def test_patterns():
    there = np.random.default_rng(1).random((7, 5)) < 0.4
    indptr = np.concatenate(([0], np.cumsum(there.sum(axis=1)))).astype(np.int64)
    pattern = Pattern(there.shape, indptr, np.nonzero(there)[1].astype(np.int32))
    np.testing.assert_array_equal(pattern.to_dense(slice(2, 6)), there[2:6])
    other = pattern.transposed
    np.testing.assert_array_equal(other.to_dense(slice(0, 5)), there.T)
    assert (other.nnz, other.indices.dtype) == (there.sum(), np.int32)
    assert Pattern.empty((3, 4)).nnz == 0
