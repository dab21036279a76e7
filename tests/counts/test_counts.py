"""Counts: the same matrix whatever form it came in, nothing lost, nothing copied without need."""

import math
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse
from scipy.special import gammaln

from log1pnmf.counts import compress as sparse_rows
from log1pnmf.counts.compress import SparseRows, dense_blocks
from log1pnmf.counts.counts import Counts

FORMATS = ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"]
KINDS = [sparse.csr_array, sparse.csr_matrix]
DTYPES = [bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
DTYPES += [np.float16, np.float32, np.float64, np.longdouble]

count_arrays = hnp.arrays(
    np.int64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9),
    elements=st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 2**40)),
)


def random_counts(n, m, *, density=0.2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.poisson(3, (n, m)) * (rng.random((n, m)) < density)


def assert_canonical(rows):
    """The promise of SparseRows, entry by entry."""
    assert rows.indptr.dtype == np.int64
    assert rows.indices.dtype == np.int32
    assert rows.values.dtype in (np.float32, np.float64)
    assert rows.indptr.shape == (rows.shape[0] + 1,)
    assert rows.indptr[0] == 0
    assert rows.nnz == rows.indices.size == rows.values.size
    for start, stop in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
        assert (np.diff(rows.indices[start:stop]) > 0).all()
    assert (rows.values > 0).all()
    for array in (rows.indptr, rows.indices, rows.values):
        assert array.flags.c_contiguous
        assert not array.flags.writeable


def dense(rows):
    """Written out by hand, so that SciPy is not both judge and party."""
    out = np.zeros(rows.shape)
    for i in range(rows.shape[0]):
        for k in range(rows.indptr[i], rows.indptr[i + 1]):
            out[i, rows.indices[k]] += rows.values[k]
    return out


def assert_holds(counts, expected):
    expected = np.asarray(expected, dtype=np.float64)
    assert counts.shape == expected.shape
    for rows, target in ((counts.by_row, expected), (counts.by_column, expected.T)):
        assert_canonical(rows)
        np.testing.assert_array_equal(dense(rows), target)


def assert_same_arrays(one, other):
    for a, b in ((one.by_row, other.by_row), (one.by_column, other.by_column)):
        np.testing.assert_array_equal(a.indptr, b.indptr)
        np.testing.assert_array_equal(a.indices, b.indices)
        np.testing.assert_array_equal(a.values, b.values)
        assert a.values.dtype == b.values.dtype


class TestForms:
    @given(count_arrays, st.sampled_from(FORMATS), st.sampled_from(KINDS))
    def test_every_sparse_format_gives_the_arrays_of_the_dense_matrix(self, Y, form, kind):
        from_dense = Counts.from_any(Y)
        assert_holds(from_dense, Y)
        given_matrix = kind(Y).asformat(form)
        before = given_matrix.toarray()
        assert_same_arrays(Counts.from_any(given_matrix), from_dense)
        np.testing.assert_array_equal(given_matrix.toarray(), before)

    @given(count_arrays.map(lambda Y: np.minimum(Y, 1)), st.sampled_from(DTYPES), st.sampled_from("CF"))
    def test_every_dtype_and_memory_order(self, Y, dtype, order):
        assert_holds(Counts.from_any(np.asarray(Y, dtype=dtype, order=order)), Y)

    @pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
    @given(count_arrays)
    def test_lists_matrices_and_object_arrays(self, Y):
        expected = Counts.from_any(Y)
        for form in (
            Y.tolist(),
            np.asmatrix(Y),
            Y.astype(object),
            Y.astype(">i8"),
            np.repeat(Y, 2, axis=1)[:, ::2],
        ):
            assert_same_arrays(Counts.from_any(form), expected)

    @pytest.mark.parametrize("dtype", ["int64", "float32", "uint8", "Int64", "boolean", "Sparse[int]"])
    def test_frames_carry_their_names_if_they_have_any(self, dtype):
        Y = np.minimum(random_counts(6, 4), 1)
        plain = Counts.from_any(pd.DataFrame(Y).astype(dtype))
        named = Counts.from_any(pd.DataFrame(Y, index=list("uvwxyz"), columns=list("abcd")).astype(dtype))
        for counts in (plain, named):
            assert_holds(counts, Y)
        assert plain.feature_names is plain.sample_names is None
        assert named.feature_names.tolist() == list("abcd")
        assert named.sample_names.tolist() == list("uvwxyz")

    def test_counts_pass_through_and_out(self):
        counts = Counts.from_any(Y := random_counts(9, 6))
        assert Counts.from_any(counts) is counts
        np.testing.assert_array_equal(counts.to_scipy().toarray(), Y)


class TestCleaning:
    @given(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 200)), max_size=60),
        st.sampled_from([np.uint8, np.int16, np.int64, np.float32, np.float64]),
        st.sampled_from(["coo", "csr", "csc"]),
    )
    def test_zeros_dropped_duplicates_summed_whatever_the_dtype(self, entries, dtype, form):
        expected = np.zeros((5, 7))
        for i, j, value in entries:
            expected[i, j] += value
        rows, columns, values = (
            (np.array(part) for part in zip(*entries, strict=True)) if entries else ([], [], [])
        )
        given_matrix = raw_sparse(
            form, (np.asarray(rows, int), np.asarray(columns, int)), np.array(values, dtype)
        )
        before = [part.copy() for part in parts_of(given_matrix)]
        assert_holds(Counts.from_any(given_matrix), expected)
        for part, old in zip(parts_of(given_matrix), before, strict=True):
            np.testing.assert_array_equal(part, old)

    @pytest.mark.parametrize("kind", [np.int8, np.float32])
    def test_duplicates_are_summed_beyond_the_range_of_the_dtype(self, kind):
        values, total = ([2**24, 1], 2**24 + 1) if kind is np.float32 else ([100, 100, 100], 300)
        n, data = len(values), np.array(values, kind)
        coo = sparse.coo_array((data, ([0] * n, [1] * n)), shape=(1, 2))
        for form in (coo, sparse.csr_array((data, [1] * n, [0, n]), shape=(1, 2))):
            assert_holds(Counts.from_any(form), [[0, total]])

    def test_stale_flags_of_scipy_do_not_matter(self):
        csr = sparse.csr_array((np.float32([1, 2]), np.int32([0, 1]), np.int32([0, 2])), shape=(1, 2))
        assert csr.has_canonical_format
        csr.indices[:] = [1, 0]
        assert_holds(Counts.from_any(csr), [[2, 1]])

    def test_spare_room_behind_the_last_entry_is_ignored(self):
        csr = sparse.csr_array(random_counts(4, 5, density=0.5).astype(np.float32))
        expected = csr.toarray()
        csr.data = np.append(csr.data, np.float32(-7))
        csr.indices = np.append(csr.indices, np.int32(99))
        assert_holds(Counts.from_any(csr), expected)

    def test_negative_zero_is_zero(self):
        assert Counts.from_any(np.array([[-0.0, 1.0]])).nnz == 1
        assert Counts.from_any(sparse.csr_array((np.array([-0.0]), [0], [0, 1]), shape=(1, 1))).nnz == 0

    def test_index_outside_the_matrix_is_refused(self):
        csr = sparse.csr_array(np.eye(3))
        csr.indices[1] = 7
        with pytest.raises(ValueError, match="not a valid sparse matrix of shape"):
            Counts.from_any(csr)

    def test_more_entries_than_one_look_holds(self):
        stored = sparse.csr_array(random_counts(1500, 1000, density=0.9).astype(np.float64))
        stored.data[::3] = 0
        expected = stored.toarray()
        for form in (stored, stored.tocsc(), expected):
            counts = Counts.from_any(form)
            assert counts.nnz == np.count_nonzero(expected)
            np.testing.assert_array_equal(counts.by_row.to_dense(slice(0, 1500)), expected)
            np.testing.assert_array_equal(counts.by_column.to_dense(slice(0, 1000)), expected.T)
            assert counts.total == expected.sum()
            assert counts.log_factorial == pytest.approx(gammaln(expected + 1.0).sum(), rel=1e-12)
            np.testing.assert_array_equal(counts.by_row.row_sums(), expected.sum(axis=1))

    def test_blocks_make_up_the_whole(self):
        Y = random_counts(17, 11, density=0.4)
        Y[3] = 0
        rows = Counts.from_any(Y).by_row
        for limit in (1, 7, 25, 1000):
            blocks = list(dense_blocks(rows.shape, limit))
            np.testing.assert_array_equal(np.concatenate([rows.to_dense(block) for block in blocks]), Y)
            assert all((block.stop - block.start) * 11 <= max(limit, 11) for block in blocks)
            found = np.zeros(Y.shape)
            for i, entries in rows.entry_blocks(limit):
                assert len(i) <= limit
                found[i, rows.indices[entries]] += rows.values[entries]
            np.testing.assert_array_equal(found, Y)
        again = SparseRows.from_scipy(sparse.csr_array(Y.astype(np.float32)))
        np.testing.assert_array_equal(again.to_dense(slice(0, 17)), Y)


def parts_of(matrix):
    return (
        matrix.data,
        *((matrix.row, matrix.col) if matrix.format == "coo" else (matrix.indices, matrix.indptr)),
    )


def raw_sparse(form, places, values):
    """A 5 x 7 matrix that keeps zeros, duplicates and disorder as they are."""
    rows, columns = places
    if form == "coo":
        return sparse.coo_array((values, (rows, columns)), shape=(5, 7))
    major, minor, size = (rows, columns, 5) if form == "csr" else (columns, rows, 7)
    order = np.argsort(major, kind="stable")
    indptr = np.concatenate(([0], np.cumsum(np.bincount(major, minlength=size))))
    kind = sparse.csr_array if form == "csr" else sparse.csc_array
    return kind((values[order], minor[order], indptr), shape=(5, 7))


class TestValues:
    @pytest.mark.parametrize("form", [np.array, sparse.csr_array, sparse.csc_array, sparse.coo_array])
    def test_float32_where_it_is_exact_and_float64_elsewhere(self, form):
        exact = {1: True, 2**24: True, 2**30: True, 2**24 + 1: False, 2**40 + 1: False, 2**53 - 1: False}
        for largest, single in exact.items():
            counts = Counts.from_any(form(np.array([[largest, 0, 3]])))
            kind = np.float32 if single else np.float64
            assert counts.by_row.values.dtype == counts.by_column.values.dtype == kind
            assert int(counts.by_row.values[0]) == largest

    def test_fractions_keep_their_digits(self):
        with pytest.warns(UserWarning, match="non-integer"):
            assert Counts.from_any([[0.1]]).by_row.values[0] == 0.1
        with pytest.warns(UserWarning, match="non-integer"):
            assert Counts.from_any([[0.5]]).by_row.values.dtype == np.float32
        assert Counts.from_any([[1e99]]).by_row.values[0] == 1e99

    @given(count_arrays)
    def test_summaries(self, Y):
        counts = Counts.from_any(Y)
        assert counts.nnz == np.count_nonzero(Y)
        assert counts.total == pytest.approx(float(Y.sum()), rel=1e-14)
        expected = math.fsum(math.lgamma(y + 1) for y in Y.ravel())
        assert counts.log_factorial == pytest.approx(expected, rel=1e-13, abs=1e-13)
        assert counts.n_empty == ((Y.sum(axis=1) == 0).sum(), (Y.sum(axis=0) == 0).sum())
        np.testing.assert_allclose(counts.by_row.row_sums(), Y.sum(axis=1), rtol=1e-14)
        np.testing.assert_allclose(counts.by_column.row_sums(), Y.sum(axis=0), rtol=1e-14)

    def test_row_sums_are_added_in_double(self):
        n = 2**24 + 5
        ones = sparse.csr_array((np.ones(n, np.float32), np.arange(n, dtype=np.int32), [0, n]), shape=(1, n))
        assert Counts.from_any(ones).total == n


class TestMemory:
    def canonical(self, kind=sparse.csr_array):
        matrix = kind(random_counts(30, 20).astype(np.float32))
        matrix.indices = matrix.indices.astype(np.int32)
        return matrix

    @pytest.mark.parametrize(("form", "side"), [("csr", "by_row"), ("csc", "by_column")])
    def test_canonical_arrays_are_shared(self, form, side):
        matrix = self.canonical(getattr(sparse, f"{form}_array"))
        rows = getattr(Counts.from_any(matrix), side)
        assert np.shares_memory(rows.values, matrix.data)
        assert np.shares_memory(rows.indices, matrix.indices)
        assert matrix.data.flags.writeable

    def test_result_cannot_be_changed(self):
        counts = Counts.from_any(self.canonical())
        with pytest.raises(ValueError, match="read-only"):
            counts.by_row.values[0] = 5
        with pytest.raises(AttributeError):
            counts.by_row = None
        counts.size_factors("total")[0] = 9
        assert counts.size_factors("total")[0] != 9

    @pytest.mark.parametrize("form", ["csr", "csc"])
    def test_a_fit_sized_matrix_costs_one_more_copy(self, form):
        """The checks and the transpose add little more than the transpose itself holds."""
        indices, indptr = np.tile(np.arange(0, 3000, 2, dtype=np.int32), 4000), np.arange(4001) * 1500
        values = 1 + np.arange(len(indices), dtype=np.float32) % 3
        matrix = sparse.csr_array((values, indices, indptr), shape=(4000, 3000)).asformat(form)
        held = matrix.data.nbytes + matrix.indices.nbytes
        tracemalloc.start()
        counts = Counts.from_any(matrix)
        assert (counts.by_row.nnz, counts.by_column.nnz) == (matrix.nnz, matrix.nnz)
        assert counts.total > 0
        assert counts.log_factorial > 0
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # A piece of 2**20 entries: at most four doubles each (mask, index and two copies of the values).
        assert peak < held + 4 * 8 * sparse_rows.CHUNK

    @given(count_arrays)
    def test_transposing_twice_is_the_same(self, Y):
        counts = Counts.from_any(Y)
        columns = counts.by_row.transpose()
        assert_canonical(columns)
        assert_same_arrays(counts, Counts(columns.transpose(), columns))

    @pytest.mark.parametrize(
        ("shape", "density"),
        [
            ((30, 5000), 0.3),
            ((400, 2500), 0.02),
            ((1, 9000), 0.5),
            ((7, 3), 0),
            ((300, 400), 0.9),
            ((500, 1200), 0.6),
        ],
    )
    @pytest.mark.parametrize("kind", [np.float32, np.float64, np.int8])
    def test_transposing_is_that_of_scipy(self, shape, density, kind):
        """Columns are sorted some at a time where rows are long, entries side by side where they are few."""
        matrix = sparse.random(*shape, density, "csr", random_state=0, data_rvs=lambda n: np.arange(n) % 99)
        matrix = sparse.csr_array(matrix.astype(kind))
        found, expected = SparseRows.from_scipy(matrix).transpose(), matrix.tocsc()
        for name, one in (("indptr", np.int64), ("indices", np.int32), ("values", kind)):
            array = getattr(found, name)
            assert array.dtype == one
            assert np.array_equal(array, getattr(expected, "data" if name == "values" else name))

    @pytest.mark.parametrize("indices", [[1, 0], [0, 0], [0, 3], [-1, 0]])
    def test_rows_that_break_their_promise_are_not_transposed(self, indices):
        rows = SparseRows((1, 3), np.array([0, 2]), np.array(indices, dtype=np.int32), np.ones(2))
        with pytest.raises(ValueError, match="rise"):
            rows.transpose()

    def test_indptr_beyond_32_bits(self):
        """Row starts above 2**31 stay what they are (only the row starts are real here)."""
        far = SparseRows(
            (2, 4), np.array([0, 2**33, 2**33 + 3]), np.empty(0, np.int32), np.empty(0, np.float32)
        )
        assert far.nnz == 2**33 + 3
        assert list(sparse_rows.row_blocks(far.indptr, 2**31)) == [(0, 1), (1, 2)]


def test_variable_features_are_those_with_structure():
    from log1pnmf.counts.features import variable_features

    rng = np.random.default_rng(0)
    means = np.tile(np.exp(rng.normal(1.0, 1.5, 100)), (200, 1))
    means[:100, :10] *= 4.0  # twice as many samples as not, and features of all levels
    means *= rng.gamma(5.0, 0.2, (200, 1)) * rng.gamma(2.0, 0.5, (200, 100))
    found = variable_features(Counts.from_any(rng.poisson(means)), 15)
    assert (found[:-1] < found[1:]).all()
    assert np.isin(np.arange(10), found).sum() >= 7
    assert len(variable_features(Counts.from_any(np.eye(3)), 5)) == 3


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
        Y = random_counts(20, 6).astype(float)
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
            counts = Counts.from_any(form(np.log1p(random_counts(2000, 1100, density=0.9))))
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


class TestSizeFactors:
    Y = np.array([[1, 2, 3], [0, 0, 0], [4, 0, 2]])

    def test_total(self):
        factors = Counts.from_any(self.Y).size_factors("total")
        assert factors.dtype == np.float64
        np.testing.assert_allclose(factors, [6 / 4, 1, 6 / 4])
        np.testing.assert_array_equal(Counts.from_any(self.Y).size_factors("none"), [1.0, 1.0, 1.0])
        assert Counts.from_any(np.zeros((3, 2))).size_factors("total").tolist() == [1.0, 1.0, 1.0]

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
