"""Sums over the rows of arrays, wherever they live."""

import numpy as np
import pytest

from log1pnmf._common.arrays import ROWS_TOGETHER, Rows, column_means, column_sums, extrapolated


@pytest.mark.parametrize("n_rows", [0, 1, ROWS_TOGETHER - 1, ROWS_TOGETHER, 5 * ROWS_TOGETHER + 7])
def test_sums_of_columns(n_rows):
    array = np.random.default_rng(0).uniform(-1.0, 1.0, (n_rows, 3))
    expected = [float(sum(column)) for column in array.T.tolist()]
    for one in (array, np.asfortranarray(array), array.repeat(2, axis=1)[:, ::2]):
        np.testing.assert_allclose(column_sums(one), expected, rtol=1e-12, atol=1e-13)


def test_means_of_columns():
    array = np.random.default_rng(0).gamma(1.0, 1.0, (200, 4))
    for own, others in zip((array, Rows.of(array)), (2.0 * array, Rows.of(2.0 * array)), strict=True):
        one, other = column_means(own, others)
        np.testing.assert_allclose(one, array.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(other, 2.0 * one, rtol=1e-15)


def test_extrapolation_is_the_same_for_all_kinds_of_arrays():
    to, since = np.random.default_rng(0).gamma(0.5, 1.0, (2, 200, 4))
    expected = np.maximum(to + 0.7 * (to - since), 0.1 * to)
    for one in (to, np.asfortranarray(to), to.repeat(2, axis=1)[:, ::2]):
        np.testing.assert_allclose(extrapolated(one, since, 0.7, 0.1), expected, rtol=1e-13)
    rows = extrapolated(Rows.of(to), Rows.of(since), 0.7, 0.1)
    np.testing.assert_allclose(rows.to_array(), expected, rtol=1e-13)
    with pytest.raises(TypeError, match="arrays of one kind, got ndarray and Rows"):
        extrapolated(to, Rows.of(since), 0.7, 0.1)
