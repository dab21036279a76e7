"""Counts: what is refused, with which words, and size factors."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from log1pnmf.counts.counts import Counts


def some_counts(n, m, *, density=0.2):
    rng = np.random.default_rng(0)
    return rng.poisson(3, (n, m)) * (rng.random((n, m)) < density)


class TestRefusals:
    @pytest.mark.parametrize(
        "form", [np.asarray, sparse.csr_array, sparse.csc_matrix, sparse.coo_array, pd.DataFrame]
    )
    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (-1.0, r"has 3 negative entries \(first at row 17, column 4\); pass raw counts, not log-"),
            (np.nan, r"contains NaN in 3 entries \(first at row 17, column 4\); drop or fill"),
            (np.inf, r"contains infinity \(inf\) in 3 entries \(first at row 17, column 4\); pass finite"),
            (-np.inf, r"contains infinity \(inf\) in 3 entries \(first at row 17, column 4\); pass finite"),
            (1e200, r"3 entries above 1e\+100 \(first at row 17, column 4: 1e\+200\)"),
        ],
    )
    def test_bad_values_are_counted_and_located(self, form, bad, message):
        Y = some_counts(20, 6).astype(float)
        Y[[17, 17, 19], [4, 5, 4]] = bad
        with pytest.raises(ValueError, match=message):
            Counts.from_any(form(Y))

    @pytest.mark.parametrize(
        ("bad", "error", "message"),
        [
            ([1, 2, 3], ValueError, r"(?s)Expected 2D array, got 1D array instead.*Reshape your data"),
            (np.array(3), ValueError, "Reshape your data"),
            (np.ones((2, 2, 2)), ValueError, "dim 3"),
            (sparse.coo_array(np.ones(3)), ValueError, "Reshape your data"),
            (sparse.coo_array(np.ones((2, 2, 2))), ValueError, "dim 3"),
            (np.array([[1 + 1j]]), ValueError, "Complex data not supported"),
            (sparse.csr_array(np.array([[1 + 1j]])), ValueError, "Complex data not supported"),
            (np.array([[{"a": 1}, 2]], dtype=object), TypeError, "argument must be .* string.* number"),
            (np.array([["a", "b"]]), ValueError, "not compatible with arrays of bytes/strings"),
            (np.array([["2020-01-01"]], dtype="M8[D]"), TypeError, "must be numbers, got dtype datetime64"),
            (pd.DataFrame({"a": [1], "b": ["x"]}), ValueError, "not convert .*: 'x'; drop columns of text"),
            (np.empty((0, 3)), ValueError, r"0 sample\(s\)"),
            (sparse.csr_array((0, 3)), ValueError, r"0 sample\(s\)"),
            (np.empty((12, 0)), ValueError, r"0 feature\(s\) \(shape=\(12, 0\)\) while a minimum of 1 is"),
            (sparse.csr_array((12, 0)), ValueError, r"0 feature\(s\) \(shape=\(12, 0\)\) while a minimum"),
            (None, TypeError, "counts is None"),
        ],
    )
    def test_not_a_matrix_of_numbers(self, bad, error, message):
        with pytest.raises(error, match=message):
            Counts.from_any(bad)

    def test_too_many_rows_for_32_bit_indices(self):
        with pytest.raises(ValueError, match=r"at most 2147483647 rows and columns, got shape"):
            Counts.from_any(sparse.coo_array(([1], ([0], [0])), shape=(2**31, 1)))

    @pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, sparse.csc_array])
    def test_fractions_warn_once_and_say_where(self, form):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            counts = Counts.from_any(form(np.log1p(some_counts(2000, 1100, density=0.9))))
            counts.by_column.row_sums()
        assert [w.category for w in caught] == [UserWarning]
        assert caught[0].filename == __file__
        text = str(caught[0].message)
        assert "non-integer values (first at row 0, column" in text
        assert "log-transformed" in text
        assert "raw counts" in text
        matrix = sparse.csr_array(([0.0, 0.0, 0.5], [0, 1, 2], [0, 2, 3]), shape=(2, 3))  # stored zeros
        with pytest.warns(UserWarning, match=r"first at row 1, column 2: 0\.5"):
            Counts.from_any(matrix)

    def test_whole_floats_do_not_warn(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Counts.from_any(np.array([[1.0, 2.0]]))


class TestSizeFactors:
    Y = np.array([[1, 2, 3], [0, 0, 0], [4, 0, 2]])

    def test_total(self):
        factors = Counts.from_any(self.Y).size_factors("total")
        assert factors.dtype == np.float64
        np.testing.assert_allclose(factors, [6 / 4, 1, 6 / 4])
        np.testing.assert_array_equal(Counts.from_any(self.Y).size_factors("none"), [1.0, 1.0, 1.0])

    @given(hnp.arrays(np.int64, (4, 3), elements=st.integers(0, 2**40)), st.integers(1, 100))
    def test_total_has_mean_one_and_does_not_see_the_unit(self, Y, unit):
        Y[:, 0] += 1
        factors = Counts.from_any(Y).size_factors("total")
        assert factors.mean() == pytest.approx(1)
        np.testing.assert_allclose(Counts.from_any(unit * Y).size_factors("total"), factors, rtol=1e-12)

    def test_given_factors_are_copied(self):
        given_factors = np.array([1.0, 2.0, 3.0])
        factors = Counts.from_any(self.Y).size_factors(given_factors)
        factors[0] = 7
        assert given_factors[0] == 1.0
        assert Counts.from_any(self.Y).size_factors([1, 2, 3]).tolist() == [1.0, 2.0, 3.0]

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ("sum", r"size_factors must be one of 'total', 'fit', 'none' or an array, got 'sum'"),
            (None, r"size_factors must"),
            (True, r"for each of the 3 samples, got shape \(\)"),
            ([1.0, 2.0], r"one number for each of the 3 samples, got 2"),
            (np.ones((3, 1)), r"got shape \(3, 1\)"),
            ([1.0, 0.0, -1.0], r"positive and finite, .* got 0.0 at position 1 \(2 bad entries\)"),
            ([1.0, np.nan, 1.0], r"got nan at position 1 \(1 bad entry\)"),
            ([1.0, 1.0, np.inf], r"got inf at position 2"),
            (["a", "b", "c"], r"or an array of numbers, got list"),
        ],
    )
    def test_bad_factors(self, bad, message):
        with pytest.raises(ValueError, match=message):
            Counts.from_any(self.Y).size_factors(bad)
