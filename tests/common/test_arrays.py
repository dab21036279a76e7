"""Sums over the rows of arrays, wherever they live."""

import numpy as np
import pytest

from log1pnmf._common.arrays import ROWS_TOGETHER, column_means, column_sums
from log1pnmf._common.rows import Rows


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
